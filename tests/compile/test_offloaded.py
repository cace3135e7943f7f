"""Compiled stages whose activations are away meanwhile have the bits of eager ones."""

import numpy as np
import pytest

from minipipe import Pipeline, nn, optim, schedules, spawn
from minipipe.compile.stage import KindProgram

WIDTH = 8
CASES = [
    (schedules.gpipe, 1, 1),
    (schedules.gpipe, 2, 2),
    (schedules.one_f_one_b, 4, 2),
    (schedules.zb_h1, 4, 2),
    (schedules.interleaved_1f1b, 2, 3),
]


def model(num_layers=8):
    layers = [
        layer
        for _ in range(num_layers)
        for layer in (nn.Linear(WIDTH, WIDTH), nn.Tanh(), nn.Dropout(0.2))
    ]
    return nn.Sequential(*layers)


def train(group, how, schedule, make=model):
    pipeline = Pipeline(
        make(), group, loss=nn.MSELoss(), schedule=schedule, compile=how
    )
    optimiser = optim.AdamW(pipeline.parameters(), 0.05)
    random, found = np.random.default_rng(0), []
    for size in (16, 16, 16, 13, 13, 16):
        x = random.normal(size=(size, WIDTH)).astype(np.float32)
        found.append(float(pipeline.step(x, np.tanh(x[:, ::-1]))))
        found += [each.grad.tobytes() for each in pipeline.parameters()]
        optimiser.step()
    found.append({n: w.tobytes() for n, w in pipeline.state_dict().items()})
    return found, pipeline.compile_report()


@pytest.mark.parametrize(("make", "num_ranks", "num_held"), CASES)
def test_offloaded_activations_leave_the_bits(make, num_ranks, num_held):
    schedule = schedules.offloaded(make(num_ranks, 8), num_held)

    def both(group):
        eager, _ = train(group, False, schedule)
        found, report = train(group, True, schedule)
        assert found == eager
        lines = report.splitlines()
        assert lines
        assert all(line.endswith("is compiled") for line in lines), report

    spawn(both, num_ranks=num_ranks)


@pytest.mark.parametrize("num_held", [1, 2, 3])
def test_a_rank_holds_no_more_arrays_than_its_schedule_says(num_held, monkeypatch):
    most = []
    filled = KindProgram._filled_slot

    def counted(self, *given):
        slot = filled(self, *given)
        most.append(max(self.num_slots))
        return slot

    monkeypatch.setattr(KindProgram, "_filled_slot", counted)
    schedule = schedules.offloaded(schedules.gpipe(1, 8), num_held)
    spawn(lambda group: train(group, True, schedule), num_ranks=1)
    assert max(most) == num_held


def test_recomputed_and_offloaded_activations_leave_the_bits():
    schedule = schedules.recomputed(schedules.gpipe(2, 6))
    schedule = schedules.offloaded(schedule, 2)

    def both(group):
        eager, _ = train(group, False, schedule)
        assert train(group, True, schedule)[0] == eager

    spawn(both, num_ranks=2)

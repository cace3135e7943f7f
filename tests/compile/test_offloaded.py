"""Compiled stages whose activations are away meanwhile have the bits of eager ones."""

import tracemalloc
from functools import partial

import numpy as np
import pytest

from minipipe import Pipeline, nn, optim, schedules, spawn
from minipipe.compile.offloads import Kept
from tests.launch import slowly

WIDTH = 8
CASES = [
    slowly(schedules.gpipe, 1, 1),
    slowly(schedules.gpipe, 2, 2),
    slowly(schedules.one_f_one_b, 4, 2),
    slowly(schedules.zb_h1, 4, 2),
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
    found.append(pipeline.timeline().peak_activations)
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


@pytest.mark.parametrize("num_held", [1, *map(slowly, (2, 3))])
def test_a_rank_holds_no_more_arrays_than_its_schedule_says(num_held, monkeypatch):
    most = []
    change = Kept.saved.fset

    def count(slots):
        for values, _ in slots:
            kept = [any(isinstance(v, np.ndarray) for v in own or ()) for own in values]
            most.append(sum(kept))

    def counted(self, saved):
        count(self._slots)
        change(self, saved)
        count(self._slots)

    monkeypatch.setattr(Kept, "saved", Kept.saved.setter(counted))
    schedule = schedules.offloaded(schedules.gpipe(1, 8), num_held)
    spawn(lambda group: train(group, True, schedule), num_ranks=1)
    assert max(most) == num_held


@pytest.mark.slow
def test_recomputed_and_offloaded_activations_leave_the_bits():
    schedule = schedules.recomputed(schedules.gpipe(2, 6))
    schedule = schedules.offloaded(schedule, 2)

    def both(group):
        eager, _ = train(group, False, schedule)
        assert train(group, True, schedule)[0] == eager

    spawn(both, num_ranks=2)


class Reads(nn.Module):
    """Cannot be compiled."""

    def forward(self, x):
        return x * 2 if float(x.data.flat[0]) > 0 else x


@pytest.mark.slow
def test_eager_stages_among_compiled_ones_have_the_bits_of_eager_rows():
    schedule = schedules.offloaded(schedules.interleaved_1f1b(2, 4), 1)

    def mixed():
        layers = model(8).layers
        return nn.Sequential(*layers[:14], Reads(), *layers[14:])

    def both(group):
        eager, _ = train(group, False, schedule, mixed)
        found, report = train(group, "where-possible", schedule, mixed)
        assert found == eager
        if group.rank == 0:
            assert "stage 0 is compiled" in report
            assert "stage 2 runs eagerly: layer 14, Reads" in report

    spawn(both, num_ranks=2)


@pytest.mark.slow
def test_offloading_leaves_less_in_memory():
    wide, rows = 128, 256

    def wide_model():
        layers = [part for _ in range(4) for part in (nn.Linear(wide, wide), nn.Tanh())]
        return nn.Sequential(*layers)

    def peak(group, schedule):
        pipeline = Pipeline(
            wide_model(), group, loss=nn.MSELoss(), schedule=schedule, compile=True
        )
        x = np.ones((8 * rows, wide), np.float32)
        tracemalloc.start()
        for _ in range(4):
            pipeline.step(x, x)
        found = []
        for _ in range(3):  # a slow disk leaves more in memory for a while
            tracemalloc.reset_peak()
            pipeline.step(x, x)
            found.append(tracemalloc.get_traced_memory()[1])
        tracemalloc.stop()
        return min(found)

    gpipe = schedules.gpipe(1, 8)
    (whole,), (less,) = (
        spawn(partial(peak, schedule=schedule), num_ranks=1)
        for schedule in (gpipe, schedules.offloaded(gpipe, 2))
    )
    assert less < 0.7 * whole, (less, whole)


def test_the_source_of_an_offloaded_row_has_the_sections_and_the_row():
    def run(group):
        schedule = schedules.offloaded(schedules.gpipe(1, 4), 1)
        pipeline = Pipeline(
            model(2), group, loss=nn.MSELoss(), schedule=schedule, compile=True
        )
        x = np.ones((8, WIDTH), np.float32)
        for _ in range(3):
            pipeline.step(x, x)
        source = pipeline.source()
        assert "def forward_0(" in source
        assert "def schedule(rank):" in source
        assert "away0_0 = offload(rank, cell[" in source
        assert pipeline.source(0).startswith("def forward_0(")

    spawn(run, num_ranks=1)

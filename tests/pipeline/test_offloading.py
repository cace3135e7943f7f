"""R, O and L, run: activations computed again or kept in a file, with the bits of a
step that keeps all of them.
"""

from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from minipipe import Pipeline, Tensor, functional, nn, optim, schedules, spawn
from minipipe.autograd.memory import held_bytes
from minipipe.execution import offloading
from minipipe.execution.offloading import Parked
from minipipe.testing import check_same_as_one_process, same_bits
from tests.strategies import batch, build, examples, stacks, with_offloads

X = np.random.default_rng(0).standard_normal((16, 6)).astype(np.float32)
MANY = {
    "recomputed": schedules.recomputed(schedules.one_f_one_b(2, 4)),
    "recomputed in halves": schedules.recomputed(schedules.zb_h1(2, 4)),
    "recomputed on one stage": schedules.recomputed(schedules.one_f_one_b(2, 4), [0]),
    "offloaded": schedules.offloaded(schedules.gpipe(2, 4), 2),
    "offloaded inputs": schedules.offloaded(
        schedules.recomputed(schedules.one_f_one_b(2, 4)), 1
    ),
}


def model():
    return nn.Sequential(
        *(
            layer
            for _ in range(4)
            for layer in (nn.Linear(6, 6), nn.Tanh(), nn.Dropout(0.2))
        )
    )


def trained(group, schedule, measures=False, make=model):
    pipeline = Pipeline(make(), group, loss=nn.MSELoss(), schedule=schedule)
    pipeline.measures_memory = measures
    optimiser, losses = optim.Adam(pipeline.parameters(), learning_rate=0.01), []
    for _ in range(4):
        losses.append(pipeline.step(X, X))
        optimiser.step()
    return losses, pipeline.state_dict(), pipeline.timeline()


@pytest.mark.parametrize("name", MANY)
def test_a_training_has_the_bits_of_one_that_keeps_everything(name):
    losses, state, _ = spawn(
        lambda group: trained(group, schedules.one_f_one_b(2, 4)), 2
    )[0]
    for found, values, timeline in spawn(lambda group: trained(group, MANY[name]), 2):
        assert found == losses and all(
            same_bits(values[key], state[key]) for key in state
        )
        assert timeline.peak_activations == schedules.peak_activations(MANY[name])


@examples(60)
@given(st.data())
def test_so_has_any_step_of_any_model_and_legal_schedule(data):
    schedule = build(
        data.draw(st.sampled_from(["1f1b", "gpipe", "zb-h1", "interleaved-1f1b"])), 2, 4
    )
    schedule = with_offloads(data.draw, schedule)
    made, width = data.draw(
        stacks(min_layers=schedule.num_stages, max_layers=schedule.num_stages + 4)
    )
    inputs, targets = batch(data.draw(st.integers(4, 9)), width)
    check_same_as_one_process(made, nn.MSELoss(), inputs, targets, schedule, 3)


def test_what_is_dropped_or_away_takes_no_memory():
    def peaks(schedule):
        return spawn(lambda group: trained(group, schedule, measures=True), 2)[0][
            2
        ].peak_memory

    everything, fewer = peaks(schedules.gpipe(2, 4)), peaks(MANY["offloaded"])
    assert all(2 * a >= b > a for a, b in zip(fewer, everything)), (fewer, everything)
    assert peaks(MANY["recomputed"])[0] < peaks(schedules.one_f_one_b(2, 4))[0]


def test_an_array_that_comes_back_has_its_bytes_its_strides_and_its_owner():
    """A view of a larger array, and a transposed one, captured by two vjps: both look
    at one buffer, as before.
    """
    x = Tensor(np.arange(12.0).reshape(3, 4), requires_grad=True)
    turned = functional.transpose(x * 2.0)
    y = turned * turned + functional.exp(turned)
    with ThreadPoolExecutor(1) as threads:
        before = held_bytes([y.node], [])
        parked = Parked([y.node], [], threads)
        assert parked.num_bytes > 0 and held_bytes([y.node], []) < before
        parked.read()
        parked.put_back()
        assert held_bytes([y.node], []) == before
    y.backward(np.ones((4, 3)))
    twin = Tensor(np.arange(12.0).reshape(3, 4), requires_grad=True)
    turned = functional.transpose(twin * 2.0)
    (turned * turned + functional.exp(turned)).backward(np.ones((4, 3)))
    assert same_bits(x.grad, twin.grad)


def test_parameters_stay_and_a_layer_with_arrays_of_its_own_does_too():
    class Scaled(nn.Module):
        def __init__(self):
            self.factor = np.full(6, 2.0, np.float32)

        def forward(self, x):
            return x * Tensor(self.factor)

    def make():
        return nn.Sequential(nn.Linear(6, 6), Scaled(), nn.Tanh(), nn.Linear(6, 6))

    kept = spawn(lambda group: trained(group, schedules.gpipe(2, 4), make=make), 2)[0]
    away = spawn(lambda group: trained(group, MANY["offloaded"], make=make), 2)[0]
    assert kept[0] == away[0]


def test_a_file_that_could_not_be_written_is_said_by_the_backward(monkeypatch):
    def full(file, buffers):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(offloading, "_write", full)
    with pytest.raises(OSError, match="No space left on device") as caught:
        spawn(lambda group: trained(group, MANY["offloaded"]), 2)
    assert any(
        "action 0B" in note or "action 1B" in note for note in caught.value.__notes__
    )

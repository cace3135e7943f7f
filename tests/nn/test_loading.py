"""Loaded values are written into the arrays that parameters and optimisers have, if these
are like new ones; whatever refers to these, no number is another one.
"""

from collections.abc import Mapping

import array_api_strict
import numpy as np
import pytest

from minipipe import Tensor, nn, optim, spawn
from minipipe.core import pipeline as core_pipeline
from minipipe.core.nn import parameter as module_of_parameter
from minipipe.errors import ParameterError, TensorError
from tests.compile import device


def square(seed=0):
    return np.random.default_rng(seed).normal(size=(3, 3)).astype("f4")


def model(**numbers):
    made = nn.Sequential(nn.Linear(3, 3), nn.Linear(3, 3), **numbers)
    return made.initialise(0)


def values_of(layers):
    return {name: p.data.tobytes() for name, p in layers.named_parameters()}


# -- which arrays stay -----------------------------------------------------------------


@pytest.mark.parametrize(
    "xp", [np, device, array_api_strict], ids=lambda xp: xp.__name__
)
@pytest.mark.parametrize("dtype", ["f4", "f8"])
def test_an_array_stays_and_has_the_values_in_its_dtype(xp, dtype):
    parameter = nn.Parameter(xp.asarray(square()))
    before = parameter.data
    parameter.load(square(1).astype(dtype), "it")
    assert parameter.data is before
    assert parameter.numpy().tobytes() == square(1).tobytes()


def read_only(array):
    array.flags.writeable = False
    return array


def mapped(array):
    made = np.memmap("values", "f4", "w+", shape=array.shape)
    made[...] = array
    return made


OTHERS = {
    "Fortran order": np.asfortranarray,
    "another dtype": lambda array: array.astype("f8"),
    "another shape": lambda array: np.zeros((4, 3), "f4"),
    "every other column": lambda array: np.repeat(array, 2, axis=1)[:, ::2],
    "read-only": read_only,
    "a file": mapped,
    "another module": array_api_strict.asarray,
}


@pytest.mark.parametrize("change", OTHERS.values(), ids=OTHERS)
def test_an_array_unlike_a_new_one_is_replaced(change, tmp_path, monkeypatch):
    """A product has other bits if its operands have other strides."""
    monkeypatch.chdir(tmp_path)
    parameter = nn.Parameter(square())
    parameter.data = change(square())
    before, bytes_before = parameter.data, np.array(parameter.data).tobytes()
    parameter.load(square(1), "it")
    assert parameter.data is not before
    assert np.array(before).tobytes() == bytes_before
    assert type(parameter.data) is np.ndarray and parameter.data.flags.c_contiguous
    assert parameter.data.dtype == np.float32
    assert parameter.data.tolist() == square(1).tolist()


def test_an_axis_of_length_one_with_another_stride_is_made_plain():
    parameter = nn.Parameter(np.zeros((1, 3), "f4"))
    parameter.data = np.zeros((2, 6), "f4")[:1, :3]
    assert parameter.data.flags.c_contiguous
    parameter.load(np.ones((1, 3), "f4"), "it")
    assert parameter.data.strides == np.ones((1, 3), "f4").strides


# -- values that refer to arrays of parameters -----------------------------------------


def test_two_parameters_change_places():
    layers = model()
    first, second = layers[0].weight, layers[1].weight
    expected = [second.data.copy(), first.data.copy()]
    state = {name: p.data for name, p in layers.named_parameters()}
    state["0.weight"], state["1.weight"] = second.data, first.data[...]
    layers.load_state_dict(state)
    assert first.data.tolist() == expected[0].tolist()
    assert second.data.tolist() == expected[1].tolist()


@pytest.mark.parametrize("xp", [np, device], ids=lambda xp: xp.__name__)
def test_a_parameter_is_loaded_from_its_own_memory(xp):
    parameter = nn.Parameter(xp.asarray(square()))
    parameter.load(parameter.data.T, "it")
    assert parameter.numpy().tolist() == square().T.tolist()


def test_arrays_of_a_device_change_places():
    layers = model().to(device)
    state = {name: p.data for name, p in layers.named_parameters()}
    before = {name: array.get().tolist() for name, array in state.items()}
    names = {"0.weight": "1.weight", "1.weight": "0.weight"}
    layers.load_state_dict({name: state[names.get(name, name)] for name in state})
    for name, parameter in layers.named_parameters():
        assert parameter.data.get().tolist() == before[names.get(name, name)]


def test_first_values_are_in_new_arrays():
    layers = model()
    kept = [p.data for p in layers.parameters()]
    bits = [array.tobytes() for array in kept]
    layers.initialise(1)
    assert [array.tobytes() for array in kept] == bits
    assert layers[0].weight.data.tobytes() != bits[0]


def test_an_alias_has_the_values_and_the_array_of_its_owner():
    layers = model()
    tied = layers[0].weight.alias()
    before = tied.data
    layers.load_state_dict({n: 2 * v for n, v in layers.state_dict().items()})
    assert tied.data is before is layers[0].weight.data


def best_values(group, make):
    """Train, keep the best values, train on, and load them again."""
    pipeline = make(group)
    optimiser = optim.SGD(list(pipeline.parameters()), learning_rate=0.1)
    x = square()[:2]
    best = pipeline.state_dict()
    bits = {name: array.tobytes() for name, array in best.items()}
    for _ in range(3):
        pipeline.step(x, x)
        optimiser.step()
    other = {name: array + 1 for name, array in best.items()}
    pipeline.load_state_dict(other)
    assert {name: array.tobytes() for name, array in best.items()} == bits
    pipeline.load_state_dict(best)
    return {name: a.tobytes() for name, a in pipeline.state_dict().items()} == bits


def public(group):
    from minipipe import Pipeline

    return Pipeline(model(), group, loss=nn.MSELoss(), num_microbatches=2)


def core(group):
    from minipipe import schedules

    schedule = schedules.gpipe(group.size, 2)
    return core_pipeline.Pipeline(model(), group, schedule, nn.MSELoss())


@pytest.mark.parametrize("num_ranks", [1, 2])
@pytest.mark.parametrize("make", [public, core])
def test_a_state_that_was_kept_stays_as_it_was(make, num_ranks):
    found = spawn(lambda group: best_values(group, make), num_ranks)
    assert found == [True] * num_ranks


# -- graphs that are still to be differentiated ----------------------------------------


def test_a_backward_through_loaded_parameters_is_refused():
    layers = model()
    loss = layers(Tensor(square())).sum()
    layers.load_state_dict({n: v + 1 for n, v in layers.state_dict().items()})
    with pytest.raises(TensorError, match="changed after the graph had recorded it"):
        loss.backward()


@pytest.mark.parametrize("size", [3, 100])  # small arrays are compared, large are not
def test_a_backward_through_frozen_parameters_has_the_values_of_its_forward(size):
    def gradient(loads):
        layer = nn.Linear(size, size).initialise(0).freeze()
        x = Tensor(np.ones((2, size), "f4"), requires_grad=True)
        loss = (layer(x) ** 2).sum()
        if loads:
            layer.load_state_dict({n: v + 1 for n, v in layer.state_dict().items()})
        loss.backward()
        return x.grad.tobytes()

    assert gradient(True) == gradient(False)


# -- failures --------------------------------------------------------------------------


class Unreadable(Mapping):
    """A state, such as a file, of which some reading fails."""

    def __init__(self, state, failing):
        self._state, self._left = state, failing

    def __getitem__(self, name):
        self._left -= 1
        if self._left == 0:
            raise OSError("the file is damaged")
        return self._state[name]

    def __iter__(self):
        return iter(self._state)

    def __len__(self):
        return len(self._state)


@pytest.mark.parametrize("failing", range(1, 9))
def test_a_state_that_cannot_be_read_changes_nothing(failing):
    layers = model()
    before = values_of(layers)
    other = {name: value + 1 for name, value in layers.state_dict().items()}
    with pytest.raises(OSError, match="damaged"):
        layers.load_state_dict(Unreadable(other, failing))
    assert values_of(layers) == before
    layers.load_state_dict(Unreadable(other, 9))
    assert values_of(layers) != before


@pytest.mark.parametrize("wrong", [np.zeros(4, "f4"), np.full(3, 0.1), np.arange(3)])
def test_a_state_whose_last_values_do_not_fit_changes_nothing(wrong):
    layers = model()
    before = values_of(layers)
    other = {name: value + 1 for name, value in layers.state_dict().items()}
    with pytest.raises(ParameterError):
        layers.load_state_dict({**other, "1.bias": wrong})
    assert values_of(layers) == before


def test_without_memory_for_the_copy_the_earlier_values_stay(monkeypatch):
    parameter = nn.Parameter(square())
    before = parameter.data.tobytes()

    def fail(array):
        raise MemoryError

    monkeypatch.setattr(module_of_parameter.backend, "copy", fail)
    with pytest.raises(MemoryError):
        parameter.load(square(1), "it")
    assert parameter.data.tobytes() == before


# -- optimisers ------------------------------------------------------------------------


@pytest.mark.parametrize("to", [np, device], ids=lambda xp: xp.__name__)
def test_the_arrays_of_an_optimiser_stay_and_its_states_are_copies(to):
    layers = model().to(to)
    optimiser = optim.Adam(layers.parameters(), 0.1)

    def step():
        for parameter in layers.parameters():
            parameter.grad = to.asarray(np.ones(parameter.shape, "f4"))
        optimiser.step()

    step()
    kept = optimiser.state_dict()
    bits = [state["mean"].tobytes() for state in kept["states"]]
    arrays = [state["mean"] for state in optimiser._states.values()]
    step()
    optimiser.load_state_dict(kept)
    now = [state["mean"] for state in optimiser._states.values()]
    assert all(a is b for a, b in zip(now, arrays))
    step()
    assert [state["mean"].tobytes() for state in kept["states"]] == bits


def test_a_number_in_place_of_an_array_is_replaced():
    assert module_of_parameter.stored(np.ones(2), 3).tolist() == [1, 1]
    assert module_of_parameter.stored(np.ones(()), np.float64(3)).shape == ()

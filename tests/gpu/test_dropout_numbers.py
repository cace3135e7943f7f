"""Dropout by a kernel, which runs on the CPU here: the random numbers of NumPy."""

import numpy as np
import pytest

from minipipe import Tensor, functional, random_key, spawn
from minipipe.core.autograd.backend import to_numpy
from minipipe.core.autograd.modes import Key
from minipipe.functional import dropping
from minipipe.gpu import dropout
from tests.compile import device
from tests.compile.test_other_modules import (
    both,
    captured,
    functions_of,
    graphs,
    schedule_of,
    trained,
)
from tests.gpu.emulated import Kernel, installed, needs_compiler

__all__ = ["graphs"]  # a fixture
pytestmark = [needs_compiler, pytest.mark.slow]  # a stage of its own


@pytest.fixture(autouse=True)
def kernels():
    """Compute by kernels on the stand-in for a device."""
    with installed():
        yield


def outcome(xp, array, probability, seed, more):
    """Return the result and the gradient of dropout."""
    x = Tensor(xp.asarray(array), requires_grad=True)
    with random_key(seed, **more):
        y = functional.dropout(x, probability)
    y.backward(xp.asarray(array + 1))
    return [to_numpy(each) for each in (y.data, x.grad)]


def check(array, probability=0.4, seed=3, **more):
    """Compare the bits of two launches with those of NumPy."""
    before = Kernel.num_launches
    found = outcome(device, array, probability, seed, more)
    assert Kernel.num_launches == before + 2 * bool(array.size)
    for one, expected in zip(found, outcome(np, array, probability, seed, more)):
        assert one.dtype == expected.dtype
        np.testing.assert_array_equal(one, expected)
        assert one.tobytes() == expected.tobytes()


@pytest.mark.parametrize("size", [0, 1, 2, 7, 8, 9, 1023, 1024, 1025, 5000])
def test_any_number_of_elements_is_dropped_as_in_numpy(size):
    check(np.random.default_rng(size).normal(size=size).astype(np.float32))


@pytest.mark.parametrize("dtype", ["float16", "float32", "float64"])
@pytest.mark.parametrize("probability", [1e-3, 0.1, 1 / 3, 0.5, 0.999])
def test_each_dtype_and_probability_has_the_bits_of_numpy(dtype, probability):
    random = np.random.default_rng(1)
    check(random.normal(size=(5, 7, 11)).astype(dtype), probability)


def test_a_number_that_equals_the_probability_in_float32_is_kept():
    array = np.ones(64, np.float32)
    key = Key(5, 2, 7, 1, 3)
    for number in map(float, dropping.uniform(array, key)):
        for probability in (number, number + 1e-12, number - 1e-12):
            _, expected = dropping.dropped(array, probability, key)
            _, found = dropping.dropped(device.asarray(array), probability, key)
            assert found.get().tolist() == expected.tolist()


KEYS = [
    {"seed": 0},
    {"seed": 2**64 - 1},
    {"seed": 2**64 + 5, "step": 2**40},
    {"seed": 7, "step": 123456789, "microbatch": 2**33},
]


@pytest.mark.parametrize("key", KEYS, ids=str)
def test_each_part_of_a_key_counts_as_in_numpy(key):
    check(np.ones(333, np.float32), **key)


def test_special_numbers_and_views_are_dropped_as_in_numpy():
    special = np.array([np.inf, -np.inf, np.nan, -0.0, 1e-30, 3e38], np.float32)
    with np.errstate(over="ignore"):
        check(np.tile(special, 50))
    array = np.random.default_rng(0).normal(size=(6, 5)).astype(np.float32)
    check(array.T.copy().T.astype(np.float64))


@pytest.mark.parametrize("shape", [(2, 3, 4, 5), (3, 1, 1), (2, 2, 8, 8)])
@pytest.mark.parametrize("count", [1, 2, 3])
def test_the_parts_of_all_heads_are_those_of_numpy(shape, count):
    array = np.random.default_rng(0).normal(size=shape).astype(np.float32)
    for place in range(count):
        given = (0.3, Key(5, 2, 7, 1, 3), (place, count))
        expected = dropping.dropped(array, *given)
        found = dropping.dropped(device.asarray(array), *given)
        for one, other in zip(found, expected):
            assert (one.dtype, one.get().tobytes()) == (other.dtype, other.tobytes())


def test_a_graph_draws_anew_when_its_key_has_changed():
    """The key is in memory: it is no constant of the graph."""
    x = device.asarray(np.ones(64, np.float32))
    first, second = Key(1, 2, 3, 4, 1), Key(1, 2, 4, 4, 1)
    words = dropout.words_of(x, first)
    result = device.empty(64, np.float32)
    outputs = result, device.empty(64, bool)
    graph, _ = captured(dropout._dropped, x, words, 64, 0, 1, 0.5, *outputs)
    for key in (first, second, first):
        words[...] = dropout.words_of(x, key)
        graph.launch()
        expected = dropping.dropped(np.ones(64, np.float32), 0.5, key)
        assert result.get().tolist() == expected[0].tolist()


@pytest.mark.parametrize("model", ["dropout", "block"])
def test_captured_steps_draw_the_numbers_of_eager_ones(model, graphs):
    eager, compiled, reports = both(model, "1f1b", device, 2)
    assert eager == compiled
    assert all(report.endswith("as graphs") for report in reports)
    assert graphs and max(graph.num_allocations for graph in graphs) <= 1


def test_attention_draws_by_the_kernel_as_well(monkeypatch):
    def no_numbers(*given):
        raise AssertionError("The host draws")

    monkeypatch.setattr(dropping, "uniform", no_numbers)
    x = Tensor(device.asarray(np.ones((2, 3, 4), np.float32)))
    with random_key(1):
        functional.attention(x, x, x, dropout=0.5)
        functional.dropout(x, 0.5)


def test_a_section_gets_keys_and_draws_by_itself():
    def source(group):
        own = schedule_of("1f1b", group.size)
        return trained(group, "dropout", own, device, True)[1].source(0)

    functions = functions_of(spawn(source, num_ranks=1)[0])
    assert functions["prepare_forward_0"].count("words_of(") == 3
    assert functions["prepare_backward_0"].count("words_of(") == 1  # computed again
    assert functions["forward_0"].count("dropped(") == 3
    assert not any("uniform(" in each for each in functions.values())

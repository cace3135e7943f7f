"""The gradient of an embedding by a kernel, which runs on the CPU here: the bits of the
plain operation.
"""

import numpy as np
import pytest

from minipipe import Tensor, functional, spawn
from minipipe.core.autograd.backend import to_numpy
from tests.compile import device
from tests.compile.test_other_modules import captured, embedded, graphs
from tests.gpu.emulated import Kernel, installed, needs_compiler

__all__ = ["graphs"]  # a fixture
pytestmark = [needs_compiler, pytest.mark.slow]  # a stage of its own


@pytest.fixture(autouse=True)
def kernels():
    """Compute by kernels on the stand-in for a device."""
    with installed():
        yield


@pytest.fixture(params=[1 << 14, 0], ids=["unsorted", "sorted"])
def how(request, monkeypatch):
    """Sort the ids of any gradient, or of none."""
    monkeypatch.setattr("minipipe.gpu.embedding._MOST_UNSORTED", request.param)


def gradient(xp, ids, g, num_rows):
    """Return the gradient of the table of an embedding."""
    zeros = np.zeros((num_rows, g.shape[-1]), g.dtype)
    table = Tensor(xp.asarray(zeros), requires_grad=True)
    functional.embedding(table, xp.asarray(ids)).backward(xp.asarray(g))
    return to_numpy(table.grad)


def check(ids, g, num_rows):
    """Compare the bits of one launch with those of NumPy."""
    before = Kernel.num_launches
    found = gradient(device, ids, g, num_rows)
    assert Kernel.num_launches == before + bool(len(ids))
    expected = gradient(np, ids, g, num_rows)
    assert (found.dtype, found.tobytes()) == (expected.dtype, expected.tobytes())


CASES = [
    *[(count, 3, 2) for count in (0, 1, 2, 3, 31, 32, 33, 1023, 1024, 1025)],
    *[(count, 1, 3) for count in (6, 7, 64, 255, 1100)],  # all have one id
    *[(40, 5, width) for width in (1, 127, 129, 511, 512, 513, 1025)],
    (300, 299, 2),
]


@pytest.mark.usefixtures("how")
@pytest.mark.parametrize(("count", "num_rows", "width"), CASES)
def test_rows_of_an_id_are_added_in_the_order_of_numpy(count, num_rows, width):
    random = np.random.default_rng(count)
    ids = random.integers(0, num_rows, count)
    check(ids, random.normal(size=(count, width)).astype(np.float32), num_rows)


@pytest.mark.usefixtures("how")
@pytest.mark.parametrize("dtype", ["float16", "float32", "float64"])
@pytest.mark.parametrize("kind", ["uint8", "int32", "int64", "uint64"])
def test_each_dtype_of_numbers_and_of_ids_has_the_bits_of_numpy(dtype, kind):
    random = np.random.default_rng(0)
    ids = random.integers(0, 4, (3, 5)).astype(kind)
    check(ids, random.normal(size=(3, 5, 6)).astype(dtype), 4)


def test_special_numbers_and_views_have_the_bits_of_numpy():
    g = np.array([[-0.0, np.inf], [1.0, -np.inf], [np.nan, 2.0], [-0.0, 1e-45]])
    check(np.array([2, 1, 1, 0]), g.astype(np.float32), 4)
    ids = np.arange(12).reshape(3, 4) % 5
    g = np.random.default_rng(0).normal(size=(4, 3, 2)).transpose(1, 0, 2)
    check(ids[:, ::-1], g, 5)


def test_views_on_the_device_have_the_bits_of_numpy():
    random = np.random.default_rng(0)
    ids, g = random.integers(0, 3, 20), random.normal(size=(2, 20))
    rule = functional.embedding.operation.steps["weight"].function
    views = device.asarray(g).T, device.asarray(ids)[::-1]
    found = rule(*views, (3, 2)).get()
    assert found.tobytes() == rule(g.T, ids[::-1], (3, 2)).tobytes()


@pytest.mark.usefixtures("how")
@pytest.mark.parametrize("num_ranks", [1, 2])
def test_an_embedding_is_compiled_and_captured(num_ranks, graphs):
    def run(group):
        eager, _ = embedded(group, device, False)
        compiled, report = embedded(group, device, True)
        return eager == compiled, report

    for is_same, report in spawn(run, num_ranks=num_ranks, take_turns=True):
        assert is_same
        assert report.endswith("is compiled, as graphs")
    assert graphs and all(graph.num_launches for graph in graphs)


def test_a_captured_gradient_takes_new_ids_and_adds_to_zeros():
    ids = device.asarray(np.array([1, 1, 0]))
    g = device.asarray(np.ones((3, 2), np.float32))
    rule = functional.embedding.operation.steps["weight"].function
    graph, result = captured(rule, g, ids, (4, 2))
    graph.launch()
    assert result.get()[:, 0].tolist() == [1, 2, 0, 0]
    ids[...] = device.asarray(np.array([3, 3, 3]))
    graph.launch()
    assert result.get()[:, 0].tolist() == [0, 0, 0, 3]

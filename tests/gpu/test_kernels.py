"""Kernels on the CPU, from the table of operations to the launch: values, gradients and
launches beside those of the plain operations.
"""

import numpy as np
import pytest

from minipipe import Tensor, functional, spawn
from tests.compile import device, test_other_modules
from tests.compile.test_other_modules import captured  # noqa: F401
from tests.gpu import emulated
from tests.gpu.emulated import installed

pytestmark = emulated.needs_compiler
RANDOM = np.random.default_rng(0)
TOLERANCE = {"float32": 2e-6, "float64": 1e-13}


def run(function, arrays, upstream):
    """Return the value and the gradients of an operation on the device."""
    tensors = [Tensor(device.asarray(each), requires_grad=True) for each in arrays]
    result = function(*tensors)
    result.backward(device.asarray(upstream))
    return [each.get() for each in (result.data, *(t.grad for t in tensors))]


def both(function, arrays, upstream):
    """Return what the plain operation and the kernel compute, twice."""
    plain = run(function, arrays, upstream)
    with installed():
        kernel = run(function, arrays, upstream)
        again = run(function, arrays, upstream)
    for one, other in zip(kernel, again, strict=True):
        assert one.tobytes() == other.tobytes()
    return plain, kernel


def check(function, arrays, upstream, dtype):
    """Compare values and gradients of a kernel with those of the plain operation."""
    arrays = [np.asarray(each, dtype) for each in arrays]
    before = emulated.Kernel.num_launches
    plain, kernel = both(function, arrays, np.asarray(upstream, dtype))
    assert emulated.Kernel.num_launches > before or arrays[0].size == 0
    for one, other in zip(kernel, plain, strict=True):
        assert one.dtype == other.dtype and one.shape == other.shape
        scale = max(1.0, np.abs(other).max(initial=0))
        limit = TOLERANCE[dtype]
        np.testing.assert_allclose(one, other, rtol=limit, atol=limit * scale)


def launches(function, arrays, upstream):
    """Return the numbers of launches, forward and backward."""
    given = [Tensor(device.asarray(each), requires_grad=True) for each in arrays]
    upstream = device.asarray(upstream)
    numbers = []
    for step in (lambda: function(*given), lambda: result.backward(upstream)):
        with device.capturing() as capture:
            result = step()
        numbers.append(len(capture.kernels))
    return tuple(numbers)


dtypes = pytest.mark.parametrize("dtype", ["float32", "float64"])
SHAPES = [(3, 5), (257,), (2, 3, 4), (1, 1), (0, 4), ()]


@dtypes
@pytest.mark.parametrize("is_approximate", [False, True])
@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_gelu(shape, is_approximate, dtype):
    x = RANDOM.normal(size=shape) * 3
    function = lambda a: functional.gelu(a, approximate=is_approximate)
    check(function, [x], RANDOM.normal(size=shape), dtype)


def test_launches():
    x = RANDOM.normal(size=(4, 6)).astype("f4")
    assert launches(functional.gelu, [x], x) == (34, 1)
    with installed():
        assert launches(functional.gelu, [x], x) == (1, 1)


# -- compiled steps --------------------------------------------------------------------


def models(group, model, how):
    own = test_other_modules.schedule_of("1f1b", group.size)
    found, pipeline = test_other_modules.trained(group, model, own, device, how)
    report = pipeline.compile_report()
    return found, report, pipeline.source(group.rank) if how else ""


@pytest.mark.parametrize("model", ["mlp"])
@pytest.mark.parametrize("num_ranks", [1, 2])
def test_compiled_steps_have_eager_bits(model, num_ranks):
    with installed():
        spawned = spawn(
            lambda group: [models(group, model, how) for how in (False, True)],
            num_ranks=num_ranks,
        )
    for (eager, *_), (compiled, report, _) in spawned:
        assert eager == compiled
        assert all(line.endswith("is compiled") for line in report.splitlines())


def test_graphs_launch_a_kernel_in_place_of_many(captured):  # noqa: F811
    def num_kernels():
        captured.clear()
        _, _, source = spawn(lambda group: models(group, "mlp", True), 1)[0]
        graphs = [graph for each in captured for graph in each.graphs.values()]
        assert max(graph.num_allocations for graph in graphs) <= 1
        return sorted({graph.num_kernels for graph in graphs}), source

    plain, _ = num_kernels()
    with installed():
        kernels, source = num_kernels()
    assert "gelu_erf(t0, v3, v4)" in source and "full(" not in source
    assert plain == [26, 36, 57]  # backwards, as first contribution or not; forward
    assert kernels == [57 - 33, 26, 36]

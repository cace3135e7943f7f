"""Norms, clipping and finite checks of all gradients in a few launches, by kernels that
run on the CPU here: the bits of NumPy.
"""

import math
from unittest.mock import patch

import numpy as np
import pytest

from minipipe import Pipeline, init_process_group, nn, optim, spawn
from minipipe.core.autograd.backend import to_numpy
from minipipe.errors import NotFiniteError, ParameterError
from minipipe.gpu import updates
from minipipe.optim.scaling import sum_of_squares
from tests.compile import device
from tests.gpu.emulated import Kernel, installed, needs_compiler
from tests.gpu.waits import counted
from tests.launch import mpirun, needs_mpi, slowly

pytestmark = [needs_compiler, pytest.mark.slow]

# around the parts of 8, 128 and 136, the blocks of 32 parts, and their powers of two
SIZES = [
    *range(20),
    *(127, 128, 129, 135, 136, 137, 143, 144, 255, 256, 264, 271, 272, 273),
    *(2175, 2176, 2177, 4095, 4096, 4097, 4351, 4352, 4353, 8703, 8704, 8705),
    *(17_407, 17_408, 17_409, 30_003, 69_631, 69_632, 69_633, 150_001),
]


@pytest.fixture(autouse=True)
def kernels():
    """Compute by kernels on the stand-in for a device."""
    with installed():
        yield


def drawn(shape, dtype, seed):
    random = np.random.default_rng(seed)
    scale = 10.0 ** random.integers(-3, 4)
    return (scale * random.normal(size=shape)).astype(dtype)


def with_gradients(xp, *gradients):
    """Return a parameter for each gradient, which has it on a device."""
    found = []
    for gradient in gradients:
        parameter = nn.Parameter(xp.asarray(np.ones(np.shape(gradient), np.float32)))
        if gradient is not None:
            parameter = nn.Parameter(xp.asarray(np.ones_like(gradient)))
            parameter.grad = xp.asarray(gradient)
        found.append(parameter)
    return found


def of_numpy(arrays):
    return [float(sum_of_squares(array)) for array in arrays]


def of_kernels(arrays):
    return updates.sums_of_squares(*map(device.asarray, arrays))


@pytest.mark.parametrize("is_reversed", [False, True])
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_sums_of_any_size_have_the_bits_of_numpy(dtype, is_reversed):
    arrays = [drawn(size, dtype, size) for size in SIZES]
    with patch.object(Kernel, "is_reversed", is_reversed):
        assert of_kernels(arrays) == of_numpy(arrays)


@pytest.mark.parametrize("seed", range(4))
def test_sums_of_any_shapes_have_the_bits_of_numpy(seed):
    random = np.random.default_rng(seed)
    shapes = [random.integers(1, 30, random.integers(0, 4)) for _ in range(40)]
    kinds = random.choice([np.float32, np.float64], 40)
    arrays = [drawn(*pair, seed) for pair in zip(shapes, kinds)]
    assert of_kernels(arrays) == of_numpy(arrays)


def test_a_sum_does_not_depend_on_the_arrays_beside_it():
    arrays = [drawn(size, np.float32, size) for size in SIZES[-9:]]
    alone = [of_kernels([array])[0] for array in arrays]
    assert of_kernels(arrays) == alone
    assert of_kernels(arrays[::-1]) == alone[::-1]


def test_one_after_another_they_would_have_other_bits():
    """The mutant: without the order of NumPy the tests above fail."""
    array = drawn(4096, np.float32, 0)
    assert sum(float(x) ** 2 for x in array) != of_numpy([array])[0]


def test_arrays_of_other_orders_dtypes_and_none_have_the_bits_of_numpy():
    array = drawn((50, 60), np.float64, 0)
    views = array.T, array[:, ::3], array[::-1]
    arrays = [*views, np.zeros((0, 3)), np.array(2.0), array.astype(np.float16)]
    on_device = device.asarray(array)
    views = on_device.T, on_device[:, ::3], on_device[::-1]
    found = updates.sums_of_squares(*views)
    assert found + of_kernels(arrays[3:]) == of_numpy(arrays)
    assert optim.squared_norms(with_gradients(device, None)) == []


def test_values_that_are_not_finite_or_very_large_are_those_of_numpy():
    special = [np.inf, -np.inf, np.nan, 1e30, 2e-38, 3e38]
    arrays = [np.full(300, x, np.float32) for x in special]
    arrays += [np.full(300, x) for x in (1e200, 1e-200, np.nan)]
    with np.errstate(over="ignore"):
        np.testing.assert_array_equal(of_kernels(arrays), of_numpy(arrays))


# -- clipping --------------------------------------------------------------------------

SHAPES = [(5,), (3, 4), (), (4096,), (0, 2), (4097,), (2, 5000), (1,)]


def clipped(xp, dtypes, max_norm):
    """Clip; return the norm, the gradients, launches and reads."""
    pairs = zip(SHAPES, dtypes * len(SHAPES))
    given = [drawn(*pair, seed) for seed, pair in enumerate(pairs)]
    parameters = with_gradients(xp, None, *given, None)
    arrays = [each.grad for each in parameters]
    before = Kernel.num_launches
    with counted() as counts:
        norm = optim.clip_grad_norm(parameters, max_norm)
        reads = counts["read"]
    assert all(each.grad is array for each, array in zip(parameters, arrays))
    after = [to_numpy(array) for array in arrays if array is not None]
    bits = [(array.dtype, array.tobytes()) for array in after]
    return (norm, bits), (Kernel.num_launches - before, reads)


@pytest.mark.parametrize("max_norm", [1e-20, 1.0, 1e30, math.inf])
@pytest.mark.parametrize("dtypes", [["f4"], ["f8"], ["f4", "f8"]])
def test_clipped_gradients_have_the_bits_of_numpy(dtypes, max_norm):
    found, (launches, reads) = clipped(device, dtypes, max_norm)
    expected, _ = clipped(np, dtypes, max_norm)
    assert found == expected
    assert reads == 1
    assert launches == len(dtypes) * (3 if max_norm < 1e30 else 2)


@pytest.mark.parametrize("wrong", [np.inf, -np.inf, np.nan])
def test_gradients_that_cannot_be_clipped_stay(wrong):
    gradient = np.ones(5000, np.float32)
    gradient[4999] = wrong
    parameters = with_gradients(device, np.ones(3, np.float32), gradient)
    with pytest.raises(ParameterError, match="norm of the gradients is (inf|nan)"):
        optim.clip_grad_norm(parameters, 1.0)
    assert parameters[0].grad.get().tolist() == [1, 1, 1]
    np.testing.assert_array_equal(parameters[1].grad.get(), gradient)


def test_gradients_without_a_kernel_are_scaled_as_well():
    """Halves, parts of an array, and one array of two parameters, scaled twice."""

    def run(xp):
        whole = xp.asarray(np.arange(36.0))
        given = np.ones(12), np.arange(5, dtype=np.float16), np.ones(4), np.ones(4)
        parameters = with_gradients(xp, *given)
        parameters[0].grad = whole[::3]
        parameters[3].grad = parameters[2].grad
        norm = optim.clip_grad_norm(parameters, 1.5)
        arrays = [whole, *(each.grad for each in parameters)]
        return norm, [to_numpy(array).tolist() for array in arrays]

    assert run(device) == run(np)


def test_parameters_with_several_uses_are_scaled_by_their_sum():
    def run(xp):
        (shared, alone) = with_gradients(xp, np.ones((2, 3)), np.ones(4))
        twin = shared.alias()
        shared.node.grad = xp.asarray(np.full((2, 3), 3.0))
        twin.node.grad = xp.asarray(np.full((2, 3), 4.0))
        norm = optim.clip_grad_norm([shared, alone], 1.0)
        assert optim.gradient_norm([shared, alone]) == pytest.approx(1.0)
        return norm, to_numpy(shared.grad).tolist(), to_numpy(alone.grad).tolist()

    assert run(device) == run(np)


# -- loss scales, and finite checks ----------------------------------------------------


def unscaled(xp, wrong, dtype):
    scale = optim.LossScale(1024.0)
    gradients = [drawn(shape, dtype, 0) for shape in [(300,), (0,), (70, 70), ()]]
    if wrong is not None:
        gradients[2][69, 68] = wrong
    parameters = with_gradients(xp, *gradients)
    is_good = scale.unscale(parameters)
    return is_good, scale.value, [to_numpy(p.grad).tobytes() for p in parameters]


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("wrong", [None, np.inf, -np.inf, np.nan, 3e38])
def test_gradients_are_unscaled_or_left_as_by_numpy(wrong, dtype):
    before = Kernel.num_launches
    found = unscaled(device, wrong, dtype)
    is_finite = wrong in (None, 3e38)
    assert Kernel.num_launches - before == 2 + is_finite
    assert found == unscaled(np, wrong, dtype)
    assert found[:2] == (is_finite, 1024.0 if is_finite else 512.0)


def test_float64_whose_squares_overflow_is_finite():
    parameters = with_gradients(device, np.array([1e200]), np.array([1.0]))
    assert optim.gradients_are_finite(parameters)
    assert not optim.gradients_are_finite(with_gradients(device, np.array([np.nan])))
    assert optim.gradients_are_finite(with_gradients(device, None))


# -- pipelines -------------------------------------------------------------------------


def mlp(dtype):
    linear = [nn.Linear(8, 8, dtype=dtype) for _ in range(4)]
    return nn.Sequential(linear[0], nn.ReLU(), linear[1], nn.ReLU(), *linear[2:])


def train(group, how=False, dtype=np.float32, scales=False):
    """Return losses, norms and the bits of all parameters after some steps."""
    options = {"loss": nn.MSELoss(), "num_microbatches": 4, "device": device}
    pipeline = Pipeline(mlp(dtype), group, compile=how, **options)
    optimiser = optim.AdamW(pipeline.parameters(), 0.01)
    scale = optim.LossScale(2.0**19)
    x, y = np.random.default_rng(0).normal(size=(2, 16, 8)).astype(dtype)
    found = []
    for _ in range(6):
        loss = pipeline.step(x, y, scale=scale.value if scales else 1.0)
        found.append(float(loss))
        if not scales or pipeline.unscale_gradients(scale):
            found.append(pipeline.clip_grad_norm(0.25))
            optimiser.step()
    state = pipeline.state_dict()
    return found, {name: values.tobytes() for name, values in state.items()}


@pytest.mark.parametrize("how", [False, True], ids=["eager", "compiled"])
@pytest.mark.parametrize("num_ranks", [1, 2, 4])
def test_any_number_of_ranks_has_the_same_norms(num_ranks, how):
    (expected,) = spawn(train, num_ranks=1)
    # clipped in each step, and by less each time
    assert len(set(expected[0])) == 12 and min(expected[0][1::2]) > 0.25
    found = spawn(lambda group: train(group, how), num_ranks, take_turns=True)
    assert found == [expected] * num_ranks


@pytest.mark.parametrize("num_ranks", [1, 2])
def test_ranks_leave_out_the_same_updates_in_half_precision(num_ranks):
    def run(group):
        return train(group, dtype=np.float16, scales=True)

    (expected,) = spawn(run, num_ranks=1)
    assert 6 < len(expected[0]) < 12  # some steps overflow, others do not
    found = spawn(run, num_ranks, take_turns=True)
    assert found == [expected] * num_ranks


@pytest.mark.parametrize("large", [1.0, 1e18, 3e37])
def test_a_step_finds_the_first_gradient_that_is_not_finite(large):
    """Squares of 1e18 overflow in float32, and gradients do not."""

    def run(xp):
        def step(group):
            made = {"loss": nn.MSELoss("sum"), "num_microbatches": 2, "device": xp}
            model = nn.Sequential(nn.Linear(3, 3), nn.Linear(3, 3))
            pipeline = Pipeline(model.initialise(0), group, **made)
            x = np.full((4, 3), large, np.float32)
            try:
                with np.errstate(all="ignore"):
                    return pipeline.step(x, x) >= 0
            except NotFiniteError as error:
                return str(error)

        return spawn(step, 1)[0]

    assert run(device) == run(np)
    assert (run(device) is True) == (large < 1e30)


def test_a_rank_without_parameters_has_nothing_to_check_or_to_scale():
    def run(group):
        made = {"loss": nn.MSELoss(), "num_microbatches": 2, "device": device}
        pipeline = Pipeline(nn.Sequential(nn.Linear(3, 3), nn.ReLU()), group, **made)
        x = np.ones((4, 3), np.float32)
        pipeline.step(x, x)
        scale = optim.LossScale(8.0)
        return pipeline.unscale_gradients(scale), pipeline.clip_grad_norm(1e-3) > 0

    assert spawn(run, 2) == [(True, True)] * 2


def main():
    """Print the losses and norms of each rank, compiled and not."""
    with installed(), init_process_group() as group:
        found = [train(group, how)[0] for how in (False, True)]
        for numbers in group.all_gather(np.array(found)):
            if group.rank == 0:
                print(*map(float.hex, numbers.ravel().tolist()))


@needs_mpi
@pytest.mark.parametrize("num_ranks", [slowly(2), 4])
def test_processes_have_the_same_norms(num_ranks):
    ((numbers, _),) = spawn(train, num_ranks=1)
    job = mpirun(num_ranks, "-m", "tests.gpu.test_norms", limit=120)
    assert job.code == 0, job
    expected = " ".join(map(float.hex, numbers * 2))
    assert job.out.splitlines() == [expected] * num_ranks


if __name__ == "__main__":
    main()

"""The engine on a real GPU. Run `pytest -m gpu` on a machine that has one; elsewhere
these tests are skipped.
"""

import json
import sys

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from minipipe import Pipeline, Tensor, functional, nn, random_key, spawn
from minipipe.core.autograd import backend
from minipipe.errors import LaunchError
from minipipe.optim import scaling
from minipipe.testing import check_same_as_one_process
from tests.compile.test_other_modules import MODELS, both
from tests.compile.test_restored import WAYS, count, restored
from tests.gpu import (
    test_copies,
    test_dropout_numbers,
    test_embedding_gradient,
    test_entries,
    test_norms,
)
from tests.gpu import test_updates_in_one_launch as updates
from tests.gpu.test_products import LAYOUTS
from tests.launch import mpirun, needs_mpi, run
from tests.numerics.test_operations import STRICT_ROWS, evaluate, named
from tests.strategies import examples, steps


def find_gpu():
    """Return CuPy where it has a GPU, and None elsewhere."""
    try:
        return backend.module_for("gpu")
    except LaunchError:
        return None


cupy = find_gpu()
if cupy is None:
    pytest.skip("needs a GPU and CuPy: pip install '.[gpu]'", allow_module_level=True)
pytestmark = pytest.mark.gpu


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@named(STRICT_ROWS)
def test_every_operation_gives_numpys_values_and_gradients_and_stays_on_the_gpu(
    row, dtype
):
    on_numpy, numpy_gradients = evaluate(row, dtype, np)
    on_gpu, gpu_gradients = evaluate(row, dtype, cupy)
    tolerance = {"float32": 1e-5, "float64": 1e-12}[dtype]
    for given_, expected in zip(
        [on_gpu.data, *gpu_gradients], [on_numpy.data, *numpy_gradients]
    ):
        assert backend.array_module(given_) is cupy and given_.dtype == dtype
        np.testing.assert_allclose(
            given_.get(), expected, rtol=tolerance, atol=tolerance
        )


@examples(40)
@given(steps(), st.booleans())
def test_pipelined_steps_on_gpus_have_the_bits_of_one_process_on_a_gpu(step, recompute):
    model, inputs, targets, schedule, partition = step
    check_same_as_one_process(
        model,
        nn.MSELoss(),
        inputs,
        targets,
        schedule,
        3,
        partition,
        recompute,
        device="gpu",
    )


@pytest.mark.parametrize("model", MODELS)
@pytest.mark.parametrize("schedule", ["1f1b", "zb-h1"])
def test_compiled_steps_have_the_bits_of_eager_ones(model, schedule):
    eager, compiled, reports = both(model, schedule, "gpu", 2)
    assert eager == compiled
    assert all(report.endswith("as graphs") for report in reports)


def with_layout(array, dtype):
    """Return an array of the GPU with the strides of one of NumPy's."""
    root = array if array.base is None else array.base
    flat = cupy.asarray(root.ravel(order="K").astype(dtype))
    start = (array.ctypes.data - root.ctypes.data) // array.itemsize * flat.itemsize
    strides = [each // array.itemsize * flat.itemsize for each in array.strides]
    return cupy.ndarray(array.shape, dtype, flat.data + start, strides)


@pytest.mark.parametrize("dtype", ["float32", "float64", "float16"])
@pytest.mark.parametrize("layout", LAYOUTS)
def test_products_of_all_layouts_have_the_same_bits_in_a_graph(layout, dtype):
    expected = np.matmul(*(each.astype(dtype).astype("f8") for each in LAYOUTS[layout]))
    a, b = (with_layout(each, dtype) for each in LAYOUTS[layout])
    out = backend.matmul(a, b)
    limit = {"float32": 1e-5, "float64": 1e-12, "float16": 4e-3}[dtype]
    np.testing.assert_allclose(out.get(), expected, limit, limit)
    eager = out.get().tobytes()
    multiplied = backend.PRODUCTS["cupy"]
    cupy.cuda.Device().synchronize()
    with cupy.cuda.Stream(non_blocking=True) as stream:
        multiplied(a, b, out)  # makes a handle
        out.fill(0)
        stream.begin_capture()
        multiplied(a, b, out)
        stream.end_capture().launch()
        assert out.get().tobytes() == eager


def test_gradients_of_an_embedding_and_of_an_index_repeat_to_the_bit():
    ids = cupy.asarray(np.random.default_rng(0).integers(0, 7, 4096))
    upstream = cupy.asarray(
        np.random.default_rng(1).standard_normal((4096, 32)), dtype=np.float32
    )
    found = set()
    for _ in range(20):
        table = Tensor(cupy.zeros((7, 32), dtype=np.float32), requires_grad=True)
        functional.embedding(table, ids).backward(upstream)
        by_index = Tensor(cupy.zeros((7, 32), dtype=np.float32), requires_grad=True)
        by_index[ids].backward(upstream)
        found.add((table.grad.get().tobytes(), by_index.grad.get().tobytes()))
    assert len(found) == 1


def test_dropout_draws_the_mask_of_the_cpu():
    with random_key(3, step=5):
        on_cpu = functional.dropout(np.ones((9, 9), np.float32), 0.5).numpy()
    with random_key(3, step=5):
        on_gpu = functional.dropout(cupy.ones((9, 9), dtype=np.float32), 0.5).numpy()
    assert (on_cpu == on_gpu).all()


@pytest.mark.parametrize("key", test_dropout_numbers.KEYS, ids=str)
@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_dropout_and_its_gradient_have_the_bits_of_the_cpu(key, dtype):
    array = np.random.default_rng(0).normal(size=(9, 1025)).astype(dtype)
    seed, more = key["seed"], {k: v for k, v in key.items() if k != "seed"}
    for probability in (0.1, 0.5, 1 / 3):
        given_ = array, probability, seed, more
        on_gpu = test_dropout_numbers.outcome(cupy, *given_)
        for one, other in zip(on_gpu, test_dropout_numbers.outcome(np, *given_)):
            assert one.tobytes() == other.tobytes()


@pytest.mark.parametrize(
    ("count", "num_rows", "width"),
    [*test_embedding_gradient.CASES, (20_000, 7, 65), (30_000, 20_000, 129)],
)
def test_the_gradient_of_an_embedding_has_the_bits_of_the_cpu(count, num_rows, width):
    random = np.random.default_rng(count)
    ids = random.integers(0, num_rows, count)
    g = random.normal(size=(count, width)).astype(np.float32)
    on_gpu = test_embedding_gradient.gradient(cupy, ids, g, num_rows)
    on_cpu = test_embedding_gradient.gradient(np, ids, g, num_rows)
    assert on_gpu.tobytes() == on_cpu.tobytes()


@pytest.mark.parametrize("case", test_entries.KEYS)
def test_the_gradient_of_an_index_has_the_bits_of_the_cpu(case):
    key, shape = test_entries.KEYS[case]
    g = np.random.default_rng(0).normal(size=np.zeros(shape)[key].shape)
    on_gpu = test_entries.gradient(cupy, key, g, shape)
    assert on_gpu.tobytes() == test_entries.gradient(np, key, g, shape).tobytes()


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("rule", updates.RULES)
def test_updates_in_one_launch_have_the_bits_of_the_cpu(rule, dtype):
    on_gpu, _ = updates.steps(cupy, updates.RULES[rule], dtype)
    assert on_gpu == updates.steps(np, updates.RULES[rule], dtype)[0]


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_sums_of_squares_and_clipping_have_the_bits_of_the_cpu(dtype):
    arrays = [test_norms.drawn(size, dtype, size) for size in test_norms.SIZES]
    on_gpu = list(map(cupy.asarray, arrays))
    assert scaling.sums_of_squares(*on_gpu) == test_norms.of_numpy(arrays)
    scaling.scaled(*on_gpu, factor=0.3)
    for one, other in zip(on_gpu, arrays, strict=True):
        assert one.get().tobytes() == (other * 0.3).tobytes()


def test_ids_out_of_range_raise_although_cupy_would_wrap_them():
    with pytest.raises(ValueError, match="ids run from 0 to 7"):
        functional.embedding(Tensor(cupy.zeros((7, 2))), cupy.asarray([0, 7]))


def test_parameters_activations_and_gradients_stay_on_the_gpu():
    def modules(group):
        pipeline = Pipeline(
            nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 2)),
            group,
            loss=nn.MSELoss(),
            num_microbatches=2,
            device="gpu",
        )
        pipeline.step(np.ones((4, 4), np.float32), np.ones((4, 2), np.float32))
        held = {
            backend.array_module(a)
            for p in pipeline.parameters()
            for a in (p.data, p.grad)
        }
        return held == {cupy}, type(
            pipeline.predict(np.ones((4, 4), np.float32))
        ) is np.ndarray

    assert spawn(modules, 2) == [(True, True)] * 2


@needs_mpi
@pytest.mark.parametrize("num_ranks", [2, 4])
def test_the_language_model_has_one_loss_for_any_number_of_ranks_that_share_a_gpu(
    num_ranks,
):
    options = (
        "--device",
        "gpu",
        "--steps",
        "6",
        "--width",
        "16",
        "--heads",
        "2",
        "--context",
        "12",
        "--json",
    )
    one = run([sys.executable, "tutorials/train_lm.py", *options], limit=150)
    many = mpirun(num_ranks, "tutorials/train_lm.py", *options, limit=150)
    assert one.code == many.code == 0, one.err + many.err
    assert (
        json.loads(one.out.splitlines()[-1])["loss"]
        == json.loads(many.out.splitlines()[-1])["loss"]
    )


@pytest.mark.parametrize("how", [True, False])
@pytest.mark.parametrize("case", test_copies.CASES.values(), ids=test_copies.CASES)
def test_batches_that_are_copied_meanwhile_have_the_bits_of_whole_ones(
    case, how, monkeypatch
):
    found = []
    for least in (0, 10**9):
        monkeypatch.setattr(test_copies.copies, "LEAST", least)
        found.append(test_copies.run(case, "gpipe on one rank", how, cupy))
    assert found[0] == found[1]


@pytest.mark.parametrize("way", WAYS)
def test_a_step_after_a_restore_launches_the_graphs_of_before(
    way, monkeypatch, tmp_path
):
    counts = count(monkeypatch)
    ((_, is_same, report),) = spawn(
        lambda group: restored(group, cupy, way, tmp_path, counts), 1
    )
    assert is_same and report.endswith("as graphs")

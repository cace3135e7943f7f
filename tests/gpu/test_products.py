"""Products by cuBLAS, computed by an emulation of it on the CPU."""

import ctypes
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest

from minipipe import gpu
from minipipe.core.autograd import backend
from minipipe.gpu import products
from tests.compile import device, test_other_modules
from tests.gpu import emulated_cublas

pytestmark = emulated_cublas.needs_compiler
RANDOM = np.random.default_rng(0)


@pytest.fixture(scope="module")
def loaded():
    return ctypes.CDLL(str(emulated_cublas.library()))


@pytest.fixture(scope="module")
def multiplied(loaded):
    library = emulated_cublas.Recorded(loaded)
    return products.product_of(products.Products(device, library))


def turned(shape):
    """Return an array whose last two axes were exchanged."""
    return RANDOM.normal(size=(*shape[:-2], shape[-1], shape[-2])).swapaxes(-1, -2)


def beside(shape):
    """Return an array whose first two axes were exchanged, as heads of attention are."""
    return RANDOM.normal(size=(shape[1], shape[0], *shape[2:])).swapaxes(0, 1)


def sliced(shape):
    """Return a part of the columns of a larger array."""
    return RANDOM.normal(size=(*shape[:-1], shape[-1] + 3))[..., 2:-1]


def spread(shape):
    """Return every second row and column of a larger array."""
    return RANDOM.normal(size=(*shape[:-2], *(2 * n for n in shape[-2:])))[
        ..., ::2, ::2
    ]


def plain(shape):
    return RANDOM.normal(size=shape)


def wide(shape):
    """Return an array of which all rows are the same memory."""
    return np.broadcast_to(RANDOM.normal(size=(*shape[:-2], 1, shape[-1])), shape)


def repeated(shape):
    """Return an array of which all matrices are the same memory."""
    return np.broadcast_to(RANDOM.normal(size=shape[-2:]), shape)


def backwards(shape):
    return RANDOM.normal(size=shape)[..., ::-1, :]


def columns(shape):
    """Return a matrix of columns, some of a larger array."""
    return turned((*shape[:-2], shape[-2] + 2, shape[-1]))[..., 1:-1, :]


MATRICES = {
    f"{left.__name__} by {right.__name__}": (left((4, 5)), right((5, 3)))
    for left, right in [
        *((plain, plain), (turned, plain), (plain, turned), (turned, turned)),
        *((sliced, plain), (plain, sliced), (columns, turned), (spread, plain)),
        *((wide, plain), (plain, wide), (plain, backwards)),
    ]
}
BATCHES = {
    f"batch, {left.__name__} by {right.__name__}": (
        left((2, 6, 4, 5)),
        right((2, 6, 5, 3)),
    )
    for left, right in [
        *((plain, plain), (turned, plain), (plain, turned), (beside, plain)),
        *((repeated, plain), (plain, repeated), (beside, beside), (spread, sliced)),
    ]
}
OTHERS = {
    "vectors": (plain((5,)), plain((5,))),
    "a vector by a matrix": (plain((5,)), turned((5, 3))),
    "a matrix by a vector": (turned((4, 5)), plain((5,))),
    "a batch by a vector": (plain((2, 4, 5)), plain((5,))),
    "a vector by a batch": (plain((5,)), plain((2, 5, 3))),
    "a vector of a matrix": (plain((5, 2))[:, 1], plain((5, 3))),
    "rows by a matrix": (plain((7, 2, 4, 5)), plain((5, 3))),
    "turned rows by a matrix": (turned((2, 4, 5)), plain((5, 3))),
    "a matrix by a batch": (plain((4, 5)), plain((6, 5, 3))),
    "batches of two axes": (plain((6, 1, 4, 5)), plain((1, 3, 5, 2))),
    "long batches of two axes": (beside((5, 2, 4, 5)), plain((5, 2, 5, 3))),
    "a row": (plain((1, 5)), turned((5, 3))),
    "a row by a column": (turned((1, 5)), plain((5, 1))),
    "a column by a row": (spread((4, 1)), spread((1, 3))),
    "a column of many": (plain((4, 6))[:, 2:3], plain((1, 3))),
    "no rows": (plain((0, 5)), plain((5, 3))),
    "nothing to add up": (plain((4, 0)), plain((0, 3))),
    "no matrices": (plain((0, 4, 5)), plain((0, 5, 3))),
    "empty vectors": (plain((0,)), plain((0,))),
    "one number": (plain((1, 1)), plain((1, 1))),
}
LAYOUTS = {**MATRICES, **BATCHES, **OTHERS}


def on_device(array, dtype):
    """Return an array of the device with the very strides of one of NumPy's."""
    root = array if array.base is None else array.base
    moved = device.Array(root.astype(dtype, order="K"))
    size = array.itemsize
    scaled = [stride // size * moved.itemsize for stride in array.strides]
    start = (array.ctypes.data - root.ctypes.data) // size * moved.itemsize
    flat = moved._data.ravel(order="K").view(np.uint8)
    view = np.ndarray(array.shape, dtype, flat.data, max(start, 0), scaled)
    return device.Array(view, moved)


@pytest.mark.parametrize("dtype", ["float32", "float64", "float16"])
@pytest.mark.parametrize("layout", LAYOUTS)
def test_products_of_all_layouts(multiplied, layout, dtype):
    a, b = (each.astype(dtype, order="K") for each in LAYOUTS[layout])
    expected = np.matmul(a.astype("f8"), b.astype("f8")).astype(dtype)
    left, right = (on_device(each, dtype) for each in LAYOUTS[layout])
    limit = {"float32": 1e-5, "float64": 1e-12, "float16": 2e-3}[dtype]
    assert (left.get() == a).all() and (right.get() == b).all()
    found = multiplied(left, right)
    assert (found.shape, found.dtype) == (expected.shape, expected.dtype)
    np.testing.assert_allclose(found.get(), expected, limit, limit)
    out = device.asarray(np.full(expected.shape, np.nan, dtype))
    assert multiplied(left, right, out) is out
    assert out.get().tobytes() == found.get().tobytes()


def captured(function):
    """Return the graph of a function that has run once on the stream that captures."""
    current = device.cuda.get_current_stream()
    stream = device.cuda.Stream(non_blocking=True)
    stream.wait_event(current.record())
    with stream:
        function()
        stream.begin_capture()
        function()
        graph = stream.end_capture()
    current.wait_event(stream.record())
    return graph


COPIED = {"spread", "wide", "backwards", "batches"}


@pytest.mark.parametrize("layout", LAYOUTS)
def test_transposed_sliced_and_repeated_operands_are_read_in_place(multiplied, layout):
    """A product is one launch, or two, if a batch of two has no single distance."""
    left, right = (on_device(each, "f4") for each in LAYOUTS[layout])
    out = multiplied(left, right)
    expected = out.get()
    graph = captured(lambda: multiplied(left, right, out))
    is_copied = not COPIED.isdisjoint(layout.split())
    assert bool(graph.num_allocations) == is_copied
    assert graph.num_kernels <= (4 if is_copied else 1 + ("beside" in layout))
    out.fill(-1)
    left[...] = left + left
    graph.launch()
    assert out.get().tobytes() == (2 * expected).tobytes()


def test_a_handle_is_not_made_in_a_capture(multiplied):
    x = on_device(np.ones((2, 2)), "f4")
    stream = device.cuda.Stream(non_blocking=True)
    with stream:
        stream.begin_capture()
        with pytest.raises(device.CaptureError, match="cublasCreate_v2 is called"):
            multiplied(x, x)
        with pytest.raises(device.CaptureError):
            stream.end_capture()


def test_float32_is_rounded_to_tf32_only_on_request(multiplied):
    a, b = RANDOM.normal(size=(2, 32, 32)).astype("f4")
    x, y = device.asarray(a), device.asarray(b)
    exact = multiplied(x, y).get()
    gpu.allow_tf32()
    try:
        rounded = multiplied(x, y).get()
        assert multiplied(x.astype("f8"), y.astype("f8")).get().dtype == "f8"
    finally:
        gpu.allow_tf32(False)
    error = np.abs(rounded - exact).max()
    assert 1e-5 < error < 5e-2
    assert multiplied(x, y).get().tobytes() == exact.tobytes()


def test_bfloat16_adds_up_in_float32(multiplied):
    brain = pytest.importorskip("ml_dtypes").bfloat16
    a = np.full((1, 1000), 1.0)
    found = multiplied(on_device(a, brain), on_device(a.T, brain))
    assert found.dtype == brain
    assert float(found.get()[0, 0]) == 1000.0  # bfloat16 would stop at 256


@pytest.mark.parametrize(
    "kinds", [("i4", "i4"), ("f4", "f8"), ("c8", "c8"), ("?", "?")]
)
def test_other_dtypes_are_left_to_the_module(multiplied, loaded, kinds):
    given = [np.eye(3).astype(kind) for kind in kinds]
    before = ctypes.c_int.in_dll(loaded, "num_products").value
    x, y = map(device.asarray, given)
    expected = np.matmul(*given)
    out = device.asarray(np.zeros_like(expected))
    for found in (multiplied(x, y), multiplied(x, y, out)):
        assert found.dtype == expected.dtype
        assert found.get().tobytes() == expected.tobytes()
    assert ctypes.c_int.in_dll(loaded, "num_products").value == before


@pytest.mark.parametrize(
    "shapes", [((2, 3), (2, 3)), ((2, 2, 2), (3, 2, 2)), ((), (2,))]
)
def test_shapes_that_do_not_fit_raise_the_error_of_the_module(multiplied, shapes):
    given = [device.asarray(np.ones(shape, "f4")) for shape in shapes]
    with pytest.raises(ValueError):
        multiplied(*given)


def test_an_error_of_cublas_is_raised(loaded, monkeypatch):
    multiply = products.Products(device, emulated_cublas.Recorded(loaded))
    monkeypatch.setattr(products, "WORKSPACE", 16)
    x = device.asarray(np.ones((2, 2), "f4"))
    with pytest.raises(RuntimeError, match="cublasGemmEx of cuBLAS .* status 1"):
        multiply(x, x)


def test_the_library_is_the_one_that_a_wrapper_was_linked_to(
    loaded, tmp_path, monkeypatch
):
    text = (
        'extern "C" int cublasCreate_v2(void*); int (*used)(void*) = cublasCreate_v2;'
    )
    path = emulated_cublas.compiled(
        tmp_path, "wrapper", text, emulated_cublas.library()
    )
    monkeypatch.setattr(products, "_wrapper", lambda: str(path))
    monkeypatch.setattr(backend, "PRODUCTS", {})
    products.install(device)
    x = device.asarray(np.ones((3, 2), "f4"))
    multiply = backend.PRODUCTS[device.__name__]
    assert multiply(x, x.T).get().tolist() == np.full((3, 3), 2.0).tolist()
    products.install(device)  # by each pipeline: the handles stay
    assert backend.PRODUCTS[device.__name__] is multiply


@pytest.mark.parametrize("path", ["missing.so", None])
def test_without_cublas_products_are_left_to_the_module(path, tmp_path, monkeypatch):
    if path is None:
        path = emulated_cublas.compiled(tmp_path, "empty", "int nothing;")
    monkeypatch.setattr(products, "_wrapper", lambda: str(path))
    monkeypatch.setattr(backend, "PRODUCTS", {})
    products.install(device)
    assert not backend.PRODUCTS


def test_each_stream_and_each_thread_has_a_handle(loaded):
    names = []

    class Noting(emulated_cublas.Recorded):
        def __getattribute__(self, name):
            if name.startswith("cublas"):
                names.append(name)
            return super().__getattribute__(name)

    multiply = products.Products(device, Noting(loaded))
    x = device.asarray(np.ones((2, 2), "f4"))
    for _ in range(2):
        multiply(x, x)
    captured(lambda: multiply(x, x))
    with ThreadPoolExecutor(1) as pool:
        pool.submit(multiply, x, x).result()
    assert names.count("cublasCreate_v2") == 3
    assert names[:3] == [
        "cublasCreate_v2",
        "cublasSetStream_v2",
        "cublasSetWorkspace_v2",
    ]


@pytest.mark.parametrize("layout", MATRICES)
def test_a_product_is_planned_once(multiplied, layout):
    """It takes longer than the launch."""
    operands = [on_device(each, "f4") for each in LAYOUTS[layout]]
    multiplied(*operands)
    before = products._plan.cache_info()
    multiplied(*operands)
    after = products._plan.cache_info()
    assert after.misses == before.misses and after.hits > before.hits


def test_a_stream_with_a_handle_stays(loaded):
    """Or a later stream gets its address, and its handle."""
    multiply = products.Products(device, emulated_cublas.Recorded(loaded))
    x = device.asarray(np.ones((2, 2), "f4"))
    captured(lambda: multiply(x, x))
    ((*_, stream),) = multiply._of_thread.handles.values()
    assert isinstance(stream, device.cuda.Stream)


@pytest.mark.parametrize(("model", "num_ranks"), [("mlp", 2), ("block", 1)])
def test_graphs_of_steps_multiply_by_it(model, num_ranks, multiplied, monkeypatch):
    monkeypatch.setitem(backend.PRODUCTS, device.__name__, multiplied)
    eager, compiled, reports = test_other_modules.both(
        model, "zb-h1", device, num_ranks
    )
    assert eager == compiled
    for report in reports:
        assert all(line.endswith("as graphs") for line in report.splitlines())

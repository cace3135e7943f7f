"""The table of operations with kernels: all of its entries for arrays of all dtypes, and
values and gradients beside those of the plain operations.
"""

from functools import partial

import ml_dtypes
import numpy as np
import pytest

from minipipe import Pipeline, Tensor, functional, nn, optim, random_key, spawn
from minipipe.core.functional import loss
from minipipe.errors import MinipipeError, TensorError
from minipipe.functional import dropping
from minipipe.functional.attention import softmax_of_scores, through_softmax
from minipipe.functional.embedding import add_rows
from minipipe.functional.shape import added
from minipipe.gpu import entries, kernels
from minipipe.optim import scaling
from tests.compile import device
from tests.compile.test_other_modules import batches, captured, functions_of, graphs
from tests.gpu import emulated
from tests.gpu.emulated import Kernel, installed
from tests.gpu.test_kernels import both, check

__all__ = ["graphs"]  # a fixture
pytestmark = [emulated.needs_compiler, pytest.mark.slow]
RANDOM = np.random.default_rng(0)
LABELS = np.array([1, 0, 3, 1])


def of_labels(logits):
    return functional.cross_entropy(logits, device.asarray(LABELS), ignore_index=0)


def dropped(x):
    with random_key(0):
        return functional.dropout(x, 0.3)


def looked_up(table):
    return functional.embedding(table, device.asarray([1, 3, 1, 1]))


def indexed(x):
    return x[device.asarray([1, 3, 1, 1])]


ATTENDED = functional.attention, [(2, 3, 4)] * 3
# By entry: a function that calls it, and the shapes of its arguments.
CALLS = {
    functional.gelu: (functional.gelu, [(4, 6)]),
    functional.silu: (functional.silu, [(4, 6)]),
    functional.relu: (functional.relu, [(4, 6)]),
    functional.layer_norm: (functional.layer_norm, [(4, 6), (6,), (6,)]),
    functional.rms_norm: (functional.rms_norm, [(4, 6), (6,)]),
    functional.softmax: (functional.softmax, [(4, 6)]),
    functional.log_softmax: (functional.log_softmax, [(4, 6)]),
    functional.cross_entropy: (of_labels, [(4, 6)]),
    dropping._dropout: (dropped, [(4, 6)]),
    dropping.dropped: (dropped, [(4, 6)]),
    add_rows: (looked_up, [(4, 6)]),
    added: (indexed, [(4, 6)]),
    softmax_of_scores: ATTENDED,
    through_softmax: ATTENDED,
}
REALS = ["float32", "float64"]
HALVES = ["float16", ml_dtypes.bfloat16]
WHOLE = ["bool", "int8", "uint8", "int16", "int32", "int64", "uint64"]


def outcome(function, shapes, dtype):
    """Return the value and the gradients of an operation, or the kind of its error."""
    random = np.random.default_rng(0)
    arrays = [(3 * random.normal(size=shape)).astype(dtype) for shape in shapes]
    is_real = dtype not in WHOLE
    given = [Tensor(device.asarray(each), requires_grad=is_real) for each in arrays]
    try:
        result = function(*given)
    except MinipipeError as error:
        return type(error)
    found = [result.data]
    if is_real:
        result.backward(device.asarray(np.ones(result.shape, result.dtype)))
        found += [each.grad for each in given]
    return [each.get() for each in found]


def test_every_entry_is_called():
    of_gradients = {scaling.sums_of_squares, scaling.scaled, scaling.are_finite}
    assert {*CALLS, *of_gradients} == set(entries.ENTRIES)  # those by test_norms.py


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("dtype", [*REALS, *HALVES, *WHOLE], ids=str)
@pytest.mark.parametrize("entry", CALLS, ids=lambda entry: entry.__name__)
def test_every_entry_takes_every_dtype_as_the_plain_operation_does(entry, dtype):
    """A kernel reads no array of another dtype than its own: the emulation compares."""
    function, shapes = CALLS[entry]
    plain = outcome(function, shapes, dtype)
    before = Kernel.num_launches
    with installed():
        kernel = outcome(function, shapes, dtype)
    if isinstance(plain, type):
        assert kernel is plain
        return
    limit = {"float64": 1e-12, "float32": 2e-6}.get(dtype, 2e-2)
    for one, other in zip(kernel, plain, strict=True):
        assert one.dtype == other.dtype and one.shape == other.shape
        wide = [each.astype("f8") for each in (one, other)]
        np.testing.assert_allclose(*wide, rtol=limit, atol=limit)
    assert Kernel.num_launches > before or dtype not in REALS


WRONG = {
    "halves": ["float16", "float16"],
    "whole numbers": ["int32", "int32"],
    "numbers for a real": ["int64", "int64"],
    "two dtypes": ["float32", "float64"],
    "a half beside a real": ["float32", "float16"],
    "small ids": ["float32", "int32"],
}


@pytest.mark.parametrize("dtypes", WRONG.values(), ids=WRONG)
def test_a_launch_refuses_arrays_that_a_kernel_would_read_as_others(dtypes):
    x, out = (device.asarray(np.ones(3, dtype)) for dtype in dtypes)
    with installed(), pytest.raises(TensorError, match="expected float32 alone"):
        kernels.launch("activations.gelu_erf", x, 1, 32, x, out, out, 3)


# -- softmax and SiLU ------------------------------------------------------------------

SHAPES = [(1, 7), (33, 31), (2, 33), (3, 1025), (4, 1), (0, 5), (3, 0), (2, 3, 8), (5,)]
dtypes = pytest.mark.parametrize("dtype", REALS)


@pytest.mark.filterwarnings("ignore:divide by zero")  # of rows of no width
@dtypes
@pytest.mark.parametrize("name", ["softmax", "log_softmax", "silu"])
@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_rows_of_any_width(name, shape, dtype):
    x, upstream = 3 * RANDOM.normal(size=(2, *shape))
    check(getattr(functional, name), [x], upstream, dtype)


@dtypes
@pytest.mark.parametrize("name", ["softmax", "log_softmax"])
def test_softmax_along_other_axes_and_of_transposed_arrays(name, dtype):
    function = getattr(functional, name)
    x, upstream = RANDOM.normal(size=(2, 4, 3, 5))
    for axis in (2, -1):
        check(partial(function, axis=axis), [x], upstream, dtype)
    check(lambda x: function(x.T).T, [x], upstream, dtype)
    before = Kernel.num_launches
    for axis in (0, 1, -2, -3):
        plain, kernel = both(partial(function, axis=axis), [x], upstream)
        assert [a.tobytes() for a in plain] == [a.tobytes() for a in kernel]
    assert Kernel.num_launches == before
    for wrong, axis in ((x, 3), (x, -4), (np.array(1.0), -1)):
        with installed(), pytest.raises(MinipipeError):
            function(Tensor(device.asarray(wrong)), axis=axis)


@pytest.mark.filterwarnings("ignore:invalid value", "ignore:overflow")
@dtypes
@pytest.mark.parametrize("name", ["softmax", "log_softmax", "silu"])
def test_what_is_infinite_or_no_number(name, dtype):
    largest = np.finfo(dtype).max
    numbers = [np.nan, np.inf, -np.inf, -0.0, 0.0, largest, -largest, 1e4, -1e4, 1.0]
    x = np.array([[a, b, 2.0] for a in numbers for b in numbers], dtype)
    function = getattr(functional, name)
    plain, kernel = both(function, [x], np.ones_like(x))
    for one, other in zip(kernel, plain, strict=True):
        np.testing.assert_allclose(one, other, rtol=2e-6, atol=2e-7)


# -- cross-entropy ---------------------------------------------------------------------

OPTIONS = [
    {"ignore_index": -100},
    {"ignore_index": 0},
    {"ignore_index": 2.0},
    {"ignore_index": 1, "reduction": "sum"},
    {"label_smoothing": 0.1},
    {"label_smoothing": 1.0, "reduction": "sum"},
    {"label_smoothing": 0.3, "ignore_index": 255},
]
WIDTHS = [(1, 1), (7, 31), (2, 3, 33), (4, 1025), (1100, 3), (6, 2)]


@dtypes
@pytest.mark.parametrize("options", OPTIONS, ids=str)
@pytest.mark.parametrize("shape", WIDTHS, ids=str)
def test_cross_entropy_of_labels_that_are_ignored_or_smoothed(shape, options, dtype):
    for kind in (np.int64, np.int16, np.uint8):
        labels = RANDOM.integers(0, min(shape[-1], 255), shape[:-1]).astype(kind)
        ignored = options.get("ignore_index", 0)
        if np.iinfo(kind).min <= ignored <= np.iinfo(kind).max:
            labels.ravel()[::2] = ignored
        labels = device.asarray(labels)
        function = partial(functional.cross_entropy, labels=labels, **options)
        check(function, [RANDOM.normal(size=shape)], RANDOM.normal(), dtype)


@pytest.mark.filterwarnings("ignore:invalid value")
@dtypes
def test_rows_that_do_not_count_may_hold_anything(dtype):
    logits = RANDOM.normal(size=(6, 3))
    logits[0] = np.nan
    logits[2] = [np.inf, -np.inf, 0]
    logits[4] = -np.inf
    logits[5, 0] = -np.inf
    for labels in ([-1, 0, -1, 2, -1, 1], [-1] * 6, [-1, 0, -1, -1, -1, 0]):
        for reduction in ("mean", "sum"):
            options = {"ignore_index": -1, "reduction": reduction}
            function = partial(
                functional.cross_entropy, labels=device.asarray(labels), **options
            )
            plain, kernel = both(function, [logits.astype(dtype)], np.array(2.0, dtype))
            for one, other in zip(kernel, plain, strict=True):
                np.testing.assert_allclose(one, other, rtol=2e-6)
    smoothed = partial(function, label_smoothing=0.2)
    plain, kernel = both(smoothed, [logits.astype(dtype)], np.array(2.0, dtype))
    for one, other in zip(kernel, plain, strict=True):
        np.testing.assert_allclose(one, other, rtol=2e-6)


def test_a_label_that_is_wrong_in_a_graph_makes_the_loss_nan(monkeypatch):
    monkeypatch.setattr(loss, "check_range_of_labels", lambda *given: None)
    logits = Tensor(device.asarray(np.ones((2, 3), "f4")))
    with installed():
        for wrong in (-2, 3, 2**40):
            labels = device.asarray([0, wrong])
            for options in ({}, {"label_smoothing": 0.1}):
                found = functional.cross_entropy(logits, labels, **options)
                assert np.isnan(found.data.get())


# -- an index that repeats -------------------------------------------------------------


@pytest.fixture(params=[1 << 14, 0], ids=["unsorted", "sorted"])
def how(request, monkeypatch):
    """Sort the ids of any gradient, or of none."""
    monkeypatch.setattr("minipipe.gpu.embedding._MOST_UNSORTED", request.param)


def gradient(xp, key, g, shape):
    """Return the gradient of an array of which a key takes elements."""
    parts = key if isinstance(key, tuple) else (key,)
    parts = tuple(xp.asarray(x) if isinstance(x, np.ndarray) else x for x in parts)
    x = Tensor(xp.asarray(np.zeros(shape, g.dtype)), requires_grad=True)
    x[parts if isinstance(key, tuple) else parts[0]].backward(xp.asarray(g))
    return x.grad if xp is np else x.grad.get()


ids = RANDOM.integers(-3, 3, 40)
KEYS = {
    "rows": (ids, (3, 5)),
    "wide rows": (ids, (3, 1025)),
    "numbers": (ids, (3,)),
    "no rows": (ids[:0], (3, 5)),
    "one row": (ids[:1], (3, 5)),
    "rows of no width": (ids, (3, 0)),
    "a matrix of rows": (ids.reshape(8, 5), (3, 2, 2)),
    "bytes": (np.abs(ids).astype("u1") % 3, (3, 4)),
    "in a tuple": ((ids,), (3, 5)),
    "points": ((ids, ids[::-1].copy()), (3, 4)),
    "columns": ((slice(None), ids), (2, 3)),
    "columns of the last axis": ((..., ids), (2, 2, 3)),
    "between slices": ((slice(1), ids, slice(None, None, -1)), (2, 3, 4)),
    "a new axis": ((None, ids), (3, 2)),
    "beside a number": ((1, ids), (2, 3)),
    "apart": ((ids, slice(None), ids), (3, 2, 3)),
    "all elements": ((np.arange(3)[:, None], np.arange(4)), (3, 4)),
    "a mask": (np.array([True, False, True]), (3, 2)),
    "a mask of elements": (np.array([[True, False], [True, True]]), (2, 2)),
}


@pytest.mark.usefixtures("how")
@pytest.mark.parametrize("dtype", [*REALS, *HALVES], ids=str)
@pytest.mark.parametrize("case", KEYS)
def test_elements_of_a_place_are_added_in_the_order_of_numpy(case, dtype):
    key, shape = KEYS[case]
    g = RANDOM.normal(size=np.zeros(shape)[key].shape).astype(dtype)
    expected = gradient(np, key, g, shape)
    before = Kernel.num_launches
    with installed():
        found = gradient(device, key, g, shape)
    assert (found.dtype, found.shape) == (expected.dtype, expected.shape)
    assert found.tobytes() == expected.tobytes()
    assert Kernel.num_launches == before + bool(g.size)


@pytest.mark.usefixtures("how")
@pytest.mark.parametrize("count", [1, 2, 31, 33, 1023, 1024, 1025, 2100])
def test_many_elements_of_a_few_places_have_the_bits_of_numpy(count):
    key = RANDOM.integers(0, 2, count)
    g = RANDOM.normal(size=(count, 3)).astype("f4")
    with installed():
        found = gradient(device, key, g, (5, 3))
    assert found.tobytes() == gradient(np, key, g, (5, 3)).tobytes()


def test_an_index_of_special_numbers_has_the_bits_of_numpy():
    g = np.array([[-0.0, np.inf], [1.0, -np.inf], [np.nan, 2.0], [-0.0, 1e-35]], "f4")
    key = np.array([2, 1, 1, 0])
    with installed():
        found = gradient(device, key, g, (4, 2))
    assert found.tobytes() == gradient(np, key, g, (4, 2)).tobytes()
    with installed():  # a view
        g = RANDOM.normal(size=(2, 4))
        found = functional.index.operation.steps["a"].function(
            device.asarray(g).T, device.asarray(key), (4, 2)
        )
    assert found.get().tobytes() == gradient(np, key, g.T.copy(), (4, 2)).tobytes()


def test_a_captured_index_takes_new_numbers():
    key = device.asarray(np.array([1, 1, 0]))
    g = device.asarray(np.ones((3, 2), np.float32))
    rule = functional.index.operation.steps["a"].function
    with installed():
        rule(g, key, (4, 2))
        graph, result = captured(rule, g, key, (4, 2))
    graph.launch()
    assert result.get()[:, 0].tolist() == [1, 2, 0, 0]
    key[...] = device.asarray(np.array([3, -1, 3]))
    graph.launch()
    assert result.get()[:, 0].tolist() == [0, 0, 0, 3]


# -- compiled steps --------------------------------------------------------------------


class Indexed(nn.Module):
    """Elements of some places, of which one is taken twice."""

    is_compilable = True

    def __init__(self):
        super().__init__()
        self.places = device.asarray([0, 2, 2, 1])

    def forward(self, x):
        return functional.softmax(x)[:, self.places]


def padded(group, how, options):
    """Return losses of a model of which some labels do not count, and the pipeline."""
    layers = nn.Linear(8, 6), nn.SiLU(), nn.Linear(6, 4), Indexed()
    loss = nn.CrossEntropyLoss(**options)
    settings = {"num_microbatches": 2, "device": device, "compile": how}
    pipeline = Pipeline(
        nn.Sequential(*layers, nn.Linear(4, 5)), group, loss=loss, **settings
    )
    optimiser = optim.AdamW(pipeline.parameters(), 0.01)
    found = []
    labels = np.array([0, 1, -100, 3, 4, 0, -100, -100])
    for step, (x, _) in zip(range(5), batches((8, 8))):
        found.append(float(pipeline.step(x, np.roll(labels, step))))
        optimiser.step()
    return found, pipeline


@pytest.mark.parametrize("smoothing", [0.0, 0.1])
@pytest.mark.parametrize("num_ranks", [1, 2])
def test_padding_is_captured_with_kernels(num_ranks, smoothing, graphs):
    options = {"ignore_index": -100, "label_smoothing": smoothing}

    def run(group):
        eager, _ = padded(group, False, options)
        compiled, pipeline = padded(group, True, options)
        return eager == compiled, pipeline.compile_report(), pipeline.source(group.rank)

    with installed():
        found = spawn(run, num_ranks=num_ranks, take_turns=True)
    for is_same, report, _ in found:
        assert is_same
        assert all(line.endswith("as graphs") for line in report.splitlines())
    assert graphs and all(graph.num_launches for graph in graphs)
    last = functions_of(found[-1][2])
    forward = last[f"forward_{num_ranks - 1}"]
    backward = last[f"backward_{num_ranks - 1}"]
    assert "losses_of_rows(" in forward and "mean_of_losses(" in forward
    assert "exp(" not in forward and "gradient_of_logits(" in backward
    first = functions_of(found[0][2])
    assert "bias_silu(" in first["forward_0"]
    assert "silu_gradient(" in first["backward_0"]

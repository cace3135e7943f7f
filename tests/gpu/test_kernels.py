"""Kernels on the CPU, from the table of operations to the launch: values, gradients and
launches beside those of the plain operations.
"""

from contextlib import nullcontext
from functools import partial
from unittest.mock import patch

import numpy as np
import pytest

from minipipe import Pipeline, Tensor, functional, nn, optim, random_key, spawn
from minipipe.compile.biases import with_biases
from minipipe.compile.places import needed_lines
from minipipe.compile.trace import Trace, key_of
from minipipe.core.functional import loss
from minipipe.errors import MinipipeError
from tests.compile import device
from tests.compile.test_other_modules import (
    LABELS,
    MODELS,
    SCHEDULES,
    batches,
    classifier,
    functions_of,
    graphs,  # noqa: F401
    schedule_of,
    trained,
)
from tests.compile.test_other_modules import both as compared
from tests.gpu import emulated
from tests.gpu.emulated import installed
from tests.launch import covering

pytestmark = [emulated.needs_compiler, pytest.mark.slow]  # a stage of its own
RANDOM = np.random.default_rng(0)
TOLERANCE = {"float32": 2e-6, "float64": 1e-13}


def run(function, arrays, upstream):
    """Return the value and the gradients of an operation on the device."""
    tensors = [Tensor(device.asarray(each), requires_grad=True) for each in arrays]
    result = function(*tensors)
    result.backward(device.asarray(upstream))
    return [each.get() for each in (result.data, *(t.grad for t in tensors))]


def both(function, arrays, upstream):
    """Return what the plain operation and the kernel compute; the kernel has the same
    bits whatever warp comes first.
    """
    plain = run(function, arrays, upstream)
    with installed():
        kernel = run(function, arrays, upstream)
        with patch.object(emulated.Kernel, "is_reversed", True):
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


def launches(function, arrays):
    """Return the numbers of launches, forward and backward."""
    given = [Tensor(device.asarray(each), requires_grad=True) for each in arrays]
    numbers = []
    # The check of labels reads values on the host, which no graph may capture.
    with patch.object(loss, "check_range_of_labels"):
        upstream = device.asarray(np.zeros(function(*given).shape, "f4"))
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


@dtypes
@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_relu(shape, dtype):
    x = RANDOM.normal(size=shape)
    check(functional.relu, [x], RANDOM.normal(size=shape), dtype)


def test_relu_of_what_is_no_number_and_of_halves():
    x = np.array([np.nan, -np.inf, np.inf, -0.0, -1.0, 2.0])
    for dtype in ("f2", "f4", "f8"):
        plain, kernel = both(functional.relu, [x.astype(dtype)], x.astype(dtype))
        assert [each.dtype for each in kernel] == [np.dtype(dtype)] * 2
        np.testing.assert_array_equal(kernel, plain)


# A row, several, wider than a block, of one element, without rows, of three axes.
ROWS = [(1, 7), (33, 40), (3, 1500), (4, 1), (0, 5), (2, 3, 8), (130, 33)]


@dtypes
@pytest.mark.parametrize("norm", ["layer_norm", "rms_norm"])
@pytest.mark.parametrize("shape", ROWS, ids=str)
def test_norms(shape, norm, dtype):
    x, upstream = RANDOM.normal(size=(2, *shape))
    vectors = RANDOM.normal(size=(1 + (norm == "layer_norm"), shape[-1]))
    check(getattr(functional, norm), [x, *vectors], upstream, dtype)


def test_norms_of_large_means_and_equal_elements():
    x = RANDOM.normal(size=(5, 70))
    ones, upstream = np.ones(70), RANDOM.normal(size=(5, 70))
    for given in (x + 1000, x * 0 + 3, x * 1e-6):
        for dtype in TOLERANCE:
            check(functional.layer_norm, [given, ones, ones], upstream, dtype)
            check(functional.rms_norm, [given, ones], upstream, dtype)


def test_norms_of_transposed_arrays():
    x, upstream = RANDOM.normal(size=(2, 6, 5))

    def function(x, weight, bias):
        return functional.layer_norm(x.T, weight, bias).T

    check(function, [x, *RANDOM.normal(size=(2, 6))], upstream, "float64")


# (queries, keys): heads of one axis, of two, more columns and keys than a block has.
ATTENTIONS = [
    ((1, 1, 2), (1, 1, 2)),
    ((2, 3, 4, 5), (2, 3, 6, 5)),
    ((2, 4, 5, 3), (2, 2, 7, 3)),  # grouped queries
    ((1, 70, 2), (1, 40, 2)),
    ((2, 0, 3), (2, 4, 3)),
    ((0, 2, 3), (0, 4, 3)),
]


@dtypes
@pytest.mark.parametrize("is_causal", [False, True])
@pytest.mark.parametrize("mask", ["", "keys", "pairs", "shared"])
@pytest.mark.parametrize(("query", "key"), ATTENTIONS, ids=str)
def test_attention(query, key, mask, is_causal, dtype):
    seen = None
    if mask:
        n = 1 if mask == "shared" else query[0]
        between = () if mask == "keys" else (query[-2],)
        seen = RANDOM.random(size=(n, *between, key[-2])) > 0.4
        if mask == "keys" and n:
            seen[0] = False  # queries that see nothing
        seen = device.asarray(seen)
    arrays = [RANDOM.normal(size=shape) for shape in (query, key, key)]
    function = partial(functional.attention, is_causal=is_causal, mask=seen)
    check(function, arrays, RANDOM.normal(size=query), dtype)


@pytest.mark.parametrize(
    "options", [{}, {"is_causal": True}, {"dropout": 0.3}], ids=str
)
def test_self_attention(options):
    x = RANDOM.normal(size=(2, 5, 24))

    def function(x):
        with random_key(1):
            return functional.self_attention(
                x, 4, num_key_value_heads=1, rotary_base=10.0, **options
            )

    check(function, [x], RANDOM.normal(size=(2, 5, 16)), "float64")
    check(function, [x], RANDOM.normal(size=(2, 5, 16)), "float32")


@pytest.mark.filterwarnings("ignore:invalid value")
def test_attention_with_infinite_scores_and_without_numbers():
    key = np.ones((2, 3, 2))
    for value in (np.nan, np.inf, -np.inf):
        query = np.ones((2, 3, 2))
        query[0, 1] = value
        upstream = np.ones_like(query)
        plain, kernel = both(functional.attention, [query, key, key], upstream)
        for one, other in zip(kernel, plain, strict=True):
            np.testing.assert_array_equal(np.isnan(one), np.isnan(other))
            np.testing.assert_allclose(one, other, atol=1e-12)


@dtypes
@pytest.mark.parametrize("reduction", ["mean", "sum"])
@pytest.mark.parametrize("shape", [(1, 1), (7, 5), (2, 3, 40), (3, 1500)], ids=str)
def test_cross_entropy(shape, reduction, dtype):
    for labels_dtype in (np.int64, np.int32, np.uint8):
        labels = RANDOM.integers(0, min(shape[-1], 255), shape[:-1])
        labels = device.asarray(labels.astype(labels_dtype))
        function = partial(functional.cross_entropy, labels=labels, reduction=reduction)
        check(function, [RANDOM.normal(size=shape)], RANDOM.normal(), dtype)


def test_cross_entropy_of_impossible_classes():
    logits = [[-np.inf, 1.0, 2.0], [0.0, -np.inf, -np.inf], [1e4, 0, -1e4]]
    logits = np.array([*logits, [-1e4, -1e4 - 1, -2e4]])
    labels = device.asarray([1, 0, 2, 1])
    function = partial(functional.cross_entropy, labels=labels)
    for dtype in TOLERANCE:
        check(function, [logits], 1.0, dtype)
    for label in (0, 1):
        function = partial(functional.cross_entropy, labels=device.asarray([label]))
        logits = np.array([[-np.inf, np.nan if label else 1.0]])
        plain, kernel = both(function, [logits], np.array(1.0))
        np.testing.assert_array_equal(kernel[0], plain[0])
        np.testing.assert_array_equal(kernel[1], plain[1])


def test_cross_entropy_with_weights_of_classes_is_the_plain_operation():
    labels = device.asarray([0, 2, 1])
    logits = RANDOM.normal(size=(3, 3))
    function = partial(
        functional.cross_entropy, labels=labels, class_weights=[1.0, 2.0, 0.0]
    )
    before = emulated.Kernel.num_launches
    plain, kernel = both(function, [logits], np.array(2.0))
    assert [each.tobytes() for each in plain] == [each.tobytes() for each in kernel]
    assert emulated.Kernel.num_launches == before


def test_kernels_refuse_what_the_plain_operation_refuses():
    logits = device.asarray(np.zeros((2, 3)))
    wrong = [[0, 3], [0.0, 1.0], [[0, 1]], [-100, 0]]
    for labels in map(device.asarray, wrong):
        messages = []
        for how in (nullcontext, installed):
            with how(), pytest.raises(MinipipeError) as caught:
                functional.cross_entropy(logits, labels)
            messages.append(str(caught.value))
        assert messages[0] == messages[1]
    with installed(), pytest.raises(MinipipeError, match="reduction"):
        functional.cross_entropy(logits, device.asarray([0, 1]), reduction="none")
    with installed(), pytest.raises(MinipipeError, match="unknown|no parameter|takes"):
        functional.gelu(logits, exact=True)


HALVES = {
    "gelu": ((4, 6),),
    "relu": ((4, 6),),
    "layer_norm": ((4, 6), (6,), (6,)),
    "rms_norm": ((4, 6), (6,)),
    "attention": ((2, 3, 4),) * 3,
}


@pytest.mark.parametrize("name", HALVES)
def test_halves_are_computed_in_float32_and_rounded_once(name):
    arrays = [RANDOM.normal(size=shape).astype("f2") for shape in HALVES[name]]
    plain, kernel = both(getattr(functional, name), arrays, arrays[0])
    for one, other in zip(kernel, plain, strict=True):
        assert one.dtype == other.dtype == np.float16
        np.testing.assert_allclose(one, other, rtol=2e-3, atol=2e-3)


# By operation: launches forward and backward, without and with kernels. CuPy itself
# needs a few more, where it copies the operands of products.
LAUNCHES = {
    "gelu": (lambda x: functional.gelu(x), [(4, 6)], (34, 1), (1, 1)),
    "relu": (lambda x: functional.relu(x), [(4, 6)], (2, 2), (1, 1)),
    "layer_norm": (functional.layer_norm, [(4, 6), (6,), (6,)], (16, 14), (1, 3)),
    "rms_norm": (functional.rms_norm, [(4, 6), (6,)], (9, 9), (1, 2)),
    "cross_entropy": (
        partial(functional.cross_entropy, labels=device.asarray([0, 1, 2, 3])),
        [(4, 6)],
        (10, 7),
        (2, 1),
    ),
    "cross_entropy, padded": (
        partial(
            functional.cross_entropy,
            labels=device.asarray([0, 1, 2, 3]),
            ignore_index=0,
        ),
        [(4, 6)],
        (31, 8),
        (4, 1),
    ),
    "softmax": (functional.softmax, [(4, 6)], (5, 4), (1, 1)),
    "log_softmax": (functional.log_softmax, [(4, 6)], (6, 4), (1, 1)),
    "silu": (functional.silu, [(4, 6)], (9, 4), (1, 1)),
    "attention": (
        partial(functional.attention, is_causal=True),
        [(2, 512, 4)] * 3,
        (20, 10),
        (4, 6),
    ),
    "self_attention": (
        partial(functional.self_attention, num_heads=2, is_causal=True),
        [(2, 512, 12)],
        (21, 12),
        (5, 8),
    ),
}


@pytest.mark.parametrize("name", LAUNCHES)
def test_launches(name):
    function, shapes, without, with_kernel = LAUNCHES[name]
    arrays = [RANDOM.normal(size=shape).astype("f4") for shape in shapes]
    found = [launches(function, arrays)]
    with installed():
        found.append(launches(function, arrays))
    assert found == [without, with_kernel]


def test_arrays_of_numpy_are_computed_as_before():
    x = RANDOM.normal(size=(3, 5)).astype("f4")
    upstream = RANDOM.normal(size=(3, 5)).astype("f4")

    def computed():
        given = [Tensor(each, requires_grad=True) for each in (x, x[0], x[1])]
        result = functional.gelu(functional.layer_norm(*given))
        result.backward(upstream)
        return [each.tobytes() for each in (result.data, *(t.grad for t in given))]

    plain, forward = computed(), functional.gelu.operation.forward
    with installed():
        assert functional.gelu.operation.forward is not forward
        assert computed() == plain
    assert functional.gelu.operation.forward is forward
    assert computed() == plain


# -- the emulation itself --------------------------------------------------------------


def launched(body, *arguments, threads=64, blocks=2):
    """Launch a kernel of some lines."""
    head = 'extern "C" __global__ void kernel(double* out, long long size) {'
    kernel = emulated.load(f"{head}{body}}}")("kernel")
    out = device.asarray(np.zeros(threads * blocks))
    kernel((blocks,), (threads,), arguments or (out, out.size))
    return out.get()


def test_the_threads_of_a_block_wait_for_each_other():
    body = """
        __shared__ double all[64];
        all[threadIdx.x] = threadIdx.x + 100 * blockIdx.x;
        __syncthreads();
        double other = all[63 - threadIdx.x];
        __syncthreads();
        all[threadIdx.x] = __shfl_xor_sync(0xffffffff, other, 1);
        out[blockIdx.x * 64 + threadIdx.x] = all[threadIdx.x];
    """
    expected = [63 - (i ^ 1) for i in range(64)]
    expected += [100 + each for each in expected]
    assert launched(body).tolist() == expected
    with patch.object(emulated.Kernel, "is_reversed", True):
        assert launched(body).tolist() == expected


def test_shared_memory_is_full_of_nan_in_each_block():
    body = "__shared__ double all[64]; out[blockIdx.x * 64 + threadIdx.x] = all[0];"
    body += "__syncthreads(); all[threadIdx.x] = 1;"
    assert np.isnan(launched(body)).all()


WRONG = {
    "a barrier for some threads": """
        if (threadIdx.x < 40) __syncthreads(); else while (1) __shfl_sync(-1, 1, 0);
    """,
    "a shuffle of half a warp": "if (threadIdx.x % 2) __shfl_xor_sync(-1, 1.0, 1);",
    "a shuffle beside a barrier": "if (threadIdx.x % 2) __syncthreads(); __syncwarp();",
}


@pytest.mark.parametrize("body", WRONG.values(), ids=WRONG)
def test_threads_that_do_not_meet_are_an_error(body):
    with pytest.raises(AssertionError, match="never arrive"):
        launched(body)
    assert launched("out[threadIdx.x] = 1;")[:64].tolist() == [1] * 64


def test_launches_that_a_gpu_refuses_are_an_error():
    for options in ({"threads": 1025}, {"threads": 0}, {"blocks": 0}):
        with pytest.raises(AssertionError, match="refuses"):
            launched("", **options)
    out = device.asarray(np.zeros(4))
    for wrong in ((out,), (out, 1.0), (1, 1), (out, 1, 1)):
        with pytest.raises(AssertionError, match="other arguments"):
            launched("", *wrong)


# -- compiled steps --------------------------------------------------------------------


CASES = covering([*MODELS], SCHEDULES, [1, 2], strength=1, at_length=2)


@pytest.mark.parametrize(("model", "schedule", "num_ranks"), CASES)
def test_compiled_steps_and_graphs_have_eager_bits(
    model,
    schedule,
    num_ranks,
    graphs,  # noqa: F811
):
    """Sections are captured; nothing but a loss is allocated in them."""
    with installed():
        eager, compiled, reports = compared(model, schedule, device, num_ranks)
    assert eager == compiled
    assert all(report.endswith("as graphs") for report in reports)
    assert graphs and max(graph.num_allocations for graph in graphs) <= 1


def test_a_compiled_loss_of_labels_has_eager_bits(graphs):  # noqa: F811
    def run(group):
        eager, _ = classifier(group, device, False, LABELS)
        compiled, pipeline = classifier(group, device, True, LABELS)
        return eager == compiled, pipeline.source(group.rank)

    with installed():
        is_same, source = spawn(run, num_ranks=1)[0]
    assert is_same and graphs
    forward = functions_of(source)["forward_0"]
    assert forward.count("losses_of_rows(") == 1 and "exp(" not in forward
    assert functions_of(source)["backward_0"].count("gradient_of_logits(") == 1


def test_compiled_stages_of_runs_have_eager_bits():
    """Their kept arrays are values that leave their slot."""

    def run(group):
        layers, loss = MODELS["block"]()
        found = []
        for how in (False, True):
            options = {"num_microbatches": 4, "schedule": "pipedream", "compile": how}
            pipeline = Pipeline(layers, group, loss=loss, device=device, **options)
            optimiser = optim.SGD(pipeline.parameters(), 0.0)
            given = [batch for _, batch in zip(range(2), batches((8, 4, 8)))]
            found.append([float(x) for x in pipeline.run(given, optimiser)])
        return found

    with installed():
        for eager, compiled in spawn(run, num_ranks=2):
            assert eager == compiled


def source_and_launches(graphs, model):  # noqa: F811
    """Return the program of a rank, and the launches of each of its graphs."""

    def run(group):
        own = schedule_of("1f1b", group.size)
        return trained(group, model, own, device, True)[1].source(0)

    graphs.clear()
    source = spawn(run, num_ranks=1)[0]
    return source, sorted({graph.num_kernels for graph in graphs})


def test_graphs_launch_a_kernel_in_place_of_many(graphs):  # noqa: F811
    _, plain = source_and_launches(graphs, "mlp")
    with installed():
        source, kernels = source_and_launches(graphs, "mlp")
    assert "bias_gelu_erf(t0, p5, v2, v3)" in source and "full(" not in source
    # backwards, as the first contribution or not; forward
    assert plain == [26, 36, 57]
    # two less for the gradient of ReLU; 33 for GELU, two for biases
    assert kernels == [22, 24, 34]


class Biased(nn.Module):
    """A sum with a bias that is read in some way, and layers around it."""

    is_compilable = True

    def __init__(self, read):
        super().__init__()
        self.first = nn.Linear(8, 8)
        self.last = nn.Linear(8, 8)
        self.read = read

    def forward(self, x):
        return self.last(self.read(self.first(x)))


def changed(total):
    total *= 2
    return total


# What happens before the sum, and after it; whether the kernel adds the bias.
SUMS = {
    "alone": (lambda x: x, lambda x: x, True),
    "changed": (lambda x: x, changed, False),
    "transposed": (lambda x: x.T, lambda x: x, False),
    "transposed twice": (lambda x: x.T, lambda x: x.T, False),
    "shifted": (lambda x: x, lambda x: x.reshape(9)[1:7].reshape(2, 3), False),
}


@pytest.mark.parametrize("how", [*SUMS, "returned"])
def test_a_sum_that_is_changed_or_returned_is_computed(how):
    trace = Trace(key_of(0, 0, 0), xp=device)
    trace.begin("forward")
    x = trace.input("x0", device.asarray(np.ones((3, 3))))
    bias = trace.named("p0", device.asarray(np.ones(3)))
    total = x * 2
    before, after, is_fused = SUMS.get(how, SUMS["alone"])
    total = before(total)
    total += bias
    with installed():
        result = functional.gelu.operation.forward(after(total))[0]
    trace.returned(result)
    if how == "returned":
        trace.returned(total)
    lines = with_biases(trace, needed_lines(trace))["forward"]
    texts = [line.form.text.partition("(")[0] for line in lines]
    assert ("bias_gelu_erf" in texts) == (is_fused and how != "returned")


def split(x):
    return functional.concatenate([functional.gelu(x[:, :4]), x[:, 4:]], axis=1)


READS = {
    # (how the sum is read, whether the kernel adds the bias)
    "alone": (functional.gelu, True),
    "reshaped": (lambda x: functional.relu(x.reshape(-1)).reshape(x.shape), False),
    "through a view": (lambda x: functional.relu(x.reshape(1, -1, 8))[0], True),
    "read before": (lambda x: functional.exp(x) * functional.gelu(x), False),
    "read later": (lambda x: functional.gelu(x) * x, False),
    "read by a backward": (lambda x: functional.gelu(x) + x * x, False),
    "in part": (split, False),
    "transposed": (lambda x: functional.gelu(x.T).T, False),
    "twice": (lambda x: functional.gelu(x) + functional.relu(x), False),
}


@pytest.mark.parametrize("read", READS)
def test_a_kernel_adds_the_bias_only_if_it_alone_reads_the_sum(read, monkeypatch):
    function, is_fused = READS[read]

    def biased():
        return nn.Sequential(Biased(function), nn.Tanh()), nn.MSELoss()

    monkeypatch.setitem(MODELS, "biased", biased)
    # The stand-in's own conversions are no conversions by the layer.
    monkeypatch.setattr("minipipe.compile.trace._is_library", lambda frame: True)

    def run(group):
        own = schedule_of("1f1b", group.size)
        eager, _ = trained(group, "biased", own, device, False)
        compiled, pipeline = trained(group, "biased", own, device, True)
        return eager == compiled, pipeline.source(0)

    with installed():
        is_same, source = spawn(run, num_ranks=1)[0]
    assert is_same
    assert ("bias_" in source) == is_fused, source

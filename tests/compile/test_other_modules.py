"""Compiled stages of arrays that are not NumPy's: eager bits, and sections that a device
can run alone.
"""

import re
from functools import partial

import array_api_strict
import numpy as np
import pytest

from minipipe import Pipeline, nn, optim, schedules, spawn
from minipipe.errors import ModelError, TensorError
from tests.compile import device, device_streams
from tests.launch import covering

WIDTH, CLASSES, LENGTH = 8, 5, 4
NUM_STEPS = 5  # eager, recorded, and three that are compiled


def mlp():
    """Return layers and a loss of numbers."""
    linear = partial(nn.Linear, WIDTH, WIDTH)
    layers = linear(), nn.ReLU(), linear(), nn.Tanh(), linear(), nn.GELU(), linear()
    return nn.Sequential(*layers, nn.Sigmoid(), linear()), nn.MSELoss()


def dropout():
    """Return layers that draw random numbers."""
    parts = nn.Linear(WIDTH, WIDTH), nn.Dropout(0.3), nn.LayerNorm(WIDTH)
    recomputed = nn.Recompute(
        nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.Dropout(0.4), nn.SiLU())
    )
    more = nn.RMSNorm(WIDTH), recomputed, nn.Linear(WIDTH, WIDTH), nn.Dropout(0.1)
    return nn.Sequential(*parts, *more, nn.Linear(WIDTH, 1)), nn.MSELoss("sum")


def block():
    """Return transformer blocks, one with dropout."""
    make = partial(nn.TransformerBlock, WIDTH, 2, is_causal=True)
    linear = partial(nn.Linear, WIDTH, WIDTH)
    layers = linear(), nn.Tanh(), make(dropout=0.2), make(), linear(), nn.ReLU()
    return nn.Sequential(*layers, linear(), nn.GELU(), linear()), nn.MSELoss()


def written():
    """Return layers that write into arrays which they have made."""
    linear = partial(nn.Linear, WIDTH, WIDTH)
    layers = nn.LSTM(WIDTH, WIDTH), nn.Tanh(), nn.Conv1d(LENGTH, LENGTH, 3, padding=1)
    more = nn.GELU(), linear(), nn.MultiHeadAttention(WIDTH, 2), nn.ReLU(), linear()
    return nn.Sequential(*layers, *more), nn.MSELoss()


MODELS = {"mlp": mlp, "dropout": dropout, "block": block, "written": written}
MODULES = {"strict": array_api_strict, "device": device}
END = {
    "strict": re.compile("is compiled$"),
    "device": re.compile("is compiled, as graphs$"),
}
SCHEDULES = ["gpipe", "1f1b", "interleaved-1f1b", "zb-h1"]


def schedule_of(name, num_ranks):
    """Return a schedule of four microbatches."""
    return schedules.build(
        name, num_ranks, 4, 2 if name == "interleaved-1f1b" else None
    )


def batches(shape):
    random = np.random.default_rng(0)
    while True:
        yield [random.normal(size=shape).astype(np.float32) for _ in "xy"]


def trained(group, model, schedule, xp, how):
    """Return losses, norms, gradients and values after some steps, and the pipeline."""
    layers, loss = MODELS[model]()
    options = {"schedule": schedule, "device": xp}
    pipeline = Pipeline(layers, group, loss=loss, compile=how, **options)
    optimiser = optim.AdamW(pipeline.parameters(), 0.01, weight_decay=0.1)
    has_length = model in ("block", "written")
    shape = (8, LENGTH, WIDTH) if has_length else (8, WIDTH)
    found = []
    for _, (x, y) in zip(range(NUM_STEPS), batches(shape)):
        y = y[:, :1] if model == "dropout" else y
        found.append(float(pipeline.step(x, y)))
        found.append(pipeline.clip_grad_norm(0.5))
        optimiser.step()
    found += [values.tobytes() for values in pipeline.state_dict().values()]
    return found, pipeline


def both(model, schedule, xp, num_ranks):
    """Return what eager and compiled ranks find, and the reports of these."""

    def run(group):
        own = schedule_of(schedule, group.size)
        eager, _ = trained(group, model, own, xp, False)
        compiled, pipeline = trained(group, model, own, xp, True)
        return eager, compiled, pipeline.compile_report()

    return zip(*spawn(run, num_ranks=num_ranks, take_turns=True))


CASES = covering([*MODELS], SCHEDULES, [*MODULES], [1, 2, 4], strength=1, at_length=2)


@pytest.mark.parametrize(("model", "schedule", "module", "num_ranks"), CASES)
def test_compiled_steps_have_the_bits_of_eager_ones(model, schedule, module, num_ranks):
    eager, compiled, reports = both(model, schedule, MODULES[module], num_ranks)
    assert eager == compiled
    for report in reports:
        assert all(END[module].search(line) for line in report.splitlines())


@pytest.mark.slow
@pytest.mark.parametrize("module", MODULES)
@pytest.mark.parametrize("schedule", ["1f1b", "pipedream"])
def test_several_steps_of_run_have_eager_bits(schedule, module):
    def train(group, how):
        layers, loss = dropout()
        options = {"num_microbatches": 4, "schedule": schedule, "compile": how}
        options["device"] = MODULES[module]
        pipeline = Pipeline(layers, group, loss=loss, **options)
        optimiser = optim.SGD(pipeline.parameters(), 0.001)
        given = [(x, y[:, :1]) for _, (x, y) in zip(range(3), batches((8, WIDTH)))]
        losses = [float(x) for _ in range(2) for x in pipeline.run(given, optimiser)]
        values = [values.tobytes() for values in pipeline.state_dict().values()]
        return losses + values, pipeline.compile_report()

    for eager, (compiled, report) in spawn(
        lambda group: (train(group, False)[0], train(group, True)), num_ranks=2
    ):
        assert eager == compiled
        assert "is compiled" in report
        has_note = "without graphs: an update may replace its parameters" in report
        assert has_note == (module == "device" and schedule == "pipedream")


def test_activations_leave_the_memory_of_a_device():
    """O and L copy what sections keep to a file, and back."""

    def run(group):
        schedule = schedules.offloaded(schedules.gpipe(group.size, 4), 1)
        eager, _ = trained(group, "dropout", schedule, device, False)
        compiled, pipeline = trained(group, "dropout", schedule, device, True)
        return eager == compiled, pipeline.compile_report()

    for is_same, report in spawn(run, num_ranks=2):
        assert is_same
        assert "forward (its values leave the device)" in report


@pytest.mark.slow
@pytest.mark.parametrize("module", MODULES)
def test_slices_of_sequences_pass_keys_and_values_on(module):
    def run(group):
        schedule = schedules.seq1f1b(group.size, 4, num_slices=2)
        eager, _ = trained(group, "block", schedule, MODULES[module], False)
        compiled, pipeline = trained(group, "block", schedule, MODULES[module], True)
        return eager == compiled, pipeline.compile_report()

    for is_same, report in spawn(run, num_ranks=2):
        assert is_same
        assert END[module].search(report)


# -- sections alone --------------------------------------------------------------------


FORBIDDEN = {
    "a number": lambda x: float(x[0, 0]),
    "a truth value": bool,
    "a copy to the host": lambda x: x.get(),
    "a copy from the host": lambda x: x + device.asarray(np.ones(2)),
    "a mask": lambda x: x[x > 0],
    "a product": lambda x: x @ x,
    "a product by a method": lambda x: x.dot(x),
    "a product by a function": lambda x: device.tensordot(x, x),
    "random numbers": lambda x: device.random.standard_normal(),
    "linear algebra": lambda x: device.linalg.norm(1.0),
    "a wait": lambda x: device.cuda.get_current_stream().synchronize(),
    "a question": lambda x: device.cuda.get_current_stream().done,
}


@pytest.mark.parametrize("function", FORBIDDEN.values(), ids=FORBIDDEN)
def test_the_graph_refuses_what_a_device_cannot_capture(function):
    x = device.asarray(np.ones((1, 1)))
    function(x)
    stream = device.cuda.Stream(non_blocking=True)
    with stream:
        stream.begin_capture()
        with pytest.raises(device.CaptureError, match="while a graph captures"):
            function(x)
        with pytest.raises(device.CaptureError, match="The capture is invalid"):
            stream.end_capture()


def captured(function, *given):
    """Return the graph of a function, and its result."""
    stream = device.cuda.Stream(non_blocking=True)
    with stream:
        stream.begin_capture()
        result = function(*given)
        return stream.end_capture(), result


def test_the_graph_computes_when_it_is_launched_and_not_before():
    x, y = device.asarray([1.0, 2.0]), device.asarray([0.0, 0.0])
    graph, _ = captured(lambda: device.multiply(x, x + 1, out=y))
    assert y.get().tolist() == [0.0, 0.0]
    assert (graph.num_kernels, graph.num_allocations) == (2, 1)
    graph.launch()
    assert y.get().tolist() == [2.0, 6.0]
    x[...] = 3.0
    graph.launch()
    assert y.get().tolist() == [12.0, 12.0]


@pytest.fixture
def graphs():
    """Return the graphs that a test captures; products may be captured."""
    device_streams.Graph.made.clear()
    yield device_streams.Graph.made
    device_streams.Graph.made.clear()


@pytest.mark.parametrize(
    ("model", "schedule", "num_ranks"),
    covering([*MODELS], SCHEDULES, [1, 2, 4], strength=1, at_length=2),
)
def test_a_graph_captures_every_section(model, schedule, num_ranks, graphs):
    """It computes the eager bits, from a capture in which nothing was computed.

    Sections read nothing on the host and allocate nothing: all arrays are those of a
    slot, or temporaries that exist. Only a loss, which is returned, is a new array.
    """
    eager, compiled, reports = both(model, schedule, device, num_ranks)
    assert eager == compiled
    for report in reports:
        assert all(line.endswith("as graphs") for line in report.splitlines())
    assert graphs and all(graph.num_kernels for graph in graphs)
    assert max(graph.num_allocations for graph in graphs) <= 1
    assert all(graph.num_launches for graph in graphs)


def functions_of(source):
    """Return the lines of each function, by name."""
    parts = source.split("def ")[1:]
    return {part.partition("(")[0]: part for part in parts}


def test_what_a_section_draws_is_drawn_before_it():
    def source(group):
        own = schedule_of("1f1b", group.size)
        return trained(group, "dropout", own, device, True)[1].source(0)

    functions = functions_of(spawn(source, num_ranks=1)[0])
    assert functions["prepare_forward_0"].count("uniform(") == 3
    assert functions["prepare_backward_0"].count("uniform(") == 1  # computed again
    for name in ("forward_0", "backward_0"):
        assert "prepared" in functions[name].splitlines()[0]
        assert "uniform(" not in functions[name]


def classifier(group, xp, how, labels):
    """Return losses of steps with labels, which are compared with their range."""
    layers = nn.Linear(WIDTH, WIDTH), nn.ReLU(), nn.Linear(WIDTH, CLASSES)
    options = {"num_microbatches": 2, "device": xp, "compile": how}
    loss = nn.CrossEntropyLoss()
    pipeline = Pipeline(nn.Sequential(*layers), group, loss=loss, **options)
    optimiser = optim.SGD(pipeline.parameters(), 0.1)
    losses = []
    for own, (x, _) in zip(labels, batches((6, WIDTH))):
        losses.append(float(pipeline.step(x, np.array(own))))
        optimiser.step()
    return losses, pipeline


LABELS = [[0, 1, 2, 3, 4, 0]] * 4
WRONG = [[0, 1, 2, 3, 7, 0]]


@pytest.mark.parametrize("module", MODULES)
@pytest.mark.parametrize("num_ranks", [1, 2])
def test_values_of_inputs_are_checked_before_a_section(module, num_ranks):
    xp = MODULES[module]

    def run(group):
        eager, _ = classifier(group, xp, False, LABELS)
        compiled, pipeline = classifier(group, xp, True, LABELS)
        return eager == compiled, pipeline.source(group.rank)

    found = spawn(run, num_ranks=num_ranks)
    assert all(is_same for is_same, _ in found)
    functions, last = functions_of(found[-1][1]), num_ranks - 1
    assert "check_range_of_labels(" in functions[f"prepare_forward_{last}"]
    assert "check_range_of_labels(" not in functions[f"forward_{last}"]


@pytest.mark.parametrize("module", MODULES)
def test_a_wrong_value_of_an_input_is_named_as_in_an_eager_step(module):
    def run(group):
        for how in (False, True):
            with pytest.raises(TensorError) as caught:
                classifier(group, MODULES[module], how, LABELS + WRONG)
            yield str(caught.value), *getattr(caught.value, "__notes__", ())

    ((eager, compiled),) = spawn(lambda group: list(run(group)), num_ranks=1)
    assert "labels run from 0 to 7; expected 0 to 4" in eager[0]
    assert eager == compiled


def embedded(group, xp, how):
    """Return losses of a model that adds up rows of a table, and the report."""
    layers = nn.Embedding(CLASSES, WIDTH), nn.ReLU(), nn.Linear(WIDTH, WIDTH)
    options = {"num_microbatches": 2, "device": xp, "compile": how}
    loss = nn.MSELoss()
    pipeline = Pipeline(nn.Sequential(*layers), group, loss=loss, **options)
    optimiser = optim.SGD(pipeline.parameters(), 0.1)
    random, losses = np.random.default_rng(0), []
    for _, (x, _) in zip(range(4), batches((6, LENGTH, WIDTH))):
        ids = random.integers(0, CLASSES, (6, LENGTH))
        losses.append(float(pipeline.step(ids, x)))
        optimiser.step()
    return losses, pipeline.compile_report()


@pytest.mark.parametrize("module", MODULES)
def test_what_reads_computed_values_is_refused_or_runs_eagerly(module):
    """The gradient of an embedding finds on the host which rows it adds up."""

    def run(group):
        xp = MODULES[module]
        eager, _ = embedded(group, xp, False)
        found, report = embedded(group, xp, "where-possible")
        assert found == eager
        assert "runs eagerly: it reads a value" in report or "flatnonzero" in report
        with pytest.raises(ModelError, match="Stage 0 cannot be compiled: it"):
            embedded(group, xp, True)

    spawn(run, num_ranks=1)


@pytest.mark.parametrize("name", ["float16", "bfloat16"])
def test_halves_are_compiled_although_the_module_has_no_name_for_one(name):
    dtype = np.dtype(getattr(pytest.importorskip("ml_dtypes"), name, name))

    def run(group, how):
        linear = partial(nn.Linear, WIDTH, dtype=dtype)
        layers = linear(WIDTH), nn.LayerNorm(WIDTH, dtype=dtype), linear(CLASSES)
        options = {"num_microbatches": 2, "device": device, "compile": how}
        loss = nn.CrossEntropyLoss()
        pipeline = Pipeline(nn.Sequential(*layers), group, loss=loss, **options)
        optimiser = optim.SGD(pipeline.parameters(), 0.1)
        losses = []
        for own, (x, _) in zip(LABELS, batches((6, WIDTH))):
            losses.append(float(pipeline.step(x.astype(dtype), np.array(own))))
            optimiser.step()
        return losses, pipeline.compile_report()

    ((eager, _),) = spawn(partial(run, how=False), 1)
    ((compiled, report),) = spawn(partial(run, how=True), 1)
    assert compiled == eager and report.endswith("as graphs")

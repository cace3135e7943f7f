"""Sections as graphs of a device: what they hold on to, and what drops them.

The stand-in for a device shows what a GPU does with a graph that is wrong: it writes to
the old addresses, with the old numbers.
"""

import gc
from functools import partial

import numpy as np
import pytest

from minipipe import Pipeline, nn, optim, schedules, spawn
from minipipe.compile import graphs, program
from minipipe.compile.graphs import MOST_CHANGES, Graph, SectionGraphs
from tests.compile import device, device_streams
from tests.compile.test_other_modules import MODELS, WIDTH
from tests.launch import covering

NO_STASHES = ((), ())


def section(function, *names, stashes=NO_STASHES):
    """Return a section of parameters, and the list of the calls of its function."""
    calls = []

    def noted(*given):
        calls.append(given)
        return function(*given)

    return SectionGraphs(noted, names, stashes, device), calls


def array(*values):
    return device.asarray(np.array(values, "f4"))


def doubled(x, out):
    device.multiply(x, 2, out=out)


def add_ones(x, out):
    """A section that allocates memory."""
    out[...] = x + device.ones(x.shape, dtype="f4")


# -- a section alone -------------------------------------------------------------------


def test_a_section_runs_once_is_captured_once_and_then_launched():
    run, calls = section(doubled, "x0", "out0")
    x, out = array(1, 2), array(0, 0)
    for i in range(5):
        x[...] = i
        run(x, out)
        assert out.get().tolist() == [2 * i, 2 * i]
    assert len(calls) == 2
    (graph,) = run.graphs.values()
    assert not graph.copied  # all arrays stay where they are


def test_arguments_that_move_are_copied_in_their_order():
    run, calls = section(doubled, "x0", "out0")
    results = []
    for i in range(6):
        x = device.asarray(np.arange(6.0).reshape(2, 3) + i).T
        out = device.empty((3, 2))
        run(x, out)
        results.append((x, out))
    assert all((out.get() == 2 * x.get()).all() for x, out in results)
    assert len(calls) == 2
    (graph,) = run.graphs.values()
    own = {i: graph.values[i].strides for i in graph.copied}
    assert own == {0: (8, 24), 1: (16, 8)}


def test_an_argument_that_moves_later_is_captured_again():
    run, calls = section(doubled, "x0", "out0")
    x, out = array(1), array(0)
    for _ in range(3):
        run(x, out)
    for i in range(2, 6):
        moved = array(i)
        run(moved, out)
        assert out.get().tolist() == [2 * i]
    assert len(calls) == 3


def test_a_graph_that_stays_after_an_address_has_changed_is_wrong(monkeypatch):
    """So the tests of these changes would notice it."""
    run, _ = section(doubled, "x0", "out0")
    x, out = array(1), array(0)
    for _ in range(3):
        run(x, out)
    monkeypatch.setattr(Graph, "moved", lambda graph, values: [])
    run(array(5), out)
    assert out.get().tolist() == [2]


def test_slots_and_first_contributions_have_graphs_of_their_own():
    kept = [array(0), array(0)]

    def add(slot, first, x):
        target = kept[slot]
        if first:
            target[...] = x
        else:
            device.add(target, x, out=target)

    run, calls = section(add, "slot0", "first", "x0")
    for _ in range(4):
        for slot in (0, 1):
            for k in range(3):
                run(slot, k == 0, array(10 * slot + k))
    assert [each.get().tolist() for each in kept] == [[3], [33]]
    assert len(calls) == 2 * len(run.graphs) == 8


def test_results_of_the_host_are_copied_and_numbers_among_them_stay():
    def scale(prepared, x, out):
        factor, number = prepared
        device.multiply(x, factor, out=out)
        device.multiply(out, number, out=out)

    run, calls = section(scale, "prepared", "x0", "out0")
    x, out = array(1, 1), array(0, 0)
    for i in range(4):
        run((array(i, i + 1), 1000), x, out)
        assert out.get().tolist() == [1000 * i, 1000 * (i + 1)]
    assert len(calls) == 2
    for i in range(2):  # another number: run once more, and captured again
        run((array(i, i + 1), 2000), x, out)
        assert out.get().tolist() == [2000 * i, 2000 * (i + 1)]
    assert len(calls) == 4


def test_results_without_axes_are_not_overwritten():
    run, calls = section(lambda x: (x.sum(), x.max()), "x0")
    found = [run(array(i, i)) for i in range(5)]
    assert [[float(each) for each in pair] for pair in found] == [
        [2 * i, i] for i in range(5)
    ]
    assert len(calls) == 2


def test_results_of_earlier_calls_are_not_overwritten():
    run, _ = section(doubled, "x0", "out0")
    outs = []
    for i in range(5):
        outs.append(device.empty((1,)))
        run(array(i), outs[-1])
    assert [float(out[0]) for out in outs] == [0, 2, 4, 6, 8]


class Pair:
    """A forward that keeps an array which it allocates, and a backward that reads it."""

    def __init__(self):
        self.stash = [None, None]
        fills, reads = [(self.stash, 0)], [(self.stash, 0)]
        self.forward, self.forwards = section(
            self._forward, "slot0", "x0", "out0", stashes=(fills, [])
        )
        self.backward, self.backwards = section(
            self._backward, "slot0", "g0", "out0", stashes=([], reads)
        )

    def _forward(self, slot, x, out):
        self.stash[slot] = x * x  # and a temporary, in memory that is free again
        out[...] = x + x

    def _backward(self, slot, g, out):
        device.multiply(self.stash[slot], g, out=out)


def in_flight(pair, num_steps=5):
    """Let two microbatches be in flight; return whether all results are right."""
    right = []
    for step in range(num_steps):
        outs = [device.empty((2,)) for _ in range(4)]
        for slot in ((0, 1), (1, 0))[step % 2]:
            pair.forward(slot, array(step, slot + 2), outs[slot])
        for slot in (0, 1):
            pair.backward(slot, array(2, 3), outs[2 + slot])
        for slot, out in enumerate(outs[2:]):
            right.append(out.get().tolist() == [2 * step**2, 3 * (slot + 2) ** 2])
    return all(right)


def test_what_microbatches_in_flight_keep_is_in_the_memory_of_their_graphs():
    pair = Pair()
    assert in_flight(pair)
    assert [len(pair.forwards), len(pair.backwards)] == [
        4,
        6,
    ]  # 2 read what ran eagerly


def test_a_forward_that_is_captured_again_is_read_where_it_is_then():
    pair = Pair()
    assert in_flight(pair)
    pair.forward.graphs.clear()
    assert in_flight(pair)
    assert len(pair.backwards) > 6


def test_a_backward_reads_what_the_forward_before_it_has_kept():
    """Two graphs of a forward take turns in a slot."""
    stash = [None]

    def forward(slot, other, x):
        stash[slot] = x * (other + 1)

    run, _ = section(forward, "slot0", "slot1", "x0", stashes=([(stash, 0)], []))
    read, _ = section(
        lambda slot, out: doubled(stash[slot], out),
        *("slot0", "out0"),
        stashes=([], [(stash, 0)]),
    )
    out = array(0)
    for step in range(8):
        for other in (0, 1):
            run(0, other, array(step))
            read(0, out)
            assert out.get().tolist() == [2 * step * (other + 1)]
    assert not run.reason and read.reason


def test_graphs_that_share_a_pool_are_wrong(monkeypatch):
    shared = device.cuda.MemoryPool()
    graphs._spare_pools.cache_clear()
    monkeypatch.setattr(device.cuda, "MemoryPool", lambda: shared)
    assert not in_flight(Pair())


def test_a_graph_whose_pool_is_gone_overwrites_other_arrays(monkeypatch):
    monkeypatch.setattr(graphs, "finalize", lambda *given: None)
    graphs._spare_pools.cache_clear()

    def final_value(has_pool):
        run, _ = section(add_ones, "x0", "out0")
        x, out = array(1, 2, 3), array(0, 0, 0)
        for _ in range(3):
            run(x, out)
        if not has_pool:
            (graph,) = run.graphs.values()
            graph.pool = run._pool = None
        others = [array(7, 7, 7) for _ in range(4)]
        run(x, out)
        return {value for each in others for value in each.get().tolist()}

    device_streams._released.clear()
    assert final_value(has_pool=True) == {7}
    assert final_value(has_pool=False) != {7}
    device_streams._released.clear()


def test_pools_of_graphs_that_are_gone_are_used_again(monkeypatch):
    """CuPy never frees their blocks."""
    made, make = [], device.cuda.MemoryPool
    monkeypatch.setattr(
        device.cuda, "MemoryPool", lambda: made.append(make()) or made[-1]
    )
    graphs._spare_pools.cache_clear()
    for _ in range(4):
        assert in_flight(Pair())
        assert len(made) == 3  # two slots of the forward, and the backward
        gc.collect()


REFUSED = {
    "a value is read": lambda x, out: doubled(x * float(x[0]), out),
    "a product of the module": lambda x, out: doubled(x * (x @ x), out),
    "random numbers": lambda x, out: doubled(x + 0 * device.random.uniform(), out),
    "the device is awaited": lambda x, out: (
        device.cuda.get_current_stream().synchronize(),
        doubled(x, out),
    ),
}


@pytest.mark.parametrize("function", REFUSED.values(), ids=REFUSED)
def test_what_a_capture_refuses_runs_without_a_graph(function, monkeypatch):
    streams, make = [], device.cuda.Stream

    def noted(**options):
        streams.append(make(**options))
        return streams[-1]

    monkeypatch.setattr(device.cuda, "Stream", noted)
    graphs._stream_of.cache_clear()
    run, calls = section(function, "x0", "out0")
    out = array(0, 0)
    for i in (1, 2, 3, 4):
        x, expected = array(1, i), array(0, 0)
        function(x, expected)
        run(x, out)
        assert out.get().tolist() == expected.get().tolist()
    assert run.reason.startswith("a capture refuses it: ")
    assert "while a graph captures" in run.reason
    assert len(calls) == 5  # two in the second step
    assert not run.graphs
    assert streams and not any(stream.is_capturing() for stream in streams)
    other, calls = section(doubled, "x0", "out0")
    for _ in range(3):
        other(x, out)
    assert not other.reason and len(calls) == 2


def test_an_error_of_a_section_is_raised_and_leaves_the_stream_as_it_was():
    def fail(x, out):
        doubled(x, out)
        raise ZeroDivisionError

    run, _ = section(fail, "x0", "out0")
    stream = device.cuda.get_current_stream()
    for _ in range(4):
        with pytest.raises(ZeroDivisionError):
            run(array(1), array(0))
        assert device.cuda.get_current_stream() is stream
        assert not stream.is_capturing()


def test_a_section_whose_arguments_always_change_runs_without_graphs():
    stash = [None]
    run, calls = section(
        lambda slot, out: doubled(stash[slot], out),
        *("slot0", "out0"),
        stashes=([], [(stash, 0)]),
    )
    out = array(0)
    for i in range(20):
        stash[0] = array(i)
        run(0, out)
        assert out.get().tolist() == [2 * i]
    assert run.reason == "its arguments are others in each step"
    assert len(calls) == 20 and not run.graphs
    assert MOST_CHANGES < 20


@pytest.mark.parametrize("which", ["before", "after"])
def test_a_first_run_waits_for_the_current_stream_and_is_awaited(which, monkeypatch):
    waits, wait = [], device_streams.Stream.wait_event

    def one_alone(stream, event):
        waits.append(stream)
        if len(waits) != {"before": 1, "after": 2}[which]:
            wait(stream, event)

    monkeypatch.setattr(device_streams.Stream, "wait_event", one_alone)
    run, _ = section(doubled, "x0", "out0")
    out = array(0) + array(0)
    with pytest.raises(device_streams.Race):
        run(array(1) + array(1), out)
        out + out
    device_streams._of_thread.streams.clear()
    graphs._stream_of.cache_clear()


# -- whole steps -----------------------------------------------------------------------


class Power(nn.Module):
    """A layer whose results are not written into arrays that exist."""

    is_compilable = True

    def forward(self, x):
        return (x**2 + 1) ** 3 * 0.01


def powers():
    """Return layers that allocate what they keep, and a loss."""
    linear = partial(nn.Linear, WIDTH, WIDTH)
    layers = linear(), nn.Tanh(), Power(), linear(), nn.Tanh(), linear(), nn.Tanh()
    return nn.Sequential(*layers, linear(), nn.Tanh()), nn.MSELoss()


def replaced(pipeline, step, kept):
    if step == 4:
        (parameter, *_) = pipeline.parameters()
        parameter.data = parameter.data * 0.5


def loaded(pipeline, step, kept):
    if step == 1:
        kept.append(pipeline.state_dict())
    if step in (4, 5):
        pipeline.load_state_dict(kept[0])


def grown(pipeline, step, kept):
    """Change values in place: graphs stay."""
    if step == 4:
        for parameter in pipeline.parameters():
            parameter.data[...] = parameter.data + 0.125


def with_kept_gradients(pipeline, step, kept):
    if step in (3, 5):
        gradients = [parameter.grad for parameter in pipeline.parameters()]
        kept += [(each, each.get().tobytes()) for each in gradients if each is not None]
    assert all(each.get().tobytes() == before for each, before in kept)


def frozen(pipeline, step, kept):
    for parameter in [*pipeline.parameters()][:1]:
        parameter.requires_grad = step not in (3, 4)


def predicted(pipeline, step, kept):
    x = np.full((8, WIDTH), step / 10, "f4")
    y = pipeline.predict(x)
    kept.append((y, y is not None and y.tobytes()))
    kept.append(pipeline.evaluate(x, x))
    for each in kept[:-1]:
        if isinstance(each, tuple) and each[0] is not None:
            assert each[0].tobytes() == each[1]  # nothing has overwritten it


CHANGES = {
    each.__name__: each
    for each in (replaced, loaded, grown, with_kept_gradients, frozen, predicted)
}
SCHEDULES = {
    "gpipe": (lambda: schedules.gpipe(2, 4), 2),
    "gpipe on one rank": (lambda: schedules.gpipe(1, 4), 1),
    "1f1b": (lambda: schedules.one_f_one_b(2, 4), 2),
    "interleaved": (lambda: schedules.build("interleaved-1f1b", 2, 4, 2), 2),
    "zb-h1": (lambda: schedules.build("zb-h1", 2, 4), 2),
    "zb-v": (lambda: schedules.build("zb-v", 2, 4), 2),
    "replicas": (lambda: schedules.data_parallel(schedules.gpipe(2, 4), 2), 4),
}


def dropout():
    """Return layers that draw random numbers, some of them twice, and a loss."""
    layers, _ = MODELS["dropout"]()
    return nn.Sequential(*layers.layers[:-1], nn.Linear(WIDTH, WIDTH)), nn.MSELoss()


ALL_MODELS = {"powers": powers, "mlp": MODELS["mlp"], "dropout": dropout}


def batches(form):
    """Yield inputs and targets: of one form, or of others in turns."""
    random = np.random.default_rng(0)
    for step in range(9):
        sizes = {"one": [2] * 4, "uneven": [3, 3, 2, 2], "longer": [2] * 4}[form]
        if form == "longer" and step in (3, 5, 6):
            sizes = [4] * 4
        yield random.normal(size=(2, sum(sizes), WIDTH)).astype("f4")


def trained(group, model, schedule, change, how, form="one"):
    """Return all that some steps leave, and the report."""
    layers, loss = ALL_MODELS[model]()
    options = {"loss": loss, "schedule": SCHEDULES[schedule][0](), "device": device}
    pipeline = Pipeline(layers, group, compile=how, **options)
    optimiser = optim.AdamW(pipeline.parameters(), 0.01)
    found, kept = [], []
    for step, (x, y) in enumerate(batches(form)):
        found.append(float(pipeline.step(x, y)))
        optimiser.step()
        change(pipeline, step, kept)
    if change is predicted:
        found += [each[1] if isinstance(each, tuple) else float(each) for each in kept]
    found += [values.tobytes() for values in pipeline.state_dict().values()]
    return found, pipeline.compile_report()


def compare(*how):
    """Return whether compiled steps leave what eager ones do, and the reports."""

    def run(group):
        eager, _ = trained(group, *how[:3], False, *how[3:])
        compiled, report = trained(group, *how[:3], True, *how[3:])
        return eager == compiled, report

    found = spawn(run, num_ranks=SCHEDULES[how[1]][1], take_turns=True)
    return [same for same, _ in found], [report for _, report in found]


@pytest.mark.parametrize(
    ("model", "schedule", "change"),
    covering([*ALL_MODELS], [*SCHEDULES], [*CHANGES], strength=1, at_length=2),
)
def test_steps_have_eager_bits_whatever_changes_between_them(
    model, schedule, change, monkeypatch
):
    """They never wait for the device."""
    monkeypatch.delattr(device_streams.Stream, "synchronize")
    monkeypatch.delattr(device_streams.Stream, "done")
    same, reports = compare(model, schedule, CHANGES[change])
    assert all(same)
    for report in reports:
        lines = [line for line in report.splitlines() if line.startswith("step: ")]
        assert lines and all(line.endswith("as graphs") for line in lines)


@pytest.mark.slow
@pytest.mark.parametrize("form", ["uneven", "longer"])
@pytest.mark.parametrize("schedule", ["gpipe", "zb-h1"])
def test_microbatches_of_several_forms_have_graphs_of_their_own(schedule, form):
    same, reports = compare("powers", schedule, grown, form)
    assert all(same)
    assert all("as graphs" in report for report in reports)


def test_a_program_that_stays_after_a_parameter_was_replaced_is_wrong(monkeypatch):
    monkeypatch.setattr(program.CompiledRow, "holds", lambda *_: True)
    same, _ = compare("mlp", "gpipe", replaced)
    assert not all(same)


@pytest.mark.parametrize("start", [0, 1, 5])
def test_what_stands_in_for_an_argument_has_its_layout_and_alignment(start):
    memory = device.asarray(np.arange(40, dtype="f4"))
    array = memory[start : start + 12].reshape(3, 4).transpose(1, 0)
    made = graphs._copied(array)
    assert (made.shape, made.dtype, made.strides) == ((4, 3), "f4", array.strides)
    assert made.data.ptr - made.base.data.ptr == array.data.ptr % 256
    assert made.get().tolist() == array.get().tolist()

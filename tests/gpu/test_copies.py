"""Batches are copied to a device while it computes, microbatch by microbatch, and no number
is another one.
"""

from functools import partial

import numpy as np
import pytest

from minipipe import Microbatches, Pipeline, data, nn, optim, schedules, spawn
from minipipe.core.autograd import host
from minipipe.execution.samples import Samples
from minipipe.pipeline import copies
from minipipe.pipeline.copies import Copies
from tests.compile import device, device_streams
from tests.compile.device_streams import Graph, Race, Stream
from tests.launch import covering

WIDTH, CLASSES = 6, 5


@pytest.fixture(autouse=True)
def _fresh_streams(monkeypatch):
    monkeypatch.setattr(copies, "LEAST", 0)
    yield
    device_streams._of_thread.__dict__.clear()


class Both(nn.Module):
    """A layer of two arrays."""

    is_compilable = True

    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(WIDTH, WIDTH)

    def forward(self, given):
        return self.layer(given["a"]) * given["b"]


def numbers(*shape, dtype="f4"):
    return np.random.default_rng(0).normal(size=shape).astype(dtype)


def mlp(first=None, last=WIDTH):
    first = first or nn.Linear(WIDTH, WIDTH)
    return nn.Sequential(
        first, nn.Tanh(), nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, last)
    )


def plain(dtype="f4"):
    return mlp(), nn.MSELoss(), numbers(8, WIDTH, dtype=dtype), numbers(8, WIDTH)


def labelled(**options):
    labels = np.arange(8) % CLASSES
    loss = nn.CrossEntropyLoss(**options)
    return mlp(last=CLASSES), loss, numbers(8, WIDTH), labels


def tree():
    given = {"a": numbers(8, WIDTH), "b": numbers(8, WIDTH)}
    return mlp(Both()), nn.MSELoss(), given, numbers(8, WIDTH)


def ragged():
    x = Microbatches([numbers(n, WIDTH) for n in (3, 1, 2, 2)])
    return mlp(), nn.MSELoss(), x, Microbatches([x * 0.5 for x in x.parts])


def turned():
    """A batch whose samples are not side by side."""
    return mlp(), nn.MSELoss(), numbers(WIDTH, 8).T, numbers(16, WIDTH)[::2]


CASES = {
    "plain": plain,
    "float64": partial(plain, "f8"),
    "labels": labelled,
    "labels that are ignored": partial(labelled, ignore_index=1),
    "a pytree": tree,
    "microbatches": ragged,
    "turned": turned,
}
SCHEDULES = {
    "gpipe on one rank": (schedules.gpipe, 1, 4),
    "one microbatch": (schedules.gpipe, 1, 1),
    "1f1b": (schedules.one_f_one_b, 2, 4),
    "zb-h1": (lambda p, m: schedules.build("zb-h1", p, m), 2, 4),
    "replicas": (lambda p, m: schedules.data_parallel(schedules.gpipe(p, m), 2), 1, 2),
}


def refill(given, factor):
    """Change the arrays of a batch, as a loader does that fills them again."""
    for array in given.values() if isinstance(given, dict) else [given]:
        if isinstance(array, np.ndarray) and array.dtype.kind == "f":
            array *= factor


def trained(group, case, schedule, how, xp):
    """Return the bits of some steps, whose batches are in the same arrays."""
    model, loss, x, y = case()
    build, size, m = SCHEDULES[schedule]
    options = {"schedule": build(size, m), "device": xp, "compile": how}
    pipeline = Pipeline(model, group, loss=loss, **options)
    optimiser = optim.SGD(list(pipeline.parameters()), 0.1)
    found = []
    for _ in range(5):
        found.append(float(pipeline.step(x, y)))
        refill(x, 1.25)
        refill(y, 0.75)
        optimiser.step()
    found.append(float(pipeline.evaluate(x, y)))
    outputs = pipeline.predict(x)
    if isinstance(outputs, np.ndarray):
        found.append(outputs.tobytes())
    return found + [values.tobytes() for values in pipeline.state_dict().values()]


def again(given):
    """Return a copy of inputs or targets, with the strides that they have."""
    if isinstance(given, dict):
        return {name: array.copy("K") for name, array in given.items()}
    return given if isinstance(given, Microbatches) else given.copy("K")


def run(case, schedule, how, xp=device):
    _, _, *batch = case()
    _, size, _ = SCHEDULES[schedule]

    def of_rank(group):
        model, loss, *_ = case()
        given = model, loss, *map(again, batch)
        return trained(group, lambda: given, schedule, how, xp)

    num_ranks = 2 if schedule == "replicas" else size
    return spawn(of_rank, num_ranks, take_turns=True)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("case", "schedule", "how"), covering([*CASES], [*SCHEDULES], [True, False])
)
def test_copied_batches_have_the_bits_of_whole_ones(case, schedule, how, monkeypatch):
    if case == "microbatches" and schedule == "one microbatch":
        schedule = "gpipe on one rank"
    monkeypatch.delattr(Stream, "synchronize")
    arriving = run(CASES[case], schedule, how)
    monkeypatch.setattr(copies, "LEAST", 10**9)
    assert arriving == run(CASES[case], schedule, how)


def test_large_shares_of_a_batch_are_read_as_before():
    x = numbers(8, WIDTH)

    def step(group, share):
        options = {"loss": nn.MSELoss(), "replicas": 2, "num_microbatches": 2}
        pipeline = Pipeline(mlp(), group, **options, device=device)
        own = slice(4 * group.rank, 4 * group.rank + 4)
        given = data.Share(x[own], own, 8) if share else x
        return float(pipeline.step(given, given))

    results = [
        spawn(lambda group, s=share: step(group, s), 2) for share in (True, False)
    ]
    assert results[0] == results[1]


def test_arrays_of_the_device_are_not_copied_to_the_host(monkeypatch):
    monkeypatch.delattr(device.Array, "get")
    x = device.asarray(numbers(8, WIDTH))
    parts = Copies(device).samples(x, "inputs", np.float32, device, False)
    assert parts.parts[0].arrays[0] is x


@pytest.mark.parametrize("dtype", ["f4", "i8"])
def test_the_host_knows_the_values_of_what_arrives(dtype):
    x = np.arange(48).reshape(8, WIDTH).astype(dtype)
    parts = Copies(device).samples(x, "inputs", np.float32, device, False).cut((4, 4))
    (array,) = parts[1].arrays
    assert host.known(array).tolist() == x[4:].tolist() == array.get().tolist()
    assert array.dtype == dtype


def test_the_host_does_not_take_values_of_another_dtype_for_those_that_arrive():
    x = numbers(8, WIDTH, dtype="f8")
    parts = Copies(device).samples(x, "inputs", np.float32, device, False).cut((4, 4))
    (array,) = parts[1].arrays
    assert host.known(array) is array
    assert array.get().tolist() == x[4:].astype("f4").tolist()


# -- they overlap ----------------------------------------------------------------------


@pytest.mark.parametrize("schedule", ["gpipe", "1f1b"])
def test_a_microbatch_is_copied_when_the_one_before_has_been_launched(
    schedule, monkeypatch
):
    log = []

    def noting(owner, name, letter):
        function = getattr(owner, name)

        def call(*given, **options):
            log.append(letter)
            return function(*given, **options)

        monkeypatch.setattr(owner, name, call)

    noting(Stream, "copy", "c")
    noting(Graph, "launch", "L")

    def work(group):
        table = {"gpipe": schedules.gpipe, "1f1b": schedules.one_f_one_b}[schedule](
            1, 4
        )
        pipeline = Pipeline(
            mlp(), group, loss=nn.MSELoss(), schedule=table, device=device, compile=True
        )
        x = numbers(8, WIDTH)
        for _ in range(5):
            log.clear()
            pipeline.step(x, x)
        return "".join(log)

    ((found),) = spawn(work, 1)
    assert found == {"gpipe": "ccL" * 4 + "L" * 4, "1f1b": "ccLL" * 4}[schedule]


def test_a_copy_waits_for_no_computation_of_its_batch(monkeypatch):
    waits, wait = [], Stream.wait_event

    def noted(stream, event):
        waits.append(stream)
        wait(stream, event)

    monkeypatch.setattr(Stream, "wait_event", noted)
    own = Copies(device)
    x = numbers(8, WIDTH)
    parts = own.samples(x, "inputs", np.float32, device, False).cut((2, 3, 3))
    for k in (0, 1, 2, 1):
        (array,) = parts[k].arrays
        array + array
    assert [stream is own.stream for stream in waits] == [True] + [False] * 4


# -- what would be wrong ---------------------------------------------------------------


def without(monkeypatch, stream_is):
    """Leave out the waits of some streams."""
    wait = Stream.wait_event

    def some(stream, event):
        if not stream_is(stream):
            wait(stream, event)

    monkeypatch.setattr(Stream, "wait_event", some)


@pytest.mark.parametrize("how", [True, False])
def test_a_computation_that_does_not_wait_for_its_copy_is_a_race(how, monkeypatch):
    monkeypatch.setattr(Copies, "current", device_streams.Stream())
    with pytest.raises(Race, match="does not wait for a copy"):
        run(plain, "gpipe on one rank", how)


def test_a_copy_that_does_not_wait_for_the_use_of_its_memory_before_is_a_race(
    monkeypatch,
):
    own = Copies(device)
    x = numbers(8, WIDTH)

    def arrive():
        parts = own.samples(x, "inputs", np.float32, device, False).cut((4, 4))
        for k in (0, 1):
            (array,) = parts[k].arrays
            array + array

    for _ in range(3):
        arrive()
    without(monkeypatch, lambda stream: stream is own.stream)
    with pytest.raises(Race, match="A copy does not wait"):
        for _ in range(3):
            arrive()


@pytest.mark.parametrize("waits", [True, False])
def test_pinned_memory_is_used_again_after_its_copy(waits, monkeypatch):
    if not waits:
        monkeypatch.setattr(device_streams.Event, "synchronize", lambda event: None)
    own = Copies(device)
    x = numbers(40, WIDTH)
    parts = own.samples(x, "inputs", np.float32, device, False).cut((2,) * 20)
    events = [own.copy(x[rows], parts.whole.arrays[0][rows]) for rows in parts.rows]
    assert len(own._buffers) == copies._NUM_BUFFERS
    own.current.wait_event(events[-1])
    same = (parts.whole.arrays[0].get() == x).all()
    assert same == waits


def test_the_arrays_of_the_caller_may_change_after_a_copy_has_begun():
    own = Copies(device)
    x = numbers(8, WIDTH)
    expected = x[:4].tolist()
    parts = own.samples(x, "inputs", np.float32, device, False).cut((4, 4))
    event = own.copy(x[:4], parts.whole.arrays[0][:4])
    x[...] = 0
    own.current.wait_event(event)
    assert parts.whole.arrays[0][:4].get().tolist() == expected


def test_small_batches_are_copied_at_once(monkeypatch):
    monkeypatch.setattr(copies, "LEAST", 1000)
    own = Copies(device)
    for rows, kind in ((4, Samples), (50, copies._Coming)):
        found = own.samples(numbers(rows, WIDTH), "inputs", np.float32, device, False)
        assert type(found) is kind

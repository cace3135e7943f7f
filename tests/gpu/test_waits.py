"""The host waits for a device a few times per step, whatever a step computes."""

from functools import partial
from time import perf_counter

import array_api_strict
import numpy as np
import pytest

from minipipe import (
    Microbatches,
    Pipeline,
    Replicated,
    functional,
    nn,
    optim,
    spawn,
)
from minipipe.core.autograd import backend, host
from minipipe.core.autograd.clock import DeviceClock
from minipipe.core.objective import Objective
from minipipe.errors import ArgumentError, TensorError
from minipipe.execution.samples import samples
from tests.compile import device
from tests.gpu.emulated import installed, needs_compiler
from tests.gpu.waits import counted

WIDTH, CLASSES, LENGTH = 8, 7, 4


def mlp():
    """Return a model, a loss and a batch of numbers."""
    linear = partial(nn.Linear, WIDTH, WIDTH)
    layers = linear(), nn.ReLU(), linear(), nn.GELU(), linear()
    random = np.random.default_rng(0)
    batch = [random.normal(size=(16, WIDTH)).astype(np.float32) for _ in "xy"]
    return nn.Sequential(*layers), nn.MSELoss(), *batch


def transformer(**options):
    """Return a language model with the positions of its table frozen, and tokens.

    The gradient of a table has its own tests.
    """
    table = nn.Embedding(CLASSES, WIDTH)
    table.freeze()
    block = partial(nn.TransformerBlock, WIDTH, 2, is_causal=True)
    layers = table, block(), block(), nn.LayerNorm(WIDTH), nn.Linear(WIDTH, CLASSES)
    tokens = np.random.default_rng(0).integers(0, CLASSES, (16, LENGTH + 1))
    loss = nn.CrossEntropyLoss(**options)
    return nn.Sequential(*layers), loss, tokens[:, :-1].copy(), tokens[:, 1:].copy()


def trained():
    """Return the same with a table that is trained, and dropout."""
    model, loss, ids, labels = transformer()
    table, *others = model.layers
    table = nn.Embedding(CLASSES, WIDTH)
    return nn.Sequential(table, nn.Dropout(0.1), *others), loss, ids, labels


def padded():
    """Return the same, with some labels that are ignored."""
    model, loss, ids, labels = transformer(ignore_index=-100)
    labels[::3, 1:] = -100
    return model, loss, ids, labels


def weighted():
    """Return an MLP whose targets have a mask."""
    model, loss, x, y = mlp()
    return model, loss, x, (y, (y > 0).astype(np.float32))


MODELS = {
    "mlp": mlp,
    "transformer": transformer,
    "padded": padded,
    "weighted": weighted,
}
MOST = 3  # the losses, the check of the gradients, their norm


def counts_of_steps(model, schedule, num_microbatches, how, num_ranks=1):
    """Return what each rank finds: losses, the counts of two steps after those that are
    recorded, and the timeline of the last one.
    """

    def train(group):
        layers, loss, x, y = MODELS.get(model, model)()
        options = {"schedule": schedule, "num_microbatches": num_microbatches}
        options |= {"device": device, "compile": how}
        pipeline = Pipeline(layers, group, loss=loss, **options)
        optimiser = optim.AdamW(pipeline.parameters(), 0.01)
        losses, found = [], []
        for _ in range(5):
            before = counts.copy()
            losses.append(float(pipeline.step(x, y)))
            group.barrier()
            pipeline.clip_grad_norm(0.5)
            optimiser.step()
            found.append(counts - before)
        return losses, found[3:], pipeline.timeline()

    with counted() as counts:
        return spawn(train, num_ranks=num_ranks, take_turns=True)


@pytest.mark.slow
@pytest.mark.parametrize("how", [False, True], ids=["eager", "compiled"])
@pytest.mark.parametrize("schedule", ["1f1b", "zb-h1"])
@pytest.mark.parametrize("model", MODELS)
def test_a_step_reads_as_often_whatever_the_number_of_microbatches(
    model, schedule, how
):
    of_two, of_four = (
        counts_of_steps(model, schedule, count, how)[0][1] for count in (2, 4)
    )
    for few, many in zip(of_two, of_four, strict=True):
        assert few["read"] == many["read"] <= MOST
        assert few["wait"] == many["wait"] == 0
        assert many["event"] == 2 * few["event"] > 0


@pytest.mark.slow
@needs_compiler
@pytest.mark.parametrize("how", [False, True], ids=["eager", "compiled"])
@pytest.mark.parametrize("model", [trained, padded])
def test_kernels_wait_for_nothing_either(model, how):
    with installed():
        found = [counts_of_steps(model, "1f1b", n, how)[0][1] for n in (2, 4)]
    for few, many in zip(*found, strict=True):
        assert few["read"] == many["read"] <= MOST


@pytest.mark.parametrize("how", [False, True], ids=["eager", "compiled"])
def test_ranks_wait_for_their_messages_as_well(how):
    """Each is copied to the host before it is sent."""
    num_ranks, num_microbatches = 2, 4
    found = counts_of_steps("mlp", "1f1b", num_microbatches, how, num_ranks)
    # as threads they count together, and each is a little ahead or behind
    messages = 2 * (num_ranks - 1) * num_microbatches
    for _, steps, _ in found:
        assert all(counts["read"] <= messages + 2 * MOST for counts in steps)


def test_the_counts_notice_each_way_to_wait():
    x = device.asarray(np.arange(3.0))
    ways = {
        "a number": lambda: float(x.sum()),
        "a truth value": lambda: bool(device.all(x == x)),
        "a copy": lambda: x.get(),
        "a mask": lambda: x[x > 1],
        "a shape by values": lambda: device.flatnonzero(x),
    }
    for way, wait in ways.items():
        with counted() as counts:
            wait()
            assert counts["read"] == 1, way


def test_losses_and_bits_are_those_of_a_host_that_reads_at_once(monkeypatch):
    found = counts_of_steps("padded", "1f1b", 4, True)[0][0]

    def note(self, microbatch, loss):
        number = loss if isinstance(loss, float) else backend.to_numpy(loss).item()
        return noted(self, microbatch, number)

    noted = Objective.note
    monkeypatch.setattr(Objective, "note", note)
    assert counts_of_steps("padded", "1f1b", 4, False)[0][0] == found


# -- times -----------------------------------------------------------------------------


@pytest.mark.parametrize("how", [False, True], ids=["eager", "compiled"])
def test_a_timeline_reads_events_when_it_is_asked_for(how):
    _, _, timeline = counts_of_steps("mlp", "zb-h1", 4, how)[0]
    (row,) = timeline.spans
    assert len(row) == 3 * 4
    assert all(0 <= span.start <= span.end for span in row)
    assert all(a.end <= b.start + 1e-4 for a, b in zip(row, row[1:]))
    assert 0 < timeline.makespan < 60


def test_times_of_a_device_are_seconds_of_the_clock_of_the_host():
    with counted() as counts:
        clock = DeviceClock(device)
        before, noted, after = perf_counter(), clock(), perf_counter()
        assert counts["wait"] == 0
        assert before - 1e-3 <= float(noted) <= after + 1e-3
        assert counts["wait"] == 2  # for the time, and for one on both clocks
        assert float(noted) == pytest.approx(float(noted), abs=1e-6)
        assert counts["wait"] == 4  # not for another one on both clocks


def test_the_clock_of_a_module_without_events_is_that_of_the_host():
    assert backend.clock_of(np) is perf_counter
    assert backend.clock_of(array_api_strict) is perf_counter


# -- values that the host knows --------------------------------------------------------


def test_a_source_is_forgotten_with_its_array_and_is_no_other_arrays():
    source = np.arange(3)
    array = device.asarray(source)
    other = device.asarray(source)
    host.note_source(array, source)
    number = id(array)
    assert host.known(array) is source and host.known(other) is other
    del array
    assert number not in host._SOURCES
    assert host.known(source) is source


def test_numbers_are_read_together():
    arrays = [device.asarray(x) for x in (1.5, [2.5], [[np.nan]])]
    with counted() as counts:
        found = host.numbers(arrays)
        assert counts["read"] == 1
    assert found[:2] == [1.5, 2.5] and np.isnan(found[2])
    assert host.numbers([]) == []
    assert host.numbers([np.float32(0.1), np.asarray([3])]) == [
        float(np.float32(0.1)),
        3,
    ]


def step_of(model, change, schedule="1f1b"):
    """Run a step of two microbatches with a changed batch; return the error."""

    def train(group):
        layers, loss, x, y = MODELS[model]()
        options = {"schedule": schedule, "num_microbatches": 4, "device": device}
        pipeline = Pipeline(layers, group, loss=loss, **options)
        with pytest.raises((TensorError, ArgumentError)) as caught:
            pipeline.step(*change(x, y))
        return str(caught.value), "".join(getattr(caught.value, "__notes__", ()))

    return spawn(train, num_ranks=1)[0]


def one_wrong(array, row, value):
    """Return a copy of an array with one other value."""
    array = array.copy()
    array[row, 0] = value
    return array


CHANGES = {
    "an id": (
        *("transformer", lambda x, y: (one_wrong(x, 13, 9), y)),
        *("ids run from 0 to 9; expected 0 to 6", "microbatch 3"),
    ),
    "a label": (
        *("transformer", lambda x, y: (x, one_wrong(y, 5, -1))),
        *("labels run from -1 to 6; expected 0 to 6", "microbatch 1"),
    ),
    "a label among ignored ones": (
        *("padded", lambda x, y: (x, one_wrong(y, 9, 8))),
        *("to 8; expected 0 to 6", "microbatch 2"),
    ),
    "a weight": (
        *("weighted", lambda x, y: (x, (y[0], one_wrong(y[1], 15, -0.5)))),
        *("Weights of a loss are at least 0", ""),
    ),
}


@pytest.mark.parametrize("wrong", CHANGES)
def test_a_wrong_value_of_one_microbatch_is_named(wrong):
    model, change, message, place = CHANGES[wrong]
    error, notes = step_of(model, change)
    assert message in error and place in notes


def test_replicated_arrays_and_microbatches_of_a_device_keep_their_values():
    """What is known of a microbatch is its own part, whatever the batch looks like."""
    ids = np.arange(12).reshape(6, 2)
    whole = samples({"ids": ids, "all": Replicated(np.arange(3))}, "inputs", xp=device)
    for parts in (
        whole.cut((4, 2)),
        samples(Microbatches([ids]), "x", xp=device).parts,
    ):
        for part in parts:
            for array in part.arrays:
                known = host.known(array)
                assert isinstance(known, np.ndarray)
                assert known.tolist() == array.get().tolist()


def test_an_array_of_another_dtype_than_its_source_is_not_known():
    whole = samples(np.ones((2, 2)), "inputs", dtype=np.float32, xp=device).parts[0]
    assert host.known(whole.arrays[0]) is whole.arrays[0]


def test_muon_waits_for_no_norm():
    layers = nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, WIDTH))
    layers.initialise(0)
    found = []
    for xp in (np, device, array_api_strict):
        layers.initialise(0)
        layers.to(xp)
        optimiser = optim.Muon(layers.parameters(), 0.1)
        for parameter in layers.parameters():
            gradient = np.arange(parameter.size, dtype=np.float32) / 7
            parameter.grad = backend.moved(gradient.reshape(parameter.shape), xp)
        with counted() as counts:
            optimiser.step()
            assert counts["read"] == 0
        found.append([np.array(backend.to_numpy(p.data)) for p in layers.parameters()])
    for others in found[1:]:
        for values, expected in zip(others, found[0], strict=True):
            np.testing.assert_allclose(values, expected, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("wrong", [False, True])
def test_a_mask_of_a_batch_is_checked_on_the_host(wrong):
    x = device.asarray(np.ones((1, 4, 8), np.float32))
    source = np.array([[1, 1, 2 if wrong else 0, 1]])
    mask = device.asarray(source)
    host.note_source(mask, source)
    with counted() as counts:
        try:
            functional.attention(x, x, x, mask=mask)
        except TensorError as error:
            assert wrong and "numbers other than 0 and 1" in str(error)
        else:
            assert not wrong
        assert counts["read"] == 0


def test_master_values_are_compared_on_the_device():
    """All are made anew if one value was changed by hand, as in NumPy."""
    found = []
    for module in (np, device):
        layer = nn.Linear(3, 8, dtype=np.float16)
        layer.initialise(0)
        layer.to(module)
        optimiser = optim.SGD(layer.parameters(), 1e-4)
        with counted() as counts:
            for step in range(40):
                for parameter in layer.parameters():
                    gradient = np.full(parameter.shape, 0.37, np.float16)
                    parameter.grad = backend.moved(gradient, module)
                if step % 4 == 2:
                    layer.weight.data[0, 0] = 0.25
                optimiser.step()
            assert counts["read"] == 0
        found.append([backend.to_numpy(p.data).tobytes() for p in layer.parameters()])
    assert found[0] == found[1]

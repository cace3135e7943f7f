"""Tests of 17_pipeline_step, on thread ranks."""

import numpy as np

from minipipe import functional, nn, spawn
from minipipe.coursework import (
    expect_bits,
    expect_close,
    expect_equal,
    expect_that,
    remote,
)
from minipipe.errors import MessageError


class Recorded:
    """The interface of a rank: its number, the size of the group, send and recv.

    Records the destinations of sends, and counts activations sent whose gradient has
    not come back. With blocking sends, each send waits for an acknowledgement that the
    receiver sends from its recv.
    """

    def __init__(self, group, sends_block):
        self.rank, self.size = group.rank, group.size
        self.destinations = set()
        self.in_flight = self.peak = 0
        self._group, self._sends_block = group, sends_block

    def send(self, array, destination):
        self.destinations.add(destination)
        if destination > self.rank:
            self.in_flight += 1
            self.peak = max(self.peak, self.in_flight)
        self._group.send(np.asarray(array), destination, tag=0)
        if self._sends_block:
            self._group.irecv(
                destination, tag=1, what="its send to be received: the acknowledgement"
            ).wait()

    def recv(self, source):
        array = self._group.recv(source, tag=0)
        self.in_flight -= source > self.rank
        if self._sends_block:
            self._group.send(np.zeros(0), source, tag=1)
        return array


def make_layers(num_layers):
    """Return equal layers on each rank: linear, and tanh."""
    return [
        nn.Sequential(nn.Linear(3, 3), nn.Tanh()).initialise(seed)
        for seed in range(num_layers)
    ]


def batch_of(num_microbatches, seed):
    generator = np.random.default_rng(seed)
    return generator.standard_normal((2, 2 * num_microbatches, 3), dtype=np.float32)


def gradients_of(layers, indices):
    return [
        [parameter.grad for _, parameter in layers[index].named_parameters()]
        for index in indices
    ]


@remote
def stepped(task, num_ranks, num_layers, num_microbatches, sends_block, num_steps):
    """Run steps with one thread per rank.

    Return, by rank: the loss, the indices of its layers, their gradients, whether other
    layers have one, the destinations of its sends, and the peak of its activations in
    flight.
    """

    def on_a_rank(group):
        recorded = Recorded(group, sends_block)
        layers = make_layers(num_layers)
        pipeline = task.make_pipeline(
            recorded, layers, functional.mean_squared_error, num_microbatches
        )
        for seed in range(num_steps):
            for layer in layers:
                layer.zero_grad()
            inputs, targets = batch_of(num_microbatches, seed)
            result = task.run_step(
                pipeline,
                inputs if group.rank == 0 else None,
                targets if group.rank == group.size - 1 else None,
            )
        indices = [int(index) for index in task.local_layers(pipeline)]
        others = [index for index in range(num_layers) if index not in indices]
        has_more = any(
            gradient is not None
            for layer in gradients_of(layers, others)
            for gradient in layer
        )
        destinations = sorted(recorded.destinations)
        own = gradients_of(layers, indices)
        return result, indices, own, has_more, destinations, recorded.peak

    try:
        return spawn(on_a_rank, num_ranks, timeout=20)
    except MessageError as error:
        kind = "blocking" if sends_block else "buffered"
        expect_that(
            False,
            f"{num_ranks} ranks with {kind} sends",
            "every rank to finish",
            f"a deadlock: {error}",
        )


def results_of(task, num_ranks, num_layers, count, sends_block=False, num_steps=1):
    """Return what each rank has found: as many as there are ranks, six values each."""
    results = stepped(task, num_ranks, num_layers, count, sends_block, num_steps)
    expect_equal([*map(len, results)], [6] * num_ranks, "results by rank")
    return results


def expected_of(num_layers, num_microbatches, seed=0):
    """Return the loss and the gradients of one process, microbatch by microbatch."""
    layers = make_layers(num_layers)
    model = nn.Sequential(*layers)
    inputs, targets = (
        np.split(array, num_microbatches) for array in batch_of(num_microbatches, seed)
    )
    total = 0.0
    for x, y in zip(inputs, targets, strict=True):
        loss = functional.mean_squared_error(model(x), y) * (1 / num_microbatches)
        loss.backward()
        total += loss.item()
    return total, gradients_of(layers, range(num_layers))


def check(task, num_ranks, num_layers, count, sends_block=False, num_steps=1):
    """Compare layers, loss and gradients with one process; bits, if the number of
    microbatches is a power of two, by which every division is exact.
    """
    case = f"{num_ranks} ranks, {num_layers} layers, {count} microbatches"
    results = results_of(task, num_ranks, num_layers, count, sends_block, num_steps)
    indices = [index for result in results for index in result[1]]
    expect_equal(indices, [*range(num_layers)], f"layers by rank: {case}")
    loss, expected = expected_of(num_layers, count, num_steps - 1)
    last = float("nan") if results[-1][0] is None else results[-1][0]
    expect_close(last, loss, f"loss on the last rank: {case}", tolerance=1e-6)
    expect_equal(
        [result[0] for result in results[:-1]],
        [None] * (num_ranks - 1),
        f"losses on other ranks: {case}",
    )
    actual = [gradients for result in results for gradients in result[2]]
    for index in range(num_layers):
        expect_equal(len(actual[index]), 2, f"gradients of layer {index}: {case}")
        for gradient, other in zip(actual[index], expected[index], strict=True):
            what = f"gradient of layer {index}: {case}"
            if count & (count - 1) == 0:
                expect_bits(gradient, other, what)
            else:
                expect_close(gradient, other, what, tolerance=1e-6)


def test_one_rank_alone(task):
    """On one rank a step is a loop over microbatches.

    Hint: the loss of the batch is the mean over microbatches, so each counts 1/m.
    """
    check(task, 1, 2, 4)


def test_two_ranks_have_the_gradients_of_one_process(task):
    """Four layers on two ranks: the loss and the bits of one process.

    Hint: a rank needs the gradient of its inputs: Tensor(array, requires_grad=True).
    """
    check(task, 2, 4, 4)


def test_layers_are_divided_evenly(task):
    """Eight layers on three ranks: 2 or 3 layers each, and no rank trains others."""
    results = results_of(task, 3, 8, 2)
    expect_equal(sorted(len(result[1]) for result in results), [2, 3, 3], "layers")
    expect_equal(
        [result[3] for result in results],
        [False] * 3,
        "whether other layers have gradients, by rank",
    )


def test_microbatches_in_flight_are_those_of_1f1b(task):
    """Rank r of p sends p - r activations before it waits for the first gradient.

    Hint: with more, it is GPipe; with fewer, ranks wait for each other.
    """
    results = results_of(task, 4, 4, 8)
    expect_equal([result[5] for result in results], [4, 3, 2, 0], "peak by rank")


def test_nobody_waits_for_ever_although_sends_block(task):
    """Three ranks finish a step although each send blocks.

    Hint: before a rank sends a gradient back, the rank before it sends an activation.
    """
    check(task, 3, 3, 4, sends_block=True)


# HIDDEN
def test_four_and_five_ranks_have_the_gradients_of_one_process(task):
    """The same for more ranks, layers and microbatches."""
    check(task, 4, 9, 8)
    check(task, 5, 5, 6)


def test_fewer_microbatches_than_ranks(task):
    """With one or two microbatches, the pipeline is never full.

    Hint: there are min(p - 1 - r, m) forwards in the warm-up.
    """
    check(task, 4, 4, 1)
    check(task, 4, 4, 2, sends_block=True)
    results = results_of(task, 4, 4, 2)
    expect_equal([result[5] for result in results], [2, 2, 2, 0], "peak by rank")


def test_more_ranks_with_blocking_sends(task):
    """Two, four and five ranks finish as well."""
    for num_ranks in (2, 4, 5):
        check(task, num_ranks, num_ranks, 8, sends_block=True)


def test_a_second_step_is_like_the_first(task):
    """Nothing of the first step is left when the second one begins."""
    check(task, 3, 4, 4, num_steps=2)


def test_messages_go_to_neighbours_only(task):
    """Activations go to the next rank, gradients to the one before."""
    results = results_of(task, 4, 4, 4)
    expect_equal(
        [result[4] for result in results],
        [[1], [0, 2], [1, 3], [2]],
        "ranks that each rank sends to",
    )


WRONG_ANSWERS = [
    (
        "all forwards first, which is GPipe: right gradients, and all microbatches held",
        "warmup = min(self.group.size - 1 - self.group.rank, self.count)",
        "warmup = self.count",
    ),
    (
        "one forward more in the warm-up, as some papers count: one microbatch more held",
        "self.group.size - 1 - self.group.rank",
        "self.group.size - self.group.rank",
    ),
    (
        "one microbatch at a time: right and deadlock-free, but no rank works in parallel",
        "warmup = min(self.group.size - 1 - self.group.rank, self.count)",
        "warmup = 0",
    ),
    (
        "receives come just before use, as in a textbook: hangs as soon as sends block",
        "            self.receive()  # the previous",
        "            pass  # the previous",
    ),
    (
        "the mean of each microbatch, not of the batch: gradients are m times too large",
        " * (1 / self.count)",
        "",
    ),
    (
        "the rest of the layers goes to the last rank, which all others then wait for",
        "        end = len(layers) * (group.rank + 1) // group.size\n",
        "        each = len(layers) // group.size\n"
        "        first, end = each * group.rank, each * (group.rank + 1)\n"
        "        end = len(layers) if group.rank == group.size - 1 else end\n",
    ),
]

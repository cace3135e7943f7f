"""Scenes: programs of their own that go wrong, where a deed in the training of
``training.py`` would not say it.

Each is called with the group and the rank of the culprit (of no meaning where all ranks
do the same).
"""

import itertools
import random
import sys
import time
from contextlib import suppress

import numpy as np

from minipipe import Grid, Pipeline, Schedule, nn, optim, schedules
from minipipe.comm.persistent import PersistentSend
from minipipe.execution.sums import GradientSums
from minipipe.functional import parallel
from minipipe.parallel.repeated import RepeatedAllReduce
from tests.faults import deeds
from tests.faults.deeds import stamp
from tests.faults.training import NUM_MICROBATCHES, train

# -- a rank leaves, or seems to --------------------------------------------------------


def exits_in_a_collective(group, culprit):
    if group.rank == culprit:
        deeds.exits(group, None)
    group.all_reduce(np.zeros(3))


def catches_an_exit_and_goes_on(group, culprit):
    try:
        deeds.exits(group, None)
    except SystemExit:
        group.barrier()


def exits_with_zero_at_the_end(group, culprit):
    group.barrier()
    stamp()
    print("ended well", flush=True)
    sys.exit(0)


def works_on_alone_after_the_others(group, culprit):
    """For longer than the ten timeouts after which such a rank was ended once."""
    stamp()
    if group.rank == culprit:
        time.sleep(11 * group.timeout)


def leaves_a_large_send_behind(group, culprit):
    """The last send of a group that nobody keeps: its bytes must stay until they are
    taken.
    """
    receiver = (culprit + 1) % group.size
    if group.rank == culprit:
        stamp()
        group.isend(np.full(1 << 20, 7.0), receiver)
    if group.rank == receiver:
        time.sleep(0.5)
        assert (group.recv(culprit) == 7.0).all()


# -- messages --------------------------------------------------------------------------


def stops_in_the_middle_of_a_large_array(group, culprit):
    """Where ranks cannot read each other's memory, the bytes move only while the sender
    helps.
    """
    receiver = (culprit + 1) % group.size
    if group.rank == culprit:
        group.isend(np.zeros(64 << 20, np.uint8), receiver, tag=1)
        deeds.stops(group, None)
    if group.rank == receiver:
        time.sleep(0.3)
        group.recv(culprit, tag=1)
    group.barrier()


def stops_in_a_subgroup(group, culprit):
    """A rank is called by its number in the world, whatever its number is in a group
    that was split off.
    """
    half = group.split(group.rank // 2)
    if group.rank == culprit:
        deeds.stops(group, None)
    half.barrier()


def sends_a_large_array_that_nobody_takes(group, culprit):
    sender = (culprit + 1) % group.size
    if group.rank == sender:
        group.send(np.zeros(1 << 20), culprit)
    if group.rank == culprit:
        deeds.sleeps(group, None)
    group.barrier()


def sends_another_tag(group, culprit):
    """Both wait for a message of the other; only that of the culprit was sent, with
    another tag.
    """
    receiver = (culprit + 1) % group.size
    if group.rank == culprit:
        stamp(receiver)
        group.isend(np.zeros(3), receiver, tag=5)
        group.recv(receiver, tag=9)
    elif group.rank == receiver:
        group.recv(culprit, tag=6)
        group.isend(np.zeros(3), culprit, tag=9)


def sends_another_dtype(group, culprit):
    _sends(group, culprit, np.zeros(3), np.zeros(3, np.float32))


def sends_another_shape(group, culprit):
    _sends(group, culprit, np.zeros(3), np.zeros(4))


def sends_another_dtype_in_a_subgroup(group, culprit):
    half = group.split(group.rank // 2)
    if group.rank == culprit:
        stamp(culprit ^ 1)
        half.isend(np.zeros(3), 1 - half.rank)
    elif group.rank == culprit ^ 1:
        half.recv(1 - half.rank, out=np.zeros(3, np.float32))
    group.barrier()


def _sends(group, culprit, array, expected):
    receiver = (culprit + 1) % group.size
    if group.rank == culprit:
        stamp(receiver)
        group.isend(array, receiver)
    if group.rank == receiver:
        group.recv(culprit, out=expected)
    group.barrier()


# -- ranks run different programs ------------------------------------------------------


def _train(
    group,
    *,
    layer=None,
    batch=1.0,
    rate=0.1,
    kind=optim.SGD,
    initialise=None,
    mode="train",
    num_steps=2,
    **options,
):
    """Train some steps, each rank with what is given to it; a stage for each rank,
    Linear and Tanh.
    """
    layers = [layer for _ in range(4) for layer in (nn.Linear(4, 4), nn.Tanh())]
    model = nn.Sequential(*layers[:-1], layer or nn.Tanh())
    if initialise is not None:
        model.initialise(initialise)
    pipeline = Pipeline(
        model,
        group,
        loss=nn.MSELoss(),
        **{"num_microbatches": NUM_MICROBATCHES, **options},
    )
    optimiser = kind(pipeline.parameters(), learning_rate=rate)
    getattr(pipeline, mode)()
    for _ in range(num_steps):
        pipeline.step(
            np.full((16, 4), batch, np.float32), np.zeros((16, 4), np.float32)
        )
        optimiser.step()


def _differently(usual, others):
    """Return a scene in which the culprit trains with other options."""

    def scene(group, culprit):
        stamp()
        _train(group, **(others() if group.rank == culprit else usual()))

    return scene


class Scale(nn.Module):
    def __init__(self, factor):
        self.factor = factor

    def forward(self, x):
        return x * self.factor


differs_in_seed = _differently(dict, lambda: {"seed": 1})
differs_in_schedule = _differently(dict, lambda: {"schedule": "gpipe"})
differs_in_width = _differently(
    lambda: {"layer": nn.Linear(4, 4)}, lambda: {"layer": nn.Linear(4, 5)}
)
differs_in_first_values = _differently(
    lambda: {"initialise": 0}, lambda: {"initialise": 1}
)
differs_in_an_initialiser = _differently(
    lambda: {"layer": nn.Linear(4, 4)},
    lambda: {"layer": nn.Linear(4, 4, initialiser=nn.initialisers.normal(0.1))},
)
differs_in_epsilon = _differently(
    lambda: {"layer": nn.LayerNorm(4)}, lambda: {"layer": nn.LayerNorm(4, epsilon=0.1)}
)
differs_in_an_attribute = _differently(
    lambda: {"layer": Scale(1.0)}, lambda: {"layer": Scale(2.0)}
)
differs_in_batch = _differently(dict, lambda: {"batch": 2.0})
differs_in_learning_rate = _differently(dict, lambda: {"rate": 0.2})
differs_in_optimiser = _differently(dict, lambda: {"kind": optim.Adam})
differs_in_mode = _differently(dict, lambda: {"mode": "eval"})


def steps_unequally_often(group, culprit):
    """As if the culprit had skipped a step of the others."""
    stamp()
    pipeline = Pipeline(
        nn.Sequential(*[nn.Linear(4, 4) for _ in range(4)]), group, loss=nn.MSELoss()
    )
    if group.rank == culprit:
        pipeline._intake.calls.count += 1
    pipeline.step(np.ones((16, 4), np.float32), np.zeros((16, 4), np.float32))


# -- replicas: two of two stages -------------------------------------------------------

_REPLICAS = {"replicas": 2, "num_microbatches": NUM_MICROBATCHES // 2}
differs_in_replicas = _differently(lambda: _REPLICAS, dict)


def _in_a_sum(deed, owner=GradientSums, call="_contribute", num_steps=2, **options):
    """Return a scene in which a deed is done in the sum of gradients of the last step:
    where the culprit would send its parts, or calls another method.
    """

    def scene(group, culprit):
        go_on, due = getattr(owner, call), itertools.count(1)

        def reach(*given):
            if group.rank == culprit and next(due) == num_steps:
                deed(group, None)
            return go_on(*given)

        setattr(owner, call, reach)
        _train(group, num_steps=num_steps, **_REPLICAS, **options)

    return scene


def _loses_the_next_start(group, array):
    """Send nothing where a channel would send next."""
    start = PersistentSend.start

    def once(channel, step=0):
        PersistentSend.start = start
        stamp(channel._destination)

    PersistentSend.start = once


is_killed_in_a_sum = _in_a_sum(deeds.is_killed)
raises_in_a_sum = _in_a_sum(deeds.raises)
stops_in_a_sum = _in_a_sum(deeds.stops)
sleeps_in_a_sum = _in_a_sum(deeds.sleeps)
loses_a_part_of_a_sum = _in_a_sum(_loses_the_next_start)

# The sixth step is one like the last. A sum begins once and goes on twice in a step.
_COMPILED = {"num_steps": 6, "compile": True}
_BETWEEN = {"owner": RepeatedAllReduce, "call": "go_on", "num_steps": 11}
raises_in_a_compiled_sum = _in_a_sum(deeds.raises, **_COMPILED)
loses_a_part_of_a_compiled_sum = _in_a_sum(_loses_the_next_start, **_COMPILED)
is_killed_within_a_compiled_sum = _in_a_sum(deeds.is_killed, **_BETWEEN, compile=True)
stops_within_a_compiled_sum = _in_a_sum(deeds.stops, **_BETWEEN, compile=True)
sleeps_within_a_compiled_sum = _in_a_sum(deeds.sleeps, **_BETWEEN, compile=True)


# -- a grid of 2 x 2 x 2, fully sharded ------------------------------------------------


def _in_a_layer(deed):
    """Return a scene in which a deed is done where the culprit would send its part of a
    sum in a layer.
    """

    def scene(group, culprit):
        combined, calls = parallel.combined, itertools.count(1)

        def reach(*given):
            if group.rank == culprit and next(calls) == 6:
                deed(group, None)
            return combined(*given)

        parallel.combined = reach
        _train(
            Grid(group, pipeline=2, data=2, tensor=2, fully_sharded=True),
            num_microbatches=NUM_MICROBATCHES // 2,
        )

    return scene


is_killed_in_a_layer = _in_a_layer(deeds.is_killed)
raises_in_a_layer = _in_a_layer(deeds.raises)
exits_in_a_layer = _in_a_layer(deeds.exits)
stops_in_a_layer = _in_a_layer(deeds.stops)
sleeps_in_a_layer = _in_a_layer(deeds.sleeps)


# -- channels: every rank passes something on to the next one --------------------------


def _beside_channels(deed):
    """Return a scene in which a deed is done by the culprit in a step, while the others
    wait in a channel.
    """

    def scene(group, culprit):
        sending = group.send_channel((3,), np.float32, (group.rank + 1) % group.size, 4)
        receiving = group.receive_channel(
            (3,), np.float32, (group.rank - 1) % group.size, 4
        )
        for step in range(100):
            receiving.start(step)
            if group.rank == culprit and step == 50:
                deed(group, None)
            sending.wait()
            sending.start(step)
            receiving.wait()

    return scene


def _makes_a_call_alone(group, array):
    stamp()
    group.barrier()


is_killed_beside_channels = _beside_channels(deeds.is_killed)
raises_beside_channels = _beside_channels(deeds.raises)
exits_beside_channels = _beside_channels(deeds.exits)
stops_beside_channels = _beside_channels(deeds.stops)
sleeps_beside_channels = _beside_channels(deeds.sleeps)
makes_another_call_beside_channels = _beside_channels(_makes_a_call_alone)


def returns_early_beside_channels(group, culprit):
    with suppress(deeds.Return):
        _beside_channels(deeds.returns_early)(group, culprit)


# -- what cannot work ------------------------------------------------------------------


def has_a_schedule_that_deadlocks(group, culprit):
    stamp()
    text = "0F0 0F1 0B0 0B1\n 1F1 1B1 1F0 1B0\n 2F0 2B0 2F1 2B1\n 3F0 3B0 3F1 3B1"
    _train(group, schedule=Schedule.from_text(text), num_microbatches=2)


def has_too_few_layers(group, culprit):
    stamp()
    Pipeline(nn.Sequential(nn.Linear(4, 4)), group, loss=nn.MSELoss())


def has_too_few_samples(group, culprit):
    stamp()
    _train(group, num_microbatches=17)


def has_a_schedule_for_other_ranks(group, culprit):
    stamp()
    _train(group, schedule=schedules.gpipe(2, 4), num_microbatches=4)


# -- slow, but well --------------------------------------------------------------------


class SlowAtRandom:
    """In every step some rank is slow somewhere, for up to 2 s. The steps are kept
    apart, so delays do not add up.
    """

    def __init__(self, seed):
        self._seed = seed

    def reach(self, where, array=None):
        if isinstance(where, tuple):
            step, direction, _ = where
            draw = random.Random(f"{self._seed} {step}")
            rank, seconds = draw.randrange(4), draw.uniform(0, 2)
            if (self.group.rank, where) == (
                rank,
                (step, draw.choice("FB"), draw.randrange(NUM_MICROBATCHES)),
            ):
                stamp()
                time.sleep(seconds)
            if direction == "end":
                self.group.barrier()
        return array


def is_slow_at_random(group, seed):
    train(group, SlowAtRandom(seed), num_steps=20)

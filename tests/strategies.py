"""The language of inputs: random models, batches and schedules, for hypothesis and for
mpirun alike.
"""

from dataclasses import replace
from functools import cache, partial

import numpy as np
from hypothesis import settings
from hypothesis import strategies as st

from minipipe import (
    Action,
    ActionKind,
    Program,
    Schedule,
    Tensor,
    functional,
    nn,
    schedules,
)
from minipipe.core.autograd.backend import array_module
from minipipe.core.schedules.analysis.walk import complete_walk, walk
from minipipe.errors import ScheduleError
from minipipe.schedules.features import rank_of_each_stage
from minipipe.schedules.simulation.span import Span

# -- how many examples -----------------------------------------------------------------


def examples(number):
    """Return settings for a test that draws ``number`` examples, or as many per cent of
    them as the profile says.
    """
    return settings(
        max_examples=max(min(number, 4), number * settings.default.max_examples // 100)
    )


# -- layers that are awkward on purpose ------------------------------------------------


class Turned(nn.Module):
    """Hands on a transposed view, and so gets a transposed gradient: (n, a * b) to (n,
    b, a).
    """

    def __init__(self, a, b):
        self.a, self.b = a, b

    def forward(self, x):
        return x.reshape(len(x), self.a, self.b).transpose(0, 2, 1)


class ColumnMajor(nn.Module):
    """Hands on a matrix in Fortran order, and hands back its gradient so, too."""

    def __init__(self, width):
        self.weight = nn.Parameter((width, width), nn.initialisers.he_uniform(width))

    def forward(self, x):
        return (self.weight @ x.T).T


class Pooled(nn.Module):
    """Its gradient is a broadcast view, all strides 0 along an axis: (n, a, b) to (n,
    b).
    """

    def forward(self, x):
        return x.mean(axis=1)


class Summed(nn.Module):
    """The same for a sum that keeps its axis: (n, d) to (n, 1)."""

    def forward(self, x):
        return x.sum(axis=1, keepdims=True)


class UsedTwice(nn.Module):
    """Uses its input three times and its weight twice."""

    def __init__(self, width):
        self.linear = nn.Linear(width, width)

    def forward(self, x):
        return self.linear(self.linear(x).tanh()) + x * x.sigmoid()


class WeightSide(nn.Module):
    """Computes with weights before they meet the activations."""

    def __init__(self, width):
        uniform = nn.initialisers.he_uniform(width)
        self.left = nn.Parameter((width, width), uniform)
        self.right = nn.Parameter((width, width), uniform)
        self.scale = nn.Parameter((width,), nn.initialisers.constant(0.5))

    def forward(self, x):
        weight = self.left * self.scale + self.left @ self.right
        return (x @ weight) * self.scale + functional.concatenate(
            [x[:, 1:], x[:, :1]], axis=1
        )


class Fork(nn.Module):
    """Hands on three tensors: what to compute with, a skip connection, and whole
    numbers that need no gradient.
    """

    def __init__(self, form):
        self.form = form

    def forward(self, x):
        xp = array_module(x.data)
        rows = Tensor(xp.arange(len(x), dtype=xp.uint8))
        if self.form is dict:
            return {"x": x.tanh(), "skip": x, "rows": rows}
        return self.form([x, x, rows])


class Beside(nn.Module):
    """Computes with the first of three tensors, also with the second; hands on all
    three.
    """

    def __init__(self, layer):
        self.layer = layer

    def forward(self, bundle):
        x, skip, rows = bundle.values() if isinstance(bundle, dict) else bundle
        items = [self.layer(x) + skip * 0.5, skip, rows]
        return (
            dict(zip(bundle, items))
            if isinstance(bundle, dict)
            else type(bundle)(items)
        )


class Join(nn.Module):
    """Takes three tensors to one again."""

    def forward(self, bundle):
        x, skip, rows = bundle.values() if isinstance(bundle, dict) else bundle
        return x * skip + rows.reshape(-1, 1) * 0.1


def _flat_layers(width):
    """Return strategies for (layer, or list of layers, next shape) after a matrix of
    this width.
    """
    choices = [
        st.integers(1, 6).map(lambda n: (nn.Linear(width, n), (n,))),
        st.booleans().map(lambda bias: (nn.Linear(width, width, bias=bias), (width,))),
        st.sampled_from([nn.ReLU, nn.Tanh, nn.Sigmoid, nn.Identity]).map(
            lambda kind: (kind(), (width,))
        ),
        st.just(width).map(lambda n: (ColumnMajor(n), (n,))),
        st.just(width).map(lambda n: (UsedTwice(n), (n,))),
        st.just(width).map(lambda n: (WeightSide(n), (n,))),
        st.just(width).map(lambda n: (Summed(), (1,))),
        st.just(width).map(lambda n: (nn.Dropout(0.4), (n,))),
        st.just(width).map(
            lambda n: (
                nn.Residual(
                    nn.LayerNorm(n), nn.Linear(n, n), nn.GELU(), nn.Dropout(0.2)
                ),
                (n,),
            )
        ),
        st.just(width).map(lambda n: (nn.Recompute(UsedTwice(n)), (n,))),
        st.just(width).map(
            lambda n: (
                nn.Recompute(nn.Sequential(nn.Linear(n, 3), nn.Dropout(0.3))),
                (3,),
            )
        ),
        st.sampled_from([tuple, list, dict]).map(
            lambda form: (
                [
                    Fork(form),
                    Beside(nn.Tanh()),
                    Beside(nn.Linear(width, width)),
                    Join(),
                ],
                (width,),
            )
        ),
    ]
    for a in (2, 3):
        if width % a == 0:
            choices.append(
                st.just(a).map(lambda a: (Turned(a, width // a), (width // a, a)))
            )
    return st.one_of(choices)


def _cubic_layers(shape):
    """The same after an array of shape (n, a, b)."""
    a, b = shape
    return st.one_of(
        st.integers(1, 5).map(lambda n: (nn.Linear(b, n), (a, n))),
        st.sampled_from([nn.Tanh, nn.Identity]).map(lambda kind: (kind(), shape)),
        st.just(shape).map(lambda s: (nn.LayerNorm(s[1]), s)),
        st.integers(1, 4).map(lambda n: (nn.LSTM(b, n), (a, n))),
        st.integers(1, 4).map(
            lambda n: (nn.Conv1d(a, n, 2, padding="same", dilation=2), (n, b))
        ),
        st.sampled_from([1, a]).map(lambda groups: (nn.GroupNorm(groups, a), shape)),
        st.just(shape).map(
            lambda s: (nn.Function(lambda x: x.transpose(0, 2, 1)), s[::-1])
        ),
        st.just(shape).map(lambda s: (nn.Flatten(), (s[0] * s[1],))),
        st.just(shape).map(lambda s: (Pooled(), (s[1],))),
    )


@st.composite
def stacks(draw, min_layers=1, max_layers=9):
    """Draw (model, width of the input): a sequence of layers that ends in two
    outputs.
    """
    width = draw(st.integers(1, 6))
    shape, layers, square = (width,), [], {}
    for _ in range(draw(st.integers(max(0, min_layers - 2), max_layers - 2))):
        if shape in square and draw(st.integers(0, 2)) == 0:
            # the very same layer once more: it may be in another stage
            layers.append(square[shape])
            continue
        before = shape
        layer, shape = draw(
            _flat_layers(*shape) if len(shape) == 1 else _cubic_layers(shape)
        )
        layers += layer if isinstance(layer, list) else [layer]
        if shape == before and len(shape) == 1 and not isinstance(layer, list):
            square[shape] = layer
    if len(shape) == 2:
        layers.append(Pooled())
        shape = shape[1:]
    layers.append(nn.Linear(shape[0], 2))
    while len(layers) < min_layers:
        layers.insert(0, nn.Identity())
    return nn.Sequential(*layers), width


# -- schedules -------------------------------------------------------------------------


@cache
def takes(name, num_ranks, num_microbatches=2, chunks=None):
    """Whether a builder takes these sizes; tests/schedules/test_builders.py has those
    that are refused.
    """
    try:
        return bool(schedules.build(name, num_ranks, num_microbatches, chunks))
    except ScheduleError as error:
        assert error.code == "value", error
        return False


def ranks_like(name, num_ranks):
    """Return the nearest number of ranks that a builder takes."""
    return min(
        filter(partial(takes, name), range(1, num_ranks + 2)),
        key=lambda taken: abs(taken - num_ranks),
    )


def build(name, num_ranks, num_microbatches, chunks=None):
    """Build a schedule by name, with the chunks that are wished for where it takes so
    many.
    """
    num_ranks = ranks_like(name, num_ranks)
    return schedules.build(
        name,
        num_ranks,
        num_microbatches,
        chunks if takes(name, num_ranks, chunks=chunks) else None,
    )


def runs(schedule):
    """Whether a pipeline trains with a schedule."""
    try:
        rank_of_each_stage(schedule, "Pipeline")
    except ScheduleError:
        return False
    return not schedule.is_forward_only


NAMES = [name for name in schedules.REGISTRY if runs(build(name, 2, 2))]
OVER_A_V = ("zb-v", "v-half", "v-min", "dualpipe-v", "hanayo")


@st.composite
def named_schedules(
    draw,
    names=tuple(schedules.REGISTRY),
    max_ranks=8,
    max_microbatches=24,
    max_chunks=4,
):
    """Draw (name, ranks, microbatches, chunks) that some builder accepts, and what it
    builds.
    """
    name = draw(st.sampled_from(names))
    sizes = draw(st.integers(1, max_ranks)), draw(st.integers(1, max_microbatches))
    schedule = build(name, *sizes, draw(st.integers(1, max_chunks)))
    chunks = schedule.num_stages // schedule.num_ranks
    return (
        name,
        schedule.num_ranks,
        schedule.num_microbatches // schedule.num_slices,
        chunks,
    ), schedule


def spans(*cells):
    """Return the spans of a rank, from triples of an action, its start and its end."""
    return tuple(Span(Action.parse(cell), start, end) for cell, start, end in cells)


def table(name, placement, num_microbatches, rows, num_slices=1):
    """Return a Program where the rows hold a SEND or a RECV, otherwise a Schedule."""
    is_program = any(
        "SEND" in str(cell) or "RECV" in str(cell) for row in rows for cell in row
    )
    return (Program if is_program else Schedule)(
        name, placement, num_microbatches, rows, num_slices=num_slices
    )


def split_backward(schedule, delay):
    """Return the schedule with each B as I and W; each rank does a W at the earliest
    ``delay`` actions after its I.

    One that has such halves already is returned as it is.
    """
    if ActionKind.BACKWARD_INPUT in schedule.kinds:
        return schedule
    rows = []
    for row in schedule.actions:
        out, owed = [], []
        for action in row:
            if action.kind is ActionKind.BACKWARD:
                out.append(action._replace(kind=ActionKind.BACKWARD_INPUT))
                owed.append(
                    (len(out) + delay, action._replace(kind=ActionKind.BACKWARD_WEIGHT))
                )
            else:
                out.append(action)
            while owed and owed[0][0] <= len(out):
                out.append(owed.pop(0)[1])
        rows.append((*out, *(weight for _, weight in owed)))
    return Schedule(
        f"{schedule.name}-split",
        schedule.placement,
        schedule.num_microbatches,
        tuple(rows),
    )


def v_shaped(num_ranks, num_microbatches):
    """Return a legal schedule for a V: rank r holds stages r and 2p-1-r, so the last
    rank hands over to itself.
    """
    stages = 2 * num_ranks
    placement = tuple(min(stage, stages - 1 - stage) for stage in range(stages))
    rows = [[] for _ in range(num_ranks)]
    for k in range(num_microbatches):
        for kind, order in (
            (ActionKind.FORWARD, range(stages)),
            (ActionKind.BACKWARD, reversed(range(stages))),
        ):
            for stage in order:
                rows[placement[stage]].append(Action(stage, kind, k))
    return Schedule("v-shaped", placement, num_microbatches, tuple(map(tuple, rows)))


@st.composite
def runnable_schedules(draw, num_ranks=None, max_microbatches=6):
    """Draw a schedule that adds gradients in ascending order, whole or split, looped or
    V-shaped; 1 to 5 ranks.
    """
    num_ranks = num_ranks or draw(st.integers(1, 5))
    m = draw(st.integers(1, max_microbatches))
    name = draw(st.sampled_from([*NAMES, "v-shaped"]))
    schedule = (
        v_shaped(num_ranks, m)
        if name == "v-shaped"
        else build(name, num_ranks, m, draw(st.integers(1, 3)))
    )
    delay = draw(st.sampled_from([None, 0, 2, 100]))
    return schedule if delay is None else split_backward(schedule, delay)


@st.composite
def replicated_schedules(draw, max_ranks=4, max_microbatches=3):
    """Draw (schedule, one, copies): copies of one legal schedule side by side, each
    with microbatches of its own.

    They have ranks of their own, or share all ranks, each in an order of its own. Any
    merger of topological orders is one, so the whole is legal.
    """
    one = draw(runnable_schedules(draw(st.integers(1, max_ranks)), max_microbatches))
    p, m, copies = one.num_ranks, one.num_microbatches, draw(st.integers(2, 3))
    own = [[d * p + rank for rank in range(p)] for d in range(copies)]
    maps = (
        [draw(st.permutations(range(p))) for _ in range(copies)]
        if draw(st.booleans())
        else own
    )
    turns = [d for d in range(copies) for _ in range(sum(map(len, one.actions)))]
    draw(st.randoms(use_true_random=False)).shuffle(turns)
    orders, rows = (
        [complete_walk(one).order() for _ in maps],
        [[] for _ in range(1 + max(map(max, maps)))],
    )
    for d in turns:
        rank, action = next(orders[d])
        rows[maps[d][rank]].append(
            action._replace(microbatch=d * m + action.microbatch)
        )
    placement = [tuple({ranks[home] for ranks in maps}) for home in one.placement]
    return Schedule("replicas", placement, copies * m, rows), one, copies


def with_offloads(draw, original):
    """Return a legal table with O and L, R, or all three for some of its microbatches,
    anywhere before the backward.

    A later slice of the sequence reads what F of a slice leaves: L stands before it.
    """
    rows = []
    for row in map(list, original.actions):
        for stage, kind, k in [
            action
            for action in row
            if action.kind.value in "BI" and draw(st.booleans())
        ]:
            at = row.index(Action(stage, ActionKind.FORWARD, k))
            for letter in draw(st.sampled_from(["R", "OL", "OLR"])):
                last = row.index(Action(stage, kind, k))
                if letter == "L":
                    last = next_reader(original, row, at, stage, k)
                places = range(at + 1, last + 1)
                at = draw(
                    st.sampled_from(
                        [at for at in places if row[at - 1] not in original.overlaps]
                    )
                )
                row.insert(at, Action(stage, ActionKind(letter), k))
        rows.append(row)
    return replace(original, actions=tuple(map(tuple, rows)))


def next_reader(table, row, at, stage, k):
    """Return the first position behind another at which an action of the same sequence
    and stage, of this slice or of a later one, reads activations.
    """
    first = table.number_of(k)
    sequence_end = first - first % table.num_slices + table.num_slices
    readers = range(first, sequence_end)
    return next(
        position
        for position in range(at + 1, len(row))
        if row[position].stage == stage
        and row[position].kind.value in "FRBI"
        and table.number_of(row[position].microbatch) in readers
    )


def could_be_joined(table):
    """Return the forwards whose next action is a backward of another microbatch, in the
    order of the rows.
    """
    neighbours = (pair for row in table.actions for pair in zip(row, row[1:]))
    return [
        a
        for a, b in neighbours
        if a.kind.value == "F" and b.kind.value in "BI" and a.microbatch != b.microbatch
    ]


@st.composite
def overlapped(draw, originals):
    """Draw a table, and join any of its forwards that could be; that may be a
    deadlock.
    """
    original = draw(originals)
    found = could_be_joined(original)
    return (
        replace(original, overlaps=draw(st.sets(st.sampled_from(found))))
        if found
        else original
    )


@st.composite
def legally_overlapped(draw, originals):
    """Draw a legal table with joined actions: without those that would be a
    deadlock.
    """
    table = draw(overlapped(originals))
    while walk(table).blocked:
        table = replace(table, overlaps=sorted(table.overlaps)[1:])
    return table


@st.composite
def updated_schedules(draw, max_ranks=3, max_microbatches=4):
    """Draw a legal schedule whose stages update their weights, each after microbatches
    and as late as it happens.

    Perhaps it is one of several copies whose gradients are summed.
    """
    one = draw(runnable_schedules(draw(st.integers(1, max_ranks)), max_microbatches))
    if ActionKind.UPDATE not in one.kinds:
        rows = [
            _with_updates(draw, list(row), one.num_microbatches) for row in one.actions
        ]
        one = Schedule("updated", one.placement, one.num_microbatches, rows)
    return schedules.data_parallel(one, draw(st.integers(1, 2)))


def _with_updates(draw, row, num_microbatches):
    gradients = (ActionKind.BACKWARD, ActionKind.BACKWARD_WEIGHT)
    for stage in sorted({action.stage for action in row}):
        after = 0
        for k in range(num_microbatches):
            if k == num_microbatches - 1 or draw(st.booleans()):
                done = [
                    at
                    for at, (s, kind, i) in enumerate(row)
                    if s == stage and kind in gradients and i <= k
                ]
                after = draw(st.integers(max(after, done[-1]) + 1, len(row)))
                row.insert(after, Action(stage, ActionKind.UPDATE, k))
    return row


@st.composite
def summed_schedules(draw, num_ranks=None):
    """Draw a schedule whose gradients are summed over replicas: copies side by side,
    both ways, or both of that.
    """
    copies = draw(
        st.sampled_from(
            [
                d
                for d in (1, 2, 3, 4)
                if not (num_ranks or 8) % d and d <= (num_ranks or 4)
            ]
        )
    )
    p = num_ranks // copies if num_ranks else draw(st.integers(1, 8 // copies))
    if p % 2 == 0 and draw(st.booleans()):
        name, least = draw(
            st.sampled_from([("chimera", 2), ("dualpipe", 2 * p), ("bitpipe", p)])
        )
        return schedules.data_parallel(
            schedules.build(name, p, draw(st.integers(least // 2, least)) * 2), copies
        )
    return schedules.data_parallel(
        draw(runnable_schedules(p, max_microbatches=4)), copies
    )


@st.composite
def steps(draw, num_ranks=None):
    """Draw everything that a pipelined step needs: model, inputs, targets, schedule and
    partition.
    """
    one = runnable_schedules(num_ranks)
    schedule = draw(one | legally_overlapped(one) | summed_schedules(num_ranks))
    m, num_stages = schedule.num_microbatches, schedule.num_stages
    model, width = draw(stacks(min_layers=num_stages, max_layers=num_stages + 6))
    inputs, targets = batch(
        draw(st.integers(m, 3 * m + 2)), width, seed=draw(st.integers(0, 99))
    )
    cuts = st.permutations(range(1, len(model))).map(
        lambda order: sorted(order[: num_stages - 1])
    )
    ends = [0, *draw(cuts), len(model)]
    return (
        model,
        inputs,
        targets,
        schedule,
        [range(a, b) for a, b in zip(ends, ends[1:])],
    )


def batch(num_samples, width, seed=0):
    """Return inputs of shape (n, width) and targets of shape (n, 2), in float32."""
    generator = np.random.default_rng(seed)
    inputs = generator.standard_normal((num_samples, width)).astype(np.float32)
    return inputs, generator.standard_normal((num_samples, 2)).astype(np.float32)

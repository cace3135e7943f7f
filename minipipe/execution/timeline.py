"""The measured timeline of all ranks, assembled from the record of each rank.

Apart from ``record.py``, which executors import.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import partial
from itertools import pairwise
from operator import attrgetter
from typing import Any, NamedTuple

import numpy as np

from minipipe.comm import ProcessGroup
from minipipe.core.execution.record import Record
from minipipe.core.schedules.action import Action
from minipipe.core.schedules.analysis.dependencies import Transfer
from minipipe.execution.checks.calls import part_of
from minipipe.schedules import (
    ActionKind,
    GradientSum,
    Message,
    Program,
    Span,
    StepChange,
    Timeline,
    repeat,
)
from minipipe.schedules.analysis.replicas import gradient_sums


class Recorded(NamedTuple):
    """The record of one rank over some training steps, in the order of its row. Times
    are in seconds.

    Attributes
    ----------
    ran : sequence of (float, float, int)
        Start and end of each computation, and the microbatches that its stage held
        after it.
    memory : sequence of (int, int)
        The bytes held after each computation, and at most while it ran; empty if they
        were not measured.
    changes : sequence of (float, float)
        When it left each step but the last, and began the next.
    sent : sequence of float
        When each SEND began.
    received : sequence of (float, float, int)
        For each RECV: since when its message was awaited, when it arrived, and its
        bytes.
    sums : sequence of (float, float, float)
        For each REDUCE_GRAD: when the rank reached it, when the sum was complete, and
        the bytes of the gradients.
    """

    ran: Sequence[Sequence[float]]
    memory: Sequence[Sequence[float]]
    changes: Sequence[Sequence[float]]
    sent: Sequence[float]
    received: Sequence[Sequence[float]]
    sums: Sequence[Sequence[float]] = ()


def measured_timeline(
    program: Program, ranks: Sequence[Recorded], note: str = ""
) -> Timeline:
    """Return the timeline of all ranks, in seconds from its beginning.

    The program describes one step, and the records of all ranks are on one clock.

    Examples
    --------
    >>> from minipipe import schedules
    >>> from minipipe.core.schedules.analysis.lowering import lower
    >>> recorded = Recorded([(5.0, 6.0, 1), (6.0, 8.0, 0)], [], [], [], [])
    >>> print(measured_timeline(lower(schedules.gpipe(1, 1)), [recorded]))
    gpipe: makespan 3000 ms, bubble 0.0 %, peak activations by rank 1
    """
    with_sums = repeat(program, 1 + len(ranks[0].changes))
    whole = _timed(with_sums)
    origin = min((rank.ran[0][0] for rank in ranks if rank.ran), default=0.0)
    messages = _messages(whole, ranks, origin)
    indices = range(len(ranks))
    last = program.ranks_of(program.num_stages - 1)[0]
    return Timeline(
        whole.title,
        tuple(map(partial(_spans, origin), whole.schedule.actions, ranks)),
        tuple(_peak_activations(whole, r, ranks[r]) for r in indices),
        unit="s",
        note=note,
        measured_messages=tuple(sorted(messages, key=attrgetter("sent", "arrived"))),
        is_measured=True,
        step_changes=tuple(tuple(_changes(ranks, r, last, origin)) for r in indices),
        sums=tuple(_sums(with_sums, ranks, origin)),
        num_slices=program.num_slices,
        **_memory(whole, ranks),
    )


def _spans(origin: float, row: Sequence[Action], rank: Recorded) -> tuple[Span, ...]:
    """Return when each action of a row ran."""
    return tuple(
        Span(action, start - origin, end - origin)
        for action, (start, end, _) in zip(row, rank.ran)
    )


def _memory(program: Program, ranks: Sequence[Recorded]) -> dict[str, Any]:
    """Return the arguments of a timeline with the measured bytes; none if they were not
    measured.
    """
    for rank, row in zip(ranks, program.schedule.actions):
        if len(rank.memory) != len(row):
            return {}
    peaks = []
    after = []
    during = []
    for rank in ranks:
        after.append(tuple(int(held) for held, _ in rank.memory))
        during.append(tuple(int(most) for _, most in rank.memory))
        peaks.append(max(during[-1], default=0))
    return {
        "peak_memory": tuple(peaks),
        "memory": tuple(after),
        "memory_during": tuple(during),
    }


def _timed(program: Program) -> Program:
    """Return the program without sums and copies, which take their ranks no time."""
    beside = (kind for kind in program.kinds if kind.declaration.lane != "compute")
    untimed = {kind for kind in beside if not kind.is_communication}
    if not untimed:
        return program
    return program.with_rows(
        Program, ((a for a in row if a.kind not in untimed) for row in program.actions)
    )


def _changes(
    ranks: Sequence[Recorded], rank: int, last: int, origin: float
) -> Iterator[StepChange]:
    """Yield the changes of a rank. It waited for the rank of the last stage if that
    ended the step later, and before this rank went on.
    """
    ends = _ends_of_steps(ranks[rank])
    last_ends = _ends_of_steps(ranks[last])
    for i, (left, begun) in enumerate(ranks[rank].changes):
        awaited = rank
        if ends and ends[i] < last_ends[i] <= left:
            awaited = last
        yield StepChange(left - origin, begun - origin, awaited)


def _ends_of_steps(rank: Recorded) -> list[float]:
    """Return when the computations of each step but the last ended; nothing for a rank
    without computations.
    """
    if not rank.ran:
        return []
    num_steps = len(rank.changes) + 1
    return [
        rank.ran[i * len(rank.ran) // num_steps - 1][1] for i in range(1, num_steps)
    ]


def _peak_activations(program: Program, rank: int, recorded: Recorded) -> int:
    """Return the most (stage, microbatch) pairs that a rank held at once; a frozen F
    holds its pair while it runs.
    """
    held = dict.fromkeys(program.stages_of(rank), 0)
    peak = 0
    row = program.schedule.actions[rank]
    for action, (_, _, after) in zip(row, recorded.ran):
        held[action.stage] = int(after)
        only_now = (
            action.kind is ActionKind.FORWARD
            and action.stage < program.first_backward_stage
        )
        peak = max(peak, sum(held.values()) + only_now)
    return peak


def _messages(
    program: Program, ranks: Sequence[Recorded], origin: float
) -> Iterator[Message]:
    """Yield every message between ranks. The program determines whose times a rank
    recorded.
    """
    sends = _values(program, "send")
    receives = _values(program, "receive")
    sent = {
        value: (source, time - origin)
        for source, (rank, values) in enumerate(zip(ranks, sends))
        for value, time in zip(values, rank.sent)
    }
    for destination, (rank, values) in enumerate(zip(ranks, receives)):
        for value, (awaited_from, arrived, size) in zip(values, rank.received):
            source, start = sent[value]
            producer = program.as_written(value.producer)
            consumer = program.as_written(value.consumer)
            was_awaited = awaited_from - origin <= start
            yield Message(
                producer,
                consumer,
                source,
                destination,
                start,
                arrived - origin,
                was_awaited,
                size,
            )


def _sums(
    program: Program, ranks: Sequence[Recorded], origin: float
) -> Iterator[GradientSum]:
    """Yield the gradient all-reduces; each is complete on all of its ranks once the
    last of them has it.
    """
    rows = (
        [a for a in row if a.kind is ActionKind.REDUCE_GRAD] for row in program.actions
    )
    times = {
        action: (r, *times)
        for r, row in enumerate(rows)
        for action, times in zip(row, ranks[r].sums)
    }
    for members in gradient_sums(program):
        homes, reached, ends, sizes = zip(*(times[action] for action in members))
        came = tuple(t - origin for t in reached)
        yield GradientSum(members, homes, came, max(ends) - origin, max(sizes))


def _values(program: Program, half: str) -> list[list[Transfer]]:
    """Return, by rank, the values of its sends (``"send"``) or receives
    (``"receive"``), in its order.
    """
    messages = (
        [(a, Transfer.carried_by(a)) for a in row if a.kind.is_communication]
        for row in program.actions
    )
    return [
        [value for action, value in row if action == getattr(value, half)]
        for row in messages
    ]


_RECEIVES = (ActionKind.RECV_F, ActionKind.RECV_B)


def gather_timeline(
    group: ProcessGroup, records: Sequence[Record], program: Program
) -> Timeline:
    """Return the measured timeline of all ranks and some steps, in seconds from the
    beginning. Collective.
    """
    received = [
        Transfer.carried_by(action)
        for action in program.numbered[group.rank]
        if action.kind in _RECEIVES
    ]
    local = Recorded(
        ran=[item for record in records for item in record.ran],
        memory=[item for record in records for item in record.memory],
        changes=[(before.left, after.begun) for before, after in pairwise(records)],
        sent=[time for record in records for time in record.sent.values()],
        received=[record.received[value] for record in records for value in received],
        sums=[times for record in records for times in record.sums.values()],
    )
    gathered = []
    # the first columns are times
    for items, columns, times in zip(local, (3, 2, 2, 1, 3, 3), (2, 0, 2, 1, 2, 2)):
        array = np.array(items, np.float64).reshape(-1, columns)
        array[:, :times] += group.clock_offset
        if columns == 1:
            array = array[:, 0]
        gathered.append(group.all_gather(array, what=part_of("timeline")))
    return measured_timeline(
        program,
        [Recorded(*(part.tolist() for part in of)) for of in zip(*gathered)],
        group.note,
    )

"""The parts of a timeline: spans of actions, idle times with their causes, and
messages.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Sequence
from enum import StrEnum
from typing import NamedTuple

from minipipe.core.schedules.action import Action, B, F, I, L, O, R


class Span(NamedTuple):
    """One action with its start and end, in the unit of its timeline.

    Examples
    --------
    >>> from minipipe import schedules, simulate
    >>> action, start, end = simulate(schedules.gpipe(2, 1)).spans[0][-1]
    >>> str(action), start, end
    ('0B0', 4.0, 6.0)
    """

    action: Action
    start: float
    end: float


def with_copies(spans: Sequence[Span], copies: Sequence[Span]) -> list[Action]:
    """Return the actions of the spans and of the copies of a rank, in the order in
    which they change its memory.

    An L takes memory from the computation on during which it begins; an O frees memory
    after the computation during which it ends. Copies of kinds that a program has
    declared are left out: they change none.

    Examples
    --------
    >>> from minipipe import Costs, Schedule, simulate
    >>> timeline = simulate(
    ...     Schedule.from_text("F0 O0 F1 F2 B2 L0 B1 B0"), Costs(copy_bandwidth=0.5)
    ... )
    >>> timeline.copies[0][1]
    Span(action=Action(stage=0, kind=<ActionKind.LOAD: 'L'>, microbatch=0), start=5.0, end=7.0)
    >>> " ".join(map(str, with_copies(timeline.spans[0], timeline.copies[0])))
    '0F0 0F1 0F2 0O0 0B2 0L0 0B1 0B0'
    """
    if not copies:
        return [span.action for span in spans]
    starts = [span.start for span in spans]
    ends = [span.end for span in spans]
    index_of = {span.action: index for index, span in enumerate(spans)}
    places = {span.action: (index, 1) for index, span in enumerate(spans)}
    for (stage, kind, k), start, end in reversed(copies):
        if kind is L:
            consumers = (index_of.get(Action(stage, other, k)) for other in (R, B, I))
            until = next(index for index in consumers if index is not None)
            places[Action(stage, L, k)] = min(bisect_right(ends, start), until), 0
        elif kind is O:
            last = max(bisect_left(starts, end) - 1, index_of[Action(stage, F, k)])
            # It may leave and return during one computation: it then counts as held,
            # and once.
            places[Action(stage, O, k)] = min((last, 2), places[Action(stage, L, k)])
    return sorted(places, key=lambda action: (places[action], action.kind is L))


def in_groups(spans: Sequence[Span]) -> list[list[Span]]:
    """Return the spans of a rank in groups: overlapped pairs together, all others
    alone.

    Examples
    --------
    >>> from minipipe import Schedule, simulate
    >>> spans = simulate(Schedule.from_text("0F0 (0F1;0B0)OVERLAP_F_B 0B1")).spans[0]
    >>> [[str(span.action) for span in group] for group in in_groups(spans)]
    [['0F0'], ['0F1', '0B0'], ['0B1']]
    """
    groups: list[list[Span]] = []
    for span in spans:
        if groups and span.start < groups[-1][-1].end:
            groups[-1].append(span)
        else:
            groups.append([span])
    return groups


class StepChange(NamedTuple):
    """The change of a rank from one training step to the next.

    Attributes
    ----------
    left, begun : float
        When it left the one step, and began the next. In between it updates its
        parameters; if measured, the time also includes everything else that the program
        does there.
    after : int
        The rank whose end of the step it waited for: itself, or the rank of the last
        stage, which has the loss.

    Examples
    --------
    >>> from minipipe import Costs, schedules, simulate
    >>> timeline = simulate(
    ...     schedules.zb_h2(4, 8), Costs(update=0.5), num_steps=2, wait=True
    ... )
    >>> timeline.step_changes[0]
    (StepChange(left=27.0, begun=27.5, after=3),)
    """

    left: float
    begun: float
    after: int


class IdleCause(StrEnum):
    """The cause of an idle time.

    Examples
    --------
    >>> from minipipe import schedules, simulate
    >>> [idle.cause.value for idle in simulate(schedules.gpipe(2, 1)).idle[1]]
    ['warm-up', 'drain']
    """

    WARM_UP = "warm-up"  # before the first action of a step: the pipeline fills
    WAITING = "waiting"  # for a value from another rank
    SENDING = "sending"  # in a send that blocks
    DRAIN = "drain"  # after the last action of a step: the pipeline drains
    # between two steps: the optimiser or, if measured, whatever the program does there
    UPDATE = "update"
    # between two actions: bookkeeping or, if measured, another program on the core
    OVERHEAD = "overhead"


class Idle(NamedTuple):
    """An interval in which a rank computes nothing, and its cause.

    Attributes
    ----------
    start, end : float
    cause : IdleCause
    source : int or None
        The rank that is waited for.
    awaited : Action or None
        The action of that rank that is waited for.
    running : Action or None
        If ``awaited`` is a REDUCE_GRAD: the action that its rank was still running when
        the wait began; None if all replicas had arrived.

    Examples
    --------
    Rank 0 waits until the gradient comes back from rank 1.

    >>> from minipipe import schedules, simulate
    >>> idle = simulate(schedules.gpipe(2, 1)).idle[0][0]
    >>> idle.start, idle.end, idle.source, str(idle.awaited)
    (1.0, 4.0, 1, '1B0')
    """

    start: float
    end: float
    cause: IdleCause
    source: int | None = None
    awaited: Action | None = None
    running: Action | None = None


class Message(NamedTuple):
    """The message of one value: an activation after F, a gradient after B or I.

    Attributes
    ----------
    value : Action
        The producer, whose result it carries.
    used_by : Action
        The consumer, on the other rank.
    source, destination : int
        Ranks.
    sent, arrived : float
        In the unit of the timeline. A measured message has arrived when its receiver
        took it, which may be long after it was delivered.
    was_awaited : bool
        Whether the receiver was waiting when it was sent, so that ``arrived`` tells the
        time in flight.
    size : float or None
        The size in the memory unit of its timeline, if it is known.

    Examples
    --------
    >>> from minipipe import schedules, simulate
    >>> message = simulate(schedules.gpipe(2, 1)).messages[0]
    >>> (
    ...     str(message.value),
    ...     str(message.used_by),
    ...     message.source,
    ...     message.destination,
    ...     message.sent,
    ... )
    ('0F0', '1F0', 0, 1, 1.0)
    """

    value: Action
    used_by: Action
    source: int
    destination: int
    sent: float
    arrived: float
    was_awaited: bool = True
    size: float | None = None


class GradientSum(NamedTuple):
    """The gradient all-reduce of a stage over its replicas; it begins when the last of
    them has arrived.

    Attributes
    ----------
    actions : tuple of Action
        The REDUCE_GRAD of each replica.
    ranks : tuple of int
        By replica, its rank.
    reached : tuple of float
        By replica, when it arrived. It continues at once.
    end : float
        When the all-reduce is complete, on all of them.
    size : float
        The size of the gradients of each replica, in bytes if measured.

    Examples
    --------
    >>> from minipipe import Costs, schedules, simulate
    >>> timeline = simulate(
    ...     schedules.data_parallel(schedules.gpipe(1, 1), 2),
    ...     Costs(gradient_size=6, bandwidth=1),
    ... )
    >>> timeline.sums[0].ranks, timeline.sums[0].begin, timeline.sums[0].end
    ((0, 1), 3.0, 9.0)
    """

    actions: tuple[Action, ...]
    ranks: tuple[int, ...]
    reached: tuple[float, ...]
    end: float
    size: float = 0.0

    def came(self, rank: int) -> float:
        """Return when a rank arrived."""
        return self.reached[self.ranks.index(rank)]

    @property
    def begin(self) -> float:
        """When the last replica arrived."""
        return max(self.reached)

    @property
    def last_rank(self) -> int:
        """The rank that arrived last."""
        return self.ranks[self.reached.index(self.begin)]

"""The data of a drawing: one timeline, or several above each other on a common time
axis.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property
from itertools import chain, count, permutations, starmap
from typing import NamedTuple

from minipipe.core.schedules.action_table import ActionTable
from minipipe.core.specs import Spec
from minipipe.errors import ArgumentError
from minipipe.passes.kinds import KINDS
from minipipe.schedules import (
    Action,
    ActionKind,
    Costs,
    GradientSum,
    Span,
    Timeline,
    simulate,
)
from minipipe.schedules.simulation.span import in_groups

# In pictures, actions narrower than 3 pixels are drawn as bands, at least 12 together:
# whole rounds of F B and of F I W, so that bands look alike.
NARROW = 3
TOGETHER = 12


_DRAWN = Spec(ActionTable | Timeline, expected="a Schedule or a Timeline", code="type")


class Beside(NamedTuple):
    """A transfer concurrent with the actions of a rank: an activation copy, or its part
    of a gradient all-reduce.
    """

    action: Action
    start: float
    end: float
    whole: GradientSum | None = None


class Panel:
    """One timeline, with the properties that all drawings need.

    Parameters
    ----------
    timeline : Timeline
    pairs : int, optional
        How many (stage, microbatch) pairs count as one microbatch: the stages of a
        rank. The default is 1.

    Attributes
    ----------
    num_slices : int
        The number of slices of a sequence; 1 if microbatches are whole.
    stages : tuple of tuple of int
        The stages of each rank, its chunks. Stages whose replica on this rank has the
        first microbatches come first, then the stages of a second replica; the stages
        of one replica ascend.
    has_replicas : bool
        Whether a stage is on several ranks.
    """

    def __init__(self, timeline: Timeline, pairs: int | None = None) -> None:
        self.timeline = timeline
        self.pairs = pairs
        self.num_slices = timeline.num_slices
        replicas = _replicas(timeline)
        stages: list[list[tuple[int, int]]] = [[] for _ in timeline.spans]
        for stage, ranks in replicas.items():
            for replica, rank in enumerate(ranks):
                stages[rank].append((replica, stage))
        self.stages = tuple(tuple(stage for _, stage in sorted(row)) for row in stages)
        self.has_replicas = any(len(ranks) > 1 for ranks in replicas.values())

    def chunk_of(self, rank: int, action: Action) -> int:
        """Return the index of an action's stage among the stages of its rank, from 0; 0
        for an action of the rank itself.
        """
        if action.kind.is_of_rank:
            return 0
        return self._chunks[rank][action.stage]

    def beside(self, rank: int) -> list[Beside]:
        """Return the transfers concurrent with the actions of a rank that take some
        time; one by one for each kind.

        Examples
        --------
        >>> from minipipe import Costs, Schedule
        >>> timeline = simulate(
        ...     Schedule.from_text("F0 O0 L0 B0"), Costs(copy_bandwidth=1)
        ... )
        >>> [
        ...     (str(copy.action), copy.start, copy.end)
        ...     for copy in Panel(timeline).beside(0)
        ... ]
        [('0O0', 1.0, 2.0), ('0L0', 2.0, 3.0)]
        """
        transfers = []
        for reduction in self.timeline.sums:
            if rank in reduction.ranks:
                action = reduction.actions[reduction.ranks.index(rank)]
                times = (reduction.begin, reduction.end)
                transfers.append(Beside(action, *times, reduction))
        transfers += starmap(Beside, copies_of(self.timeline, rank))
        return [each for each in transfers if each.end > each.start]

    def kinds_beside(self) -> list[ActionKind]:
        """Return the kinds of transfers concurrent with actions, each for a thin lane
        of its own.
        """
        beside = map(self.beside, range(self.timeline.num_ranks))
        occurring = {each.action.kind for each in chain.from_iterable(beside)}
        return [kind for kind in map(ActionKind, KINDS) if kind in occurring]

    def names_stage(self, rank: int) -> bool:
        """Return whether labels must name the stage: only if the rank has several."""
        return len(self.stages[rank]) > 1

    @property
    def has_several_stages(self) -> bool:
        """Whether labels of some rank must name the stage."""
        return any(len(stages) > 1 for stages in self.stages)

    @property
    def figures(self) -> tuple[tuple[str, str], ...]:
        """The figures of a caption, each with its name."""
        return self.timeline.figures(self.pairs)

    @cached_property
    def held_activations(self) -> tuple[tuple[float, ...], ...]:
        """The activations held after each span, by rank."""
        rows = self.timeline.held_activations
        return tuple(tuple(map(self._counted, row)) for row in rows)

    def activations_over_time(self, rank: int) -> list[tuple[float, float]]:
        """Return (time, activations held) at the start and at the end of each span of a
        rank: a curve of steps.
        """
        curve = self.timeline.activations_over_time(rank)
        return [(time, self._counted(held)) for time, held in curve]

    def idle_until(self, rank: int, time: float) -> float:
        """Return the idle time of a rank from the start of the timeline until ``time``
        after it.

        Examples
        --------
        >>> from minipipe import schedules
        >>> panel = Panel(simulate(schedules.one_f_one_b(4, 8)))
        >>> [panel.idle_until(1, time) for time in (1, 10, 33)]
        [1.0, 5.0, 9.0]
        """
        now = self.timeline.start + time
        slots = (slot for slot in self.timeline.idle[rank] if slot.start < now)
        return sum(min(slot.end, now) - slot.start for slot in slots)

    def _counted(self, pairs: float) -> float:
        return pairs / (self.pairs or 1)

    @property
    def tells_memory(self) -> bool:
        """Whether the memory is known and is not just the number of activations."""
        timeline = self.timeline
        if timeline.memory is None:
            return False
        if timeline.memory_unit == "bytes":
            return True
        # The costs may give a size of 1 to a pair, as they do by default, or to a
        # microbatch.
        peaks = tuple(map(self._counted, timeline.peak_activations))
        of_pairs = (timeline.held_activations, timeline.peak_activations)
        of_microbatches = (self.held_activations, peaks)
        known = (timeline.memory, timeline.peak_memory)
        return known not in (of_pairs, of_microbatches)

    @property
    def recomputes(self) -> bool:
        """Whether some backward holds more while it runs than before and after it:
        recomputed activations.
        """
        memory = self.timeline.memory
        during = self.timeline.memory_during
        # Copies also hold more for a while, which is no recomputation.
        if memory is None or during is None or self.timeline.copies:
            return False
        for spans, row, held in zip(self.timeline.spans, memory, during):
            for span, before, after, most in zip(spans, (0, *row), row, held):
                if span.action.kind.is_backward and most > max(before, after):
                    return True
        return False

    @property
    def has_late_receipts(self) -> bool:
        """Whether a receiver of a measured message came late, so that its arrow is
        longer than the time in flight.
        """
        messages = self.timeline.measured_messages
        return not all(message.was_awaited for message in messages)

    @cached_property
    def overlapped(self) -> dict[Action, Span]:
        """Maps each of two overlapped actions to the span of the other."""
        groups = (group for row in self.timeline.spans for group in in_groups(row))
        pairs = (pair for group in groups for pair in permutations(group, 2))
        return {span.action: other for span, other in pairs}

    @cached_property
    def _chunks(self) -> list[dict[int, int]]:
        return [dict(zip(stages, count())) for stages in self.stages]


def copies_of(timeline: Timeline, rank: int) -> tuple[Span, ...]:
    """Return the activation copies of a rank; none if the schedule has no copies."""
    if timeline.copies:
        return timeline.copies[rank]
    return ()


def side_by_side(spans: Sequence[Span]) -> list[Span]:
    """Return the spans of a rank as they are drawn: overlapped spans side by side, each
    in half of their time.

    Examples
    --------
    >>> from minipipe import Schedule, simulate
    >>> spans = simulate(Schedule.from_text("0F0 (0F1;0B0)OVERLAP_F_B 0B1")).spans[0]
    >>> [(str(action), start, end) for action, start, end in side_by_side(spans)[1:3]]
    [('0F1', 1.0, 2.5), ('0B0', 2.5, 4.0)]
    """
    drawn: list[Span] = []
    for group in in_groups(spans):
        start = group[0].start
        part = (group[-1].end - group[0].start) / len(group)
        if len(group) == 1:
            drawn += group
            continue
        for i, span in enumerate(group):
            begin = start + i * part
            end = start + (i + 1) * part
            drawn.append(Span(span.action, begin, end))
    return drawn


def _replicas(timeline: Timeline) -> dict[int, list[int]]:
    """Return the ranks of each stage, ordered by their lowest microbatch."""
    lowest: dict[int, dict[int, int]] = {}
    for rank, row in enumerate(timeline.spans):
        for (stage, kind, k), _, _ in row:
            if kind.is_of_rank:
                continue
            first = lowest.setdefault(stage, {})
            first[rank] = min(k, first.get(rank, k))
    return {stage: sorted(ks, key=ks.__getitem__) for stage, ks in lowest.items()}


def pairs_per_unit(drawn: Sequence[ActionTable | Timeline]) -> list[int]:
    """Return, for each item, how many (stage, microbatch) pairs count as one: all pairs
    of a rank and sequence if these numbers differ between items, otherwise 1.

    This makes the items comparable: a model cut into more stages has the same layers on
    each rank, but smaller stages; a sequence in slices is a microbatch. If the average
    number of stages of a rank is not whole, each pair counts alone.

    Examples
    --------
    >>> from minipipe import schedules
    >>> (
    ...     pairs_per_unit([schedules.gpipe(4, 8), schedules.zb_v(4, 8)]),
    ...     pairs_per_unit([schedules.zb_v(4, 8), schedules.v_min(4, 8)]),
    ... )
    ([1, 2], [1, 1])
    >>> pairs_per_unit(
    ...     [
    ...         schedules.data_parallel(one, 2)
    ...         for one in (schedules.gpipe(4, 8), schedules.zb_v(4, 8))
    ...     ]
    ... )
    [1, 2]
    >>> pairs_per_unit([schedules.gpipe(4, 8), schedules.seq1f1b(4, 8, num_slices=4)])
    [1, 4]
    """
    counts = [_num_stages(item) / max(1, item.num_ranks) for item in drawn]
    # Less than one for replicas side by side; 0 for a timeline without spans.
    least = min([1.0, *filter(None, counts)])
    counts = [count / least for count in counts]
    kinds = [(count, item.num_slices) for count, item in zip(counts, drawn)]
    are_whole = all(count >= 1 and count.is_integer() for count in counts)
    if len(set(kinds)) == 1 or not are_whole:
        return [1] * len(drawn)
    return [int(count) * slices for count, slices in kinds]


def _num_stages(item: ActionTable | Timeline) -> int:
    if isinstance(item, ActionTable):
        return item.num_stages
    return len(_replicas(item))


def chunks_of(item: ActionTable | Timeline, pairs: int) -> int:
    """Return how many stages of a rank count as one, given how many (stage, slice)
    pairs do.
    """
    return max(1, pairs // item.num_slices)


def panels_of(drawn: Sequence[ActionTable | Timeline]) -> tuple[Panel, ...]:
    """Return a panel for each schedule (F, I and W one unit each) or timeline.

    If ranks hold different numbers of stages, or sequences are cut into different
    numbers of slices, F, I and W of a rank and sequence are one unit each, and an
    activation is a microbatch of all layers of its rank: see :func:`pairs_per_unit`.

    Raises
    ------
    ArgumentError
        Code ``type``: if an argument is neither. Code ``value``: if there is nothing to
        draw, or if the units differ, so that there is no common axis.
    """
    if not drawn:
        raise ArgumentError(
            "Nothing to draw; expected at least one Schedule or Timeline."
        )
    for item in drawn:
        _DRAWN.check("An argument", item)
    pairs = pairs_per_unit(drawn)
    timelines = list(map(_timeline_of, drawn, pairs))
    units = sorted({timeline.unit for timeline in timelines})
    if len(units) > 1:
        several = f"These timelines are in {' and in '.join(units)}"
        message = f"{several}, so one axis cannot show them together."
        raise ArgumentError(
            f"{message} Simulate the predicted timeline with Costs(unit='s') and "
            "times in seconds.",
        )
    known = [timeline.pairs_per_microbatch for timeline in timelines]
    if None not in known:
        pairs = [count or 1 for count in known]
    if max(pairs) == 1:
        return tuple(map(Panel, timelines))
    return tuple(map(Panel, timelines, pairs))


def _timeline_of(item: ActionTable | Timeline, pairs: int) -> Timeline:
    if isinstance(item, Timeline):
        return item
    return simulate(item, Costs().cut(chunks_of(item, pairs)))

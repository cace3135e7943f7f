"""Fitting of costs to timelines: times of stages, latency and bandwidth of messages."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from itertools import chain
from math import inf
from statistics import mean, median
from typing import Any, TypeVar

from minipipe.core.schedules.action import ActionKind, B, F, I, W
from minipipe.core.specs import Spec
from minipipe.errors import ScheduleError, misuse
from minipipe.schedules.simulation.span import IdleCause, Span, in_groups
from minipipe.schedules.simulation.timeline import Timeline

_TIMELINE = Spec(
    Timeline,
    expected="a Timeline, such as in Costs.measured(first, second)",
    error=ScheduleError.of,
)
K = TypeVar("K")
Sample = tuple[float, float]  # a size and a time


def fit_costs(timelines: Sequence[Timeline]) -> dict[str, Any]:
    """Return the attributes of Costs, fitted to timelines of one model over the same
    stages.

    A time is the mean within each timeline and the median over several, so that one
    step disturbed by another program has no influence. Latency and bandwidth are fitted
    to the messages whose receivers waited for them; the arrival times of other messages
    are unknown. The rounds of gradient all-reduces count as messages.

    Raises
    ------
    ScheduleError
        Code ``value``, if there is no timeline, if an argument is not one, or if the
        timelines do not match.
    """
    _check_alike(timelines)
    stages = _stages_of(timelines[0])
    times = [_mean_times(timeline) for timeline in timelines]

    def usual(kind: ActionKind, stage: int) -> float:
        known = []
        for timeline, by_action in zip(timelines, times):
            if (kind, stage) in by_action:
                # with slices, the time of a whole sequence
                known.append(by_action[kind, stage] * timeline.num_slices)
        return _median(known)

    samples = [*_message_samples(timelines), *_sum_samples(timelines)]
    latency, bandwidth = fit_messages(samples)
    sums = chain.from_iterable(timeline.sums for timeline in timelines)
    sizes = dict(_means((each.actions[0].stage, each.size) for each in sums))
    split = {stage for by_action in times for kind, stage in by_action if kind is I}
    backwards = {stage: I if stage in split else B for stage in stages}
    declared = {kind for by_action in times for kind, _ in by_action} - {*ActionKind}
    others = {}
    for kind in sorted(declared):
        if not kind.is_of_rank and kind.declaration.time:
            others[kind.declaration.time] = [usual(kind, s) for s in stages]
    gradient_sizes: float | list[float] = 0.0
    if sizes:
        gradient_sizes = [sizes.get(s, 0.0) for s in stages]
    return {
        "forward": [usual(F, s) for s in stages],
        "backward_input": [usual(backwards[s], s) for s in stages],
        "backward_weight": [usual(W, s) for s in stages],
        "overhead": _median(map(_overhead, timelines)),
        "update": _updates(timelines),
        "latency": latency,
        "bandwidth": bandwidth,
        "overlap": _median(chain.from_iterable(map(_overlaps, timelines, times))),
        "message_size": _message_sizes(timelines, len(stages)),
        "gradient_size": gradient_sizes,
        "other": others or None,
        "unit": timelines[0].unit,
    }


def fit_messages(samples: Sequence[Sample]) -> tuple[float, float]:
    """Return the latency and the bandwidth fitted to samples of (size, time).

    They come from a least-squares line through the median time of each size; neither is
    below 0. If the sizes hardly differ (the largest is not twice the smallest), noise
    would determine the slope. Then, and if larger messages took no longer, the latency
    is the median time and the bandwidth is infinite.

    Examples
    --------
    >>> fit_messages([(0, 1.0), (100, 3.0), (100, 3.0), (100, 9.0)])
    (1.0, 50.0)
    """
    by_size = _grouped(samples)
    points = [(size, median(times), len(times)) for size, times in by_size.items()]
    total = sum(count for _, _, count in points)
    if not points:
        return 0.0, inf
    middle_size = sum(size * count for size, _, count in points) / total
    middle_time = sum(time * count for _, time, count in points) / total
    spread = sum(count * (size - middle_size) ** 2 for size, _, count in points)
    together = sum(n * (x - middle_size) * (y - middle_time) for x, y, n in points)
    if max(by_size) < 2 * min(by_size) or together <= 0:
        return median(time for _, time in samples), inf
    time_per_size = together / spread
    latency = middle_time - time_per_size * middle_size
    if latency < 0:
        # The best line then passes through the origin: no latency, bandwidth alone.
        squares = sum(count * size * size for size, _, count in points)
        return 0.0, squares / sum(count * size * time for size, time, count in points)
    return latency, 1 / time_per_size


def _check_alike(timelines: Sequence[Timeline]) -> None:
    """Refuse timelines whose times cannot be compared."""
    if not timelines:
        hint = "such as pipeline.timeline()"
        raise misuse(f"Fitting costs needs at least one timeline, {hint}.")
    for item in timelines:
        _TIMELINE.check("An argument", item)
    units = sorted({timeline.unit for timeline in timelines})
    if len(units) > 1:
        names = " and in ".join(units)
        raise misuse(f"These timelines are in {names}; expected all in one unit.")
    counts = sorted({len(_stages_of(timeline)) for timeline in timelines})
    if len(counts) > 1:
        stages = " and ".join(map(str, counts))
        hint = "expected one model over the same stages"
        raise misuse(f"These timelines have {stages} stages; {hint}.")


def _stages_of(timeline: Timeline) -> range:
    actions = (span.action for span in chain.from_iterable(timeline.spans))
    stages = (action.stage for action in actions if not action.kind.is_of_rank)
    return range(1 + max(stages, default=0))


def _mean_times(timeline: Timeline) -> dict[tuple[ActionKind, int], float]:
    """Return the mean times of actions that ran alone, or of overlapped pairs if a
    stage has no others of a kind.
    """
    times: dict[tuple[ActionKind, int], float] = {}
    for is_alone in (False, True):
        groups = (it for it in _groups_of(timeline) if (len(it) == 1) == is_alone)
        spans = chain.from_iterable(groups)
        samples = (((it.kind, it.stage), end - start) for it, start, end in spans)
        times.update(_means(samples))
    return times


def _groups_of(timeline: Timeline) -> Iterator[list[Span]]:
    return chain.from_iterable(map(in_groups, timeline.spans))


def _overlaps(
    timeline: Timeline, times: dict[tuple[ActionKind, int], float]
) -> Iterator[float]:
    """Yield, for each overlapped pair, the part of the shorter action that was
    hidden.
    """
    for group in _groups_of(timeline):
        both = [times[action.kind, action.stage] for action, _, _ in group]
        if len(group) > 1 and min(both) > 0:
            hidden = sum(both) - (group[0].end - group[0].start)
            yield min(1.0, max(0.0, hidden / min(both)))


def _overhead(timeline: Timeline) -> float:
    """Return the mean time between two actions of a rank, if the second one was
    ready.
    """
    slots = list(chain.from_iterable(timeline.idle))
    gaps = [slot.end - slot.start for slot in slots if slot.cause is IdleCause.OVERHEAD]
    waits = sum(slot.cause is IdleCause.WAITING for slot in slots)
    rows = timeline.spans
    pairs = sum(max(0, len(in_groups(row)) - timeline.num_steps) for row in rows)
    pairs -= waits
    if pairs == 0:
        return 0.0
    return sum(gaps) / pairs


def _updates(timelines: Sequence[Timeline]) -> float | list[float]:
    """Return, by stage, the median time between two steps, equal parts for the stages
    of a rank; 0 for single steps.
    """
    times: defaultdict[int, list[float]] = defaultdict(list)
    for timeline in timelines:
        for row, changes in zip(timeline.spans, timeline.step_changes):
            actions = [span.action for span in row if not span.action.kind.is_of_rank]
            stages = {action.stage for action in actions}
            for stage in stages:
                spent = [change.begun - change.left for change in changes]
                times[stage] += [time / len(stages) for time in spent]
    if not times:
        return 0.0
    return [_median(times[stage]) for stage in _stages_of(timelines[0])]


def _message_samples(timelines: Iterable[Timeline]) -> Iterator[Sample]:
    """Yield (size, mean time) of the awaited messages, for each timeline and each
    size.
    """
    for timeline in timelines:
        awaited = (message for message in timeline.messages if message.was_awaited)
        samples = ((it.size or 0.0, it.arrived - it.sent) for it in awaited)
        yield from _means((size, max(0.0, time)) for size, time in samples)


def _sum_samples(timelines: Iterable[Timeline]) -> Iterator[Sample]:
    """Yield (size, mean time) of a round of the all-reduces, for each timeline and each
    size: all but one of its parts.

    Only rounds during which none of their ranks computed count, or all rounds if there
    is no such round: a rank checks for arrived parts only between two of its actions.
    """
    by_timeline = [list(_rounds_of(timeline)) for timeline in timelines]
    all_are_hidden = all(is_hidden for is_hidden, _ in chain.from_iterable(by_timeline))
    for rounds in by_timeline:
        yield from _means(it for is_hidden, it in rounds if is_hidden == all_are_hidden)


def _rounds_of(timeline: Timeline) -> Iterator[tuple[bool, Sample]]:
    """Yield, for each all-reduce, whether one of its ranks computed meanwhile, and size
    and time of a round.
    """
    for each in timeline.sums:
        if len(each.ranks) > 1:
            spans = (span for rank in each.ranks for span in timeline.spans[rank])
            begun = (span for span in spans if span.start < each.end)
            is_hidden = any(span.end > each.begin for span in begun)
            part = each.size * (1 - 1 / len(each.ranks))
            yield is_hidden, (part, (each.end - each.begin) / 2)


def _message_sizes(timelines: Iterable[Timeline], num_stages: int) -> list[float]:
    """Return, by stage, the mean size of its activations in messages, or 0 if no size
    is known.
    """
    messages = chain.from_iterable(timeline.messages for timeline in timelines)
    forwards = ((it.value.stage, it.size) for it in messages if it.value.kind is F)
    known = ((stage, size) for stage, size in forwards if size is not None)
    sizes = dict(_means(known))
    return [sizes.get(stage, 0.0) for stage in range(num_stages)]


def _means(pairs: Iterable[tuple[K, float]]) -> Iterator[tuple[K, float]]:
    return ((key, mean(numbers)) for key, numbers in _grouped(pairs).items())


def _grouped(pairs: Iterable[tuple[K, float]]) -> dict[K, list[float]]:
    """Return, by key, the numbers of the pairs that have it, in their order."""
    numbers: defaultdict[K, list[float]] = defaultdict(list)
    for key, number in pairs:
        numbers[key].append(number)
    return numbers


def _median(times: Iterable[float]) -> float:
    return median([*times] or [0.0])

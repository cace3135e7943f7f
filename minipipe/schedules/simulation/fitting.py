"""Fitting of costs to timelines: times of stages, latency and bandwidth of messages."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from math import inf
from statistics import mean, median
from typing import Any, TypeVar

from minipipe.errors import ScheduleCode, ScheduleError, quoted
from minipipe.schedules.action import ActionKind, B, F, I, W
from minipipe.schedules.simulation.span import IdleCause, in_groups
from minipipe.schedules.simulation.timeline import Timeline

K = TypeVar("K")


def fit_costs(timelines: Sequence[Timeline]) -> dict[str, Any]:
    """Return the attributes of Costs, fitted to timelines of one model over the same stages.

    A time is the mean within each timeline and the median over several, so that one step disturbed by another program
    has no influence. Latency and bandwidth are fitted to the messages whose receivers waited for them; the arrival
    times of other messages are unknown. The rounds of gradient all-reduces count as messages.

    Raises
    ------
    ScheduleError
        Code ``costs``, if there is no timeline, if an argument is not one, or if the timelines do not match.
    """
    _check_alike(timelines)
    stages = _stages_of(timelines[0])
    times = [_mean_times(timeline) for timeline in timelines]

    def usual(kind: ActionKind, stage: int) -> float:
        found = zip(timelines, times)  # with slices, the time of a whole sequence
        return _median(own[kind, stage] * timeline.num_slices for timeline, own in found if (kind, stage) in own)

    latency, bandwidth = fit_messages([*_message_samples(timelines), *_sum_samples(timelines)])
    sums = _grouped((found.actions[0].stage, found.size) for timeline in timelines for found in timeline.sums)
    overlaps = [found for timeline, own in zip(timelines, times) for found in _overlaps(timeline, own)]
    return {
        "forward": [usual(F, s) for s in stages],
        "backward_input": [usual(I if any((I, s) in found for found in times) else B, s) for s in stages],
        "backward_weight": [usual(W, s) for s in stages],
        "overhead": _median(map(_overhead, timelines)),
        "update": _updates(timelines),
        "latency": latency,
        "bandwidth": bandwidth,
        "overlap": _median(overlaps),
        "message_size": _message_sizes(timelines, len(stages)),
        "gradient_size": [mean(sums.get(s, [0.0])) for s in stages] if sums else 0.0,
        "unit": timelines[0].unit,
    }


def fit_messages(samples: Sequence[tuple[float, float]]) -> tuple[float, float]:
    """Return the latency and the bandwidth fitted to samples of (size, time).

    They come from a least-squares line through the median time of each size; neither is below 0. If the sizes hardly
    differ (the largest is not twice the smallest), noise would determine the slope. Then, and if larger messages took
    no longer, the latency is the median time and the bandwidth is infinite.

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
    together = sum(count * (size - middle_size) * (time - middle_time) for size, time, count in points)
    if max(by_size) < 2 * min(by_size) or together <= 0:
        return median(time for _, time in samples), inf
    time_per_size = together / spread
    latency = middle_time - time_per_size * middle_size
    if latency < 0:  # then the best line passes through the origin: no latency, bandwidth alone
        squares = sum(count * size * size for size, _, count in points)
        return 0.0, squares / sum(count * size * time for size, time, count in points)
    return latency, 1 / time_per_size


def _check_alike(timelines: Sequence[Timeline]) -> None:
    """Refuse timelines whose times cannot be compared."""
    if not timelines:
        raise _refusal("Fitting costs needs at least one timeline, such as pipeline.timeline().")
    for item in timelines:
        if not isinstance(item, Timeline):
            expected = "expected timelines, such as Costs.measured(first, second)"
            raise _refusal(f"{quoted(item)} is not a Timeline; {expected}.")
    units = sorted({timeline.unit for timeline in timelines})
    if len(units) > 1:
        raise _refusal(f"These timelines are in {' and in '.join(units)}; expected all in one unit.")
    counts = sorted({len(_stages_of(timeline)) for timeline in timelines})
    if len(counts) > 1:
        stages = " and ".join(map(str, counts))
        raise _refusal(f"These timelines have {stages} stages; expected one model over the same stages.")


def _refusal(message: str) -> ScheduleError:
    return ScheduleError.of(ScheduleCode.COSTS, message)


def _stages_of(timeline: Timeline) -> range:
    return range(max((span.action.stage for row in timeline.spans for span in row), default=0) + 1)


def _mean_times(timeline: Timeline) -> dict[tuple[ActionKind, int], float]:
    """Return the mean times of actions that ran alone, or of overlapped pairs if a stage has no others of a kind."""
    groups = [group for row in timeline.spans for group in in_groups(row)]
    joined, alone = (
        _grouped(((action.kind, action.stage), end - start) for group in groups for action, start, end in group
                 if (len(group) == 1) == is_alone)
        for is_alone in (False, True)
    )  # fmt: skip
    return {key: mean(found) for key, found in {**joined, **alone}.items()}


def _overlaps(timeline: Timeline, times: dict[tuple[ActionKind, int], float]) -> Iterator[float]:
    """Yield, for each overlapped pair, the part of the shorter action that was hidden."""
    for group in (group for row in timeline.spans for group in in_groups(row) if len(group) > 1):
        both = [times[action.kind, action.stage] for action, _, _ in group]
        if min(both) > 0:
            yield min(1.0, max(0.0, (sum(both) - (group[0].end - group[0].start)) / min(both)))


def _overhead(timeline: Timeline) -> float:
    """Return the mean time between two actions of a rank, if the second one was ready."""
    gaps = [slot.end - slot.start for slots in timeline.idle for slot in slots if slot.cause is IdleCause.OVERHEAD]
    waits = sum(slot.cause is IdleCause.WAITING for slots in timeline.idle for slot in slots)
    pairs = sum(max(0, len(in_groups(row)) - timeline.num_steps) for row in timeline.spans) - waits
    return sum(gaps) / pairs if pairs else 0.0


def _updates(timelines: Sequence[Timeline]) -> float | list[float]:
    """Return, by stage, the median time between two steps, equal parts for the stages of a rank; 0 for single steps."""
    times: defaultdict[int, list[float]] = defaultdict(list)
    for timeline in timelines:
        for row, changes in zip(timeline.spans, timeline.step_changes):
            stages = {span.action.stage for span in row}
            for stage in stages:
                times[stage] += [(change.begun - change.left) / len(stages) for change in changes]
    return [_median(times[stage]) for stage in _stages_of(timelines[0])] if times else 0.0


def _message_samples(timelines: Iterable[Timeline]) -> Iterator[tuple[float, float]]:
    """Yield (size, mean time) of the awaited messages, for each timeline and each size."""
    for timeline in timelines:
        awaited = (message for message in timeline.messages if message.was_awaited)
        times = _grouped((it.size or 0.0, max(0.0, it.arrived - it.sent)) for it in awaited)
        yield from ((size, mean(found)) for size, found in times.items())


def _sum_samples(timelines: Sequence[Timeline]) -> Iterator[tuple[float, float]]:
    """Yield (size, mean time) of a round of the all-reduces, for each timeline and each size: all but one of its parts.

    Only rounds during which none of their ranks computed count, or all rounds if there is no such round: a rank checks
    for arrived parts only between two of its actions.
    """
    rounds: dict[bool, list[list[tuple[float, float]]]] = {True: [], False: []}
    for timeline in timelines:
        of = {True: list[tuple[float, float]](), False: list[tuple[float, float]]()}
        for found in (found for found in timeline.sums if len(found.ranks) > 1):
            spans = (span for rank in found.ranks for span in timeline.spans[rank])
            is_hidden = any(span.start < found.end and span.end > found.begin for span in spans)
            part = found.size * (1 - 1 / len(found.ranks))
            of[is_hidden].append((part, (found.end - found.begin) / 2))
        for is_hidden, samples in of.items():
            rounds[is_hidden].append(samples)
    for samples in rounds[not any(rounds[False])]:
        yield from ((size, mean(times)) for size, times in _grouped(samples).items())


def _message_sizes(timelines: Iterable[Timeline], num_stages: int) -> list[float]:
    """Return, by stage, the mean size of its activations in messages, or 0 if no size is known."""
    messages = (message for timeline in timelines for message in timeline.messages)
    sizes = _grouped((it.value.stage, it.size) for it in messages if it.value.kind is F and it.size is not None)
    return [mean(sizes[stage]) if stage in sizes else 0.0 for stage in range(num_stages)]


def _grouped(pairs: Iterable[tuple[K, float]]) -> dict[K, list[float]]:
    """Return, by key, the numbers of the pairs that have it, in their order."""
    found: defaultdict[K, list[float]] = defaultdict(list)
    for key, number in pairs:
        found[key].append(number)
    return found


def _median(times: Iterable[float]) -> float:
    found = list(times)
    return median(found) if found else 0.0

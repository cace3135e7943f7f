"""Descriptions of the snapshots of a walk, as text for people or as JSON for
programs.
"""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from operator import attrgetter
from typing import Any

from minipipe.core.schedules.action import REDUCE_GRAD, Action, L
from minipipe.core.specs import SCHEDULE_COUNT
from minipipe.errors import misuse
from minipipe.render.descriptions import describe_action
from minipipe.render.stepper.walkthrough import (
    Activity,
    RankState,
    Snapshot,
    Walkthrough,
)
from minipipe.schedules.simulation.span import Message
from minipipe.schedules.simulation.timeline import format_number, format_time


def draw_snapshot(walkthrough: Walkthrough, snapshot: Snapshot) -> str:
    """Return a snapshot as text: the event, each rank, each message; the last snapshot
    adds the diagnosis.

    Examples
    --------
    >>> from minipipe import schedules
    >>> walkthrough = Walkthrough(schedules.gpipe(2, 1))
    >>> print(draw_snapshot(walkthrough, walkthrough[1]))
    step 1 of 4, time 0 of 6 units: rank 0 begins 0F0: forward of microbatch 0 on stage 0
      rank 0: 0F0 until 1; holds 1 (0)
      rank 1: waits for 0F0 on rank 0 until 1; holds nothing; next 1F0
    """
    progress = describe_progress(walkthrough, snapshot)
    lines = [f"{progress}: {describe_event(walkthrough, snapshot)}"]
    for rank, state in enumerate(snapshot.ranks):
        held = f"holds {describe_held(walkthrough, rank, state)}"
        parts = [describe_state(walkthrough, snapshot, rank)[0], held]
        if state.activity is Activity.WAITS:
            parts.append(f"next {state.action}")
        lines.append(f"  rank {rank}: {'; '.join(parts)}")
    for message in snapshot.messages:
        lines.append(f"  message: {describe_transit(walkthrough, snapshot, message)}")
    if snapshot.number == len(walkthrough) - 1:
        lines += describe_diagnosis(walkthrough)
    return "\n".join(lines)


def describe_progress(walkthrough: Walkthrough, snapshot: Snapshot) -> str:
    """Return the number and the time of a snapshot, each with its maximum."""
    last = len(walkthrough) - 2
    unit = walkthrough.timeline.unit
    end = format_time(walkthrough[-1].time, unit)
    if snapshot.number > last:
        return f"end, time {end}"
    now = format_number(snapshot.time, unit)
    return f"step {snapshot.number} of {last}, time {now} of {end}"


def describe_event(walkthrough: Walkthrough, snapshot: Snapshot) -> str:
    """Describe the event of a snapshot.

    Examples
    --------
    >>> from minipipe import schedules
    >>> walkthrough = Walkthrough(schedules.gpipe(2, 1))
    >>> (
    ...     describe_event(walkthrough, walkthrough[0]),
    ...     describe_event(walkthrough, walkthrough[-1]),
    ... )
    ('nothing has begun', 'every rank has ended')
    """
    if snapshot.event is not None:
        overlap = _overlap(walkthrough, snapshot.event.action)
        action = describe_action(snapshot.event.action)
        return f"rank {snapshot.event.rank} begins {action}{overlap}"
    if snapshot.number == 0:
        return "nothing has begun"
    stuck = [str(rank) for rank in walkthrough.stuck]
    if not stuck:
        return "every rank has ended"
    if len(stuck) == 1:
        return f"rank {stuck[0]} is stuck"
    return f"ranks {', '.join(stuck)} are stuck"


def describe_state(
    walkthrough: Walkthrough, snapshot: Snapshot, rank: int
) -> list[str]:
    """Describe the state of a rank in several lengths, the longest first.

    Examples
    --------
    >>> from minipipe import schedules
    >>> walkthrough = Walkthrough(schedules.gpipe(2, 1))
    >>> describe_state(walkthrough, walkthrough[1], 1)
    ['waits for 0F0 on rank 0 until 1', 'waits for 0F0 on rank 0', '0F0 on rank 0?']
    """
    state = snapshot.ranks[rank]
    if state.activity is Activity.DONE:
        return [*_describe_last_sum(walkthrough, snapshot.time, rank), "done"]
    if state.activity is Activity.BEGINS:
        return [f"begins {state.action} now", f"{state.action} now"]
    until = ""
    if state.until is not None:
        until = f" until {format_number(state.until, walkthrough.timeline.unit)}"
    if state.activity is Activity.RUNS:
        return _describe_action(walkthrough, state, until)
    if state.awaited is None:
        return [f"between two actions{until}", "between two actions"]
    awaited = _describe_awaited(walkthrough, rank, state)
    if state.activity is Activity.STUCK:
        short = f"stuck: {state.awaited}"
        stuck = f"stuck at {state.action}: needs {awaited}"
        return [stuck, f"stuck: needs {awaited}", short]
    pair = [state.action]
    if state.action in walkthrough.partners:
        pair.append(walkthrough.partners[state.action])
    coming = (each for each in snapshot.messages if each.arrived > snapshot.time)
    if any(message.used_by in pair for message in coming):
        start = "waits for the message of"
        return [f"{start} {awaited}{until}", f"{start} {state.awaited}{until}"]
    return [f"waits for {awaited}{until}", f"waits for {awaited}", f"{awaited}?"]


def _describe_action(
    walkthrough: Walkthrough, state: RankState, until: str
) -> list[str]:
    """Describe the action of a rank, perhaps a SEND that waits for its receiver."""
    action = str(state.action)
    if state.awaited is None:
        overlap = _overlap(walkthrough, state.action)
        return [f"{action}{overlap}{until}", f"{action}{until}", action]
    reached = f"until rank {state.source} reaches {state.awaited}"
    short = f"{action}: {state.awaited} on rank {state.source}?"
    return [f"{action} {reached}", short]


def _describe_last_sum(
    walkthrough: Walkthrough, time: float, rank: int
) -> Iterator[str]:
    """Yield the last gradient all-reduce of a rank that is otherwise done, if it has
    not ended.
    """
    running = (each for each in walkthrough.timeline.sums if each.end > time)
    reductions = [each for each in running if rank in each.ranks]
    if reductions:
        last = max(reductions, key=attrgetter("end"))
        until = format_number(last.end, walkthrough.timeline.unit)
        reduction = f"the gradient all-reduce of stage {last.actions[0].stage}"
        yield f"done, except for {reduction} until {until}"


def _overlap(walkthrough: Walkthrough, action: Action | None) -> str:
    if action in walkthrough.partners:
        return f", overlapped with {walkthrough.partners[action]}"
    return ""


def describe_held(walkthrough: Walkthrough, rank: int, state: RankState) -> str:
    """Return how many (stage, microbatch) pairs a rank holds, and the microbatches, by
    stage if it has several stages.

    Examples
    --------
    >>> from minipipe import schedules
    >>> walkthrough = Walkthrough(schedules.zb_v(1, 4))
    >>> snapshot = walkthrough[5]
    >>> str(snapshot.event.action), describe_held(walkthrough, 0, snapshot.ranks[0])
    ('0F1', '2 (0:0,1)')
    """
    if not state.held:
        return "nothing"
    by_stage: defaultdict[int, list[int]] = defaultdict(list)
    program = walkthrough.program
    for stage, k in sorted(state.held):
        by_stage[stage].append(program.number_of(k))
    names_stage = len(program.stages_of(rank)) > 1
    parts = []
    for stage, numbers in by_stage.items():
        listed = _ranges(numbers, program.microbatches)
        if names_stage:
            listed = f"{stage}:{listed}"
        parts.append(listed)
    memory = ""
    if shows_memory(walkthrough):
        memory = f" {state.memory:g} {walkthrough.costs.memory_unit}"
    return f"{len(state.held)} ({' '.join(parts)}){memory}"


def shows_memory(walkthrough: Walkthrough) -> bool:
    """Return whether to show memory beside the number of pairs: only if the costs give
    the size of activations.
    """
    costs = walkthrough.costs
    sizes = (costs.activation, costs.weight_activation, costs.transient_activation)
    return sizes != (1, None, 0)


def describe_transit(
    walkthrough: Walkthrough, snapshot: Snapshot, message: Message
) -> str:
    """Describe a message and its progress: in flight, or delivered.

    Examples
    --------
    >>> from minipipe import schedules
    >>> walkthrough = Walkthrough(schedules.one_f_one_b(2, 2))
    >>> snapshot = walkthrough[walkthrough.at_time(2)]
    >>> describe_transit(walkthrough, snapshot, snapshot.messages[0])
    'result of 0F1, rank 0 to rank 1: delivered, not yet consumed by 1F1'
    """
    ranks = f"rank {message.source} to rank {message.destination}"
    route = f"result of {message.value}, {ranks}"
    if message.arrived <= snapshot.time:
        return f"{route}: delivered, not yet consumed by {message.used_by}"
    arrival = format_number(message.arrived, walkthrough.timeline.unit)
    return f"{route}: arrives at {arrival} for {message.used_by}"


def describe_diagnosis(walkthrough: Walkthrough) -> list[str]:
    """Return the diagnosis: the figures of a legal schedule, or the first problem, the
    cycle and the stuck ranks.

    Examples
    --------
    >>> from minipipe import Schedule
    >>> print(
    ...     "\\n".join(
    ...         describe_diagnosis(
    ...             Walkthrough(Schedule.from_text("0F0 0B0 0F1 0B1\\n1F1 1B1 1F0 1B0"))
    ...         )[1:]
    ...     )
    ... )
    the cycle: rank 0 waits for rank 1, rank 1 waits for rank 0
    rank 0 is stuck at 0B0 (position 1 of its list): it needs 1B0, position 3 of rank 1
    rank 1 is stuck at 1F1 (position 0 of its list): it needs 0F1, position 2 of rank 0
    """
    figures = str(walkthrough.timeline)
    if walkthrough.is_legal:
        return [figures]
    first, *others = walkthrough.problems
    problem = f"[{first.code}] {first.message}"
    if others:
        problem += f" ({len(others)} more: minipipe check lists them)"
    lines = [problem, *_cycle(walkthrough.cycle)]
    if walkthrough.is_timed:
        return [*lines, figures]
    for rank, state in walkthrough.stuck.items():
        stuck = f"{state.action} (position {state.position} of its list)"
        needed = _describe_position(walkthrough, rank, state)
        lines.append(f"rank {rank} is stuck at {stuck}: it needs {needed}")
    if not walkthrough.stuck:
        end = format_time(walkthrough[-1].time, "rounds")
        lines.append(f"it still ran to completion, in {end}")
    return lines


_NOTHING = "values that no action gives"


def _describe_awaited(walkthrough: Walkthrough, rank: int, state: RankState) -> str:
    source = state.source
    awaited = state.awaited
    assert awaited is not None
    if source is None:
        return f"{awaited}, of a stage that does not exist"
    if awaited not in walkthrough.program.first_rank_with:
        return f"{awaited}, which is missing"
    if awaited.kind is REDUCE_GRAD and walkthrough.is_timed:
        reduction = f"the gradient all-reduce of stage {awaited.stage}"
        if source != rank:
            reduction += f" with rank {source}"
        return reduction
    if awaited.kind is L and walkthrough.is_timed:
        return f"the activations that {awaited} loads"
    if _has_no_giver(walkthrough, rank, state):
        return _NOTHING
    if awaited.kind is REDUCE_GRAD and source == rank:
        return f"a REDUCE_GRAD of another replica, to meet {awaited}: it is missing"
    if source == rank:
        return f"{awaited}, later in its own list"
    return f"{awaited} on rank {source}"


def _has_no_giver(walkthrough: Walkthrough, rank: int, state: RankState) -> bool:
    """Return whether no action gives the values that a rank waits for; a REDUCE_GRAD
    that has them may lack its partner.
    """
    action = state.action
    if action is None or state.awaited != action:
        return False
    return (
        action.kind is not REDUCE_GRAD
        or walkthrough.flow.uses(rank, state.position) is None
    )


def _describe_position(walkthrough: Walkthrough, rank: int, state: RankState) -> str:
    """Return the action that a stuck rank needs, and its position."""
    source = state.source
    awaited = state.awaited
    if source is None or awaited is None:
        return f"{awaited}, but there is no such stage"
    if awaited not in walkthrough.program.first_rank_with:
        return f"{awaited}, which is missing"
    if _has_no_giver(walkthrough, rank, state):
        return _NOTHING
    position = walkthrough.program.actions[source].index(awaited)
    return f"{awaited}, position {position} of rank {source}"


def _cycle(cycle: Sequence[int]) -> Iterator[str]:
    if len(cycle) > 1:
        pairs = zip(cycle, (*cycle[1:], cycle[0]))
        waits = [f"rank {a} waits for rank {b}" for a, b in pairs]
        yield f"the cycle: {', '.join(waits)}"
    elif cycle:
        yield f"rank {cycle[0]} waits for itself"


def _ranges(numbers: Sequence[int], microbatches: Sequence[Any]) -> str:
    """Write ascending numbers of microbatches with their runs abbreviated:
    ``0-3,5``.
    """
    runs: list[list[int]] = []
    for number in numbers:
        if runs and number == runs[-1][-1] + 1:
            runs[-1].append(number)
        else:
            runs.append([number])
    texts = []
    for run in runs:
        joint = "-" if len(run) > 2 else ","
        ends = sorted({run[0], run[-1]})
        texts.append(joint.join(str(microbatches[number]) for number in ends))
    return ",".join(texts)


def chosen_snapshots(
    walkthrough: Walkthrough,
    first: int | None = None,
    last: int | None = None,
    at: int | None = None,
) -> range:
    """Return the numbers of the requested snapshots.

    Parameters
    ----------
    walkthrough : Walkthrough
    first, last : int, optional
        By default the first and the last snapshot. Both are included.
    at : int, optional
        A single snapshot. Negative numbers count from the end.

    Raises
    ------
    ScheduleError
        Code ``value``, if a number is out of range, if ``first`` is behind ``last``, or
        if ``at`` is combined with one of them.

    Examples
    --------
    >>> from minipipe import schedules
    >>> walkthrough = Walkthrough(schedules.gpipe(2, 1))
    >>> chosen_snapshots(walkthrough, first=2), chosen_snapshots(walkthrough, at=-1)
    (range(2, 6), range(5, 6))
    """
    chosen = {"--from": first or 0, "--to": -1}
    if last is not None:
        chosen["--to"] = last
    if at is not None:
        if (first, last) != (None, None):
            reason = "--at prints one step, and --from and --to print several"
            raise misuse(f"{reason}; choose one of these.")
        chosen = {"--at": at}
    count = len(walkthrough)
    expected = f"a step from 0 to {count - 1}, or from -1 to {-count} from the end"
    step = SCHEDULE_COUNT._replace(minimum=-count, maximum=count - 1, expected=expected)
    for option, number in chosen.items():
        step.check(option, number)
    numbers = [number % count for number in chosen.values()]
    if numbers[-1] < numbers[0]:
        reason = f"--from is {first} and --to is {last}"
        raise misuse(f"{reason}; expected --from to be before --to.")
    return range(numbers[0], numbers[-1] + 1)


def write_snapshots(
    walkthrough: Walkthrough, numbers: Iterable[int], as_json: bool
) -> Iterator[str]:
    """Yield, for each snapshot, its text or its line of JSON."""
    for number in numbers:
        snapshot = walkthrough[number]
        if as_json:
            yield json.dumps(snapshot_as_data(walkthrough, snapshot))
        else:
            yield draw_snapshot(walkthrough, snapshot)


def snapshot_as_data(walkthrough: Walkthrough, snapshot: Snapshot) -> dict[str, Any]:
    """Return a snapshot as data for JSON; the last one has the diagnosis."""
    event = snapshot.event
    data: dict[str, Any] = {
        "step": snapshot.number,
        "time": snapshot.time,
        "unit": walkthrough.timeline.unit,
        "event": event and {**event._asdict(), "action": str(event.action)},
        "ranks": [_state_as_data(walkthrough, state) for state in snapshot.ranks],
        "messages": [
            _message_as_data(message, snapshot.time) for message in snapshot.messages
        ],
    }
    if snapshot.number == len(walkthrough) - 1:
        data["verdict"] = _diagnosis(walkthrough)
    return data


def _state_as_data(walkthrough: Walkthrough, state: RankState) -> dict[str, Any]:
    data = state._asdict()
    held = [[stage, walkthrough.program.number_of(k)] for stage, k in state.held]
    actions = {name: data[name] and str(data[name]) for name in ("action", "awaited")}
    return {"doing": data.pop("activity"), **data, **actions, "held": held}


def _message_as_data(message: Message, time: float) -> dict[str, Any]:
    names = ("source", "destination", "sent", "arrived")
    about = {name: getattr(message, name) for name in names}
    return {
        "value": str(message.value),
        "used_by": str(message.used_by),
        **about,
        "has_arrived": message.arrived <= time,
    }


_FIGURES = ("makespan", "bubble_fraction", "peak_activations", "peak_memory")


def _diagnosis(walkthrough: Walkthrough) -> dict[str, Any]:
    diagnosis: dict[str, Any] = {
        "legal": walkthrough.is_legal,
        "problems": [problem._asdict() for problem in walkthrough.problems],
        "stuck": list(walkthrough.stuck),
        "cycle": list(walkthrough.cycle),
    }
    if walkthrough.is_timed:
        summary = walkthrough.timeline.summary()
        diagnosis |= {name: summary[name] for name in _FIGURES}
    return diagnosis

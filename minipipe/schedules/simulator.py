"""The simulator: when would each action run, if actions and messages took so long?"""

from __future__ import annotations

from math import inf

from minipipe.errors import Problem, ScheduleError
from minipipe.schedules.action import Action, ActionKind
from minipipe.schedules.costs import Costs
from minipipe.schedules.lowering import lower
from minipipe.schedules.memory import memory_after, peak_activations
from minipipe.schedules.order import complete_walk
from minipipe.schedules.schedule import Schedule, check_schedule
from minipipe.schedules.span import Span
from minipipe.schedules.timeline import Timeline

__all__ = ["simulate"]

F, B, I, W = ActionKind.FORWARD, ActionKind.BACKWARD, ActionKind.BACKWARD_INPUT, ActionKind.BACKWARD_WEIGHT


def simulate(schedule: Schedule, costs: Costs | None = None) -> Timeline:
    """Predict the timeline of a schedule: each action starts once its rank is free and what it needs is there.

    Local; no messages. Exact, and linear in the number of actions. It does not model messages that slow each other
    down, nor ranks that share a core.

    Parameters
    ----------
    schedule : Schedule
        A legal one. Where it holds SEND and RECV, a value leaves when its SEND is reached, otherwise when it is there.
    costs : Costs, optional
        By default F, I and W take one unit each, and messages nothing.

    Returns
    -------
    Timeline
        Its spans are computations; where sends block, SEND and RECV too.

    Raises
    ------
    ScheduleError
        When the schedule cannot run to its end (code ``deadlock``) or the costs do not fit (``costs``).

    Examples
    --------
    >>> from minipipe import schedules
    >>> timeline = simulate(schedules.one_f_one_b(4, 8))
    >>> timeline.makespan, round(timeline.bubble_fraction, 4), timeline.peak_activations
    (33.0, 0.2727, (4, 3, 2, 1))
    """
    check_schedule(schedule)
    costs = Costs() if costs is None else costs
    if not isinstance(costs, Costs):
        message = f"costs is {costs!r}; expected Costs, such as Costs(forward=2) or Costs.parse('F=2,latency=0.1')."
        raise ScheduleError([Problem("costs", message)])
    simulation = _Simulation(lower(schedule) if costs.sends_block else schedule, costs)
    spans = simulation.run()
    if not max(simulation.free) < inf:
        raise ScheduleError([Problem("costs", "The times add up to more than a number can hold; choose another unit.")])
    memory = memory_after(simulation.program if costs.sends_block else schedule.without_communication(), costs)
    return Timeline(
        schedule.name,
        spans,
        peak_activations(schedule),
        tuple(max((0.0, *held)) for held in memory),
        memory=memory,
        unit=costs.unit,
        memory_unit=costs.memory_unit,
        message_times=simulation.message_times,
        sent=simulation.sent,
    )


class _Simulation:
    """Goes through a program in dependency order and gives every action its start and end."""

    def __init__(self, program: Schedule, costs: Costs) -> None:
        self.program = program
        self.steps = complete_walk(program, sends_are_buffered=not costs.sends_block)
        self.durations = costs.durations(program.num_stages)
        self.message_times = costs.message_times(program)
        self.overhead = float(costs.overhead)
        self.sends_block = costs.sends_block
        self.spans: list[list[Span]] = [[] for _ in range(program.num_ranks)]
        self.free = [0.0] * program.num_ranks
        size = program.num_stages * program.num_microbatches
        # When (stage, microbatch) can use its input and its gradient.
        self.input_at = [0.0] * size
        self.gradient_at = [0.0] * size
        self.sent: dict[tuple[int, bool, int], tuple[float, int, int]] = {}  # as in Timeline
        self.reached: dict[Action, float] = {}  # the half of a message that was reached first, where sends block

    def run(self) -> tuple[tuple[Span, ...], ...]:
        free, input_at, gradient_at = self.free, self.input_at, self.gradient_at
        message_times, m, overhead = self.message_times, self.program.num_microbatches, self.overhead
        forward, backward, inputs, weights = (self.durations[kind] for kind in (F, B, I, W))
        leaves_by_itself = [self.leaves_by_itself(stage) for stage in range(self.program.num_stages)]
        append = [row.append for row in self.spans]
        between = [0.0] * self.program.num_ranks  # before a rank's next action
        for rank, action in self.steps.order():
            stage, kind, k = action
            start = free[rank] + between[rank]
            if kind is F:
                place = stage * m + k
                if input_at[place] > start:
                    start = input_at[place]
                end = start + forward[stage]
                if leaves_by_itself[stage]:
                    input_at[place + m] = end + message_times[stage]
            elif kind is B or kind is I:
                place = stage * m + k
                if gradient_at[place] > start:
                    start = gradient_at[place]
                end = start + (backward if kind is B else inputs)[stage]
                if stage and leaves_by_itself[stage - 1]:
                    gradient_at[place - m] = end + message_times[stage - 1]
            elif kind is W:
                end = start + weights[stage]
            else:
                self.pass_message(rank, action)
                continue
            free[rank] = end
            between[rank] = overhead
            append[rank](Span(action, start, end))
        return tuple(map(tuple, self.spans))

    def leaves_by_itself(self, stage: int) -> bool:
        """Tell whether what passes between a stage and the next needs no SEND of its own."""
        is_last = stage == self.program.num_stages - 1
        return not is_last and not (self.program.has_communication and self.program.crosses_ranks(stage))

    def pass_message(self, rank: int, action: Action) -> None:
        """Come to a SEND or RECV. Where sends block, the later half of the two lets the message pass."""
        now, is_send = self.free[rank], action.kind in (ActionKind.SEND_F, ActionKind.SEND_B)
        if not self.sends_block:
            if is_send:
                arrival = now + self.message_time(action)
                value = action.stage, action.kind is ActionKind.SEND_F, action.microbatch
                self.sent[value] = arrival, rank, len(self.spans[rank]) - 1
                self.arrive(action, arrival)
            return
        if not is_send:
            self.spans[rank].append(Span(action, now, now))
        send = action if is_send else action.partner
        if send not in self.reached:
            self.reached[send] = now
            return
        sender = self.program.placement[send.stage]
        end = max(now, self.reached.pop(send)) + self.message_time(send)
        self.spans[sender].append(Span(send, self.free[sender], end))
        self.free[sender] = end
        self.arrive(send, end)

    def message_time(self, send: Action) -> float:
        return self.message_times[send.stage if send.kind is ActionKind.SEND_F else send.stage - 1]

    def arrive(self, send: Action, time: float) -> None:
        place = send.stage * self.program.num_microbatches + send.microbatch
        if send.kind is ActionKind.SEND_F:
            self.input_at[place + self.program.num_microbatches] = time
        else:
            self.gradient_at[place - self.program.num_microbatches] = time

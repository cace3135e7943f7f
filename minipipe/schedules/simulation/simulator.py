"""The simulator: the start and the end of each action, given the times of actions and messages.

It visits the actions in topological order. The tags are repeated at the code::

    rank 0   | 0F0 |----------------------| 0F1 | …
                 [4] available at end + time in flight
                    \\
    rank 1           [2]| 1F0 | …
                     [1] the rank is free, and the overhead between two actions is over
                     [2] the value that it consumes is available
                     [3] it ends after the time that it takes

An overlapped forward and backward each wait for the inputs of both, and both end at once.

An O or L takes its rank no time. The copy runs concurrently, after earlier copies in the same direction, and the R, B
or I after an L waits for it. A REDUCE_GRAD also takes its rank no time. The all-reduce begins when all replicas have
arrived and takes the time of its two rounds of messages. Only a U waits for it: the rank continues meanwhile.
"""

from __future__ import annotations

from math import inf

from minipipe.errors import ScheduleCode, ScheduleError, misuse, quoted
from minipipe.schedules.action import REDUCE_GRAD, Action, L, O
from minipipe.schedules.action_table import ActionTable, check_table, collector_paused
from minipipe.schedules.analysis.activations import Level, peak_activations, peaks, without_copies
from minipipe.schedules.analysis.dependencies import Value
from minipipe.schedules.analysis.lowering import lower
from minipipe.schedules.analysis.updates import rank_levels
from minipipe.schedules.analysis.verifier import verify
from minipipe.schedules.analysis.walk import complete_walk
from minipipe.schedules.simulation.costs import Costs
from minipipe.schedules.simulation.fluid import Fluid
from minipipe.schedules.simulation.span import Span, StepChange, with_copies
from minipipe.schedules.simulation.timeline import Timeline
from minipipe.schedules.simulation.timing import Timing, new_span
from minipipe.schedules.transforms import repeat

TIMES_TOO_LARGE = "The sum of the times is too large for a number; choose a larger unit."
MEMORY_TOO_LARGE = "The sum of the memory is too large for a number; choose a larger unit."


def simulate(schedule: ActionTable, costs: Costs | None = None, num_steps: int = 1, wait: bool = False) -> Timeline:
    """Predict the timeline of a schedule: each action starts once its rank is free and its value is available.

    Local; no messages. The result is exact; the time is linear in the number of actions. If ranks share cores or links
    (``costs.cores``, ``costs.hosts``), actions and messages take longer while they share;
    ``schedules/simulation/fluid.py`` has the rules.

    Parameters
    ----------
    schedule : Schedule or Program
        A legal schedule. In a program a value is sent when its SEND is reached, in a schedule when it is computed.
    costs : Costs, optional
        By default F, I and W take one unit each, and messages take no time.
    num_steps : int
        Training steps, one after another. Between them each rank takes ``costs.update`` for its stages.
    wait : bool
        Whether a rank waits for the loss at the end of a step, as in ``Pipeline.step``: until the rank of the last
        stage has also ended the step. Otherwise it continues at once, as with ``Pipeline.step(…, wait=False)``.

    Returns
    -------
    Timeline
        Its spans are computations and, if sends block, SEND and RECV.

    Raises
    ------
    ScheduleError
        If the schedule is not legal, with the codes of :func:`minipipe.verify` (``rendezvous-deadlock`` only if sends
        block); code ``costs``, if the costs do not fit.

    Examples
    --------
    >>> from minipipe import schedules
    >>> timeline = simulate(schedules.one_f_one_b(4, 8))
    >>> timeline.makespan, round(timeline.bubble_fraction, 4), timeline.peak_activations
    (33.0, 0.2727, (4, 3, 2, 1))
    """
    check_table(schedule)
    check_costs(costs)
    costs = (costs or Costs()).sliced(schedule.num_slices)
    _check_legal(schedule, costs)
    whole = repeat(schedule, num_steps)
    hosts, step = costs.hosts_of(schedule), lower(schedule) if costs.sends_block else schedule
    simulation = Fluid(step, costs, num_steps, hosts) if hosts is not None else _Exact(step, costs, num_steps)
    with collector_paused():
        latest = simulation.run(wait)
        if not latest * len(simulation.spans) < inf:  # the idle time of all ranks is a part of this sum
            raise misuse(TIMES_TOO_LARGE, ScheduleCode.COSTS)
        ran = (simulation.table if costs.sends_block else whole.schedule).without_sums()
        if any(simulation.copies):
            ran = ran.with_rows(type(ran), map(with_copies, simulation.spans, simulation.copies))
        levels = _levels(ran, costs)
        levels = list(map(without_copies, ran.actions, levels))
        return Timeline(
            f"{whole.title}, each with its loss" if wait and num_steps > 1 else whole.title,
            tuple(map(tuple, simulation.spans)),
            peak_activations(ran),
            peaks(levels),
            memory=tuple(tuple(held for _, held in row) for row in levels),
            memory_during=tuple(tuple(held for held, _ in row) for row in levels),
            unit=costs.unit,
            memory_unit=costs.memory_unit,
            message_times=simulation.message_times,
            sent=simulation.sent,
            arrived=simulation.arrived,
            step_changes=tuple(map(tuple, simulation.changes)) if num_steps > 1 else (),
            sums=tuple(sorted(simulation.sums, key=lambda found: found.actions[0].microbatch)),
            copies=tuple(map(tuple, simulation.copies)) if any(simulation.copies) else (),
            num_slices=schedule.num_slices,
        )


def check_costs(given: object) -> None:
    """Refuse a value that is neither None nor Costs."""
    if not (given is None or isinstance(given, Costs)):
        message = (
            f"costs is {quoted(given)}; expected Costs, such as Costs(forward=2) or Costs.parse('F=2,latency=0.1')."
        )
        raise ScheduleError.of(ScheduleCode.COSTS, message)


def _check_legal(schedule: ActionTable, costs: Costs) -> None:
    """Refuse an illegal schedule. A deadlock that buffered sends avoid counts only if sends block."""
    try:
        verify(schedule)
    except ScheduleError as error:
        if costs.sends_block or error.problems[0].code is not ScheduleCode.RENDEZVOUS_DEADLOCK:
            raise


def peak_memory(schedule: ActionTable, costs: Costs) -> tuple[float, ...]:
    """Return, by rank, the most memory that activations take at once, and further versions of weights.

    Parameters
    ----------
    schedule : Schedule or Program
    costs : Costs

    Returns
    -------
    tuple of float
        By rank, in the memory unit of the costs.

    Examples
    --------
    >>> from minipipe import Costs, schedules
    >>> peak_memory(schedules.one_f_one_b(2, 4), Costs(activation=[10, 20]))
    (20.0, 20.0)
    """
    return peaks(_levels(schedule, costs.sliced(schedule.num_slices)))


def _levels(table: ActionTable, costs: Costs) -> list[list[Level]]:
    n = table.num_stages
    levels = rank_levels(table, costs.memory(n), costs.weight_memory(n), costs.by_stage("keys_values", n))
    if not sum(peaks(levels)) < inf:  # nor for nan, which is inf - inf
        raise misuse(MEMORY_TOO_LARGE, ScheduleCode.COSTS)
    return levels


class _Exact(Timing):
    """Visits a table in topological order, once for each step, and gives every action its start and end."""

    def __init__(self, step: ActionTable, costs: Costs, num_steps: int) -> None:
        super().__init__(step, costs, num_steps)
        order = complete_walk(step, sends_are_buffered=not costs.sends_block).order()
        self.order = order if num_steps == 1 else list(order)
        self.num_microbatches = step.num_microbatches
        self.available = [0.0] * self.num_events  # by event: when other ranks can use its value
        self.free = [0.0] * self.table.num_ranks
        self.summed = [0.0] * self.table.num_ranks  # by rank: when its last all-reduce ended
        self.reached: dict[Action, float] = {}  # by SEND: when the first half of a message was reached, if sends block

    def run(self, wait: bool) -> float:
        """Run all steps, and return the latest end; between two of them ranks wait for the loss, or do not."""
        for step in range(self.num_steps):
            if step:
                self.change_step(wait)
            self.run_step(step)
        return max(*self.free, *self.summed)

    def run_step(self, step: int) -> None:
        free, available, plan, first = self.free, self.available, self.plan, step * self.num_microbatches
        copied, has_pairs, parts, indices = self.copied, bool(self.in_pairs), self.parts, self.table.microbatches
        number_of = self.number_of if self.table.num_slices > 1 else None
        append = [row.append for row in self.spans]
        between = [0.0] * self.table.num_ranks  # before a rank's next action
        for rank, action in self.order:
            if first:
                action = action._replace(microbatch=indices[self.number_of(action.microbatch) + first])
            if has_pairs and action in self.in_pairs:
                if action in self.joined:
                    self.run_pair(rank, action, free[rank] + between[rank])
                    between[rank] = self.overhead
                continue
            stage, kind, k = action
            if kind not in plan:
                self.come_to(rank, action)
                continue
            if number_of:
                k = number_of(k)
            awaits, duration, completes, in_flight = plan[kind][stage]
            if parts:
                duration *= self.part_of(kind, k)
            start = free[rank] + between[rank]  # [1]
            if awaits >= 0 and available[awaits + k] > start:  # [2]
                start = available[awaits + k]
            if copied and copied.get(action[::2], start) > start:
                start = copied[action[::2]]
            free[rank] = end = start + duration  # [3]
            if completes >= 0:  # [4]
                available[completes + k] = end + in_flight
            between[rank] = self.overhead
            append[rank](new_span((action, start, end)))

    def run_pair(self, rank: int, forward: Action, free: float) -> None:
        """Run a forward overlapped with a backward: [1] to [4] of both, at once."""
        pair = self.pair(forward)
        values = (self.available[awaits] for _, awaits, _, _ in pair if awaits >= 0)
        start = max([free, self.copied.get(self.joined[forward][::2], 0.0), *values])
        self.free[rank] = end = start + self.pair_times[forward]
        for action, _, completes, in_flight in pair:
            self.available[completes] = end + in_flight
            self.spans[rank].append(Span(action, start, end))

    def change_step(self, wait: bool) -> None:
        """Let every rank update its parameters; those that wait, once the rank of the last stage has ended the step."""
        ends = list(map(max, self.free, self.summed))
        last = max(self.table.ranks_of(self.table.num_stages - 1), key=ends.__getitem__)
        for rank, end in enumerate(ends):
            after = last if wait and ends[last] > end else rank
            self.free[rank] = ends[after] + self.updates[rank]
            self.changes[rank].append(StepChange(ends[after], self.free[rank], after))

    def come_to(self, rank: int, action: Action) -> None:
        """Reach an action that takes its rank no time: a copy, an all-reduce or a message."""
        if action.kind is O or action.kind is L:
            self.copy(rank, action, self.free[rank])
        else:
            (self.contribute if action.kind is REDUCE_GRAD else self.pass_message)(rank, action)

    def contribute(self, rank: int, action: Action) -> None:
        """Reach an all-reduce; the last replica starts it."""
        found = self.come(action, self.free[rank])
        if found:
            end = found.begin + self.sum_times[action.stage][1]
            self.sums.append(found._replace(end=end))
            for member, replica in zip(found.actions, found.ranks):
                self.available[self.event_of(member)] = end
                self.summed[replica] = max(end, self.summed[replica])

    def pass_message(self, rank: int, action: Action) -> None:
        """Reach a SEND or RECV. If sends block, the later one of the two starts the message."""
        now, value = self.free[rank], Value.carried_by(action)
        is_send, time = action == value.send, self.message_times[value.cut]
        if not self.sends_block:
            _, _, awaits, completes = self.rules[action.kind][action.stage]
            k = self.number_of(action.microbatch)
            arrival = now + time if is_send else self.available[awaits + k]
            self.available[completes + k] = arrival
            if is_send:
                self.sent[value] = arrival, rank, len(self.spans[rank]) - 1
            return
        if not is_send:
            self.spans[rank].append(Span(action, now, now))
        if value.send not in self.reached:
            self.reached[value.send] = now
            return
        sender = self.table.rank_of(value.stage, value.microbatch)
        end = max(now, self.reached.pop(value.send)) + time
        self.spans[sender].append(Span(value.send, self.free[sender], end))
        self.free[sender] = end
        *_, completes = self.rules[value.receive.kind][value.consumer_stage]
        self.available[completes + self.number_of(value.microbatch)] = end

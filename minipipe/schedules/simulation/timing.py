"""The common state of simulations: the rules of a table, the times of its actions and messages, and the spans found."""

from __future__ import annotations

from collections.abc import Callable
from functools import cached_property, partial
from math import inf

from minipipe.schedules.action import Action, ActionKind, U
from minipipe.schedules.action_table import ActionTable
from minipipe.schedules.analysis.dependencies import Dependencies, Value
from minipipe.schedules.analysis.replicas import Members, gradient_sums
from minipipe.schedules.analysis.walk import NOTHING, NumberedRules
from minipipe.schedules.simulation.costs import Costs, relative_work
from minipipe.schedules.simulation.span import GradientSum, Span, StepChange
from minipipe.schedules.transforms import repeat

# The constructor of a NamedTuple takes twice as long; a large schedule has a million spans.
new_span: Callable[[tuple[Action, float, float]], Span] = partial(tuple.__new__, Span)


class Timing:
    """A table of several training steps, the times of its actions and messages, and the spans of a simulation.

    Parameters
    ----------
    step : Schedule or Program
        One training step; lowered, if sends block.
    costs : Costs
    num_steps : int

    Attributes
    ----------
    spans : list of list of Span
        By rank.
    changes : list of list of StepChange
        By rank.
    sent, arrived : dict
        The attributes of :class:`Timeline`.
    sums : list of GradientSum
        In the order in which they ended.
    copies : list of list of Span
        By rank, its O and L.
    copied : dict
        By stage and microbatch, when its last copy ended.
    """

    def __init__(self, step: ActionTable, costs: Costs, num_steps: int) -> None:
        table = self.table = repeat(step, num_steps)
        self.number_of = table.number_of
        self.num_steps = num_steps
        self.updates = costs.update_times(table)
        self.changes: list[list[StepChange]] = [[] for _ in range(table.num_ranks)]
        self.dependencies = Dependencies(table, sends_are_buffered=not costs.sends_block)
        numbered = NumberedRules(self.dependencies)
        self.rules, self.num_events = numbered.of, numbered.num_events
        self.durations = costs.durations(table.num_stages)
        parts = relative_work(costs.slice_work, table.num_slices)
        self.parts = parts if len(set(parts)) > 1 else []  # by slice; empty if all are equal
        self.pair_times, self.joined = costs.pair_times(table), table.joined
        self.in_pairs = {action for pair in table.joined.items() for action in pair}
        self.message_times = costs.message_times(table)
        self.overhead, self.sends_block = float(costs.overhead), costs.sends_block
        self.spans: list[list[Span]] = [[] for _ in range(table.num_ranks)]
        self.sent: dict[Value, tuple[float, int, int]] = {}
        self.arrived: dict[Value, float] = {}
        self.sum_times, self.sum_sizes = costs.sum_times(table), costs.by_stage("gradient_size", table.num_stages)
        self.sums: list[GradientSum] = []
        self.copy_times = costs.copy_times(table.num_stages)
        self.copies: list[list[Span]] = [[] for _ in range(table.num_ranks)]
        self.copied: dict[tuple[int, int], float] = {}
        self.lanes: dict[tuple[int, ActionKind], float] = {}  # by rank and kind, when its last copy ended
        self.coming: dict[Action, tuple[Members, dict[Action, float]]] = {}  # by REDUCE_GRAD
        for members in gradient_sums(table):
            self.coming.update(dict.fromkeys(filter(None, members), (members, {})))

    @cached_property
    def plan(self) -> dict[ActionKind, list[tuple[int, float, int, float]]]:
        """By kind of computation and stage: the event it awaits, its time, its event, its time in flight."""
        return {
            kind: [
                (awaits, duration, completes, self.time_in_flight(stage, kind))
                for stage, (duration, (_, _, awaits, completes)) in enumerate(zip(durations, self.rules[kind]))
            ]
            for kind, durations in self.durations.items()
            if kind in self.rules
        }

    def pair(self, forward: Action) -> list[tuple[Action, int, int, float]]:
        """Return two overlapped actions, each with the event it awaits, its event and its time in flight."""
        pair = (forward, self.joined[forward])
        rules = (self.plan[kind][stage] for stage, kind, _ in pair)
        numbers = (self.number_of(action.microbatch) for action in pair)
        return [
            (action, awaits + k if awaits >= 0 else NOTHING, completes + k, in_flight)
            for action, k, (awaits, _, completes, in_flight) in zip(pair, numbers, rules)
        ]

    def part_of(self, kind: ActionKind, k: int) -> float:
        """Return the time of an action relative to the mean of all slices; an update belongs to no slice."""
        return 1.0 if kind is U or not self.parts else self.parts[k % len(self.parts)]

    def come(self, action: Action, time: float) -> GradientSum | None:
        """Note that a replica has reached an all-reduce; return it once all have, without its end."""
        members, times = self.coming[action]
        times[action] = time
        if len(times) < len(members):
            return None
        actions = tuple(filter(None, members))
        ranks = tuple(self.table.rank_of(stage, k) for stage, _, k in actions)
        came = tuple(map(times.__getitem__, actions))
        return GradientSum(actions, ranks, came, inf, self.sum_sizes[action.stage])

    def copy(self, rank: int, action: Action, time: float) -> None:
        """Reach an O or L. It begins after its rank's earlier copies in this direction; an L also after the O."""
        stage, kind, k = action
        start = max(time, self.lanes.get((rank, kind), 0.0), self.copied.get((stage, k), 0.0))
        end = self.lanes[rank, kind] = self.copied[stage, k] = start + self.copy_times[stage]
        self.copies[rank].append(Span(action, start, end))

    def event_of(self, action: Action) -> int:
        """Return the event that an action completes."""
        return self.rules[action.kind][action.stage][-1] + self.number_of(action.microbatch)

    def time_in_flight(self, stage: int, kind: ActionKind) -> float:
        """Return how long the value of an action travels to its consumer, if not by a SEND of its own."""
        value = Value.produced_by(Action(stage, kind, 0))
        return self.message_times[value.cut] if value is not None and self.dependencies.exists(value) else 0.0

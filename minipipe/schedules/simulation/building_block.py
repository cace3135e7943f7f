"""Building blocks: one microbatch with a time for each action, repeated at an interval.

::

    one microbatch       rank 0: F . . . . B .        a B takes two units
                         rank 1: . F . B . . .
    every three units    rank 0: F . . F . B F B F B F B ...

The block decides everything about a schedule in its steady state. A stage holds a
microbatch for its *lifespan*, from the start of F to the end of B or W, and a new one
arrives in each interval. So it holds lifespan / interval of them on average, whatever
their number. The peak of a rank is found without unrolling the schedule: it is the
largest number of lifespans that contain the start of an F.

References
----------
Qi et al. 2024, "Pipeline Parallelism with Controllable Memory", arXiv 2405.15362:
building blocks, and memory by lifespan and interval. Its last step, which also reorders
the first and the last microbatches, is left to an editor or a search.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from itertools import chain, pairwise, product
from math import floor, inf
from operator import itemgetter

from minipipe.core.flow import delay_of, flow_of
from minipipe.core.schedules.action import Action, B, F, I, W
from minipipe.core.schedules.action_table import Schedule
from minipipe.core.specs import SCHEDULE_COUNT, SCHEDULE_NUMBER, Spec
from minipipe.errors import Code, Problem, ScheduleError, misuse
from minipipe.io import parse_real
from minipipe.schedules.analysis.workload import ROUNDING, Workload
from minipipe.schedules.features import rank_of_each_stage, without_overlaps
from minipipe.schedules.placements import stages_by_rank
from minipipe.schedules.reading import schedule_of_text
from minipipe.schedules.simulation.costs import Costs
from minipipe.schedules.simulation.simulator import simulate
from minipipe.schedules.simulation.span import Span

_CELL = re.compile(r"\b(\d{1,9}[FBIW])@(\S+)", re.ASCII)
_KINDS = ([B, F], [F, I, W])  # of a stage, sorted
_MOST_INTERVALS = 10_000  # from the start to the end of a block


@dataclass(frozen=True)
class BuildingBlock:
    """The times of one microbatch, and the interval at which it is repeated.

    Attributes
    ----------
    placement : tuple of int
        The rank of each stage.
    starts : mapping of Action to float
        For each action of microbatch 0 its start, in the unit of the costs: on each
        stage an F, and a B or an I and a W.
    interval : float
        The time from a microbatch to the next one.
    costs : Costs
        The times of actions and messages. Each F and I takes some time.

    Raises
    ------
    ScheduleError
        Codes ``missing``, ``value``, ``placement``, and ``too-large`` for a block of
        more than 10,000 intervals. A block whose actions collide is accepted;
        :meth:`check` refuses it.

    Examples
    --------
    A V on two ranks, which work in all six units of an interval.

    >>> block = BuildingBlock.from_text(
    ...     "0F@0 3F@3 3I@4 0I@7 3W@8 0W@11 \\n 1F@1 2F@2 2I@5 1I@6 2W@9 1W@10", 6
    ... )
    >>> block.lifespans, block.peak_activations
    ((12.0, 10.0, 8.0, 6.0), (3, 4))
    >>> from minipipe import schedules
    >>> schedules.peak_activations(block.unrolled(num_microbatches=100))
    (3, 4)
    """

    placement: tuple[int, ...]
    starts: Mapping[Action, float]
    interval: float
    costs: Costs = field(default_factory=Costs)

    def __post_init__(self) -> None:
        SCHEDULE_NUMBER.check("interval", self.interval)
        stages = {*range(len(self.placement)), *(a.stage for a in self.starts)}
        for stage in sorted(stages):
            kinds = [kind for s, kind, _ in self.starts if s == stage]
            if stage >= len(self.placement) or sorted(kinds) not in _KINDS:
                has = ", ".join(sorted(kinds)) or "no action"
                expected = "expected F and B, or F, I and W, of placed stages"
                message = f"Stage {stage} of the block has {has}; {expected}."
                raise ScheduleError.of(Code.MISSING, message)
        for action, start in self.starts.items():
            SCHEDULE_NUMBER.check(f"The start of {cell(action)}", start)
        # W may take none, and then comes first of what starts together.
        if not all((*self._workload.forward, *self._workload.backward_input)):
            raise misuse("An F or I takes no time; expected above 0 on each stage.")
        if self.length > _MOST_INTERVALS * self.interval:
            problem = f"The interval is {self.interval:g}, and the block takes"
            message = f"{problem} {self.length:g}; expected at most 10,000 intervals."
            raise ScheduleError.of(Code.TOO_LARGE, message)

    # -- from and to other forms ---------------------------------------------------

    @classmethod
    def from_text(
        cls, text: str, interval: float, costs: Costs | None = None
    ) -> BuildingBlock:
        """Read a block: a line for each rank, with cells such as ``2F@4.5``: stage,
        kind and start.

        Raises
        ------
        ScheduleError
            Code ``syntax``, and the codes of the class.
        """
        times = _CELL.findall(Spec(str).check("The block", text))
        starts = {Action.parse(f"{name}0"): parse_real(time) for name, time in times}
        table = schedule_of_text(_CELL.sub(r"\g<1>0", text), "block")
        written = Counter(action for row in table.actions for action in row)
        for action, number in written.items():
            if number > 1 or action not in starts:
                once = f"expected it once, with a start, such as {cell(action)}@4"
                message = f"{cell(action)} has no start, or occurs twice; {once}."
                raise ScheduleError.of(Code.SYNTAX, message)
        placement = rank_of_each_stage(table, "a building block")
        return cls(placement, starts, interval, costs or Costs())

    @classmethod
    def of(cls, schedule: Schedule, costs: Costs | None = None) -> BuildingBlock:
        """Return the block of a schedule: the times of a microbatch in its middle.

        Raises
        ------
        ScheduleError
            Code ``unsupported``, if the microbatches of the middle third do not follow
            each other at one interval; codes of :func:`minipipe.simulate`.

        Examples
        --------
        >>> from minipipe import schedules
        >>> block = BuildingBlock.of(schedules.one_f_one_b(4, 24))
        >>> block.interval, block.lifespans, block.peak_activations
        (3.0, (12.0, 9.0, 6.0, 3.0), (4, 3, 2, 1))
        """
        placement = rank_of_each_stage(schedule, "a building block")
        plain = without_overlaps(schedule, "a building block")
        m = plain.num_microbatches
        times: list[dict[Action, float]] = [{} for _ in range(m)]
        for row in simulate(plain, costs).spans:
            for action, start, _ in row:
                times[action.microbatch][action._replace(microbatch=0)] = start
        first, *others = times[m // 3 : m - m // 3]
        shifts: list[float] = []
        for k, other in enumerate(others, 1):
            shifts += [(other.get(a, -inf) - start) / k for a, start in first.items()]
        interval = max(shifts, default=0.0)
        if not shifts or interval - min(shifts) > ROUNDING * interval:
            why = (
                "repeats no block: its middle microbatches follow at unequal intervals"
            )
            message = f"{schedule.name} {why}; take more of them, or another schedule."
            raise ScheduleError.of(Code.UNSUPPORTED, message)
        begin = min(first.values())
        starts = {action: start - begin for action, start in first.items()}
        return cls(placement, starts, interval, costs or Costs())

    def to_text(self) -> str:
        """Return the block as text, which :meth:`from_text` reads."""
        lines = []
        for rank, row in enumerate(self.spans):
            cells = " ".join(f"{cell(action)}@{start:.9g}" for action, start, _ in row)
            lines.append(f"rank {rank}: {cells}\n")
        return "".join(lines)

    # -- figures -------------------------------------------------------------------

    @cached_property
    def _workload(self) -> Workload:
        return self.costs.workload(self.placement, 1)

    @cached_property
    def spans(self) -> tuple[tuple[Span, ...], ...]:
        """By rank, its actions with start and end, in the order of their times."""
        rows: list[list[Span]] = [[] for _ in range(self._workload.num_ranks)]
        for action, start in self.starts.items():
            time = self._workload.durations[action.kind][action.stage]
            rows[self.placement[action.stage]].append(Span(action, start, start + time))
        return tuple(tuple(sorted(row, key=itemgetter(1, 2))) for row in rows)

    @property
    def length(self) -> float:
        """The time from 0 to the last end."""
        return max(end for row in self.spans for _, _, end in row)

    @property
    def work(self) -> float:
        """The work of the fullest rank, which is the shortest possible interval."""
        return max(map(self._workload.work, range(self._workload.num_ranks)))

    @cached_property
    def _lives(self) -> list[tuple[float, float]]:
        """By stage, when it begins to hold the microbatch, and when it releases it."""
        every = list(chain.from_iterable(self.spans))
        begins = {a.stage: start for a, start, _ in every if a.kind is F}
        ends = {a.stage: end for a, _, end in every if a.kind in (B, W)}
        return [(begins[stage], ends[stage]) for stage in range(len(self.placement))]

    @property
    def lifespans(self) -> tuple[float, ...]:
        """The time from the start of F to the end of B or W, by stage."""
        return tuple(end - begin for begin, end in self._lives)

    @property
    def peak_activations(self) -> tuple[int, ...]:
        """By rank, the most (stage, microbatch) pairs that it holds: an upper bound for
        any number of microbatches, which enough of them reach.
        """
        peaks = []
        for stages in stages_by_rank(self.placement, self._workload.num_ranks):
            lives = [self._lives[stage] for stage in stages]
            counts = [sum(self._held(now, *life) for life in lives) for now, _ in lives]
            peaks.append(max(counts, default=0))
        return tuple(peaks)

    def _held(self, now: float, begin: float, end: float) -> int:
        """Return how many microbatches a stage holds at a time."""
        arrived = floor((now - begin) / self.interval + ROUNDING)
        return arrived - floor((now - end) / self.interval + ROUNDING)

    # -- problems ------------------------------------------------------------------

    def check(self) -> None:
        """Refuse a block that cannot be repeated.

        Raises
        ------
        ScheduleError
            Codes ``order``, if an action starts before its inputs have arrived, and
            ``overlap``, if two actions need a rank at once.
        """
        problems = [*self._early(), *self._collisions()]
        if problems:
            raise ScheduleError(problems)

    def _early(self) -> Iterator[Problem]:
        rows = tuple(tuple(action for action, _, _ in row) for row in self.spans)
        flow = flow_of(Schedule("block", self.placement, 1, rows))
        giver_of: dict[int, Span] = {}
        needs: list[tuple[int, Span, int]] = []
        for rank, row in enumerate(self.spans):
            for position, span in enumerate(row):
                numbers = flow.numbers(rank, position)
                assert numbers is not None  # F, B, I and W are declared
                giver_of |= dict.fromkeys(numbers.gives, span)
                needs += [(rank, span, value) for value in numbers.needs]
        for rank, (action, start, _), value in needs:
            giver, _, end = giver_of[value]
            available = end + delay_of(flow, value, self._workload.message)
            if start < available - ROUNDING * self.length:
                why = f"its input from {cell(giver)} arrives at {available:g}"
                message = f"{cell(action)} starts at {start:g}, but {why}"
                yield Problem(Code.ORDER, f"Rank {rank}: {message}.", rank)

    def _collisions(self) -> Iterator[Problem]:
        """Yield the pairs of actions that need a rank at once.

        Modulo the interval, the actions of a rank must not overlap on a circle.
        """
        every = self.interval
        for rank, row in enumerate(self.spans):
            places = []
            for action, start, end in row:
                k = floor(start / every + ROUNDING)
                size = end - start + self._workload.overhead
                places.append((start - k * every, size, k, action))
            places.sort(key=itemgetter(0, 1))
            # Behind the last one comes the first of the next interval.
            places += [(at + every, size, k - 1, a) for at, size, k, a in places[:1]]
            for (at, size, k, one), (then, _, other_k, other) in pairwise(places):
                if at + size > then + ROUNDING * every:
                    turns = max(k, other_k)
                    when = f"Two actions need rank {rank} at {then + turns * every:g}"
                    who = f"{cell(one)} of microbatch {turns - k}"
                    whom = f"{cell(other)} of microbatch {turns - other_k}"
                    yield Problem(Code.OVERLAP, f"{when}: {who} and {whom}.", rank)

    # -- unrolling -----------------------------------------------------------------

    def unrolled(self, num_microbatches: int) -> Schedule:
        """Return the schedule that repeats the block.

        Its rows have the order of the times of the block. In a simulation its actions
        start as early as this order allows, so that the first microbatches and the last
        ones take less time than in the block.

        Raises
        ------
        ScheduleError
            The codes of :meth:`check`; ``value`` for a number below 1.
        """
        SCHEDULE_COUNT.check("num_microbatches", num_microbatches)
        self.check()
        rows = []
        for spans in self.spans:
            turns = sorted(product(range(num_microbatches), spans), key=self._times_of)
            row = (span.action._replace(microbatch=k) for k, span in turns)
            rows.append(tuple(row))
        return Schedule("block", self.placement, num_microbatches, tuple(rows))

    def _times_of(self, turn: tuple[int, Span]) -> list[float]:
        """Return start and end of a microbatch and span in intervals, rounded so that
        equal times are equal.
        """
        k, (_, *times) = turn
        return [round(time / self.interval + k, 9) for time in times]


def cell(action: Action) -> str:
    """Return an action of a block as text, such as ``2F``."""
    return f"{action.stage}{action.kind}"

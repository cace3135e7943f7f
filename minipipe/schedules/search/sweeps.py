"""Sweeps: a schedule built in one go, microbatch by microbatch, as the zero-bubble paper's heuristic builds it.

A sweep goes down the stages with at most one F on each, and up again with one I on each; the W fill the gaps::

    sweep 0:  down F on every stage, and the F of the warm-up;  up I of microbatch 0
    sweep k:  down F where the rank may run one;                up I of microbatch k
    the end:  every W that is left

Before an F or an I that does not fit, or has not arrived, the rank runs W. Three decisions are open, and which of their
eight combinations is the best depends on the workload, so a search tries them all.

References
----------
Qi et al. 2024, "Zero Bubble Pipeline Parallelism", section 3.1; the eight combinations are those of the scheduler that
its authors published, https://github.com/sail-sg/zero-bubble-pipeline-parallelism.
"""

from __future__ import annotations

from math import inf

from minipipe.schedules.action import ActionKind
from minipipe.schedules.analysis.workload import fits
from minipipe.schedules.search.list_scheduling import F, Facts, I, W, Word


class Sweeps:
    """One schedule of all sweeps.

    Parameters
    ----------
    facts : Facts
    may_wait : bool
        Before its first I, a rank runs no F that would delay it, and waits instead.
    gradients_first : bool
        A rank skips the F of a sweep where that would delay its next I, if it can afford the wait.
    fills_gaps : bool
        A W that is longer than a gap always runs in it; otherwise only if the rank cannot afford the wait. A rank can
        afford what another one has already waited more.

    Attributes
    ----------
    words : list of Word
        By rank.
    is_complete : bool
        Whether the memory sufficed.
    """

    def __init__(self, facts: Facts, may_wait: bool, gradients_first: bool, fills_gaps: bool) -> None:
        self.facts, self.may_wait, self.gradients_first, self.fills_gaps = facts, may_wait, gradients_first, fills_gaps
        num_ranks, self._stages = len(facts.own), range(len(facts.rank_of))
        self._done = {kind: [0 for _ in self._stages] for kind in (F, I, W)}
        self._arrivals: dict[ActionKind, list[list[float]]] = {kind: [[] for _ in self._stages] for kind in (F, I)}
        self._arrivals[F][0] = [0.0] * facts.num_microbatches
        self._free, self._held, self._waited = ([0.0] * num_ranks for _ in range(3))
        self.words: list[Word] = [[] for _ in range(num_ranks)]
        self.is_complete = all(map(self._sweep, range(facts.num_microbatches)))
        for rank in range(num_ranks):
            while self._run_weight(rank):
                pass

    def _sweep(self, number: int) -> bool:
        """Go down and up once; tell whether all of it fits."""
        counts = self._later_forwards() if number else [1 for _ in self._stages]
        if not self._run_forwards(counts) or not (number or self._run_forwards(self._warm_up())):
            return False
        return all(self._run_when_there(I, stage) for stage in reversed(self._stages))

    def _run_forwards(self, counts: list[int]) -> bool:
        return all(self._run_when_there(F, stage) for stage in self._stages for _ in range(counts[stage]))

    # -- how many F ----------------------------------------------------------------------------------------------

    def _warm_up(self) -> list[int]:
        """Return, by stage, how many F more to run before the first I: as many as fit, in memory and in time.

        The gradient of microbatch 0 goes up the stages, and each fills the time until it arrives with F. Their inputs
        come from the stage before, which therefore runs one more, if there is one more.
        """
        facts, free, held, gradient = self.facts, self._free[:], self._held[:], self._arrivals[I][-1][0]
        counts, most = [0 for _ in self._stages], facts.num_microbatches - 1
        for stage in reversed(self._stages):
            rank, time, amount = facts.rank_of[stage], facts.times[F][stage], facts.activation[stage]
            limit = facts.workload.memory_limit[rank]
            while counts[stage] < most and fits(held[rank] + amount + facts.grows[stage], limit):
                if free[rank] + time > gradient if self.may_wait else free[rank] >= gradient:
                    break
                counts[stage] += 1
                held[rank] += amount
                free[rank] += time + facts.workload.overhead
            _, in_flight = facts.consumer.get((I, stage), (stage, 0.0))
            gradient = max(free[rank], gradient) + facts.times[I][stage] + in_flight
        for stage, before in zip(self._stages[1:], self._stages):
            counts[stage] = min(counts[stage], max(counts[before] - (counts[stage] < most), 0))
        return counts

    def _later_forwards(self) -> list[int]:
        """Return, by stage, whether it runs an F in this sweep: 1 or 0. Where a stage skips one, so do those before."""
        counts, is_skipped = [0 for _ in self._stages], False
        for stage in reversed(self._stages):
            is_left = self._done[F][stage] < self.facts.num_microbatches
            if is_left:
                is_skipped = is_skipped or (self.gradients_first and self._is_early(stage))
                counts[stage] = int(not is_skipped)
        return counts

    def _is_early(self, stage: int) -> bool:
        """Tell whether the next F of a stage should wait for its I: the consumer is far behind, and soon sends one."""
        facts, done = self.facts, self._done
        consumer, _ = facts.consumer.get((F, stage), (stage, 0.0))
        if done[F][stage] < done[F][consumer] + 2:
            return False
        rank, _, in_flight = facts.rank_of[stage], *facts.consumer[I, consumer]
        gradient = self._free[facts.rank_of[consumer]] + facts.times[F][consumer] + facts.times[I][consumer] + in_flight
        end, held, left = self._free[rank] + facts.times[F][stage], self._held[rank], done[I][stage] - done[W][stage]
        while left and not fits(held + facts.activation[stage], facts.workload.memory_limit[rank]):
            end, held, left = end + facts.times[W][stage], held - facts.weight_activation[stage], left - 1
        return end > gradient and self._can_afford(rank, gradient)

    # -- what a rank runs ----------------------------------------------------------------------------------------

    def _run_when_there(self, kind: ActionKind, stage: int) -> bool:
        """Run an F or an I, after those W that make room for it or fill the gap before it; False if it does not fit."""
        facts, rank = self.facts, self.facts.rank_of[stage]
        amount = facts.activation[stage] if kind is F else facts.grows[stage]
        while not fits(self._held[rank] + amount, facts.workload.memory_limit[rank]):
            if not self._run_weight(rank):
                return False
        start = self._arrivals[kind][stage][self._done[kind][stage]]
        while self._free[rank] < start and self._run_weight(rank, start):
            pass
        self._run(kind, stage, start)
        return True

    def _run_weight(self, rank: int, before: float = inf) -> bool:
        """Run the oldest W of a rank, if it has one, and if it ends before a time or the rank cannot afford to wait."""
        done, times = self._done, self.facts.times[W]
        pending = (stage for stage in self.facts.own[rank] if done[W][stage] < done[I][stage])
        oldest = min(pending, key=done[W].__getitem__, default=None)
        if oldest is None:
            return False
        if self._free[rank] + times[oldest] > before and not self.fills_gaps and self._can_afford(rank, before):
            return False
        self._run(W, oldest, 0.0)
        return True

    def _can_afford(self, rank: int, until: float) -> bool:
        return until - self._free[rank] <= max(self._waited) - self._waited[rank]

    def _run(self, kind: ActionKind, stage: int, start: float) -> None:
        facts, rank = self.facts, self.facts.rank_of[stage]
        if self.words[rank]:
            self._waited[rank] += max(start - self._free[rank], 0.0)
        end = max(start, self._free[rank]) + facts.times[kind][stage]
        self._free[rank] = end + facts.workload.overhead
        activation, weight_activation = facts.activation[stage], facts.weight_activation[stage]
        self._held[rank] += {F: activation, I: weight_activation - activation, W: -weight_activation}[kind]
        self._done[kind][stage] += 1
        self.words[rank].append((kind, stage))
        if (kind, stage) in facts.consumer:
            consumer, in_flight = facts.consumer[kind, stage]
            self._arrivals[kind][consumer].append(end + in_flight)
        elif kind is F:
            self._arrivals[I][stage].append(end)

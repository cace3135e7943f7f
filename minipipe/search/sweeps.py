"""Sweeps: a schedule built in one go, microbatch by microbatch.

It is the heuristic of the zero-bubble paper. A sweep goes down the stages with at most
one F on each, and up again with one I on each; the W fill the gaps::

    sweep 0:  down F on every stage, and the F of the warm-up;  up I of microbatch 0
    sweep k:  down F on each rank that may run one;             up I of microbatch k
    the end:  every W that is left

Before an F or an I that does not fit, or has not arrived, the rank runs W. Three
decisions are open, and which of their eight combinations is the best depends on the
workload, so a search tries them all.

References
----------
Qi et al. 2024, "Zero Bubble Pipeline Parallelism", section 3.1; the eight combinations
come from the scheduler that its authors published,
https://github.com/sail-sg/zero-bubble-pipeline-parallelism.
"""

from __future__ import annotations

from math import inf

from minipipe.core.schedules.action import F, I, W
from minipipe.search.clock import Clock, Op, ProblemData


class Sweeps(Clock):
    """One schedule of all sweeps.

    Parameters
    ----------
    problem : ProblemData
    may_wait : bool
        Before its first I, a rank runs no F that would delay it, and waits instead.
    gradients_first : bool
        A rank skips the F of a sweep if the F would delay its next I and the rank can
        afford the wait.
    fills_gaps : bool
        A W that is longer than a gap always runs in it; otherwise only if the rank
        cannot afford the wait. A rank can afford a wait if another rank has already
        waited longer.

    Attributes
    ----------
    is_complete : bool
        Whether the memory sufficed.
    """

    def __init__(
        self,
        problem: ProblemData,
        may_wait: bool,
        gradients_first: bool,
        fills_gaps: bool,
    ) -> None:
        super().__init__(problem)
        self.may_wait = may_wait
        self.gradients_first = gradients_first
        self.fills_gaps = fills_gaps
        self._stages = range(len(problem.rank_of))
        self._waited = [0.0] * len(problem.stages_of)
        self.is_complete = all(map(self._sweep, range(problem.num_microbatches)))
        for rank in range(len(problem.stages_of)):
            while self._run_weight(rank):
                pass

    def _sweep(self, number: int) -> bool:
        """Go down and up once; tell whether all of it fits."""
        counts = [1] * len(self._stages)
        if number > 0:
            counts = self._later_forwards()
        if not self._run_forwards(counts):
            return False
        if not number and not self._run_forwards(self._warm_up()):
            return False
        return all(self._run_when_there((I, stage)) for stage in reversed(self._stages))

    def _run_forwards(self, counts: list[int]) -> bool:
        ops = ((F, stage) for stage in self._stages for _ in range(counts[stage]))
        return all(map(self._run_when_there, ops))

    # -- how many F --------------------------------------------------------------------

    def _warm_up(self) -> list[int]:
        """Return, by stage, how many additional F to run before the first I.

        They are as many as fit, in memory and in time.

        The gradient of microbatch 0 goes up the stages, and each fills the time until
        it arrives with F. Their inputs come from the stage before, which therefore runs
        one more F, if there is one more.
        """
        problem = self.problem
        free = self.free[:]
        held = self.held[:]
        gradient = self.next_at((I, self._stages[-1]))
        counts = [0 for _ in self._stages]
        most = problem.num_microbatches - 1
        for stage in reversed(self._stages):
            rank = problem.rank_of[stage]
            forward = problem.steps[F, stage]
            backward = problem.steps[I, stage]
            while counts[stage] < most:
                if (
                    held[rank] + forward.change + backward.during
                    > problem.capacity[rank]
                ):
                    break
                if free[rank] >= gradient and not self.may_wait:
                    break
                if free[rank] + forward.time > gradient and self.may_wait:
                    break
                counts[stage] += 1
                held[rank] += forward.change
                free[rank] += forward.time + problem.overhead
            begin = max(free[rank], gradient)
            gradient = begin + backward.time + backward.in_flight
        for stage, before in zip(self._stages[1:], self._stages):
            inputs = max(counts[before] - (counts[stage] < most), 0)
            counts[stage] = min(counts[stage], inputs)
        return counts

    def _later_forwards(self) -> list[int]:
        """Return, by stage, whether it runs an F in this sweep: 1 or 0.

        If a stage skips one, so do all before it.
        """
        counts = [0 for _ in self._stages]
        is_skipped = False
        after = self._stages[-1]
        for stage in reversed(self._stages):
            if self.done[F, stage] < self.problem.num_microbatches:
                if self.gradients_first and not is_skipped:
                    is_skipped = self._is_early(stage, after)
                counts[stage] = int(not is_skipped)
            after = stage
        return counts

    def _is_early(self, stage: int, after: int) -> bool:
        """Tell whether the next F of a stage should wait for its I.

        Then the consumer is far behind, and soon sends one.
        """
        steps = self.problem.steps
        done = self.done
        rank_of = self.problem.rank_of
        if done[F, stage] < done[F, after] + 2:
            return False
        gradient = self.free[rank_of[after]] + steps[F, after].time
        gradient += steps[I, after].time
        gradient += steps[I, after].in_flight
        rank = rank_of[stage]
        forward = steps[F, stage]
        weight = steps[W, stage]
        end = self.free[rank] + forward.time
        held = self.held[rank]
        for _ in range(done[I, stage] - done[W, stage]):
            if held + forward.change <= self.problem.capacity[rank]:
                break
            end += weight.time
            held += weight.change
        return end > gradient and self._can_afford(rank, gradient)

    # -- what a rank runs --------------------------------------------------------------

    def _run_when_there(self, op: Op) -> bool:
        """Run an F or an I, after each W that frees memory for it or fills a gap; tell
        whether it fits.
        """
        rank = self.problem.rank_of[op[1]]
        while not self.fits(rank, self.problem.steps[op].during):
            if not self._run_weight(rank):
                return False
        start = self.next_at(op)
        while self.free[rank] < start and self._run_weight(rank, start):
            pass
        if self.rows[rank]:
            self._waited[rank] += max(start - self.free[rank], 0.0)
        self.run(rank, [op])
        return True

    def _run_weight(self, rank: int, before: float = inf) -> bool:
        """Run the oldest W of a rank, if it has one, and if it ends before a time.

        It may end later if the rank cannot afford to wait.
        """
        oldest = self.oldest_weight(rank)
        if oldest is None:
            return False
        end = self.free[rank] + self.problem.steps[W, oldest].time
        if end > before and not self.fills_gaps and self._can_afford(rank, before):
            return False
        self.run(rank, [(W, oldest)])
        return True

    def _can_afford(self, rank: int, until: float) -> bool:
        return until - self.free[rank] <= max(self._waited) - self._waited[rank]

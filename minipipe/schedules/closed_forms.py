"""Closed forms: the time and the memory of a schedule as formulas, each with its conditions.

Those of a schedule stand beside its builder, and `schedules/analysis/theory.py` asks them.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

from minipipe.errors import ScheduleCode, ScheduleError


class Case(NamedTuple):
    """The arguments of a formula: the sizes, and the times of one microbatch over all chunks of a rank."""

    name: str
    p: int
    m: int
    v: int
    forward: float = 1.0
    backward_input: float = 1.0
    backward_weight: float = 1.0

    @property
    def round(self) -> float:
        """The work of one rank for one microbatch, in units of time."""
        return self.forward + self.backward_input + self.backward_weight

    @property
    def work(self) -> float:
        """The work of one rank for all microbatches, in units of time."""
        return self.m * self.round

    def require(self, condition: bool, text: str) -> None:
        """Raise an error with code ``no-formula`` unless the condition of a formula holds."""
        if not condition:
            raise ScheduleError.of(ScheduleCode.NO_FORMULA, f"The formula for {self.name} holds only for {text}.")


class ClosedForms(NamedTuple):
    """What is known of a schedule.

    Attributes
    ----------
    makespan : function of Case, optional
    span_bubble : function of Case, optional
        The largest idle time within a rank's own span.
    peak : function of Case and rank, optional
        At the peak, the number of chunks held between F and B or I, and between I and W.
    period : function of Case and latency, optional
        The time per microbatch in the steady state.
    is_split : bool
        Whether the backward is split, so that memory depends on what is held until W.
    holds_as_much_until_weights : bool
        Whether the peak is known only where as much is held until W as until I.
    """

    makespan: Callable[[Case], float] | None = None
    span_bubble: Callable[[Case], float] | None = None
    peak: Callable[[Case, int], tuple[int, int]] | None = None
    period: Callable[[Case, float], float] | None = None
    is_split: bool = False
    holds_as_much_until_weights: bool = False


def straight(case: Case) -> float:
    """Return the makespan of a schedule whose ranks run their chunks as one."""
    return (case.m + case.p - 1) * case.round


def straight_bubble(case: Case) -> float:
    """Return its bubble on the first rank, which starts first and ends last."""
    return straight(case) - case.work


def round_trip(case: Case, latency: float, in_flight: int) -> float:
    """Return the larger of a rank's work and a round trip over all ranks, divided by the microbatches in flight."""
    return max(case.round, (case.p * case.round + 2 * (case.p - 1) * latency) / in_flight)

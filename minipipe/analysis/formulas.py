"""The formulas of `theory.py`, each with its conditions."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

from minipipe.errors import ScheduleCode, ScheduleError
from minipipe.schedules.placement import check_counts
from minipipe.schedules.registry import builder_of, default_chunks


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
    def work(self) -> float:
        """The work of one rank for all microbatches, in units of time."""
        return self.m * self.round

    @property
    def round(self) -> float:
        """The work of one rank for one microbatch, in units of time."""
        if self.name == "forward-only":
            return self.forward
        return self.forward + self.backward_input + self.backward_weight

    @property
    def has_unit_costs(self) -> bool:
        """Whether F, I and W take the same time."""
        return self.forward == self.backward_input == self.backward_weight

    @property
    def group(self) -> int:
        """The size of the largest group of microbatches of an interleaved schedule."""
        return -(-self.m // max(1, self.m // self.p))

    def require(self, condition: bool, text: str) -> None:
        """Raise an error with code ``no-formula`` unless the condition of a formula holds."""
        if not condition:
            raise ScheduleError.of(ScheduleCode.NO_FORMULA, f"The formula for {self.name} holds only for {text}.")


def case_of(
    name: str,
    p: int,
    m: int,
    v: int | None,
    forward: float = 1.0,
    backward_input: float = 1.0,
    backward_weight: float = 1.0,
) -> Case:
    """Return the arguments of a formula after checking the name, the sizes and the times.

    Raises
    ------
    ScheduleError
        Codes ``unknown``, ``parameters`` and ``no-formula``.
    """
    check_counts(p, m, 1 if v is None else v)
    if not all(time >= 0 for time in (forward, backward_input, backward_weight)):
        times = f"{forward}, {backward_input} and {backward_weight}"
        raise ScheduleError.of(ScheduleCode.PARAMETERS, f"The times are {times}; expected numbers, at least 0.")
    default = default_chunks(builder_of(name))
    case = Case(name, p, m, default if v is None else v, forward, backward_input, backward_weight)
    case.require(case.v == 2 or name not in _OVER_A_V, "two chunks on each rank")
    return case


def formula_of(table: dict[str, Callable], case: Case) -> Callable:
    """Return the formula of a schedule, or raise an error with code ``no-formula``."""
    if case.name not in table:
        raise ScheduleError.of(
            ScheduleCode.NO_FORMULA, f"No closed form is known for {case.name}; simulate it instead."
        )
    return table[case.name]


_OVER_A_V = ("zb-v", "v-half", "v-min", "dualpipe-v")
SPLIT = ("zb-h1", "zb-h2", "interleaved-zb", "zb-v", "v-half", "v-min", "dualpipe-v")


def _rounds_of_chunks(case: Case) -> float:
    """Return the makespan of a looped schedule, in units of one rank's work for one microbatch."""
    return ((case.v - 1) * max(case.m, case.p) + case.m + case.p - 1) / case.v


def _looped(case: Case) -> float:
    return _rounds_of_chunks(case) * case.round


def _straight(case: Case) -> float:
    """Return the makespan of a schedule whose ranks run their chunks as one."""
    return (case.m + case.p - 1) * case.round


def _zb_h1(case: Case) -> float:
    case.require(case.m >= case.p, "m >= p")
    case.require(case.backward_weight <= case.forward, "tW <= tF")
    return case.work + (case.p - 1) * (case.forward + max(0.0, case.backward_input - case.backward_weight))


def _interleaved_zb(case: Case) -> float:
    return case.work + (_zb_h1(case) - case.work) / case.v


def _zb_h2(case: Case) -> float:
    _require_zb_h2(case)
    slack = case.forward + case.backward_input - 2 * case.backward_weight
    return case.work + (case.p - 1) * max(case.forward, slack)


def _require_zb_h2(case: Case) -> None:
    case.require(case.m >= 2 * case.p - 1, "m >= 2p - 1")
    case.require(case.backward_weight <= case.forward, "tW <= tF")
    case.require(2 * case.backward_weight <= case.forward + case.backward_input, "2 tW <= tF + tI")


def _over_a_v(case: Case) -> float:
    _require_filled_v(case)
    case.require(case.has_unit_costs, "tF = tI = tW")
    return (6 * case.m + case.p - 1) * case.forward / case.v


def _require_filled_v(case: Case) -> None:
    if case.name == "zb-v":
        case.require(case.m >= 2 * case.p - 1, "m >= 2p - 1")
    else:
        case.require(case.m >= 2 * case.p, "m >= 2p")


MAKESPAN: dict[str, Callable[[Case], float]] = {
    "sequential": lambda case: case.p * case.work,
    "gpipe": _straight,
    "1f1b": _straight,
    "eager-1f1b": _straight,
    "interleaved-1f1b": _looped,
    "looped-bfs": _looped,
    "zb-h1": _zb_h1,
    "zb-h2": _zb_h2,
    "interleaved-zb": _interleaved_zb,
    "zb-v": _over_a_v,
    "dualpipe-v": _over_a_v,
    "forward-only": lambda case: _rounds_of_chunks(case) * case.forward,
}


def _zb_h1_span(case: Case) -> float:
    case.require(case.m >= case.p, "m >= p")
    case.require(case.backward_weight <= case.forward, "tW <= tF")
    return (case.p - 1) * (case.forward + case.backward_input - case.backward_weight)


def _interleaved_zb_span(case: Case) -> float:
    return _zb_h1_span(case) / case.v


def _zb_h2_span(case: Case) -> float:
    _require_zb_h2(case)
    return (case.p - 1) * (case.forward + case.backward_input - 2 * case.backward_weight)


def _over_a_v_span(case: Case) -> float:
    _over_a_v(case)
    return 0.0 if case.name == "zb-v" else (case.p - 1) * case.forward / case.v


SPAN_BUBBLE: dict[str, Callable[[Case], float]] = {
    # The first rank starts first and ends last, so its own span is the makespan.
    **{
        name: lambda case: MAKESPAN[case.name](case) - case.work
        for name in ("sequential", "gpipe", "1f1b", "eager-1f1b", "interleaved-1f1b", "looped-bfs")
    },
    "zb-h1": _zb_h1_span,
    "zb-h2": _zb_h2_span,
    "interleaved-zb": _interleaved_zb_span,
    "zb-v": _over_a_v_span,
    "dualpipe-v": _over_a_v_span,
}


def _zb_h1_peak(case: Case, rank: int) -> tuple[int, int]:
    case.require(case.m >= case.p, "m >= p")
    return case.v * (case.p - rank), case.v * rank


def _interleaved_zb_peak(case: Case, rank: int) -> tuple[int, int]:
    case.require(case.m >= case.p, "m >= p")
    return (case.v - 1) * case.group + case.p - rank, rank


def _zb_h2_peak(case: Case, rank: int) -> tuple[int, int]:
    case.require(case.m >= 2 * case.p - 1, "m >= 2p - 1")
    return case.v * (2 * (case.p - rank) - 1), case.v * 2 * rank


def _v_peak(case: Case, rank: int) -> tuple[int, int]:
    _require_filled_v(case)
    return (2 * case.p if case.name == "zb-v" else 2 * case.p + 1), 0


def _controllable_peak(case: Case, rank: int) -> tuple[int, int]:
    case.require(case.m >= case.p, "m >= p")
    return 2 * ((case.p + 2) // 2 if case.name == "v-half" else (case.p + 4) // 3), 0


# By schedule and rank: at the peak, the number of chunks held between F and B or I, and between I and W.
PEAK: dict[str, Callable[[Case, int], tuple[int, int]]] = {
    "sequential": lambda case, rank: (case.v, 0),
    "gpipe": lambda case, rank: (case.v * case.m, 0),
    "1f1b": lambda case, rank: (case.v * min(case.p - rank, case.m), 0),
    "eager-1f1b": lambda case, rank: (case.v * min(2 * (case.p - rank) - 1, case.m), 0),
    "interleaved-1f1b": lambda case, rank: (
        min(2 * (case.p - rank - 1) + (case.v - 1) * case.group + 1, case.m * case.v),
        0,
    ),
    "looped-bfs": lambda case, rank: (case.m * case.v, 0),
    "zb-h1": _zb_h1_peak,
    "zb-h2": _zb_h2_peak,
    "interleaved-zb": _interleaved_zb_peak,
    "zb-v": _v_peak,
    "v-half": _controllable_peak,
    "v-min": _controllable_peak,
    "dualpipe-v": _v_peak,
    "forward-only": lambda case, rank: (1, 0),
}


def _round_trip(case: Case, latency: float) -> float:
    in_flight, _ = PEAK[case.name](case, 0)
    return max(case.round, (case.p * case.round + 2 * (case.p - 1) * latency) / in_flight)


def _zb_h1_round_trip(case: Case, latency: float) -> float:
    case.require(case.m >= case.p, "m >= p")
    round_trip = case.p * (case.forward + case.backward_input) + case.backward_weight
    return max(case.round, (round_trip + 2 * (case.p - 1) * latency) / case.p)


PERIOD: dict[str, Callable[[Case, float], float]] = {
    "gpipe": _round_trip,
    "1f1b": _round_trip,
    "eager-1f1b": _round_trip,
    "zb-h1": _zb_h1_round_trip,
}

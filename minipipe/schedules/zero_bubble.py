"""Zero-bubble schedules: the backward is split, so that I passes the gradient on early and W fills idle time.

The papers write B for our I.
"""

from __future__ import annotations

from minipipe.schedules.chunks import cut_stages
from minipipe.schedules.closed_forms import Case, ClosedForms
from minipipe.schedules.placement import check_sizes, neighbouring_placement
from minipipe.schedules.row import Row, first_microbatches
from minipipe.schedules.schedule import Schedule


def zb_h1(num_ranks: int, num_microbatches: int, chunks_per_rank: int = 1) -> Schedule:
    """Return ZB-H1: 1F1B's memory and a third of its bubble.

    ::

        rank 0: F0 F1    I0 W0 F2 I1 W1 I2 W2
        rank 1:    F0 I0 F1 I1 W0 F2 I2 W1 W2

    For tW <= tF the makespan is m(tF + tI + tW) + (p - 1)(tF + max(0, tI - tW)); at unit costs it is 3m + p - 1. At its
    peak, rank r holds the activations of p - r microbatches and, for r more, the part that W needs.

    Parameters
    ----------
    num_ranks, num_microbatches : int
        At least 1. For fewer microbatches than ranks, the schedule of p is cut.
    chunks_per_rank : int
        At least 1. Rank r has that many adjacent stages, from ``r * chunks_per_rank`` on, and runs them as one.

    Returns
    -------
    Schedule

    References
    ----------
    Qi et al. 2023, "Zero bubble pipeline parallelism", figure 3 (top).

    Examples
    --------
    1F1B takes 33 units.

    >>> from minipipe import schedules, simulate
    >>> timeline = simulate(schedules.zb_h1(4, 8))
    >>> timeline.makespan, timeline.peak_activations
    (27.0, (4, 4, 4, 4))
    """
    check_sizes(num_ranks, num_microbatches, chunks_per_rank)
    p, m = num_ranks, max(num_microbatches, num_ranks)
    rows = [Row([rank]) for rank in range(p)]
    for r, row in enumerate(rows):
        row.repeat(p - r, "F")
        row.repeat(r, "I F")
        row.repeat(m - p, "I W F")
        row.repeat(p - r, "I W")
        row.repeat(r, "W")
    actions = cut_stages(first_microbatches(rows, num_microbatches), chunks_per_rank)
    return Schedule("zb-h1", neighbouring_placement(p, chunks_per_rank), num_microbatches, actions)


def zb_h2(num_ranks: int, num_microbatches: int, chunks_per_rank: int = 1) -> Schedule:
    """Return ZB-H2: no bubble within a rank's own span, at twice the memory of 1F1B.

    ::

        rank 0: F0 F1 F2 I0 W0 I1 W1 I2 W2
        rank 1:    F0 I0 F1 I1 F2 I2 W0 W1 W2

    For tW <= tF and 2 tW <= tF + tI the makespan is m(tF + tI + tW) + (p - 1) max(tF, tF + tI - 2tW). At unit costs
    that is ZB-H1's, but no rank is idle between its first and its last action, so the next training step could follow
    without a gap. At its peak, rank r holds the activations of 2(p - r) - 1 microbatches and, for 2r more, the part
    that W needs.

    Parameters
    ----------
    num_ranks, num_microbatches : int
        At least 1. For fewer than 2p - 1 microbatches, the schedule of 2p - 1 is cut.
    chunks_per_rank : int
        At least 1. Rank r has that many adjacent stages, from ``r * chunks_per_rank`` on, and runs them as one.

    Returns
    -------
    Schedule

    References
    ----------
    Qi et al. 2023, "Zero bubble pipeline parallelism", figure 3 (bottom).

    Examples
    --------
    >>> from minipipe import schedules, simulate
    >>> timeline = simulate(schedules.zb_h2(4, 8))
    >>> timeline.makespan, [timeline.idle_within_span(rank) for rank in range(4)], timeline.peak_activations
    (27.0, [0.0, 0.0, 0.0, 0.0], (7, 7, 7, 7))
    """
    check_sizes(num_ranks, num_microbatches, chunks_per_rank)
    p, m = num_ranks, max(num_microbatches, 2 * num_ranks - 1)
    rows = [Row([rank]) for rank in range(p)]
    for r, row in enumerate(rows):
        ahead = 2 * (p - r) - 1
        row.repeat(ahead, "F")
        row.repeat(2 * r, "I F")
        row.repeat(m - 2 * p + 1, "I W F")
        row.repeat(ahead, "I W")
        row.repeat(2 * r, "W")
    actions = cut_stages(first_microbatches(rows, num_microbatches), chunks_per_rank)
    return Schedule("zb-h2", neighbouring_placement(p, chunks_per_rank), num_microbatches, actions)


# -- closed forms: p ranks, m microbatches, v chunks on each; see closed_forms.py ---------------------------------


def _require_h1(case: Case) -> None:
    case.require(case.m >= case.p, "m >= p")
    case.require(case.backward_weight <= case.forward, "tW <= tF")


def h1_makespan(case: Case) -> float:
    """Return the makespan of ZB-H1."""
    _require_h1(case)
    return case.work + (case.p - 1) * (case.forward + max(0.0, case.backward_input - case.backward_weight))


def h1_span_bubble(case: Case) -> float:
    """Return the largest bubble within a rank's own span of ZB-H1."""
    _require_h1(case)
    return (case.p - 1) * (case.forward + case.backward_input - case.backward_weight)


def _h1_peak(case: Case, rank: int) -> tuple[int, int]:
    case.require(case.m >= case.p, "m >= p")
    return case.v * (case.p - rank), case.v * rank


def _h1_period(case: Case, latency: float) -> float:
    case.require(case.m >= case.p, "m >= p")
    trip = case.p * (case.forward + case.backward_input) + case.backward_weight  # no other rank waits for W
    return max(case.round, (trip + 2 * (case.p - 1) * latency) / case.p)


def _require_h2(case: Case) -> None:
    case.require(case.m >= 2 * case.p - 1, "m >= 2p - 1")
    case.require(case.backward_weight <= case.forward, "tW <= tF")
    case.require(2 * case.backward_weight <= case.forward + case.backward_input, "2 tW <= tF + tI")


def _h2_makespan(case: Case) -> float:
    _require_h2(case)
    return case.work + (case.p - 1) * max(case.forward, case.forward + case.backward_input - 2 * case.backward_weight)


def _h2_span_bubble(case: Case) -> float:
    _require_h2(case)
    return (case.p - 1) * (case.forward + case.backward_input - 2 * case.backward_weight)


def _h2_peak(case: Case, rank: int) -> tuple[int, int]:
    case.require(case.m >= 2 * case.p - 1, "m >= 2p - 1")
    return case.v * (2 * (case.p - rank) - 1), case.v * 2 * rank


ZB_H1 = ClosedForms(h1_makespan, h1_span_bubble, _h1_peak, _h1_period, is_split=True)
ZB_H2 = ClosedForms(_h2_makespan, _h2_span_bubble, _h2_peak, is_split=True)

"""V-shaped schedules: every microbatch passes the ranks in ascending order, then in descending order.

The first and the last stage are on rank 0, and each rank has two chunks.
"""

from __future__ import annotations

from minipipe.schedules.closed_forms import Case, ClosedForms
from minipipe.schedules.placement import check_two_chunks, v_placement
from minipipe.schedules.row import Row, first_microbatches
from minipipe.schedules.schedule import Schedule


def zb_v(num_ranks: int, num_microbatches: int, chunks_per_rank: int = 2) -> Schedule:
    """Return ZB-V: no bubble within a rank's own span, and 1F1B's memory on every rank.

    ::

        stages 0 and 3 are on rank 0, stages 1 and 2 on rank 1
        rank 0: 0F0 0F1 0F2 3F0 3I0 3W0 3F1 3I1 3W1 0I0 0W0 3F2 3I2 3W2 0I1 0W1 0I2 0W2
        rank 1:     1F0 2F0 1F1 2F1 2I0 2W0 1F2 1I0 1W0 2F2 2I1 2W1 1I1 2I2 1I2 1W1 2W2 1W2

    If F, I and W of a chunk take one unit each, the makespan is 6m + p - 1. Every rank holds up to 2p chunks, as much
    as p undivided stages.

    Parameters
    ----------
    num_ranks, num_microbatches : int
        At least 1. For fewer than 2p - 1 microbatches, the schedule of 2p - 1 is cut.
    chunks_per_rank : int
        2. Rank r has stages r and 2p - 1 - r.

    Returns
    -------
    Schedule

    Raises
    ------
    ScheduleError
        Code ``parameters``, for a count below 1 or a number of chunks other than 2.

    References
    ----------
    Qi et al. 2024, "Pipeline parallelism with controllable memory", figure 3 (zero bubble V).

    Examples
    --------
    >>> from minipipe import schedules, simulate
    >>> timeline = simulate(schedules.zb_v(4, 8))
    >>> timeline.makespan, max(timeline.idle_within_span(rank) for rank in range(4)), timeline.peak_activations
    (51.0, 0.0, (8, 8, 8, 8))
    """
    check_two_chunks("zb-v", num_ranks, num_microbatches, chunks_per_rank)
    p, m = num_ranks, max(num_microbatches, 2 * num_ranks - 1)
    rows = [Row([rank, 2 * p - 1 - rank]) for rank in range(p)]
    for r, row in enumerate(rows):
        row.repeat(2 * (p - r) - 1, "F0")
        row.repeat(r, "F1 F0")
        row.repeat(p - r, "F1 I1 W1")
        forwards_left = m - 2 * p + r + 1
        row.repeat(forwards_left, "F0 I0 W0 F1 I1 W1")
        row.repeat(m - p - forwards_left, "I0 W0 F1 I1 W1")
        row.repeat(r, "I0 I1")
        row.repeat(p - r, "I0 W0")
        row.repeat(r, "W1")
        row.repeat(r, "W0")
    return Schedule("zb-v", v_placement(p), num_microbatches, first_microbatches(rows, num_microbatches))


def dualpipe_v(num_ranks: int, num_microbatches: int, chunks_per_rank: int = 2) -> Schedule:
    """Return DualPipe-V: forwards of one chunk alternate with backwards of the other, to overlap their messages.

    ::

        stages 0 and 3 are on rank 0, stages 1 and 2 on rank 1
        rank 0: 0F0 0F1 0F2 3F0 3I0 3W0 3F1 0F3 3B1 3F2 0B0 3B2 3F3 0B1 3B3 0I2 0W2 0I3 0W3
        rank 1:     1F0 2F0 1F1 2F1 1F2 2B0 2F2 1B0 1F3 2B1 2F3 1B1 2B2 1B2 2I3 1I3 2W3 1W3

    A backward is split only if that saves time. If F, I and W of a chunk take one unit each, the makespan is
    6m + p - 1, the same as ZB-V's. Rank r is idle for p - 1 - r units within its span and holds at most 2p + 1 chunks.

    Parameters
    ----------
    num_ranks, num_microbatches : int
        At least 1. For fewer than 2p microbatches, the schedule of 2p is cut.
    chunks_per_rank : int
        2. Rank r has stages r and 2p - 1 - r.

    Returns
    -------
    Schedule

    Raises
    ------
    ScheduleError
        Code ``parameters``, for a count below 1 or a number of chunks other than 2.

    References
    ----------
    DeepSeek-AI 2024, "DeepSeek-V3 technical report", figure 5 (DualPipe); its V-shaped half without a second copy of
    the parameters, as in PyTorch's ``ScheduleDualPipeV``.

    Examples
    --------
    >>> from minipipe import schedules, simulate
    >>> timeline = simulate(schedules.dualpipe_v(4, 8))
    >>> timeline.makespan, [timeline.idle_within_span(rank) for rank in range(4)], max(timeline.peak_activations)
    (51.0, [3.0, 2.0, 1.0, 0.0], 9)
    """
    check_two_chunks("dualpipe-v", num_ranks, num_microbatches, chunks_per_rank)
    p, m = num_ranks, max(num_microbatches, 2 * num_ranks)
    rows = [Row([rank, 2 * p - 1 - rank]) for rank in range(p)]
    for r, row in enumerate(rows):
        row.repeat(2 * (p - 1 - r), "F0")
        row.repeat(r + 1, "F0 F1")
        row.repeat(p - 1 - r, "I1 W F1")
        row.repeat(m - 2 * p + r + 1, "F0 B1 F1 B0")
        row.repeat(p - 1 - r, "B1 F1 B0")
        # 2(r + 1) backwards, alternating between the chunks: the first r + 1 are B, the others I.
        turns = ["1", "0"] * (r + 1)
        for i, chunk in enumerate(turns):
            row.repeat(1, ("B" if i <= r else "I") + chunk)
        row.repeat(p - 1 - r, "W I0")
        row.repeat(r + 1, "W")
    return Schedule("dualpipe-v", v_placement(p), num_microbatches, first_microbatches(rows, num_microbatches))


# -- closed forms: p ranks, m microbatches, v chunks on each; see closed_forms.py ---------------------------------


def require_v(case: Case) -> None:
    """Refuse another number of chunks than two."""
    case.require(case.v == 2, "two chunks on each rank")


def _require_filled(case: Case, least: int, text: str) -> None:
    require_v(case)
    case.require(case.m >= least, text)


def _makespan(case: Case) -> float:
    case.require(case.forward == case.backward_input == case.backward_weight, "tF = tI = tW")
    return (6 * case.m + case.p - 1) * case.forward / case.v


def _zb_v_makespan(case: Case) -> float:
    _require_filled(case, 2 * case.p - 1, "m >= 2p - 1")
    return _makespan(case)


def _zb_v_span_bubble(case: Case) -> float:
    _zb_v_makespan(case)
    return 0.0


def _zb_v_peak(case: Case, rank: int) -> tuple[int, int]:
    _require_filled(case, 2 * case.p - 1, "m >= 2p - 1")
    return 2 * case.p, 0


def _dualpipe_v_makespan(case: Case) -> float:
    _require_filled(case, 2 * case.p, "m >= 2p")
    return _makespan(case)


def _dualpipe_v_span_bubble(case: Case) -> float:
    _dualpipe_v_makespan(case)
    return (case.p - 1) * case.forward / case.v


def _dualpipe_v_peak(case: Case, rank: int) -> tuple[int, int]:
    _require_filled(case, 2 * case.p, "m >= 2p")
    return 2 * case.p + 1, 0


ZB_V = ClosedForms(_zb_v_makespan, _zb_v_span_bubble, _zb_v_peak, is_split=True)
DUALPIPE_V = ClosedForms(_dualpipe_v_makespan, _dualpipe_v_span_bubble, _dualpipe_v_peak, is_split=True)

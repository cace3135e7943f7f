"""Schedules without flushes: the order of 1F1B, in which every stage updates its own
weights while others run on.

They differ in the positions of U, and therefore in the version of the weights that each
microbatch uses. The rows contain nothing else: ``analysis/copies.py`` derives versions
and staleness from them.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator, Sequence

from minipipe.core.schedules.action import Action, B, F, U
from minipipe.core.schedules.action_table import Schedule
from minipipe.core.schedules.one_f_one_b import one_f_one_b
from minipipe.core.schedules.placement import check_sizes
from minipipe.core.specs import SCHEDULE_COUNT

# Maps the last microbatch of an update to the microbatch before whose F the U comes; to
# None if U follows its B.
Before = Callable[[int], int | None]


def pipedream(num_ranks: int, num_microbatches: int) -> Schedule:
    """Return PipeDream: every stage updates its weights after each backward, without a
    flush.

    ::

        rank 0: F0 F1    B0 U0 F2 B1 U1 F3 B2 U2    B3 U3
        rank 1:    F0 B0 U0 F1 B1 U1 F2 B2 U2 F3 B3 U3

    A backward runs with the weights of its forward, which are kept for it: stage s of p
    holds p - s versions, and the staleness of its updates is p - 1 - s. In the steady
    state no rank is idle: a microbatch takes tF + tB plus the time of U.

    Parameters
    ----------
    num_ranks, num_microbatches : int
        At least 1.

    Returns
    -------
    Schedule

    References
    ----------
    Narayanan et al. 2019, "PipeDream: generalized pipeline parallelism for DNN
    training", figure 4 and section 3.3 (weight stashing).

    Examples
    --------
    >>> from minipipe import schedules
    >>> print(schedules.pipedream(2, 3))
    # pipedream: 2 ranks, 2 stages, 3 microbatches
    rank 0: 0F0 0F1 0B0 0U0 0F2 0B1 0U1 0B2 0U2
    rank 1: 1F0 1B0 1U0 1F1 1B1 1U1 1F2 1B2 1U2
    """
    return _updated("pipedream", num_ranks, num_microbatches, 1, lambda k: None)


def vertical_sync(num_ranks: int, num_microbatches: int) -> Schedule:
    """Return PipeDream with vertical sync: a microbatch uses the same version of the
    weights on all stages.

    ::

        rank 0: F0 F1    B0 U0 F2 B1 U1 F3 B2 U2 B3 U3
        rank 1:    F0 B0 F1 B1 U0 F2 B2 U1 F3 B3 U2 U3

    Stage s delays its U so that its version equals the version of the first stage:
    microbatch k runs with version max(k - p + 1, 0) on all stages, and the staleness is
    min(k, p - 1). Stage s holds the gradients of s + 1 updates.

    Parameters and result are as in :func:`pipedream`.

    References
    ----------
    Narayanan et al. 2019, "PipeDream: generalized pipeline parallelism for DNN
    training", section 3.3 (vertical sync).

    Examples
    --------
    >>> from minipipe import schedules
    >>> print(schedules.vertical_sync(2, 3))
    # vertical-sync: 2 ranks, 2 stages, 3 microbatches
    rank 0: 0F0 0F1 0B0 0U0 0F2 0B1 0U1 0B2 0U2
    rank 1: 1F0 1B0 1F1 1B1 1U0 1F2 1B2 1U1 1U2
    """
    return _updated(
        "vertical-sync", num_ranks, num_microbatches, 1, lambda k: k + num_ranks
    )


def two_buffered(
    num_ranks: int, num_microbatches: int, microbatches_per_update: int | None = None
) -> Schedule:
    """Return PipeDream-2BW: updates of several microbatches, delayed so that two
    versions of the weights suffice.

    ::

        rank 0: F0 F1    B0 F2 B1 F3 B2 U1 F4 B3 F5 B4 U3 B5 U5
        rank 1:    F0 B0 F1 B1 F2 B2 F3 B3 U1 F4 B4 F5 B5 U3 U5

    The U of batch b comes right before the first F of batch b + 2, on every stage. With
    batches of m microbatches, microbatch k runs with version max(k // m - 1, 0), its
    staleness is 1 after the first batch, and a stage holds two versions.

    Parameters
    ----------
    num_ranks, num_microbatches : int
        At least 1.
    microbatches_per_update : int, optional
        The batch of an update: at least the number of ranks, which is the default. The
        last update takes the remaining microbatches.

    Returns
    -------
    Schedule

    References
    ----------
    Narayanan et al. 2021, "Memory-efficient pipeline-parallel DNN training", section
    3.1 and figure 2 (double-buffered weight updates).

    Examples
    --------
    >>> from minipipe import schedules
    >>> print(schedules.two_buffered(2, 5, microbatches_per_update=2))
    # 2bw: 2 ranks, 2 stages, 5 microbatches
    rank 0: 0F0 0F1 0B0 0F2 0B1 0F3 0B2 0U1 0F4 0B3 0U3 0B4 0U4
    rank 1: 1F0 1B0 1F1 1B1 1F2 1B2 1F3 1B3 1U1 1F4 1B4 1U3 1U4
    """
    m = microbatches_per_update
    if m is None:
        m = num_ranks
    check_sizes(num_ranks, num_microbatches)
    SCHEDULE_COUNT._replace(minimum=num_ranks).check("microbatches_per_update", m)
    return _updated("2bw", num_ranks, num_microbatches, m, lambda k: k + m + 1)


def paci(
    num_ranks: int, num_microbatches: int, microbatches_per_update: int = 2
) -> Schedule:
    """Return PACI: every stage updates its weights in place after a number of
    backwards, without a flush.

    ::

        rank 0: F0 F1    B0 F2 B1 U1 F3 B2    B3 U3
        rank 1:    F0 B0 F1 B1 U1 F2 B2 F3 B3 U3

    Only one version of the weights is held, so a backward may run with newer weights
    than its forward. With p ranks and an update after every a microbatches, this drift
    is at most ceil((p - 1) / a) updates.

    Parameters
    ----------
    num_ranks, num_microbatches : int
        At least 1.
    microbatches_per_update : int
        The batch of an update. The last update takes the remaining microbatches.

    Returns
    -------
    Schedule

    References
    ----------
    Elam et al. 2026, "Breaking the bubble: asynchronous pipeline parallel training with
    bounded weight inconsistency".

    Examples
    --------
    >>> from minipipe import schedules
    >>> print(schedules.paci(2, 4))
    # paci: 2 ranks, 2 stages, 4 microbatches
    rank 0: 0F0 0F1 0B0 0F2 0B1 0U1 0F3 0B2 0B3 0U3
    rank 1: 1F0 1B0 1F1 1B1 1U1 1F2 1B2 1F3 1B3 1U3
    """
    return _updated(
        "paci", num_ranks, num_microbatches, microbatches_per_update, lambda k: None
    )


def _updated(
    name: str, num_ranks: int, num_microbatches: int, batch: int, before: Before
) -> Schedule:
    """Return 1F1B with updates of batches of microbatches, each at the position that
    ``before`` specifies.
    """
    check_sizes(num_ranks, num_microbatches)
    SCHEDULE_COUNT.check("microbatches_per_update", batch)
    one = one_f_one_b(num_ranks, num_microbatches)
    starts = range(0, num_microbatches, batch)
    ends = [min(first + batch, num_microbatches) - 1 for first in starts]
    rows = tuple(tuple(_with_updates(row, ends, before)) for row in one.actions)
    return Schedule(name, one.placement, num_microbatches, rows)


def _with_updates(
    row: Sequence[Action], ends: Sequence[int], before: Before
) -> Iterator[Action]:
    """Yield a row of 1F1B with the U of each batch, named by its last microbatch."""
    stage = row[0].stage
    last = ends[-1]
    waiting = deque(Action(stage, U, k) for k in ends)
    has_forwards = True
    for action in row:
        while waiting and action.kind is F:
            if before(waiting[0].microbatch) != action.microbatch:
                break
            yield waiting.popleft()
        yield action
        has_forwards = has_forwards and action != Action(stage, F, last)
        # If there is no such F, the U comes once no later F would get newer weights
        # from it.
        is_backward = action.kind is B
        while waiting and is_backward and waiting[0].microbatch <= action.microbatch:
            if has_forwards and before(waiting[0].microbatch) is not None:
                break
            yield waiting.popleft()

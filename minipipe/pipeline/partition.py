"""Which layers make which stage."""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import accumulate

from minipipe.cuts import smallest_largest_rank
from minipipe.errors import ArgumentError, PartitionError


def partition_evenly(num_layers: int, num_stages: int) -> list[range]:
    """Divide layers among stages by number; the first stages get one more where they do not divide.

    Parameters
    ----------
    num_layers, num_stages : int

    Returns
    -------
    list of range
        The layers of each stage.

    Raises
    ------
    PartitionError
        Codes ``zero-stages`` and ``too-few-layers``.

    Examples
    --------
    >>> partition_evenly(10, 3)
    [range(0, 4), range(4, 7), range(7, 10)]
    """
    _check_counts(num_layers, num_stages)
    size, larger = divmod(num_layers, num_stages)
    ends = list(accumulate(size + (stage < larger) for stage in range(num_stages)))
    return [range(start, end) for start, end in zip([0, *ends], ends)]


def partition_by_cost(costs: Sequence[float], num_stages: int, placement: Sequence[int] | None = None) -> list[range]:
    """Divide layers among stages so that the most expensive rank costs least.

    With one stage on each rank that is the exact optimum, and among those partitions the most even one (the least sum
    of squares of the stages' costs, then of their numbers of layers). "Close a stage once it has its share" can be
    twice as bad; this is dynamic programming over cut points, O(layers^2 stages). Where a rank has several stages,
    their sum counts: see :func:`minipipe.cuts.smallest_largest_rank` for how near it comes.

    Parameters
    ----------
    costs : sequence of float
        Of each layer, in any unit, at least 0.
    num_stages : int
    placement : sequence of int, optional
        The rank of each stage, such as ``schedule.placement``; by default each stage has a rank of its own.

    Returns
    -------
    list of range
        The layers of each stage, at least one each.

    Raises
    ------
    PartitionError
        Codes ``zero-stages``, ``too-few-layers`` and ``invalid-cost``.
    ArgumentError
        Code ``value``: a placement of another number of stages.

    Examples
    --------
    >>> partition_by_cost([100, 100, 100, 100, 400], 2)
    [range(0, 4), range(4, 5)]

    In a V the first and the last stage are on one rank.

    >>> partition_by_cost([6, 1, 1, 1, 1, 1, 1], 4, placement=(0, 1, 1, 0))
    [range(0, 1), range(1, 2), range(2, 6), range(6, 7)]
    """
    return partition_by_stage_cost([costs] * num_stages, num_stages, placement)


def partition_by_stage_cost(
    costs: Sequence[Sequence[float]], num_stages: int, placement: Sequence[int] | None = None
) -> list[range]:
    """Divide layers among stages, where a layer costs another amount on each: in memory, say, by what is in flight.

    Parameters, result and errors are those of :func:`partition_by_cost`, but that ``costs`` has a row for each stage.

    Examples
    --------
    >>> partition_by_stage_cost([[2, 2, 2, 2], [1, 1, 1, 1]], 2)
    [range(0, 1), range(1, 4)]
    """
    _check_counts(len(costs[0]) if costs else 0, num_stages)
    for layer, cost in ((i, cost) for row in costs for i, cost in enumerate(row)):
        if not 0 <= cost < math.inf:
            raise PartitionError("invalid-cost", f"Layer {layer} costs {cost}; expected a finite number, at least 0.")
    if placement is not None and len(placement) != num_stages:
        message = f"The placement has {len(placement)} ranks; expected one for each of {num_stages} stages."
        raise ArgumentError("value", message)
    return smallest_largest_rank(costs, range(num_stages) if placement is None else placement)


def check_partition(partition: Sequence[range], num_layers: int, num_stages: int) -> list[range]:
    """Return a partition given by hand, after checking that it covers every layer once, in order.

    Raises
    ------
    PartitionError
        Code ``not-a-partition``.

    Examples
    --------
    >>> check_partition([range(0, 2), range(3, 4)], num_layers=4, num_stages=2)
    Traceback (most recent call last):
        ...
    minipipe.errors.PartitionError: [range(0, 2), range(3, 4)] does not divide layers 0 to 3 into 2 stages; ...
    """
    parts = list(partition)
    fits = len(parts) == num_stages and all(isinstance(part, range) and part and part.step == 1 for part in parts)
    if fits:
        starts, ends = [part.start for part in parts], [part.stop for part in parts]
        fits = starts == [0, *ends[:-1]] and ends[-1] == num_layers
    if not fits:
        raise PartitionError(
            "not-a-partition",
            f"{parts} does not divide layers 0 to {num_layers - 1} into {num_stages} stages; expected one range for "
            "each stage, none empty, each beginning where the one before ends.",
        )
    return parts


def _check_counts(num_layers: int, num_stages: int) -> None:
    if num_stages < 1:
        raise PartitionError("zero-stages", f"num_stages is {num_stages}; expected at least 1.")
    if num_layers < num_stages:
        raise PartitionError(
            "too-few-layers",
            f"{num_layers} layers cannot make {num_stages} stages, each of at least one layer. Use a deeper model, "
            "fewer ranks, or a schedule with fewer stages on each.",
        )

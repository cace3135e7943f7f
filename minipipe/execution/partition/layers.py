"""Which layers make which stage."""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import accumulate

from minipipe.errors import ArgumentError, PartitionError
from minipipe.execution.partition.search import smallest_largest_rank


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
    their sum counts: see :func:`minipipe.execution.partition.search.smallest_largest_rank` for how near it comes.

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


def partition_of(
    sizes: Sequence[int],
    numbers: Sequence[float],
    placement: Sequence[int],
    partition: Sequence[range] | None = None,
    layer_costs: Sequence[float] | None = None,
) -> list[range]:
    """Return the flat layers of each stage: as given, or so that the largest rank is as small as can be.

    A partition and costs may count the layers of the model, where a nested sequence is one, or the flat ones.

    Parameters
    ----------
    sizes : sequence of int
        How many flat layers each layer of the model has.
    numbers : sequence of float
        How many parameters each flat layer has; balanced, unless something else is given.
    placement : sequence of int
        The rank of each stage.
    partition : sequence of range, optional
    layer_costs : sequence of float, optional

    Raises
    ------
    PartitionError
        Codes of :func:`check_partition` and :func:`partition_by_cost`.

    Examples
    --------
    A model of two sequences, with one flat layer and three.

    >>> partition_of([1, 3], [5, 1, 1, 1], (0, 1)), partition_of([1, 3], [5, 1, 1, 1], (0, 1), layer_costs=[1, 1])
    ([range(0, 1), range(1, 4)], [range(0, 1), range(1, 4)])
    """
    num_flat, num_stages = len(numbers), len(placement)
    if partition is not None:
        parts = list(partition)
        is_of_model = bool(parts) and isinstance(parts[-1], range) and parts[-1].stop == len(sizes) < num_flat
        parts = check_partition(parts, len(sizes) if is_of_model else num_flat, num_stages)
    else:
        costs = list(numbers if layer_costs is None else layer_costs)
        if len(costs) not in (num_flat, len(sizes)):
            message = f"layer_costs has {len(costs)} values; expected one for each of {num_flat} layers."
            raise PartitionError("invalid-cost", message)
        parts, is_of_model = partition_by_cost(costs, num_stages, placement), len(costs) != num_flat
    starts = [0, *accumulate(sizes)] if is_of_model else range(num_flat + 1)
    return [range(starts[part.start], starts[part.stop]) for part in parts]


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

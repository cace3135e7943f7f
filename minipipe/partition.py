"""Which layers make which stage."""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import accumulate

from minipipe.errors import PartitionError


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


def partition_by_cost(costs: Sequence[float], num_stages: int) -> list[range]:
    """Divide layers among stages so that the most expensive stage costs least: the exact optimum.

    Among those partitions it takes the most even one (the least sum of squares of the stages' costs, then of their
    numbers of layers). "Close a stage once it has its share" can be twice as bad; this is dynamic programming over
    cut points, O(layers^2 stages).

    Parameters
    ----------
    costs : sequence of float
        Of each layer, in any unit, at least 0.
    num_stages : int

    Returns
    -------
    list of range
        The layers of each stage, at least one each.

    Raises
    ------
    PartitionError
        Codes ``zero-stages``, ``too-few-layers`` and ``invalid-cost``.

    Examples
    --------
    >>> partition_by_cost([100, 100, 100, 100, 400], 2)
    [range(0, 4), range(4, 5)]
    """
    _check_counts(len(costs), num_stages)
    for layer, cost in enumerate(costs):
        if not 0 <= cost < math.inf:
            raise PartitionError("invalid-cost", f"Layer {layer} costs {cost}; expected a finite number, at least 0.")
    before = [0, *accumulate(costs)]  # before[i]: the cost of all layers before layer i
    limit = _smallest_largest_stage(before, num_stages)
    return _most_even(before, num_stages, limit)


def _smallest_largest_stage(before: Sequence[float], num_stages: int) -> float:
    """Return the least possible cost of the most expensive stage."""
    num_layers = len(before) - 1
    best = [math.inf] * (num_layers + 1)  # best[i]: for the first i layers in the stages so far
    best[0] = 0
    for closed in range(num_stages):
        for end in range(num_layers, -1, -1):
            starts = range(closed, end)
            best[end] = min((max(best[i], before[end] - before[i]) for i in starts), default=math.inf)
    return best[num_layers]


def _most_even(before: Sequence[float], num_stages: int, limit: float) -> list[range]:
    """Return the most even partition none of whose stages costs more than ``limit``."""
    num_layers = len(before) - 1
    worst = (math.inf, math.inf)
    best: list[tuple[float, float]] = [(0, 0)] + [worst] * num_layers
    cuts: list[list[int]] = []
    for closed in range(num_stages):  # how many stages are complete, each with at least one layer
        new, cut = [worst] * (num_layers + 1), [0] * (num_layers + 1)
        for end in range(closed + 1, num_layers + 1):
            for start in range(end - 1, closed - 1, -1):
                cost = before[end] - before[start]
                if cost > limit:
                    break
                squares = (best[start][0] + cost * cost, best[start][1] + (end - start) ** 2)
                if squares < new[end]:  # on a tie the earlier stages get more layers
                    new[end], cut[end] = squares, start
        best = new
        cuts.append(cut)
    partition, end = [], num_layers
    for cut in reversed(cuts):
        partition.append(range(cut[end], end))
        end = cut[end]
    return partition[::-1]


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

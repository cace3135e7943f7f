"""Where to cut a row of layers into stages: searches over numbers alone, without a model."""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import accumulate, pairwise

Costs = Sequence[Sequence[float]]  # by stage, the cost that each layer has there
_Way = tuple[tuple[float, ...], tuple[int, ...]]  # the cost of each rank so far, and the cuts


def smallest_largest_stage(costs: Costs) -> list[range]:
    """Return the partition whose most expensive stage costs least: the exact optimum.

    Of several it is the most even one: the least sum of squares of the stages' costs, then of their numbers of layers.
    Dynamic programming over cut points, O(layers^2 stages).

    Parameters
    ----------
    costs : sequence of sequence of float
        By stage, the cost that each layer has there, at least 0. There are at least as many layers as stages.

    Examples
    --------
    >>> smallest_largest_stage([[100, 100, 100, 100, 400]] * 2)
    [range(0, 4), range(4, 5)]
    """
    before = _sums_before(costs)
    return _most_even(before, _least_limit(before))


def smallest_largest_rank(costs: Costs, placement: Sequence[int]) -> list[range]:
    """Return a partition in which the rank whose stages cost most costs least; a rank may have several stages.

    Stage by stage it keeps, for each number of layers used up, the ways to have cut them: what each rank has so far. Of
    ways that give the same to the ranks with stages to come, only the most even one is kept. With one stage on each
    rank one way is left, and the result is exact. In general the ways multiply (to cut between two alternating ranks is
    to solve a subset sum), so only the ``40,000 / (layers stages)`` most even ones are kept, at least 4. It is exact
    as long as there are no more, such as for 12 layers in 6 stages; never worse than :func:`smallest_largest_stage`;
    and so at most as many times the optimum as a rank has stages. Of partitions
    that are equally good it prefers even ones.

    Parameters
    ----------
    costs : sequence of sequence of float
        As for :func:`smallest_largest_stage`.
    placement : sequence of int
        The rank of each stage.

    Examples
    --------
    The first and the last stage are on one rank: together they get as much as the two in between.

    >>> smallest_largest_rank([[6, 1, 1, 1, 1, 1, 1]] * 4, placement=(0, 1, 1, 0))
    [range(0, 1), range(1, 2), range(2, 6), range(6, 7)]
    """
    partition = smallest_largest_stage(costs)
    if len(set(placement)) == len(placement):
        return partition
    before = _sums_before(costs)
    first = _loads(before, placement, partition)
    num_layers, num_stages = len(before[0]) - 1, len(placement)
    num_kept = max(4, 40_000 // (num_layers * num_stages))
    ways: dict[int, list[_Way]] = {0: [((0,) * (max(placement) + 1), (0,))]}  # by number of layers used up
    for rest, rank, sums in zip(reversed(range(num_stages)), placement, before):  # rest: the number of stages to come
        ends = range(1 if rest else num_layers, num_layers - rest + 1)
        longer = _with_a_stage(ways, sums, rank, ends, max(first))
        later = sorted(set(placement[num_stages - rest :]))
        ways = {end: _most_even_ways(found, later, num_kept) for end, found in longer.items()}
    loads, cuts = ways[num_layers][0] if num_layers in ways else (first, ())
    is_better = _unevenness(loads) < _unevenness(first)
    return [range(start, end) for start, end in pairwise(cuts)] if is_better else partition


def _with_a_stage(
    ways: dict[int, list[_Way]], sums: Sequence[float], rank: int, ends: range, limit: float
) -> dict[int, list[_Way]]:
    """Return the ways with one more stage, on a rank, without those that exceed the limit."""
    longer: dict[int, list[_Way]] = {}
    for start, found in ways.items():
        for loads, cuts in found:
            for end in range(max(start + 1, ends.start), ends.stop):
                load = loads[rank] + sums[end] - sums[start]
                if load > limit:
                    break
                way = (*loads[:rank], load, *loads[rank + 1 :]), (*cuts, end)
                longer.setdefault(end, []).append(way)
    return longer


def _most_even_ways(ways: list[_Way], ranks: Sequence[int], count: int) -> list[_Way]:
    """Return the most even ways, one of those that are alike to the ranks with stages to come."""
    kept: dict[tuple[float, ...], _Way] = {}
    for loads, cuts in sorted(ways, key=lambda way: _unevenness(way[0])):
        kept.setdefault(tuple(loads[rank] for rank in ranks), (loads, cuts))
        if len(kept) == count:
            break
    return list(kept.values())


def _unevenness(loads: Sequence[float]) -> tuple[float, float]:
    """Return what a partition is judged by: the most expensive rank, and the sum of squares."""
    return max(loads), sum(load * load for load in loads)


def _loads(before: Costs, placement: Sequence[int], partition: Sequence[range]) -> list[float]:
    """Return the cost of each rank."""
    loads = [0.0] * (max(placement) + 1)
    for stage, part in enumerate(partition):
        loads[placement[stage]] += before[stage][part.stop] - before[stage][part.start]
    return loads


def _sums_before(costs: Costs) -> list[list[float]]:
    """Return, by stage, the cost of all layers before a layer."""
    return [[0, *accumulate(row)] for row in costs]


def _least_limit(before: Costs) -> float:
    """Return the least possible cost of the most expensive stage."""
    num_layers = len(before[0]) - 1
    best = [math.inf] * (num_layers + 1)  # best[i]: for the first i layers in the stages so far
    best[0] = 0
    for closed, sums in enumerate(before):
        for end in range(num_layers, -1, -1):
            starts = range(closed, end)
            best[end] = min((max(best[i], sums[end] - sums[i]) for i in starts), default=math.inf)
    return best[num_layers]


def _most_even(before: Costs, limit: float) -> list[range]:
    """Return the most even partition none of whose stages costs more than ``limit``."""
    num_layers = len(before[0]) - 1
    worst = (math.inf, math.inf)
    best: list[tuple[float, float]] = [(0, 0)] + [worst] * num_layers
    cuts: list[list[int]] = []
    for closed, sums in enumerate(before):  # how many stages are complete, each with at least one layer
        new, cut = [worst] * (num_layers + 1), [0] * (num_layers + 1)
        for end in range(closed + 1, num_layers + 1):
            for start in range(end - 1, closed - 1, -1):
                cost = sums[end] - sums[start]
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

"""Which layers make which stage."""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import accumulate, pairwise
from typing import NamedTuple

from minipipe.core.dividing import check_counts
from minipipe.core.dividing import partition_evenly as partition_evenly
from minipipe.core.specs import Spec
from minipipe.errors import ArgumentError, PartitionError, counted

_COST = Spec(
    float, minimum=0, expected="a finite number, at least 0", error=PartitionError
)


class NamedPartition(NamedTuple):
    """A partition that a pipeline takes by its name.

    Attributes
    ----------
    function : str
        Its module and name; a pipeline imports it when the partition is asked for. It
        takes the model, the group, the options of the plan and the class of the
        pipeline, and the pipeline's own keywords by name. It returns a model or a plan,
        the options that remain, and whether to recompute. The ranks call it together.
    over_grid : bool
        Whether a device mesh may have replicas and tensor-parallel ranks.
    """

    function: str
    over_grid: bool = True


_VOCABULARY = NamedPartition("minipipe.execution.vocabulary.divided", over_grid=False)
PARTITIONS = {
    "measured": NamedPartition("minipipe.tuning.race.decided"),
    "vocabulary": _VOCABULARY,
    "vocabulary-one-barrier": _VOCABULARY,
}
"""The partitions by name."""


def named_partition(name: str) -> NamedPartition:
    """Return a partition by its name.

    Raises
    ------
    PartitionError
        Code ``value``; the message lists all names.

    Examples
    --------
    >>> named_partition("measured").function
    'minipipe.tuning.race.decided'
    """
    if name not in PARTITIONS:
        expected = f"expected a list of range, or one of {', '.join(PARTITIONS)}"
        raise PartitionError("value", f"partition is {name!r}; {expected}.")
    return PARTITIONS[name]


def partition_by_cost(
    costs: Sequence[float], num_stages: int, placement: Sequence[int] | None = None
) -> list[range]:
    """Divide layers among stages so that the most expensive rank costs least.

    With one stage on each rank the result is the exact optimum, and the most even of
    the optimal partitions (the least sum of squares of the stages' costs, then of their
    numbers of layers). "Close a stage once it has its part of the cost" can be twice as
    bad; this is dynamic programming over stage boundaries, O(layers^2 stages). If a
    rank has several stages, their sum counts: see
    :func:`minipipe.execution.partition.smallest_largest_rank` for the distance from the
    optimum.

    Parameters
    ----------
    costs : sequence of float
        Cost of each layer, in any unit, at least 0.
    num_stages : int
    placement : sequence of int, optional
        The rank of each stage, such as ``schedule.placement``; by default each stage is
        on a separate rank.

    Returns
    -------
    list of range
        The layers of each stage, at least one each.

    Raises
    ------
    PartitionError
        Codes ``value`` and ``too-few``.
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
    costs: Sequence[Sequence[float]],
    num_stages: int,
    placement: Sequence[int] | None = None,
) -> list[range]:
    """Divide layers among stages if the cost of a layer depends on the stage, as its
    memory does.

    Parameters, result and errors are as in :func:`partition_by_cost`, except that
    ``costs`` has a row for each stage.

    Examples
    --------
    >>> partition_by_stage_cost([[2, 2, 2, 2], [1, 1, 1, 1]], 2)
    [range(0, 1), range(1, 4)]
    """
    num_layers = max(map(len, costs), default=0)
    check_counts(num_layers, num_stages)
    for layer, cost in ((i, cost) for row in costs for i, cost in enumerate(row)):
        _COST.check(f"The cost of layer {layer}", cost)
    if placement is not None and len(placement) != num_stages:
        given = counted(len(placement), "rank")
        expected = counted(num_stages, "stage")
        message = f"The placement has {given}; expected one for each of {expected}."
        raise ArgumentError(message)
    if placement is None:
        placement = range(num_stages)
    return smallest_largest_rank(costs, placement)


def partition_of(
    sizes: Sequence[int],
    numbers: Sequence[float],
    placement: Sequence[int],
    partition: Sequence[range] | None = None,
    layer_costs: Sequence[float] | None = None,
) -> list[range]:
    """Return the flat layers of each stage: as requested, or so that the cost of the
    largest rank is minimal.

    A partition and costs may count the layers of the model, in which a nested sequence
    is one layer, or the flat layers.

    Parameters
    ----------
    sizes : sequence of int
        How many flat layers each layer of the model has.
    numbers : sequence of float
        How many parameters each flat layer has; these are balanced unless layer_costs
        is passed.
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

    >>> (
    ...     partition_of([1, 3], [5, 1, 1, 1], (0, 1)),
    ...     partition_of([1, 3], [5, 1, 1, 1], (0, 1), layer_costs=[1, 1]),
    ... )
    ([range(0, 1), range(1, 4)], [range(0, 1), range(1, 4)])
    """
    num_flat = len(numbers)
    num_stages = len(placement)
    if isinstance(partition, str):
        names = ", ".join(map(repr, PARTITIONS))
        message = f"partition is {partition!r}; expected a list of range. Pipeline(…) "
        message += f"also takes {names}."
        raise PartitionError("value", message)
    if partition is not None:
        parts = list(partition)
        is_of_model = (
            bool(parts)
            and isinstance(parts[-1], range)
            and parts[-1].stop == len(sizes) < num_flat
        )
        num_layers = len(sizes) if is_of_model else num_flat
        parts = check_partition(parts, num_layers, num_stages)
    else:
        costs = list(numbers)
        if layer_costs is not None:
            costs = list(layer_costs)
        if len(costs) not in (num_flat, len(sizes)):
            given = counted(len(costs), "value")
            expected = counted(num_flat, "layer")
            message = f"layer_costs has {given}; expected one for each of {expected}."
            raise PartitionError("value", message)
        parts = partition_by_cost(costs, num_stages, placement)
        is_of_model = len(costs) != num_flat
    starts = [0, *accumulate(sizes)] if is_of_model else range(num_flat + 1)
    return [range(starts[part.start], starts[part.stop]) for part in parts]


def check_partition(
    partition: Sequence[range], num_layers: int, num_stages: int
) -> list[range]:
    """Return an explicit partition, after checking that it covers every layer once, in
    order.

    Raises
    ------
    PartitionError
        Code ``value``.

    Examples
    --------
    >>> check_partition([range(0, 2), range(3, 4)], num_layers=4, num_stages=2)
    Traceback (most recent call last):
        ...
    minipipe.errors.PartitionError: [range(0, 2), range(3, 4)] does not divide layers 0 to 3 into 2 stages; ...
    """
    parts = list(partition)
    fits = len(parts) == num_stages and all(
        isinstance(part, range) and part and part.step == 1 for part in parts
    )
    if fits:
        starts = [part.start for part in parts]
        ends = [part.stop for part in parts]
        fits = starts == [0, *ends[:-1]] and ends[-1] == num_layers
    if not fits:
        raise PartitionError(
            "value",
            f"{parts} does not divide layers 0 to {num_layers - 1} into "
            f"{counted(num_stages, 'stage')}; expected one range for each stage, none "
            "empty, each beginning where the one before ends.",
        )
    return parts


# -- searches for stage boundaries, over numbers alone ---------------------------------


Costs = Sequence[Sequence[float]]  # by stage, the cost that each layer has there
# the cost of each rank so far, and the stage boundaries
_Way = tuple[tuple[float, ...], tuple[int, ...]]


def smallest_largest_stage(costs: Costs) -> list[range]:
    """Return the partition whose most expensive stage costs least: the exact optimum.

    Ties go to the most even partition: the least sum of squares of the stages' costs,
    then of their numbers of layers. Dynamic programming over stage boundaries,
    O(layers^2 stages).

    Parameters
    ----------
    costs : sequence of sequence of float
        The cost of each layer on each stage, in a row per stage, at least 0. No fewer
        layers than stages.

    Examples
    --------
    >>> smallest_largest_stage([[100, 100, 100, 100, 400]] * 2)
    [range(0, 4), range(4, 5)]
    """
    before = _sums_before(costs)
    return _most_even(before, _least_limit(before))


def smallest_largest_rank(costs: Costs, placement: Sequence[int]) -> list[range]:
    """Return a partition in which the rank whose stages cost most costs least; a rank
    may have several stages.

    For each stage and number of assigned layers, the search keeps candidates: the stage
    boundaries and the cost of each rank so far. If candidates agree in the costs of the
    ranks with stages to come, only the most even one is kept. With one stage on each
    rank a single candidate is left, and the result is exact. In general the candidates
    multiply (dividing layers between two alternating ranks solves a subset sum), so
    only the ``40,000 / (layers stages)`` most even ones are kept, at least 4. The
    result is exact as long as there are no more, such as for 12 layers in 6 stages. It
    is never worse than :func:`smallest_largest_stage`, so its cost is at most the
    optimum times the number of stages on a rank. Among equally good partitions it
    prefers even ones.

    Parameters
    ----------
    costs : sequence of sequence of float
        As for :func:`smallest_largest_stage`.
    placement : sequence of int
        The rank of each stage.

    Examples
    --------
    The first and the last stage are on one rank: together they get as much as the two
    in between.

    >>> smallest_largest_rank([[6, 1, 1, 1, 1, 1, 1]] * 4, placement=(0, 1, 1, 0))
    [range(0, 1), range(1, 2), range(2, 6), range(6, 7)]
    """
    partition = smallest_largest_stage(costs)
    if len(set(placement)) == len(placement):
        return partition
    before = _sums_before(costs)
    first = _loads(before, placement, partition)
    num_layers = len(before[0]) - 1
    num_stages = len(placement)
    num_kept = max(4, 40_000 // (num_layers * num_stages))
    # by number of layers used up
    ways: dict[int, list[_Way]] = {0: [((0,) * (max(placement) + 1), (0,))]}
    # rest: the number of stages to come
    for rest, rank, sums in zip(reversed(range(num_stages)), placement, before):
        ends = range(1 if rest else num_layers, num_layers - rest + 1)
        longer = _with_a_stage(ways, sums, rank, ends, max(first))
        later = sorted(set(placement[num_stages - rest :]))
        ways = {
            end: _most_even_ways(found, later, num_kept)
            for end, found in longer.items()
        }
    loads, cuts = ways[num_layers][0] if num_layers in ways else (first, ())
    is_better = _unevenness(loads) < _unevenness(first)
    if not is_better:
        return partition
    return [range(start, end) for start, end in pairwise(cuts)]


def _with_a_stage(
    ways: dict[int, list[_Way]],
    sums: Sequence[float],
    rank: int,
    ends: range,
    limit: float,
) -> dict[int, list[_Way]]:
    """Return the ways with one more stage, on a rank, without those that exceed the
    limit.
    """
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
    """Return the most even candidates, one of those that agree for the ranks with
    stages to come.
    """
    kept: dict[tuple[float, ...], _Way] = {}
    for loads, cuts in sorted(ways, key=lambda way: _unevenness(way[0])):
        kept.setdefault(tuple(loads[rank] for rank in ranks), (loads, cuts))
        if len(kept) == count:
            break
    return list(kept.values())


def _unevenness(loads: Sequence[float]) -> tuple[float, float]:
    """Return the criteria for a partition: the cost of the most expensive rank, and the
    sum of squares.
    """
    return max(loads), sum(load * load for load in loads)


def _loads(
    before: Costs, placement: Sequence[int], partition: Sequence[range]
) -> list[float]:
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
    # best[i]: for the first i layers in the stages so far
    best = [math.inf] * (num_layers + 1)
    best[0] = 0
    for closed, sums in enumerate(before):
        for end in range(num_layers, -1, -1):
            starts = range(closed, end)
            best[end] = min(
                (max(best[i], sums[end] - sums[i]) for i in starts), default=math.inf
            )
    return best[num_layers]


def _most_even(before: Costs, limit: float) -> list[range]:
    """Return the most even partition none of whose stages costs more than ``limit``."""
    num_layers = len(before[0]) - 1
    worst = (math.inf, math.inf)
    best: list[tuple[float, float]] = [(0, 0)] + [worst] * num_layers
    cuts: list[list[int]] = []
    # how many stages are complete, each with at least one layer
    for closed, sums in enumerate(before):
        new = [worst] * (num_layers + 1)
        cut = [0] * (num_layers + 1)
        for end in range(closed + 1, num_layers + 1):
            for start in range(end - 1, closed - 1, -1):
                cost = sums[end] - sums[start]
                if cost > limit:
                    break
                squares = (
                    best[start][0] + cost * cost,
                    best[start][1] + (end - start) ** 2,
                )
                if squares < new[end]:  # on a tie the earlier stages get more layers
                    new[end], cut[end] = squares, start
        best = new
        cuts.append(cut)
    partition = []
    end = num_layers
    for cut in reversed(cuts):
        partition.append(range(cut[end], end))
        end = cut[end]
    return partition[::-1]

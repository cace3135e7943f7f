"""13 partition: divide the layers into stages.

Lesson 12. A pipeline is only as fast as its slowest stage. So divide the layers,
without changing their order, such that the most expensive stage costs as little as
possible.

The obvious method walks along the layers and closes a stage as soon as its sum reaches
the average. It can be nearly twice as bad as the optimum: [99, 100, 1] in 2 stages
becomes 199 and 1. It can even produce too few stages: [1, 2] in 2 stages becomes a
single one. Dynamic programming finds the optimum. The best partition of the first n
layers into k stages consists of the best partition of the first i layers into k - 1
stages, for some i, and the layers from i to n as the last stage.

Write `partition(costs, num_stages)`: the number of layers in each stage, at least 1
each. There are at least as many layers as stages, and costs are at least 0. If several
partitions are optimal, any of them will do.

Example: partition([99, 100, 1], 2) is [1, 2]. The stages cost 99 and 101.

Checked: the number of stages, that none is empty, that every layer is in one; the most
expensive stage against all partitions; 80 layers in 12 stages, where trying all
partitions would take longer than a lifetime.
"""

from collections.abc import Sequence


def partition(costs: Sequence[float], num_stages: int) -> list[int]:
    """Return the number of layers in each stage such that the most expensive stage is
    as cheap as possible.
    """
    # SOLUTION
    num_layers = len(costs)
    before = [0.0]
    for cost in costs:
        before.append(before[-1] + cost)
    # best[n]: (cost of the most expensive stage, sizes) of the first n layers in the
    # stages so far
    best = {n: (before[n], [n]) for n in range(1, num_layers + 1)}
    for stage in range(2, num_stages + 1):
        best = {
            n: min(
                (max(best[i][0], before[n] - before[i]), [*best[i][1], n - i])
                for i in range(stage - 1, n)
            )
            for n in range(stage, num_layers + 1)
        }
    return best[num_layers][1]
    # STUB
    # raise NotImplementedError(
    #     "for each number of stages: the best partition of the first n layers"
    # )
    # END

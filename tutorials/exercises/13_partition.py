"""13 partition: which layers make which stage.

Lesson 12. A pipeline is as fast as its slowest stage. So layers should be divided, in their order, such that the most
expensive stage costs as little as possible.

The obvious way is to go along and close a stage once its sum has reached the average. It can be nearly twice as bad as
the best, [99, 100, 1] in 2 makes 199 and 1, and it may not even make as many stages as there are ranks: [1, 2] in 2
makes one. The best is found by dynamic programming: the best way to put the first n layers into k stages is made of the
best way to put the first i of them into k - 1 stages, for some i, and the layers from i to n as the last one.

Write `partition(costs, num_stages)`: the number of layers in each stage, at least 1 each. There are at least as many
layers as stages; costs are at least 0. Where several partitions are best, any of them will do.

Example: partition([99, 100, 1], 2) is [1, 2], whose stages cost 99 and 101.

Checked: the number of stages, no empty one, every layer in one; the most expensive stage against all partitions; 80
layers in 12 stages, where trying all would take longer than you live.
"""

from collections.abc import Sequence


def partition(costs: Sequence[float], num_stages: int) -> list[int]:
    """Return the number of layers in each stage, such that the most expensive stage costs least."""
    # SOLUTION
    num_layers = len(costs)
    before = [0.0]
    for cost in costs:
        before.append(before[-1] + cost)
    # best[n]: (cost of the most expensive stage, sizes) of the first n layers in the stages so far
    best = {n: (before[n], [n]) for n in range(1, num_layers + 1)}
    for stage in range(2, num_stages + 1):
        best = {
            n: min((max(best[i][0], before[n] - before[i]), [*best[i][1], n - i]) for i in range(stage - 1, n))
            for n in range(stage, num_layers + 1)
        }
    return best[num_layers][1]
    # STUB
    # raise NotImplementedError("for each number of stages: the best for the first n layers")
    # END

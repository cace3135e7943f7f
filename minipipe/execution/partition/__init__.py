"""Which layers make which stage: pure numbers, without a model."""

from minipipe.execution.partition.layers import partition_by_cost, partition_evenly

__all__ = ["partition_by_cost", "partition_evenly"]

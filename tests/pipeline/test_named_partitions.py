"""Partitions by name: a table, of which each entry is imported when it is asked for."""

from typing import get_args

import numpy as np
import pytest

from minipipe import Grid, Pipeline, nn, spawn
from minipipe.errors import ArgumentError, PartitionError
from minipipe.execution.partition import PARTITIONS, NamedPartition, partition_by_cost
from minipipe.pipeline import options

HOME = "tests.pipeline.test_named_partitions"


def by_inputs(model, group, options, pipeline, **own):
    """A partition that balances the inputs of layers."""
    costs = [layer.weight.shape[0] for layer in model.layers]
    num_stages = group.size // options.get("replicas", 1)
    parts = partition_by_cost(costs, num_stages)
    return model, {**options, "partition": parts}, own["recompute"]


def made(group, **more):
    layers = [nn.Linear(8, 2), nn.Linear(2, 2), nn.Linear(2, 2), nn.Linear(2, 64)]
    model = nn.Sequential(*layers)
    more = {"loss": nn.MSELoss(), "num_microbatches": 2, **more}
    pipeline = Pipeline(model, group, **more)
    pipeline.step(np.ones((8, 8)), np.ones((8, 64)))
    return str(pipeline)


def test_another_partition_is_an_entry_of_the_table(monkeypatch):
    entry = NamedPartition(f"{HOME}.by_inputs")
    monkeypatch.setitem(PARTITIONS, "by-inputs", entry)
    parts = [range(1), range(1, 4)]
    named, plain, default = (
        spawn(lambda group: made(group, **more), 2)[0]
        for more in ({"partition": "by-inputs"}, {"partition": parts}, {})
    )
    assert named == plain != default
    over_grid = {"partition": "by-inputs"}
    spawn(lambda group: made(Grid(group, data=2, pipeline=2), **over_grid), 4)


def test_an_entry_may_refuse_device_meshes(monkeypatch):
    entry = NamedPartition(f"{HOME}.by_inputs", over_grid=False)
    monkeypatch.setitem(PARTITIONS, "by-inputs", entry)
    with pytest.raises(ArgumentError, match="do not work with partition='by-inputs'"):
        spawn(lambda group: made(Grid(group, data=2), partition="by-inputs"), 2)


def test_an_unknown_name_lists_the_known_ones():
    words = f"'even'; expected a list of range, or one of {', '.join(PARTITIONS)}"
    for make in (lambda group: group, lambda group: Grid(group, data=2)):
        with pytest.raises(PartitionError, match=words):
            spawn(lambda group, make=make: made(make(group), partition="even"), 2)


def test_type_checkers_know_each_name():
    assert set(get_args(options._Partitions)) == set(PARTITIONS)

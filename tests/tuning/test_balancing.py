"""Partitions from measurements: by time, by memory, by parameters, and on the ranks of
a pipeline.
"""

from itertools import combinations

import numpy as np
import pytest

from minipipe import (
    Pipeline,
    Plan,
    balance,
    measure_layers,
    nn,
    optim,
    schedules,
    spawn,
)
from minipipe.comm import OneRankGroup
from minipipe.errors import ArgumentError, ModelError
from minipipe.tuning.layers import microbatches_in_flight
from tests.launch import mpirun, needs_mpi
from tests.pipeline.small_pipelines import mlp
from tests.strategies import NAMES, batch, build


class Clock:
    """Stands in for time.perf_counter: it stands still, but for the layers and for a
    microsecond a look.
    """

    def __init__(self):
        self.now = 0.0

    def __call__(self):
        self.now += 1e-6
        return self.now

    def __deepcopy__(self, memo):
        return self  # a stage has copies of the layers, which look at the same clock


@pytest.fixture
def clock(monkeypatch):
    stopped = Clock()
    monkeypatch.setattr("minipipe.tuning.measuring.perf_counter", stopped)
    return stopped


class Takes(nn.Module):
    """Takes a time that is known, in forward alone."""

    def __init__(self, seconds, clock):
        self.seconds, self.clock = seconds, clock

    def forward(self, x):
        self.clock.now += self.seconds
        return x * 1.0


def slow_layers(clock, *seconds):
    return nn.Sequential(*(Takes(time, clock) for time in seconds))


X = np.ones((8, 4), np.float32)


def test_the_slowest_rank_is_as_fast_as_can_be(clock):
    model = slow_layers(clock, 6, 1, 1, 1, 1, 1, 1)
    assert balance(model, X, num_stages=2, repeats=1) == [range(0, 1), range(1, 7)]
    # In a V the first and the last stage are on one rank: 6 + 1 there, and the rest in
    # between.
    v = balance(model, X, num_stages=4, placement=(0, 1, 1, 0), repeats=1)
    assert (v[0], v[3]) == (range(0, 1), range(6, 7))


def test_the_loss_counts_with_the_last_layer(clock):
    def slow(outputs, targets):
        clock.now += 3
        return (outputs - targets).mean()

    layers = measure_layers(slow_layers(clock, 1, 1, 1, 1), X, X, slow, repeats=1)
    assert [round(time) for time in layers.times] == [1, 1, 1, 4]
    assert layers.balance(2) == [range(0, 3), range(3, 4)]


def test_where_stages_are_recomputed_forward_counts_twice(clock):
    layers = measure_layers(
        nn.Sequential(nn.Linear(4, 4), *slow_layers(clock, 1, 1, 1)), X, repeats=1
    )
    once, again = layers._amounts("time", False), layers._amounts("time", True)
    assert [round(after / before) for before, after in zip(once[1:], again[1:])] == [
        2,
        2,
        2,
    ]


def test_by_parameters_it_is_the_default_partition():
    model = nn.Sequential(
        *(
            nn.Linear(4, n) if i % 2 == 0 else nn.Linear(7, 4)
            for i, n in enumerate([7] * 9)
        )
    )
    plan = Plan(model, "zb-v", num_ranks=2)
    assert balance(model, X, by="parameters", schedule=plan.schedule) == list(
        plan.partition
    )


def test_by_memory_a_rank_that_holds_more_microbatches_gets_fewer_layers():
    model = nn.Sequential(
        *(layer for _ in range(8) for layer in (nn.Linear(4, 4), nn.Tanh()))
    )
    inputs = np.ones((512, 4), np.float32)
    sizes = [
        len(part)
        for part in balance(
            model, inputs, by="memory", schedule=schedules.one_f_one_b(4, 8)
        )
    ]
    assert sizes == sorted(sizes) and sizes[0] < sizes[-1]
    # one microbatch each
    assert max(map(len, balance(model, inputs, num_stages=4, by="memory"))) < sizes[-1]


def test_by_memory_the_optimisers_state_counts():
    model = nn.Sequential(
        nn.Linear(64, 64), nn.Linear(64, 64), *(nn.Tanh() for _ in range(10))
    )
    inputs = np.ones((8 * 80, 64), np.float32)
    layers = measure_layers(model, inputs, repeats=1)
    without, with_state = (
        layers.balance(2, by="memory", optimiser=make) for make in (None, optim.Adam)
    )
    assert (with_state[0].stop, without[0].stop) == (2, 4)


@pytest.mark.parametrize("name", ["1f1b", "zb-h1", "zb-v", "interleaved-1f1b"])
def test_by_memory_no_partition_is_better_by_the_same_sums(name):
    schedule = build(name, 2, 6)
    model = nn.Sequential(
        nn.Linear(4, 24),
        nn.Tanh(),
        nn.Linear(24, 4),
        nn.Tanh(),
        nn.Linear(4, 4),
        nn.Linear(4, 2),
    )
    layers = measure_layers(model, np.ones((60, 4)), repeats=1, num_microbatches=6)
    held = [max(costs.activation, costs.weight_activation) for costs in layers]
    in_flight = microbatches_in_flight(schedule)

    def largest(ends):
        found = [0] * schedule.num_ranks
        for stage, (start, end) in enumerate(zip((0, *ends), (*ends, len(layers)))):
            fixed = sum(2 * costs.parameter_bytes for costs in layers[start:end])
            found[schedule.placement[stage]] += (
                in_flight[stage] * sum(held[start:end]) + fixed
            )
        return max(found)

    partition = layers.balance(by="memory", schedule=schedule)
    least = min(
        map(largest, combinations(range(1, len(layers)), schedule.num_stages - 1))
    )
    assert largest([part.stop for part in partition[:-1]]) == least


@pytest.mark.parametrize("name", NAMES)
def test_a_stage_has_at_most_all_microbatches_in_flight(name):
    schedule = build(name, 3, 6)
    assert all(1 <= count <= 6 for count in microbatches_in_flight(schedule))


@pytest.mark.parametrize(
    ("options", "code", "words"),
    [
        (
            {"num_stages": 2, "by": "size"},
            "name",
            "by is 'size'; expected 'time', 'memory' or 'parameters'",
        ),
        ({}, "value", "takes num_stages, or a schedule instead"),
        (
            {"num_stages": 2, "schedule": schedules.gpipe(2, 2)},
            "value",
            "takes num_stages, or a schedule instead",
        ),
        (
            {"num_stages": 2, "placement": (0, 0, 1)},
            "value",
            "The placement has 3 ranks; expected one for each of 2",
        ),
    ],
)
def test_what_cannot_be_balanced_is_refused(options, code, words):
    layers = measure_layers(mlp(), X, repeats=1)
    with pytest.raises(ArgumentError, match=words) as caught:
        layers.balance(**options)
    assert caught.value.code == code


# -- in a pipeline ---------------------------------------------------------------------


def test_a_pipeline_measures_before_its_first_step(clock):
    model = slow_layers(clock, 6, 1, 1, 1)

    def parts(group):
        sample = (X, X) if group.rank == 0 else None
        pipeline = Pipeline(
            model, group, loss=nn.MSELoss(), partition="measured", sample=sample
        )
        return pipeline.partition

    assert spawn(parts, 2) == [[range(0, 1), range(1, 4)]] * 2


@pytest.mark.parametrize("schedule", ["1f1b", "interleaved-1f1b", "zb-v"])
def test_a_measured_partition_is_as_good_as_one_by_hand_to_the_bit(schedule):
    inputs, targets = batch(8, 4)

    def step(group, **options):
        options |= {"schedule": schedule, "num_microbatches": 4}
        pipeline = Pipeline(mlp(), group, loss=nn.MSELoss(), **options)
        return pipeline.step(inputs, targets), pipeline.partition

    (loss, partition), other = spawn(
        lambda group: step(group, partition="measured", sample=(inputs, targets)), 2
    )
    assert (loss, partition) == other
    assert spawn(lambda group: step(group, partition=partition), 2)[0][0] == loss


@pytest.mark.parametrize(
    ("model", "options", "error", "words"),
    [
        (
            mlp(),
            {"partition": "measured"},
            ArgumentError,
            r"needs a batch to measure: pass sample=\(inputs, targets\)",
        ),
        (
            mlp(),
            {"partition": "measured", "sample": (X,)},
            ArgumentError,
            "needs a batch to measure",
        ),
        (mlp(), {"sample": (X, X)}, ArgumentError, "Pipeline takes no sample="),
        (
            nn.Linear(4, 4),
            {"partition": "measured", "sample": (X, X)},
            ModelError,
            "partitions an nn.Sequential",
        ),
        (
            Plan(mlp(), num_ranks=1),
            {"partition": "measured"},
            ModelError,
            "The stages determine",
        ),
        (
            mlp(),
            {"partition": "measured", "sample": (X, X), "speed": 2},
            TypeError,
            "speed",
        ),
    ],
)
def test_a_pipeline_that_cannot_measure_says_so(model, options, error, words):
    with pytest.raises(error, match=words):
        Pipeline(model, OneRankGroup(), loss=nn.MSELoss(), **options)


@pytest.mark.slow
@needs_mpi
def test_all_ranks_of_mpirun_take_the_partition_of_rank_0():
    done = mpirun(3, "-m", "tests.tuning.measured_over_mpi", limit=60)
    assert done.code == 0, done.err
    assert done.out.count("one partition") == 3

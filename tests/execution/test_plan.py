"""A plan is data: made without ranks, looked at, and run."""

import numpy as np
import pytest

from minipipe import Pipeline, Plan, nn, schedules, spawn
from minipipe.comm import OneRankGroup
from minipipe.errors import MinipipeError, PartitionError, RankError
from minipipe.testing import same_bits
from tests.pipeline.small_pipelines import mlp
from tests.strategies import batch


def tied():
    embedding = nn.Embedding(7, 4)
    return nn.Sequential(
        embedding, nn.Linear(4, 4), nn.Tanh(), nn.Unembedding(embedding)
    )


def test_a_plan_says_which_layers_are_where_before_there_are_ranks():
    plan = Plan(mlp(), "zb-v", num_ranks=2, num_microbatches=6)
    assert plan.placement == (0, 1, 1, 0) and plan.schedule.num_microbatches == 6
    assert [layer for part in plan.partition for layer in part] == list(
        range(len(plan.model))
    )
    assert plan.rank_of_layer == tuple(
        r for part, r in zip(plan.partition, plan.placement) for _ in part
    )
    assert len(str(plan).splitlines()) == len(plan.model) + 2 and repr(plan).startswith(
        "<Plan zb-v: 2 ranks"
    )


def test_a_plan_knows_who_owns_a_parameter_and_who_shares_it():
    plan = Plan(tied(), num_ranks=2, partition=[range(2), range(2, 4)])
    assert plan.owners == {"0.weight": 0, "1.weight": 0, "1.bias": 0}
    assert plan.shared == {"0.weight": {0: {0: 0, 1: 0}, 1: {0: 1, 1: 1}}}
    twice = Plan(tied(), num_ranks=4, replicas=2, partition=[range(2), range(2, 4)])
    assert twice.owners == plan.owners and twice.pipelines == ((0, 1), (2, 3))
    assert twice.shared == {
        "0.weight": {0: {0: 0, 1: 0, 2: 2, 3: 2}, 1: {0: 1, 1: 1, 2: 3, 3: 3}}
    }
    assert Plan(tied(), num_ranks=1).shared == {}  # one rank exchanges nothing


def test_a_pipeline_of_a_plan_is_the_pipeline_of_its_parts():
    inputs, targets = batch(8, 4)

    def step(group, plan=None):
        options = {} if plan else {"schedule": "zb-h1", "num_microbatches": 4}
        pipeline = Pipeline(plan or mlp(), group, loss=nn.MSELoss(), **options)
        assert plan is None or pipeline.plan is plan
        return pipeline.step(inputs, targets), [
            parameter.grad for parameter in pipeline.parameters()
        ]

    plan = Plan(mlp(), "zb-h1", num_ranks=2, num_microbatches=4)
    for (loss, grads), (same_loss, same_grads) in zip(
        spawn(step, 2), spawn(lambda group: step(group, plan), 2)
    ):
        assert loss == same_loss and all(map(same_bits, grads, same_grads))


def test_a_plan_cannot_be_changed():
    plan = Plan(mlp(), num_ranks=2)
    with pytest.raises(
        AttributeError, match="make another one with the partition that you want"
    ):
        plan.partition = ()
    with pytest.raises(AttributeError, match="cannot be changed"):
        plan.schedule = schedules.gpipe(2, 4)


@pytest.mark.parametrize(
    ("make", "error", "words"),
    [
        (
            lambda: Plan(mlp()),
            RankError,
            r"needs a number of ranks: Plan\(model, '1f1b', num_ranks=4\)",
        ),
        (
            lambda: Plan(mlp(), schedules.gpipe(2, 4), num_ranks=3),
            RankError,
            "is made for 2 ranks, but there are 3",
        ),
        (
            lambda: Plan(mlp(), num_ranks=2, layer_costs=[1.0]),
            PartitionError,
            "layer_costs has 1 value;",
        ),
        (
            lambda: Pipeline(
                Plan(mlp(), num_ranks=2), OneRankGroup(), loss=nn.MSELoss()
            ),
            RankError,
            "The plan is for 2 ranks, but this group has 1. Start as many ranks",
        ),
        (
            lambda: Pipeline(
                Plan(mlp(), num_ranks=1),
                OneRankGroup(),
                loss=nn.MSELoss(),
                schedule="gpipe",
            ),
            MinipipeError,
            "The stages determine schedule; leave it out",
        ),
    ],
)
def test_what_does_not_fit_a_plan_is_refused(make, error, words):
    with pytest.raises(error, match=words):
        make()


def test_a_plan_of_modules_has_a_stage_for_each():
    modules = [nn.Linear(3, 3) for _ in range(5)]
    plan = Plan.of_modules(modules, num_ranks=3)
    assert plan.partition == tuple(
        range(i, i + 1) for i in range(5)
    ) and plan.placement == (0, 1, 2, 0, 1)
    assert np.prod(plan.model[0].weight.shape) == 9


def test_a_pipeline_says_in_a_line_what_it_is():
    pipeline = Pipeline(
        nn.Sequential(nn.Linear(2, 1)),
        OneRankGroup(),
        loss=nn.MSELoss(),
        num_microbatches=2,
    )
    assert repr(pipeline) == "<Pipeline 1f1b: 1 rank, 1 stage, 2 microbatches; rank 0>"


def flat(program):
    return [[str(action) for action in row] for row in program.actions]


@pytest.mark.parametrize(
    ("schedule", "num_modules", "is_by_name"),
    [
        ("1f1b", 2, True),
        ("paci", 2, True),
        ("1f1b", 1, False),
        ("1f1b", 3, False),
        (None, 2, False),
    ],
)
def test_a_run_builds_a_schedule_again_that_was_given_by_its_name_with_a_module_for_each_rank(
    schedule, num_modules, is_by_name
):
    plan = Plan.of_modules(
        [nn.Linear(2, 2) for _ in range(num_modules)], 2, schedule, 4
    )
    assert flat(plan.program_of_run(4)) == flat(plan.program)
    longer = plan.program_of_run(8)
    expected = (
        schedules.lower(schedules.build(schedule, 2, 8)) if is_by_name else plan.program
    )
    assert flat(longer) == flat(expected)
    assert plan.is_stashed(None) == (schedule != "paci")
    assert (plan.is_stashed(True), plan.is_stashed(False)) == (True, False)


def test_a_table_and_a_file_are_those_of_their_runs(tmp_path):
    (tmp_path / "own.csv").write_text(schedules.gpipe(2, 4).to_csv())
    modules = [nn.Linear(2, 2), nn.Linear(2, 2)]
    for given in (schedules.gpipe(2, 4), str(tmp_path / "own.csv")):
        for plan in (
            Plan.of_modules(modules, 2, given),
            Plan(nn.Sequential(*modules), given),
        ):
            assert flat(plan.program_of_run(8)) == flat(plan.program)

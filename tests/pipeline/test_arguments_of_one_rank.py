"""An argument that one rank gives otherwise: every rank says which, with both values
and both ranks, at once.

The table has an entry for each parameter in the signatures, so a new one without an
entry fails.
"""

import inspect
import re

import numpy as np
import pytest

from minipipe import (
    Grid,
    Pipeline,
    Plan,
    checkpoint,
    elastic,
    nn,
    optim,
    schedules,
    spawn,
)
from minipipe.errors import MinipipeError, RankError
from tests.launch import for_each, mpirun, needs_mpi, slowly

PROGRAM = "tests/pipeline/arguments_over_mpi.py"
X = np.random.default_rng(44).normal(size=(8, 4)).astype(np.float32)


def model_of(width=4):
    return nn.Sequential(nn.Linear(4, width), nn.Tanh(), nn.Linear(width, 4), nn.Tanh())


def modules_of(width=4):
    return [nn.Linear(4, width), nn.Linear(width, 4)]


def squares(outputs, targets):
    return ((outputs - targets) ** 2).mean()


# By parameter: what one rank gives, what the others give, and the name in the message
# if it is not that of the parameter. Or a reason why it may differ.
GRID = {
    "group": "is the rank itself",
    "pipeline": [(2, 1), (0, 2), ("two", 2), (None, 2)],
    "data": [(2, 1), (3, 2)],
    "tensor": [(2, 1), (1.0, 1)],
    "fully_sharded": [(True, False), (1, False), ("yes", True)],
}
PIPELINE = {
    "model": [
        (model_of(3), model_of()),
        (Plan(model_of(), num_ranks=2), model_of(), "plan"),
        (modules_of(), model_of()),
        (model_of().eval(), model_of()),
        (nn.Sequential(model_of()[0].freeze(), *model_of()[1:]), model_of()),
    ],
    "group": "is compared below: a grid on one rank, and none on another",
    "loss": [(squares, nn.MSELoss()), (None, nn.MSELoss()), (3, nn.MSELoss())],
    "seed": [(1, 0), ("one", 0), (-1, 0)],
    "dropout_seed": [(1, 0), (2.5, 0)],
    "recompute": [(True, False)],
    "stack_weight_gradients": [(True, False)],
    "loss_weight": [(len, None)],
    "device": [("gpu", "cpu"), ("tpu", "cpu"), (np, "cpu")],
    "check_finite": [("warn", "stop"), ("off", "stop"), ("maybe", "stop")],
    "check_agreement": [(False, True), (True, False)],
    "compile": [(False, True), ("where-possible", True), ("maybe", True)],
    "schedule": [
        ("gpipe", "1f1b"),
        ("auto", "1f1b"),
        ("gpipi", "1f1b"),
        ("pipedream", "1f1b"),
        (schedules.gpipe(2, 4), "1f1b"),
        (schedules.gpipe(2, 4), schedules.one_f_one_b(2, 4)),
        ("no such file.csv", "1f1b"),
    ],
    "num_microbatches": [(4, 2), (4, None), (0, 4), (2.5, 4), ("4", 4)],
    "chunks_per_rank": [(2, None), (0, None)],
    "partition": [
        ([range(1), range(1, 4)], [range(2), range(2, 4)]),
        ("measured", None),
        ([range(9)], None),
    ],
    "layer_costs": [([9.0, 1.0, 1.0, 1.0], [1.0] * 4), ([1.0], None)],
    "inputs_require_grad": [(True, False)],
    "replicas": [(2, 1), (3, 1), (0, 1)],
    "gradient_blocks": [(2, 1), (3, 1), (0, None)],
    "sample": "is needed by one rank",
    "memory_limit": [("1 GB", "2 GB"), ("much", None)],
    "optimiser": [(optim.Adam, optim.SGD), (3, None)],
    # but False on one rank and True on another is no difference
    "progress": [(True, None)],
}
# Messages speak of what these decide about.
SAID = {
    "num_microbatches": "schedule",
    "chunks_per_rank": "schedule",
    "layer_costs": "partition",
}
FROM_MODULES = {
    **{
        name: PIPELINE[name]
        for name in (*("loss", "seed", "dropout_seed", "recompute"), "check_agreement")
    },
    **{
        name: PIPELINE[name]
        for name in (
            "stack_weight_gradients",
            "loss_weight",
            "device",
            "check_finite",
            "compile",
        )
    },
    **{
        name: PIPELINE[name]
        for name in (
            "group",
            "num_microbatches",
            "inputs_require_grad",
            "replicas",
            "schedule",
        )
    },
    "modules": [
        (modules_of(3), modules_of()),
        ([nn.Linear(4, 4)], modules_of(), "model"),
        ([], modules_of()),
    ],
}


def made(group, **options):
    return Pipeline(
        model_of(), group, **{"loss": nn.MSELoss(), "num_microbatches": 4, **options}
    )


def messages_where_one_differs(call, rank, own, others, num_ranks=2):
    """Return the error of each rank, if ``call`` gets another value on one of them."""

    def run(group):
        try:
            call(group, own if group.rank == rank else others)
        except MinipipeError as error:
            return f"{type(error).__name__} {error.code}: {error}"
        return "no error"

    return spawn(run, num_ranks, timeout=10)


def assert_named(call, name, entries, num_ranks=2):
    for own, others, *said in entries:
        said = said[0] if said else SAID.get(name, name)
        for rank in range(num_ranks):
            found = messages_where_one_differs(call, rank, own, others, num_ranks)
            usual, other = (0, 1) if num_ranks == 2 else (int(rank == 0), rank)
            words = (
                rf"RankError disagreement: The {said} of rank {other} differs from "
                rf"that of rank {usual}: there it"
            )
            words += (
                rf" is .+, on rank {usual} .+\. Every rank must run the same program\."
            )
            assert len(set(found)) == 1 and re.match(words, found[0]), (
                own,
                others,
                found,
            )


def assert_each_has_an_entry(function, table):
    names = {name for name in inspect.signature(function).parameters if name != "self"}
    assert names == set(table), names ^ set(table)


def compared(table):
    return {
        name: name for name, entries in table.items() if not isinstance(entries, str)
    }


def test_each_parameter_of_a_grid_and_of_a_pipeline_is_in_the_table():
    assert_each_has_an_entry(Grid, GRID)
    assert_each_has_an_entry(Pipeline, PIPELINE)
    assert_each_has_an_entry(Pipeline.from_modules, FROM_MODULES)


@pytest.mark.parametrize("num_ranks", [2, slowly(3)])
@for_each(name=compared(GRID))
def test_an_argument_of_a_grid_is_named(name, num_ranks):
    assert_named(
        lambda group, value: Grid(group, **{"pipeline": num_ranks, name: value}),
        name,
        GRID[name],
        num_ranks,
    )


@pytest.mark.parametrize("num_ranks", [2, slowly(3)])
@for_each(
    name=compared(
        {name: entries for name, entries in PIPELINE.items() if name != "model"}
    )
)
def test_an_argument_of_a_pipeline_is_named(name, num_ranks):
    assert_named(
        lambda group, value: made(group, **{name: value}),
        name,
        PIPELINE[name],
        num_ranks,
    )


def test_the_model_of_a_pipeline_is_named():
    assert_named(
        lambda group, value: Pipeline(value, group, loss=nn.MSELoss()),
        "model",
        PIPELINE["model"],
    )


@for_each(name=compared(FROM_MODULES))
def test_an_argument_of_from_modules_is_named(name):
    entries = [
        entry
        for entry in FROM_MODULES[name]
        if entry[:2] != (schedules.gpipe(2, 4), "1f1b")
    ]
    if name == "modules":
        entries = [(*entry[:2], "model") for entry in entries]

    def make(group, value):
        given = {"modules": modules_of(), "loss": nn.MSELoss(), name: value}
        Pipeline.from_modules(group=group, **given)

    assert_named(make, name, entries)


@for_each(
    sizes={
        "tensor": {"tensor": 2},
        "data": {"data": 2},
        "shards": {"data": 2, "fully_sharded": True},
    }
)
def test_arguments_are_compared_before_layers_are_divided(sizes):
    """On these grids the first values of the model are compared before there is a
    plan.
    """

    def make(group, given):
        Pipeline(
            given.pop("model", model_of()),
            Grid(group, **sizes),
            loss=nn.MSELoss(),
            **given,
        )

    for name in ("recompute", "schedule", "seed", "compile"):
        own, others = PIPELINE[name][0]
        assert_named(
            lambda group, value, name=name: make(group, {name: value}),
            name,
            [(own, others)],
        )
    assert_named(
        lambda group, model: make(group, {"model": model}),
        "model",
        [(model_of(3), model_of())],
    )


def test_a_recomputation_on_one_rank_is_named_where_layers_have_collectives():
    def make(group, recompute):
        Pipeline(
            model_of(), Grid(group, tensor=2), loss=nn.MSELoss(), recompute=recompute
        ).step(X, X)

    assert_named(make, "recompute", [(True, False)])


def test_a_grid_on_one_rank_alone_is_named():
    def make(group, has_grid):
        grid = Grid(group, pipeline=2)
        Pipeline(model_of(), grid if has_grid else group, loss=nn.MSELoss())

    assert_named(make, "group", [(True, False)])


def test_what_decides_about_messages_is_compared_although_no_check_was_asked_for():
    def make(group, value, name):
        made(group, check_agreement=False, **{name: value})

    for name in (
        "schedule",
        "recompute",
        "check_finite",
        "compile",
        "partition",
        "inputs_require_grad",
    ):
        own, others = PIPELINE[name][0]
        assert_named(
            lambda group, value, name=name: make(group, value, name),
            name,
            [(own, others)],
        )


def test_a_plan_of_another_schedule_is_named_although_no_check_was_asked_for():
    def make(group, schedule):
        Pipeline(
            Plan(model_of(), schedule, num_ranks=2),
            group,
            loss=nn.MSELoss(),
            check_agreement=False,
        )

    assert_named(make, "schedule", [("gpipe", "1f1b")])


def test_an_unknown_option_of_one_rank_is_shown():
    found = messages_where_one_differs(
        lambda group, given: made(group, **given), 1, {"colour": "red"}, {}
    )
    assert (
        "there it is \"colour: 'red'\", on rank 0 nothing" in found[0]
        and len(set(found)) == 1
    )


def test_a_sample_on_one_rank_is_no_difference():
    def make(group):
        sample = None if group.rank else (X, X)
        return made(group, partition="measured", sample=sample).partition

    assert len({str(partition) for partition in spawn(make, 2)}) == 1


EQUAL = {
    "num_microbatches": (np.int64(4), 4),
    "seed": (np.int32(3), 3),
    "dropout_seed": (np.uint8(3), 3),
    "recompute": (np.bool_(True), True),
    "replicas": (np.int64(2), 2),
    "gradient_blocks": (np.int64(2), 2),
    "partition": ((range(2), range(2, 4)), [range(2), range(np.int64(2), 4, 1)]),
    "layer_costs": (np.array([1.0, 2.0, 1.0, 2.0]), (1.0, 2.0, 1.0, 2.0)),
    "schedule": ("GPipe", "gpipe"),
}


@for_each(name={name: name for name in EQUAL})
def test_equal_arguments_of_other_types_are_no_difference(name):
    def act(group):
        return made(
            group, **{"num_microbatches": 2, name: EQUAL[name][group.rank]}
        ).step(X, X)

    first, second = spawn(act, 2, timeout=10)
    assert first == second


# -- calls -----------------------------------------------------------------------------


def after_a_step(act, **options):
    def call(group, value):
        pipeline = made(group, **options)
        pipeline.step(X, X)
        act(pipeline, value)

    return call


def saved(folder):
    def save(pipeline, value):
        optimiser = optim.SGD(pipeline.parameters(), learning_rate=0.1)
        given = {"keep": 2, "optimiser": optimiser, "step": 1, **value}
        checkpoint.save(folder, pipeline, **given)

    return save


def trained(group, value):
    def make(group):
        pipeline = made(group)
        return pipeline, optim.SGD(pipeline.parameters(), learning_rate=0.1)

    given = {"num_steps": 1, "copies": 0, "every": 1, **value}
    elastic.train(
        make, lambda k, pipeline, optimiser: pipeline.step(X, X), group, **given
    )


@for_each(
    entry={
        "keep": ({"keep": 3}, {}),
        "no keep": ({"keep": 0}, {}),
        "optimiser": ({"optimiser": None}, {}),
    }
)
def test_an_argument_of_save_is_named_on_every_rank(entry):
    own, others = entry
    assert_named(after_a_step(saved("/nonexistent")), next(iter(own)), [(own, others)])


def test_an_argument_of_restore_is_named_on_every_rank(tmp_path):
    call = after_a_step(
        lambda pipeline, value: checkpoint.restore(tmp_path, pipeline, required=value)
    )
    assert_named(call, "required", [(True, False)])
    call = after_a_step(
        lambda pipeline, rule: checkpoint.restore(
            tmp_path, pipeline, rule(pipeline.parameters())
        )
    )
    assert_named(call, "optimiser", [(optim.Adam, optim.AdamW)])


@for_each(name={name: name for name in ("num_steps", "copies", "every")})
def test_an_argument_of_elastic_training_is_named_on_every_rank(name):
    assert_named(trained, name, [({name: 2}, {}), ({name: -1}, {})])


# -- frozen parameters -----------------------------------------------------------------


def tied():
    first, last = nn.Linear(4, 4), nn.Linear(4, 4)
    last.weight = first.weight
    return nn.Sequential(first, nn.Tanh(), last)


TOGETHER = {
    "replicas": lambda group: made(group, replicas=2),
    "replicas of a grid": lambda group: made(Grid(group, data=2)),
    "shares of replicas": lambda group: made(Grid(group, data=2, fully_sharded=True)),
    "parts of layers": lambda group: made(Grid(group, tensor=2)),
    "tied layers": lambda group: Pipeline(
        tied(), group, loss=nn.MSELoss(), num_microbatches=4
    ),
}


@for_each(name={name: name for name in TOGETHER})
def test_a_parameter_that_ranks_train_together_is_not_frozen_on_one_of_them(name):
    def train(group, is_frozen):
        pipeline = TOGETHER[name](group)
        pipeline.step(X, X)
        for parameter in pipeline.parameters() if is_frozen else ():
            parameter.requires_grad = False
        pipeline.step(X, X)

    for rank in range(2):
        found = messages_where_one_differs(train, rank, True, False)
        words = (
            f"RankError disagreement: The requires_grad of 0.weight on rank {rank} "
            "(False) differs from that on "
        )
        assert set(found) == {found[0]} and found[0].startswith(
            f"{words}rank {1 - rank} (True)."
        ), found
    assert messages_where_one_differs(train, 0, True, True) == ["no error"] * 2


def test_replicas_of_one_stage_among_several_are_compared():
    def train(group):
        pipeline = made(group, replicas=2)
        if group.rank == 2:
            next(pipeline.parameters()).requires_grad = False
        pipeline.forward_backward(X, X)

    with pytest.raises(
        RankError, match=r"on rank 2 \(False\) differs from that on rank 0 \(True\)"
    ):
        spawn(train, 4, timeout=10)


# -- processes -------------------------------------------------------------------------


@needs_mpi
@pytest.mark.parametrize(
    ("name", "words"),
    [
        (
            "fully_sharded",
            "The fully_sharded of rank 1 differs from that of rank 0: there it is",
        ),
        slowly(
            "axes", "The pipeline of rank 1 differs from that of rank 0: there it is"
        ),
        slowly(
            "recompute",
            "The recompute of rank 1 differs from that of rank 0: there it is",
        ),
        slowly(
            "frozen",
            "The requires_grad of 0.weight on rank 1 (False) differs from that "
            "on rank 0 (True)",
        ),
    ],
)
def test_processes_are_told_at_once(name, words):
    done = mpirun(2, PROGRAM, name, limit=60)
    assert done.code != 0 and done.seconds < 30, done
    assert sorted(line.partition(words)[1:2] for line in done.out.splitlines()) == [
        (words,),
        (words,),
    ], done

"""A pipeline on a grid: what all of its ranks must have alike, and what it refuses."""

from functools import cache

import array_api_strict
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from minipipe import Grid, Pipeline, Plan, nn, optim, spawn
from minipipe.errors import ArgumentError, ModelError, NotFiniteError, RankError
from tests.launch import for_each, slowly
from tests.pipeline.test_tensor_parallel import (
    CLOSE,
    IDS,
    MICROBATCHES,
    NEXT,
    alone,
    assert_close,
    language_model,
    on_grid,
    train,
)
from tests.strategies import examples


def grid_of(group, pipeline=1, data=1, tensor=2):
    return Grid(group, pipeline=pipeline, data=data, tensor=tensor)


@pytest.mark.slow
def test_stages_that_are_given_are_divided_too():
    def run(group):
        layers = list(language_model())
        modules = [nn.Sequential(*layers[:3]), nn.Sequential(*layers[3:])]
        return train(
            Pipeline.from_modules(
                modules, group, loss=nn.CrossEntropyLoss(), num_microbatches=8
            )
        )

    (expected,) = spawn(run, 1)
    for found in spawn(lambda group: run(grid_of(group, 2)), 4):
        assert_close(found, expected)


@pytest.mark.slow
def test_a_plan_of_a_divided_model_runs_as_it_is():
    def make(group):
        grid = grid_of(group, 2)
        plan = Plan(
            nn.parallelise(language_model(), grid.tensor),
            num_ranks=2,
            num_microbatches=MICROBATCHES,
        )
        return Pipeline(plan, grid, loss=nn.CrossEntropyLoss())

    for found in spawn(lambda group: train(make(group)), 4):
        assert_close(found, alone())


def test_a_pipeline_knows_its_grid_and_the_data_group_its_replicas():
    def look(group):
        pipeline = on_grid(group, 2, 2, 2)
        grid = pipeline.grid
        assert (
            pipeline.group is grid.pipeline
            and pipeline.plan.replicas == grid.replicas == 2
        )
        return grid.coordinates, list(grid.data.world_ranks)

    for (stage, _, part), ranks in spawn(look, 8):
        assert ranks == [(stage * 2 + replica) * 2 + part for replica in range(2)]
    assert spawn(
        lambda group: Pipeline(language_model(), group, loss=nn.MSELoss()).grid, 1
    ) == [None]


@pytest.mark.slow  # in short: test_fully_sharded.py
def test_another_array_module_computes_the_same():
    """One that knows the standard's operations alone; a GPU's knows more."""

    def make(group):
        given = {
            "loss": nn.CrossEntropyLoss(),
            "num_microbatches": MICROBATCHES,
            "device": array_api_strict,
        }
        return Pipeline(language_model(is_tied=True), grid_of(group), **given)

    for found in spawn(lambda group: train(make(group)), 2):
        assert_close(found, alone(is_tied=True))


@pytest.mark.parametrize("schedule", ["2bw", slowly("pipedream"), slowly("paci")])
def test_a_run_without_flushes_is_that_of_the_plain_model(schedule):
    def run(group, data):
        given = {
            "schedule": schedule,
            "num_microbatches": 4,
            **({} if isinstance(group, Grid) else {"replicas": data}),
        }
        pipeline = Pipeline(
            language_model(), group, loss=nn.CrossEntropyLoss(), **given
        )
        losses = pipeline.run([(IDS, NEXT)] * 3, optim.SGD(pipeline.parameters(), 0.05))
        return losses, pipeline.state_dict()

    expected = spawn(lambda group: run(group, 2), 4)[0]
    for losses, state in spawn(lambda group: run(grid_of(group, 2, 2), 2), 8):
        assert np.allclose(losses, expected[0], rtol=CLOSE, atol=CLOSE)
        assert all(
            np.allclose(state[name], value, rtol=CLOSE, atol=CLOSE)
            for name, value in expected[1].items()
        )


SIZES = [
    (p, d, t)
    for p in (1, 2, 4, 8)
    for d in (1, 2, 4, 8)
    for t in (1, 2, 4)
    if p * d * t <= 8
]
SCHEDULES = [
    "1f1b",
    "gpipe",
    "eager-1f1b",
    "zb-h1",
    "zb-h2",
    "interleaved-1f1b",
    "looped-bfs",
]


@pytest.mark.slow
@examples(40)
@given(
    sizes=st.sampled_from(SIZES),
    schedule=st.sampled_from(SCHEDULES),
    recompute=st.booleans(),
    is_tied=st.booleans(),
    dropout=st.sampled_from([0.0, 0.2]),
    attention_dropout=st.sampled_from([0.0, 0.2]),
)
def test_any_training_on_any_grid_is_that_of_the_plain_model(
    sizes, schedule, recompute, **options
):
    # there must be several ranks
    schedule = "1f1b" if schedule in SCHEDULES[5:] and sizes[0] == 1 else schedule
    # a layer for each of two stages on a rank
    options["num_blocks"] = 12 if sizes[0] == 8 else 6
    make = {
        **dict(zip(("pipeline", "data", "tensor"), sizes)),
        "schedule": schedule,
        "recompute": recompute,
    }
    for found in spawn(
        lambda group: train(on_grid(group, **make, **options), num_steps=2),
        int(np.prod(sizes)),
    ):
        assert_close(found, plain(**options))


@cache
def plain(**options):
    make = {"loss": nn.CrossEntropyLoss(), "num_microbatches": MICROBATCHES}
    return spawn(
        lambda group: train(
            Pipeline(language_model(**options), group, **make), num_steps=2
        ),
        1,
    )[0]


# -- coordinates in words --------------------------------------------------------------


def test_tables_timelines_and_errors_name_coordinates():
    def look(group):
        pipeline = on_grid(group, 2, 2, 2)
        pipeline.step(IDS, NEXT)
        return str(pipeline), pipeline.timeline().note, dict(group.activity.roles)

    legend = (
        "rank r is pipeline rank r % 2 of replica r // 2, with part {} of 2 of each "
        "layer"
    )
    for rank, (table, note, roles) in enumerate(spawn(look, 8)):
        assert table.endswith(legend.format(rank % 2)) and note.startswith(
            legend.format(rank % 2)
        )
        assert (
            len(roles) == 8
            and roles[5] == "pipeline rank 1, replica 0, part 1; stage 1"
        )


def test_an_error_of_a_thread_names_its_coordinates():
    def fail(group):
        pipeline = on_grid(group, 2, 1, 2)
        raise ValueError(pipeline.num_stages) if group.rank == 2 else SystemExit

    with pytest.raises(ValueError, match="2") as caught:
        spawn(fail, 4)
    assert caught.value.__notes__ == [
        "raised on rank 2 of 4 (a thread: pipeline rank 1, replica 0, part 0; stage 1)"
    ]


# -- agreement: between the parts of a layer, too --------------------------------------


def with_other_targets(group):
    pipeline, targets = on_grid(group, 2, 1, 2), NEXT.copy()
    # a part of the last stage; rank 0, which the others follow, has none
    targets[0, 0] += group.rank == 3
    pipeline.step(IDS if group.rank < 2 else None, targets if group.rank >= 2 else None)


def with_another_learning_rate(group):
    pipeline = on_grid(group, tensor=2)
    optimiser = optim.SGD(pipeline.parameters(), 0.1 * (1 + group.rank))
    pipeline.step(IDS, NEXT)
    optimiser.step()
    pipeline.step(IDS, NEXT)


def with_other_values(group):
    model = language_model().initialise(0)
    model[4].weight.data = model[4].weight.data + group.rank
    Pipeline(model, grid_of(group), loss=nn.CrossEntropyLoss())


@for_each(
    case={
        "inputs": (
            2,
            lambda group: on_grid(group, tensor=2).step(IDS + group.rank, NEXT),
            "The inputs of rank 1",
        ),
        "targets": (
            4,
            with_other_targets,
            "The targets of rank 3 differs from that of rank 2",
        ),
        "a learning rate": (
            2,
            with_another_learning_rate,
            "The learning rate of rank 1 .0.2. differs from",
        ),
        "first values": (
            2,
            with_other_values,
            "The first values of 4.weight on rank 1 differ from those on rank 0",
        ),
        "a model": (
            2,
            lambda group: on_grid(group, tensor=2, dropout=0.1 * group.rank),
            "The model of rank 1 differs",
        ),
        "a seed": (
            2,
            lambda group: Pipeline(
                language_model(),
                grid_of(group),
                loss=nn.CrossEntropyLoss(),
                seed=group.rank,
            ),
            "The seed of rank 1 differs",
        ),
    }
)
def test_parts_of_a_layer_that_disagree_are_refused(case):
    num_ranks, make, words = case
    with pytest.raises(RankError, match=words):
        spawn(make, num_ranks)


@pytest.mark.filterwarnings("ignore:invalid value")
def test_what_is_not_finite_in_one_part_stops_all_of_them():
    def overflow(group):
        pipeline = on_grid(group, 2, 1, 2)
        for name, parameter in pipeline.named_parameters():
            if name == "2.attention.layers.1.projections.weight" and group.rank == 1:
                parameter.data[:] = np.inf
        with pytest.raises(NotFiniteError) as caught:
            pipeline.step(IDS, NEXT)
        return str(caught.value)

    (message,) = set(spawn(overflow, 4))
    assert "on rank 1, stage 0" in message and "its parameter 2.attention" in message


@pytest.mark.filterwarnings("ignore:invalid value")
def test_rank_0_alone_warns():
    def overflow(group):
        model = language_model(dropout=0.0)
        given = {
            "loss": nn.CrossEntropyLoss(),
            "num_microbatches": 8,
            "check_finite": "warn",
        }
        pipeline = Pipeline(model, grid_of(group, 1, 1, 4), **given)
        dict(pipeline.named_parameters())["4.weight"].data[0] = np.nan
        pipeline.step(IDS, NEXT)

    with pytest.warns(UserWarning, match="Training continues") as caught:
        spawn(overflow, 4)
    assert len([one for one in caught if "Training continues" in str(one.message)]) == 1


# -- refused ---------------------------------------------------------------------------


@for_each(
    case={
        "replicas": (
            {"replicas": 2},
            "The grid has 1 replica already; leave replicas out",
        ),
        "a search": ({"schedule": "auto"}, "pass the name of a schedule"),
        "a measurement": ({"partition": "measured"}, "pass the name of a schedule"),
    }
)
def test_options_that_do_not_fit_a_grid_are_refused(case):
    options, words = case
    with pytest.raises(ArgumentError, match=words):
        spawn(
            lambda group: Pipeline(
                language_model(), grid_of(group), loss=nn.CrossEntropyLoss(), **options
            ),
            2,
        )


def test_what_is_no_sequence_is_refused_as_without_a_grid():
    for model in ([nn.Linear(2, 2)], nn.Linear(2, 2)):
        with pytest.raises(ModelError, match=f"this model is {type(model).__name__}"):
            spawn(lambda group, model=model: Pipeline(model, grid_of(group)), 2)


def test_plans_that_do_not_fit_a_grid_are_refused():
    whole = Plan(language_model(), num_ranks=2)
    with pytest.raises(
        ArgumentError, match="The grid divides the model, but the plan has whole layers"
    ):
        spawn(
            lambda group: Pipeline(
                whole, grid_of(group, 2), loss=nn.CrossEntropyLoss()
            ),
            4,
        )
    with pytest.raises(ArgumentError, match="The plan has 1 replica, and the grid 2"):
        spawn(
            lambda group: Pipeline(
                whole, Grid(group, data=2), loss=nn.CrossEntropyLoss()
            ),
            2,
        )

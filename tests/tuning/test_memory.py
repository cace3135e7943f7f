"""What a plan says of the memory of each rank, and what a run of it takes."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from minipipe import (
    Pipeline,
    Plan,
    RankMemory,
    measure_layers,
    nn,
    optim,
    schedules,
    spawn,
)
from minipipe.errors import ArgumentError
from minipipe.tuning.memory import in_flight
from tests.launch import covering, slowly
from tests.pipeline.small_pipelines import mlp
from tests.pipeline.test_memory import transformer
from tests.strategies import NAMES, Beside, Fork, Join, build, examples, steps

SAMPLES = 4  # of each microbatch


def taken(plan, loss, inputs, targets, optimiser, **options):
    """Return, by rank, what a run takes of what is predicted, but for messages."""

    def train(group):
        pipeline = Pipeline(plan, group, loss=loss, **options)
        own = optimiser(pipeline.parameters())
        pipeline.measures_memory = True
        pipeline.step(inputs, targets)
        leaves = [leaf for p in pipeline.parameters() for leaf in p.leaves.values()]
        gradients = sum(leaf.grad.nbytes for leaf in leaves if leaf.grad is not None)
        own.step()
        states = sum(
            array.nbytes
            for state in own._states.values()
            for array in state.values()
            if np.ndim(array)
        )
        peak = pipeline.timeline().peak_memory[group.rank]
        return (
            sum(parameter.nbytes for parameter in pipeline.parameters()),
            gradients,
            states,
            peak,
        )

    return spawn(train, plan.schedule.num_ranks)


@pytest.mark.parametrize(
    ("name", "recompute"), covering(NAMES, [False, True], strength=1)
)
def test_a_run_takes_what_was_predicted_to_the_byte(name, recompute):
    schedule = build(name, 2, 6)
    inputs = np.ones((6 * SAMPLES, 4), np.float32)
    model = mlp(linears=6)
    layers = measure_layers(
        model, inputs, inputs[:, :2], nn.MSELoss(), num_microbatches=6, repeats=1
    )
    plan = Plan(model, schedule)
    predicted = plan.memory(layers, optimiser=optim.Adam, recompute=recompute)
    found = taken(
        plan, nn.MSELoss(), inputs, inputs[:, :2], optim.Adam, recompute=recompute
    )
    assert [rank[:4] for rank in predicted] == found


@pytest.mark.parametrize("name", [slowly("1f1b"), "zb-v", slowly("interleaved-1f1b")])
def test_so_does_a_transformer_whose_vectors_are_shared_by_ranks(name):
    schedule = build(name, 3, 6)
    ids = np.random.default_rng(0).integers(0, 11, (SAMPLES * 6, 5))
    model = transformer()
    layers = measure_layers(
        model, ids, ids, nn.CrossEntropyLoss(), num_microbatches=6, repeats=1
    )
    plan = Plan(model, schedule)
    predicted = plan.memory(layers, optimiser=optim.AdamW)
    for rank, own in zip(
        predicted, taken(plan, nn.CrossEntropyLoss(), ids, ids, optim.AdamW)
    ):
        parameters, gradients, states, peak = own
        assert (rank.parameters, rank.optimiser_state, rank.activations) == (
            parameters,
            states,
            peak,
        )
        # after the exchange, the sum takes the place of the uses
        assert rank.gradients >= gradients


@examples(30)
@given(steps())
def test_the_peak_of_any_model_partition_and_schedule_is_predicted(drawn):
    model, inputs, targets, schedule, partition = drawn
    samples = schedule.num_microbatches * SAMPLES
    inputs, targets = (
        np.resize(array, (samples, array.shape[1])) for array in (inputs, targets)
    )
    layers = measure_layers(
        model,
        inputs,
        targets,
        nn.MSELoss(),
        num_microbatches=schedule.num_microbatches,
        repeats=1,
    )
    plan = Plan(model, schedule, partition=partition)

    def peaks(group):
        pipeline = Pipeline(plan, group, loss=nn.MSELoss())
        pipeline.measures_memory = True
        pipeline.step(inputs, targets)
        return pipeline.timeline().peak_memory

    found = spawn(peaks, schedule.num_ranks)[0]
    assert [rank.activations for rank in plan.memory(layers)] == list(found)


@pytest.mark.parametrize("form", [tuple, list, dict])
def test_a_tensor_that_a_stage_hands_on_stays_in_the_message_that_brought_it(form):
    """The story: the turn of a V holds a skip connection of 16 bytes, a view of a
    message of 308.
    """
    layers = [
        Fork(form),
        Beside(nn.Tanh()),
        Beside(nn.Linear(1, 1)),
        Join(),
        *(nn.Linear(1, 1) for _ in range(4)),
    ]
    x, schedule = np.ones((4, 1), np.float32), build("zb-v", 3, 1)
    measured = measure_layers(
        nn.Sequential(*layers), x, x, nn.MSELoss(), num_microbatches=1, repeats=1
    )
    plan = Plan(
        nn.Sequential(*layers),
        schedule,
        partition=[range(i, i + 1) for i in range(5)] + [range(5, 8)],
    )
    found = taken(plan, nn.MSELoss(), x, x, optim.Adam)
    assert [rank.activations for rank in plan.memory(measured)] == [
        peak for *_, peak in found
    ]


def test_gradients_and_master_values_of_halves_are_counted_in_float32():
    """The story: gradients were counted as halves, and the master values not at all."""
    model = nn.Sequential(
        nn.Linear(8, 8, dtype=np.float16), nn.Tanh(), nn.Linear(8, 2, dtype=np.float16)
    )
    x, plan = np.ones((8, 8)), Plan(model, "1f1b", num_ranks=2, num_microbatches=2)
    layers = measure_layers(
        model, x, np.ones((8, 2)), nn.MSELoss(), num_microbatches=2, repeats=1
    )
    for optimiser in (
        optim.Adam,
        lambda parameters: optim.SGD(parameters, learning_rate=0.1),
    ):
        predicted = plan.memory(layers, optimiser=optimiser)
        assert [rank[:4] for rank in predicted] == taken(
            plan, nn.MSELoss(), x, np.ones((8, 2)), optimiser
        )


def test_frozen_parameters_have_neither_gradients_nor_state_and_may_hold_nothing():
    model = nn.Sequential(
        nn.Linear(8, 8).freeze(), nn.Tanh(), nn.Linear(8, 8), nn.Tanh()
    )
    inputs = np.ones((16, 8), np.float32)
    layers = measure_layers(
        model, inputs, inputs, nn.MSELoss(), num_microbatches=4, repeats=1
    )
    plan = Plan(
        model,
        "1f1b",
        num_ranks=2,
        num_microbatches=4,
        partition=[range(2), range(2, 4)],
    )
    first, second = plan.memory(layers, optimiser=optim.Adam)
    # F after F on the first rank, F B F B on the second: two messages wait, each with
    # what it says of itself.
    assert first == RankMemory(288, 0, 0, 0, 2 * (4 * 8 * 4 + 64))
    # no gradient goes back
    assert second[:3] == (288, 288, 576) and second.messages == 0


def test_a_schedule_without_backward_has_no_gradients():
    layers = measure_layers(mlp(), np.ones((16, 4)), repeats=1)
    first, _ = Plan(mlp(), "forward-only", num_ranks=2).memory(layers)
    assert first.gradients == 0 and first.parameters > 0


# -- schedules that update weights themselves ------------------------------------------


def copies_of_a_run(plan, inputs, optimiser, num_batches, stash):
    """Return, by rank, the bytes of versions of its weights and of sums of gradients
    that a run held.
    """

    def train(group):
        pipeline = Pipeline(plan, group, loss=nn.MSELoss())
        batches = [(inputs, inputs[:, :2])] * num_batches
        held = pipeline.run(
            batches, optimiser(pipeline.parameters()), stash=stash
        ).copies.values()
        return sum(own.stashed_bytes for own in held), sum(
            own.gradient_bytes for own in held
        )

    return spawn(train, plan.schedule.num_ranks)


@given(
    name=st.sampled_from(["pipedream", "vertical-sync", "2bw", "paci"]),
    p=st.integers(1, 4),
    num_batches=st.integers(2, 4),
    each=st.integers(1, 4),
    is_named=st.booleans(),
    stash=st.sampled_from([None, True, False]),
    frozen=st.sets(st.integers(0, 5), max_size=3),
    dtype=st.sampled_from([np.float16, np.float32]),
)
@examples(30)
def test_versions_of_weights_are_predicted_to_the_byte(
    name, p, num_batches, each, is_named, stash, frozen, dtype
):
    # of a named schedule, the memory of a long run is predicted
    each = max(each, -(-2 * p // num_batches))
    model = nn.Sequential(
        *[
            layer
            for i in range(6)
            for layer in (nn.Linear(4, 4 - 2 * (i == 5), dtype=dtype), nn.Tanh())
        ]
    )
    for i in frozen:
        model[2 * i].freeze()
    inputs = np.ones((each * SAMPLES, 4), dtype)
    layers = measure_layers(
        model, inputs, inputs[:, :2], nn.MSELoss(), num_microbatches=each, repeats=1
    )
    given_as = name if is_named else schedules.build(name, p, each * num_batches)
    plan = Plan(
        model, given_as, num_ranks=p, num_microbatches=each if is_named else None
    )
    predicted = plan.memory(layers, optimiser=optim.Adam, stash=stash)
    found = copies_of_a_run(plan, inputs, optim.Adam, num_batches, stash)
    assert [(rank.versions, rank.gradients + rank.sums) for rank in predicted] == found


def test_a_stage_that_is_frozen_in_part_has_one_version_of_that_part():
    """The story: all of its parameters were copied."""
    model = nn.Sequential(
        nn.Linear(8, 8).freeze(), nn.Tanh(), nn.Linear(8, 8), nn.Tanh(), nn.Linear(8, 2)
    )
    inputs = np.ones((4 * SAMPLES, 8), np.float32)
    plan = Plan(
        model,
        "pipedream",
        num_ranks=2,
        num_microbatches=4,
        partition=[range(4), range(4, 5)],
    )
    (versions, _), _ = copies_of_a_run(plan, inputs, optim.Adam, 2, None)
    assert versions == 4 * (8 * 8 + 8)


def test_a_plan_by_name_predicts_a_long_run_and_without_a_stash_no_versions():
    inputs = np.ones((2 * SAMPLES, 4), np.float32)
    model = mlp(linears=8)
    layers = measure_layers(
        model, inputs, inputs[:, :2], nn.MSELoss(), num_microbatches=2, repeats=1
    )
    weights = [
        rank.parameters for rank in Plan(model, "1f1b", num_ranks=4).memory(layers)
    ]
    plan = Plan(model, "pipedream", num_ranks=4, num_microbatches=2)
    assert [rank.versions for rank in plan.memory(layers)] == [
        3 * weights[0],
        2 * weights[1],
        weights[2],
        0,
    ]
    assert {rank.versions for rank in plan.memory(layers, stash=False)} == {0}
    sums = [
        rank.sums
        for rank in Plan(
            model, "vertical-sync", num_ranks=4, num_microbatches=2
        ).memory(layers)
    ]
    assert sums == [0, weights[1], 2 * weights[2], 3 * weights[3]]


def test_messages_in_flight_are_those_whose_consumer_is_busy():
    gpipe = schedules.gpipe(3, 4)
    assert in_flight(gpipe, [(1, 0), (1, 0), (0, 0)]) == [1, 1, 0]
    # no message at all
    assert in_flight(schedules.gpipe(1, 4, chunks_per_rank=2), [(9, 9), (0, 0)]) == [0]


def test_it_prints_as_a_table():
    layers = measure_layers(
        mlp(), np.ones((16, 4)), np.ones((16, 2)), nn.MSELoss(), repeats=1
    )
    memory = Plan(mlp(), num_ranks=2).memory(layers)
    lines = str(memory).splitlines()
    assert (
        len(lines) == 3
        and lines[0].split()[0] == "rank"
        and f"{memory[1].total:,}" == lines[2].split()[-1]
    )
    assert memory._repr_html_().count("<tr>") == 3


@pytest.mark.parametrize(
    ("call", "code", "words"),
    [
        (
            lambda plan, layers: plan.memory([1.0] * 9),
            "type",
            "of type list; expected the result of minipipe.measure",
        ),
        (
            lambda plan, layers: Plan(mlp(linears=2), num_ranks=2).memory(layers),
            "value",
            "figures of 9 layers, but the plan has 5",
        ),
        (
            lambda plan, layers: plan.memory(layers, optimiser=3),
            "type",
            "optimiser is 3; expected a function",
        ),
        (
            lambda plan, layers: plan.memory(layers, optimiser=len),
            "type",
            "optimiser is <built-in function len>",
        ),
    ],
)
def test_what_cannot_be_predicted_is_refused(call, code, words):
    layers = measure_layers(mlp(), np.ones((16, 4)), repeats=1)
    with pytest.raises(ArgumentError, match=words) as caught:
        call(Plan(mlp(), num_ranks=2), layers)
    assert caught.value.code == code

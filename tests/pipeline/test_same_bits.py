"""The central property: a pipelined step leaves the same bits as one process that
accumulates the same microbatches.
"""

import copy
import functools

import array_api_strict
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from minipipe import Pipeline, Schedule, Tensor, nn, optim, schedules, spawn
from minipipe.core.comm.host import limit_blas_threads
from minipipe.core.nn import sequential
from minipipe.execution.objective import BatchObjective
from minipipe.testing import check_same_as_one_process, one_process_step, same_bits
from tests.launch import covering, mpirun, needs_mpi, slowly
from tests.strategies import (
    NAMES,
    ColumnMajor,
    Summed,
    Turned,
    batch,
    build,
    examples,
    split_backward,
    steps,
    v_shaped,
)


@examples(240)
@given(steps(), st.booleans())
def test_gradients_of_a_pipelined_step_are_those_of_one_process_bit_for_bit(
    step, recompute
):
    model, inputs, targets, schedule, partition = step
    check_same_as_one_process(
        model, nn.MSELoss(), inputs, targets, schedule, 3, partition, recompute
    )


@examples(40)
@given(steps(), st.booleans())
def test_so_they_are_with_another_array_module_on_which_nothing_falls_back_to_numpy(
    step, recompute
):
    model, inputs, targets, schedule, partition = step
    check_same_as_one_process(
        model,
        nn.MSELoss(),
        inputs,
        targets,
        schedule,
        3,
        partition,
        recompute,
        device=array_api_strict,
    )


@needs_mpi
@pytest.mark.slow  # in short: test_over_mpi.py
@pytest.mark.parametrize(("num_ranks", "module"), [(2, []), (5, []), (3, ["strict"])])
def test_so_they_are_through_mpirun(num_ranks, module):
    num_steps = examples(40).max_examples
    done = mpirun(
        num_ranks, "-m", "tests.pipeline.random_steps", num_steps, *module, limit=120
    )
    assert done.code == 0, done.err
    assert done.out.startswith(f"the same bits in {num_steps} steps")


@pytest.mark.parametrize("num_ranks", [2, 3])
def test_joined_actions_run_one_after_the_other_with_the_bits_of_one_process(num_ranks):
    schedule = schedules.dualpipe_v(num_ranks, 8, joined=True)
    model = nn.Sequential(
        *(nn.Linear(3, 3) for _ in range(2 * num_ranks - 1)), nn.Linear(3, 2)
    )
    inputs, targets = batch(16, 3)
    check_same_as_one_process(model, nn.MSELoss(), inputs, targets, schedule, 2)

    def ran(group):
        pipeline = Pipeline(model, group, loss=nn.MSELoss(), schedule=schedule)
        pipeline.step(inputs, targets)
        return pipeline.schedule == schedule, pipeline.timeline()

    for is_kept, timeline in spawn(ran, num_ranks=num_ranks):
        assert is_kept and schedule.actions == tuple(
            tuple(span.action for span in row) for row in timeline.spans
        )
        assert all(
            a.end <= b.start for row in timeline.spans for a, b in zip(row, row[1:])
        )


@pytest.mark.parametrize(
    ("name", "split"), covering([*NAMES, "v-shaped"], [False, True], strength=1)
)
@pytest.mark.parametrize("num_ranks", [slowly(1), slowly(2), 3, slowly(4)])
def test_every_schedule_trains_like_one_process(name, num_ranks, split):
    schedule = (
        v_shaped(num_ranks, 5) if name == "v-shaped" else build(name, num_ranks, 5)
    )
    if split:
        schedule = split_backward(schedule, delay=3)
    layers = [
        layer
        for _ in range(4)
        for layer in (nn.Linear(6, 6), nn.Tanh(), Turned(2, 3), nn.Flatten())
    ]
    model = nn.Sequential(*layers, nn.Linear(6, 2))
    inputs, targets = batch(13, 6)

    def losses(group):
        pipeline = Pipeline(model, group, loss=nn.MSELoss(), schedule=schedule)
        optimiser = optim.SGD(pipeline.parameters(), 0.05, momentum=0.9)
        out = []
        for _ in range(4):
            out.append(pipeline.step(inputs, targets))
            optimiser.step()
        return (
            out,
            pipeline.evaluate(inputs, targets),
            pipeline.predict(inputs),
            pipeline.state_dict(),
        )

    with limit_blas_threads(1):
        twin = copy.deepcopy(model)
        twin.initialise(0)
        optimiser = optim.SGD(twin.parameters(), 0.05, momentum=0.9)
        expected = []
        for _ in range(4):
            expected.append(
                one_process_step(
                    twin, nn.MSELoss(), inputs, targets, schedule.num_microbatches
                ).loss
            )
            optimiser.step()
    by_rank = spawn(losses, num_ranks)
    for rank_losses, evaluated, predicted, state in by_rank:
        assert rank_losses == expected
        assert evaluated == by_rank[0][1]
        assert same_bits(predicted, by_rank[0][2])
        assert state.keys() == twin.state_dict().keys()
        assert all(
            same_bits(state[name], value) for name, value in twin.state_dict().items()
        )


@functools.cache
def values_through_mpirun(num_ranks, num_steps):
    done = mpirun(num_ranks, "-m", "tests.pipeline.many_steps", num_steps)
    assert done.code == 0, done.err
    return done.out.splitlines()


@needs_mpi
@pytest.mark.parametrize(("num_ranks", "num_steps"), [slowly(2, 8), slowly(4, 8)])
def test_many_steps_through_mpirun_have_the_losses_of_one_process(num_ranks, num_steps):
    values = values_through_mpirun(num_ranks, num_steps)
    # of each schedule a loss for each step, and what is left
    assert len(values) == (len(NAMES) + 2) * (num_steps + 2)
    assert values == values_through_mpirun(1, num_steps)


# -- the checks can fail ---------------------------------------------------------------


def check_is_noticed(schedule):
    model = nn.Sequential(
        nn.Linear(4, 4), nn.Tanh(), nn.Linear(4, 4), nn.Tanh(), nn.Linear(4, 2)
    )
    inputs, targets = batch(12, 4)
    with pytest.raises(AssertionError, match="differs from one process|in one process"):
        check_same_as_one_process(model, nn.MSELoss(), inputs, targets, schedule)


def test_a_loss_scaled_twice_is_caught(monkeypatch):
    once = BatchObjective.__call__

    def twice(self, microbatch, outputs):
        loss, share = once(self, microbatch, outputs)
        return loss, share * share

    monkeypatch.setattr(BatchObjective, "__call__", twice)
    check_is_noticed(build("1f1b", 2, 3))


def test_gradients_added_in_another_order_are_caught():
    rows = (
        (0, "F", 0),
        (0, "F", 1),
        (0, "F", 2),
        (0, "B", 2),
        (0, "B", 0),
        (0, "B", 1),
    )
    text = " ".join(f"{s}{kind}{k}" for s, kind, k in rows)
    schedule = Schedule.from_text(text)
    assert not schedule.is_reproducible
    with pytest.warns(UserWarning, match="another order"):
        check_is_noticed(schedule)


@pytest.mark.parametrize(
    ("layers", "cut", "differs"),
    [
        # the gradient of Linear is transposed
        ([nn.Linear(8, 8), ColumnMajor(8), nn.Linear(8, 2)], 1, "0.bias"),
        # the input of Summed is transposed
        ([ColumnMajor(8), Summed(), nn.Linear(1, 2)], 1, "0.weight"),
    ],
    ids=["gradient", "activation"],
)
def test_a_transposed_view_that_is_not_made_contiguous_is_caught(
    layers, cut, differs, monkeypatch
):
    """The story: a sum over a transposed array goes in another order than over the
    array that a message brings.
    """
    inputs, targets = batch(200, 8)
    schedule, partition = build("gpipe", 2, 2), [range(cut), range(cut, len(layers))]
    arguments = (
        nn.Sequential(*layers),
        nn.MSELoss(),
        inputs,
        targets,
        schedule,
        0,
        partition,
    )
    check_same_as_one_process(*arguments)
    monkeypatch.setattr(sequential, "contiguous", lambda tensor: tensor)
    with pytest.raises(AssertionError, match=f"the gradient of {differs} differs"):
        check_same_as_one_process(*arguments)


def test_a_microbatch_weighted_as_if_all_were_equal_is_caught(monkeypatch):
    monkeypatch.setattr(
        "minipipe.execution.objective.shares",
        lambda sizes, *_: [1 / len(sizes)] * len(sizes),
    )
    model = nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 2))
    inputs, targets = batch(5, 4)
    with pytest.raises(AssertionError, match="differs|in one process"):
        check_same_as_one_process(
            model, nn.MSELoss(), inputs, targets, build("gpipe", 2, 2)
        )


# -- what the promise means ------------------------------------------------------------


def test_the_loss_is_the_mean_over_the_whole_batch():
    model = nn.Sequential(nn.Linear(4, 3), nn.Tanh(), nn.Linear(3, 2)).initialise(0)
    inputs, targets = batch(11, 4)
    whole = nn.MSELoss()(model(Tensor(inputs)), targets)
    whole.backward()
    pieces = one_process_step(copy.deepcopy(model), nn.MSELoss(), inputs, targets, 4)
    assert pieces.loss == pytest.approx(whole.item(), rel=1e-6)
    for name, parameter in model.named_parameters():
        np.testing.assert_allclose(
            pieces.gradients[name], parameter.grad, rtol=1e-4, atol=1e-6
        )


def test_float64_models_train_in_float64():
    model = nn.Sequential(
        nn.Linear(4, 4, dtype=np.float64), nn.Tanh(), nn.Linear(4, 2, dtype=np.float64)
    )
    inputs, targets = batch(6, 4)

    def dtypes(group):
        pipeline = Pipeline(model, group, loss=nn.MSELoss(), num_microbatches=2)
        pipeline.step(inputs, targets)  # float32 inputs are taken in the model's dtype
        return {str(parameter.grad.dtype) for parameter in pipeline.parameters()}

    assert spawn(dtypes, 2) == [{"float64"}, {"float64"}]


@pytest.mark.parametrize("seed", [*range(4), *map(slowly, range(4, 20))])
def test_the_losses_add_up_from_left_to_right_in_every_version_of_python(seed):
    """Since 3.12 the built-in sum compensates for rounding, and had other bits than a
    loop.
    """
    generator = np.random.default_rng(seed)
    x = generator.standard_normal((16, 3)) * 10.0 ** generator.integers(-6, 7, (16, 1))
    layers = nn.Sequential(nn.Linear(3, 2, dtype=np.float64))
    check_same_as_one_process(
        layers, nn.MSELoss(), x, np.zeros((16, 2)), build("gpipe", 1, 8)
    )

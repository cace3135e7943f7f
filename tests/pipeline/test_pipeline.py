"""What a user of Pipeline sees."""

import copy

import numpy as np
import pytest

from minipipe import (
    Pipeline,
    Plan,
    Schedule,
    Tensor,
    nn,
    no_grad,
    optim,
    schedules,
    spawn,
)
from minipipe.comm import OneRankGroup
from minipipe.core.tensor import record
from minipipe.errors import (
    ParameterError,
    RankError,
    ScheduleError,
)
from minipipe.execution.building import build_stages
from minipipe.testing import check_same_as_one_process, one_process_step, same_bits
from tests.pipeline.small_pipelines import mlp, on_ranks
from tests.strategies import batch, build, split_backward, v_shaped

# -- stages and ranks ------------------------------------------------------------------


def test_the_first_and_the_last_stage_are_on_the_first_and_the_last_rank():
    assert on_ranks(3, lambda pipeline: pipeline.local_stages) == [(0,), (1,), (2,)]
    stages = on_ranks(1, lambda pipeline: list(pipeline._stages.values()))[0]
    assert stages[0].is_first and stages[0].is_last


def test_3_modules_make_3_stages():
    parts = [
        nn.Sequential(nn.Linear(4, 4), nn.Tanh()),
        nn.Linear(4, 4),
        nn.Sequential(nn.Tanh(), nn.Linear(4, 2)),
    ]
    inputs, targets = batch(7, 4)

    def result(group):
        pipeline = Pipeline.from_modules(
            parts, group, loss=nn.MSELoss(), num_microbatches=3
        )
        loss = pipeline.step(inputs, targets)
        return (
            pipeline.num_stages,
            pipeline.local_stages,
            loss,
            {n: p.grad for n, p in pipeline.named_parameters()},
        )

    expected = one_process_step(
        nn.Sequential(*copy.deepcopy(parts)), nn.MSELoss(), inputs, targets, 3
    )
    for num_ranks in (3, 1):
        by_rank = spawn(result, num_ranks)
        assert [r[0] for r in by_rank] == [3] * num_ranks
        assert [r[1] for r in by_rank] == (
            [(0,), (1,), (2,)] if num_ranks == 3 else [(0, 1, 2)]
        )
        gradients = {name: gradient for r in by_rank for name, gradient in r[3].items()}
        assert all(
            same_bits(gradients[name], value)
            for name, value in expected.gradients.items()
        )
        assert {r[2] for r in by_rank} == {expected.loss}


def test_neighbouring_stages_on_one_rank_exchange_no_message():
    class Counting(OneRankGroup):
        sent = 0

        def isend(self, *args, **options):
            self.sent += 1
            return super().isend(*args, **options)

    group = Counting()
    pipeline = Pipeline.from_modules(
        [nn.Linear(4, 4), nn.Tanh(), nn.Linear(4, 2)],
        group,
        loss=nn.MSELoss(),
        num_microbatches=2,
    )
    pipeline.step(*batch(4, 4))
    assert pipeline.num_stages == 3 and group.sent == 0
    # stages 1 and 2 are neighbours on rank 1
    middle = schedules.lower(v_shaped(2, 2)).actions[1]
    assert {
        str(a)[1:-1] for a in middle if a.stage == 1 and a.kind.is_communication
    } == {"RECV_F", "SEND_B"}


# -- parameters ------------------------------------------------------------------------


def test_first_values_depend_on_seed_and_name_and_not_on_the_partition():
    expected = mlp().initialise(7).state_dict()
    for num_ranks in (1, 2, 4):
        for state in on_ranks(
            num_ranks, lambda pipeline: pipeline.state_dict(), seed=7
        ):
            assert state.keys() == expected.keys()
            assert all(same_bits(state[name], expected[name]) for name in expected)
    assert not same_bits(expected["0.weight"], expected["2.weight"])


def test_values_that_the_model_has_are_copied_and_the_model_stays_as_it_was():
    model = mlp().initialise(3)
    before = model.state_dict()

    def train(pipeline):
        own = {name: p.data.copy() for name, p in pipeline.named_parameters()}
        pipeline.step(*batch(8, 4))
        optim.SGD(pipeline.parameters(), 1.0).step()
        return own

    for own in on_ranks(2, train, model, seed=99):
        assert all(same_bits(value, before[name]) for name, value in own.items())
    assert all(
        same_bits(value, before[name]) for name, value in model.state_dict().items()
    )
    assert all(p.grad is None for p in model.parameters())


def test_a_description_stays_without_values():
    model = mlp()
    on_ranks(2, lambda pipeline: pipeline.step(*batch(8, 4)), model)
    assert not any(parameter.is_filled for parameter in model.parameters())


def test_only_the_layers_of_its_own_stage_take_memory():
    layer = 10**5  # a weight of 40 GB, which no rank of this test holds
    model = nn.Sequential(nn.Linear(4, 4), nn.Linear(layer, layer), nn.Linear(4, 2))

    def claim(group):
        parts = [range(1), range(1, 2), range(2, 3)]
        if group.rank == 1:  # this rank would hold the large one; it only describes it
            return model[1].num_parameters
        plan = Plan(model, num_ranks=group.size, partition=parts)
        (stage,) = build_stages(plan, group.rank, seed=0).values()
        return sum(p.data.nbytes for p in stage.module.parameters())

    assert spawn(claim, 3) == [80, layer * layer + layer, 40]


def test_state_goes_out_and_in_again_under_the_models_names():
    state = mlp().initialise(5).state_dict()

    def replace(pipeline):
        pipeline.load_state_dict(state)
        return pipeline.state_dict()

    for result in on_ranks(3, replace):
        assert all(same_bits(result[name], state[name]) for name in state)
    del state["0.weight"]
    with pytest.raises(ParameterError) as caught:
        on_ranks(2, lambda pipeline: pipeline.load_state_dict(state))
    assert caught.value.code == "missing" and "0.weight" in str(caught.value)


def test_shared_parameters_may_lie_in_several_stages():
    tied = nn.Linear(4, 4)
    model = nn.Sequential(tied, nn.Tanh(), tied, nn.Linear(4, 2))
    inputs, targets = batch(8, 4)
    expected = one_process_step(copy.deepcopy(model), nn.MSELoss(), inputs, targets, 4)

    def gradients(pipeline):
        pipeline.step(inputs, targets)
        return {name: p.grad for name, p in pipeline.named_parameters()}

    for partition in ([range(3), range(3, 4)], [range(2), range(2, 4)]):
        first, last = on_ranks(2, gradients, model, partition=partition)
        assert first.keys() == {"0.weight", "0.bias"}
        assert all(
            same_bits(value, expected.gradients[name])
            for name, value in (first | last).items()
        )
    assert last.keys() == {"0.weight", "0.bias", "3.weight", "3.bias"}


def test_train_and_eval_reach_every_layer_of_this_rank():
    def modes(pipeline):
        out = [pipeline.is_training]
        pipeline.eval()
        out.append(pipeline.is_training)
        out += [
            module.is_training
            for stage in pipeline._stages.values()
            for module in stage.module.modules()
        ]
        return out, pipeline.train().is_training

    for modes_of_rank, again in on_ranks(2, modes):
        assert modes_of_rank[0] is True and not any(modes_of_rank[1:]) and again is True


# -- step, evaluate, predict -----------------------------------------------------------


def test_a_step_overwrites_the_gradients_of_the_last_one():
    inputs, targets = batch(8, 4)

    def gradients(pipeline):
        pipeline.step(inputs * 100, targets)
        pipeline.step(inputs, targets)
        return {name: p.grad for name, p in pipeline.named_parameters()}

    expected = one_process_step(mlp(), nn.MSELoss(), inputs, targets, 4)
    for result in on_ranks(2, gradients):
        assert all(
            same_bits(value, expected.gradients[name]) for name, value in result.items()
        )


def test_gradients_kept_from_a_step_are_not_changed_by_the_next():
    inputs, targets = batch(8, 4)

    def kept(pipeline):
        pipeline.step(inputs, targets)
        first = {name: p.grad for name, p in pipeline.named_parameters()}
        copies = {name: gradient.copy() for name, gradient in first.items()}
        pipeline.step(inputs * 3, targets)
        return all(same_bits(first[name], copies[name]) for name in first)

    assert on_ranks(2, kept) == [True, True]


def test_only_the_ends_need_the_data_and_batches_may_change_in_size():
    def run(pipeline):
        out = []
        for size in (4, 9, 5):
            inputs, targets = batch(size, 4)
            first, last = (
                0 in pipeline.local_stages,
                pipeline.num_stages - 1 in pipeline.local_stages,
            )
            out.append(
                pipeline.step(inputs if first else None, targets if last else None)
            )
            out.append(
                pipeline.evaluate(inputs if first else None, targets if last else None)
            )
            out.append(pipeline.predict(inputs if first else None).shape)
        return out

    results = on_ranks(3, run)
    assert results[0] == results[1] == results[2]
    assert results[0][2::3] == [(4, 2), (9, 2), (5, 2)]
    assert results[0][0] == results[0][1], "evaluate sees the weights that the step saw"


def test_predict_equals_the_model_and_takes_a_single_sample():
    model = mlp().initialise(0)
    inputs, _ = batch(1, 4)
    expected = model(Tensor(inputs)).numpy()
    for result in on_ranks(3, lambda pipeline: pipeline.predict(inputs), model):
        assert same_bits(result, expected)


def test_evaluate_and_predict_leave_the_gradients_alone():
    inputs, targets = batch(8, 4)

    def untouched(pipeline):
        pipeline.step(inputs, targets)
        before = [p.grad.copy() for p in pipeline.parameters()]
        pipeline.evaluate(inputs, targets)
        pipeline.predict(inputs)
        held = [len(graphs) for graphs in pipeline._trainer.graphs.values()]
        return all(
            same_bits(p.grad, b) for p, b in zip(pipeline.parameters(), before)
        ), held

    assert on_ranks(2, untouched) == [(True, [0]), (True, [0])]


def test_a_rank_without_parameters_trains_too():
    model = nn.Sequential(nn.Linear(4, 2), nn.Tanh(), nn.Identity())

    def train(pipeline):
        optimiser = optim.SGD(pipeline.parameters(), 0.1, momentum=0.9)
        loss = pipeline.step(*batch(8, 4))
        optimiser.step()
        return loss

    losses = on_ranks(3, train, model)
    assert losses == [one_process_step(model, nn.MSELoss(), *batch(8, 4), 4).loss] * 3


def test_modules_over_a_v_go_there_and_back():
    inputs, targets = batch(8, 4)
    parts = [nn.Sequential(nn.Linear(4, 4), nn.Tanh()) for _ in range(3)] + [
        nn.Linear(4, 2)
    ]

    def run(group):
        pipeline = Pipeline.from_modules(
            parts, group, loss=nn.MSELoss(), schedule="zb-v", num_microbatches=4
        )
        return pipeline.local_stages, pipeline.step(inputs, targets)

    loss = one_process_step(
        nn.Sequential(*parts), nn.MSELoss(), inputs, targets, 4
    ).loss
    assert spawn(run, 2) == [((0, 3), loss), ((1, 2), loss)]


def test_too_few_modules_for_a_v_are_refused_with_how_many_it_takes():
    with pytest.raises(
        RankError,
        match="2 modules on 2 ranks are up to 1 on a rank.*Expected 3 to 4 modules",
    ):
        spawn(
            lambda g: Pipeline.from_modules(
                [nn.Linear(4, 4)] * 2, g, loss=nn.MSELoss(), schedule="zb-v"
            ),
            2,
        )


def test_a_schedule_without_a_backward_predicts_but_does_not_train():
    inputs, targets = batch(8, 4)

    def run(pipeline):
        with pytest.raises(
            ScheduleError, match="choose another schedule to train, or evaluate"
        ):
            pipeline.step(inputs, targets)
        return pipeline.evaluate(inputs, targets)

    trained = on_ranks(
        2, lambda pipeline: pipeline.evaluate(inputs, targets), schedule="1f1b"
    )
    assert on_ranks(2, run, schedule="forward-only") == trained


class Detached(nn.Module):
    def forward(self, x):
        return x.detach()


class WholeNumbers(nn.Module):
    def forward(self, x):
        return Tensor((x.data > 0).astype(np.int64))


class Looked(nn.Module):
    """Takes rows of a table by whole numbers, as an embedding does."""

    def __init__(self):
        self.table = nn.Parameter((2, 3), nn.initialisers.he_uniform(3))

    def forward(self, x):
        return self.table[x].mean(axis=1)


@pytest.mark.filterwarnings("ignore:The first step left no gradient")
@pytest.mark.parametrize("split", [False, True])
@pytest.mark.parametrize(
    "layers",
    [
        [nn.Linear(4, 4), Detached(), nn.Linear(4, 2)],
        [WholeNumbers(), Looked(), nn.Linear(3, 2)],
        [nn.Linear(4, 4), WholeNumbers(), Looked(), nn.Linear(3, 2)],
    ],
)
def test_a_stage_whose_result_does_not_depend_on_its_input_passes_no_gradient_as_in_one_process(
    layers, split
):
    schedule = build("1f1b", len(layers), 4)
    schedule = split_backward(schedule, delay=2) if split else schedule
    check_same_as_one_process(
        nn.Sequential(*layers), nn.MSELoss(), *batch(8, 4), schedule
    )


def test_a_rank_without_stages_takes_part_in_everything():
    schedule = Schedule(
        "idle",
        (0, 1),
        2,
        (("0F0", "0F1", "0B0", "0B1"), ("1F0", "1B0", "1F1", "1B1"), ()),
    )
    inputs, targets = batch(4, 4)

    def everything(pipeline):
        loss = pipeline.step(inputs, targets)
        pipeline.eval()
        return (
            loss,
            pipeline.evaluate(inputs, targets),
            pipeline.predict(inputs).shape,
            pipeline.is_training,
        )

    results = on_ranks(3, everything, schedule=schedule, num_microbatches=None)
    assert len({result[0] for result in results}) == 1
    assert [result[1:] for result in results] == [(results[0][0], (4, 2), False)] * 3


def test_a_step_inside_no_grad_is_a_step_all_the_same():
    inputs, targets = batch(8, 4)

    def quiet_step(pipeline):
        with no_grad():
            pipeline.step(inputs, targets)
        return all(p.grad is not None for p in pipeline.parameters())

    assert on_ranks(2, quiet_step) == [True, True]


# -- looks -----------------------------------------------------------------------------


def test_a_pipeline_prints_as_a_table():
    model = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 2))
    assert on_ranks(2, str, model)[0].splitlines() == [
        "layer                stage  rank  parameters  bytes",
        "    0  Linear(4, 8)      0     0          40    160",
        "    1  ReLU()            0     0           0      0",
        "    2  Linear(8, 2)      1     1          18     72",
        "                             all          58    232",
    ]


def test_a_model_that_is_evaluated_makes_a_pipeline_that_is():
    model = mlp().eval()
    assert on_ranks(2, lambda pipeline: pipeline.is_training, model) == [False, False]


X = np.random.default_rng(0).standard_normal((8, 6)).astype(np.float32)


Y = np.random.default_rng(1).standard_normal((8, 3)).astype(np.float32)


def test_targets_have_the_dtype_of_the_last_layer():
    """They were cast to that of the first."""
    model = nn.Sequential(nn.Linear(6, 6, dtype=np.float64), Narrow(), nn.Linear(6, 3))
    losses = spawn(
        lambda group: Pipeline(
            model, group, loss=nn.MSELoss(), num_microbatches=2
        ).step(X, Y),
        2,
    )
    assert np.isfinite(losses).all()


class Narrow(nn.Module):
    def forward(self, x):
        return record(x.data.astype(np.float32), (x, lambda g: g.astype(np.float64)))

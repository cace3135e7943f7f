"""What a user of Pipeline sees."""

import copy
import gc
import threading
import warnings
import weakref

import numpy as np
import pytest

from minipipe import Pipeline, Schedule, Tensor, init_process_group, nn, no_grad, optim, schedules, simulate, spawn
from minipipe.comm import OneRankGroup
from minipipe.errors import (
    LaunchError,
    MessageError,
    MicrobatchError,
    ModelError,
    ParameterError,
    PartitionError,
    RankError,
    ScheduleError,
    TensorError,
)
from minipipe.pipeline.local import local_stages
from minipipe.testing import check_same_as_one_process, one_process_step, same_bits
from tests.launch import mpirun, needs_mpi
from tests.strategies import NAMES, batch, build, split_backward, v_shaped


def mlp(width=4, linears=4):
    layers = [layer for _ in range(linears) for layer in (nn.Linear(width, width), nn.Tanh())]
    return nn.Sequential(*layers, nn.Linear(width, 2))


def on_ranks(num_ranks, act, model=None, **options):
    """Make a pipeline on thread ranks and return what ``act(pipeline)`` gives on each."""
    model = mlp() if model is None else model
    options = {"num_microbatches": 4, **options}
    return spawn(lambda group: act(Pipeline(model, group, loss=nn.MSELoss(), **options)), num_ranks)


# -- stages and ranks ---------------------------------------------------------------------------------------


def test_the_first_and_the_last_stage_are_on_the_first_and_the_last_rank():
    assert on_ranks(3, lambda pipeline: pipeline.local_stages) == [(0,), (1,), (2,)]
    stages = on_ranks(1, lambda pipeline: list(pipeline._stages.values()))[0]
    assert stages[0].is_first and stages[0].is_last


def test_3_modules_make_3_stages():
    parts = [nn.Sequential(nn.Linear(4, 4), nn.Tanh()), nn.Linear(4, 4), nn.Sequential(nn.Tanh(), nn.Linear(4, 2))]
    inputs, targets = batch(7, 4)

    def result(group):
        pipeline = Pipeline.from_modules(parts, group, loss=nn.MSELoss(), num_microbatches=3)
        loss = pipeline.step(inputs, targets)
        return pipeline.num_stages, pipeline.local_stages, loss, {n: p.grad for n, p in pipeline.named_parameters()}

    expected = one_process_step(nn.Sequential(*copy.deepcopy(parts)), nn.MSELoss(), inputs, targets, 3)
    for num_ranks in (3, 1):
        by_rank = spawn(result, num_ranks)
        assert [r[0] for r in by_rank] == [3] * num_ranks
        assert [r[1] for r in by_rank] == ([(0,), (1,), (2,)] if num_ranks == 3 else [(0, 1, 2)])
        gradients = {name: gradient for r in by_rank for name, gradient in r[3].items()}
        assert all(same_bits(gradients[name], value) for name, value in expected.gradients.items())
        assert {r[2] for r in by_rank} == {expected.loss}


def test_neighbouring_stages_on_one_rank_exchange_no_message():
    class Counting(OneRankGroup):
        sent = 0

        def isend(self, *args, **options):
            self.sent += 1
            return super().isend(*args, **options)

    group = Counting()
    pipeline = Pipeline.from_modules(
        [nn.Linear(4, 4), nn.Tanh(), nn.Linear(4, 2)], group, loss=nn.MSELoss(), num_microbatches=2
    )
    pipeline.step(*batch(4, 4))
    assert pipeline.num_stages == 3 and group.sent == 0
    middle = schedules.lower(v_shaped(2, 2)).actions[1]  # stages 1 and 2 are neighbours on rank 1
    assert {str(a)[1:-1] for a in middle if a.stage == 1 and a.kind.is_communication} == {"RECV_F", "SEND_B"}


# -- parameters ---------------------------------------------------------------------------------------------


def test_first_values_depend_on_seed_and_name_and_not_on_the_partition():
    expected = mlp().initialise(7).state_dict()
    for num_ranks in (1, 2, 4):
        for state in on_ranks(num_ranks, lambda pipeline: pipeline.state_dict(), seed=7):
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
    assert all(same_bits(value, before[name]) for name, value in model.state_dict().items())
    assert all(p.grad is None for p in model.parameters())


def test_a_description_stays_without_values():
    model = mlp()
    on_ranks(2, lambda pipeline: pipeline.step(*batch(8, 4)), model)
    assert not any(parameter.is_filled for parameter in model.parameters())


def test_only_the_layers_of_its_own_stage_take_memory():
    layer = 10**5  # a weight of 40 GB, which no rank of this test holds
    model = nn.Sequential(nn.Linear(4, 4), nn.Linear(layer, layer), nn.Linear(4, 2))

    class Claimed(Exception):
        pass

    def claim(group):
        parts = [range(1), range(1, 2), range(2, 3)]
        if group.rank == 1:  # this rank would hold the large one; it only describes it
            return model[1].num_parameters
        (stage,) = local_stages(model, parts, [group.rank], nn.MSELoss(), seed=0).values()
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
        assert all(same_bits(value, expected.gradients[name]) for name, value in (first | last).items())
    assert last.keys() == {"0.weight", "0.bias", "3.weight", "3.bias"}


def test_train_and_eval_reach_every_layer_of_this_rank():
    def modes(pipeline):
        out = [pipeline.is_training]
        pipeline.eval()
        out.append(pipeline.is_training)
        out += [module.is_training for stage in pipeline._stages.values() for module in stage.module.modules()]
        return out, pipeline.train().is_training

    for modes_of_rank, again in on_ranks(2, modes):
        assert modes_of_rank[0] is True and not any(modes_of_rank[1:]) and again is True


# -- step, evaluate, predict --------------------------------------------------------------------------------


def test_a_step_overwrites_the_gradients_of_the_last_one():
    inputs, targets = batch(8, 4)

    def gradients(pipeline):
        pipeline.step(inputs * 100, targets)
        pipeline.step(inputs, targets)
        return {name: p.grad for name, p in pipeline.named_parameters()}

    expected = one_process_step(mlp(), nn.MSELoss(), inputs, targets, 4)
    for result in on_ranks(2, gradients):
        assert all(same_bits(value, expected.gradients[name]) for name, value in result.items())


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
            first, last = 0 in pipeline.local_stages, pipeline.num_stages - 1 in pipeline.local_stages
            out.append(pipeline.step(inputs if first else None, targets if last else None))
            out.append(pipeline.evaluate(inputs if first else None, targets if last else None))
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
        held = [stage.num_held for stage in pipeline._stages.values()]
        return all(same_bits(p.grad, b) for p, b in zip(pipeline.parameters(), before)), held

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
    parts = [nn.Sequential(nn.Linear(4, 4), nn.Tanh()) for _ in range(3)] + [nn.Linear(4, 2)]

    def run(group):
        pipeline = Pipeline.from_modules(parts, group, loss=nn.MSELoss(), schedule="zb-v", num_microbatches=4)
        return pipeline.local_stages, pipeline.step(inputs, targets)

    loss = one_process_step(nn.Sequential(*parts), nn.MSELoss(), inputs, targets, 4).loss
    assert spawn(run, 2) == [((0, 3), loss), ((1, 2), loss)]


def test_too_few_modules_for_a_v_are_refused_with_how_many_it_takes():
    with pytest.raises(RankError, match="2 modules on 2 ranks are up to 1 on a rank.*Expected 3 to 4 modules"):
        spawn(lambda g: Pipeline.from_modules([nn.Linear(4, 4)] * 2, g, loss=nn.MSELoss(), schedule="zb-v"), 2)


def test_a_schedule_without_a_backward_predicts_but_does_not_train():
    inputs, targets = batch(8, 4)

    def run(pipeline):
        with pytest.raises(ScheduleError, match="choose another schedule to train, or evaluate"):
            pipeline.step(inputs, targets)
        return pipeline.evaluate(inputs, targets)

    trained = on_ranks(2, lambda pipeline: pipeline.evaluate(inputs, targets), schedule="1f1b")
    assert on_ranks(2, run, schedule="forward-only") == trained


@pytest.mark.parametrize("ending", [".csv", ".txt"])
def test_a_schedule_from_a_file_trains_like_one_process(tmp_path, ending):
    path = tmp_path / f"mine{ending}"
    schedule = schedules.zb_h1(2, 4)
    path.write_text(schedule.to_csv() if ending == ".csv" else schedule.to_text())
    inputs, targets = batch(8, 4)
    expected = one_process_step(mlp(), nn.MSELoss(), inputs, targets, 4).loss
    for given in (path, str(path)):

        def run(group, given=given):
            pipeline = Pipeline(mlp(), group, loss=nn.MSELoss(), schedule=given)
            return pipeline.schedule.name, pipeline.step(inputs, targets)

        assert spawn(run, 2) == [("mine", expected)] * 2


def test_an_imported_schedule_in_another_order_runs_as_written_with_one_warning(tmp_path):
    path = tmp_path / "mine.csv"
    path.write_text("0F0,0F1,0B1,0B0\n1F0,1F1,1B1,1B0\n")  # last in, first out

    def run(group):
        pipeline = Pipeline(mlp(), group, loss=nn.MSELoss(), schedule=path)
        pipeline.step(*batch(8, 4))
        pipeline.step(*batch(8, 4))
        return [[str(span.action) for span in row] for row in pipeline.timeline().spans]

    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        ran = spawn(run, 2)
    assert ran == [[["0F0", "0F1", "0B1", "0B0"], ["1F0", "1F1", "1B1", "1B0"]]] * 2
    assert [str(warning.message).startswith("mine adds gradients") for warning in caught] == [True]


def test_a_file_that_is_not_there_or_no_schedule_is_refused(tmp_path):
    (tmp_path / "mine.csv").write_text("0F0,0B0,oops")
    for name, code, words in (("nowhere.csv", "file", "No such file"), ("mine.csv", "syntax", "Line 1, cell 3")):
        with pytest.raises(ScheduleError, match=words) as caught:
            Pipeline(mlp(), OneRankGroup(), loss=nn.MSELoss(), schedule=str(tmp_path / name))
        assert caught.value.code == code


# -- the timeline -------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", [*NAMES, "v-shaped", "split"])
@pytest.mark.parametrize("num_ranks", [1, 2, 4])
def test_the_executor_does_what_the_simulator_says_in_order_and_in_memory(name, num_ranks):
    if name == "v-shaped":
        schedule = v_shaped(num_ranks, 4)
    elif name == "split":
        schedule = split_backward(build("1f1b", num_ranks, 4), delay=2)
    else:
        schedule = build(name, num_ranks, 4)

    def run(group):
        pipeline = Pipeline(mlp(), group, loss=nn.MSELoss(), schedule=schedule)
        pipeline.step(*batch(8, 4))
        return pipeline.timeline()

    predicted = simulate(schedule)
    for timeline in spawn(run, num_ranks):
        assert [[span.action for span in row] for row in timeline.spans] == [list(row) for row in schedule.actions]
        assert timeline.peak_activations == predicted.peak_activations
        assert timeline.unit == "s" and "thread ranks" in timeline.note
        assert min(row[0].start for row in timeline.spans) == 0.0
        for row in timeline.spans:
            times = [time for span in row for time in (span.start, span.end)]
            assert times == sorted(times)
        assert 0 < timeline.bubble_fraction < 1 if num_ranks > 1 else timeline.bubble_fraction >= 0


def test_the_timeline_obeys_the_dependencies():
    def run(pipeline):
        pipeline.step(*batch(8, 4))
        return pipeline.timeline()

    timeline = on_ranks(3, run)[0]
    end = {str(span.action): span.end for row in timeline.spans for span in row}
    start = {str(span.action): span.start for row in timeline.spans for span in row}
    for k in range(4):
        for stage in range(2):
            assert end[f"{stage}F{k}"] <= start[f"{stage + 1}F{k}"]
            assert end[f"{stage + 1}B{k}"] <= start[f"{stage}B{k}"]


def test_held_bytes_grow_with_what_is_in_flight_and_end_at_nothing():
    model = nn.Sequential(*[layer for _ in range(8) for layer in (nn.Linear(32, 32), nn.Tanh())], nn.Linear(32, 2))
    inputs, targets = batch(32, 32)

    def peaks(pipeline):
        pipeline.measures_memory = True
        pipeline.step(inputs, targets)
        left = [stage.held for stage in pipeline._stages.values()]
        return pipeline.timeline().peak_memory, left

    gpipe, _ = on_ranks(2, peaks, model, schedule="gpipe", num_microbatches=8)[0]
    one_f, left = on_ranks(2, peaks, model, schedule="1f1b", num_microbatches=8)[0]
    assert left == [[]]
    assert gpipe[0] == 4 * one_f[0]  # 8 in flight against 2, of equal microbatches
    assert on_ranks(2, lambda p: (p.step(inputs, targets), p.timeline().peak_memory)[1], model) == [None, None]


def test_a_timeline_before_the_first_step_says_what_is_missing():
    with pytest.raises(ValueError, match="call step"):
        on_ranks(1, lambda pipeline: pipeline.timeline())


# -- mistakes -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("kind", "code", "options"),
    [
        (ScheduleError, "unknown", {"schedule": "1f2b"}),
        (ScheduleError, "parameters", {"schedule": "zb-v", "chunks_per_rank": 3}),
        (ScheduleError, "parameters", {"schedule": schedules.gpipe(2, 4), "num_microbatches": 5}),
        (ScheduleError, "parameters", {"schedule": schedules.gpipe(2, 4), "chunks_per_rank": 2}),
        (ScheduleError, "parameters", {"num_microbatches": 0}),
        (RankError, "wrong-number", {"schedule": schedules.gpipe(3, 4)}),
        (PartitionError, "too-few-layers", {"schedule": "interleaved-1f1b", "chunks_per_rank": 9}),
        (PartitionError, "not-a-partition", {"partition": [range(9)]}),
        (ScheduleError, "order", {"schedule": Schedule.from_text("0B0 0F0\n1F0 1B0")}),
    ],
)
def test_what_does_not_fit_is_refused_before_the_first_message(kind, code, options):
    with pytest.raises(kind) as caught:
        on_ranks(2, lambda pipeline: None, **{"num_microbatches": None, **options})
    assert caught.value.code == code


def test_what_is_not_a_sequence_is_refused():
    with pytest.raises(ModelError) as caught:
        Pipeline(nn.Linear(2, 2), OneRankGroup(), loss=nn.MSELoss())
    assert caught.value.code == "not-a-sequence" and "nn.Sequential" in str(caught.value)


@pytest.mark.parametrize(
    ("inputs", "targets", "kind", "code"),
    [
        (np.ones((3, 4), np.float32), np.ones((3, 2), np.float32), MicrobatchError, "too-few-samples"),
        (np.ones((8, 4), np.float32), np.ones((7, 2), np.float32), MicrobatchError, "unequal-lengths"),
        (np.ones((8, 5), np.float32), np.ones((8, 2), np.float32), TensorError, "shape"),
        (np.float32(1), np.ones((8, 2), np.float32), TensorError, "shape"),
    ],
)
def test_a_batch_that_does_not_fit_is_refused(inputs, targets, kind, code):
    with pytest.raises(kind) as caught:
        on_ranks(2, lambda pipeline: pipeline.step(inputs, targets))
    assert caught.value.code == code


def test_an_error_in_a_layer_names_rank_stage_microbatch_and_action():
    with pytest.raises(TensorError) as caught:
        on_ranks(2, lambda pipeline: pipeline.step(np.ones((8, 5), np.float32), np.ones((8, 2), np.float32)))
    notes = "\n".join(caught.value.__notes__)
    assert "in layer 0, Linear(4, 4)" in notes
    assert "on rank 0, stage 0, microbatch 0, action 0F0 of 1f1b, step 1" in notes


@pytest.mark.parametrize(("rank", "name"), [(0, "inputs"), (1, "targets")])
def test_the_rank_that_needs_data_says_so_when_it_gets_none(rank, name):
    inputs, targets = batch(8, 4)
    given = {"inputs": inputs, "targets": targets, name: None}
    with pytest.raises(ValueError, match=f"Rank {rank} needs the {name}"):
        on_ranks(2, lambda pipeline: pipeline.step(given["inputs"], given["targets"]))


def test_a_loss_that_is_not_a_scalar_is_refused():
    inputs, targets = batch(8, 4)
    with pytest.raises(TensorError) as caught:
        spawn(lambda g: Pipeline(mlp(), g, loss=lambda y, t: y - t, num_microbatches=4).step(inputs, targets), 2)
    assert caught.value.code == "not-scalar"


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


@pytest.mark.parametrize("split", [False, True])
@pytest.mark.parametrize(
    "layers",
    [
        [nn.Linear(4, 4), Detached(), nn.Linear(4, 2)],
        [WholeNumbers(), Looked(), nn.Linear(3, 2)],
        [nn.Linear(4, 4), WholeNumbers(), Looked(), nn.Linear(3, 2)],
    ],
)
def test_a_stage_whose_result_does_not_depend_on_its_input_passes_no_gradient_as_in_one_process(layers, split):
    schedule = build("1f1b", len(layers), 4)
    schedule = split_backward(schedule, delay=2) if split else schedule
    check_same_as_one_process(nn.Sequential(*layers), nn.MSELoss(), *batch(8, 4), schedule)


def test_pipelines_of_one_group_called_in_different_orders_are_told():
    """The story: both counted their calls from 1 and used the same tags, so each took the other's activations."""
    inputs, targets = batch(8, 4)

    def swap(group):
        a, b = (Pipeline(mlp(), group, loss=nn.MSELoss(), num_microbatches=4, seed=seed) for seed in (1, 2))
        for pipeline in (a, b) if group.rank else (b, a):
            pipeline.step(inputs, targets)

    with pytest.raises(
        MessageError, match=r"Rank 1 is in step\(\), call 1 of pipeline 1, but rank 0 in step\(\), call 1 of pipeline 2"
    ):
        spawn(swap, 2)


def test_a_step_against_an_evaluate_is_told():
    inputs, targets = batch(8, 4)
    with pytest.raises(MessageError, match=r"Rank 1 is in evaluate\(\), .* but rank 0 in step\(\)"):
        on_ranks(2, lambda p: (p.evaluate if p.group.rank else p.step)(inputs, targets))


def test_a_rank_without_stages_takes_part_in_everything():
    schedule = Schedule("idle", (0, 1), 2, (("0F0", "0F1", "0B0", "0B1"), ("1F0", "1B0", "1F1", "1B1"), ()))
    inputs, targets = batch(4, 4)

    def everything(pipeline):
        loss = pipeline.step(inputs, targets)
        pipeline.eval()
        return loss, pipeline.evaluate(inputs, targets), pipeline.predict(inputs).shape, pipeline.is_training

    results = on_ranks(3, everything, schedule=schedule, num_microbatches=None)
    assert len({result[0] for result in results}) == 1
    assert [result[1:] for result in results] == [(results[0][0], (4, 2), False)] * 3


def test_nothing_of_a_batch_is_kept_after_its_step():
    """The story: the executor kept its last batch, and every array that it had sent, until the next step."""
    pipeline = Pipeline(mlp(), OneRankGroup(), loss=nn.MSELoss(), num_microbatches=2)
    inputs, targets = batch(8, 4)
    watched = [weakref.ref(inputs), weakref.ref(targets)]
    pipeline.step(inputs, targets)
    pipeline.predict(inputs)
    del inputs, targets
    gc.collect()
    assert [ref() for ref in watched] == [None, None]


def test_a_step_inside_no_grad_is_a_step_all_the_same():
    inputs, targets = batch(8, 4)

    def quiet_step(pipeline):
        with no_grad():
            pipeline.step(inputs, targets)
        return all(p.grad is not None for p in pipeline.parameters())

    assert on_ranks(2, quiet_step) == [True, True]


def test_a_loss_with_parameters_is_refused():
    class Weighted(nn.MSELoss):
        def __init__(self):
            self.weight = nn.Parameter((1,))

    with pytest.raises(ModelError) as caught:
        Pipeline(mlp(), OneRankGroup(), loss=Weighted())
    assert caught.value.code == "loss-with-parameters"


def test_a_layer_that_returns_no_tensor_is_named():
    class Plain(nn.Module):
        def forward(self, x):
            return x.numpy()

    with pytest.raises(TensorError, match="passes between layers is a tensor.*; this is ndarray") as caught:
        nn.Sequential(nn.Identity(), Plain())(Tensor([1.0]))
    assert caught.value.__notes__ == ["in layer 1, Plain()"]


def test_a_closed_group_computes_no_further():
    """The story: after the with-block a step on one rank still ran, with as many BLAS threads as there are cores."""
    with init_process_group() as group:
        pipeline = Pipeline(mlp(), group, loss=nn.MSELoss(), num_microbatches=2)
    with pytest.raises(LaunchError):
        pipeline.step(*batch(8, 4))


def test_ranks_that_step_unequally_often_are_told():
    inputs, targets = batch(8, 4)

    def skip(pipeline):
        pipeline._calls.count += pipeline.group.rank
        pipeline.step(inputs, targets)

    with pytest.raises(MessageError) as caught:
        on_ranks(2, skip)
    assert caught.value.code == "step"


@pytest.mark.parametrize(
    ("key", "options"),
    [("seed", {"seed": 1}), ("schedule", {"schedule": "gpipe"}), ("partition", {"layer_costs": [9, *[1] * 8]})],
)
def test_ranks_that_disagree_are_named_before_the_first_step(key, options):
    def make(group):
        mine = options if group.rank == 2 else {}
        Pipeline(mlp(), group, loss=nn.MSELoss(), **mine)

    with pytest.raises(RankError, match=f"The {key} of rank 2 differs from that of rank 0") as caught:
        spawn(make, 3)
    assert caught.value.code == "disagreement"


# -- looks --------------------------------------------------------------------------------------------------


def test_a_pipeline_prints_as_a_table():
    model = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 2))
    assert on_ranks(2, str, model)[0].splitlines() == [
        "layer                stage  rank  parameters  bytes",
        "    0  Linear(4, 8)      0     0          40    160",
        "    1  ReLU()            0     0           0      0",
        "    2  Linear(8, 2)      1     1          18     72",
        "                             all          58    232",
    ]


def test_a_sequence_with_a_forward_of_its_own_is_refused():
    class Residual(nn.Sequential):
        def forward(self, x):
            return x + super().forward(x)

    with pytest.raises(ModelError, match=r"Residual, with a forward of its own"):
        Pipeline(Residual(nn.Linear(2, 2)), OneRankGroup(), loss=nn.MSELoss())


def test_a_call_that_one_rank_makes_alone_is_named():
    """The story: `if group.rank == 0: pipeline.timeline()` waited for a message that had no name."""

    def alone(pipeline):
        pipeline.step(*batch(8, 4))
        if pipeline.group.rank == 1:
            pipeline.state_dict()

    with pytest.raises(MessageError, match=r"pipeline\.state_dict\(\), which every rank must call"):
        on_ranks(2, alone)


@pytest.mark.parametrize("call", ["state_dict", "timeline"])
def test_another_call_on_one_rank_is_told_before_anything_is_exchanged(call):
    def differ(pipeline):
        pipeline.step(*batch(8, 4))
        if pipeline.group.rank == 0:
            getattr(pipeline, call)()
        pipeline.step(*batch(8, 4))

    with pytest.raises(MessageError, match=rf"Rank 1 is in step\(\), .* but rank 0 in {call}\(\)"):
        on_ranks(2, differ)


def test_the_layer_in_an_error_is_numbered_as_in_the_model():
    model = nn.Sequential(nn.Linear(4, 4), nn.Tanh(), nn.Linear(5, 2))
    with pytest.raises(TensorError) as caught:
        on_ranks(3, lambda pipeline: pipeline.step(*batch(8, 4)), model)
    assert "in layer 2, Linear(5, 2)" in caught.value.__notes__


@pytest.mark.parametrize("loss", [nn.MSELoss, "mse", None])
def test_what_is_no_loss_is_refused(loss):
    with pytest.raises(ModelError, match=r"such as nn\.MSELoss\(\)"):
        Pipeline(mlp(), OneRankGroup(), loss=loss)


def test_an_array_that_neighbouring_stages_on_one_rank_hold_counts_for_both():
    """So that the bytes of each stage add up, whatever schedule runs; the simulator adds them up, too."""
    layers = [nn.Linear(4, 4), nn.Tanh(), nn.Linear(4, 4), nn.Tanh(), nn.Linear(4, 2)]

    def peak(partition_sizes):
        ends = np.cumsum([0, *partition_sizes])
        stages = len(partition_sizes)
        pipeline = Pipeline(
            nn.Sequential(*layers),
            OneRankGroup(),
            loss=nn.MSELoss(),
            schedule=schedules.sequential(1, 2, stages),
            partition=[range(int(a), int(b)) for a, b in zip(ends, ends[1:])],
        )
        pipeline.measures_memory = True
        pipeline.step(*batch(64, 4))
        return pipeline.timeline().peak_memory

    one_stage, tanh_result = peak([5])[0], 32 * 4 * 4
    assert peak([1, 2, 2]) == (one_stage,)  # Linear does not keep its result, Tanh does
    assert peak([2, 1, 1, 1]) == (one_stage + 2 * tanh_result,)


def test_a_stage_that_recomputes_holds_its_input_and_nothing_else():
    """The story: parameters have nbytes like arrays, and were counted as arrays beside their values."""
    model = nn.Sequential(*[layer for _ in range(4) for layer in (nn.Linear(6, 6), nn.Tanh())])
    inputs, targets = batch(8, 6)[0], np.zeros((8, 6), np.float32)

    def measured(group):
        pipeline = Pipeline(model, group, loss=nn.MSELoss(), num_microbatches=4, recompute=True)
        return pipeline.measure_memory(inputs, targets).activation

    received = 2 * 6 * 4  # bytes of two samples
    of_the_loss = received  # the difference from the targets
    assert spawn(measured, 2) == [(0, received + of_the_loss)] * 2  # the batch itself does not count


def test_a_model_that_is_evaluated_makes_a_pipeline_that_is():
    model = mlp().eval()
    assert on_ranks(2, lambda pipeline: pipeline.is_training, model) == [False, False]


def test_the_timeout_of_a_pipeline_holds_for_all_its_waits():
    def late(group):
        pipeline = Pipeline(mlp(), group, loss=nn.MSELoss(), num_microbatches=4, timeout=0.05)
        if group.rank == 1:
            waited.wait(10)
            return
        try:
            pipeline.step(*batch(8, 4))
        finally:
            waited.set()

    waited = threading.Event()
    with pytest.raises(MessageError, match=r"has waited 0\.05 s"):
        spawn(late, 2, timeout=100)
    with pytest.raises(ValueError, match="timeout is -1"):
        Pipeline(mlp(), OneRankGroup(), loss=nn.MSELoss(), timeout=-1)


@needs_mpi
def test_what_a_rank_holds_does_not_grow_with_the_number_of_microbatches():
    """The story: every array sent was kept until the end of the step, and 1F1B held as much as GPipe."""
    done = mpirun(2, "-m", "tests.pipeline.memory_over_mpi", 4, 32)
    assert done.code == 0, done.err
    few, many = ([float(number) for number in line.split()] for line in done.out.splitlines())
    for rank in range(2):
        assert many[rank] < few[rank] + 10, (few, many)  # MiB; it was 28 more, one for each microbatch more

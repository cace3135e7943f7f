"""Every mistake with a pipeline is refused with what was given and what was expected,
before ranks wait in vain.
"""

import threading
import time

import numpy as np
import pytest

from minipipe import (
    Pipeline,
    Schedule,
    Tensor,
    functional,
    init_process_group,
    nn,
    schedules,
    spawn,
)
from minipipe.comm import OneRankGroup
from minipipe.errors import (
    ArgumentError,
    LaunchError,
    MessageError,
    MicrobatchError,
    ModelError,
    PartitionError,
    RankError,
    ScheduleError,
    TensorError,
)
from tests.comm.bodies import in_thread
from tests.pipeline.small_pipelines import mlp, on_ranks
from tests.strategies import batch

# -- mistakes --------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("kind", "code", "options"),
    [
        (ScheduleError, "name", {"schedule": "1f2b"}),
        (ScheduleError, "value", {"schedule": "zb-v", "chunks_per_rank": 3}),
        (
            ScheduleError,
            "value",
            {"schedule": schedules.gpipe(2, 4), "num_microbatches": 5},
        ),
        (
            ScheduleError,
            "value",
            {"schedule": schedules.gpipe(2, 4), "chunks_per_rank": 2},
        ),
        (ScheduleError, "value", {"num_microbatches": 0}),
        (RankError, "wrong-number", {"schedule": schedules.gpipe(3, 4)}),
        (
            PartitionError,
            "too-few",
            {"schedule": "interleaved-1f1b", "chunks_per_rank": 9},
        ),
        (PartitionError, "value", {"partition": [range(9)]}),
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
    assert caught.value.code == "type" and "nn.Sequential" in str(caught.value)


@pytest.mark.parametrize(
    ("inputs", "targets", "kind", "code"),
    [
        (
            np.ones((3, 4), np.float32),
            np.ones((3, 2), np.float32),
            MicrobatchError,
            "too-few",
        ),
        (
            np.ones((8, 4), np.float32),
            np.ones((7, 2), np.float32),
            MicrobatchError,
            "wrong-number",
        ),
        (
            np.ones((8, 5), np.float32),
            np.ones((8, 2), np.float32),
            TensorError,
            "shape",
        ),
        (np.float32(1), np.ones((8, 2), np.float32), TensorError, "shape"),
    ],
)
def test_a_batch_that_does_not_fit_is_refused(inputs, targets, kind, code):
    with pytest.raises(kind) as caught:
        on_ranks(2, lambda pipeline: pipeline.step(inputs, targets))
    assert caught.value.code == code


def test_an_error_in_a_layer_names_rank_stage_microbatch_and_action():
    with pytest.raises(TensorError) as caught:
        on_ranks(
            2,
            lambda pipeline: pipeline.step(
                np.ones((8, 5), np.float32), np.ones((8, 2), np.float32)
            ),
        )
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
        spawn(
            lambda g: Pipeline(
                mlp(), g, loss=lambda y, t: y - t, num_microbatches=4
            ).step(inputs, targets),
            2,
        )
    assert caught.value.code == "shape"


def test_pipelines_of_one_group_called_in_different_orders_are_told():
    """The story: both counted their calls from 1 and used the same tags, so each took
    the other's activations.
    """
    inputs, targets = batch(8, 4)

    def swap(group):
        a, b = (
            Pipeline(mlp(), group, loss=nn.MSELoss(), num_microbatches=4, seed=seed)
            for seed in (1, 2)
        )
        for pipeline in (a, b) if group.rank else (b, a):
            pipeline.step(inputs, targets)

    with pytest.raises(
        MessageError,
        match=(
            r"Rank 1 is in step\(\), call 1 of pipeline 1, but rank 0 in step\(\), "
            r"call 1 of pipeline 2"
        ),
    ):
        spawn(swap, 2)


def test_a_step_against_an_evaluate_is_told():
    inputs, targets = batch(8, 4)
    with pytest.raises(
        MessageError, match=r"Rank 1 is in evaluate\(\), .* but rank 0 in step\(\)"
    ):
        on_ranks(2, lambda p: (p.evaluate if p.group.rank else p.step)(inputs, targets))


def test_a_loss_with_parameters_is_refused():
    class Weighted(nn.MSELoss):
        def __init__(self):
            self.weight = nn.Parameter([0.0])

    with pytest.raises(ModelError) as caught:
        Pipeline(mlp(), OneRankGroup(), loss=Weighted())
    assert caught.value.code == "loss"


def test_a_layer_that_returns_no_tensor_is_named():
    class Plain(nn.Module):
        def forward(self, x):
            return x.numpy()

    with pytest.raises(
        TensorError, match="Values between layers must be tensors.*; this is ndarray"
    ) as caught:
        nn.Sequential(nn.Identity(), Plain())(Tensor([1.0]))
    assert caught.value.__notes__ == ["in layer 1, Plain()"]


def test_a_closed_group_computes_no_further():
    """The story: after the with-block a step on one rank still ran, with as many BLAS
    threads as there are cores.
    """
    with init_process_group() as group:
        pipeline = Pipeline(mlp(), group, loss=nn.MSELoss(), num_microbatches=2)
    with pytest.raises(LaunchError):
        pipeline.step(*batch(8, 4))


def test_ranks_that_step_unequally_often_are_told():
    inputs, targets = batch(8, 4)

    def skip(pipeline):
        pipeline._intake.calls.count += pipeline.group.rank
        pipeline.step(inputs, targets)

    with pytest.raises(MessageError) as caught:
        on_ranks(2, skip)
    assert caught.value.code == "disagreement"


@pytest.mark.parametrize(
    ("key", "options"),
    [
        ("seed", {"seed": 1}),
        ("schedule", {"schedule": "gpipe"}),
        ("partition", {"layer_costs": [9, *[1] * 8]}),
    ],
)
def test_ranks_that_disagree_are_named_before_the_first_step(key, options):
    def make(group):
        mine = options if group.rank == 2 else {}
        Pipeline(mlp(), group, loss=nn.MSELoss(), **mine)

    with pytest.raises(
        RankError, match=f"The {key} of rank 2 differs from that of rank 0"
    ) as caught:
        spawn(make, 3)
    assert caught.value.code == "disagreement"


def test_a_sequence_with_a_forward_of_its_own_is_refused():
    class Residual(nn.Sequential):
        def forward(self, x):
            return x + super().forward(x)

    with pytest.raises(ModelError, match=r"Residual, with a forward of its own"):
        Pipeline(Residual(nn.Linear(2, 2)), OneRankGroup(), loss=nn.MSELoss())


def test_a_call_that_one_rank_makes_alone_is_named():
    """The story: `if group.rank == 0: pipeline.timeline()` waited for a message that
    had no name.
    """

    def alone(pipeline):
        pipeline.step(*batch(8, 4))
        if pipeline.group.rank == 1:
            pipeline.state_dict()

    with pytest.raises(
        MessageError, match=r"pipeline\.state_dict\(\), which every rank must call"
    ):
        on_ranks(2, alone)


@pytest.mark.parametrize("call", ["state_dict", "timeline"])
def test_another_call_on_one_rank_is_told_before_anything_is_exchanged(call):
    def differ(pipeline):
        pipeline.step(*batch(8, 4))
        if pipeline.group.rank == 0:
            getattr(pipeline, call)()
        pipeline.step(*batch(8, 4))

    with pytest.raises(
        MessageError, match=rf"Rank 1 is in step\(\), .* but rank 0 in {call}\(\)"
    ):
        on_ranks(2, differ)


def test_the_layer_in_an_error_is_numbered_as_in_the_model():
    model = nn.Sequential(nn.Linear(4, 4), nn.Tanh(), nn.Linear(5, 2))
    with pytest.raises(TensorError) as caught:
        on_ranks(3, lambda pipeline: pipeline.step(*batch(8, 4)), model)
    assert "in layer 2, Linear(5, 2)" in caught.value.__notes__


@pytest.mark.parametrize("loss", [nn.MSELoss, "mse", 3])
def test_what_is_no_loss_is_refused(loss):
    with pytest.raises(ModelError, match=r"such as nn\.MSELoss\(\)"):
        Pipeline(mlp(), OneRankGroup(), loss=loss)


def test_the_timeout_of_the_group_holds_for_all_waits_of_a_pipeline():
    def late(group):
        pipeline = Pipeline(mlp(), group, loss=nn.MSELoss(), num_microbatches=4)
        if group.rank == 1:
            waited.wait(10)
            return
        try:
            pipeline.step(*batch(8, 4))
        finally:
            waited.set()

    waited = threading.Event()
    with pytest.raises(MessageError, match=r"has waited 0\.05 s"):
        spawn(late, 2, timeout=0.05)
    with pytest.raises(
        TypeError, match=r"takes no timeout=; .* init_process_group\(timeout=…\)"
    ):
        Pipeline(mlp(), OneRankGroup(), loss=nn.MSELoss(), timeout=1)
    with pytest.raises(
        TypeError,
        match=(
            r"takes no microbatches=; did you mean num_microbatches=\? Expected one "
            r"of"
        ),
    ):
        Pipeline(mlp(), OneRankGroup(), loss=nn.MSELoss(), microbatches=1)


def test_a_rank_that_forgets_eval_is_told_so():
    """The story: dropout went on dropping on one rank, and nobody said a word."""

    def forget(group):
        pipeline = Pipeline(mlp(), group, loss=nn.MSELoss(), num_microbatches=4)
        if group.rank == 0:
            pipeline.eval()
        pipeline.step(*batch(8, 4))

    with pytest.raises(
        RankError, match=r"mode of rank 1 \(train\(\)\) differs from that of rank 0"
    ):
        spawn(forget, 2)


class CutsTheGraph(nn.Module):
    def forward(self, x):
        return Tensor(np.maximum(x.numpy(), 0))


def test_a_graph_that_is_cut_inside_a_layer_is_noticed_after_the_first_step():
    model = nn.Sequential(nn.Linear(4, 4), CutsTheGraph(), nn.Linear(4, 2))

    def train(group):
        pipeline = Pipeline(model, group, loss=nn.MSELoss(), num_microbatches=2)
        for _ in range(2):
            pipeline.step(*batch(8, 4))

    with pytest.warns(
        UserWarning, match=r"The first step left no gradient for 0\.weight, 0\.bias\."
    ) as caught:
        spawn(train, 2)
    assert len(caught) == 1


@pytest.mark.parametrize("state", [None, [], "0.weight"])
def test_a_state_that_is_none_is_refused_by_its_type(state):
    model = nn.Sequential(nn.Linear(1, 1))
    pipeline = Pipeline(model, OneRankGroup(), loss=nn.MSELoss())
    for one in (model, pipeline):
        with pytest.raises(
            ArgumentError,
            match=(
                rf"The state is a {type(state).__name__}; expected the result of "
                r"state_dict"
            ),
        ):
            one.load_state_dict(state)


def test_a_step_beside_another_thread_s_step_is_refused_and_the_other_goes_on():
    """The story: with one rank nothing was said, and both steps added to the same
    gradients.
    """
    refused = []

    class Nosy(nn.Module):
        def forward(self, x):
            if not refused:
                in_thread(beside)
            return x

    def beside():
        with pytest.raises(
            LaunchError,
            match=(
                r"is in Pipeline\.step\(\) at .*; the other is in Pipeline\.step\(\) "
                r"at "
            ),
        ) as error:
            pipeline.step(np.ones((2, 1)), np.ones((2, 1)))
        refused.append(error.value.code)

    with init_process_group() as group:
        pipeline = Pipeline(
            nn.Sequential(Nosy(), nn.Linear(1, 1)),
            group,
            loss=nn.MSELoss(),
            num_microbatches=2,
        )
        assert np.isfinite(pipeline.step(np.ones((2, 1)), np.ones((2, 1))))
    assert refused == ["not-a-rank"]


X = np.random.default_rng(0).standard_normal((8, 6)).astype(np.float32)


Y = np.random.default_rng(1).standard_normal((8, 3)).astype(np.float32)


def test_the_timeout_of_the_group_holds_for_all_that_a_pipeline_does_together():
    """Clipping once waited longer than the step."""
    model = nn.Sequential(nn.Linear(6, 6), nn.Linear(6, 3))

    def clip_alone(group):
        pipeline = Pipeline(model, group, loss=nn.MSELoss(), num_microbatches=2)
        pipeline.step(X, Y)
        if group.rank == 0:
            start = time.perf_counter()
            with pytest.raises(MessageError) as caught:
                pipeline.clip_grad_norm(1.0)
            assert caught.value.code in ("timeout", "deadlock")
            return time.perf_counter() - start
        return 0.0

    assert spawn(clip_alone, 2, timeout=1)[0] < 5


@pytest.mark.parametrize("accumulate", [False, True])
def test_a_step_that_fails_leaves_neither_half_a_gradient_nor_a_graph(accumulate):
    calls = []

    def fails_later(outputs, targets):
        calls.append(1)
        if len(calls) == 6:
            raise ValueError("enough")
        return functional.mean_squared_error(outputs, targets)

    layers = nn.Sequential(nn.Linear(1, 1), nn.Tanh(), nn.Linear(1, 1))
    pipeline = Pipeline(layers, OneRankGroup(), loss=fails_later, num_microbatches=4)
    x = np.ones((8, 1))
    pipeline.step(x, x)
    with pytest.raises(ValueError, match="enough"):
        pipeline.step(x, x, accumulate=accumulate)
    assert all(parameter.grad is None for parameter in pipeline.parameters())
    assert pipeline._trainer.graphs == {0: {}}


def test_an_evaluation_that_fails_leaves_the_gradients_of_the_step_before():
    pipeline = Pipeline(
        nn.Sequential(nn.Linear(2, 1)),
        OneRankGroup(),
        loss=nn.MSELoss(),
        num_microbatches=2,
    )
    pipeline.step(np.ones((4, 2)), np.ones((4, 1)))
    before = [parameter.grad.copy() for parameter in pipeline.parameters()]
    with pytest.raises(TensorError):
        pipeline.evaluate(np.ones((4, 2)), np.ones((4, 3)))
    assert all(
        np.array_equal(p.grad, grad)
        for p, grad in zip(pipeline.parameters(), before, strict=True)
    )

"""A step whose loss or gradients are not finite: refused on every rank before the
update, and the culprit is named.
"""

import warnings

import numpy as np
import pytest

from minipipe import Pipeline, Tensor, functional, nn, optim, spawn
from minipipe.comm import OneRankGroup
from minipipe.core.autograd.modes import current_place
from minipipe.errors import ArgumentError, NotFiniteError, RankError
from minipipe.pipeline import delivery
from minipipe.testing import same_bits
from tests.execution.checks.not_finite import (
    NUM_MICROBATCHES,
    Bad,
    X,
    Y,
    check_culprit,
    made,
    model,
    refused,
)
from tests.launch import covering, mpirun, needs_mpi, slowly

pytestmark = pytest.mark.filterwarnings("ignore::RuntimeWarning")


@needs_mpi
@pytest.mark.parametrize("microbatches", [slowly([0, 1, 2, 3])])
def test_the_culprit_is_named_in_every_stage_direction_and_microbatch(microbatches):
    done = mpirun(4, "-m", "tests.execution.checks.not_finite", *microbatches)
    assert done.code == 0, done.err
    expected = [
        f"{stage} {where} {k}"
        for stage in range(4)
        for where in "FB"
        for k in microbatches
    ]
    assert done.out.splitlines() == expected


OTHERS = [
    ("zb-v", {}),
    ("zb-h1", {"recompute": True}),
    ("interleaved-1f1b", {}),
    ("gpipe", {}),
    ("1f1b", {}),
]


@pytest.mark.parametrize(
    ("other", "stage", "where"), covering(OTHERS, [0, 1, 2, 3], ["F", "B"], strength=1)
)
def test_so_it_is_over_other_schedules_and_with_recomputation(other, stage, where):
    schedule, options = other
    chunks = {"zb-v": 2, "interleaved-1f1b": 2}.get(schedule, 1)
    num_ranks = 4 // chunks
    spawn(
        lambda group: check_culprit(
            group, stage, where, 2, num_stages=4, schedule=schedule, **options
        ),
        num_ranks,
    )


def sentences(layers, num_ranks=2, inputs=X, targets=Y, **options):
    """Return the code and the sentence, which all ranks agree about."""
    found = spawn(
        lambda group: refused(made(group, layers, **options), inputs, targets),
        num_ranks,
    )
    assert len(set(found)) == 1
    return found[0]


def plain(*more):
    return [nn.Linear(4, 4), nn.Tanh(), nn.Linear(4, 4), *more]


def test_the_inputs_and_the_targets_are_named_with_the_sample():
    inputs, targets = X.copy(), Y.copy()
    inputs[5, 1], targets[3, 2] = np.inf, np.nan
    code, said = sentences(nn.Sequential(*plain()), inputs=inputs)
    assert (code, "the inputs have inf, first in sample 5 (microbatch 2)." in said) == (
        "inputs",
        True,
    )
    code, said = sentences(nn.Sequential(*plain()), targets=targets)
    assert (
        code == "targets"
        and "the loss, after layer 2, returned nan for finite inputs" in said
    )
    assert (
        "stage 1, microbatch 1, action 1F1: the targets have nan, first in sample 3."
        in said
    )


def test_a_parameter_that_was_not_finite_before_is_named():
    def step(group):
        pipeline = made(group, nn.Sequential(*plain()))
        for name, parameter in pipeline.named_parameters():
            if name == "2.weight":
                parameter.data[0, 0] = np.nan
        return refused(pipeline)

    for code, said in spawn(step, 2):
        assert (
            code == "parameter"
            and "action 1F0: its parameter 2.weight had nan before the step." in said
        )


class SquareRoot(nn.Module):
    """Its gradient is infinite at 0."""

    def __init__(self):
        self.weight = nn.Parameter((4,), nn.initialisers.constant(0.0))

    def forward(self, x):
        return x + self.weight.sqrt()


def test_the_gradient_of_a_parameter_is_named_and_so_is_the_backward_of_the_loss():
    code, said = sentences(
        nn.Sequential(*plain(), SquareRoot()),
        schedule="zb-h1",
        partition=[range(2), range(2, 4)],
    )
    assert code == "backward"
    assert (
        "layer 3, SquareRoot(), returned inf and -inf in the gradient of "
        "3.weight, for a finite gradi"
    ) in said
    assert "on rank 1, stage 1, microbatch 0, action 1W0." in said

    def step(group):
        pipeline = Pipeline(
            nn.Sequential(nn.Linear(4, 4, initialiser=nn.initialisers.constant(0.0))),
            group,
            loss=lambda outputs, targets: (outputs * outputs).sqrt().mean(),
            num_microbatches=2,
        )
        return refused(pipeline)

    ((code, said),) = spawn(step, 1)
    assert (
        code == "backward"
        and "the loss, after layer 0, returned nan in the gradient of its input" in said
    )
    assert "microbatch 0, action 0B0." in said


def test_an_auxiliary_loss_is_named_and_not_the_loss_behind_it():
    layers = [
        nn.Linear(4, 4),
        nn.AuxiliaryLoss(lambda x: (x.mean() * 0).log()),
        nn.Linear(4, 4),
    ]
    code, said = sentences(nn.Sequential(*layers))
    assert (
        code == "forward"
        and "layer 1, AuxiliaryLoss(" in said
        and "added a loss of -inf for finite inputs" in said
    )


# -- no false alarm --------------------------------------------------------------------


def test_large_gradients_whose_squares_overflow_are_fine():
    def step(group):
        pipeline = made(group, nn.Sequential(*plain()))
        pipeline.step(X, Y, scale=1.0)
        return made(group, nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 4))).step(
            1e9 * X, 1e10 * Y
        )

    with np.errstate(all="raise"):
        (loss,) = spawn(step, 1)
    assert loss > 1e19  # gradients of about 1e19, and squares of 1e38 and more


class Masked(nn.Module):
    """Scores that do not count are -inf between two layers, and in the inputs."""

    def forward(self, bundle):
        x, mask = bundle
        return x + mask, mask


def test_minus_infinity_as_a_mask_is_fine_and_is_not_blamed():
    mask = np.where(np.arange(4) < 2, 0, -np.inf).astype(np.float32) * np.ones(
        (8, 1), np.float32
    )
    softmax = nn.Function(lambda bundle: functional.softmax(bundle[0]))
    layers = [nn.On(0, nn.Linear(4, 4)), Masked(), softmax, nn.Linear(4, 4)]
    spawn(lambda group: made(group, nn.Sequential(*layers)).step((X, mask), Y), 2)
    code, said = sentences(nn.Sequential(*layers, Bad("F", 1)), inputs=(X, mask))
    assert (
        code == "forward"
        and (
            "layer 4, Bad(), returned nan for finite inputs (except -inf, perhaps a "
            "mask)"
        )
        in said
    )


def test_a_missing_number_that_a_layer_replaces_is_fine_and_is_not_blamed():
    inputs = X.copy()
    inputs[:, 0] = np.nan
    known = nn.Function(lambda x: Tensor(np.nan_to_num(x.numpy())))
    spawn(lambda group: made(group, nn.Sequential(known, *plain())).step(inputs, Y), 2)
    code, said = sentences(nn.Sequential(known, *plain(Bad("F", 3))), inputs=inputs)
    assert code == "forward" and "layer 4, Bad()" in said and "microbatch 3" in said


def test_an_overflow_that_a_loss_scale_finds_is_fine():
    def train(group):
        layers = nn.Sequential(
            nn.Linear(4, 4, dtype=np.float16), nn.Linear(4, 4, dtype=np.float16)
        )
        pipeline, scale, taken = (
            made(group, layers),
            optim.LossScale(2.0**26, minimum=2.0**-4),
            [],
        )
        for _ in range(24):
            pipeline.step(X, Y, scale=scale.value)
            taken.append(pipeline.unscale_gradients(scale))
        return taken[0], taken[-1]

    assert spawn(train, 2) == [(False, True)] * 2


@pytest.mark.parametrize("scale", [1.0, 2.0**20])
def test_the_loss_is_looked_at_in_half_precision_and_under_a_loss_scale_too(scale):
    layers = nn.Sequential(
        nn.Linear(4, 4, dtype=np.float16),
        nn.Linear(4, 4, dtype=np.float16),
        Bad("F", 1, np.inf),
    )
    for code, said in spawn(lambda group: refused(made(group, layers), scale=scale), 2):
        assert code == "forward" and "layer 2, Bad(), returned inf" in said


def test_a_gradient_that_is_given_makes_no_loss_to_look_at():
    layers = nn.Sequential(nn.Linear(4, 4), nn.Function(lambda x: x * 1e36))

    def run(group):
        pipeline = Pipeline(layers, group, num_microbatches=2)
        pipeline.forward_backward(X, np.full((8, 4), 1e-30, np.float32))
        with pytest.raises(
            NotFiniteError,
            match=r"layer 1, .* returned .*inf in the gradient of its input",
        ):
            pipeline.forward_backward(X, np.full((8, 4), 1e3, np.float32))

    spawn(run, 2)


# -- with other options ----------------------------------------------------------------


def test_after_a_step_that_was_refused_training_goes_on_to_the_bits_of_training_without_it():
    def train(group, meets_it):
        pipeline = made(group, nn.Sequential(*plain()))
        optimiser = optim.SGD(pipeline.parameters(), 0.1)
        for number in range(3):
            if number == 1 and meets_it:
                refused(pipeline, X * np.float32(np.nan), accumulate=True)
            pipeline.step(X, Y)
            optimiser.step()
        return pipeline.state_dict()

    found, expected = (
        spawn(lambda group, meets=meets: train(group, meets), 2)[0]
        for meets in (True, False)
    )
    assert all(same_bits(found[name], expected[name]) for name in expected)


def test_a_warning_says_the_same_once_a_step_on_rank_0_and_the_gradients_stay():
    def step(group, **options):
        pipeline = made(
            group, model(2, 1, "B", 3), partition=[range(3), range(3, 6)], **options
        )
        pipeline.step(X, Y, metrics={"calls": lambda *_: calls.append(1) or 0.0})
        pipeline.step(X, Y, accumulate=True)
        return {name: parameter.grad for name, parameter in pipeline.named_parameters()}

    calls, grads = [], {}
    for option in ("off", "warn"):
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            grads[option] = spawn(
                lambda group, o=option: step(group, check_finite=o), 2
            )
        said = [
            str(warning.message)
            for warning in caught
            if warning.category is UserWarning
        ]
        assert len(said) == (2 if option == "warn" else 0)
    assert said[0].startswith(
        "Step 1: layer 4, Bad(), returned nan in the gradient of its input"
    )
    assert said[1].startswith("Step 2: layer 4") and said[1].endswith(
        "Training continues, because of check_finite='warn'."
    )
    assert {
        warning.filename for warning in caught if warning.category is UserWarning
    } == {__file__}
    assert len(calls) == 2 * NUM_MICROBATCHES  # the second run computes no metrics
    for off, warned in zip(grads["off"], grads["warn"]):
        assert all(
            np.array_equal(off[name], warned[name], equal_nan=True) for name in off
        )


def test_without_waiting_the_next_step_finds_it_one_update_late_and_every_rank_says_the_same():
    def train(group, layers, expected):
        pipeline = made(group, layers, partition=[range(3), range(3, 6)])
        pipeline.step(X, Y, wait=False)
        with pytest.raises(NotFiniteError, match=expected) as caught:
            pipeline.step(X, Y, wait=False)
        return str(caught.value)

    for where, expected in (
        ("F", "Step 1: the loss of microbatch 3 is not finite."),
        ("B", r"gradient of 0.weight \(r"),
    ):
        found = spawn(
            lambda group, w=where, e=expected: train(group, model(2, 1, w, 3), e), 2
        )
        assert (
            len(set(found)) == 1
            and "Nothing waited for the loss, so parameters may have changed"
            in found[0]
        )


def test_a_loss_that_was_not_waited_for_complains_when_it_is_asked_for():
    pipeline = made(OneRankGroup(), model(1, 0, "F", 0))
    loss = pipeline.step(X, Y, wait=False)
    for _ in range(2):
        with pytest.raises(NotFiniteError, match="Step 1: the loss of microbatch 0"):
            float(loss)


def test_ranks_that_do_not_all_wait_do_not_wait_for_each_other():
    def step(group):
        pipeline = made(group, model(2, 0, "F", 0), partition=[range(3), range(3, 6)])
        with pytest.raises(NotFiniteError, match="the loss of microbatch 0"):
            float(pipeline.step(X, Y, wait=group.rank == 0))

    spawn(step, 2, timeout=20)


class EveryOther(nn.Module):
    """Fails the first time only, whatever the place."""

    def __init__(self):
        self.calls = []

    def forward(self, x):
        self.calls.append(current_place().microbatch)
        return x * (np.nan if len(self.calls) == 1 else 1.0)


def test_what_a_second_run_does_not_show_is_said():
    code, said = sentences(nn.Sequential(*plain(), EveryOther()))
    assert (
        code == "not-found"
        and "in a second run of the step every value between two layers was" in said
    )


def test_gradients_of_steps_and_of_uses_whose_sum_overflows_are_refused_too():
    class Large(nn.Module):
        def __init__(self):
            self.weight = nn.Parameter((1,), nn.initialisers.constant(0.0))

        def forward(self, x):
            return record_large(x, self.weight)

    def record_large(x, weight):
        return (
            functional.concatenate([x[:, :1] + weight * 1e38, x[:, 1:]], axis=1)
            if weight is not None
            else x
        )

    def steps(group):
        pipeline = Pipeline(
            nn.Sequential(Large()),
            group,
            loss=lambda y, _: y[:, :1].mean(),
            num_microbatches=1,
        )
        pipeline.step(X, Y)
        for _ in range(2):
            pipeline.step(X, Y, accumulate=True)
        return refused(pipeline, accumulate=True)

    ((code, said),) = spawn(steps, 1)
    assert (
        code == "not-found"
        and "only a sum has overflowed, such as gradients of several steps" in said
    )


def test_shared_parameters_frozen_stages_and_nested_models():
    embedding = nn.Embedding(5, 4)
    tied = nn.Sequential(
        embedding, nn.Sequential(nn.Tanh(), Bad("F", 2)), nn.Unembedding(embedding)
    )
    code, said = sentences(
        tied, inputs=np.arange(8) % 5, targets=np.zeros((8, 5), np.float32)
    )
    assert code == "forward" and "layer 2, Bad()" in said
    frozen = nn.Sequential(
        nn.Linear(4, 4).freeze(), Bad("F", 1), nn.Linear(4, 4).freeze(), *plain()
    )
    code, said = sentences(
        frozen, num_ranks=3, partition=[range(2), range(2, 4), range(4, 6)]
    )
    assert (
        code == "forward"
        and "layer 1, Bad(), returned nan for finite inputs, on rank 0, stage 0, mi"
        in said
    )
    # A dropout before it might drop the element, and with it the nan.
    recomputed = nn.Sequential(
        *plain(),
        nn.Recompute(nn.Sequential(Bad("B", 1), nn.Dropout(0.5), nn.Linear(4, 4))),
    )
    code, said = sentences(recomputed)
    assert (
        code == "backward" and "layer 3, Recompute(" in said and "microbatch 1" in said
    )


# -- off, and wrong --------------------------------------------------------------------


def test_switched_off_nothing_looks_and_no_message_more_is_sent():
    def losses(group):
        return made(group, model(2, 0, "F", 0), check_finite="off").step(X, Y)

    assert np.isnan(spawn(losses, 2)).all()


def test_evaluation_and_prediction_return_what_they_find():
    pipeline = made(OneRankGroup(), model(1, 0, "F", 0))
    assert np.isnan(pipeline.evaluate(X, Y)) and np.isnan(pipeline.predict(X)).any()


def test_a_wrong_word_is_refused_and_so_are_ranks_that_differ():
    with pytest.raises(
        ArgumentError, match="check_finite is True; expected 'stop', 'warn' or 'off'"
    ) as caught:
        made(OneRankGroup(), nn.Sequential(*plain()), check_finite=True)
    assert caught.value.code == "value"
    with pytest.raises(
        RankError, match="The check_finite of rank 1 differs from that of rank 0"
    ):
        spawn(
            lambda group: made(
                group, nn.Sequential(*plain()), check_finite=("warn", "off")[group.rank]
            ),
            2,
        )


def test_a_mutant_that_forgets_the_other_ranks_is_caught(monkeypatch):
    """Each rank judges by its own findings: the others would go on, and wait for ever
    for those that stopped.
    """

    class Alone:
        def __init__(self, check):
            self.findings, self.check = check.findings, check

        def judge(self, loss, findings):
            self.check.judge(loss, [self.findings])

    whole = delivery.exchange_loss
    monkeypatch.setattr(
        "minipipe.pipeline.framing.exchange_loss",
        lambda *given: whole(*given[:-1], Alone(given[-1])),
    )
    with pytest.raises(
        Exception, match="All ranks are blocked|the step was not refused"
    ):
        # By turns, so that the load of the machine does not decide which rank ends
        # first.
        program = lambda group: refused(
            made(group, model(2, 0, "B", 0), partition=[range(3), range(3, 6)])
        )
        spawn(program, 2, take_turns=True)

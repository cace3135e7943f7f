"""Models in float16 and bfloat16 through a pipeline: the same bits, and one loss scale
for all ranks.
"""

import warnings

import ml_dtypes
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from minipipe import Pipeline, functional, nn, optim, spawn
from minipipe.comm import OneRankGroup
from minipipe.errors import ParameterError, RankError
from minipipe.testing import check_same_as_one_process, same_bits
from tests.half_precision import epsilon, every_half
from tests.launch import mpirun, needs_mpi, slowly
from tests.strategies import Fork, Turned, build, examples, runnable_schedules


class Join(nn.Module):
    """Takes three tensors to one again, of their own precision."""

    def forward(self, bundle):
        x, skip, rows = bundle
        return x * skip + rows.reshape(-1, 1).astype(x.dtype) / 16


def mixed(half, num_layers, dropout=0.2):
    """Return at least ``num_layers`` layers of many kinds, from width 6 to 3
    classes.
    """
    layers = [
        nn.Linear(6, 6, dtype=half),
        nn.Tanh(),
        nn.Residual(
            nn.LayerNorm(6, dtype=half),
            nn.Linear(6, 6, dtype=half),
            nn.GELU(),
            nn.Dropout(dropout),
        ),
        nn.Recompute(nn.Linear(6, 6, bias=False, dtype=half)),
        Turned(2, 3),
        nn.RMSNorm(2, dtype=half),
        nn.Flatten(),
        Fork(tuple),
        Join(),
        nn.SiLU(),
    ]
    return nn.Sequential(
        *(layers * (1 + num_layers // len(layers))), nn.Linear(6, 3, dtype=half)
    )


def batch(half, num_samples, seed=0):
    generator = np.random.default_rng(seed)
    return generator.standard_normal((num_samples, 6)).astype(half), generator.integers(
        0, 3, num_samples
    )


@every_half
def test_gradients_of_a_pipelined_step_are_those_of_one_process_bit_for_bit(half):
    @examples(30)
    @given(runnable_schedules(), st.integers(0, 5), st.booleans(), st.integers(0, 99))
    def compare(schedule, more, recompute, seed):
        inputs, labels = batch(half, schedule.num_microbatches + more, seed)
        model = mixed(half, schedule.num_stages)
        check_same_as_one_process(
            model,
            nn.CrossEntropyLoss(),
            inputs,
            labels,
            schedule,
            seed,
            recompute=recompute,
        )

    compare()


@every_half
def test_what_travels_between_stages_and_comes_back_is_half_and_gradients_are_float32(
    half,
):
    def step(group):
        layers = [
            layer
            for _ in range(3)
            for layer in (nn.Linear(6, 6, dtype=half), nn.Tanh())
        ]
        pipeline = Pipeline(
            nn.Sequential(*layers), group, loss=nn.MSELoss(), num_microbatches=2
        )
        sent, isend = set(), group.isend

        def noted(array, destination, tag=0, **options):
            # the library's own messages, such as the marks of a call, have others
            if tag >= 0:
                sent.add(array.dtype)
            return isend(array, destination, tag, **options)

        group.isend = noted
        inputs, _ = batch(half, 4)
        pipeline.step(inputs, inputs)
        gradients = {parameter.grad.dtype for parameter in pipeline.parameters()}
        return (
            set(sent),
            gradients,
            pipeline.predict(inputs).dtype,
            {value.dtype for value in pipeline.state_dict().values()},
        )

    for found in spawn(step, 3):
        assert found == (
            {np.dtype(half)},
            {np.dtype(np.float32)},
            half,
            {np.dtype(half)},
        )


class Tied(nn.Module):
    """The layer of an embedding's vectors once more, at the other end."""

    def __init__(self, embedding):
        self.weight = embedding.weight

    def forward(self, x):
        return x @ self.weight.T


@every_half
@pytest.mark.filterwarnings(
    "error"
)  # infinities of both signs meet in the sum over ranks
def test_a_parameter_that_ranks_share_has_the_bits_of_one_process(half):
    def model():
        embedding = nn.Embedding(7, 4, dtype=half)
        return nn.Sequential(
            embedding, nn.Linear(4, 4, dtype=half), nn.Tanh(), Tied(embedding)
        ).tied()

    ids = np.random.default_rng(1).integers(0, 7, (9, 3))

    def train(group):
        pipeline = Pipeline(
            model(), group, loss=nn.CrossEntropyLoss(), num_microbatches=3
        )
        optimiser, scale = (
            optim.Adam(pipeline.parameters(), 0.01),
            optim.LossScale(2.0**30),
        )
        losses = []
        for _ in range(20):
            losses.append(pipeline.step(ids, ids, scale=scale.value))
            if pipeline.unscale_gradients(scale):
                optimiser.step()
        return [*losses, scale.value], pipeline.state_dict()

    (alone,) = spawn(train, 1)
    for losses, state in spawn(train, 3):
        assert losses == alone[0]
        assert all(same_bits(value, alone[1][name]) for name, value in state.items())


@every_half
def test_a_language_model_and_a_convolution_have_the_bits_of_one_process(half):
    embedding = nn.Embedding(11, 8, dtype=half)
    blocks = [nn.TransformerBlock(8, 2, is_causal=True, dtype=half) for _ in range(2)]
    ends = nn.LayerNorm(8, dtype=half), nn.Unembedding(embedding)
    language = nn.Sequential(
        embedding, nn.PositionalEmbedding(6, 8, dtype=half), *blocks, *ends
    )
    ids = np.random.default_rng(0).integers(0, 11, (9, 6))
    check_same_as_one_process(
        language, nn.CrossEntropyLoss(), ids, ids, build("zb-h1", 3, 4)
    )
    images = np.random.default_rng(0).standard_normal((9, 1, 8, 8)).astype(half)
    layers = [
        nn.Conv2d(1, 3, 3, padding=1, dtype=half),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Flatten(),
    ]
    network = nn.Sequential(*layers, nn.Linear(48, 3, dtype=half))
    check_same_as_one_process(
        network, nn.CrossEntropyLoss(), images, np.arange(9) % 3, build("1f1b", 2, 4)
    )


def mean_square(outputs, targets):
    difference = outputs.astype(np.float32) - targets.astype(np.float32)
    return (difference * difference).mean()


@every_half
def test_a_loss_of_ones_own_in_float32_is_that_of_the_package(half):
    def step(group, loss):
        pipeline = Pipeline(
            nn.Sequential(nn.Linear(6, 4, dtype=half), nn.Linear(4, 6, dtype=half)),
            group,
            loss=loss,
        )
        inputs, _ = batch(half, 16)
        return pipeline.step(inputs, inputs), [
            parameter.grad for parameter in pipeline.parameters()
        ]

    own, theirs = (
        spawn(lambda group, loss=loss: step(group, loss), 2)
        for loss in (mean_square, nn.MSELoss())
    )
    for (loss, gradients), (expected, others) in zip(own, theirs):
        assert loss == pytest.approx(expected, rel=1e-6)
        for mine, other in zip(gradients, others):
            np.testing.assert_allclose(
                mine, other, rtol=2 * epsilon(half), atol=epsilon(half) / 8
            )


@every_half
def test_activations_between_products_take_half_the_memory(half):
    def measure(group, dtype):
        layers = [
            layer
            for _ in range(3)
            for layer in (nn.Linear(6, 6, dtype=dtype), nn.Tanh())
        ]
        pipeline = Pipeline(
            nn.Sequential(*layers), group, loss=nn.MSELoss(), num_microbatches=1
        )
        return pipeline.measure_memory(np.ones((50, 6)), np.ones((50, 6)))

    (found, *_), (single, *_) = (
        spawn(lambda group, d=dtype: measure(group, d), 3)
        for dtype in (half, np.float32)
    )
    assert [2 * size for size in found.activation[:2]] == list(single.activation[:2])
    assert [2 * size for size in found.weight_activation] == list(
        single.weight_activation
    )


# -- the loss scale --------------------------------------------------------------------


def trained(group, half=np.float16, initial=2.0**15, num_steps=9, wait=True, **options):
    """Train through a pipeline with a loss scale; return the scales, whether each step
    was taken, and the values.
    """
    pipeline = Pipeline(
        mixed(half, 10, 0.0),
        group,
        loss=nn.CrossEntropyLoss(),
        num_microbatches=4,
        **options,
    )
    optimiser = optim.SGD(pipeline.parameters(), 0.01, momentum=0.9)
    scale = optim.LossScale(initial, growth_interval=3)
    inputs, labels = batch(half, 12)
    scales, taken, losses = [], [], []
    for _ in range(num_steps):
        scales.append(scale.value)
        losses.append(pipeline.step(inputs, labels, wait=wait, scale=scale.value))
        taken.append(pipeline.unscale_gradients(scale))
        if taken[-1]:
            pipeline.clip_grad_norm(1.0)
            optimiser.step()
    return scales, taken, list(map(float, losses)), pipeline.state_dict()


@pytest.mark.parametrize(
    ("schedule", "wait"),
    [
        *(
            ("1f1b", True),
            slowly("zb-h1", False),
            slowly("1f1b", False),
            slowly("zb-h1", True),
        ),
        *(slowly("interleaved-1f1b", wait) for wait in (True, False)),
    ],
)
def test_all_ranks_leave_out_the_same_updates_and_end_with_the_values_of_one(
    schedule, wait
):
    with warnings.catch_warnings():
        warnings.simplefilter("error")  # an overflow of gradients is nothing to warn of
        (alone,) = spawn(lambda group: trained(group, initial=2.0**17), 1)
        many = spawn(
            lambda group: trained(group, initial=2.0**17, schedule=schedule, wait=wait),
            3,
        )
    assert False in alone[1] and True in alone[1]
    assert alone[0] != sorted(alone[0], reverse=True)  # it grew again, too
    for scales, taken, losses, state in many:
        assert (scales, taken, losses) == alone[:3]
        assert all(same_bits(value, alone[3][name]) for name, value in state.items())


def test_an_overflow_on_one_rank_alone_is_known_to_all():
    def step(group):
        pipeline = Pipeline(
            nn.Sequential(nn.Linear(2, 2), nn.Linear(2, 2)), group, loss=nn.MSELoss()
        )
        pipeline.step(np.ones((8, 2)), np.ones((8, 2)))
        if group.rank == 1:
            next(pipeline.parameters()).grad[0, 0] = np.nan
        scale, before = (
            optim.LossScale(8.0),
            [parameter.grad.copy() for parameter in pipeline.parameters()],
        )
        are_updated = pipeline.unscale_gradients(scale)
        same = all(
            same_bits(parameter.grad, old)
            for parameter, old in zip(pipeline.parameters(), before)
        )
        return are_updated, scale.value, same

    assert spawn(step, 2) == [(False, 4.0, True)] * 2


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_a_scale_that_is_a_power_of_two_changes_no_bit_of_gradients_in_range(dtype):
    def step(group, scale):
        layers = [nn.Linear(6, 6, dtype=dtype), nn.Tanh(), nn.Linear(6, 3, dtype=dtype)]
        pipeline = Pipeline(
            nn.Sequential(*layers),
            group,
            loss=nn.CrossEntropyLoss(),
            num_microbatches=4,
        )
        loss = pipeline.step(*batch(dtype, 12), scale=scale.value)
        assert pipeline.unscale_gradients(scale)
        return loss, {
            name: parameter.grad for name, parameter in pipeline.named_parameters()
        }

    plain = spawn(lambda group: step(group, optim.LossScale(1.0)), 2)
    scaled = spawn(lambda group: step(group, optim.LossScale(2.0**15)), 2)
    for (loss, gradients), (same_loss, others) in zip(plain, scaled):
        assert loss == same_loss and all(
            same_bits(value, others[name]) for name, value in gradients.items()
        )


def test_gradients_that_float16_would_lose_come_through_a_loss_scale():
    tiny = 2.0**-26  # below half of the smallest float16

    class Loss(nn.MSELoss):
        def forward(self, outputs, targets):
            return functional.astype(outputs, np.float32).mean() * tiny

    def step(group, scale):
        model = nn.Sequential(
            nn.Linear(2, 2, dtype=np.float16), nn.Linear(2, 1, dtype=np.float16)
        )
        pipeline = Pipeline(model, group, loss=Loss(), num_microbatches=2)
        pipeline.step(np.ones((4, 2)), np.ones((4, 1)), scale=scale.value)
        assert pipeline.unscale_gradients(scale)
        return [np.abs(parameter.grad).max() > 0 for parameter in pipeline.parameters()]

    assert spawn(lambda group: step(group, optim.LossScale()), 2) == [[True, True]] * 2
    assert (
        spawn(lambda group: step(group, optim.LossScale(1.0)), 2)
        == [[False, False]] * 2
    )


def test_a_model_that_overflows_itself_ends_on_every_rank_with_a_sentence():
    def train(group):
        model = nn.Sequential(
            nn.Linear(2, 2, dtype=np.float16), nn.Linear(2, 1, dtype=np.float16)
        )
        pipeline = Pipeline(
            model, group, loss=nn.MSELoss(), num_microbatches=1, check_finite="off"
        )
        scale = optim.LossScale(4.0)
        with (
            pytest.raises(
                ParameterError,
                match="not finite, even at a loss scale of 1. The model's own",
            ) as caught,
            # in a forward, inf - inf is something to warn of
            np.errstate(invalid="ignore"),
        ):
            for _ in range(9):
                pipeline.step(
                    np.full((4, 2), np.inf), np.ones((4, 1)), scale=scale.value
                )
                pipeline.unscale_gradients(scale)
        return caught.value.code, pipeline.timeline().num_steps

    assert spawn(train, 2) == [("not-finite", 1)] * 2


def test_scales_that_differ_between_ranks_are_refused():
    def step(group):
        pipeline = Pipeline(
            nn.Sequential(nn.Linear(2, 2), nn.Linear(2, 2)), group, loss=nn.MSELoss()
        )
        pipeline.step(np.ones((8, 2)), np.ones((8, 2)))
        with pytest.raises(
            RankError, match=r"loss scales of the ranks are \[1.0, 2.0\]; expected"
        ) as caught:
            pipeline.unscale_gradients(optim.LossScale(1.0 + group.rank))
        return caught.value.code

    assert spawn(step, 2) == ["disagreement"] * 2


@pytest.mark.parametrize(
    ("dtype", "size", "scale", "in_forward", "in_backward"),
    [
        (np.float32, 1e5, 1e38, 0, 1),
        (np.float16, 6e4, 1.0, 1, 0),
        (np.float16, 100.0, 6e4, 0, 0),
    ],
)
def test_overflows_are_warned_of_in_every_forward_and_in_the_backward_of_float32(
    dtype, size, scale, in_forward, in_backward
):
    inputs, targets = np.full((2, 2), size), np.zeros((2, 1))

    def overflows(run):
        def ranks(group):
            model = nn.Sequential(
                nn.Linear(2, 1, initialiser=nn.initialisers.constant(1.0), dtype=dtype)
            )
            run(
                Pipeline(
                    model,
                    group,
                    loss=nn.MSELoss(),
                    num_microbatches=1,
                    check_finite="off",
                )
            )

        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            spawn(ranks, 1)
        return len([one for one in caught if "overflow" in str(one.message)])

    forward = overflows(lambda pipeline: pipeline.evaluate(inputs, targets))
    both = overflows(lambda pipeline: pipeline.step(inputs, targets, scale=scale))
    assert (forward > 0, both > forward) == (in_forward, in_backward)


@needs_mpi
@pytest.mark.parametrize(
    ("num_ranks", "half"),
    [
        slowly(2, np.float16),
        slowly(2, ml_dtypes.bfloat16),
        slowly(4, np.float16),
        slowly(4, ml_dtypes.bfloat16),
    ],
)
def test_so_it_is_through_mpirun(num_ranks, half):
    printed = [
        mpirun(n, "-m", "tests.pipeline.half_over_mpi", half.__name__)
        for n in (1, num_ranks)
    ]
    assert [done.code for done in printed] == [0, 0], printed[1].err
    assert printed[0].out == printed[1].out and printed[0].out.count("scale") == 9


def test_targets_beside_halves_keep_their_precision():
    pipeline = Pipeline(
        nn.Sequential(nn.Linear(1, 1, dtype=np.float16)),
        OneRankGroup(),
        loss=nn.MSELoss(),
    )
    pipeline.load_state_dict({"0.weight": np.ones((1, 1)), "0.bias": np.zeros(1)})
    assert pipeline.evaluate(
        np.zeros((1, 1)), np.full((1, 1), 70000.0)
    ) == pytest.approx(70000.0**2)

"""Whole training, as one process would do it: optimiser, learning rate, clipping,
dropout, tied embeddings, devices.
"""

import copy

import array_api_strict
import numpy as np
import pytest

from minipipe import Pipeline, nn, optim, spawn
from minipipe.autograd.devices import gpu_description
from minipipe.comm import OneRankGroup
from minipipe.core.autograd import backend
from minipipe.core.comm.host import limit_blas_threads
from minipipe.errors import LaunchError, ParameterError
from minipipe.testing import (
    check_independent_of_microbatches,
    one_process_step,
    same_bits,
)
from tests.launch import OF_EACH_KIND, of_each_kind, slowly
from tests.strategies import build

SEED, STEPS, MICROBATCHES = 3, 4, 4
IDS = np.random.default_rng(0).integers(0, 11, (10, 5))
NEXT = np.roll(IDS, 1, axis=1)


def language_model(dropout=0.1):
    embedding = nn.Embedding(11, 8)
    blocks = [
        nn.TransformerBlock(8, 2, is_causal=True, dropout=dropout),
        nn.TransformerBlock(8, 2, is_causal=True),
    ]
    return nn.Sequential(
        embedding,
        nn.PositionalEmbedding(5, 8),
        *blocks,
        nn.Recompute(nn.LayerNorm(8)),
        nn.Unembedding(embedding),
    )


def optimiser_of(parameters):
    """AdamW in two groups: matrices decay, vectors do not."""
    parameters = list(parameters)
    groups = [
        {"parameters": [p for p in parameters if p.ndim > 1], "weight_decay": 0.1},
        {
            "parameters": [p for p in parameters if p.ndim == 1],
            "weight_decay": 0.0,
            "learning_rate": 0.02,
        },
    ]
    optimiser = optim.AdamW(groups, learning_rate=0.01)
    return optimiser, optim.LearningRateSchedule(
        optimiser, optim.cosine(STEPS, warmup_steps=2)
    )


def train_alone(model, max_norm):
    model = copy.deepcopy(model).initialise(SEED)
    optimiser, rate = optimiser_of(model.parameters())
    losses, norms = [], []
    with limit_blas_threads(1):
        for step in range(STEPS):
            losses.append(
                one_process_step(
                    model, nn.CrossEntropyLoss(), IDS, NEXT, MICROBATCHES, SEED, step
                ).loss
            )
            norms.append(optim.clip_grad_norm(model.parameters(), max_norm))
            optimiser.step()
            rate.step()
    return losses, norms, model.state_dict()


def train_on_ranks(group, model, max_norm, schedule, device="cpu"):
    pipeline = Pipeline(
        model,
        group,
        loss=nn.CrossEntropyLoss(),
        schedule=schedule,
        seed=SEED,
        device=device,
    )
    optimiser, rate = optimiser_of(pipeline.parameters())
    losses, norms = [], []
    for _ in range(STEPS):
        losses.append(pipeline.step(IDS, NEXT))
        norms.append(pipeline.clip_grad_norm(max_norm))
        optimiser.step()
        rate.step()
    modules = {backend.array_module(p.data) for p in pipeline.parameters()}
    kept = {
        backend.array_module(v)
        for s in optimiser._states.values()
        for v in s.values()
        if backend.is_array(v)
    }
    return losses, norms, pipeline.state_dict(), modules | kept


@pytest.mark.parametrize("max_norm", [0.05, slowly(float("inf"))])
@pytest.mark.parametrize(
    "name", of_each_kind(["sequential", "gpipe", "zb-v", *OF_EACH_KIND])
)
@pytest.mark.parametrize("num_ranks", [slowly(1), 2, slowly(3)])
def test_losses_norms_and_weights_are_those_of_one_process(name, num_ranks, max_norm):
    model = language_model()
    schedule = build(name, num_ranks, MICROBATCHES)
    assert schedule.num_microbatches == MICROBATCHES
    losses, norms, state = train_alone(model, max_norm)
    assert all(norm > 0.05 for norm in norms)  # clipping clips
    for own_losses, own_norms, own_state, _ in spawn(
        lambda g: train_on_ranks(g, model, max_norm, schedule), num_ranks
    ):
        assert (own_losses, own_norms) == (losses, norms)
        assert own_state.keys() == state.keys()
        assert all(same_bits(own_state[key], value) for key, value in state.items())


@pytest.mark.slow
def test_another_array_module_holds_parameters_gradients_and_the_optimisers_state():
    model, schedule = language_model(), build("zb-h1", 3, MICROBATCHES)
    *on_numpy, numpy_modules = spawn(
        lambda g: train_on_ranks(g, model, 1.0, schedule), 3
    )[0]
    *strict, strict_modules = spawn(
        lambda g: train_on_ranks(g, model, 1.0, schedule, array_api_strict), 3
    )[0]
    assert numpy_modules == {np} and strict_modules == {array_api_strict}
    np.testing.assert_allclose(strict[0], on_numpy[0], rtol=1e-5)
    np.testing.assert_allclose(strict[1], on_numpy[1], rtol=1e-4)


def test_a_gpu_that_is_not_there_is_missed_in_one_sentence():
    if "no GPU" not in gpu_description() and "no CuPy" not in gpu_description():
        pytest.skip("there is a GPU here")
    with pytest.raises(
        LaunchError, match="There is no GPU to use: .* Use device='cpu'"
    ) as caught:
        spawn(
            lambda group: Pipeline(
                language_model(), group, loss=nn.CrossEntropyLoss(), device="gpu"
            ),
            1,
        )
    assert caught.value.code == "unavailable"
    with pytest.raises(LaunchError, match="device is 'tpu'; expected 'cpu', 'gpu' or"):
        nn.Linear(2, 2).to("tpu")


def test_a_norm_that_is_not_finite_is_refused_on_every_rank():
    model = nn.Sequential(nn.Linear(2, 2), nn.Linear(2, 2))

    def clip(group):
        pipeline = Pipeline(
            model, group, loss=nn.MSELoss(), num_microbatches=2, check_finite="off"
        )
        with np.errstate(all="ignore"):
            pipeline.step(
                np.full((4, 2), 1e30, np.float32), np.zeros((4, 2), np.float32)
            )
        with pytest.raises(ParameterError) as caught:
            pipeline.clip_grad_norm(1.0)
        return caught.value.code

    assert spawn(clip, 2) == ["not-finite"] * 2


def test_a_module_moves_to_another_array_module_and_back():
    layer = nn.Linear(3, 2).initialise(0)
    before = layer.weight.data.copy()
    layer.to(array_api_strict)
    assert backend.array_module(layer.weight.data) is array_api_strict
    assert layer.state_dict()["weight"].tobytes() == before.tobytes()
    layer.load_state_dict({"weight": 2 * before, "bias": np.ones(2)})
    assert backend.array_module(layer.bias.data) is array_api_strict
    assert (layer.to("cpu").weight.data == 2 * before).all()
    assert (
        backend.array_module(
            copy.deepcopy(nn.Linear(3, 2).to(array_api_strict)).initialise(0).bias.data
        )
        is array_api_strict
    )


def test_a_gradient_that_is_no_number_is_no_agreement():
    layers = nn.Sequential(nn.Linear(1, 1), nn.Function(lambda x: (x - x) / (x - x)))
    pipeline = Pipeline(layers, OneRankGroup(), loss=nn.MSELoss(), num_microbatches=2)
    with (
        np.errstate(all="ignore"),
        pytest.raises(AssertionError, match="depends on the number of microbatches"),
    ):
        check_independent_of_microbatches(pipeline, np.ones((4, 1)), np.ones((4, 1)))

"""The layers that transformers add: embeddings, normalisation, smooth activations; and
the laws of first values.
"""

from __future__ import annotations

import math

import numpy as np
import pytest

from minipipe import Tensor, functional, nn, schedules
from minipipe.autograd import StageInput, backward_input
from minipipe.errors import TensorError
from minipipe.nn import initialisers
from minipipe.testing import check_gradients, check_same_as_one_process


def named(module: nn.Module) -> dict[str, tuple[int, ...]]:
    return {name: parameter.shape for name, parameter in module.named_parameters()}


# -- names, shapes, looks --------------------------------------------------------------

PARAMETERS = {
    "Embedding": (lambda: nn.Embedding(7, 4), {"weight": (7, 4)}, "Embedding(7, 4)"),
    "PositionalEmbedding": (
        lambda: nn.PositionalEmbedding(9, 4),
        {"weight": (9, 4)},
        "PositionalEmbedding(9, 4)",
    ),
    "LayerNorm": (
        lambda: nn.LayerNorm(4),
        {"weight": (4,), "bias": (4,)},
        "LayerNorm(4)",
    ),
    "RMSNorm": (lambda: nn.RMSNorm(4), {"weight": (4,)}, "RMSNorm(4)"),
    "GELU": (nn.GELU, {}, "GELU()"),
    "GELU, approximate": (
        lambda: nn.GELU(approximate=True),
        {},
        "GELU(approximate=True)",
    ),
    "SiLU": (nn.SiLU, {}, "SiLU()"),
}


@pytest.mark.parametrize("make, parameters, looks", PARAMETERS.values(), ids=PARAMETERS)
def test_a_layer_has_these_parameters_and_prints_as_it_is_written(
    make, parameters, looks
):
    assert named(make()) == parameters
    assert repr(make()) == looks


@pytest.mark.parametrize("make", [nn.Embedding, nn.PositionalEmbedding])
@pytest.mark.parametrize("lengths", [(8, 64 / 2), (8.0, 4), (-1, 4), ("8", 4)])
def test_tables_take_whole_lengths_only(make, lengths):
    with pytest.raises(
        ValueError, match=f"^{make.__name__}: .* expected a whole number"
    ):
        make(*lengths)


@pytest.mark.parametrize("make", [nn.LayerNorm, nn.RMSNorm])
@pytest.mark.parametrize("width", [64 / 2, -1, "8", (8,)])
def test_normalisation_takes_a_whole_width_only(make, width):
    with pytest.raises(
        ValueError, match=f"^{make.__name__}: width is .* expected a whole number"
    ):
        make(width)


@pytest.mark.parametrize(
    "make",
    [
        lambda dtype: nn.Embedding(7, 4, dtype=dtype),
        lambda dtype: nn.PositionalEmbedding(9, 4, dtype=dtype),
        lambda dtype: nn.LayerNorm(4, dtype=dtype),
        lambda dtype: nn.RMSNorm(4, dtype=dtype),
    ],
)
def test_a_layer_computes_in_the_dtype_of_its_parameters(make):
    for dtype in (np.float32, np.float64):
        layer = make(dtype)
        x = (
            np.array([[0, 6]])
            if isinstance(layer, nn.Embedding)
            else np.ones((1, 2, 4), dtype)
        )
        result = layer(Tensor(x))
        assert result.dtype == dtype and result.shape == (1, 2, 4)


# -- what they compute -----------------------------------------------------------------


def test_an_embedding_gives_each_symbol_its_row():
    layer = nn.Embedding(3, 2).initialise(1)
    table, ids = layer.weight.numpy(), np.array([[2, 0], [1, 2]])
    np.testing.assert_array_equal(layer(ids).numpy(), table[ids])
    np.testing.assert_array_equal(layer(Tensor(ids)).numpy(), table[ids])


def test_a_positional_embedding_adds_the_same_vector_at_the_same_position():
    layer = nn.PositionalEmbedding(5, 2, dtype=np.float64).initialise(1)
    x = np.random.default_rng(0).standard_normal((3, 4, 2))
    np.testing.assert_array_equal(
        layer(Tensor(x)).numpy(), x + layer.weight.numpy()[:4]
    )
    functional.total(layer(Tensor(x))).backward()
    assert layer.weight.grad.tolist() == [[3.0, 3.0]] * 4 + [[0.0, 0.0]]


def test_a_sequence_longer_than_the_positional_embedding_is_refused_with_both_lengths():
    layer = nn.PositionalEmbedding(5, 2)
    assert layer(Tensor(np.ones((1, 5, 2), np.float32))).shape == (1, 5, 2)
    with pytest.raises(TensorError, match="6 positions; expected at most 5") as caught:
        layer(Tensor(np.ones((1, 6, 2), np.float32)))
    assert caught.value.code == "out-of-range"


@pytest.mark.parametrize("shape", [(5, 2), (1, 5, 3), (1, 1, 5, 2)])
def test_a_positional_embedding_wants_a_batch_of_sequences_of_its_width(shape):
    with pytest.raises(TensorError, match=r"expected \(n, t, 2\)") as caught:
        nn.PositionalEmbedding(5, 2)(Tensor(np.ones(shape, np.float32)))
    assert caught.value.code == "shape"


@pytest.mark.parametrize("make", [nn.LayerNorm, nn.RMSNorm])
def test_normalisation_does_not_see_the_scale_of_its_input_but_for_epsilon(make):
    layer, x = (
        make(6, epsilon=1e-12, dtype=np.float64),
        np.random.default_rng(0).standard_normal((3, 6)),
    )
    np.testing.assert_allclose(
        layer(Tensor(1000 * x)).numpy(), layer(Tensor(x)).numpy(), rtol=1e-10
    )
    blunt = make(6, epsilon=1.0, dtype=np.float64)
    assert (
        np.abs(blunt(Tensor(x)).numpy()).max()
        < 0.9 * np.abs(layer(Tensor(x)).numpy()).max()
    )


def test_activation_layers_are_their_functions():
    x = Tensor(np.linspace(-3, 3, 7))
    for layer, function in (
        (nn.SiLU(), functional.silu),
        (nn.GELU(), functional.gelu),
        (nn.GELU(approximate=True), lambda a: functional.gelu(a, approximate=True)),
    ):
        np.testing.assert_array_equal(layer(x).numpy(), function(x).numpy())


# -- in a pipeline ---------------------------------------------------------------------


class OneHead(nn.Module):
    """Attention with one head and no projection, on which the rest can be tried: (n, t,
    d) to the same.
    """

    def forward(self, x: Tensor) -> Tensor:
        scores = x @ x.transpose(0, 2, 1)
        later = np.triu(np.ones(scores.shape[1:], bool), 1)
        return (
            x + functional.softmax(functional.masked_fill(scores, later, -math.inf)) @ x
        )


def small_transformer() -> nn.Sequential:
    return nn.Sequential(
        nn.Embedding(6, 4),
        nn.PositionalEmbedding(5, 4),
        nn.LayerNorm(4),
        OneHead(),
        nn.Linear(4, 8),
        nn.GELU(),
        nn.Linear(8, 4),
        nn.RMSNorm(4),
        nn.SiLU(),
        nn.Linear(4, 6),
    )


def test_the_gradients_of_a_small_transformer_are_those_of_central_differences():
    layers = small_transformer().layers
    ids = np.array([[0, 3, 3, 5], [1, 0, 2, 0]])
    shapes = [parameter.shape for parameter in small_transformer().parameters()]
    generator = np.random.default_rng(0)

    def apply(*values: Tensor) -> Tensor:
        remaining = iter(values)
        for layer in layers:
            for name in vars(layer):
                if isinstance(getattr(layer, name), Tensor):
                    setattr(layer, name, next(remaining))
        x = Tensor(ids)
        for layer in layers:
            x = layer.forward(x)
        return x

    check_gradients(apply, *(generator.normal(0, 0.5, shape) for shape in shapes))


@pytest.mark.parametrize(
    "schedule",
    [schedules.one_f_one_b(2, 4), schedules.zb_h1(2, 4)],
    ids=lambda schedule: schedule.name,
)
def test_a_pipelined_transformer_has_the_gradients_of_one_process_bit_for_bit(schedule):
    ids = np.random.default_rng(0).integers(0, 6, (8, 5))
    check_same_as_one_process(
        small_transformer(),
        nn.CrossEntropyLoss(),
        ids,
        np.roll(ids, -1, axis=1),
        schedule,
    )


def test_the_first_half_of_a_split_backward_goes_through_an_embedding_down_to_the_ids():
    """Else the whole first stage would count as weight-side, and all its work would
    wait for W.
    """
    model = nn.Sequential(nn.Embedding(6, 4), nn.Tanh()).initialise(0)
    ids = Tensor(np.array([0, 5, 5]))
    ids.node = StageInput(needs_gradient=False)
    result, upstream = model(ids), np.full((3, 4), 2.0, np.float32)
    slope = 1 - result.numpy() ** 2
    work = backward_input({result.node: upstream})
    # tanh is behind us already
    assert any(
        np.allclose(array, upstream * slope) for array in work.postponed.values()
    )
    assert not any(
        np.shares_memory(array, result.numpy()) for array in work.postponed.values()
    )
    work.run()
    expected = np.zeros((6, 4), np.float32)
    np.add.at(expected, [0, 5, 5], upstream * slope)
    np.testing.assert_allclose(model[0].weight.grad, expected, rtol=1e-6)


# -- first values ----------------------------------------------------------------------

SHAPE = (200, 300)
LAWS = {
    "normal": (initialisers.normal(0.02), 0.02, math.inf),
    "uniform": (initialisers.uniform(-3.0, 3.0), math.sqrt(3), 3.0),
    "truncated_normal": (initialisers.truncated_normal(0.5), 0.5 * 0.87963, 1.0),
    "he_uniform": (
        initialisers.he_uniform(200),
        math.sqrt(2 / 200),
        math.sqrt(6 / 200),
    ),
    "he_normal": (initialisers.he_normal(200), math.sqrt(2 / 200), math.inf),
    "glorot_uniform": (
        initialisers.glorot_uniform(200, 300),
        math.sqrt(2 / 500),
        math.sqrt(6 / 500),
    ),
    "glorot_normal": (
        initialisers.glorot_normal(200, 300),
        math.sqrt(2 / 500),
        math.inf,
    ),
    "lecun_normal": (initialisers.lecun_normal(200), math.sqrt(1 / 200), math.inf),
}


def test_every_initialiser_has_its_law_in_the_table():
    others = {"Initialiser", "constant", "generator_for"}
    assert set(initialisers.__all__) - others == set(LAWS)


@pytest.mark.parametrize("draw, std, bound", LAWS.values(), ids=LAWS)
def test_first_values_have_the_mean_the_deviation_and_the_bound_of_their_law(
    draw, std, bound
):
    values = draw(initialisers.generator_for(0, "weight"), SHAPE)
    assert values.shape == SHAPE
    assert abs(values.mean()) < 5 * std / math.sqrt(values.size)
    assert values.std() == pytest.approx(std, rel=0.02)
    assert np.abs(values).max() <= bound
    if math.isfinite(bound):
        assert np.abs(values).max() > 0.99 * bound
    else:
        # has the tails of a normal distribution
        assert np.abs(values).max() > 3.5 * std
    again = draw(initialisers.generator_for(0, "weight"), SHAPE)
    np.testing.assert_array_equal(values, again)


@pytest.mark.parametrize("fan_in", [1, 0])
@pytest.mark.parametrize(
    ("law", "variance"),
    [
        (initialisers.he_uniform, 2),
        (initialisers.he_normal, 2),
        (lambda fan_in: initialisers.glorot_uniform(fan_in, 0), 2),
        (lambda fan_in: initialisers.glorot_normal(fan_in, 0), 2),
        (initialisers.lecun_normal, 1),
    ],
)
def test_no_input_has_the_law_of_one(law, variance, fan_in):
    values = law(fan_in)(initialisers.generator_for(0, "weight"), SHAPE)
    assert values.std() == pytest.approx(math.sqrt(variance), rel=0.02)


@pytest.mark.parametrize("shape", [(), (0,), (3,)])
@pytest.mark.parametrize("draw, std, bound", LAWS.values(), ids=LAWS)
def test_first_values_come_in_any_shape(draw, std, bound, shape):
    assert np.shape(draw(initialisers.generator_for(0, "weight"), shape)) == shape


@pytest.mark.parametrize("make", [nn.Embedding, nn.PositionalEmbedding])
def test_tables_begin_normal_with_deviation_two_hundredths_or_as_told(make):
    weight = make(300, 200).initialise(0).weight.numpy()
    assert weight.std() == pytest.approx(0.02, rel=0.02) and abs(weight.mean()) < 1e-3
    assert np.abs(weight).max() > 0.07
    told = make(300, 200, initialiser=initialisers.constant(2.0)).initialise(0)
    assert (told.weight.numpy() == 2.0).all()


@pytest.mark.parametrize("make", [nn.LayerNorm, nn.RMSNorm])
def test_normalisation_begins_as_nothing_but_normalisation(make):
    layer = make(5).initialise(3)
    assert layer.weight.numpy().tolist() == [1.0] * 5
    assert (
        getattr(layer, "bias", None) is None or layer.bias.numpy().tolist() == [0.0] * 5
    )


def test_he_keeps_the_variance_through_relus_and_lecun_through_plain_products():
    generator = np.random.default_rng(0)
    laws = (
        (initialisers.he_normal(256), lambda a: np.maximum(a, 0)),
        (initialisers.lecun_normal(256), lambda a: a),
    )
    for draw, activation in laws:
        x = draw(generator, (256, 256)) @ draw(generator, (256, 256))
        y = x
        for _ in range(8):
            y = activation(y) @ draw(generator, (256, 256))
        assert 0.5 < y.var() / x.var() < 2


def test_a_layer_norm_without_a_bias_is_refused_and_no_rms_norm():
    ones = Tensor(np.ones(3))
    with pytest.raises(
        TensorError,
        match=r"layer_norm: input has shape \(2, 3\), weight \(3,\), bias \(\)",
    ):
        functional.layer_norm(Tensor(np.ones((2, 3))), ones, None)

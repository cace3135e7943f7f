"""A layer that replaces another, in ``parallelise`` and ``fully_shard``, keeps all of
its attributes.
"""

import numpy as np
import pytest

from minipipe import Grid, Pipeline, Tensor, nn, random_key, spawn
from minipipe.testing import same_bits
from tests.launch import for_each

F8 = {"dtype": np.float64}
WIDTH = 8


def attention(**options):
    return nn.MultiHeadAttention(
        WIDTH,
        4,
        True,
        dropout=0.25,
        num_key_value_heads=2,
        rotary_base=100.0,
        **options,
    )


def pair(**options):
    layers = [
        nn.Linear(WIDTH, 16, initialiser=nn.initialisers.normal(0.5), **options),
        nn.GELU(approximate=True),
    ]
    return nn.Sequential(*layers, nn.Linear(16, WIDTH, bias=False, **options))


def tied(**options):
    embedding = nn.Embedding(
        6, WIDTH, initialiser=nn.initialisers.normal(0.3), **options
    )
    return nn.Sequential(embedding, nn.Unembedding(embedding))


MODELS = {
    "attention": lambda: nn.Sequential(attention(**F8)),
    "attention in half precision": lambda: nn.Sequential(attention(dtype=np.float16)),
    "two linear layers": lambda: pair(**F8),
    "an embedding and its scores": lambda: tied(**F8),
    "a block": lambda: nn.Sequential(
        nn.TransformerBlock(WIDTH, 4, dropout=0.1, attention_dropout=0.2, **F8)
    ),
    "a decoder": lambda: nn.Sequential(
        nn.DecoderBlock(WIDTH, 4, attention_dropout=0.2, **F8)
    ),
    "a recomputed block": lambda: nn.Sequential(
        nn.Recompute(nn.TransformerBlock(WIDTH, 4, **F8))
    ),
}


def change_everything(model):
    """Change whatever a user can change in a layer: its mode, its values, what is
    trained, and notes of one's own.
    """
    for number, module in enumerate(model.modules()):
        module.is_training = bool(number % 3)
        module.note = {"number": number}
        module.tags = ["a", number]
    for number, parameter in enumerate(model.parameters()):
        parameter.requires_grad = bool(number % 2)
    return model


def evaluated_in_part(model):
    model.initialise(3)
    for module in list(model.modules())[1:]:
        module.eval()
    return model


CHANGES = {
    "as made": lambda model: model,
    "changed": change_everything,
    "with values": evaluated_in_part,
}
OF_A_PART = {
    "_described",
    "_is_filled",
    "shard",
    "gather",
    "num_heads",
    "num_key_value_heads",
    "layers",
    "module",
}


def attributes(module):
    """Return the attributes that a replaced layer keeps: all but its parts, and what
    counts those.
    """
    held = {
        name: value for name, value in vars(module).items() if name not in OF_A_PART
    }
    return {
        name: v
        for name, v in held.items()
        if not isinstance(v, nn.Module | nn.Parameter | list | dict)
    } | {name: held[name] for name in ("note", "tags") if name in held}


def kept(parameter):
    first = (
        None
        if parameter.initialiser is None
        else parameter.initialiser(np.random.default_rng(0), (4, 8))
    )
    return (
        parameter.dtype,
        parameter.requires_grad,
        parameter.is_filled,
        parameter.whole_shape,
        first,
    )


def assert_kept(plain, own):
    names = [name for name, _ in plain.named_parameters()]
    assert [name for name, _ in own.named_parameters()] == names
    for one, other in zip(plain.modules(), own.modules(), strict=True):
        assert attributes(one) == attributes(other)
        assert one.is_training == other.is_training
    for one, other in zip(plain.parameters(), own.parameters(), strict=True):
        np.testing.assert_equal(kept(one), kept(other))
    if all(parameter.is_filled for parameter in plain.parameters()):
        found = own.state_dict()
        assert all(
            same_bits(found[name], value) for name, value in plain.state_dict().items()
        )


@pytest.mark.parametrize("change", CHANGES.values(), ids=CHANGES)
@for_each(make=MODELS)
def test_a_divided_layer_keeps_all_attributes(make, change):
    plain = change(make())

    def divide(group):
        own = nn.parallelise(plain, group)
        assert own.num_parameters < plain.num_parameters  # something was divided
        assert_kept(plain, own)

    spawn(divide, 2)


def without_shares(model):
    """Yield the modules of a model, without those that stand around another one."""
    return [
        module for module in model.modules() if not isinstance(module, nn.FullySharded)
    ]


@pytest.mark.parametrize("change", CHANGES.values(), ids=CHANGES)
@for_each(make=MODELS)
def test_a_sharded_layer_keeps_all_attributes(make, change):
    plain = change(make())

    def shard(group):
        own = nn.fully_shard(plain, group)
        for one, other in zip(plain.modules(), without_shares(own), strict=True):
            assert attributes(one) == attributes(other)
        for one, other in zip(plain.layers, own.layers, strict=True):
            if isinstance(other, nn.FullySharded):
                assert other.is_training == one.is_training
                assert [getattr(other, name, None) for name in ("note", "tags")] == [
                    getattr(one, name, None) for name in ("note", "tags")
                ]
        assert list(map(kept, plain.parameters())) is not None
        for one, other in zip(plain.parameters(), own.parameters(), strict=True):
            np.testing.assert_equal(kept(one), kept(other))

    spawn(shard, 2)


def test_attention_in_evaluation_draws_nothing():
    """The case that was reported: one layer of a model in training is in evaluation."""
    x, y = np.random.default_rng(0).standard_normal((2, 4, 3, WIDTH))

    def loss(where):
        block = nn.TransformerBlock(WIDTH, 4, attention_dropout=0.5, **F8)
        block.attention.layers[1].eval()
        pipeline = Pipeline(
            nn.Sequential(block), where, loss=nn.MSELoss(), num_microbatches=2
        )
        return float(pipeline.step(x, y))

    (plain,) = spawn(loss, 1)
    for grid in ({"tensor": 2}, {"data": 2, "fully_sharded": True}):
        assert spawn(
            lambda group, grid=grid: loss(Grid(group, **grid)), 2
        ) == pytest.approx([plain] * 2, rel=1e-12)


def test_layers_divided_by_hand_keep_all_attributes():
    def divide(group):
        linear = change_everything(nn.Linear(WIDTH, WIDTH, **F8))
        for kind in (nn.ColumnParallelLinear, nn.RowParallelLinear):
            own = kind(linear, group)
            assert attributes(own) == attributes(linear) and own.note == {"number": 0}
        heads = change_everything(attention())
        assert nn.ParallelAttention(heads, group).projections.note == {"number": 1}
        assert (
            nn.ParallelEmbedding(nn.Embedding(6, 4).eval(), group).is_training is False
        )

    spawn(divide, 2)


def test_dropout_of_a_divided_model_in_evaluation_is_off():
    x = np.random.default_rng(0).standard_normal((4, 3, WIDTH))
    plain = nn.Sequential(attention(**F8)).initialise(0).eval()
    with random_key(0):
        expected = plain(Tensor(x)).numpy()

    def compute(group):
        with random_key(0):
            return nn.parallelise(plain, group)(Tensor(x)).numpy()

    for found in spawn(compute, 2):
        assert np.allclose(found, expected, rtol=1e-12, atol=1e-12)

"""Tensor parallelism divides layers whose code is known, and leaves whole what has code
of its own.
"""

import copy
from types import MethodType

import numpy as np
import pytest

from minipipe import Grid, Pipeline, Tensor, functional, nn, spawn
from minipipe.core.nn.module import computes_as
from minipipe.errors import ArgumentError
from tests.launch import for_each

SYMBOLS, WIDTH, LENGTH = 8, 8, 4
IDS = np.random.default_rng(0).integers(0, SYMBOLS, (4, LENGTH))
NEXT = np.roll(IDS, 1, axis=1)
F8 = {"dtype": np.float64}


def linear(kind=nn.Linear, outputs=WIDTH):
    return kind(WIDTH, outputs, **F8)


def patched(layer, change):
    """Return a layer whose instance has another forward: a change of the result of its
    class's.
    """
    layer.forward = MethodType(
        lambda own, *inputs, **options: change(
            type(own).forward(own, *inputs, **options)
        ),
        layer,
    )
    return layer


def doubled(x):
    return x * 2.0


def mixed(x):
    """Not elementwise: each feature depends on its neighbour."""
    return functional.concatenate([x[..., 1:], x[..., :1]], axis=-1) * 0.5


def subclass_of(kind, change=doubled, **attributes):
    def forward(self, *inputs, **options):
        return change(kind.forward(self, *inputs, **options))

    return type(f"My{kind.__name__}", (kind,), {"forward": forward, **attributes})


class Scaled(nn.Linear):
    """A linear layer with a parameter more."""

    def __init__(self, *given, **options):
        super().__init__(*given, **options)
        self.scale = nn.Parameter(np.linspace(0.5, 1.5, self.weight.shape[1]))

    def forward(self, x):
        return super().forward(x) * self.scale


class Looking(nn.Module):
    """Looks at weights of the layers inside, and at values between them."""

    def __init__(self):
        self.table = nn.Embedding(SYMBOLS, WIDTH, **F8)
        self.network = nn.Sequential(linear(), nn.Tanh(), linear())

    def forward(self, x):
        first, second, third = self.network
        inner = second(first(x))
        return (
            functional.softmax(inner) @ functional.transpose(third.weight)
            + (x @ self.table.weight.T) @ third.weight
        )


class Recurring(nn.Sequential):
    def forward(self, x):
        for layer in self:
            x = x + layer(x)
        return x


def hooked(sequence):
    sequence.layer_hook = lambda number, x: (
        x - functional.mean(x, axis=-1, keepdims=True)
    )
    return sequence


def with_attention(attention):
    block = nn.TransformerBlock(WIDTH, 2, **F8)
    block.attention.layers.layers[1] = attention
    return block


def with_part(attention, name, part):
    setattr(attention, name, part)
    return attention


def constant():
    return Tensor(np.random.default_rng(0).standard_normal((WIDTH, WIDTH)))


def attention(kind=nn.MultiHeadAttention):
    return kind(WIDTH, 2, **F8)


def pair(*between):
    return nn.Sequential(
        linear(outputs=2 * WIDTH), *between, nn.Linear(2 * WIDTH, WIDTH, **F8)
    )


class Tied(nn.Module):
    """Scores by the vectors of an embedding, used by hand."""

    def __init__(self, embedding):
        self.weight = embedding.weight

    def forward(self, x):
        return x @ self.weight.T


WHOLE = {  # layers between an embedding and a head
    "an attention of a subclass": lambda: [
        attention(subclass_of(nn.MultiHeadAttention))
    ],
    "an attention of a subclass in a block": lambda: [
        with_attention(attention(subclass_of(nn.MultiHeadAttention)))
    ],
    "a patched attention": lambda: [patched(attention(), doubled)],
    "a patched attention in a block": lambda: [
        with_attention(patched(attention(), doubled))
    ],
    "projections of a subclass": lambda: [
        with_part(attention(), "projections", linear(subclass_of(nn.Linear), 3 * WIDTH))
    ],
    "a patched output": lambda: [
        with_part(attention(), "output", patched(linear(), doubled))
    ],
    "a first linear of a subclass": lambda: [linear(Scaled), nn.ReLU(), linear()],
    "a second linear of a subclass": lambda: [
        nn.Sequential(linear(), nn.ReLU(), linear(Scaled))
    ],
    "a patched first linear": lambda: [patched(linear(), doubled), nn.ReLU(), linear()],
    "a patched second linear": lambda: [
        linear(),
        nn.ReLU(),
        patched(linear(), doubled),
    ],
    "an activation of a subclass": lambda: [pair(subclass_of(nn.Tanh, mixed)())],
    "a patched activation": lambda: [pair(nn.Tanh(), patched(nn.ReLU(), mixed))],
    "a patched dropout": lambda: [pair(nn.Tanh(), patched(nn.Dropout(0.0), mixed))],
    "a function": lambda: [pair(nn.Function(mixed))],
    "a sequence with a forward of its own": lambda: [
        Recurring(linear(), nn.Tanh(), linear())
    ],
    "it in a residual": lambda: [nn.Residual(Recurring(linear(), nn.Tanh(), linear()))],
    "a patched sequence": lambda: [
        patched(nn.Sequential(linear(), nn.Tanh(), linear()), doubled)
    ],
    "a sequence with a hook": lambda: [
        hooked(nn.Sequential(linear(), nn.Tanh(), linear()))
    ],
    "a block of a subclass": lambda: [subclass_of(nn.TransformerBlock)(WIDTH, 2, **F8)],
    "a patched block": lambda: [patched(nn.TransformerBlock(WIDTH, 2, **F8), doubled)],
    "a patched network of a block": lambda: [
        with_part(
            nn.TransformerBlock(WIDTH, 2, **F8),
            "network",
            patched(nn.Residual(linear()), doubled),
        )
    ],
    "a weight that is no parameter": lambda: [
        with_part(linear(), "weight", constant()),
        nn.Tanh(),
        linear(),
    ],
    "it in an attention": lambda: [
        with_part(attention(), "output", with_part(linear(), "weight", constant()))
    ],
    "a recomputation of a subclass": lambda: [
        subclass_of(nn.Recompute)(nn.Sequential(linear(), nn.ReLU(), linear()))
    ],
    "a patched recomputation": lambda: [
        patched(nn.Recompute(nn.Sequential(linear(), nn.ReLU(), linear())), doubled)
    ],
    "a module that looks inside": lambda: [Looking()],
    "a module that looks inside, in a residual": lambda: [nn.Residual(Looking())],
}


def embedding(kind=nn.Embedding):
    return kind(SYMBOLS, WIDTH, **F8)


def tied(first, last):
    return nn.Sequential(first, nn.LayerNorm(WIDTH, **F8), last(first))


WHOLE_MODELS = {
    name: lambda made=made: nn.Sequential(embedding(), *made(), linear())
    for name, made in WHOLE.items()
} | {
    "an embedding of a subclass": lambda: nn.Sequential(
        embedding(subclass_of(nn.Embedding)), linear()
    ),
    "a patched embedding": lambda: nn.Sequential(
        patched(embedding(), doubled), linear()
    ),
    "a tied embedding of a subclass": lambda: tied(
        embedding(subclass_of(nn.Embedding)), nn.Unembedding
    ),
    "scores of a constant": lambda: nn.Sequential(
        one := embedding(), with_part(nn.Unembedding(one), "weight", constant())
    ),
    "scores of a subclass": lambda: tied(embedding(), subclass_of(nn.Unembedding)),
    "patched scores": lambda: tied(
        embedding(), lambda one: patched(nn.Unembedding(one), doubled)
    ),
    "an embedding whose vectors another layer uses": lambda: tied(embedding(), Tied),
    "an embedding in a list": lambda: nn.Sequential(
        InList(first := embedding()), nn.Unembedding(first)
    ),
}


class InList(nn.Module):
    def __init__(self, *layers):
        self.inside = list(layers)

    def forward(self, x):
        return self.inside[0](x)


def train(model, where):
    model.initialise(3)
    pipeline = Pipeline(model, where, loss=nn.CrossEntropyLoss(), num_microbatches=2)
    loss = pipeline.step(IDS, NEXT)
    norm = pipeline.clip_grad_norm(float("inf"))
    sizes = {name: p.shape == p.whole_shape for name, p in pipeline.named_parameters()}
    return loss, norm, pipeline.evaluate(IDS, NEXT), sizes


def both(make):
    (plain,) = spawn(lambda group: train(make(), group), 1)
    return plain, spawn(lambda group: train(make(), Grid(group, tensor=2)), 2)


def assert_alike(plain, found):
    for own in found:
        assert np.allclose(own[:3], plain[:3], rtol=1e-12, atol=1e-12)


@for_each(make=WHOLE_MODELS)
def test_code_of_ones_own_computes_as_in_the_plain_model(make):
    plain, found = both(make)
    assert_alike(plain, found)


def test_a_class_is_the_same_after_a_copy():
    """The copy module leaves a note in a class, which is no code."""
    kind = type("Mine", (nn.TransformerBlock,), {})
    copy.deepcopy([kind(WIDTH, 2), nn.TransformerBlock(WIDTH, 2)])
    assert "__slotnames__" in vars(kind) and computes_as(
        kind(WIDTH, 2), nn.TransformerBlock
    )


# -- what is divided -------------------------------------------------------------------


class Model(nn.Sequential):
    """A sequence that only sets itself up, and keeps its layers under a second name."""

    def __init__(self):
        self.table = embedding()
        self.network = nn.Sequential(linear(), nn.GELU(), linear())
        super().__init__(self.table, self.network, nn.Unembedding(self.table))


class Calling(nn.Module):
    """Does nothing with the layers inside but call them."""

    is_divisible = True

    def __init__(self):
        self.layers = [attention(), nn.Sequential(linear(), nn.Tanh(), linear())]

    def forward(self, x):
        return x + self.layers[1](self.layers[0](x))


DIVIDED = {  # a model, and names of parameters that are divided
    "a sequence without a forward of its own": (
        Model,
        ["0.weight", "1.0.weight", "1.2.weight"],
    ),
    "a module that only calls": (
        lambda: nn.Sequential(embedding(), Calling(), linear()),
        ["0.weight", "1.layers.0.output.weight", "1.layers.1.0.weight"],
    ),
    "a recomputed block": (
        lambda: nn.Sequential(embedding(), nn.Recompute(attention()), linear()),
        ["0.weight", "1.output.weight"],
    ),
    "a block of a subclass without a forward of its own": (
        lambda: nn.Sequential(
            embedding(),
            type("Mine", (nn.TransformerBlock,), {})(WIDTH, 2, **F8),
            linear(),
        ),
        ["1.attention.layers.1.output.weight", "1.network.layers.1.weight"],
    ),
    "layers that carry notes": (
        lambda: nn.Sequential(
            embedding(), with_part(attention(), "note", "mine"), linear()
        ),
        ["1.output.weight"],
    ),
}


@for_each(case=DIVIDED)
def test_what_is_known_is_divided_and_computes_as_in_the_plain_model(case):
    make, divided = case
    plain, found = both(make)
    assert_alike(plain, found)
    for _, _, _, sizes in found:
        assert sizes.keys() == plain[3].keys()
        assert [name for name in divided if sizes[name]] == []


def test_a_second_name_of_a_layer_stands_for_the_divided_one():
    def look(group):
        model = nn.parallelise(Model(), group)
        return model.table is model.layers[0] and model.network is model.layers[1]

    assert spawn(look, 2) == [True, True]


# -- refused ---------------------------------------------------------------------------


@for_each(
    case={
        "a linear of a subclass": lambda group: nn.ColumnParallelLinear(
            linear(Scaled), group
        ),
        "a patched linear": lambda group: nn.RowParallelLinear(
            patched(linear(), doubled), group
        ),
        "an attention of a subclass": lambda group: nn.ParallelAttention(
            attention(subclass_of(nn.MultiHeadAttention)), group
        ),
        "an attention with a part of a subclass": lambda group: nn.ParallelAttention(
            with_part(attention(), "output", linear(Scaled)), group
        ),
        "an embedding of a subclass": lambda group: nn.ParallelEmbedding(
            embedding(subclass_of(nn.Embedding)), group
        ),
    }
)
def test_a_layer_with_code_of_its_own_cannot_be_divided_by_hand(case):
    with pytest.raises(ArgumentError, match="has code of its own") as caught:
        spawn(case, 2)
    assert caught.value.code == "type"


@for_each(
    case={
        "another layer": (
            lambda group: nn.ColumnParallelLinear(nn.Tanh(), group),
            "takes an nn.Linear",
        ),
        "a divided parameter": (
            lambda group: nn.ParallelEmbedding(
                with_part(embedding(), "weight", shared_weight(group)), group
            ),
            "A ShardedParameter cannot be divided",
        ),
        "a weight that is no parameter": (
            lambda group: nn.RowParallelLinear(
                with_part(linear(), "weight", constant()), group
            ),
            "A Tensor cannot be divided; expected a whole nn.Parameter",
        ),
        "a sharded model": (
            lambda group: nn.parallelise(
                nn.fully_shard(nn.Sequential(linear()), group), group
            ),
            "Fully sharded layers",
        ),
    }
)
def test_what_has_no_whole_parameters_cannot_be_divided(case):
    make, words = case
    with pytest.raises(ArgumentError, match=words):
        spawn(make, 2)


def shared_weight(group):
    weight = nn.ParallelEmbedding(embedding(), group).weight
    weight.is_placed = False
    return weight

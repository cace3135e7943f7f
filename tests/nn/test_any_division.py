"""Any model, some of whose layers have code of their own, computes on shared layers as
on whole ones.
"""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from minipipe import Grid, Pipeline, nn, spawn
from tests.nn.test_dividing import (
    F8,
    IDS,
    NEXT,
    SYMBOLS,
    WIDTH,
    Calling,
    Looking,
    Recurring,
    attention,
    doubled,
    linear,
    mixed,
    patched,
    subclass_of,
)
from tests.strategies import examples

LEAVES = {
    "linear": linear,
    "attention": attention,
    "attention in evaluation": lambda: nn.MultiHeadAttention(
        WIDTH, 2, dropout=0.4, **F8
    ).eval(),
    "block": lambda: nn.TransformerBlock(WIDTH, 2, attention_dropout=0.3, **F8),
    "looking": Looking,
    "calling": Calling,
    "tanh": nn.Tanh,
    "gelu": nn.GELU,
    "mixed": lambda: subclass_of(nn.Tanh, mixed)(),
    "dropout": lambda: nn.Dropout(0.3),
    "norm": lambda: nn.LayerNorm(WIDTH, **F8),
}
CONTAINERS = {
    "sequence": lambda inside: nn.Sequential(*inside),
    "residual": lambda inside: nn.Residual(*inside),
    "recomputed": lambda inside: nn.Recompute(nn.Sequential(*inside)),
    "recurring": lambda inside: Recurring(*inside),
    "network": lambda inside: nn.Sequential(
        linear(outputs=16), *inside[:0], nn.ReLU(), nn.Linear(16, WIDTH, **F8)
    ),
}


@st.composite
def layers(draw, depth=2):
    """Draw a function that makes a layer which keeps the shape; some are patched,
    frozen or in evaluation.
    """
    kinds = list(LEAVES) + (list(CONTAINERS) if depth else [])
    kind = draw(st.sampled_from(kinds))
    inside = (
        draw(st.lists(layers(depth - 1), min_size=1, max_size=3))
        if kind in CONTAINERS
        else []
    )
    change = draw(st.sampled_from(["", "", "", "patched", "frozen", "evaluated"]))

    def make():
        layer = (
            CONTAINERS[kind]([one() for one in inside])
            if kind in CONTAINERS
            else LEAVES[kind]()
        )
        if change == "patched":
            return patched(layer, doubled)
        return {"frozen": layer.freeze, "evaluated": layer.eval, "": lambda: layer}[
            change
        ]()

    make.text = f"{change} {kind}({', '.join(one.text for one in inside)})"
    return make


def train(make_layers, is_tied, where):
    embedding = nn.Embedding(SYMBOLS, WIDTH, **F8)
    head = nn.Unembedding(embedding) if is_tied else linear()
    model = nn.Sequential(
        embedding, *(make() for make in make_layers), nn.LayerNorm(WIDTH, **F8), head
    )
    count = 2 // where.data.size if isinstance(where, Grid) else 2
    pipeline = Pipeline(
        model.initialise(1), where, loss=nn.CrossEntropyLoss(), num_microbatches=count
    )
    loss = pipeline.step(IDS, NEXT)
    gradients = {name: (p.grad, p.joined) for name, p in pipeline.named_parameters()}
    whole = {
        name: None if grad is None else joined(grad)
        for name, (grad, joined) in gradients.items()
    }
    return loss, whole, pipeline.predict(IDS)


def check(make_layers, is_tied, sizes):
    (plain,) = spawn(lambda group: train(make_layers, is_tied, group), 1)
    for loss, gradients, outputs in spawn(
        lambda group: train(make_layers, is_tied, Grid(group, **sizes)), 2
    ):
        assert np.allclose(loss, plain[0], rtol=1e-11, atol=1e-11)
        assert np.allclose(outputs, plain[2], rtol=1e-9, atol=1e-9)
        assert gradients.keys() == plain[1].keys()
        for name, expected in plain[1].items():
            found = gradients[name]
            assert (found is None) == (expected is None), name
            scale = 1.0 if expected is None else 1.0 + float(np.abs(expected).max())
            assert found is None or np.allclose(
                found, expected, rtol=1e-9, atol=1e-11 * scale
            ), name


ANY = {
    "make_layers": st.lists(layers(), min_size=1, max_size=3),
    "is_tied": st.booleans(),
}


@pytest.mark.filterwarnings("ignore:The first step left no gradient")
@examples(12)
@given(**ANY)
def test_any_model_on_shared_layers_computes_as_the_plain_one(make_layers, is_tied):
    check(make_layers, is_tied, {"tensor": 2})


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:The first step left no gradient")
@examples(150)
@given(**ANY)
def test_many_models_on_shared_layers_compute_as_the_plain_one(make_layers, is_tied):
    check(make_layers, is_tied, {"tensor": 2})


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:The first step left no gradient")
@examples(60)
@given(make_layers=st.lists(layers(), min_size=1, max_size=3))
def test_many_models_with_fully_sharded_layers_compute_as_the_plain_one(make_layers):
    """With one microbatch for each replica; a model without Recompute inside of a
    layer.
    """
    text = " ".join(make.text for make in make_layers)
    if "recomputed(" not in text:
        check_sharded(make_layers)


def check_sharded(make_layers):
    check(make_layers, False, {"data": 2, "fully_sharded": True})

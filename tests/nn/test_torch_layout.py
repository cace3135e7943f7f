"""The weights of PyTorch's layers under the names and with the axes that they have
here.
"""

import numpy as np
import pytest

from minipipe import nn
from minipipe.errors import ArgumentError, ParameterError
from minipipe.nn.torch_layout import from_torch, undecided
from tests.launch import for_each
from tests.nn.one_of_each import MODULES, OVER_RANKS, filled

SQUARE = np.arange(9, dtype=np.float32).reshape(3, 3)
# By layer: how it is made, and the shapes of its arrays in PyTorch.
# tests/numerics/test_weights_against_torch.py has PyTorch's own.
ATTENTION = {
    "in_proj_weight": (12, 4),
    "in_proj_bias": (12,),
    "out_proj.weight": (4, 4),
    "out_proj.bias": (4,),
}


def under(prefix, shapes):
    return {f"{prefix}.{name}": shape for name, shape in shapes.items()}


NORM = {"weight": (4,), "bias": (4,)}
NETWORK = {
    "linear1.weight": (5, 4),
    "linear1.bias": (5,),
    "linear2.weight": (4, 5),
    "linear2.bias": (4,),
}
SHAPES = {
    "Linear": (lambda: nn.Linear(3, 2), {"weight": (2, 3), "bias": (2,)}),
    "LSTM": (
        lambda: nn.LSTM(3, 2),
        {
            "weight_ih_l0": (8, 3),
            "weight_hh_l0": (8, 2),
            "bias_ih_l0": (8,),
            "bias_hh_l0": (8,),
        },
    ),
    "LSTM without bias": (
        lambda: nn.LSTM(3, 2, bias=False),
        {"weight_ih_l0": (8, 3), "weight_hh_l0": (8, 2)},
    ),
    "attention": (lambda: nn.MultiHeadAttention(4, 2), ATTENTION),
    "cross-attention": (lambda: nn.CrossAttention(4, 2), ATTENTION),
    "a narrow memory": (
        lambda: nn.CrossAttention(4, 2, memory_width=3),
        {
            **{
                name: shape
                for name, shape in ATTENTION.items()
                if name != "in_proj_weight"
            },
            **{
                "q_proj_weight": (4, 4),
                "k_proj_weight": (4, 3),
                "v_proj_weight": (4, 3),
            },
        },
    ),
    "encoder": (
        lambda: nn.TransformerBlock(4, 2, hidden=5),
        {
            **under("self_attn", ATTENTION),
            **under("norm1", NORM),
            **under("norm2", NORM),
            **NETWORK,
        },
    ),
    "decoder": (
        lambda: nn.DecoderBlock(4, 2, hidden=5),
        {
            **under("self_attn", ATTENTION),
            **under("multihead_attn", ATTENTION),
            **under("norm1", NORM),
            **under("norm2", NORM),
            **under("norm3", NORM),
            **NETWORK,
        },
    ),
}
# What each of our parameters is of theirs, where it has another name.
MADE_OF = {
    "LSTM": {
        "input_weight": lambda theirs: theirs["weight_ih_l0"].T,
        "hidden_weight": lambda theirs: theirs["weight_hh_l0"].T,
        "bias": lambda theirs: theirs["bias_ih_l0"] + theirs["bias_hh_l0"],
    },
    "attention": {
        "projections.weight": lambda theirs: theirs["in_proj_weight"].T,
        "projections.bias": lambda theirs: theirs["in_proj_bias"],
        "output.weight": lambda theirs: theirs["out_proj.weight"].T,
        "output.bias": lambda theirs: theirs["out_proj.bias"],
    },
    "cross-attention": {
        "queries.weight": lambda theirs: theirs["in_proj_weight"][:4].T,
        "queries.bias": lambda theirs: theirs["in_proj_bias"][:4],
        "projections.weight": lambda theirs: theirs["in_proj_weight"][4:].T,
        "projections.bias": lambda theirs: theirs["in_proj_bias"][4:],
        "output.weight": lambda theirs: theirs["out_proj.weight"].T,
        "output.bias": lambda theirs: theirs["out_proj.bias"],
    },
    "a narrow memory": {
        "queries.weight": lambda theirs: theirs["q_proj_weight"].T,
        "projections.weight": lambda theirs: np.hstack(
            [theirs["k_proj_weight"].T, theirs["v_proj_weight"].T]
        ),
        "projections.bias": lambda theirs: theirs["in_proj_bias"][4:],
    },
    "encoder": {
        "attention.layers.0.weight": lambda theirs: theirs["norm1.weight"],
        "attention.layers.1.output.weight": lambda theirs: (
            theirs["self_attn.out_proj.weight"].T
        ),
        "network.layers.0.bias": lambda theirs: theirs["norm2.bias"],
        "network.layers.1.weight": lambda theirs: theirs["linear1.weight"].T,
        "network.layers.3.bias": lambda theirs: theirs["linear2.bias"],
    },
    "decoder": {
        "attention.layers.1.projections.weight": lambda theirs: (
            theirs["self_attn.in_proj_weight"].T
        ),
        "cross_attention.layers.0.weight": lambda theirs: theirs["norm2.weight"],
        "cross_attention.layers.1.queries.weight": lambda theirs: (
            theirs["multihead_attn.in_proj_weight"][:4].T
        ),
        "network.layers.0.weight": lambda theirs: theirs["norm3.weight"],
        "network.layers.3.weight": lambda theirs: theirs["linear2.weight"].T,
    },
}


def in_torch(case):
    """Return the layer, and a state of it in PyTorch with numbers that are all
    different.
    """
    make, shapes = SHAPES[case]
    generator = np.random.default_rng(0)
    return make(), {
        name: generator.random(shape).astype(np.float32)
        for name, shape in shapes.items()
    }


@pytest.mark.parametrize("case", SHAPES)
def test_every_parameter_of_a_layer_is_found_in_pytorchs_and_nothing_is_left(case):
    layer, theirs = in_torch(case)
    found = from_torch(layer, theirs)
    assert {name: array.shape for name, array in found.items()} == {
        name: parameter.shape for name, parameter in layer.named_parameters()
    }
    layer.load_state_dict(found)
    # A sum of two biases aside, the numbers are the same.
    if not case.startswith("LSTM"):
        flat = [
            np.sort(np.concatenate([array.ravel() for array in state.values()]))
            for state in (found, theirs)
        ]
        assert (flat[0] == flat[1]).all()


@pytest.mark.parametrize("case", MADE_OF)
def test_a_parameter_is_made_of_pytorchs_arrays(case):
    layer, theirs = in_torch(case)
    found = from_torch(
        nn.Sequential(layer), {f"0.{name}": array for name, array in theirs.items()}
    )
    for name, make in MADE_OF[case].items():
        assert (found[f"0.{name}"] == make(theirs)).all(), name


@pytest.mark.parametrize("case", SHAPES)
def test_each_array_that_is_missing_is_named_and_so_is_each_that_is_too_many(case):
    layer, theirs = in_torch(case)
    for name in theirs:
        if "norm1" in name or "in_proj" in name:
            continue  # these tell which names are PyTorch's
        with pytest.raises(ParameterError, match=rf"missing: {name} \(for ") as caught:
            from_torch(
                layer,
                {other: array for other, array in theirs.items() if other != name},
            )
        assert caught.value.code == "missing"
    with pytest.raises(
        ParameterError, match=r"unexpected: y0, y1, y2, y3, y4, y5, y6, y7\.$"
    ) as caught:
        from_torch(
            layer, {**theirs, **{f"y{number}": SQUARE for number in reversed(range(8))}}
        )
    assert caught.value.code == "unexpected"


@pytest.mark.parametrize(
    "make",
    [lambda: nn.MultiHeadAttention(4, 2), lambda: nn.TransformerBlock(4, 2, hidden=4)],
)
def test_a_module_of_pytorchs_that_is_built_like_ours_keeps_our_names_and_has_its_linear_weights_turned(
    make,
):
    layer = filled(make())
    turned = {
        name: array.T if array.ndim == 2 else array
        for name, array in layer.state_dict().items()
    }
    found = from_torch(layer, turned)
    assert all(
        (found[name] == array).all() for name, array in layer.state_dict().items()
    )


def test_wrappers_have_the_names_of_what_is_inside():
    theirs = {
        "0.layer.weight": SQUARE,
        "1.weight": 2 * SQUARE,
        "2.layers.0.weight": 3 * SQUARE,
    }
    on, recomputed, inner = (nn.Linear(3, 3, bias=False) for _ in range(3))
    model = nn.Sequential(nn.On("x", on), nn.Recompute(recomputed), nn.Residual(inner))
    found = from_torch(model, theirs)
    assert {
        name: (found[name] == values.T).all() for name, values in theirs.items()
    } == dict.fromkeys(theirs, True)


class Scaled(nn.Recompute):
    """A wrapper with a parameter of its own."""

    def __init__(self, module):
        super().__init__(module)
        self.scale = nn.Parameter(SQUARE[0])

    def forward(self, x):
        return super().forward(x) * self.scale


def test_a_wrapper_with_a_parameter_has_it_beside_those_of_what_is_inside():
    model = nn.Sequential(
        Scaled(nn.Sequential(nn.Linear(3, 3, bias=False), nn.Linear(3, 3, bias=False)))
    )
    theirs = {"0.0.weight": SQUARE, "0.1.weight": SQUARE, "0.scale": SQUARE[1]}
    found = from_torch(model, theirs)
    assert (found["0.0.weight"] == SQUARE.T).all() and (
        found["0.scale"] == SQUARE[1]
    ).all()
    assert undecided(model, theirs) == ["0.0.weight", "0.1.weight"]


def tied():
    embedding = nn.Embedding(3, 3)
    return nn.Sequential(
        embedding, nn.Linear(3, 3, bias=False), nn.Unembedding(embedding)
    )


def test_a_tied_parameter_is_one_and_two_arrays_for_it_must_be_equal():
    own = {"1.weight": 2 * SQUARE}
    unknown = np.full((3, 3), np.nan, np.float32)
    assert np.isnan(
        from_torch(tied(), {**own, "0.weight": unknown, "2.weight": unknown.copy()})[
            "0.weight"
        ]
    ).all()
    for theirs in (
        {"0.weight": SQUARE},
        {"2.weight": SQUARE},
        {"0.weight": SQUARE, "2.weight": SQUARE.copy()},
    ):
        found = from_torch(tied(), {**own, **theirs})
        assert (
            found.keys() == {"0.weight", "1.weight"}
            and (found["0.weight"] == SQUARE).all()
        )
    with pytest.raises(
        ParameterError, match=r"0\.weight and 2\.weight are one parameter"
    ) as caught:
        from_torch(tied(), {**own, "0.weight": SQUARE, "2.weight": SQUARE + 1})
    assert caught.value.code == "shape"
    with pytest.raises(
        ParameterError, match=r"missing: 0\.weight \(for 0\.weight\)\.$"
    ):
        from_torch(tied(), own)


class Own(nn.Module):
    """A module of one's own."""

    def __init__(self, *shape):
        self.table = nn.Parameter(np.ones(shape))


def test_a_matrix_of_a_module_of_ones_own_is_refused_unless_it_is_to_be_taken_as_it_is():
    assert (from_torch(Own(3), {"table": SQUARE[0]})["table"] == SQUARE[0]).all()
    with pytest.raises(
        ArgumentError,
        match="table belongs to Own, whose counterpart in PyTorch is not known",
    ):
        from_torch(Own(3, 3), {"table": SQUARE})
    assert from_torch(Own(3, 3), {"table": SQUARE}, is_strict=False)["table"] is SQUARE


def test_what_no_shape_decides_is_listed():
    model = nn.Sequential(
        nn.Linear(3, 3), nn.Embedding(3, 3), nn.Linear(3, 3, bias=False)
    )
    state = {
        "0.weight": SQUARE,
        "0.bias": SQUARE[0],
        "1.weight": SQUARE,
        "2.weight": np.eye(3, dtype=np.float32),
    }
    assert undecided(model, state) == ["0.weight"]
    assert undecided(model, {**state, "2.weight": SQUARE + 1}) == [
        "0.weight",
        "2.weight",
    ]
    told = nn.Sequential(*model, nn.Linear(3, 2, bias=False))
    assert undecided(told, {**state, "3.weight": np.ones((3, 2), np.float32)}) == []
    assert undecided(nn.LSTM(3, 2), nn.LSTM(3, 2).initialise(0).state_dict()) == []


class Projected(nn.Linear):
    """A linear layer of one's own, whose weight has the axes of its base."""


def test_a_subclass_of_a_layer_has_its_layout():
    assert (
        from_torch(Projected(3, 3, bias=False), {"weight": SQUARE})["weight"]
        == SQUARE.T
    ).all()


KINDS = {
    kind: make
    for kind, make in {**MODULES, **OVER_RANKS}.items()
    if issubclass(kind, nn.Module)
}


@for_each(kind=list(KINDS))
def test_every_layer_has_a_layout_in_pytorch(kind):
    """A new layer of minipipe's needs a rule: one without is refused as if it were
    somebody's own.
    """
    model = filled((KINDS[kind] or kind)())
    if not any(True for _ in model.parameters()):
        assert from_torch(model, {}) == {}
    else:
        with pytest.raises(ParameterError, match="missing"):
            from_torch(model, {})

"""Layers of several inputs: which entries they get, where the result goes, and what is
said where that cannot be.
"""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from minipipe import Tensor, nn, random_key
from minipipe.errors import ArgumentError
from tests.strategies import examples


class Weigh(nn.Module):
    """a + factor * b: of two inputs that it does not treat alike."""

    def __init__(self, factor: float = 10.0) -> None:
        self.factor = factor

    def forward(self, a: Tensor, b: Tensor, c: Tensor | None = None) -> Tensor:
        return a + self.factor * b if c is None else a + self.factor * b + c


class Both(nn.Module):
    def forward(self, x: Tensor) -> dict[str, Tensor]:
        return {"x": x, "twice": x + x}


def values(bundle: object) -> object:
    if isinstance(bundle, Tensor):
        return bundle.numpy().tolist()
    if isinstance(bundle, dict):
        return {name: values(part) for name, part in bundle.items()}
    return type(bundle)(map(values, bundle))


A, B, C = (Tensor([value]) for value in (1.0, 2.0, 3.0))

CASES = {
    "one": (nn.On("a", nn.Identity()), {"a": A, "b": B}, {"a": [1.0], "b": [2.0]}),
    "two": (
        nn.On(("a", "b"), Weigh()),
        {"a": A, "b": B, "c": C},
        {"a": [21.0], "b": [2.0], "c": [3.0]},
    ),
    "two, turned": (
        nn.On(["b", "a"], Weigh()),
        {"a": A, "b": B},
        {"a": [1.0], "b": [12.0]},
    ),
    "one twice": (nn.On(("a", "a"), Weigh()), {"a": A}, {"a": [11.0]}),
    "by name": (
        nn.On({"b": "a", "a": "b"}, Weigh()),
        {"a": A, "b": B},
        {"a": [12.0], "b": [2.0]},
    ),
    "to another": (
        nn.On("a", nn.Identity(), to="b"),
        {"a": A, "b": B},
        {"a": [1.0], "b": [1.0]},
    ),
    "to a new one": (
        nn.On(("b", "a"), Weigh(), to="c"),
        {"a": A, "b": B},
        {"a": [1.0], "b": [2.0], "c": [12.0]},
    ),
    "of a tuple": (nn.On((1, 0), Weigh()), (A, B, C), ([1.0], [12.0], [3.0])),
    "of a list, from the end": (
        nn.On(-1, nn.Identity(), to=0),
        [A, B, C],
        [[3.0], [2.0], [3.0]],
    ),
    "a bundle comes out": (
        nn.On("a", Both()),
        {"a": A},
        {"a": {"x": [1.0], "twice": [2.0]}},
    ),
    "a bundle goes in": (
        nn.On("a", nn.Take("x")),
        {"a": {"x": A, "y": B}, "b": C},
        {"a": [1.0], "b": [3.0]},
    ),
    "inside another": (
        nn.On("a", nn.On((1, 0), Weigh())),
        {"a": (A, B)},
        {"a": ([1.0], [12.0])},
    ),
    "take one": (nn.Take("b"), {"a": A, "b": B}, [2.0]),
    "take the last": (nn.Take(-1), (A, B), [2.0]),
    "take some": (
        nn.Take(["c", "a"]),
        {"a": A, "b": B, "c": C},
        {"c": [3.0], "a": [1.0]},
    ),
    "take one as a bundle": (nn.Take(["a"]), {"a": A, "b": B}, {"a": [1.0]}),
    "take some of a tuple": (nn.Take((2, 0)), (A, B, C), ([3.0], [1.0])),
}


@pytest.mark.parametrize(("layer", "bundle", "expected"), CASES.values(), ids=CASES)
def test_a_layer_gets_its_entries_and_the_rest_passes_unchanged(
    layer, bundle, expected
):
    before = values(bundle)
    found = layer(bundle)
    assert values(found) == expected  # a tuple equals no list
    assert values(bundle) == before  # who has the bundle, too, keeps what it was
    if isinstance(expected, dict):
        assert list(found) == list(expected)


def test_what_passes_is_the_very_tensor():
    bundle = {"a": A, "b": B, "c": C}
    found = nn.On(("a", "b"), Weigh())(bundle)
    assert found["b"] is B and found["c"] is C


@pytest.mark.parametrize("form", [dict, tuple, list])
def test_a_sequence_takes_a_bundle_of_arrays_as_it_takes_an_array(form):
    """The story: an array passed where it was alone, and as an entry it was refused
    between two layers.
    """
    arrays = [np.array([[1.0, 2.0]], np.float32), [[3.0, 4.0]]]
    names = ["a", "b"] if form is dict else [0, 1]
    bundle = dict(zip(names, arrays)) if form is dict else form(arrays)
    found = nn.Sequential(nn.On(names, Weigh()), nn.On(names[0], nn.Identity()))(bundle)
    assert values(found[names[0]]) == [[31.0, 42.0]] and isinstance(
        found[names[1]], Tensor
    )


@examples(40)
@given(
    st.lists(st.sampled_from("abcd"), min_size=1, max_size=3),
    st.sampled_from("abcde"),
    st.integers(0, 99),
)
def test_a_dict_by_name_and_a_list_by_position_are_the_same(names, to, seed):
    class Product(nn.Module):
        def forward(self, *inputs: Tensor) -> Tensor:
            return sum((i + 1) * x for i, x in enumerate(inputs))

    arrays = np.random.default_rng(seed).standard_normal((5, 2)).astype(np.float32)
    by_name = nn.On(names, Product(), to=to)(dict(zip("abcde", map(Tensor, arrays))))
    positions = ["abcde".index(name) for name in names]
    by_position = nn.On(positions, Product(), to="abcde".index(to))(
        list(map(Tensor, arrays))
    )
    np.testing.assert_array_equal(
        [x.numpy() for x in by_name.values()], [x.numpy() for x in by_position]
    )


def test_gradients_reach_every_entry_from_wherever_it_goes():
    a, b = (
        Tensor([1.0, 2.0], requires_grad=True),
        Tensor([3.0, 4.0], requires_grad=True),
    )
    model = nn.Sequential(
        nn.On(("a", "b"), Weigh(), to="c"), nn.On(("c", "a"), Weigh(2.0)), nn.Take("c")
    )
    model({"a": a, "b": b}).sum().backward()  # c = (a + 10 b) + 2 a
    assert a.grad.tolist() == [3.0, 3.0] and b.grad.tolist() == [10.0, 10.0]


# -- as any module ---------------------------------------------------------------------


def classifier() -> nn.Sequential:
    return nn.Sequential(
        nn.On("tokens", nn.Embedding(7, 4)),
        nn.On(("tokens", "mask"), nn.TransformerBlock(4, 2, dropout=0.5)),
        nn.On("tokens", nn.LayerNorm(4)),
        nn.Take("tokens"),
    )


def test_parameters_have_names_can_be_frozen_and_saved():
    model = classifier().initialise(0)
    names = [name for name, _ in model.named_parameters()]
    assert names[0] == "0.layer.weight" and names[-1] == "2.layer.bias"
    assert names[1] == "1.layer.attention.layers.0.weight"
    model[0].freeze()
    assert [p.requires_grad for p in model.parameters()] == [False] + [True] * (
        len(names) - 1
    )
    other = classifier().initialise(1)
    other.load_state_dict(model.state_dict())
    bundle = {"tokens": Tensor([[1, 2, 6]]), "mask": Tensor([[True, True, False]])}
    np.testing.assert_array_equal(
        other.eval()(bundle).numpy(), model.eval()(bundle).numpy()
    )
    assert not any(module.is_training for module in model.modules())


def test_it_computes_what_its_layers_do_and_draws_at_their_place():
    model = classifier().initialise(0)
    tokens, mask = Tensor([[1, 2, 6], [3, 0, 0]]), Tensor([[1, 1, 0], [1, 0, 0]])
    with random_key(0):
        found = model({"tokens": tokens, "mask": mask})

    class Plain(nn.Module):
        def __init__(self, layer: nn.Module, mask: Tensor | None = None) -> None:
            self.layer, self.mask = layer, mask

        def forward(self, x: Tensor) -> Tensor:
            return self.layer(x) if self.mask is None else self.layer(x, self.mask)

    embedding, block, norm = (layer.layer for layer in model.layers[:3])
    with random_key(0):
        plain = nn.Sequential(Plain(embedding), Plain(block, mask), Plain(norm))(tokens)
    np.testing.assert_array_equal(found.numpy(), plain.numpy())


def test_a_layer_that_is_shared_by_two_is_tied():
    layer = nn.Linear(2, 2)
    model = nn.Sequential(
        nn.On("a", layer), nn.On("b", layer), nn.On(("a", "b"), Weigh()), nn.Take("a")
    ).initialise(0)
    assert len(list(model.parameters())) == 2
    model(
        {
            "a": Tensor(np.ones((1, 2), np.float32)),
            "b": Tensor(np.ones((1, 2), np.float32)),
        }
    ).sum().backward()
    assert layer.bias.grad.tolist() == [11.0, 11.0]


@pytest.mark.parametrize(
    ("layer", "looks"),
    [
        (nn.On("x", nn.Tanh()), "On('x', Tanh())"),
        (nn.On(0, nn.Linear(2, 3), to=-1), "On(0, Linear(2, 3), to=-1)"),
        (nn.On(["x", "y"], Weigh(), to="z"), "On(('x', 'y'), Weigh(), to='z')"),
        (nn.On({"a": "x", "b": "y"}, Weigh()), "On({'a': 'x', 'b': 'y'}, Weigh())"),
        (nn.Take("x"), "Take('x')"),
        (nn.Take((0, 2)), "Take([0, 2])"),
    ],
)
def test_it_prints_as_it_is_written(layer, looks):
    assert repr(layer) == looks


def test_in_a_table_the_layer_is_brief():
    block = nn.On(("x", "mask"), nn.TransformerBlock(8, 2))
    assert block.brief() == "On(('x', 'mask'), TransformerBlock(8, num_heads=2))"


# -- mistakes --------------------------------------------------------------------------

WRONG_CALLS = {
    "no such name": (
        nn.On("mask", nn.Tanh()),
        {"x": A, "masks": B},
        "name",
        "no entry 'mask' .*'x', 'masks'",
    ),
    "no such position": (
        nn.On(2, nn.Tanh()),
        (A, B),
        "name",
        "no entry 2 in the tuple; the positions are 0 to 1",
    ),
    "nor from the end": (
        nn.On(-3, nn.Tanh()),
        [A, B],
        "name",
        "no entry -3 in the list",
    ),
    "a name of a tuple": (
        nn.On("x", nn.Tanh()),
        (A,),
        "name",
        "no entry 'x' in the tuple; the positions are 0 to 0",
    ),
    "a position of a dict": (
        nn.On(0, nn.Tanh()),
        {"x": A},
        "name",
        "no entry 0 in the dict; the names are 'x'",
    ),
    "to beyond the end": (nn.On(0, nn.Tanh(), to=2), (A, B), "name", "no entry 2"),
    "a tensor": (
        nn.On("x", nn.Tanh()),
        A,
        "type",
        "'x' is read from a Tensor; expected a dict, tuple or list",
    ),
    "take of a tensor": (nn.Take("x"), A, "type", "^Take: .* from a Tensor"),
    "take what is not there": (
        nn.Take(["x", "y"]),
        {"x": A},
        "name",
        "^Take: there is no entry 'y'",
    ),
}


@pytest.mark.parametrize(
    ("layer", "bundle", "code", "words"), WRONG_CALLS.values(), ids=WRONG_CALLS
)
def test_an_entry_that_is_not_there_is_told_beside_those_that_are(
    layer, bundle, code, words
):
    with pytest.raises(ArgumentError, match=words) as caught:
        nn.Sequential(layer)(bundle)
    assert caught.value.code == code
    assert caught.value.__notes__ == [f"in layer 0, {layer.brief()}"]


WRONG_LAYERS = {
    "too many entries": (
        lambda: nn.On(("x", "mask"), nn.Linear(2, 2)),
        "name",
        r"Linear is called with \(x\)",
    ),
    "too few": (
        lambda: nn.On("x", nn.DecoderBlock(4, 2)),
        "name",
        "missing a required argument: 'memory'",
    ),
    "of another name": (
        lambda: nn.On({"y": "x"}, nn.Tanh()),
        "name",
        r"Tanh is called with \(x\)",
    ),
    "no layer": (lambda: nn.On("x", np.tanh), "type", "On takes entries and a module"),
    "turned": (lambda: nn.On(nn.Tanh(), "x"), "type", "On takes entries and a module"),
    "no entries": (
        lambda: nn.On((), nn.Tanh()),
        "type",
        r"entries are \(\); expected a name or a position",
    ),
    "no entries by name": (
        lambda: nn.On({}, nn.Tanh()),
        "type",
        "expected a name or a position",
    ),
    "a number that is no position": (
        lambda: nn.On(1.0, nn.Tanh()),
        "type",
        "entries are 1.0",
    ),
    "to several": (
        lambda: nn.On("x", nn.Tanh(), to=("a", "b")),
        "type",
        r"\[\('a', 'b'\)\]",
    ),
    "take nothing": (lambda: nn.Take([]), "type", "^Take: the entries are"),
}


@pytest.mark.parametrize(
    ("make", "code", "words"), WRONG_LAYERS.values(), ids=WRONG_LAYERS
)
def test_entries_that_the_layer_does_not_take_are_refused_at_once(make, code, words):
    with pytest.raises(ArgumentError, match=words) as caught:
        make()
    assert caught.value.code == code

"""PyTorch as an oracle: the same values and the same gradients, in float64.

A row of the table is one operation, computed by both; to add one, give the shapes of
its inputs in letters. Lengths for the letters are drawn by hypothesis, and the inputs
with them; both sides get the same numbers.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from minipipe import Tensor, nn
from minipipe import functional as F
from tests import torch_twins
from tests.strategies import examples
from tests.torch_twins import Pair

torch = pytest.importorskip("torch", reason="needs PyTorch: pip install '.[oracle]'")
TF = torch.nn.functional

TOLERANCE = 1e-10


class Row(NamedTuple):
    """One operation: ``ours(*tensors)`` and ``theirs(*tensors)``, and the shape of each
    input in letters.

    A capital letter is twice the length of the small one.

    ``constants`` draws what has no gradient (ids, labels, masks) from a generator and
    the lengths; both functions get it after the tensors, ours as arrays and theirs as
    tensors.
    """

    ours: Callable[..., Any]
    theirs: Callable[..., Any]
    shapes: str
    constants: Callable[
        [np.random.Generator, dict[str, int]], tuple[np.ndarray, ...]
    ] = lambda generator, lengths: ()


def whole_numbers(
    shape: str, limit: str
) -> Callable[[np.random.Generator, dict[str, int]], tuple[np.ndarray, ...]]:
    """Draw whole numbers from 0 to a length, that is not included."""
    return lambda generator, n: (
        generator.integers(0, n[limit], [n[letter] for letter in shape]),
    )


def truth_values(
    shape: str,
) -> Callable[[np.random.Generator, dict[str, int]], tuple[np.ndarray, ...]]:
    return lambda generator, n: (
        generator.random([n[letter] for letter in shape]) < 0.5,
    )


ROWS = {
    # -- products; the weight is (in, out) here and (out, in) in PyTorch
    "linear": Row(F.linear, lambda x, w, b: TF.linear(x, w.T, b), "nk km m"),
    "linear, without bias": Row(F.linear, lambda x, w: TF.linear(x, w.T), "nk km"),
    "linear, three axes": Row(
        F.linear, lambda x, w, b: TF.linear(x, w.T, b), "ntk km m"
    ),
    "matmul": Row(F.matmul, torch.matmul, "ntk nkm"),
    "einsum": Row(
        lambda a, b, c: F.einsum("nst,ntk,k->nsk", a, b, c),
        lambda a, b, c: torch.einsum("nst,ntk,k->nsk", a, b, c),
        "nst ntk k",
    ),
    "einsum, axes that are broadcast": Row(
        lambda a, b: F.einsum("...tk,...sk->...st", a, b),
        lambda a, b: torch.einsum("...tk,...sk->...st", a, b),
        "nmtk msk",
    ),
    # -- activations
    "relu": Row(F.relu, TF.relu, "nk"),
    "sigmoid": Row(F.sigmoid, torch.sigmoid, "nk"),
    "tanh": Row(F.tanh, torch.tanh, "nk"),
    "silu": Row(F.silu, TF.silu, "ntk"),
    "gelu": Row(F.gelu, TF.gelu, "ntk"),
    "gelu, approximate": Row(
        lambda a: F.gelu(a, approximate=True),
        lambda a: TF.gelu(a, approximate="tanh"),
        "ntk",
    ),
    "erf": Row(F.erf, torch.erf, "nk"),
    # -- elementwise
    "exp": Row(F.exp, torch.exp, "nk"),
    "log": Row(lambda a: F.log(a * a + 0.1), lambda a: torch.log(a * a + 0.1), "nk"),
    "sqrt": Row(lambda a: F.sqrt(a * a + 0.1), lambda a: torch.sqrt(a * a + 0.1), "nk"),
    "divide": Row(
        lambda a, b: a / (b * b + 0.1), lambda a, b: a / (b * b + 0.1), "ntk tk"
    ),
    "power": Row(
        lambda a, b: (a * a + 0.1) ** b, lambda a, b: (a * a + 0.1) ** b, "nk k"
    ),
    "clip": Row(
        lambda a: F.clip(a, -0.5, 0.8), lambda a: torch.clamp(a, -0.5, 0.8), "nk"
    ),
    "where": Row(
        lambda a, b, mask: F.where(mask, a, b),
        lambda a, b, mask: torch.where(mask, a, b),
        "ntk k",
        truth_values("tk"),
    ),
    "masked_fill": Row(
        lambda a, mask: F.masked_fill(a, mask, -2.0),
        lambda a, mask: a.masked_fill(mask, -2.0),
        "ntk",
        truth_values("tk"),
    ),
    # -- reductions; in PyTorch the correction of a variance is 1 by default
    "sum": Row(lambda a: a.sum((0, 2)), lambda a: a.sum((0, 2)), "ntk"),
    "mean": Row(lambda a: a.mean(-1), lambda a: a.mean(-1), "ntk"),
    "max": Row(lambda a: a.max((0, 2)), lambda a: a.amax((0, 2)), "ntk"),
    "min": Row(
        lambda a: a.min(1, keepdims=True), lambda a: a.amin(1, keepdim=True), "ntk"
    ),
    "var": Row(lambda a: a.var((0, -1)), lambda a: a.var((0, -1), correction=0), "ntk"),
    "var, of everything": Row(
        lambda a: F.concatenate([a, a]).var(correction=1),
        lambda a: torch.cat([a, a]).var(),
        "nk",
    ),
    "logsumexp": Row(
        lambda a: F.logsumexp(a, 1), lambda a: torch.logsumexp(a, 1), "ntk"
    ),
    "logsumexp, axes": Row(
        lambda a: F.logsumexp(a, (0, 2), keepdims=True),
        lambda a: torch.logsumexp(a, (0, 2), keepdim=True),
        "ntk",
    ),
    # -- moving elements
    "stack": Row(
        lambda a, b: F.stack([a, b], axis=-1),
        lambda a, b: torch.stack([a, b], dim=-1),
        "nk nk",
    ),
    "concatenate": Row(
        lambda a, b: F.concatenate([a, b], 1),
        lambda a, b: torch.cat([a, b], 1),
        "ntk nsk",
    ),
    "split": Row(
        lambda a: F.split(F.concatenate([a, a, a], -1), 3, axis=-1)[1] * a,
        lambda a: torch.cat([a, a, a], -1).chunk(3, dim=-1)[1] * a,
        "ntk",
    ),
    # -- transformers
    "embedding": Row(
        F.embedding, lambda w, ids: TF.embedding(ids, w), "vk", whole_numbers("nt", "v")
    ),
    "layer_norm": Row(
        F.layer_norm, lambda x, w, b: TF.layer_norm(x, w.shape, w, b), "ntk k k"
    ),
    "layer_norm, epsilon": Row(
        lambda x, w, b: F.layer_norm(x, w, b, 0.3),
        lambda x, w, b: TF.layer_norm(x, w.shape, w, b, 0.3),
        "nk k k",
    ),
    "group_norm": Row(
        lambda x, w, b: F.group_norm(F.concatenate([x, 2 * x], 1), 2, w, b),
        lambda x, w, b: TF.group_norm(torch.cat([x, 2 * x], 1), 2, w, b),
        "nkSt K K",
    ),
    "group_norm, instances": Row(
        lambda x, w, b: F.group_norm(x, w.size, w, b, 0.3),
        lambda x, w, b: TF.group_norm(x, w.numel(), w, b, 0.3),
        "nkT k k",
    ),
    "rms_norm": Row(
        F.rms_norm, lambda x, w: TF.rms_norm(x, w.shape, w, eps=1e-5), "ntk k"
    ),
    "attention": Row(F.attention, TF.scaled_dot_product_attention, "ntk nsk nsm"),
    "attention, causal": Row(
        lambda q, k, v: F.attention(q, k, v, is_causal=True),
        lambda q, k, v: TF.scaled_dot_product_attention(q, k, v, is_causal=True),
        "ntk ntk ntm",
    ),
    "attention, causal, other lengths": Row(
        lambda q, k, v: F.attention(q, k, v, is_causal=True),
        lambda q, k, v: TF.scaled_dot_product_attention(q, k, v, is_causal=True),
        "mntk mnsk mnsv",
    ),
    "attention, of one sequence": Row(
        lambda a: F.attention(a, a, a),
        lambda a: TF.scaled_dot_product_attention(a, a, a),
        "tk",
    ),
    "softmax": Row(F.softmax, lambda a: torch.softmax(a, -1), "ntk"),
    "log_softmax": Row(
        lambda a: F.log_softmax(a, 1), lambda a: torch.log_softmax(a, 1), "ntk"
    ),
    # -- losses
    "cross_entropy": Row(
        F.cross_entropy, TF.cross_entropy, "nk", whole_numbers("n", "k")
    ),
    "cross_entropy, three axes": Row(
        F.cross_entropy,
        lambda a, labels: TF.cross_entropy(
            a.reshape(-1, a.shape[-1]), labels.reshape(-1)
        ),
        "ntk",
        whole_numbers("nt", "k"),
    ),
    "mean_squared_error": Row(F.mean_squared_error, TF.mse_loss, "nk nk"),
}

LENGTHS = st.fixed_dictionaries({letter: st.integers(1, 5) for letter in "nstkmv"})


def assert_close(name: str, ours: np.ndarray, theirs: Any) -> None:
    assert ours.dtype == np.float64 and ours.shape == tuple(theirs.shape), name
    np.testing.assert_allclose(
        ours, theirs.detach().numpy(), rtol=TOLERANCE, atol=TOLERANCE, err_msg=name
    )


@pytest.mark.parametrize("row", ROWS.values(), ids=ROWS)
@examples(15)
@given(lengths=LENGTHS, seed=st.integers(0, 2**16))
def test_values_and_gradients_are_those_of_pytorch(row, lengths, seed):
    generator = np.random.default_rng(seed)
    lengths |= {letter.upper(): 2 * length for letter, length in lengths.items()}
    arrays = [
        generator.standard_normal([lengths[letter] for letter in shape])
        for shape in row.shapes.split()
    ]
    constants = row.constants(generator, lengths)
    ours = [Tensor(array, requires_grad=True) for array in arrays]
    theirs = [torch.tensor(array, requires_grad=True) for array in arrays]
    our_result, their_result = (
        row.ours(*ours, *constants),
        row.theirs(*theirs, *map(torch.tensor, constants)),
    )
    assert_close("the result", our_result.numpy(), their_result)
    upstream = generator.standard_normal(our_result.shape)
    our_result.backward(upstream)
    their_result.backward(torch.tensor(upstream))
    for i, (our, their) in enumerate(zip(ours, theirs)):
        assert_close(f"the gradient of input {i}", our.grad, their.grad)


def test_an_operation_that_differed_would_be_noticed():
    wrong = Row(F.gelu, lambda a: TF.gelu(a, approximate="tanh"), "nk")
    with pytest.raises(AssertionError, match="the result"):
        test_values_and_gradients_are_those_of_pytorch.hypothesis.inner_test(
            wrong, {"n": 2, "k": 3}, 0
        )
    only_its_gradient = Row(F.relu, lambda a: TF.relu(a.detach()) + 0 * a, "nk")
    with pytest.raises(AssertionError, match="the gradient of input 0"):
        test_values_and_gradients_are_those_of_pytorch.hypothesis.inner_test(
            only_its_gradient, {"n": 2, "k": 3}, 0
        )


# -- modules: their parameters have gradients, too -------------------------------------


def in_the_future(length: int) -> Any:
    """Return the mask of what position i must not see."""
    return torch.ones(length, length, dtype=torch.bool).triu(1)


class Theirs(NamedTuple):
    """A module of PyTorch, and how to call it on x of shape (n, t, width)."""

    module: Any
    call: Callable[[Any], Any]


def their_attention(width: int, num_heads: int, length: int, is_causal: bool) -> Theirs:
    module = torch.nn.MultiheadAttention(
        width, num_heads, batch_first=True, dtype=torch.float64
    )
    mask = in_the_future(length) if is_causal else None
    return Theirs(
        module, lambda x: module(x, x, x, need_weights=False, attn_mask=mask)[0]
    )


def their_block(
    width: int, num_heads: int, hidden: int, length: int, is_causal: bool
) -> Theirs:
    module = torch.nn.TransformerEncoderLayer(
        width,
        num_heads,
        hidden,
        0.0,
        "gelu",
        batch_first=True,
        norm_first=True,
        dtype=torch.float64,
    )
    mask = in_the_future(length) if is_causal else None
    return Theirs(module, lambda x: module(x, src_mask=mask, is_causal=is_causal))


def check_module(
    ours: nn.Module,
    theirs: Theirs,
    pairs: list[Pair],
    shape: tuple[int, ...],
    seed: int,
) -> None:
    """Compare the result for random values of all parameters, and the gradients of all
    and of the input.
    """
    assert {id(pair.ours) for pair in pairs} == {
        id(parameter) for parameter in ours.parameters()
    }
    assert len(pairs) == len(list(theirs.module.parameters()))
    generator = np.random.default_rng(seed)
    torch_twins.fill(pairs, generator)
    array, upstream = generator.standard_normal(shape), generator.standard_normal(shape)
    x, their_x = (
        Tensor(array, requires_grad=True),
        torch.tensor(array, requires_grad=True),
    )
    result, their_result = ours(x), theirs.call(their_x)
    assert_close("the result", result.numpy(), their_result)
    result.backward(upstream)
    their_result.backward(torch.tensor(upstream))
    assert_close("the gradient of the input", x.grad, their_x.grad)
    for name, parameter in ours.named_parameters():
        pair = next(pair for pair in pairs if pair.ours is parameter)
        np.testing.assert_allclose(
            parameter.grad,
            pair.our_way(pair.theirs.grad),
            TOLERANCE,
            TOLERANCE,
            err_msg=f"the gradient of {name}",
        )


SIZES = {
    "n": st.integers(1, 3),
    "t": st.integers(1, 6),
    "heads": st.integers(1, 4),
    "per_head": st.integers(1, 4),
}


@examples(40)
@given(st.fixed_dictionaries(SIZES), st.booleans(), st.integers(0, 2**16))
def test_multi_head_attention_is_that_of_pytorch(sizes, is_causal, seed):
    n, t, heads, per_head = sizes.values()
    ours = nn.MultiHeadAttention(heads * per_head, heads, is_causal, dtype=np.float64)
    theirs = their_attention(heads * per_head, heads, t, is_causal)
    pairs = list(torch_twins.of_attention(ours, theirs.module))
    check_module(ours, theirs, pairs, (n, t, heads * per_head), seed)


@examples(40)
@given(
    st.fixed_dictionaries(SIZES),
    st.integers(1, 9),
    st.booleans(),
    st.integers(0, 2**16),
)
def test_a_transformer_block_is_that_of_pytorch_with_the_norms_first(
    sizes, hidden, is_causal, seed
):
    n, t, heads, per_head = sizes.values()
    # at width 1 a norm is only its bias
    width = heads * per_head + (heads * per_head == 1)
    ours = nn.TransformerBlock(
        width, heads, is_causal, hidden, approximate_gelu=False, dtype=np.float64
    )
    theirs = their_block(width, heads, hidden, t, is_causal)
    pairs = list(torch_twins.of_block(ours, theirs.module))
    check_module(ours, theirs, pairs, (n, t, width), seed)


MUTANTS = {
    "sees the future": ("the result", {"is_causal": False}),
    "another GELU": ("the result", {"approximate_gelu": True}),
    "one head for two": ("the result", {"num_heads": 1}),
}


@pytest.mark.parametrize(("differs", "change"), MUTANTS.values(), ids=MUTANTS)
def test_a_block_that_differed_would_be_noticed(differs, change):
    options = {"num_heads": 2, "is_causal": True, "approximate_gelu": False, **change}
    ours = nn.TransformerBlock(4, hidden=5, dtype=np.float64, **options)
    theirs = their_block(4, 2, 5, length=3, is_causal=True)
    with pytest.raises(AssertionError, match=differs):
        check_module(
            ours,
            theirs,
            list(torch_twins.of_block(ours, theirs.module)),
            (2, 3, 4),
            seed=0,
        )


def test_a_block_whose_gradient_alone_differed_would_be_noticed(monkeypatch):
    attention = importlib.import_module("minipipe.functional.attention")
    right = attention._query_gradient
    ours, theirs = (
        nn.MultiHeadAttention(4, 2, dtype=np.float64),
        their_attention(4, 2, length=3, is_causal=False),
    )
    pairs = list(torch_twins.of_attention(ours, theirs.module))
    monkeypatch.setattr(
        attention, "_query_gradient", lambda *given: right(*given) * 0.5
    )
    with pytest.raises(AssertionError, match="the gradient of the input"):
        check_module(ours, theirs, pairs, (2, 3, 4), seed=0)

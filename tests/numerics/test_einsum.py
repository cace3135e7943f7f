"""Sums of products over named indices: NumPy's values for any subscripts, and errors
that name the position.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from minipipe import Tensor
from minipipe import functional as F
from minipipe.errors import ArgumentError, TensorError
from minipipe.functional import contraction
from minipipe.testing import check_gradients
from tests.numerics.formulas import somewhere
from tests.strategies import examples


class Call(NamedTuple):
    subscripts: str
    arrays: list[np.ndarray]


@st.composite
def calls(draw: Any) -> Call:
    """Draw one to three operands over five letters, with and without ``...``, ``->``
    and spaces.
    """
    lengths = {letter: draw(st.integers(1, 3)) for letter in "abcdE"}
    dots = draw(st.none() | st.lists(st.integers(1, 2), max_size=2))
    terms, arrays = [], []
    for number in range(draw(st.integers(1, 3))):
        letters = draw(
            st.lists(st.sampled_from(sorted(lengths)), unique=True, max_size=3)
        )
        shape = [lengths[letter] for letter in letters]
        if dots is not None and draw(st.booleans()):
            own = [
                draw(st.sampled_from([1, length]))
                for length in dots[draw(st.integers(0, len(dots))) :]
            ]
            place = draw(st.integers(0, len(letters)))
            letters.insert(place, "...")
            shape[place:place] = own
        terms.append("".join(letters))
        arrays.append(somewhere(*shape, seed=number))
    subscripts = draw(st.sampled_from([",", " , "])).join(terms)
    if draw(st.booleans()):
        used = sorted({letter for term in terms for letter in term if letter != "."})
        output = draw(st.permutations(used))[: draw(st.integers(0, len(used)))]
        if "..." in subscripts:
            output.insert(draw(st.integers(0, len(output))), "...")
        subscripts += "->" + "".join(output)
    return Call(subscripts, arrays)


@examples(300)
@given(calls())
def test_values_are_those_of_numpy_and_gradients_those_of_central_differences(call):
    expected = np.einsum(call.subscripts, *call.arrays)
    result = F.einsum(call.subscripts, *map(Tensor, call.arrays))
    assert result.shape == expected.shape
    np.testing.assert_allclose(result.numpy(), expected, rtol=1e-12, atol=1e-13)
    check_gradients(lambda *tensors: F.einsum(call.subscripts, *tensors), *call.arrays)


def test_a_sum_that_came_too_early_would_be_noticed(monkeypatch):
    check = test_values_are_those_of_numpy_and_gradients_those_of_central_differences.hypothesis.inner_test
    call = Call(
        "ij,jk,jk->i",
        [somewhere(2, 3), somewhere(3, 2, seed=1), somewhere(3, 2, seed=2)],
    )
    check(call)
    right = contraction._product
    monkeypatch.setattr(
        contraction,
        "_product",
        lambda a, b, lengths, needed: right(a, b, lengths, needed - {"k"}),
    )
    with pytest.raises((AssertionError, ValueError)):
        check(call)


@pytest.mark.parametrize(
    ("subscripts", "same"),
    [
        ("ij,jk->ik", lambda a, b: a @ b),
        ("ij,kj", lambda a, b: a @ b.T),
        ("ij,ij->", lambda a, b: (a * b).sum()),
        ("ji,jk", lambda a, b: a.T @ b),
    ],
)
def test_it_is_the_operation_that_it_spells(subscripts, same):
    a, b = (Tensor(somewhere(3, 3, seed=i)) for i in range(2))
    np.testing.assert_allclose(
        F.einsum(subscripts, a, b).numpy(), same(a, b).numpy(), rtol=1e-13
    )


def test_operands_may_be_arrays_and_a_result_is_another_tensor_than_its_operand():
    x = Tensor([[1.0, 2.0]])
    assert F.einsum("ij->ij", x) is not x
    assert F.einsum("ij,j->i", x, [1.0, 10.0]).numpy().tolist() == [21.0]
    assert F.einsum("ij,j->i", x, np.array([1.0, 10.0])).dtype == np.float32
    assert F.einsum("", Tensor(3.0)).item() == F.einsum("->", Tensor(3.0)).item() == 3.0


def test_an_empty_sum_is_0_and_its_gradients_are_empty():
    a, b = (
        Tensor(np.ones((2, 0)), requires_grad=True),
        Tensor(np.ones((0, 3)), requires_grad=True),
    )
    result = F.einsum("ij,jk", a, b)
    result.sum().backward()
    assert (
        result.numpy().tolist() == [[0.0] * 3] * 2
        and a.grad.shape == (2, 0)
        and b.grad.shape == (0, 3)
    )


# -- what is refused -------------------------------------------------------------------

X = np.ones((2, 3))
SUBSCRIPTS = {
    "a sign": (
        "ij,j$->i",
        r"'ij,j\$->i', at position 4: '\$' is neither a letter nor '...'",
        2,
    ),
    "a digit": ("i1", "at position 1: '1' is neither", 1),
    "two dots": ("..i", r"at position 0: '\.' is neither", 1),
    "a comma in the result": ("ij->i,j", "at position 5: ',' is neither", 1),
    "two arrows": ("ij->i->j", "at position 5: '-' is neither", 1),
    "half an arrow": ("ij>i", "at position 2: '>' is neither", 1),
    "a diagonal": (
        "ij,ii->i",
        (
            "at position 4: 'i' occurs twice in one term .a diagonal, which is not "
            "supported"
        ),
        2,
    ),
    "twice in the result": ("ij->iji", "at position 6: 'i' occurs twice", 1),
    "two ellipses": (
        "...i...",
        r"at position 4: '\.\.\.' occurs twice in one term .two of them",
        1,
    ),
    "an unknown letter": ("ij->ik", "at position 5: 'k' is in no operand", 1),
    "a result without the ellipsis": (
        "...i->i",
        r"at position 4: the result lacks the axes of '\.\.\.'",
        1,
    ),
    "too few operands": ("ij,jk->ik", "has 2 terms for 1 operands", 1),
    "too many operands": ("ij", "has 1 terms for 2 operands", 2),
    "no operand": ("", "has 1 terms for 0 operands", 0),
}


@pytest.mark.parametrize(
    ("subscripts", "message", "count"), SUBSCRIPTS.values(), ids=SUBSCRIPTS
)
def test_wrong_subscripts_are_refused_with_their_position(subscripts, message, count):
    with pytest.raises(ArgumentError, match=f"einsum: .*{message}") as caught:
        F.einsum(subscripts, *[X] * count)
    assert caught.value.code == "value"


def test_operands_before_the_subscripts_are_refused():
    with pytest.raises(
        ArgumentError, match="takes subscripts first, .* this is of type ndarray"
    ) as caught:
        F.einsum(X, "ij->ji")
    assert caught.value.code == "type"


@pytest.mark.parametrize(
    ("subscripts", "shapes", "message"),
    [
        (
            "ij,jk",
            [(2, 3), (4, 2)],
            (
                r"operand 1 has shape \(4, 2\); expected length 3 for index 'j' of "
                r"'ij,jk', as in an operand before"
            ),
        ),
        # letters are not broadcast
        ("ij,jk", [(2, 1), (4, 2)], "expected length 1 for index 'j'"),
        (
            "...i,...i",
            [(2, 3), (5, 3)],
            "operand 1 .* expected length 2 for axis -1 of '...'",
        ),
        (
            "ijk",
            [(2, 3)],
            r"operand 0 has shape \(2, 3\); expected 3 axes, as in 'ijk'",
        ),
        ("i,i", [(3,), (2, 3)], "operand 1 has .* expected 1 axis"),
        ("...ijk", [(2, 3)], "operand 0 has .* expected 3 axes"),
    ],
)
def test_shapes_that_do_not_fit_are_refused_with_index_and_operand(
    subscripts, shapes, message
):
    with pytest.raises(TensorError, match=message) as caught:
        F.einsum(subscripts, *map(np.ones, shapes))
    assert caught.value.code == "shape"

"""Matrix products, and sums of products over named indices (einsum), which are made of
them.

An operand and its indices are a *term*. From left to right two terms become one, until
there is one left. For ``"bij,bkj->bik"`` the indices of the two terms are, by where
else they occur,

    batch       in both, and needed later: b         left, right     in one of them: i
    and k contracted  in both, and needed no more: j

so the pair is the product of (b, i, j) and (b, j, k), after its axes have been put in
this order and the axes of each kind except the first have been merged. An index that
only one term has and no later product needs is summed before.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Sequence
from itertools import pairwise
from typing import NamedTuple

from minipipe.core.autograd import backend
from minipipe.core.autograd.backend import Array, Shape
from minipipe.core.functional.elementwise import multiply
from minipipe.core.functional.operands import operands
from minipipe.core.functional.reduction import total
from minipipe.core.specs import Spec
from minipipe.core.tensor import Operand, Tensor, as_tensor, op
from minipipe.errors import ArgumentError, counted, shape_error
from minipipe.functional.shape import contiguous, reshape, transpose

Index = str | int  # a letter, or an axis of "...", counted from the last one, -1
_ELLIPSIS = "..."
_SIGN = re.compile(r"\.\.\.|\S")


def einsum(subscripts: str, *tensors: Operand) -> Tensor:
    """Return the sum of products of elements over indices, by Einstein's convention.

    Each letter names an axis. Elements with the same letters are multiplied, and the
    sum is taken over every letter that the result does not have.

    Parameters
    ----------
    subscripts : str
        A term of letters for each operand, separated by commas, then ``->`` and the
        letters of the result. Without ``->`` the result has the letters that occur
        once, in alphabetical order. ``...`` stands for any number of axes, which are
        broadcast as NumPy does, and come first in a result without ``->``.
    *tensors : Tensor
        The operands.

    Returns
    -------
    Tensor
        With an axis for each letter of the result.

    Raises
    ------
    ArgumentError
        Codes ``value``, naming the position in ``subscripts``, and ``type``.
    TensorError
        Codes ``shape`` and ``dtype``.

    Notes
    -----
    Operands are taken in pairs from left to right, whatever their sizes; write first
    the operands with the smallest intermediate results, which the graph keeps. Letters
    that occur twice in one term (a diagonal) are refused.

    Examples
    --------
    >>> from minipipe import Tensor, functional
    >>> a, b = Tensor([[1.0, 2.0], [3.0, 4.0]]), Tensor([1.0, 10.0])
    >>> functional.einsum("ij,j->i", a, b)
    Tensor([21., 43.])
    >>> functional.einsum("i,ij,j", b, a, b).item()
    451.0
    """
    spec = Spec(str, expected="subscripts first, such as 'ij,jk->ik'")
    spec.of_class("einsum", subscripts)
    factors = _of_one_dtype(tensors)
    shapes = [tensor.shape for tensor in factors]
    terms, output = _parsed(subscripts, shapes)
    lengths = _lengths(subscripts, terms, shapes)
    rest = [_Term(*pair).broadcast(lengths) for pair in zip(factors, terms)]
    result = rest.pop(0)
    while rest:
        other = rest.pop(0)
        later = {index for term in rest for index in term.indices}
        result = _product(result, other, lengths, later | {*output})
    result = result.summed(output)
    return transpose(result.tensor, [result.indices.index(index) for index in output])


def _of_one_dtype(tensors: Sequence[Operand]) -> list[Tensor]:
    """Return operands as tensors of the dtype of the first tensor among them."""
    for tensor in tensors:
        if isinstance(tensor, Tensor):
            return [operands(each, tensor)[0] for each in tensors]
    return [as_tensor(each) for each in tensors]


def _fitting(a: Operand, b: Operand) -> tuple[Tensor, Tensor]:
    """Return both operands as tensors of one dtype whose shapes fit."""
    a, b = operands(a, b)
    left = a.data.shape
    right = b.data.shape
    # the last axis but one of a matrix, the only one of a vector
    if not left or not right or left[-1] != right[-2:][0]:
        expected = "(..., n, k) and (..., k, m), or (k,)"
        raise shape_error("matmul", expected, left=left, right=right)
    for one, other in zip(reversed(left[:-2]), reversed(right[:-2])):
        if one != other and one != 1 and other != 1:
            expected = "equal lengths, or a length of 1, before the last two axes"
            raise shape_error("matmul", expected, left=left, right=right)
    return a, b


@op(takes=_fitting, saves="full", is_broadcast=True)
def matmul(a: Array, b: Array) -> tuple[Array, Shape]:
    """Return the matrix product a @ b over the last two axes; the axes before them are
    broadcast.

    A vector counts as a row on the left and as a column on the right, as in NumPy.

    Parameters
    ----------
    a : Tensor of shape (..., n, k), or (k,)
    b : Tensor of shape (..., k, m), or (k,)

    Returns
    -------
    Tensor of shape (..., n, m)
        Without n if a is a vector, and without m if b is a vector.

    Raises
    ------
    TensorError
        Code ``shape``.

    Examples
    --------
    >>> from minipipe import Tensor, functional
    >>> functional.matmul(Tensor([[1.0, 2.0], [3.0, 4.0]]), Tensor([1.0, 10.0]))
    Tensor([21., 43.])
    """
    product = backend.matmul(_as_row(a), _as_column(b))
    full = product.shape
    shape = full[:-2] + full[-2:-1] * (a.ndim > 1) + full[-1:] * (b.ndim > 1)
    return backend.reshape(product, shape), full


def _as_row(a: Array) -> Array:
    if a.ndim > 1:
        return a
    return backend.reshape(a, (1, -1))


def _as_column(b: Array) -> Array:
    if b.ndim > 1:
        return b
    return backend.reshape(b, (-1, 1))


def _of_left(g: Array, b: Array, full: Shape, shape: Shape) -> Array:
    gradient = backend.matmul(backend.reshape(g, full), _as_column(b).mT)
    if len(shape) > 1:
        return gradient
    return backend.reshape(gradient, full[:-2] + shape)


def _of_right(g: Array, a: Array, full: Shape, shape: Shape) -> Array:
    gradient = backend.matmul(_as_row(a).mT, backend.reshape(g, full))
    if len(shape) > 1:
        return gradient
    return backend.reshape(gradient, full[:-2] + shape)


matmul.gradients(a=_of_left, b=_of_right)  # the walk sums over axes that were broadcast


class _Term(NamedTuple):
    """An operand, and the index of each of its axes."""

    tensor: Tensor
    indices: list[Index]

    def broadcast(self, lengths: dict[Index, int]) -> _Term:
        """Return the term without the axes of length 1 along which it is the same for
        all.
        """
        axes = list(zip(self.indices, self.tensor.shape))
        kept = [index for index, length in axes if length == lengths[index]]
        if len(kept) == len(axes):
            return self
        return _Term(reshape(self.tensor, [lengths[i] for i in kept]), kept)

    def summed(self, needed: Collection[Index]) -> _Term:
        """Return the term summed over every index but the needed ones."""
        places = enumerate(self.indices)
        axes = tuple(axis for axis, index in places if index not in needed)
        if not axes:
            return self
        kept = [index for index in self.indices if index in needed]
        return _Term(total(self.tensor, axes), kept)

    def arranged(self, order: list[Index], shape: Sequence[int]) -> Tensor:
        """Return the operand with its axes in another order, and then in another
        shape.
        """
        tensor = self.tensor
        if order != self.indices:
            axes = [self.indices.index(index) for index in order]
            tensor = transpose(tensor, axes)
        if tensor.shape != tuple(shape):
            tensor = reshape(tensor, shape)
        return tensor


def _product(
    a: _Term, b: _Term, lengths: dict[Index, int], needed: set[Index]
) -> _Term:
    """Return two terms as one, summed over the indices that only they have and no later
    term needs.
    """
    a, b = a.summed(needed | set(b.indices)), b.summed(needed | set(a.indices))
    common = [index for index in a.indices if index in b.indices]
    batch = [index for index in common if index in needed]
    contracted = [index for index in common if index not in needed]
    left = [index for index in a.indices if index not in common]
    right = [index for index in b.indices if index not in common]

    def shape(*parts: list[Index]) -> Shape:
        return tuple(lengths[index] for part in parts for index in part)

    indices = [*batch, *left, *right]
    if not contracted:
        x = a.arranged(batch + left, shape(batch, left) + (1,) * len(right))
        y = b.arranged(batch + right, shape(batch) + (1,) * len(left) + shape(right))
        return _Term(multiply(x, y), indices)
    outer, inner, across = (
        backend.prod(shape(part)) for part in (left, contracted, right)
    )
    x = a.arranged(batch + left + contracted, (*shape(batch), outer, inner))
    y = b.arranged(batch + contracted + right, (*shape(batch), inner, across))
    # BLAS wants the elements of a row, or of a column, side by side; else gradients
    # take three times as long.
    if a.indices[-1] in batch:
        x = contiguous(x)
    if b.indices[-1] in batch:
        y = contiguous(y)
    return _Term(reshape(matmul(x, y), shape(indices)), indices)


# -- subscripts ------------------------------------------------------------------------


def _parsed(
    subscripts: str, shapes: list[Shape]
) -> tuple[list[list[Index]], list[Index]]:
    """Return the indices of each operand and of the result."""
    arrow = subscripts.find("->")
    end = len(subscripts) if arrow < 0 else arrow
    commas = [position for position in range(end) if subscripts[position] == ","]
    bounds = pairwise([-1, *commas, end])
    parts = [_letters(subscripts, start + 1, stop) for start, stop in bounds]
    if len(parts) != len(shapes):
        raise ArgumentError(
            f"einsum: {subscripts!r} has {len(parts)} terms for {len(shapes)} "
            "operands; expected one for each."
        )
    pairs = enumerate(zip(parts, shapes))
    terms = [_indices(subscripts, number, *pair) for number, pair in pairs]
    counts = [sum(isinstance(index, int) for index in term) for term in terms]
    num_axes = max(counts, default=0)
    dots: list[Index] = list(range(-num_axes, 0))
    if arrow < 0:
        letters = [letter for part in parts for letter in part if letter != _ELLIPSIS]
        once = [letter for letter in letters if letters.count(letter) == 1]
        return terms, dots + sorted(once)
    output = _letters(subscripts, arrow + 2, len(subscripts))
    for letter in output:
        if letter != _ELLIPSIS and not any(letter in part for part in parts):
            message = f"{letter!r} is in no operand, so it has no length"
            raise _wrong(subscripts, subscripts.rindex(letter), message)
    if dots and _ELLIPSIS not in output:
        raise _wrong(
            subscripts,
            arrow,
            "the result lacks the axes of '...'; write '...' there, or sum over them",
        )
    return terms, _expanded(output, dots)


def _expanded(letters: list[str], dots: list[Index]) -> list[Index]:
    """Return the indices that letters stand for; ``...`` stands for several axes."""
    indices: list[Index] = []
    for letter in letters:
        if letter == _ELLIPSIS:
            indices += dots
        else:
            indices.append(letter)
    return indices


def _letters(subscripts: str, start: int, stop: int) -> list[str]:
    """Return the letters of one term, with ``...`` at its place."""
    found: list[str] = []
    for match in _SIGN.finditer(subscripts, start, stop):
        sign = match[0]
        position = match.start()
        if sign != _ELLIPSIS and not (sign.isascii() and sign.isalpha()):
            message = f"{sign!r} is neither a letter nor '...'"
            raise _wrong(subscripts, position, message)
        if sign in found:
            kind = "two of them"
            if sign != _ELLIPSIS:
                kind = "a diagonal, which is not supported"
            message = f"{sign!r} occurs twice in one term ({kind})"
            raise _wrong(subscripts, position, message)
        found.append(sign)
    return found


def _indices(
    subscripts: str, number: int, letters: list[str], shape: Shape
) -> list[Index]:
    """Return the index of each axis of an operand; numbers stand for the axes of
    ``...``.
    """
    covered = len(shape) - sum(letter != _ELLIPSIS for letter in letters)
    if covered < 0 or (covered and _ELLIPSIS not in letters):
        expected = (
            f"{counted(len(shape) - covered, 'axis')}, as in {subscripts!r}, or '...' "
            "for the others"
        )
        raise shape_error("einsum", expected, **{f"operand {number}": shape})
    dots: list[Index] = list(range(-covered, 0))
    return _expanded(letters, dots)


def _lengths(
    subscripts: str, terms: list[list[Index]], shapes: list[Shape]
) -> dict[Index, int]:
    """Return the length of each index; only the axes of ``...`` may be 1 in one operand
    and longer in another.
    """
    lengths: dict[Index, int] = {}
    for number, (term, shape) in enumerate(zip(terms, shapes)):
        for index, length in zip(term, shape):
            known = lengths.setdefault(index, length)
            if isinstance(index, int) and 1 in (known, length):
                lengths[index] = known * length  # one of them is 1
            elif known != length:
                if isinstance(index, str):
                    name = f"index {index!r}"
                else:
                    name = f"axis {index} of '...'"
                expected = (
                    f"length {known} for {name} of {subscripts!r}, as in an operand "
                    "before it"
                )
                raise shape_error("einsum", expected, **{f"operand {number}": shape})
    return lengths


def _wrong(subscripts: str, position: int, what: str) -> ArgumentError:
    return ArgumentError(
        f"einsum: {subscripts!r}, at position {position}: {what}. Expected "
        "'ij,jk->ik' or so."
    )

"""The cross-entropy of scores whose words are divided among ranks: what each rank
computes of it, and how the results are put together.

A rank has consecutive words, in one or several pieces of equal length. Every sum over
words is one of pieces, in pairs (``pairwise.py``). So its bits depend on the number of
pieces, and not on the number of ranks, as long as each rank has a power of two of them.

Shapes: n rows (tokens), h features of a hidden state, w words of a piece.
"""

from __future__ import annotations

from collections.abc import Sequence
from operator import add
from typing import NamedTuple

import numpy as np

from minipipe.parallel.pairwise import in_pairs


class Hidden(NamedTuple):
    """The hidden states of a microbatch, with what is known of its loss.

    Attributes
    ----------
    states : array of shape (..., h)
    labels : array of int of shape (n,)
        The right word of each row; -1 for a row that does not count.
    seed : float
        The gradient of each row's loss in the loss of the batch.
    """

    states: np.ndarray
    labels: np.ndarray
    seed: float

    @property
    def rows(self) -> np.ndarray:
        """The hidden states, an array of shape (n, h)."""
        return self.states.reshape(-1, self.states.shape[-1])

    @property
    def seeds(self) -> np.ndarray:
        """The gradient of the loss of each row: an array of shape (n, 1)."""
        seeds = np.where(self.labels >= 0, self.seed, 0)
        return seeds.astype(self.states.dtype)[:, None]


class Piece(NamedTuple):
    """The scores of one piece of words.

    Attributes
    ----------
    powers : array of shape (n, w)
        e to the scores less their largest.
    places : tuple of two arrays
        The rows whose right word is in this piece, and the words.
    largest, total, wanted : array of shape (n,)
        The largest score; the sum of `powers`; the score of the right word, 0 in
        pieces that lack it.
    """

    powers: np.ndarray
    places: tuple[np.ndarray, np.ndarray]
    largest: np.ndarray
    total: np.ndarray
    wanted: np.ndarray


class Totals(NamedTuple):
    """The results of all ranks for each row.

    Attributes
    ----------
    largest, total, wanted : array of shape (n,)
        As in :class:`Piece`, over all words.
    """

    largest: np.ndarray
    total: np.ndarray
    wanted: np.ndarray

    def losses(self, labels: np.ndarray) -> np.ndarray:
        """Return the loss of each row; 0 for rows that do not count."""
        losses = np.log(self.total) + self.largest - self.wanted
        return np.where(labels >= 0, losses, 0)

    def factor(self, largest: np.ndarray) -> np.ndarray:
        """Return the factor, by row, that makes powers of a piece probabilities."""
        return np.exp(largest - self.largest) / self.total


def scores_of(
    hidden: Hidden,
    weight: np.ndarray,
    bias: np.ndarray | None,
    first: int,
    num_pieces: int,
) -> list[Piece]:
    """Return the scores of the words of a rank, by piece. Local.

    Parameters
    ----------
    hidden : Hidden
    weight : array of shape (h, words)
    bias : array of shape (words,), optional
    first : int
        The first of these words.
    num_pieces : int

    Examples
    --------
    >>> hidden = Hidden(np.ones((1, 2)), np.array([3]), 1.0)
    >>> (piece,) = scores_of(hidden, np.zeros((2, 4)), None, first=0, num_pieces=1)
    >>> piece.total, piece.places
    (array([4.]), (array([0]), array([3])))
    """
    pieces = []
    width = weight.shape[1] // num_pieces
    for begin in range(0, weight.shape[1], width):
        words = slice(begin, begin + width)
        scores = hidden.rows @ weight[:, words]
        if bias is not None:
            scores += bias[words]
        own = hidden.labels - first - begin
        (rows,) = np.nonzero((hidden.labels >= 0) & (own >= 0) & (own < width))
        places = (rows, own[rows])
        wanted = np.zeros_like(scores[:, 0])
        wanted[rows] = scores[places]
        largest = scores.max(axis=1)
        scores -= largest[:, None]
        powers = np.exp(scores, out=scores)
        pieces.append(Piece(powers, places, largest, powers.sum(axis=1), wanted))
    return pieces


def statistics_of(pieces: Sequence[Piece]) -> np.ndarray:
    """Return what other ranks need of pieces: an array of shape (3, pieces, n)."""
    columns = zip(*[(piece.largest, piece.total, piece.wanted) for piece in pieces])
    return np.array([*map(np.stack, columns)])


def totals_of(statistics: Sequence[np.ndarray]) -> Totals:
    """Return the results of all ranks from the statistics of each, in order.

    Examples
    --------
    >>> one = np.array([[[0.0]], [[2.0]], [[0.0]]])
    >>> totals_of([one, one]).total
    array([4.])
    """
    maxima, sums, wanted = np.concatenate(statistics, axis=1)
    largest = maxima.max(axis=0)
    total = in_pairs(add, sums * np.exp(maxima - largest))
    return Totals(largest, total, in_pairs(add, wanted))


def slopes_of(
    hidden: Hidden, pieces: Sequence[Piece], totals: Totals
) -> list[np.ndarray]:
    """Return the gradients of the scores of each piece: arrays of shape (n, w)."""
    slopes = []
    for piece in pieces:
        factor = totals.factor(piece.largest)[:, None] * hidden.seeds
        of_piece = piece.powers * factor
        rows, _ = piece.places
        of_piece[piece.places] -= hidden.seeds[rows, 0]
        slopes.append(of_piece)
    return slopes


def part_of_hidden(
    hidden: Hidden, slopes: Sequence[np.ndarray], weight: np.ndarray
) -> np.ndarray:
    """Return the part of a rank of the gradient of the hidden states."""
    weights = np.split(weight, len(slopes), axis=1)
    products = [piece @ words.T for piece, words in zip(slopes, weights)]
    return in_pairs(add, products).reshape(hidden.states.shape)


def of_weights(
    hidden: Hidden, slopes: Sequence[np.ndarray]
) -> tuple[np.ndarray, np.ndarray]:
    """Return the gradients of the weights and of the bias of a rank."""
    products = [hidden.rows.T @ piece for piece in slopes]
    sums = [piece.sum(axis=0) for piece in slopes]
    return np.concatenate(products, axis=1), np.concatenate(sums)


def products_of(piece: Piece, weight: np.ndarray) -> np.ndarray:
    """Return two products with the weights, before the sums of all ranks are known: an
    array of shape (2, n, h).

    The first has probabilities among the words of the rank, the second the right word.
    """
    products = np.zeros((2, len(piece.powers), len(weight)), weight.dtype)
    np.divide(piece.powers @ weight.T, piece.total[:, None], out=products[0])
    rows, words = piece.places
    products[1, rows] = weight.T[words]
    return products


def sum_of_products(
    hidden: Hidden,
    products: Sequence[np.ndarray],
    statistics: Sequence[np.ndarray],
    totals: Totals,
) -> np.ndarray:
    """Return the gradient of the hidden states from the products of all ranks."""
    parts = []
    for (among, right), (maxima, sums, _) in zip(products, statistics):
        factor = sums[0] * totals.factor(maxima[0])
        parts.append(among * factor[:, None] - right)
    return (in_pairs(add, parts) * hidden.seeds).reshape(hidden.states.shape)

"""Dividing examples into training and test, and into batches."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from minipipe.errors import ArgumentError

Examples = tuple[np.ndarray, np.ndarray]


def split_examples(
    inputs: np.ndarray, targets: np.ndarray, test_fraction: float, seed: int = 0
) -> tuple[Examples, Examples]:
    """Shuffle examples and divide them into those to train with and those to test with.

    Parameters
    ----------
    inputs, targets : array of shape (samples, ...)
    test_fraction : float
        Of the samples, 0 to 1.
    seed : int
        The same seed gives the same division on every rank.

    Returns
    -------
    (inputs, targets) to train, (inputs, targets) to test

    Examples
    --------
    >>> inputs, targets = np.arange(20).reshape(10, 2), np.arange(10)
    >>> (x, y), (test_x, test_y) = split_examples(inputs, targets, test_fraction=0.3)
    >>> x.shape, y.shape, test_x.shape, test_y.shape
    ((7, 2), (7,), (3, 2), (3,))
    """
    _check_lengths(inputs, targets)
    if not 0 <= test_fraction <= 1:
        raise ArgumentError("value", f"test_fraction is {test_fraction}; expected 0 to 1.")
    order = np.random.Generator(np.random.Philox(seed)).permutation(len(inputs))
    num_test = round(len(inputs) * test_fraction)
    test, train = order[:num_test], order[num_test:]
    return (inputs[train], targets[train]), (inputs[test], targets[test])


def num_batches(num_samples: int, batch_size: int) -> int:
    """Return the number of batches of at most ``batch_size`` samples that :func:`batches` makes.

    Parameters
    ----------
    num_samples, batch_size : int

    Returns
    -------
    int

    Examples
    --------
    >>> num_batches(10, batch_size=4)
    3
    """
    if batch_size < 1:
        raise ArgumentError("value", f"batch_size is {batch_size}; expected at least 1.")
    return -(-num_samples // batch_size)


def batches(
    inputs: np.ndarray, targets: np.ndarray, batch_size: int, seed: int = 0, epoch: int = 0
) -> Iterator[Examples]:
    """Yield the examples in a new order, batch after batch; every example comes once.

    The sizes of the batches differ by at most one, so there is no small last one.

    Parameters
    ----------
    inputs, targets : array of shape (samples, ...)
    batch_size : int
        At most so many samples in a batch.
    seed, epoch : int
        The order depends on both, and is the same on every rank.

    Examples
    --------
    >>> [len(x) for x, y in batches(np.zeros((10, 2)), np.zeros(10), batch_size=4)]
    [4, 3, 3]
    """
    _check_lengths(inputs, targets)
    count = num_batches(len(inputs), batch_size)
    order = np.random.Generator(np.random.Philox([seed, epoch])).permutation(len(inputs))
    for part in np.array_split(order, count):
        yield inputs[part], targets[part]


def _check_lengths(inputs: np.ndarray, targets: np.ndarray) -> None:
    if len(inputs) != len(targets) or not len(inputs):
        raise ArgumentError(
            "value", f"There are {len(inputs)} inputs and {len(targets)} targets; expected one for each, at least one."
        )

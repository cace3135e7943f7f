"""Dividing examples into training and test, and into batches."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np

from minipipe.data.draws import note_draw
from minipipe.errors import ArgumentError, whole_number
from minipipe.pytree import flattened, rebuilt

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
    whole_number("split_examples: seed", seed, 0)
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
    inputs: Any,
    targets: Any,
    batch_size: int,
    seed: int = 0,
    epoch: int = 0,
    needs: tuple[bool, bool] = (True, True),
    num_samples: int | None = None,
    start: int = 0,
) -> Iterator[tuple[Any, Any]]:
    """Yield the examples in a new order, batch after batch; every example comes once.

    The sizes of the batches differ by at most one, so there is no small last one. A pipeline compares on all ranks
    which batch was drawn last before a call.

    Parameters
    ----------
    inputs, targets : array of shape (samples, ...), or tuple, list or dict of arrays; or None
        Of an array in a file, ``numpy.load(path, mmap_mode="r")``, only the rows of the batch are read.
    batch_size : int
        At most so many samples in a batch.
    seed, epoch : int
        The order depends on both, and is the same on every rank.
    needs : (bool, bool)
        Whether this rank needs inputs, and targets: ``pipeline.needs``. What it does not need is not read, and comes as
        None.
    num_samples : int, optional
        Where this rank has neither inputs nor targets.
    start : int
        How many of the first batches to leave out: those that were used before the epoch was broken off.

    Examples
    --------
    >>> [len(x) for x, y in batches(np.zeros((10, 2)), np.zeros(10), batch_size=4)]
    [4, 3, 3]
    >>> list(batches(None, None, batch_size=4, num_samples=8))
    [(None, None), (None, None)]
    >>> [len(x) for x, y in batches(np.zeros((10, 2)), np.zeros(10), batch_size=4, start=1)]
    [3, 3]
    """
    for name, value in (("seed", seed), ("epoch", epoch), ("start", start)):
        whole_number(f"batches: {name}", value, 0)
    given = [flattened(part) for part in (inputs, targets) if part is not None]
    lengths = [len(leaf) for leaves, _ in given for leaf in leaves] or [num_samples or 0]
    if not given and num_samples is None:
        raise ArgumentError("value", "batches: there are neither inputs nor targets here; give num_samples.")
    if len(set(lengths)) > 1 or lengths[0] < 1 or num_samples not in (None, lengths[0]):
        message = f"The inputs and targets have {lengths} samples, and num_samples is {num_samples}"
        raise ArgumentError("value", f"batches: {message}; expected one number, at least 1.")
    order = np.random.Generator(np.random.Philox([seed, epoch])).permutation(lengths[0])
    parts = np.array_split(order, num_batches(lengths[0], batch_size))
    for position, part in list(enumerate(parts))[start:]:
        note_draw("batches", lengths[0], len(parts), seed, epoch, position)
        yield (
            _rows(inputs, part) if needs[0] and inputs is not None else None,
            _rows(targets, part) if needs[1] and targets is not None else None,
        )


def _rows(given: Any, part: np.ndarray) -> Any:
    leaves, form = flattened(given)
    return rebuilt(form, [np.asarray(leaf)[part] if isinstance(leaf, list) else leaf[part] for leaf in leaves])


def _check_lengths(inputs: np.ndarray, targets: np.ndarray) -> None:
    if len(inputs) != len(targets) or not len(inputs):
        raise ArgumentError(
            "value", f"There are {len(inputs)} inputs and {len(targets)} targets; expected one for each, at least one."
        )

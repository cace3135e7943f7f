"""How a batch is divided into microbatches."""

from __future__ import annotations

from functools import lru_cache

from minipipe.errors import MicrobatchError
from minipipe.execution.partition.layers import partition_evenly
from minipipe.execution.samples import Pieces, Samples


def divided(num_samples: int, count: int, *given: Samples | Pieces | None) -> list[slice]:
    """Return the microbatches: as they were given, or else of equal sizes.

    Raises
    ------
    MicrobatchError
        Codes ``wrong-number``, and those of :func:`split_microbatches`.
    """
    pieces = [own for own in given if isinstance(own, Pieces)]
    if not pieces:
        return _split_before(num_samples, count)
    if len(pieces[0].parts) != count:
        message = f"{len(pieces[0].parts)} microbatches were given, but the schedule has {count}."
        raise MicrobatchError(
            "wrong-number", f"{message} Give num_microbatches={len(pieces[0].parts)} to the pipeline."
        )
    return pieces[0].slices


def split_microbatches(num_samples: int, num_microbatches: int) -> list[slice]:
    """Divide samples among microbatches: sizes differ by at most one, none is empty, nothing is dropped.

    Parameters
    ----------
    num_samples : int
        In the batch.
    num_microbatches : int

    Returns
    -------
    list of slice
        Of the first axis; the first ones are longer where they do not divide.

    Raises
    ------
    MicrobatchError
        Codes ``out-of-range`` and ``too-few-samples``.

    Examples
    --------
    >>> split_microbatches(4, 2)
    [slice(0, 2, None), slice(2, 4, None)]
    """
    if num_microbatches < 1:
        raise MicrobatchError("out-of-range", f"num_microbatches is {num_microbatches}; expected at least 1.")
    if num_samples < num_microbatches:
        raise MicrobatchError(
            "too-few-samples",
            f"A batch of {num_samples} samples cannot make {num_microbatches} microbatches, each of at least one. "
            "Use larger batches or fewer microbatches.",
        )
    return [slice(part.start, part.stop) for part in partition_evenly(num_samples, num_microbatches)]


_split_before = lru_cache(maxsize=64)(split_microbatches)  # batches are often alike

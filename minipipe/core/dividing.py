"""Numbers divided evenly: layers among stages, and samples among microbatches."""

from __future__ import annotations

from functools import lru_cache
from itertools import accumulate

from minipipe.core.errors import MicrobatchError, PartitionError, counted
from minipipe.core.specs import COUNT


def partition_evenly(num_layers: int, num_stages: int) -> list[range]:
    """Divide layers among stages by number; if the division leaves a remainder, the
    first stages get one more.

    Parameters
    ----------
    num_layers, num_stages : int

    Returns
    -------
    list of range
        The layers of each stage.

    Raises
    ------
    PartitionError
        Codes ``value`` and ``too-few``.

    Examples
    --------
    >>> partition_evenly(10, 3)
    [range(0, 4), range(4, 7), range(7, 10)]
    """
    check_counts(num_layers, num_stages)
    size, larger = divmod(num_layers, num_stages)
    ends = list(accumulate(size + (stage < larger) for stage in range(num_stages)))
    return [range(start, end) for start, end in zip([0, *ends], ends)]


def check_counts(num_layers: int, num_stages: int) -> None:
    """Refuse numbers of layers and stages that do not fit each other."""
    COUNT._replace(error=PartitionError).check("num_stages", num_stages)
    if num_layers < num_stages:
        raise PartitionError(
            "too-few",
            f"{counted(num_layers, 'layer')} cannot make "
            f"{counted(num_stages, 'stage')}, each of at least one layer. Use a deeper "
            "model, fewer ranks, or a schedule with fewer stages on each.",
        )


def split_microbatches(num_samples: int, num_microbatches: int) -> list[slice]:
    """Divide samples among microbatches: sizes differ by at most one, none is empty,
    nothing is dropped.

    Parameters
    ----------
    num_samples : int
        In the batch.
    num_microbatches : int

    Returns
    -------
    list of slice
        Of the first axis; the first ones are longer if the division leaves a remainder.

    Raises
    ------
    MicrobatchError
        Codes ``out-of-range`` and ``too-few``.

    Examples
    --------
    >>> split_microbatches(4, 2)
    [slice(0, 2, None), slice(2, 4, None)]
    """
    return [*rows_of(even_sizes(num_samples, num_microbatches))]


@lru_cache(maxsize=64)  # batches are often alike
def even_sizes(num_samples: int, num_microbatches: int) -> tuple[int, ...]:
    """Return the sizes of the parts of :func:`split_microbatches`; errors are the same.

    Examples
    --------
    >>> even_sizes(8, 3)
    (3, 3, 2)
    """
    COUNT._replace(error=MicrobatchError, code="out-of-range").check(
        "num_microbatches", num_microbatches
    )
    if num_samples < num_microbatches:
        raise MicrobatchError(
            "too-few",
            f"A batch of {counted(num_samples, 'sample')} cannot make "
            f"{counted(num_microbatches, 'microbatch')}, "
            "each of at least one. Use larger batches or fewer microbatches.",
        )
    return tuple(map(len, partition_evenly(num_samples, num_microbatches)))


@lru_cache(maxsize=64)
def rows_of(sizes: tuple[int, ...]) -> list[slice]:
    """Return the places of consecutive parts of these sizes in a batch.

    Examples
    --------
    >>> rows_of((3, 1))
    [slice(0, 3, None), slice(3, 4, None)]
    """
    return [slice(stop - size, stop) for stop, size in zip(accumulate(sizes), sizes)]

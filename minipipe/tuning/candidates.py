"""A question, and its candidates: schedules, chunks, numbers of microbatches, cuts, recomputation. Pure data."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from math import inf
from numbers import Real
from typing import Any, NamedTuple

from minipipe.errors import ArgumentError, ScheduleError, quoted
from minipipe.nn import Sequential
from minipipe.schedules.action_table import Schedule
from minipipe.schedules.registry import REGISTRY, build, default_chunks
from minipipe.tuning.layers import MakeOptimiser

_UNITS = {"": 1, "B": 1}
_UNITS |= {f"{letter}B": 1000**power for power, letter in enumerate("KMGT", 1)}
_UNITS |= {f"{letter}IB": 1024**power for power, letter in enumerate("KMGT", 1)}


def memory_size(given: Any) -> float:
    """Return an amount of memory in bytes.

    Parameters
    ----------
    given : str or number
        Bytes, or text such as ``"500 MB"`` (of 1000 x 1000 bytes) or ``"2 GiB"`` (of 1024 x 1024 x 1024).

    Raises
    ------
    ArgumentError
        Code ``value``.

    Examples
    --------
    >>> memory_size("500 MB"), memory_size("1.5KiB"), memory_size(10)
    (500000000.0, 1536.0, 10.0)
    """
    found = re.fullmatch(r"\s*(\d+\.?\d*|\.\d+)\s*([a-zA-Z]*)\s*", given) if isinstance(given, str) else None
    if found and found[2].upper() in _UNITS:
        amount = float(found[1]) * _UNITS[found[2].upper()]
    else:
        amount = float(given) if isinstance(given, Real) and not isinstance(given, bool) else 0.0
    if not 0 < amount < float("inf"):
        message = f"memory_limit is {quoted(given)}; expected an amount above 0, such as '500 MB', '2 GiB' or bytes."
        raise ArgumentError("value", message)
    return amount


# The options of a pipeline that make its plan.
PLANNED = ("schedule", "num_microbatches", "chunks_per_rank", "partition", "layer_costs")


@dataclass(frozen=True)
class Question:
    """A model, a batch, and the constraints of a choice.

    Attributes
    ----------
    model : Sequential
    inputs, targets : array of shape (samples, ...), or bundle
        A batch, as for :meth:`minipipe.Pipeline.step`.
    options : mapping
        The fixed options of a pipeline, such as ``loss``, ``seed`` and ``device``.
    optimiser : function, optional
        ``parameters -> Optimiser``, for its state.
    memory_limit : float
        Bytes of each rank; infinite where there is no limit.
    num_microbatches, chunks_per_rank, partition, recompute
        Only choices with these. None where all are weighed.
    own : mapping, optional
        Options of a pipeline: the program's own choice, to be weighed beside the others.
    """

    model: Sequential
    inputs: Any
    targets: Any
    options: Mapping[str, Any]
    optimiser: MakeOptimiser | None = None
    memory_limit: float = inf
    num_microbatches: int | None = None
    chunks_per_rank: int | None = None
    partition: Sequence[range] | None = None
    recompute: bool | None = None
    own: Mapping[str, Any] | None = None


SEARCHED = "searched"
"""The name of a schedule that no builder made."""
_MOST_CHUNKS = 4
_MICROBATCHES_PER_RANK = 16  # more leave 1/16 of a bubble at most, and the next doubling would halve that


class Candidate(NamedTuple):
    """A choice to weigh.

    Attributes
    ----------
    schedule : str
        A name, or ``"searched"``.
    num_microbatches : int
    chunks_per_rank : int
    cut : str
        The cut balances ``"time"``, ``"memory"`` or ``"parameters"``; or ``"given"``.
    recompute : bool

    Examples
    --------
    >>> Candidate("zb-h1", 8).build(num_ranks=4).num_stages
    4
    """

    schedule: str
    num_microbatches: int
    chunks_per_rank: int = 1
    cut: str = "time"
    recompute: bool = False

    def build(self, num_ranks: int) -> Schedule:
        """Return the named schedule.

        Raises
        ------
        ScheduleError
            Codes ``unknown`` and ``parameters``.
        """
        is_default = self.chunks_per_rank == default_chunks(REGISTRY[self.schedule])
        return build(self.schedule, num_ranks, self.num_microbatches, None if is_default else self.chunks_per_rank)


def candidates(
    num_ranks: int,
    num_layers: int,
    counts: Iterable[int],
    chunks_per_rank: int | None = None,
) -> Iterator[Candidate]:
    """Yield every named schedule that trains and fits the number of ranks and layers, cut by time.

    Parameters
    ----------
    num_ranks, num_layers : int
    counts : iterable of int
        The numbers of microbatches.
    chunks_per_rank : int, optional
        Only these; by default up to 4, as far as the schedule and the number of layers allow.

    Examples
    --------
    >>> sorted({candidate.schedule for candidate in candidates(2, num_layers=3, counts=[4])})
    ['1f1b', 'eager-1f1b', 'gpipe', 'sequential', 'zb-h1', 'zb-h2']
    """
    counts = list(counts)
    for name, builder in REGISTRY.items():
        own = default_chunks(builder)
        several = (own,) if own == 1 else range(own, _MOST_CHUNKS + 1)
        for chunks in several if chunks_per_rank is None else (chunks_per_rank,):
            found = (Candidate(name, count, chunks) for count in counts if name != "forward-only")
            yield from (candidate for candidate in found if _fits(candidate, num_ranks, num_layers))


def _fits(candidate: Candidate, num_ranks: int, num_layers: int) -> bool:
    """Whether the schedule exists for these sizes, with a layer for each stage."""
    if num_ranks * candidate.chunks_per_rank > num_layers:
        return False
    try:
        candidate.build(num_ranks)
    except ScheduleError as error:
        if not error.problems[0].code.is_misuse:
            raise
        return False
    return True


def numbers_of_microbatches(num_samples: int, num_ranks: int, own: int | None = None) -> list[int]:
    """Return the numbers of microbatches to measure: powers of two, and these times the number of ranks.

    Parameters
    ----------
    num_samples : int
        Of a batch.
    num_ranks : int
    own : int, optional
        One more.

    Examples
    --------
    >>> numbers_of_microbatches(num_samples=64, num_ranks=3, own=10)
    [1, 2, 3, 4, 6, 8, 10, 12, 16, 24, 32, 48]
    """
    most = min(num_samples, _MICROBATCHES_PER_RANK * num_ranks)
    found = {start << doublings for start in (1, num_ranks) for doublings in range(most.bit_length())}
    return sorted({count for count in found if count <= most} | ({own} if own and own <= num_samples else set()))


def models_for_search(num_ranks: int, num_layers: int, num_microbatches: int) -> list[Schedule]:
    """Return a named schedule for each placement to search on: a stage on each rank, or two in a V.

    Examples
    --------
    >>> [schedule.placement for schedule in models_for_search(3, num_layers=6, num_microbatches=8)]
    [(0, 1, 2), (0, 1, 2, 2, 1, 0)]
    """
    forms = [Candidate("1f1b", num_microbatches, 1), Candidate("zb-v", num_microbatches, 2)]
    return [form.build(num_ranks) for form in forms if _fits(form, num_ranks, num_layers)]

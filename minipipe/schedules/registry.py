"""The named schedules, and what each of them trades."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from difflib import get_close_matches
from types import MappingProxyType

from minipipe.errors import Problem, ScheduleError
from minipipe.schedules.controllable_memory import v_half, v_min
from minipipe.schedules.gpipe import gpipe
from minipipe.schedules.interleaved import interleaved_1f1b, looped_bfs
from minipipe.schedules.one_f_one_b import eager_1f1b, one_f_one_b
from minipipe.schedules.placement import check_counts
from minipipe.schedules.schedule import Schedule
from minipipe.schedules.sequential import forward_only, sequential
from minipipe.schedules.v_shaped import dualpipe_v, zb_v
from minipipe.schedules.zero_bubble import interleaved_zb, zb_h1, zb_h2

__all__ = ["REGISTRY", "TRADES", "build", "builder_of", "default_chunks", "expected_names"]

_ENTRIES: dict[str, tuple[Callable[..., Schedule], str]] = {
    "sequential": (sequential, "one rank works, the others wait"),
    "gpipe": (gpipe, "the simplest; holds all microbatches"),
    "1f1b": (one_f_one_b, "GPipe's time, much less memory"),
    "eager-1f1b": (eager_1f1b, "more memory, to hide message latency"),
    "interleaved-1f1b": (interleaved_1f1b, "smaller bubble; more messages, memory"),
    "looped-bfs": (looped_bfs, "GPipe over chunks, one after another"),
    "zb-h1": (zb_h1, "1F1B's memory; split backward, less idle"),
    "zb-h2": (zb_h2, "no idle inside; twice 1F1B's memory"),
    "interleaved-zb": (interleaved_zb, "interleaved, with a split backward"),
    "zb-v": (zb_v, "no idle inside; 1F1B's memory; a V"),
    "v-half": (v_half, "about half of 1F1B's memory; a V"),
    "v-min": (v_min, "down to a third of 1F1B's memory; a V"),
    "dualpipe-v": (dualpipe_v, "forward beside backward, to overlap; a V"),
    "forward-only": (forward_only, "predicts only; keeps nothing"),
}

REGISTRY: Mapping[str, Callable[..., Schedule]] = MappingProxyType({name: entry[0] for name, entry in _ENTRIES.items()})
TRADES: Mapping[str, str] = MappingProxyType({name: entry[1] for name, entry in _ENTRIES.items()})


def build(
    name: str, num_ranks: int, num_microbatches: int | None = None, chunks_per_rank: int | None = None
) -> Schedule:
    """Return a schedule by its name.

    Parameters
    ----------
    name : str
        One of ``REGISTRY``.
    num_ranks : int
    num_microbatches : int, optional
        4 for each stage by default.
    chunks_per_rank : int, optional
        Stages on each rank; by default what the schedule is made for.

    Returns
    -------
    Schedule

    Raises
    ------
    ScheduleError
        Codes ``unknown`` and ``parameters``.

    Examples
    --------
    >>> build("1f1b", num_ranks=4).num_microbatches
    16
    """
    builder = builder_of(name)
    options, default = {}, default_chunks(builder)
    if default is not None:
        options["chunks_per_rank"] = default if chunks_per_rank is None else chunks_per_rank
    elif chunks_per_rank not in (None, 1):
        able = ", ".join(other for other, builder in REGISTRY.items() if default_chunks(builder) is not None)
        message = f"{name} has one stage on each rank, not chunks_per_rank={chunks_per_rank}; {able} take several."
        raise ScheduleError([Problem("parameters", message)])
    if num_microbatches is None:
        check_counts(num_ranks, 1, options.get("chunks_per_rank", 1))
        num_microbatches = 4 * num_ranks * options.get("chunks_per_rank", 1)
    return builder(num_ranks, num_microbatches, **options)


def builder_of(name: str) -> Callable[..., Schedule]:
    """Return the function that builds a schedule.

    Raises
    ------
    ScheduleError
        Code ``unknown``, with the names there are.

    Examples
    --------
    >>> builder_of("gpipe")(2, 1).name
    'gpipe'
    """
    builder = REGISTRY.get(name) if isinstance(name, str) else None
    if builder is None:
        raise ScheduleError([Problem("unknown", f"There is no schedule {name!r}; {expected_names(name)}.")])
    return builder


def expected_names(given: object) -> str:
    """Return the end of a sentence about a name that is none: the nearest one, and all.

    Examples
    --------
    >>> expected_names("1F1B ")[:20]
    'did you mean 1f1b? e'
    """
    plain = str(given).lower().replace("_", "-")
    near = get_close_matches(plain, REGISTRY, n=1, cutoff=0.7)
    return f"{f'did you mean {near[0]}? ' if near else ''}expected one of {', '.join(REGISTRY)}"


def default_chunks(builder: Callable[..., Schedule]) -> int | None:
    """Return how many chunks a builder puts on each rank unless told, or None where it always is one.

    Examples
    --------
    >>> default_chunks(REGISTRY["zb-v"]), default_chunks(REGISTRY["gpipe"])
    (2, None)
    """
    parameter = inspect.signature(builder).parameters.get("chunks_per_rank")
    return None if parameter is None else parameter.default

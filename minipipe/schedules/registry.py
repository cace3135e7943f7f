"""The named schedules, and the trade-off of each."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Any

from minipipe.errors import ScheduleCode, ScheduleError
from minipipe.printable import quoted
from minipipe.schedules.closed_forms import ClosedForms
from minipipe.schedules.controllable_memory import V_HALF, V_MIN, v_half, v_min
from minipipe.schedules.garbage import collector_paused
from minipipe.schedules.gpipe import GPIPE, gpipe
from minipipe.schedules.interleaved import (
    INTERLEAVED_1F1B,
    INTERLEAVED_ZB,
    LOOPED_BFS,
    interleaved_1f1b,
    interleaved_zb,
    looped_bfs,
)
from minipipe.schedules.one_f_one_b import EAGER_1F1B, ONE_F_ONE_B, eager_1f1b, one_f_one_b
from minipipe.schedules.schedule import Schedule
from minipipe.schedules.sequential import FORWARD_ONLY, SEQUENTIAL, forward_only, sequential
from minipipe.schedules.v_shaped import DUALPIPE_V, ZB_V, dualpipe_v, zb_v
from minipipe.schedules.zero_bubble import ZB_H1, ZB_H2, zb_h1, zb_h2

# By name: the builder, the trade-off, and the closed forms.
_ENTRIES: dict[str, tuple[Callable[..., Schedule], str, ClosedForms]] = {
    "sequential": (sequential, "one rank works, the others wait", SEQUENTIAL),
    "gpipe": (gpipe, "simplest; holds all microbatches", GPIPE),
    "1f1b": (one_f_one_b, "GPipe's time, much less memory", ONE_F_ONE_B),
    "eager-1f1b": (eager_1f1b, "more memory, to hide latency", EAGER_1F1B),
    "interleaved-1f1b": (interleaved_1f1b, "less bubble; more messages, memory", INTERLEAVED_1F1B),
    "looped-bfs": (looped_bfs, "GPipe over chunks, one by one", LOOPED_BFS),
    "zb-h1": (zb_h1, "1F1B's memory, less idle: splits B", ZB_H1),
    "zb-h2": (zb_h2, "no idle inside; <2x 1F1B's memory", ZB_H2),
    "interleaved-zb": (interleaved_zb, "interleaved, with a split backward", INTERLEAVED_ZB),
    "zb-v": (zb_v, "no idle inside; 1F1B's memory; a V", ZB_V),
    "v-half": (v_half, "half of 1F1B's memory, plus 1; a V", V_HALF),
    "v-min": (v_min, "1/3 of 1F1B's memory, plus 1; a V", V_MIN),
    "dualpipe-v": (dualpipe_v, "overlaps forward, backward; a V", DUALPIPE_V),
    "forward-only": (forward_only, "predicts only; keeps nothing", FORWARD_ONLY),
}

NUM_MICROBATCHES = 8
"""By default. It does not depend on the number of ranks, because results may depend on it: dropout draws for each."""

REGISTRY: Mapping[str, Callable[..., Schedule]] = MappingProxyType({name: entry[0] for name, entry in _ENTRIES.items()})
TRADES: Mapping[str, str] = MappingProxyType({name: entry[1] for name, entry in _ENTRIES.items()})
CLOSED_FORMS: Mapping[str, ClosedForms] = MappingProxyType({name: entry[2] for name, entry in _ENTRIES.items()})


def build(
    name: str,
    num_ranks: int,
    num_microbatches: int | None = None,
    chunks_per_rank: int | None = None,
    microbatch_group_size: int | None = None,
) -> Schedule:
    """Return a schedule by its name.

    Parameters
    ----------
    name : str
        One of ``REGISTRY``.
    num_ranks : int
    num_microbatches : int, optional
        8 by default, whatever the number of ranks.
    chunks_per_rank : int, optional
        Stages on each rank; the default depends on the schedule.
    microbatch_group_size : int, optional
        For interleaved schedules: the smallest number of microbatches that a rank runs through one chunk before it
        switches to the next chunk.

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
    8
    """
    builder = builder_of(name)
    given = {"chunks_per_rank": chunks_per_rank, "microbatch_group_size": microbatch_group_size}
    options = {option: value for option, value in given.items() if value is not None}
    for option in options:
        if option not in _parameters(builder):
            able = ", ".join(other for other in REGISTRY if option in _parameters(REGISTRY[other]))
            raise ScheduleError.of(ScheduleCode.PARAMETERS, f"{name} takes no {option}; leave it out. {able} take one.")
    with collector_paused():
        return builder(num_ranks, NUM_MICROBATCHES if num_microbatches is None else num_microbatches, **options)


def builder_of(name: str) -> Callable[..., Schedule]:
    """Return the function that builds a schedule.

    Raises
    ------
    ScheduleError
        Code ``unknown``; the message lists the known names.

    Examples
    --------
    >>> builder_of("gpipe")(2, 1).name
    'gpipe'
    """
    builder = REGISTRY.get(name) if isinstance(name, str) else None
    if builder is None and callable(name):
        function = getattr(name, "__name__", name)
        message = f"{function} is a function; call it with the numbers of ranks and microbatches."
        raise ScheduleError.of(ScheduleCode.UNKNOWN, message)
    if builder is None:
        raise ScheduleError.of(ScheduleCode.UNKNOWN, f"There is no schedule {quoted(name)}; {expected_names(name)}.")
    return builder


def expected_names(given: object) -> str:
    """Return the hint for an unknown name: the closest match, if any, and all names.

    Examples
    --------
    >>> expected_names("1F1B ")[:20]
    'did you mean 1f1b? e'
    """
    from minipipe.habits import schedule_like  # takes longer to import than a schedule to build

    near = schedule_like(given, REGISTRY) if isinstance(given, str) else None
    return f"{f'did you mean {near}? ' if near else ''}expected one of {', '.join(REGISTRY)}"


def default_chunks(builder: Callable[..., Schedule]) -> int:
    """Return a builder's default number of chunks on each rank.

    Examples
    --------
    >>> default_chunks(REGISTRY["zb-v"]), default_chunks(REGISTRY["gpipe"])
    (2, 1)
    """
    return _parameters(builder).get("chunks_per_rank", 1)


def _parameters(builder: Callable[..., Schedule]) -> dict[str, Any]:
    """Return the optional parameters of a builder with their defaults."""
    code, defaults = builder.__code__, builder.__defaults__ or ()
    return dict(zip(code.co_varnames[code.co_argcount - len(defaults) : code.co_argcount], defaults))

"""The named schedules, and the trade-off of each."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from importlib import import_module
from types import MappingProxyType
from typing import Any, TypeVar

from minipipe.core.schedules.action_table import Schedule
from minipipe.core.schedules.collector import collector_paused
from minipipe.errors import Code, ScheduleError, misuse, quoted

T = TypeVar("T")

# Maps each name to the name of its builder in the package, or in one of its modules,
# and to its trade-off.
_ENTRIES: dict[str, tuple[str, str]] = {
    "sequential": ("sequential", "one rank works, the others wait"),
    "gpipe": ("gpipe", "simple; keeps all microbatches"),
    "1f1b": ("one_f_one_b", "GPipe's time, much less memory"),
    "eager-1f1b": ("eager_1f1b", "more memory, to hide latency"),
    "seq1f1b": ("seq1f1b", "1F1B over slices of sequences"),
    "interleaved-1f1b": (
        "interleaved_1f1b",
        "less bubble; more messages, memory",
    ),
    "looped-bfs": ("looped_bfs", "GPipe, one chunk after the other"),
    "zb-h1": ("zb_h1", "1F1B's memory, less idle; splits B"),
    "zb-h2": ("zb_h2", "no pauses; <2x 1F1B's memory"),
    "interleaved-zb": ("interleaved_zb", "interleaved-1f1b that splits B"),
    "zb-v": ("zb_v", "1F1B's memory, no pauses; V"),
    "v-half": ("v_half", "1/2 of 1F1B's memory, plus 1; V"),
    "v-min": ("v_min", "1/3 of 1F1B's memory, plus 1; V"),
    "dualpipe-v": ("dualpipe_v", "overlaps forward and backward; V"),
    "hanayo": ("hanayo", "Chimera with one copy of weights"),
    "chimera": ("chimera", "1F1B down and up; 2x weights"),
    "bitpipe": ("bitpipe", "a V down and a V up; 2x weights"),
    "dualpipe": ("dualpipe", "dualpipe-v down and up; 2x weights"),
    "pipedream": ("pipedream", "no flush; stale, p versions"),
    "vertical-sync": (
        "vertical_sync",
        "no flush; 1 version per microbatch",
    ),
    "2bw": ("two_buffered", "no flush; stale by 1, 2 versions"),
    "paci": ("paci", "no flush; 1 version, which drifts"),
    "forward-only": ("forward_only", "prediction only; keeps nothing"),
}

# The default is the same for any number of ranks, because results depend on it: dropout
# draws for each microbatch. ``theory.recommended_num_microbatches`` is advice for
# speed.
NUM_MICROBATCHES = 8


class _Builders(Mapping[str, Callable[..., Schedule]]):
    """The builders by name. Each is imported when it is asked for: most commands need
    one.
    """

    def __getitem__(self, name: str) -> Callable[..., Schedule]:
        home, _, function = _ENTRIES[name][0].rpartition(".")
        module = f"minipipe.schedules.{home}".rstrip(".")
        return getattr(import_module(module), function)

    def __contains__(self, name: object) -> bool:
        return name in _ENTRIES

    def __iter__(self) -> Iterator[str]:
        return iter(_ENTRIES)

    def __len__(self) -> int:
        return len(_ENTRIES)

    def __repr__(self) -> str:
        return f"<{len(self)} builders by name>"


REGISTRY: Mapping[str, Callable[..., Schedule]] = _Builders()
TRADES: Mapping[str, str] = MappingProxyType(
    {name: entry[1] for name, entry in _ENTRIES.items()}
)


def build(
    name: str,
    num_ranks: int,
    num_microbatches: int | None = None,
    chunks_per_rank: int | None = None,
    microbatch_group_size: int | None = None,
    microbatches_per_update: int | None = None,
    joined: bool | None = None,
    num_slices: int | None = None,
) -> Schedule:
    """Return a schedule by its name.

    Parameters
    ----------
    name : str
        One of ``REGISTRY``, in upper or lower case.
    num_ranks : int
    num_microbatches : int, optional
        8 by default, on any number of ranks.
    chunks_per_rank : int, optional
        Stages on each rank; the default depends on the schedule.
    microbatch_group_size : int, optional
        For interleaved schedules: the smallest number of microbatches that a rank runs
        through one chunk before it switches to the next chunk.
    microbatches_per_update : int, optional
        For ``"2bw"`` and ``"paci"``: the microbatches of one update.
    joined : bool, optional
        For DualPipe: whether forwards are overlapped with backwards, which takes less
        time than one after the other.
    num_slices : int, optional
        For ``"seq1f1b"``: the slices of a microbatch, which is a sequence; 2 by
        default.

    Returns
    -------
    Schedule

    Raises
    ------
    ScheduleError
        Codes ``name`` and ``value``.

    Examples
    --------
    >>> build("1f1b", num_ranks=4).num_microbatches
    8
    """
    builder = builder_of(name)
    requested = {
        "chunks_per_rank": chunks_per_rank,
        "microbatch_group_size": microbatch_group_size,
        "microbatches_per_update": microbatches_per_update,
        "joined": joined,
        "num_slices": num_slices,
    }
    options = {name: value for name, value in requested.items() if value is not None}
    for option in options:
        if option not in _parameters(builder):
            takers = ", ".join(other for other in REGISTRY if takes(other, option))
            hint = f"Schedules that take it: {takers}"
            raise misuse(f"{name} takes no {option}; leave it out. {hint}.")
    with collector_paused():
        if num_microbatches is None:
            num_microbatches = NUM_MICROBATCHES
        return builder(num_ranks, num_microbatches, **options)


def builder_of(name: str) -> Callable[..., Schedule]:
    """Return the function that builds a schedule.

    An unknown name is refused with the known ones.

    Examples
    --------
    >>> builder_of("gpipe")(2, 1).name
    'gpipe'
    """
    if isinstance(name, str) and spelled(name) in REGISTRY:
        return REGISTRY[spelled(name)]
    message = f"There is no schedule {quoted(name)}; {expected_names(name)}."
    if callable(name):
        function = getattr(name, "__name__", name)
        hint = "call it with the numbers of ranks and microbatches"
        message = f"{function} is a function; {hint}."
    raise ScheduleError.of(Code.NAME, message)


def spelled(name: T) -> T | str:
    """Return the name of a schedule in the case of ``REGISTRY``; any other value
    unchanged.

    Examples
    --------
    >>> spelled("DualPipe"), spelled("mine.csv"), spelled(None)
    ('dualpipe', 'mine.csv', None)
    """
    if isinstance(name, str) and name.lower() in REGISTRY:
        return name.lower()
    return name


def expected_names(name: object) -> str:
    """Return the hint for an unknown name: the closest match, if any, and all names.

    Examples
    --------
    >>> expected_names("1F1B ")[:20]
    'did you mean 1f1b? E'
    """
    # takes longer to import than a schedule to build
    from minipipe.hints import schedule_like

    names = ", ".join(REGISTRY)
    if isinstance(name, str) and (near := schedule_like(name, REGISTRY)):
        return f"did you mean {near}? Expected one of {names}"
    return f"expected one of {names}"


def default_of(builder: Callable[..., Schedule], option: str) -> int:
    """Return the default of an option that counts something; 1 for a builder that has
    no such option.

    Examples
    --------
    >>> (
    ...     default_of(REGISTRY["zb-v"], "chunks_per_rank"),
    ...     default_of(REGISTRY["seq1f1b"], "num_slices"),
    ... )
    (2, 2)
    """
    return _parameters(builder).get(option, 1)


def takes(name: str, option: str) -> bool:
    """Return whether a named schedule has an option.

    Examples
    --------
    >>> takes("zb-v", "chunks_per_rank"), takes("pipedream", "chunks_per_rank")
    (True, False)
    """
    return option in _parameters(builder_of(name))


def _parameters(builder: Callable[..., Schedule]) -> dict[str, Any]:
    """Return the optional parameters of a builder with their defaults."""
    code = builder.__code__
    defaults = builder.__defaults__ or ()
    first = code.co_argcount - len(defaults)
    return dict(zip(code.co_varnames[first : code.co_argcount], defaults))


def check_sizes_of(title: str, *sizes: tuple[str, float | None, float]) -> None:
    """Refuse sizes that differ from the sizes of a table.

    Parameters
    ----------
    title : str
        The title of the table.
    *sizes : (str, number or None, number)
        The name of a size, the requested one, and the table's.

    Raises
    ------
    ScheduleError
        Code ``value``.
    """
    for name, requested, size in sizes:
        if requested not in (None, size):
            problem = f"{name} is {requested}, but {title} has {size:g}"
            raise misuse(f"{problem}; leave {name} out.")

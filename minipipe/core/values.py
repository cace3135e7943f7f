"""Kinds of instruction, each with the values that it reads, takes and gives.

A **value** is data that one instruction leaves for another: an activation, a
gradient, the graph of a microbatch. Every value is given once. A value that must be
taken is taken once, and can be read before that::

    stage s                                stage s + 1

    F(s,k) ------------ x(s+1,k) --------> F(s+1,k)        gives x, graph
      |                                      |
    graph(s,k)                             graph(s+1,k)
      v                                      v
    B(s,k) <------------ g(s,k) ---------- B(s+1,k)        takes x, g, graph

A split backward is an I, which takes `g` and `graph` and gives `rest`, and a W, which
takes `rest`. Between ranks a program has messages: F gives `out`, SEND_F takes it and
gives `sent`, and RECV_F takes that and gives `x`.

Everything else follows from these declarations: which tables are legal
(`core/flow.py`), in which order instructions can run (`core/order.py`), when they
start and end (`core/times.py`), and how much memory a rank holds. None of the files
that derive this knows a kind by its name.

A declaration is a function of a :class:`Site`, so it can depend on the table: the
last stage gives no activation, a frozen stage has no gradient of weights.

Passes add kinds of their own (`passes/kinds.py`), and so do programs
(`schedules/declaring.py`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple

from minipipe.core.nouns import GRADIENTS as GRADIENTS
from minipipe.core.nouns import NOUNS as NOUNS
from minipipe.core.nouns import Noun as Noun

if TYPE_CHECKING:
    from minipipe.core.flow import Flow


class Value(NamedTuple):
    """The name, the stage and the microbatch of a value."""

    name: str
    stage: int
    microbatch: int

    def of(self, microbatch: int) -> Value:
        """Return the same value of another microbatch."""
        return Value(self.name, self.stage, microbatch)


class Uses(NamedTuple):
    """The values that an instruction reads, takes and gives.

    Attributes
    ----------
    takes : tuple of Value
        Each value is taken by at most one instruction, and does not exist after it.
    gives : tuple of Value
        Each value is given by exactly one instruction.
    reads : tuple of Value
        Values that the instruction needs, and that exist after it.
    temporary : str
        The name of a value that exists only while the instruction runs, beside others.

    Examples
    --------
    The F of stage 0 gives an activation to stage 1, and a graph to its own backward.

    >>> Uses(gives=(Value("x", 1, 0), Value("graph", 0, 0))).takes
    ()
    """

    takes: tuple[Value, ...] = ()
    gives: tuple[Value, ...] = ()
    reads: tuple[Value, ...] = ()
    temporary: str = ""


Handler = Callable[..., Any]
"""Runs the instructions of a kind: ``(executor, action, *values) -> values``.
:func:`takes` names the values that it needs, and :func:`gives` those that it returns.
"""


def takes(*names: str) -> Callable[[Handler], Handler]:
    """Name the values that a handler takes: its arguments behind the executor and the
    action, in this order.

    They are names of ``core/nouns.py``. If an instruction takes no such value, as the
    first F takes no activation, the argument is left out; so it has a default, and
    stands behind the others.
    """
    return partial(_named, "takes", names)


def gives(*names: str) -> Callable[[Handler], Handler]:
    """Name the values that a handler gives: it returns the only one, or a tuple of
    all.
    """
    return partial(_named, "gives", names)


def _named(part: str, names: tuple[str, ...], handler: Handler) -> Handler:
    setattr(handler, part, names)
    return handler


class Site(NamedTuple):
    """An instruction in its table.

    Attributes
    ----------
    setting : Flow
        The values of the whole table.
    rank, position : int
        The row, and the index in it.
    stage, microbatch : int
        Of an instruction of a rank, the rank once more, and 0.

    Examples
    --------
    Declarations are called with sites; this one belongs to no table.

    >>> Site(None, rank=0, position=3, stage=1, microbatch=2).value("graph")
    Value(name='graph', stage=1, microbatch=2)
    """

    setting: Flow
    rank: int
    position: int
    stage: int
    microbatch: int

    def value(self, name: str, stage: int | None = None) -> Value:
        """Return a value of this microbatch, of this stage or another one."""
        own = self.stage if stage is None else stage
        return Value(name, own, self.microbatch)

    @property
    def goes_back(self) -> bool:
        """Whether this stage has a backward."""
        setting = self.setting
        is_before = self.stage < setting.first_backward_stage
        return not setting.is_forward_only and not is_before

    @property
    def is_frozen(self) -> bool:
        """Whether this stage has no trained parameters."""
        return self.stage in self.setting.frozen

    def has(self, kind: str) -> bool:
        """Whether the table has an instruction of a kind for this pair."""
        return self.microbatch in self.setting.positions.get((kind, self.stage), ())


class Sites(NamedTuple):
    """All instructions of a kind and stage in a row.

    Attributes
    ----------
    setting : Flow
    rank : int
    kind : str
    stage : int
    positions, microbatches : sequence of int
        Those of each one, in the order of the row.
    """

    setting: Flow
    rank: int
    kind: str
    stage: int
    positions: Sequence[int]
    microbatches: Sequence[int]

    @property
    def places(self) -> Iterator[tuple[int, int]]:
        """The position and the microbatch of each one."""
        return zip(self.positions, self.microbatches)


class Meeting(NamedTuple):
    """Instructions of several ranks that run as one.

    Attributes
    ----------
    key : tuple
        Equal for all of them.
    size : int
        How many they are.

    Examples
    --------
    A barrier of all stages for each microbatch: an instruction of each one meets.

    >>> def meets(site):
    ...     return Meeting(("barrier", site.microbatch), site.setting.num_stages)
    """

    key: tuple[object, ...]
    size: int


def _never(setting: Flow) -> bool:
    return False


def _places(sites: Sites) -> Iterable[object]:
    return [(sites.rank, position) for position in sites.positions]


class Kind(NamedTuple):
    """A kind of instruction.

    Attributes
    ----------
    name : str
        As written in a table.
    uses : function
        From a :class:`Site` to its :class:`Uses`; None if a legal table has no such
        instruction there.
    words : str
        For drawings and sentences.
    lane : str
        The resource of its rank that an instruction occupies: "compute", on which
        instructions run one after another; another lane, which runs beside it; or ""
        for an instruction that takes its rank no time.
    time : str
        The cost that is its duration.
    meets : function, optional
        From a :class:`Site` to the :class:`Meeting` of the instruction.
    message : str
        "send" or "receive" for the half of a message. If sends are buffered, the halves
        do not meet; otherwise a send occupies its rank until the message has arrived.
    is_of_slice : bool
        Whether its time is that of a slice, if sequences are cut into unequal slices.
    is_second : bool
        Whether it can be the second half of an overlapped pair.
    is_backward : bool
        Whether it computes a part of the backward.
    sums_up : bool
        Whether it takes what all microbatches up to its own have left.
    of_rank : bool
        Whether it is an instruction of a rank, and of no stage and microbatch: a row
        has it once, and a table shows its name alone. In an action, its rank stands in
        the place of the stage, and 0 in the place of the microbatch.
    varies : function
        Whether the declarations of microbatches of a stage differ by more than the
        number of the microbatch.
    cases : function
        If they do: from :class:`Sites` to what else the declaration of each depends on.
        Equal cases of a stage have equal declarations. The default declares each by
        itself.

    Examples
    --------
    >>> KINDS["W"].words, KINDS["W"].lane, KINDS["W"].time
    ('backward of the weights', 'compute', 'W')
    """

    name: str
    uses: Callable[[Site], Uses | None]
    words: str
    lane: str = "compute"
    time: str = ""
    meets: Callable[[Site], Meeting] | None = None
    message: str = ""
    is_of_slice: bool = False
    is_second: bool = False
    is_backward: bool = False
    sums_up: bool = False
    of_rank: bool = False
    varies: Callable[[Flow], bool] = _never
    cases: Callable[[Sites], Iterable[object]] = _places


# -- computations ----------------------------------------------------------------------


def _forward(site: Site) -> Uses:
    setting = site.setting
    stage = site.stage
    takes = (site.value("x"),) if stage > 0 else ()
    if stage == setting.num_stages - 1:
        result = site.value("result")
    elif setting.message_cuts[stage]:
        result = site.value("out")
    else:
        result = site.value("x", stage + 1)
    if site.goes_back:
        return Uses(takes, (result, site.value("graph")))
    return Uses(takes, (result,), temporary="graph")


def _backward(site: Site) -> Uses | None:
    if not site.goes_back or site.is_frozen:
        return None
    uses = _gradients(site)
    return uses._replace(gives=(*uses.gives, site.value("dw")))


def _backward_input(site: Site) -> Uses | None:
    if not site.goes_back:
        return None
    uses = _gradients(site)
    if site.is_frozen:
        return uses
    return uses._replace(gives=(*uses.gives, site.value("rest")))


def _gradients(site: Site) -> Uses:
    """Return the uses that B and I have in common."""
    setting = site.setting
    stage = site.stage
    takes = [site.value("graph")]
    gives = []
    if stage < setting.num_stages - 1:
        takes.append(site.value("g"))
    if stage > setting.first_backward_stage:
        if setting.message_cuts[stage - 1]:
            gives.append(site.value("grad out"))
        else:
            gives.append(site.value("g", stage - 1))
    return Uses(tuple(takes), tuple(gives), temporary="rebuilt part")


def _backward_weight(site: Site) -> Uses | None:
    if not site.goes_back or site.is_frozen:
        return None
    return Uses((site.value("rest"),), (site.value("dw"),))


# -- messages --------------------------------------------------------------------------


def _comes_by_message(setting: Flow, name: str, stage: int) -> bool:
    """Whether a stage receives its activation, or its gradient."""
    cut = stage + NOUNS[name].cut
    if cut not in range(setting.num_stages - 1) or not setting.message_cuts[cut]:
        return False
    has_gradient = stage >= setting.first_backward_stage and not setting.is_forward_only
    return name == "x" or has_gradient


def _message(
    letter: str, name: str, out: str, sent: str, step: int
) -> tuple[Kind, ...]:
    """Return the kinds of both halves of a message to the next stage of its way."""
    words = NOUNS[name].words
    half = partial(Kind, lane="")

    def send(site: Site) -> Uses | None:
        to = site.stage + step
        if not _comes_by_message(site.setting, name, to):
            return None
        return Uses((site.value(out),), (site.value(sent, to),))

    def receive(site: Site) -> Uses | None:
        if not _comes_by_message(site.setting, name, site.stage):
            return None
        return Uses((site.value(sent),), (site.value(name),))

    def received(site: Site) -> Meeting:
        return Meeting((words, site.stage, site.microbatch), 2)

    def is_sent(site: Site) -> Meeting:
        return received(site._replace(stage=site.stage + step))

    sends = half(f"SEND_{letter}", send, f"send of the {words}")
    receives = half(f"RECV_{letter}", receive, f"receive of the {words}")
    return (
        sends._replace(message="send", meets=is_sent),
        receives._replace(message="receive", meets=received),
    )


# -- updates ---------------------------------------------------------------------------


def _update(site: Site) -> Uses | None:
    gradients = taken(site, "U", "dw", GRADIENTS)
    if site.is_frozen or not gradients:
        return None
    return Uses(gradients, (site.value("weights"),))


def taken(
    site: Site, kind: str, name: str, given_by: tuple[str, ...]
) -> tuple[Value, ...]:
    """Return the values of a row that an instruction of a stage takes: see
    `Flow.taken`.
    """
    of_row = site.setting.taken(site.rank, kind, site.stage, given_by)
    numbers = of_row.get(site.position)
    if numbers is None:  # an instruction that the row lacks could take any of them
        numbers = [k for k in of_row[-1] if k <= site.microbatch]
    return tuple(Value(name, site.stage, number) for number in numbers)


def gradients_of(sites: Sites, given_by: tuple[str, ...] = GRADIENTS) -> list[object]:
    """Return how far behind its own the microbatches are that each instruction takes."""
    of_row = sites.setting.taken(sites.rank, sites.kind, sites.stage, given_by)
    pairs = zip(sites.microbatches, of_row.values())
    return [tuple([k - other for other in numbers]) for k, numbers in pairs]


# -- the kinds -------------------------------------------------------------------------


def _always(setting: Flow) -> bool:
    return True


_computation = partial(Kind, is_of_slice=True)
_backward_kind = partial(_computation, is_backward=True)
_whole_or_input = partial(_backward_kind, is_second=True)
_KINDS = (
    _computation("F", _forward, "forward", time="F"),
    _whole_or_input("B", _backward, "backward", time="B"),
    _whole_or_input("I", _backward_input, "backward of the inputs", time="I"),
    _backward_kind("W", _backward_weight, "backward of the weights", time="W"),
    *_message("F", "x", "out", "sent", step=1),
    *_message("B", "g", "grad out", "grad sent", step=-1),
    Kind(
        "U",
        _update,
        "update of the weights",
        time="U",
        sums_up=True,
        varies=_always,
        cases=gradients_of,
    ),
)


class _Kinds(dict[str, Kind]):
    def __missing__(self, name: str) -> Kind:
        added_by_passes()  # declares kinds
        return dict(self)[name]


def added_by_passes() -> Mapping[str, Kind]:
    """Load the kinds and values that passes declare, which may also change those of the
    core; return the kinds that frame a step. There are none if there is only the core.
    """
    # on demand: an executor asks for none, and the other file imports this one
    from minipipe.core.familiar import optional

    with optional():
        from minipipe.passes.all_kinds import ADDED

        return ADDED
    return {}


KINDS = _Kinds({kind.name: kind for kind in _KINDS})
"""The kinds of instruction by name."""


def stages_near(value: Value, num_stages: int) -> range:
    """Return the stages whose instructions can give a value."""
    return range(max(0, value.stage - 1), min(num_stages, value.stage + 2))


def cut_of(value: Value) -> int:
    """Return the stage below the stage boundary that a travelling value crosses."""
    return value.stage + NOUNS[value.name].cut

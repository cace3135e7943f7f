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

Programs add kinds of their own (`schedules/declaring.py`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial
from typing import TYPE_CHECKING, NamedTuple

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
    >>> KINDS["O"].words, KINDS["O"].lane, KINDS["O"].time
    ('offload of the activations', 'copy out', 'copy')
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


# Kinds of passes: with one of them in a table, the forward of the last stage computes no
# loss, and its backward takes the gradient of its result.
OF_OUTPUTS: list[str] = []


# -- the state of a pair of stage and microbatch ---------------------------------------


def _state_of(site: Site) -> Value:
    """Return what a pair has for its backward, unless that recomputes it."""
    return site.value("back" if site.has("L") else "graph")


def _offload(site: Site) -> Uses | None:
    if not site.goes_back:
        return None
    return Uses((site.value("graph"),), (site.value("away"),))


def _load(site: Site) -> Uses | None:
    if not site.goes_back:
        return None
    gives = [site.value("back")]
    if site.setting.num_slices > 1:
        gives.append(site.value("kv back"))
    return Uses((site.value("away"),), tuple(gives))


def _recompute(site: Site) -> Uses | None:
    if not site.goes_back:
        return None
    reads = _keys_and_values(site)
    return Uses((_state_of(site),), (site.value("rebuilt"),), reads)


def _keys_and_values(site: Site, of_all: bool = False) -> tuple[Value, ...]:
    """Return the keys and values of earlier slices of the sequence.

    Those of a slice that is offloaded earlier in the row exist again after its L. If
    nothing is offloaded, those of the first slice and of the one before stand for all:
    each slice in between needs the one before it.
    """
    setting = site.setting
    stage = site.stage
    k = site.microbatch
    first = k - k % setting.num_slices
    others = range(first, k)
    if "O" not in setting.kinds and not of_all:
        others = others[:: max(1, len(others) - 1)]
    forwards = setting.positions.get(("F", stage), {})
    offloads = setting.positions.get(("O", stage), {})
    reads = []
    for other in others:
        at = forwards.get(other, -1)
        offloaded_at = offloads.get(other, site.position)
        name = "kv back" if at < offloaded_at < site.position else "kv"
        reads.append(Value(name, stage, other))
    return tuple(reads)


# -- computations ----------------------------------------------------------------------


def _forward(site: Site) -> Uses:
    setting = site.setting
    stage = site.stage
    takes = (site.value("x"),) if stage > 0 else ()
    if stage == setting.num_stages - 1:
        gives = [site.value("result")]
    elif setting.message_cuts[stage]:
        gives = [site.value("out")]
    else:
        gives = [site.value("x", stage + 1)]
    is_last_slice = (site.microbatch + 1) % setting.num_slices == 0
    ends = is_last_slice and not site.goes_back
    keys_values = _keys_and_values(site, of_all=ends)
    if site.goes_back:
        gives.append(site.value("graph"))
    if setting.num_slices > 1 and (site.goes_back or not is_last_slice):
        gives.append(site.value("kv"))
    if site.goes_back:
        return Uses(takes, tuple(gives), keys_values)
    if is_last_slice:  # nothing needs them any more
        return Uses((*takes, *keys_values), tuple(gives), temporary="graph")
    return Uses(takes, tuple(gives), keys_values, "graph")


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
    k = site.microbatch
    is_rebuilt = site.has("R")
    takes = [site.value("rebuilt") if is_rebuilt else _state_of(site)]
    gives = []
    if stage < setting.num_stages - 1 or not setting.kinds.isdisjoint(OF_OUTPUTS):
        takes.append(site.value("g"))
    if stage > setting.first_backward_stage:
        if setting.message_cuts[stage - 1]:
            gives.append(site.value("grad out"))
        else:
            gives.append(site.value("g", stage - 1))
    index = k % setting.num_slices
    if index < setting.num_slices - 1:
        takes.append(site.value("dkv"))
    if index > 0:
        gives.append(Value("dkv", stage, k - 1))
    temporary = "" if is_rebuilt else "rebuilt part"
    return Uses(tuple(takes), tuple(gives), _keys_and_values(site), temporary)


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


# -- gradients of weights --------------------------------------------------------------


def _reduce_gradient(site: Site) -> Uses | None:
    """Declare a sum over replicas. With one replica, the gradients stay as they are."""
    gradients = _taken(site, "REDUCE_GRAD", "dw", GRADIENTS)
    if site.is_frozen or not gradients:
        return None
    gives = (site.value("sum"),)
    if site.setting.num_replicas(site.stage) > 1:
        return Uses(gradients, gives)
    return Uses((), gives, gradients)


def _update(site: Site) -> Uses | None:
    gradients = _taken(site, "U", "dw", GRADIENTS)
    if site.is_frozen or not gradients:
        return None
    gives = (site.value("weights"),)
    if site.setting.num_replicas(site.stage) == 1:
        return Uses(gradients, gives)
    sums = _taken(site, "U", "sum", ("REDUCE_GRAD",))
    own = site.value("sum")
    return Uses(sums if own in sums else (*sums, own), gives)


def _taken(
    site: Site, kind: str, name: str, given_by: tuple[str, ...]
) -> tuple[Value, ...]:
    taken = site.setting.taken(site.rank, kind, site.stage, given_by)
    numbers = taken.get(site.position)
    if numbers is None:  # an instruction that the row lacks could take any of them
        numbers = [k for k in taken[-1] if k <= site.microbatch]
    return tuple(Value(name, site.stage, number) for number in numbers)


# -- meetings --------------------------------------------------------------------------


def _replicas(site: Site) -> Meeting:
    """The first sums of all replicas of a stage meet, the second ones, and so on."""
    number = site.setting.index(site, "REDUCE_GRAD")
    return Meeting(("sum", site.stage, number), site.setting.num_replicas(site.stage))


# -- the kinds -------------------------------------------------------------------------


def _always(setting: Flow) -> bool:
    return True


def _has_slices(setting: Flow) -> bool:
    return setting.num_slices > 1


def _has_states(setting: Flow) -> bool:
    return setting.num_slices > 1 or not setting.kinds.isdisjoint(("R", "L"))


def _states_of(sites: Sites) -> Iterable[object]:
    """Return the slice, and what R, O and L do with the states that it needs."""
    setting = sites.setting
    ks = sites.microbatches
    n = setting.num_slices
    kinds = setting.kinds
    if kinds.isdisjoint(("R", "O", "L")):
        return [k % n for k in ks]
    again, loaded, away = (
        setting.positions.get((kind, sites.stage), {}) for kind in ("R", "L", "O")
    )
    states = [(k % n, k in again, k in loaded) for k in ks]
    if n == 1 or "O" not in kinds:
        return states
    earlier = []
    for position, k in sites.places:
        before = range(1, k % n + 1)
        earlier.append(tuple([away.get(k - i, position) < position for i in before]))
    return zip(states, earlier)


def _gradients_of(sites: Sites) -> Iterator[object]:
    """Yield how far behind its own the microbatches are whose gradients it takes."""
    setting, rank, kind, stage, _, ks = sites
    gradients = setting.taken(rank, kind, stage, GRADIENTS).values()
    sums = setting.taken(rank, kind, stage, ("REDUCE_GRAD",)).values()
    for k, taken, summed in zip(ks, gradients, sums):
        yield tuple([k - n for n in taken]), tuple([k - n for n in summed])


_computation = partial(Kind, is_of_slice=True, cases=_states_of)
_again = partial(_computation, varies=_always)
_backward_kind = partial(_computation, is_backward=True)
_whole_or_input = partial(_backward_kind, is_second=True, varies=_has_states)
_summary = partial(Kind, sums_up=True, varies=_always, cases=_gradients_of)
_sum = partial(_summary, lane="", time="sum", meets=_replicas)
_copy = partial(Kind, time="copy", varies=_always, cases=_states_of)
_KINDS = (
    _computation("F", _forward, "forward", time="F", varies=_has_slices),
    _whole_or_input("B", _backward, "backward", time="B"),
    _whole_or_input("I", _backward_input, "backward of the inputs", time="I"),
    _backward_kind("W", _backward_weight, "backward of the weights", time="W"),
    *_message("F", "x", "out", "sent", step=1),
    *_message("B", "g", "grad out", "grad sent", step=-1),
    _sum("REDUCE_GRAD", _reduce_gradient, "all-reduce of the gradients"),
    _summary("U", _update, "update of the weights", time="U"),
    _again("R", _recompute, "recomputation of the forward", time="R"),
    _copy("O", _offload, "offload of the activations", lane="copy out"),
    _copy("L", _load, "load of the offloaded activations", lane="copy in"),
)
KINDS = {kind.name: kind for kind in _KINDS}
"""The kinds of instruction by name."""


def stages_near(value: Value, num_stages: int) -> range:
    """Return the stages whose instructions can give a value."""
    return range(max(0, value.stage - 1), min(num_stages, value.stage + 2))


def cut_of(value: Value) -> int:
    """Return the stage below the stage boundary that a travelling value crosses."""
    return value.stage + NOUNS[value.name].cut

"""The names of values, and what the verifier says if such a value does not fit.

A :class:`Noun` declares whether a value may stay or travel. Its `tells` turn a fault of
`core/legality.py` into remarks, by the reason of the fault; without one, a remark says
only who takes or gives the value. Faults often have one cause: remarks of the earliest
turn are listed, the others are taken for consequences.

====  =====================================================================
turn  remarks
====  =====================================================================
2, 3  a microbatch on two replicas; a stage boundary that not all cross
4     slices: a forward needs the keys and values of the slices before it, a
      backward gets gradients of its keys and values from those behind it
5     overlaps of anything but a forward and a backward of another microbatch
6     REDUCE_GRAD and U: each gradient is reduced once and applied once, by the
      first one of its row with a microbatch that is at least its own
7     updates of replicas, which come after the sum of their gradients
8     REDUCE_GRAD and U in all stages and replicas, or in none
9     an O with its L, and an R, O or L with a backward
10    R, O and L: F, O, L, R, B or I of a pair come in this order
11    slices whose keys and values are offloaded when a later one needs them
12    all other values
====  =====================================================================
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple

if TYPE_CHECKING:
    from minipipe.core.flow import Flow
    from minipipe.core.values import Value

HOME = "F"
"""The kind whose rank is the rank of its stage for its microbatch."""


class Remark(NamedTuple):
    """A sentence about an instruction, for the verifier.

    Attributes
    ----------
    code : str
        An error code.
    message : str
        A sentence.
    rank : int
    position : int or None
        The instruction; None if it is missing.
    turn : int
    place : tuple of int
        Remarks of one turn are listed in this order.
    """

    code: str
    message: str
    rank: int
    position: int | None = None
    turn: int = 0
    place: tuple[int, ...] = ()


class Fault(NamedTuple):
    """A reason why a table is illegal (`core/legality.py`).

    Attributes
    ----------
    reason : str
        "never given", "elsewhere" or "late" for a value that an instruction lacks;
        "gone" if it reads it, or runs only while it exists, and it was taken before;
        "not yet" if it runs only while it exists, and it is given later;
        "given twice" or "taken twice"; "never taken", or "unread" by a kind
        that reads every such value; "undeclared" for an instruction that no legal table
        has there, "beside" for one that another one excludes.
    flow : Flow
    rank, position : int
        The instruction.
    value : Value or None
    giver : tuple of int or None
        Rank and position of the instruction that gives the value, or of the first one
        that gives or takes it; if it is gone, of the one that took it.
    """

    reason: str
    flow: Flow
    rank: int
    position: int
    value: Value | None = None
    giver: tuple[int, int] | None = None

    @property
    def action(self) -> Any:
        """Stage, kind and number of the microbatch of the instruction."""
        return self.flow.rows[self.rank][self.position]

    @property
    def is_of_rank(self) -> bool:
        """Whether the instruction belongs to its rank, and to no stage."""
        return self.action[1] in self.flow.rank_kinds

    @property
    def other(self) -> str:
        """The instruction that gives the value, and its position."""
        assert self.giver is not None
        rank, position = self.giver
        return f"{self.flow.table.actions[rank][position]} (position {position})"

    def cell(self, kind: str, microbatch: int | None = None) -> str:
        """Return the cell of an instruction of the same stage."""
        stage, _, k = self.action
        return self.flow.cell(stage, kind, k if microbatch is None else microbatch)

    def remark(self, turn: int, code: str, sentence: str, *place: int) -> Remark:
        """Return a remark whose subject is the instruction."""
        rank = self.rank
        position = self.position
        action = self.flow.table.actions[rank][position]
        message = f"Rank {rank}, position {position}: {action} {sentence}"
        return Remark(code, message, rank, position, turn, place or (rank, position))


Tell = Callable[[Fault], Iterator[Remark]]


def plainly(fault: Fault) -> Iterator[Remark]:
    """Tell of a value for which nothing else is declared."""
    assert fault.value is not None
    code, sentence = _PLAIN[fault.reason]
    noun = NOUNS[fault.value.name]
    name = f"{noun.words} of {noun.owner} {fault.value.stage}"
    other = fault.other if fault.giver else ""
    yield fault.remark(12, code, sentence.format(name, other))


_PLAIN = {
    "never given": ("missing", "needs the {}, which nothing gives."),
    "elsewhere": ("placement", "needs the {} from another rank, where {} gives it."),
    "given twice": ("duplicate", "gives the {}, as {} does."),
    "taken twice": ("duplicate", "takes the {}, as {} does."),
    "never taken": ("missing", "gives the {}, which nothing takes."),
    "unread": ("missing", "gives the {}, which something of its row should take."),
    "gone": ("order", "comes after {1}, which takes the {0} that it needs."),
    "not yet": ("order", "comes before {1}, which gives the {0} that it needs."),
}


# -- needless instructions -------------------------------------------------------------


def needless(fault: Fault) -> Iterator[Remark]:
    """Tell of an instruction that no legal table has there."""
    stage = fault.action[0]
    if stage in fault.flow.frozen and not fault.is_of_rank:
        yield fault.remark(1, "frozen", _FROZEN.format(stage))
    else:
        yield fault.remark(12, "missing", "has nothing to take and to give here.")


_FROZEN = "is needless: stage {} is frozen."


def _without_partner(fault: Fault) -> Iterator[Remark]:
    sentence = f"has no partner: stage {fault.action[0]} has no such value to exchange "
    yield fault.remark(1, "missing", f"{sentence}with another rank.")


def mixed(fault: Fault) -> Iterator[Remark]:
    """Tell of an I or W beside a B."""
    sentence = f"comes in addition to {fault.cell('B')}, which includes I and W."
    if fault.action[1] == "W":
        sentence += " Zero-bubble papers write B for the half that minipipe calls I."
    yield fault.remark(1, "unexpected", sentence)


# -- slices ----------------------------------------------------------------------------


def _before_slice(fault: Fault) -> Iterator[Remark]:
    """Tell of a forward before the forward of an earlier slice."""
    assert fault.value is not None
    _, kind, k = fault.action
    if kind == HOME and fault.value.microbatch == k - 1:
        sentence = f"comes before {fault.other}; forwards of a sequence run from its "
        sentence += "first slice to its last, each of which needs the keys and values "
        yield fault.remark(4, "order", f"{sentence}before it.")


def _before_later_slice(fault: Fault) -> Iterator[Remark]:
    """Tell of a backward before the backward of a later slice."""
    sentence = f"comes before {fault.other}; backwards of a sequence run from its last "
    sentence += "slice to its first, which gets gradients from all later ones."
    yield fault.remark(4, "order", sentence)


def _far_from_slice(fault: Fault) -> Iterator[Remark]:
    """Tell of a slice that is on another rank than the first one of its sequence."""
    assert fault.value is not None and fault.giver is not None
    if fault.value.microbatch % fault.flow.num_slices == 0:
        first = fault.cell(HOME, fault.value.microbatch)
        sentence = f"is on another replica than {first}, on rank {fault.giver[0]}; "
        sentence += "a slice needs the keys and values of those before it."
        yield fault.remark(4, "placement", sentence)


def _after_offload(fault: Fault) -> Iterator[Remark]:
    """Tell which O is the first to keep keys and values away."""
    (stage, _, k), positions = fault.action, fault.flow.positions
    offloads = positions.get(("O", stage), {})
    loads = positions.get(("L", stage), {})
    away = []
    for other in range(k - k % fault.flow.num_slices, k):
        begin = offloads.get(other, fault.position)
        if begin < fault.position < loads.get(other, -1):
            away.append((begin, other))
    at, other = min(away)
    sentence = f"needs keys and values that {fault.cell('O', other)} (position {at})"
    yield fault.remark(11, "order", f"{sentence} offloaded.")


# -- gradients of weights --------------------------------------------------------------

GRADIENTS = ("B", "W")
"""The kinds that give gradients of weights."""

_VERBS = {"REDUCE_GRAD": "reduces", "U": "applies"}
_Given = Mapping[int, tuple[int, str]]  # by microbatch, who gives its gradient


def _gradients(fault: Fault) -> Iterator[Remark]:
    """Tell of all that is wrong with the gradients of a stage in a row."""
    flow = fault.flow
    rank = fault.rank
    stage = fault.action[0]
    given: dict[int, tuple[int, str]] = {}
    for kind in GRADIENTS:
        places = flow.sites(rank, kind, stage).places
        given.update((k, (at, kind)) for at, k in places)
    for number, kind in enumerate(_VERBS):
        end = -1
        for at, k in flow.sites(rank, kind, stage).places:
            taken = [other for other in sorted(given) if end < other <= k]
            yield from _early(fault._replace(position=at), given, taken, number)
            end = max(end, k)
        if given:
            yield from _skipped(fault, given, number)


def _early(
    fault: Fault, given: _Given, taken: Sequence[int], number: int
) -> Iterator[Remark]:
    """Tell if a REDUCE_GRAD or U takes nothing, or comes before a gradient."""
    stage, kind, k = fault.action
    microbatch = fault.flow.table.microbatches[k]
    place = fault.rank, number, 0, fault.position
    late = [other for other in taken if given[other][0] > fault.position]
    if stage in fault.flow.frozen:
        yield fault.remark(6, "frozen", _FROZEN.format(stage), *place)
    elif not taken:
        sentence = f"{_VERBS[kind]} no gradient: the gradients of microbatches up to "
        yield fault.remark(
            6, "order", f"{sentence}{microbatch} are already taken.", *place
        )
    elif late:
        other = k if k in late else late[0]
        at, giver = given[other]
        gradient = f"{fault.cell(giver, other)} (position {at})"
        code = "order"
        sentence = f"comes before {gradient}, whose gradient it {_VERBS[kind]}."
        if other != k and kind == "U":
            code = "missing"
            sentence = f"skips {gradient}: it applies all gradients of microbatches "
            sentence += f"up to {microbatch}."
        yield fault.remark(6, code, sentence, *place)


def _skipped(fault: Fault, given: _Given, number: int) -> Iterator[Remark]:
    """Tell if no REDUCE_GRAD, or no U, takes the last gradient of a stage."""
    flow = fault.flow
    rank = fault.rank
    stage = fault.action[0]
    last = max(given)
    kind = [*_VERBS][number]
    first = min(given.values())[0]
    takers = flow.sites(rank, kind, stage).microbatches
    is_due = kind == "U" or flow.num_replicas(stage) > 1
    if takers and takers[-1] < last:
        at, giver = given[last]
        message = f"Rank {rank}, position {at}: no {kind} {_VERBS[kind]} the gradient "
        message += f"of {fault.cell(giver, last)}; the last is "
        message += f"{fault.cell(kind, takers[-1])}."
        yield Remark("missing", message, rank, at, 6, (rank, number, 1, first))
    elif not takers and is_due and kind in flow.kinds:
        message = f"{fault.cell(kind, last)} is missing on rank {rank}: either all "
        message += f"stages have a {kind}, or none."
        yield Remark("missing", message, rank, None, 8, (number, rank, first))


def _unsummed(fault: Fault) -> Iterator[Remark]:
    """Tell of a use of the gradients of replicas before their sum."""
    if fault.is_of_rank:
        if fault.reason != "late":  # `core/order.py` finds it
            yield from plainly(fault)
        return
    yield from _gradients(fault)
    stage, _, k = fault.action
    if fault.value is not None and fault.value.microbatch == k:
        ranks = " and ".join(map(str, fault.flow.table.ranks_of(stage)))
        sentence = f"comes without {fault.cell('REDUCE_GRAD')} before it; stage "
        sentence += f"{stage} has replicas on ranks {ranks}, which must all-reduce "
        yield fault.remark(7, "missing", f"{sentence}their gradients first.")


# -- offloaded and recomputed graphs ---------------------------------------------------

_STATES = ("F", "O", "L", "R", "B", "I")  # the order of a pair


def _alone(fault: Fault) -> Iterator[Remark]:
    """Tell of an R, O or L without what belongs to it."""
    stage, kind, k = fault.action
    missing = f"{fault.cell('B')} or {fault.cell('I')}"
    for own, partner in (("O", "L"), ("L", "O")):
        if kind == own and k not in fault.flow.positions.get((partner, stage), ()):
            missing = fault.cell(partner)
    sentence = f"comes without {missing}; expected both, or neither."
    yield fault.remark(9, "missing", sentence)


def _disordered(fault: Fault) -> Iterator[Remark]:
    """Tell of each instruction of a pair with R, O or L before one that it needs."""
    (stage, _, k), positions = fault.action, fault.flow.positions
    of_stage = {kind: positions.get((kind, stage), {}) for kind in _STATES}
    there = {kind: of_kind[k] for kind, of_kind in of_stage.items() if k in of_kind}
    if there.keys().isdisjoint("ROL"):
        return  # `core/order.py` finds it
    before = -1
    latest = -1
    for at, order in sorted((at, _STATES.index(kind)) for kind, at in there.items()):
        if order > latest:
            before = at
            latest = order
            continue
        sentence = f"comes before {fault.cell(_STATES[order])} (position {at}), which "
        blamed = fault._replace(position=before)
        yield blamed.remark(10, "order", f"{sentence}it needs.", fault.rank, at)


# -- the values ------------------------------------------------------------------------


def _must_be_taken(setting: Flow, stage: int) -> bool:
    return False


class Noun(NamedTuple):
    """A name of values.

    Attributes
    ----------
    words : str
        For messages.
    travels : bool
        Whether it can be taken on another rank than the one that gives it.
    message : tuple of str
        The kinds that send and receive it between ranks.
    may_stay : function
        Whether a legal table can leave such a value of a stage untaken.
    readers : tuple of str
        Kinds that use every such value in the rows in which they stand.
    keeps_weights : bool
        Whether it refers to the weights of its forward: that version of them is kept
        as long as the value.
    is_away : bool
        Whether it takes no memory of its rank.
    adds_up : bool
        Whether it is one of slice i for all slices up to i, and as large as i + 1 ones.
    parts : tuple of str
        The names of the values whose memory it takes, if no size is known of its own.
    tells : mapping
        By the reason of a fault, the function that tells it (`core/legality.py`).
    cut : int
        The stage below the boundary that it crosses, less its own: -1 if it comes from
        the stage before.
    of_rank : bool
        Whether it belongs to a rank, and not to a stage.
    covers : tuple of str
        Kinds that run only while such a value of their stage, or of their rank, exists,
        in the rows that give one.

    Examples
    --------
    >>> NOUNS["x"].words, NOUNS["x"].travels, NOUNS["x"].message
    ('activation', True, ('SEND_F', 'RECV_F'))
    """

    words: str
    travels: bool = False
    message: tuple[str, ...] = ()
    may_stay: Callable[[Flow, int], bool] = _must_be_taken
    readers: tuple[str, ...] = ()
    keeps_weights: bool = False
    is_away: bool = False
    adds_up: bool = False
    parts: tuple[str, ...] = ()
    tells: Mapping[str, Tell] = {}
    cut: int = 0
    of_rank: bool = False
    covers: tuple[str, ...] = ()

    @property
    def owner(self) -> str:
        """The noun of what a value belongs to."""
        return "rank" if self.of_rank else "stage"


def _stays(setting: Flow, stage: int) -> bool:
    return True


def _gradients_stay(setting: Flow, stage: int) -> bool:
    """Whether nothing in the table takes the gradients of a stage."""
    is_summed = setting.num_replicas(stage) > 1 and "REDUCE_GRAD" in setting.kinds
    return not is_summed and "U" not in setting.kinds


def _sums_stay(setting: Flow, stage: int) -> bool:
    return setting.num_replicas(stage) == 1 or "U" not in setting.kinds


_graph = partial(Noun, keeps_weights=True, tells={"late": _disordered})
_AWAY = {"late": _disordered, "never taken": _alone, "never given": _alone}
_SUMS = {"late": _unsummed, "never given": _unsummed, "never taken": _gradients}
_FAR: dict[str, Tell] = {"elsewhere": _far_from_slice}
_DKV = {"late": _before_later_slice}
_keys = partial(Noun, may_stay=_stays)
NOUNS = {
    "x": Noun("activation", travels=True, cut=-1, message=("SEND_F", "RECV_F")),
    "out": Noun("activation to send"),
    "sent": Noun("message with an activation", travels=True, cut=-1),
    "result": Noun("output of the model", may_stay=_stays),
    "graph": _graph("graph"),
    "away": _graph("offloaded graph", is_away=True, tells=_AWAY),
    "back": _graph("loaded graph", parts=("graph",)),
    "rebuilt": _graph("recomputed graph", parts=("graph", "rebuilt part")),
    "rebuilt part": Noun("recomputed part of a graph"),
    "rest": Noun("graph for the gradients of weights", keeps_weights=True),
    "g": Noun("gradient", travels=True, message=("SEND_B", "RECV_B")),
    "grad out": Noun("gradient to send"),
    "grad sent": Noun("message with a gradient", travels=True),
    "dw": Noun(
        "gradients of weights",
        may_stay=_gradients_stay,
        readers=("REDUCE_GRAD",),
        tells=dict.fromkeys(("late", "never taken", "unread"), _gradients),
    ),
    "sum": Noun("summed gradients of weights", may_stay=_sums_stay, tells=_SUMS),
    "weights": Noun("weights", may_stay=_stays),
    "kv": _keys("keys and values", tells={**_FAR, "late": _before_slice}),
    "kv back": _keys("loaded keys and values", tells={**_FAR, "late": _after_offload}),
    "dkv": Noun("gradients of keys and values", adds_up=True, tells=_DKV),
}
"""The names of values."""

REGULAR = ("F", "B", "I", "W", "SEND_F", "RECV_F", "SEND_B", "RECV_B")
"""The kinds that each stage has once for each microbatch, if it has values for them.

Where two of them would give or take the same value, it has the first one, unless the
table shows that it has the others.
"""

NEEDLESS: dict[str, Tell] = {
    **dict.fromkeys(("SEND_F", "RECV_F", "SEND_B", "RECV_B"), _without_partner),
    **dict.fromkeys(_VERBS, _gradients),
    **dict.fromkeys("ROL", _alone),
}
"""By kind, what is said of an instruction that no legal table has there."""

ONCE: frozenset[Tell] = frozenset((_gradients,))
"""Functions that tell the faults of a whole stage in a row."""

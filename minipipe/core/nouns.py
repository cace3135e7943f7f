"""The names of values, and what the verifier says if such a value does not fit.

A :class:`Noun` declares whether a value may stay or travel. Its `tells` turn a fault of
`core/legality.py` into remarks, by the reason of the fault; without one, a remark says
only who takes or gives the value. Faults often have one cause: remarks of the earliest
turn are listed, the others are taken for consequences.

====  =====================================================================
turn  remarks
====  =====================================================================
5     overlaps of anything but a forward and a backward of another microbatch
8     meetings to which not all come
12    all other values
====  =====================================================================

Passes tell of their own values in other turns (`passes/replicas.py`,
`passes/states.py`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
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
        yield fault.remark(1, "frozen", FROZEN.format(stage))
    else:
        yield fault.remark(12, "missing", "has nothing to take and to give here.")


FROZEN = "is needless: stage {} is frozen."


def _without_partner(fault: Fault) -> Iterator[Remark]:
    sentence = f"has no partner: stage {fault.action[0]} has no such value to exchange "
    yield fault.remark(1, "missing", f"{sentence}with another rank.")


def mixed(fault: Fault) -> Iterator[Remark]:
    """Tell of an I or W beside a B."""
    sentence = f"comes in addition to {fault.cell('B')}, which includes I and W."
    if fault.action[1] == "W":
        sentence += " Zero-bubble papers write B for the half that minipipe calls I."
    yield fault.remark(1, "unexpected", sentence)


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


def stays(setting: Flow, stage: int) -> bool:
    """Whether a value may stay untaken: always."""
    return True


def _gradients_stay(setting: Flow, stage: int) -> bool:
    """Whether nothing in the table takes the gradients of a stage."""
    return "U" not in setting.kinds


GRADIENTS = ("B", "W")
"""The kinds that give gradients of weights."""

NOUNS = {
    "x": Noun("activation", travels=True, cut=-1, message=("SEND_F", "RECV_F")),
    "out": Noun("activation to send"),
    "sent": Noun("message with an activation", travels=True, cut=-1),
    "result": Noun("output of the model", may_stay=stays),
    "graph": Noun("graph", keeps_weights=True),
    "rebuilt part": Noun("recomputed part of a graph"),
    "rest": Noun("graph for the gradients of weights", keeps_weights=True),
    "g": Noun("gradient", travels=True, message=("SEND_B", "RECV_B")),
    "grad out": Noun("gradient to send"),
    "grad sent": Noun("message with a gradient", travels=True),
    "dw": Noun("gradients of weights", may_stay=_gradients_stay),
    "weights": Noun("weights", may_stay=stays),
}
"""The names of values."""

REGULAR = ("F", "B", "I", "W", "SEND_F", "RECV_F", "SEND_B", "RECV_B")
"""The kinds that each stage has once for each microbatch, if it has values for them.

Where two of them would give or take the same value, it has the first one, unless the
table shows that it has the others.
"""

NEEDLESS: dict[str, Tell] = dict.fromkeys(REGULAR[4:], _without_partner)
"""By kind, what is said of an instruction that no legal table has there."""

ONCE: set[Tell] = set()
"""Functions of passes that tell the faults of a whole stage in a row."""

CHECKS: list[Callable[[Flow], Iterator[Remark]]] = []
"""Functions of passes, which find further faults of a table."""

"""One action of a rank: a computation or a message of one stage and one microbatch.

File 2 of 13 on the first path through the code (README.md):
after ``core/schedules/one_f_one_b.py``, before ``core/schedules/analysis/dependencies.py``.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from enum import StrEnum
from functools import cached_property, partial
from typing import TYPE_CHECKING, Any, NamedTuple

from minipipe.core.errors import ArgumentError, quoted

if TYPE_CHECKING:
    from minipipe.core.values import Kind


class ActionKind(StrEnum):
    """The kind of an action. The letters are PyTorch's; the zero-bubble papers write B
    for our I.

    A SEND is named after the producing stage, a RECV after the consuming stage:
    ``0SEND_F3`` on one rank matches ``1RECV_F3`` on another. ``0REDUCE_GRAD3`` sums the
    gradients of stage 0 over its replicas, and ``0U3`` updates its parameters: with the
    gradients of all microbatches of that row up to 3 that no earlier one took. ``0R3``
    computes the dropped activations of ``0F3`` again, ``0O3`` offloads activations that
    its backward needs, and ``0L3`` loads them again.

    A kind that a program has declared (:func:`minipipe.schedules.declare`) is also a
    member: ``ActionKind("KEEP")``. Only iteration leaves it out;
    ``minipipe.core.values.KINDS`` has all names.

    Examples
    --------
    >>> ActionKind("I") is ActionKind.BACKWARD_INPUT, ActionKind.SEND_F.is_communication
    (True, True)
    """

    FORWARD = "F"
    BACKWARD = "B"
    BACKWARD_INPUT = "I"
    BACKWARD_WEIGHT = "W"
    SEND_F = "SEND_F"
    RECV_F = "RECV_F"
    SEND_B = "SEND_B"
    RECV_B = "RECV_B"
    REDUCE_GRAD = "REDUCE_GRAD"
    UPDATE = "U"
    RECOMPUTE = "R"
    OFFLOAD = "O"
    LOAD = "L"

    @classmethod
    def _missing_(cls, value: Any) -> ActionKind:
        """Return the member of a kind that a program has declared. Python looks up the
        members above first.
        """
        # on demand: a run of a schedule needs no declarations
        from minipipe.core.schedules.cells import KINDS, is_kind

        if not is_kind(value):
            hint = "schedules.declare(…) adds kinds"
            message = f"{quoted(value)} is not a kind of action; {hint}."
            raise ArgumentError("name", message)
        member = _DECLARED.setdefault(KINDS[value], str.__new__(cls, value))
        member._name_ = member._value_ = str(value)
        return member

    # some Pythons pickle a member by an attribute, which a declared kind is not
    def __reduce_ex__(self, protocol: object) -> tuple[type[ActionKind], tuple[str]]:
        return ActionKind, (str(self),)

    @cached_property
    def declaration(self) -> Kind:
        """Everything that analyses know about the kind."""
        from minipipe.core.values import KINDS  # on demand, as above

        return KINDS[self]

    @cached_property
    def is_communication(self) -> bool:
        """Whether this is a SEND or a RECV."""
        return self.declaration.message != ""

    @cached_property
    def is_backward(self) -> bool:
        """Whether this is B, I or W."""
        return self.declaration.is_backward

    @cached_property
    def is_of_rank(self) -> bool:
        """Whether it belongs to a rank, and to no stage and microbatch."""
        return self.declaration.of_rank


_DECLARED: dict[Kind, ActionKind] = {}
F, B, I, W, SEND_F, RECV_F, SEND_B, RECV_B, REDUCE_GRAD, U, R, O, L = ActionKind


class Slice(NamedTuple):
    """The index of a slice of a sequence: the place of a microbatch in a table whose
    sequences are cut into slices.

    Attributes
    ----------
    sequence, part : int
        Both from 0.

    Examples
    --------
    >>> print(Slice(1, 0), Action(2, ActionKind.FORWARD, Slice(1, 1)))
    1.0 2F1.1
    >>> Slice(1, 0) == (1, 0), Slice(0, 5) < Slice(1, 0)
    (True, True)
    """

    sequence: int
    part: int

    def __str__(self) -> str:
        return f"{self.sequence}.{self.part}"


def number_of(microbatch: Any, num_slices: int) -> int:
    """Return the number of a microbatch, or of a slice in a table with ``num_slices``
    slices in each sequence.

    Examples
    --------
    >>> number_of(3, num_slices=1), number_of(Slice(1, 1), num_slices=2)
    (3, 3)
    """
    if num_slices == 1:
        return microbatch
    return microbatch.sequence * num_slices + microbatch.part


Rows = Sequence[Sequence["Action"]]


def numbered(rows: Rows, num_slices: int) -> Rows:
    """Return rows with the number of each slice in its place; without slices, the rows
    themselves.

    Examples
    --------
    >>> print(
    ...     *numbered([[Action(2, ActionKind.FORWARD, Slice(1, 1))]], num_slices=2)[0]
    ... )
    2F3
    """
    if num_slices == 1:
        return rows
    n = num_slices
    result = []
    for row in rows:
        cells = [(stage, kind, s * n + i) for stage, kind, (s, i) in row]
        result.append(tuple(map(new_action, cells)))
    return tuple(result)


class Action(NamedTuple):
    """The stage, the kind and the microbatch of one action; ``str(action)`` is its cell
    in a schedule.

    Attributes
    ----------
    stage : int
        Index of the stage, from 0; of an instruction of a rank (``kind.is_of_rank``),
        the rank.
    kind : ActionKind
    microbatch : int or Slice
        Index of the microbatch, from 0; a :class:`Slice` in a table of sliced
        sequences.

    Examples
    --------
    >>> str(Action(2, ActionKind.FORWARD, 0))
    '2F0'
    >>> Action.parse("0SEND_F3")
    Action(stage=0, kind=<ActionKind.SEND_F: 'SEND_F'>, microbatch=3)
    """

    stage: int
    kind: ActionKind
    microbatch: Any

    def __str__(self) -> str:
        # the kind of an unchecked action may be a plain string
        if isinstance(self.kind, ActionKind) and self.kind.is_of_rank:
            return str(self.kind)
        return f"{self.stage}{self.kind}{self.microbatch}"

    @classmethod
    def parse(cls, cell: str) -> Action:
        """Read one cell, such as ``"2F0"``.

        Raises
        ------
        ScheduleError
            Code ``syntax``, if the text is not a stage, a kind and a microbatch: also
            of an instruction of a rank, whose cell names no rank. ``"1LOSS0"`` is the
            LOSS of rank 1.
        """
        # on demand: most tables are built, not read
        from minipipe.core.schedules.cells import split_cell

        stage, kind, microbatch = split_cell(cell)
        return cls(stage, ActionKind(kind), microbatch)


# The constructor of a NamedTuple takes twice as long; a large schedule has a million
# actions.
new_action: Callable[[tuple[int, str, int]], Action] = partial(tuple.__new__, Action)

"""One action of a rank: a computation or a message of one stage and one microbatch.

File 2 of 12 on the first path through the code (README.md):
after ``schedules/one_f_one_b.py``, before ``schedules/analysis/dependencies.py``.
"""

from __future__ import annotations

import re
from enum import StrEnum
from typing import Any, NamedTuple

from minipipe.errors import ScheduleCode, ScheduleError


class ActionKind(StrEnum):
    """The kind of an action. The letters are PyTorch's; the zero-bubble papers write B for our I.

    A SEND is named after the producing stage, a RECV after the consuming stage: ``0SEND_F3`` on one rank matches
    ``1RECV_F3`` on another. ``0REDUCE_GRAD3`` sums the gradients of stage 0 over its replicas, and ``0U3`` updates its
    parameters: with the gradients of all microbatches of that row up to 3 that no earlier one took. ``0R3`` computes
    the dropped activations of ``0F3`` again, ``0O3`` offloads activations that its backward needs, and ``0L3`` loads
    them again.

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

    @property
    def is_communication(self) -> bool:
        """Whether this is one of the four SEND and RECV kinds."""
        return self.startswith(("SEND", "RECV"))

    @property
    def is_backward(self) -> bool:
        """Whether this is B, I or W."""
        return self.value in "BIW"


F, B, I, W, SEND_F, RECV_F, SEND_B, RECV_B, REDUCE_GRAD, U, R, O, L = ActionKind


class Slice(NamedTuple):
    """The index of a slice of a sequence: the place of a microbatch in a table whose sequences are cut into slices.

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
    """Return the number of a microbatch, or of a slice of a table with so many in each sequence.

    Examples
    --------
    >>> number_of(3, num_slices=1), number_of(Slice(1, 1), num_slices=2)
    (3, 3)
    """
    return microbatch if num_slices == 1 else microbatch.sequence * num_slices + microbatch.part


# Nine digits are enough. For several thousand digits, int() raises an error of its own.
_CELL = re.compile(rf"(\d{{1,9}})({'|'.join(ActionKind)})(\d{{1,9}})", re.ASCII)


class Action(NamedTuple):
    """The stage, the kind and the microbatch of one action; ``str(action)`` is its cell in a schedule.

    Attributes
    ----------
    stage : int
        Index of the stage, from 0.
    kind : ActionKind
    microbatch : int or Slice
        Index of the microbatch, from 0; a :class:`Slice` in a table of sliced sequences.

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
        return f"{self.stage}{self.kind}{self.microbatch}"

    @classmethod
    def parse(cls, cell: str) -> Action:
        """Read one cell, such as ``"2F0"``.

        Raises
        ------
        ScheduleError
            Code ``syntax``, if the text is not a stage, a kind and a microbatch.
        """
        if not (match := _CELL.fullmatch(cell)):
            from minipipe.hints import not_an_action  # on demand: most cells are actions

            raise ScheduleError.of(ScheduleCode.SYNTAX, f"{not_an_action(cell, _CELL.fullmatch)} {EXPECTED_CELL}")
        return cls(int(match[1]), ActionKind(match[2]), int(match[3]))


EXPECTED_CELL = f"Expected stage, kind and microbatch, such as 2F0; kinds: {', '.join(ActionKind)}."

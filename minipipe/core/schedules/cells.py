"""The cells of a schedule's text: stage, kind and microbatch of an action, such as
``2F0``.
"""

from __future__ import annotations

import re
from collections.abc import Collection

from minipipe.core.errors import Code, ScheduleError, quoted
from minipipe.core.familiar import advised, optional
from minipipe.core.values import KINDS as KINDS

# Nine digits are enough. For several thousand digits, int() raises an error of its own.
_CELL = re.compile(r"(\d{1,9})([A-Z_]+)(\d{1,9})", re.ASCII)
_WITHOUT_STAGE = re.compile(r"([A-Z_]+)\d{1,9}(\.\d{1,9})?", re.ASCII)
_WORD = re.compile(r"[A-Z_]{2,}", re.ASCII)


def is_kind(name: object) -> bool:
    """Whether a kind of this name is declared: by the core, by a pass, or by the
    program.

    Examples
    --------
    >>> is_kind("F"), is_kind("LOSS"), is_kind("G")
    (True, True, False)
    """
    return name in KINDS or name in _kinds_of_passes()


def _kinds_of_passes() -> Collection[str]:
    """Return the kinds that passes declare; none if there is only the core."""
    with optional():
        # on demand: it declares them, and most tables have none
        from minipipe.passes.all_kinds import ADDED

        return ADDED
    return ()


def is_of_rank(cell: str) -> bool:
    """Whether a cell is an instruction of the rank of its row: a kind alone.

    Examples
    --------
    >>> [is_of_rank(cell) for cell in ("LOSS", "1LOSS0", "F0", "LOST")]
    [True, False, False, False]
    """
    return _WORD.fullmatch(cell) is not None and is_kind(cell) and KINDS[cell].of_rank


def split_cell(cell: str) -> tuple[int, str, int]:
    """Return the stage, the kind and the microbatch of a cell.

    Raises
    ------
    ScheduleError
        Code ``syntax``.

    Examples
    --------
    >>> split_cell("2F0")
    (2, 'F', 0)
    """
    match = _CELL.fullmatch(cell)
    if match is None or not is_kind(match[2]):
        hint = advised("hint_for_cell", cell, is_cell, may_omit_stage) or ""
        raise ScheduleError.of(Code.SYNTAX, not_an_action(cell, hint))
    return int(match[1]), match[2], int(match[3])


def is_cell(cell: str) -> bool:
    """Whether a text is an action.

    Examples
    --------
    >>> [is_cell(cell) for cell in ("0F0", "F0", "0G0")]
    [True, False, False]
    """
    match = _CELL.fullmatch(cell)
    return match is not None and is_kind(match[2])


def may_omit_stage(cell: str) -> bool:
    """Whether a cell without a stage is an action if its rank has one stage. Messages
    need their stage.

    Examples
    --------
    >>> [
    ...     may_omit_stage(cell)
    ...     for cell in ("F3", "F3.1", "REDUCE_GRAD3", "SEND_F3", "G3", "0F3")
    ... ]
    [True, True, True, False, False, False]
    """
    match = _WITHOUT_STAGE.fullmatch(cell)
    return match is not None and is_kind(match[1]) and not KINDS[match[1]].message


def not_an_action(cell: object, hint: str = "") -> str:
    """Return a message about a cell that is not an action, with the form of a cell and
    the kinds of the core. The kinds of passes are seldom written by hand.
    """
    of_passes = _kinds_of_passes()
    of_stages = (name for name, kind in KINDS.items() if not kind.of_rank)
    kinds = ", ".join(name for name in of_stages if name not in of_passes)
    if isinstance(cell, str) and len(cell) > 40:  # perhaps a line of another format
        cell = f"{cell[:40]}…"
    expected = f"Expected stage, kind and microbatch, such as 2F0; kinds: {kinds}."
    return f"{quoted(cell)} is not an action.{hint} {expected}"

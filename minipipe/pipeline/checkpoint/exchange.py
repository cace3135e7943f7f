"""What ranks tell each other about a checkpoint: JSON in messages, so that all of them do the same."""

from __future__ import annotations

import json
from typing import Any

import numpy as np

from minipipe.comm import ProcessGroup
from minipipe.errors import CheckpointError, MessageError


def tell(group: ProcessGroup, root: int, value: Any, call: str) -> Any:
    """Return the value of the root on every rank. Collective.

    Parameters
    ----------
    group : ProcessGroup
    root : int
    value : JSON
        Read on the root.
    call : str
        What every rank must call, for the message of a timeout.

    Raises
    ------
    MessageError
        Code ``step``, where the root is in another collective call.
    """
    sent = _packed(value, call) if group.rank == root else None
    return _unpacked(group, group.broadcast(sent, root, what=_part_of(call)), root, call)


def gather(group: ProcessGroup, value: Any, call: str) -> list[Any]:
    """Return the values of all ranks, by rank, on every rank. Collective; parameters are those of :func:`tell`."""
    rows = group.all_gather(_packed(value, call), what=_part_of(call))
    return [_unpacked(group, row, rank, call) for rank, row in enumerate(rows)]


def raise_first(errors: list[list[str] | None]) -> None:
    """Raise the first error that any rank has told, the same on all.

    Parameters
    ----------
    errors : list of (code, message) or None
        By rank.
    """
    for error in errors:
        if error is not None:
            raise CheckpointError(*error)


def _packed(value: Any, call: str) -> np.ndarray:
    return np.frombuffer(json.dumps({"call": call, "value": value}).encode(), np.uint8)


def _unpacked(group: ProcessGroup, row: np.ndarray, rank: int, call: str) -> Any:
    try:
        told = json.loads(row.tobytes()) if row.dtype == np.uint8 else {}
    except ValueError:
        told = {}
    other = told["call"] if isinstance(told, dict) and "call" in told else "another collective call"
    if other != call:
        message = f"Rank {group.name()} is in {call}, but rank {group.name(rank)} in {other}."
        raise MessageError("step", f"{message} Every rank must make the same calls in the same order.")
    return told["value"]


def _part_of(call: str) -> str:
    return f"its part of {call}, which every rank must call,"

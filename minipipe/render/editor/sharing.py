"""A draft as the fragment of an address: compressed JSON in characters that addresses
allow.
"""

from __future__ import annotations

import json
import zlib
from base64 import urlsafe_b64decode, urlsafe_b64encode
from typing import Any

from minipipe.core.schedules.action import Action
from minipipe.errors import Code, ScheduleError
from minipipe.io import json_value, parse_json
from minipipe.render.editor.draft import MOST, Draft
from minipipe.schedules.features import rank_of_each_stage

_MOST_BYTES = 16 * MOST  # of the JSON


def packed(draft: Draft, costs: str, limit: float | None, puzzle: int) -> str:
    """Return a draft with its costs, limit and puzzle as text.

    Examples
    --------
    >>> draft = Draft("mine", (0, 1), 2, ((Action.parse("0F0"),), ()))
    >>> unpacked(packed(draft, "F=2", None, 0)) == (draft, "F=2", None, 0)
    True
    """
    rows = [" ".join(map(str, row)) for row in draft.rows]
    sizes = (list(draft.placement), draft.num_microbatches)
    content = [draft.name, *sizes, rows, costs, limit, puzzle]
    packed_bytes = zlib.compress(json.dumps(content).encode(), 9)
    return urlsafe_b64encode(packed_bytes).decode().rstrip("=")


def unpacked(text: str) -> tuple[Draft, str, float | None, int]:
    """Return the packed draft, costs, limit and puzzle.

    Raises
    ------
    ScheduleError
        Code ``syntax`` for anything else; the codes of
        :class:`~minipipe.render.editor.draft.Draft`.
    """
    try:
        unzip = zlib.decompressobj()
        packed_bytes = urlsafe_b64decode(text + "=" * (-len(text) % 4))
        data = unzip.decompress(packed_bytes, _MOST_BYTES)
        name, placement, microbatches, rows, costs, limit, puzzle = parse_json(data)
        draft = _checked(name, placement, microbatches, rows)
        costs = json_value(costs, str, "the costs")
        puzzle = json_value(puzzle, int, "the puzzle")
        return draft, costs, limit, puzzle
    except ScheduleError:
        raise
    # The text may also be no JSON, or JSON with other members.
    except (ValueError, TypeError, zlib.error):
        message = (
            "The address holds no schedule: it is truncated, or belongs to another "
            "program."
        )
        raise ScheduleError.of(Code.SYNTAX, message) from None


def _checked(
    name: Any, placement: list[Any], microbatches: Any, rows: list[Any]
) -> Draft:
    stages = tuple(json_value(rank, int, "a rank") for rank in placement)
    cells = (json_value(row, str, "a row").split() for row in rows)
    actions = tuple(tuple(map(Action.parse, row)) for row in cells)
    name = json_value(name, str, "the name")[:60]
    microbatches = json_value(microbatches, int, "microbatches")
    draft = Draft(name, stages, microbatches, actions)
    rank_of_each_stage(draft.whole, "the editor")
    return draft

"""A choice as text, on its way to other ranks."""

from __future__ import annotations

import json
from typing import Any

from minipipe.advice.weighing import Choice
from minipipe.schedules.schedule import Schedule


def text_of(choice: Choice) -> str:
    """Return what a pipeline needs of a choice, as one line."""
    ends, again = [part.stop for part in choice.partition], choice.candidate.recompute
    found = {"name": choice.schedule.name, "csv": choice.schedule.to_csv(), "ends": ends, "recompute": again}
    return json.dumps(found)


def options_of_text(text: str) -> dict[str, Any]:
    """Return the arguments for :class:`minipipe.Pipeline`: ``schedule``, ``partition`` and ``recompute``.

    Examples
    --------
    >>> found = options_of_text('{"name": "mine", "csv": "0F0,0B0", "ends": [3], "recompute": false}')
    >>> found["partition"], found["recompute"]
    ([range(0, 3)], False)
    """
    found = json.loads(text)
    parts = [range(start, end) for start, end in zip([0, *found["ends"]], found["ends"])]
    schedule = Schedule.from_csv(found["csv"], found["name"])
    return {"schedule": schedule, "partition": parts, "recompute": found["recompute"]}

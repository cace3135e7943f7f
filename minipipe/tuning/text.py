"""A choice as text, on its way to other ranks."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from minipipe.comm import ProcessGroup
from minipipe.schedules.action_table import Schedule
from minipipe.tuning.report import Advice, Report
from minipipe.tuning.weighing import Choice


def text_of(choice: Choice) -> str:
    """Return what a pipeline needs of a choice, as one line."""
    ends, again = [part.stop for part in choice.partition], choice.candidate.recompute
    found = {"name": choice.schedule.name, "csv": choice.schedule.to_csv(), "ends": ends, "recompute": again}
    found["frozen"] = sorted(choice.schedule.frozen)
    return json.dumps(found)


def options_of_text(text: str) -> dict[str, Any]:
    """Return the arguments for :class:`minipipe.Pipeline`: ``schedule``, ``partition`` and ``recompute``.

    Examples
    --------
    >>> found = options_of_text('{"name": "mine", "csv": "0F0,0B0", "ends": [3], "recompute": false, "frozen": []}')
    >>> found["partition"], found["recompute"]
    ([range(0, 3)], False)
    """
    found = json.loads(text)
    parts = [range(start, end) for start, end in zip([0, *found["ends"]], found["ends"])]
    schedule = replace(Schedule.from_csv(found["csv"], found["name"]), frozen=frozenset(found["frozen"]))
    return {"schedule": schedule, "partition": parts, "recompute": found["recompute"]}


def choices_of_rank_0(group: ProcessGroup, choices: Sequence[Choice] | None) -> list[dict[str, Any]]:
    """Return the choices of rank 0 on every rank, as arguments for :class:`minipipe.Pipeline`.

    Collective.

    Parameters
    ----------
    group : ProcessGroup
    choices : sequence of Choice
        None on other ranks.
    """
    lines = text_of_rank_0(group, None if choices is None else "\n".join(map(text_of, choices))).splitlines()
    return list(map(options_of_text, lines))


def report_of_rank_0(group: ProcessGroup, advice: Advice | None) -> Report:
    """Return the report of the advice of rank 0 on every rank. Collective.

    Parameters
    ----------
    group : ProcessGroup
    advice : Advice or None
        None on other ranks.
    """
    own = None if advice is None else json.dumps(Report.of(advice))
    return Report(*json.loads(text_of_rank_0(group, own)))


def text_of_rank_0(group: ProcessGroup, text: str | None) -> str:
    """Return the text of rank 0 on every rank. Collective.

    Parameters
    ----------
    group : ProcessGroup
    text : str or None
        None on other ranks.
    """
    own = None if text is None else np.frombuffer(text.encode(), np.uint8)
    return group.broadcast(own, what="choices, which rank 0 makes from measurements,").tobytes().decode()

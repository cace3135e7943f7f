"""What is told of a run: a line for each action as it begins, and where a message that does not come was sent."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from contextlib import suppress
from datetime import datetime
from typing import Any

from minipipe.comm import ProcessGroup
from minipipe.schedules.action import Action
from minipipe.schedules.action_table import Program
from minipipe.schedules.analysis.dependencies import Value

Step = Callable[[Any, Any], None]


def told(steps: list[Step], group: ProcessGroup) -> list[Step]:
    """Return the steps of an executor, each of which says first what it is, if ``MINIPIPE_DEBUG`` asks for it. Local.

    The last line of each rank is what it is at. Lines stay whole: each is written at once.
    """
    if os.environ.get("MINIPIPE_DEBUG", "0") in ("", "0"):
        return steps
    return [_told(step, group) for step in steps]


def _told(step: Step, group: ProcessGroup) -> Step:
    def tell_and_run(executor: Any, batch: Any) -> None:
        now, rank = datetime.now().strftime("%H:%M:%S.%f"), group.name()
        with suppress(Exception):  # closed, full, or None
            sys.stderr.write(f"[rank {rank}] {now} {group.activity.words()}\n")
        step(executor, batch)

    return tell_and_run


def sending_in(program: Program) -> Callable[[Action], int | None]:
    """Return a function that says at which position of another rank's actions an action's value is sent. Local."""

    def sent_at(action: Action) -> int | None:
        value = Value.consumed_by(action)
        row = () if value is None else program.actions[program.placement[value.stage]]
        return row.index(value.send) if value is not None and value.send in row else None

    return sent_at

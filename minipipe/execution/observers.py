"""Observers of an executor that the environment asks for: a journal."""

from __future__ import annotations

import os
import sys
from contextlib import suppress
from datetime import datetime
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from minipipe.comm import ProcessGroup
    from minipipe.core.execution.executor import Executor, Observer
    from minipipe.core.schedules.action import Action


def journal() -> tuple[Observer, ...]:
    """Return the observers that ``MINIPIPE_DEBUG`` requests: a :class:`Journal`, or
    none.
    """
    return () if os.environ.get("MINIPIPE_DEBUG", "0") in ("", "0") else (Journal(),)


class Journal:
    """Writes a line to standard error as each action begins: the last line of a rank is
    its current action.
    """

    def begin(self, executor: Executor, action: Action) -> None:
        """Write a line in one call, so that lines of several ranks do not mix."""
        group: ProcessGroup = executor.group
        now = datetime.now().strftime("%H:%M:%S.%f")
        with suppress(Exception):  # standard error is closed, full, or None
            sys.stderr.write(f"[rank {group.name()}] {now} {group.activity.words()}\n")

    def end(self, executor: Executor, action: Action) -> None:
        """Write nothing."""

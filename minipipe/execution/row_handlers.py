"""The handlers of any row, and the observers that the environment asks for.

An R computes a graph again whose forward has kept only its inputs; an O and an L copy a
graph to a file, and back.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterable
from contextlib import suppress
from datetime import datetime
from functools import wraps
from typing import Any

from minipipe.autograd.memory import behind
from minipipe.autograd.recompute import RecomputedNode
from minipipe.core.autograd import backend
from minipipe.core.execution import handlers as core
from minipipe.core.execution.executor import Executor, Handlers, Observer
from minipipe.core.execution.stage import Stage
from minipipe.core.schedules.action import Action, B, I, L, O, R, W
from minipipe.core.values import Handler, gives, takes


class RecomputingStage(Stage):
    """A stage that can also compute again what its forwards have not kept."""

    def recompute(self, microbatch: int, held: Any) -> None:
        """R: compute the graph of a forward that has kept only its inputs."""
        for node in behind(held.graph):
            if isinstance(node, RecomputedNode) and node.recomputation is not None:
                node.recomputation.root(node.number)


@takes("graph")
@gives("graph")
def recompute(executor: Executor, action: Action, graph: Any) -> Any:
    """Run an R: compute the graph whose inputs its forward has kept."""
    stage: Any = executor.stages[action.stage]
    stage.recompute(action.microbatch, graph)
    return graph


HANDLERS: Handlers = {**core.HANDLERS, R: recompute}
"""The handlers of computations and messages."""

_QUIET: Handlers = {kind: backend.quietly(HANDLERS[kind]) for kind in (B, I, W)}


def handlers_of(row: Iterable[Action], is_half: bool = False) -> Handlers:
    """Return the handlers of a row: its computations, messages and copies to a file.

    Parameters
    ----------
    row : iterable of Action
    is_half : bool
        Whether gradients are in half precision and may overflow. A loss scale notices,
        and NumPy does not warn.
    """
    handlers = HANDLERS
    if is_half:
        handlers = {**HANDLERS, **_QUIET}
    if all(kind not in (O, L) for _, kind, _ in row):
        return handlers
    from minipipe.execution.offloading import Offloading  # most rows copy nothing

    return Offloading().handlers(handlers)


def and_then(handler: Handler, note: Callable[[Executor, Action], None]) -> Handler:
    """Return a handler that runs another one, and then a function of the executor and
    the action.
    """

    @wraps(handler)
    def run(executor: Executor, action: Action, *values: Any) -> Any:
        result = handler(executor, action, *values)
        note(executor, action)
        return result

    run.then = note  # type: ignore[attr-defined]
    return run


# -- observers -------------------------------------------------------------------------


def journal() -> tuple[Observer, ...]:
    """Return the observers that ``MINIPIPE_DEBUG`` requests: a :class:`Journal`, or
    none.
    """
    if os.environ.get("MINIPIPE_DEBUG", "0") in ("", "0"):
        return ()
    return (Journal(),)


class Journal:
    """Writes a line to standard error as each action begins: the last line of a rank is
    its current action.
    """

    def begin(self, executor: Executor, action: Action) -> None:
        """Write a line in one call, so that lines of several ranks do not mix."""
        group = executor.group
        now = datetime.now().strftime("%H:%M:%S.%f")
        with suppress(Exception):  # standard error is closed, full, or None
            sys.stderr.write(f"[rank {group.name()}] {now} {group.activity.words()}\n")

    def end(self, executor: Executor, action: Action) -> None:
        """Write nothing."""

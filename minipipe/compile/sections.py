"""The functions of a stage for one kind of microbatch, from a trace."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from minipipe.compile.script import Script, Section
from minipipe.compile.trace import Trace


class Sections:
    """The sections of a stage, for one kind of its microbatches.

    Parameters
    ----------
    trace : Trace
        Without a graph break.
    name : str
        For tracebacks.
    has_loss : bool
        Whether forward returns the loss, a number, instead of writing its results.

    Attributes
    ----------
    source : str
    lifetimes : list of (str, str)
        The sections in which an array may be made, and read for the last time: a class
        of kept arrays, with slots of its own.
    parameters : dict of str to tuple of str
        By section.
    """

    def __init__(self, trace: Trace, name: str, has_loss: bool) -> None:
        self._trace, self._script, self._has_loss = trace, Script(trace, name), has_loss
        self.source = self._script.source
        names = list(trace.sections)
        self.lifetimes = [(names[0], names[-1])] if len(names) > 1 else []
        self.parameters = {section: self._parameters_of(section) for section in names}

    def _parameters_of(self, section: str) -> tuple[str, ...]:
        is_first = section == "forward"
        found = ["slot0"] * len(self.lifetimes) + ["key"] * is_first
        found += self._trace.inputs[section]
        if not (is_first and self._has_loss):
            results = enumerate(self._trace.results[section])
            found += [f"out{i}" for i, result in results if result != "None"]
        return tuple(found)

    def bind(
        self,
        arrays: Sequence[Any],
        leaves: Sequence[Any],
        num_slots: Sequence[int],
        pool: dict[Any, Any],
    ) -> dict[str, Callable[..., Any]]:
        """Return the functions, by section, over the arrays of the parameters."""
        kept: dict[int, list[Any]] = {}
        sections = self._script.sections
        return {
            section: self._bound(section, function, (arrays, leaves), kept)
            for section, function in sections.items()
        }

    def _bound(
        self,
        section: str,
        function: Section,
        of_parameters: tuple[Sequence[Any], Sequence[Any]],
        kept: dict[int, list[Any]],
    ) -> Callable[..., Any]:
        count = len(self._trace.inputs[section])
        arrays, leaves = of_parameters
        has_slot = bool(self.lifetimes)
        is_first, has_loss = section == "forward", self._has_loss

        def run(*given: Any) -> Any:
            slot, given = (given[0], given[1:]) if has_slot else (0, given)
            if is_first:
                results, coming = function(arrays, given[0], *given[1 : 1 + count])
                given = given[1:]
            else:
                results, coming = function(arrays, leaves, kept[slot], *given[:count])
            kept[slot] = coming
            if is_first and has_loss:
                return results[0]
            there = [result for result in results if result is not None]
            for out, result in zip(given[count:], there):
                np.copyto(out, result)
            return None

        return run

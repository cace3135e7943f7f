"""A program of a captured step: the lines of a trace as functions, straight-line NumPy without graph or modules.

Lines whose results are never read are dropped. A variable that a later section reads is *kept*: a function returns it
in a list with its results, and the function of the next section takes it out. Any other variable is deleted after its
last use, so that a program holds the same arrays as a graph.
"""

from __future__ import annotations

import linecache
import re
from collections.abc import Callable, Iterable
from itertools import count
from typing import Any
from weakref import finalize

import numpy as np

from minipipe.compile.trace import Line, Trace

Section = Callable[..., tuple[tuple[Any, ...], list[Any]]]
"""``(parameters, leaves, kept, *inputs) -> (results, kept)``; the forward takes ``(parameters, key, *inputs)``."""


_numbers = count()  # of programs: each has its own file name


class Script:
    """Forward and backward of a stage for one microbatch, as straight-line functions.

    Parameters
    ----------
    trace : Trace
        A trace without a graph break.
    name : str
        The name of the program in tracebacks.

    Attributes
    ----------
    source : str
        That of all functions.
    constants : dict
        As in the trace.
    draws : bool
        Whether it reads the key.
    sections : dict of str to function

    Examples
    --------
    >>> from minipipe.compile.trace import Trace, key_of
    >>> trace = Trace(key_of(0, 0, 0))
    >>> trace.begin("forward")
    >>> x = trace.given("x0", np.ones(2))
    >>> _ = trace.returned(x * 2 + x)
    >>> print(Script(trace, "an example").source)
    def forward(parameters, key, x0):
        v0 = x0 * 2
        v1 = v0 + x0
        del v0, x0
        return (v1,), []
    <BLANKLINE>
    """

    def __init__(self, trace: Trace, name: str) -> None:
        self.source = written(trace)
        self.constants, self.draws = trace.constants, trace.draws
        namespace: dict[str, Any] = {
            **trace.functions,
            "numpy": np,
            "__name__": __name__,
        }  # for filters of warnings
        namespace |= dict(trace.constants.values())
        file = f"<{name}, {next(_numbers)}>"
        linecache.cache[file] = (
            len(self.source),
            None,
            self.source.splitlines(keepends=True),
            file,
        )
        finalize(self, linecache.cache.pop, file, None)
        exec(
            compile(self.source, file, "exec"), namespace
        )  # the functions leave the namespace: no reference cycle
        self.sections: dict[str, Section] = {
            section: namespace.pop(section) for section in trace.sections
        }

    def is_like(self, other: Script) -> bool:
        """Return whether two captures have left the same lines and the same constants."""
        return (
            self.source == other.source
            and self.constants.keys() == other.constants.keys()
        )


def written(trace: Trace) -> str:
    """Return the source of a trace: a function for each section."""
    lines = needed_lines(trace)
    names = list(trace.sections)
    functions = []
    kept: list[str] = []
    for i, section in enumerate(names):
        known = [
            *kept,
            *trace.inputs[section],
            *(["key"] if i == 0 else []),
            *_made(lines[section]),
        ]
        later = {
            name
            for each in names[i + 1 :]
            for name in _used(lines[each], trace.results[each])
        }
        coming = [name for name in dict.fromkeys(known) if name in later]
        functions.append(
            _function(section, lines[section], trace, kept, coming, is_first=i == 0)
        )
        kept = coming
    return _renumbered("\n\n".join(functions))


def needed_lines(trace: Trace) -> dict[str, list[Line]]:
    """Return the lines, by section, on which results and effects depend; changes in place count for all views."""
    live: set[str] = {name for results in trace.results.values() for name in results}
    roots = {trace.roots[name] for name in live if name in trace.roots}
    needed: dict[str, list[Line]] = {}
    for section in reversed(trace.sections):
        found = []
        for line in reversed(trace.sections[section]):
            is_read = not live.isdisjoint(line.makes) or any(
                trace.roots[name] in roots for name in line.changes
            )
            if line.has_effect or is_read:
                found.append(line)
                live.update(line.reads)
                roots |= {
                    trace.roots[name] for name in line.reads if name in trace.roots
                }
        needed[section] = found[::-1]
    return {section: needed[section] for section in trace.sections}


def _made(lines: Iterable[Line]) -> list[str]:
    return [name for line in lines for name in line.makes]


def _used(lines: Iterable[Line], results: Iterable[str]) -> set[str]:
    return {name for line in lines for name in line.reads} | set(results)


def _function(
    section: str,
    lines: list[Line],
    trace: Trace,
    kept: list[str],
    coming: list[str],
    is_first: bool,
) -> str:
    results, inputs = trace.results[section], trace.inputs[section]
    body = []
    if is_first:
        head = ", ".join(["parameters", "key", *inputs])
    else:
        head = ", ".join(["parameters", "leaves", "kept", *inputs])
        body += [f"{', '.join(kept)}, = kept", "kept.clear()"] if kept else []
    text = "\n".join(line.text for line in lines) + "\n" + "\n".join(results)
    for letter, given in (("p", "parameters"), ("l", "leaves")):
        used = sorted(set(re.findall(rf"\b{letter}(\d+)\b", text)), key=int)
        body += [f"{letter}{number} = {given}[{number}]" for number in used]
    last = {
        name: i for i, line in enumerate(lines) for name in (*line.makes, *line.reads)
    }
    stays = {*results, *coming, "key"}
    unread = [
        name for name in (*kept, *inputs) if name not in last and name not in stays
    ]
    body += [f"del {', '.join(unread)}"] if unread else []
    for i, line in enumerate(lines):
        body.append(line.text)
        over = [
            n
            for n in dict.fromkeys((*line.reads, *line.makes))
            if last[n] == i and n not in stays and n[0] != "p"
        ]
        body += [f"del {', '.join(over)}"] if over else []
    body.append(
        f"return ({', '.join(results)}{',' * (len(results) == 1)}), [{', '.join(coming)}]"
    )
    return "".join(
        f"{line}\n"
        for line in (f"def {section}({head}):", *(f"    {line}" for line in body))
    )


def _renumbered(source: str) -> str:
    numbers: dict[str, int] = {}
    return re.sub(
        r"\bv(\d+)\b",
        lambda match: f"v{numbers.setdefault(match[1], len(numbers))}",
        source,
    )

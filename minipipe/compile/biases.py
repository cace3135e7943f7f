"""Adds a bias inside the kernel that reads the sum: one launch and one pass over memory
less.

A linear layer and its activation are two operations, and their lines are::

    matmul(x0, p0, out=t0)                      matmul(x0, p0, out=t0)
    t0 += p1                            or
    gelu_erf(t0, v1, v2)                        bias_gelu_erf(t0, p1, v1, v2)

A kernel of :func:`backend.kernel` says by its attribute ``with_bias`` which other one
also takes a bias. The sum is rounded as before, so the bits are the same.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

from minipipe.compile.dialect import new_strides
from minipipe.compile.lines import Form, Line
from minipipe.core.autograd.backend import prod

Lines = dict[str, list[Line]]
_Use = tuple[str, Line]  # a section and a line

_SUM = re.compile(r"\{(v\d+)\} \+= \{(p\d+)\}")
_CALL = re.compile(r"(\w+)\(\{(\w+)\}, (.*)\)")


def with_biases(trace: Any, sections: Lines) -> Lines:
    """Return the lines of all sections, in which kernels add biases.

    Parameters
    ----------
    trace : Trace
    sections : dict of str to list of Line
        Its lines that are needed.
    """
    if not any(hasattr(each, "with_bias") for each in trace.functions.values()):
        return sections
    replaced: dict[int, Line | None] = {}  # by the identity of a line
    for root, uses in _uses(trace, sections).items():
        replaced.update(_fused(trace, root, uses))
    return {
        section: [new for line in lines if (new := replaced.get(id(line), line))]
        for section, lines in sections.items()
    }


def _uses(trace: Any, sections: Lines) -> dict[str, list[_Use]]:
    """Return the lines that use the memory of a variable which is no result."""
    uses: dict[str, list[_Use]] = {}
    for section, lines in sections.items():
        for line in lines:
            for root in set(_roots(trace, line)):
                uses.setdefault(root, []).append((section, line))
    for name in (name for names in trace.results.values() for name in names):
        if name in trace.variables:
            uses.pop(trace.variables[name].root, None)
    return uses


def _roots(trace: Any, line: Line) -> list[str]:
    names = dict.fromkeys((*line.makes, *line.reads, *line.changes))
    return [trace.variables[n].root for n in names if n in trace.variables]


def _fused(
    trace: Any, root: str, uses: list[_Use]
) -> Iterator[tuple[int, Line | None]]:
    """Yield the lines that change, by identity, if the last use of some memory is a
    kernel, and the one before, apart from views, is the sum with a bias.
    """
    *before, (section, last) = uses
    while before and set(_roots(trace, before[-1][1])) == {root}:
        before.pop()  # a view
    call = _CALL.fullmatch(last.form.text)
    if call is None or not before or _roots(trace, last).count(root) != 1:
        return
    of_sum, line = before[-1]
    added = _SUM.fullmatch(line.form.text)
    kernel = getattr(trace.functions.get(call[1]), "with_bias", None)
    if added is None or kernel is None or of_sum != section:
        return
    if not _fits(trace, call[2], *added.groups()):
        return
    text = f"{trace.callable(kernel)}({{{call[2]}}}, {{{added[2]}}}, {call[3]})"
    reads = (*last.reads, added[2])
    yield id(last), last._replace(form=Form(text, text), reads=reads)
    yield id(line), None


def _fits(trace: Any, read: str, total: str, bias: str) -> bool:
    """Return whether a kernel reads all rows of a sum, each with the whole bias."""
    of_read = trace.variables[read]
    of_sum = trace.variables[total]
    of_bias = trace.variables[bias]
    in_order = new_strides(of_sum.shape, of_sum.dtype.itemsize)
    return (
        of_read.root == of_sum.root
        and of_sum.strides == in_order  # as the input of each kernel
        and prod(of_read.shape) == prod(of_sum.shape)
        and of_read.shape[-1:] == of_bias.shape
        and of_read.dtype == of_bias.dtype
    )

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
from typing import Any

from minipipe.compile.lines import Form, Line, roots_of
from minipipe.core.autograd.backend import prod

_SUM = re.compile(r"\{(v\d+)\} \+= \{(p\d+)\}")
_CALL = re.compile(r"(\w+)\(\{(\w+)\}, (.*)\)")


def with_biases(trace: Any, sections: dict[str, list[Line]]) -> dict[str, list[Line]]:
    """Return the lines of all sections, in which kernels add biases.

    Parameters
    ----------
    trace : Trace
    sections : dict of str to list of Line
        Its lines that are needed.
    """
    if not any(hasattr(each, "with_bias") for each in trace.functions.values()):
        return sections
    every = [line for lines in sections.values() for line in lines]
    fused = {section: list(lines) for section, lines in sections.items()}
    for section, lines in sections.items():
        for line in lines:
            if (added := _SUM.fullmatch(line.form.text)) is not None:
                _fuse(trace, fused[section], every, line, *added.groups())
    return fused


def _fuse(
    trace: Any, lines: list[Line], every: list[Line], line: Line, total: str, bias: str
) -> None:
    """Replace the line of a sum in a section, if only a kernel reads it, apart from
    views.
    """
    root = trace.variables[total].root
    later = every[every.index(line) + 1 :]
    users = [(each, _roots(trace, each)) for each in later]
    readers = [
        x for x, roots in users if root in roots and (x.changes or roots != {root})
    ]
    returned = [name for names in trace.results.values() for name in names]
    is_result = root in roots_of(returned, trace.variables)
    if len(readers) != 1 or readers[0] not in lines or is_result:
        return
    call = _CALL.fullmatch(readers[0].form.text)
    if call is None or not _fits(trace, call[2], total, bias):
        return
    kernel = getattr(trace.functions.get(call[1]), "with_bias", None)
    if kernel is None:
        return
    text = f"{trace.callable(kernel)}({{{call[2]}}}, {{{bias}}}, {call[3]})"
    reads = (*readers[0].reads, bias)
    place = lines.index(readers[0])
    lines[place] = readers[0]._replace(form=Form(text, text), reads=reads)
    lines.remove(line)


def _roots(trace: Any, line: Line) -> set[str]:
    return roots_of((*line.makes, *line.reads, *line.changes), trace.variables)


def _fits(trace: Any, read: str, total: str, bias: str) -> bool:
    """Return whether a kernel reads all rows of a sum, each with the whole bias."""
    of_read = trace.variables[read]
    of_sum = trace.variables[total]
    of_bias = trace.variables[bias]
    return (
        of_read.root == of_sum.root
        and of_sum.is_in_c_order  # as the input of each kernel
        and prod(of_read.shape) == prod(of_sum.shape)
        and of_read.shape[-1:] == of_bias.shape
        and of_read.dtype == of_bias.dtype
    )

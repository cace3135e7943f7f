"""Memory of the arrays of a row: one array for all microbatches of a slot.

A row is straight lines, so an array is in use from the first line that names it to the
last one. Arrays that are never in use together lie in the same memory::

    receive_x1_0.start(call)                     x1_0_0 begins
    forward_1(0, x1_0_0, y[0:2])
    backward_1(0, True, x1_0_0, grad_out1_0_0)   x1_0_0 ends
    receive_x1_1.start(call)                     x1_1_0 may lie there

An array that is sent is in use until its receiver has read it. The sender knows that
when it reads a message that the receiver has sent later.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from itertools import islice, pairwise
from types import ModuleType
from typing import Any, NamedTuple

import numpy as np

from minipipe.comm.channel import ReceiveChannel, SendChannel
from minipipe.compile.dialect import dialect_of
from minipipe.compile.messages import until_sent
from minipipe.core.autograd.backend import Array
from minipipe.core.execution.executor import Executor, Route
from minipipe.core.schedules.action import SEND_B, SEND_F, Action, B, F, I
from minipipe.core.schedules.analysis.dependencies import Direction

NAME = re.compile(r"[A-Za-z_]\w*")
"""A name in a line."""
Layout = tuple[tuple[int, ...], Any, ModuleType]
"""The shape, the dtype and the module of an array."""


class Use(NamedTuple):
    """The part of a row in which an array is in use: the first line and the last."""

    name: Any
    first: int
    last: int


def uses_of(
    lines: Sequence[str],
    layouts: Mapping[str, Layout],
    sent: Mapping[str, Sequence[str]],
) -> list[Use]:
    """Return the uses of the arrays of a row.

    Parameters
    ----------
    lines : sequence of str
    layouts : mapping of str to (tuple of int, dtype, module)
        By name of an array.
    sent : mapping of str to sequence of str
        By name of a sent array, received arrays: if one of them is read, the receiver
        has read the sent one.

    Examples
    --------
    >>> lines = [
    ...     "receive_x1_0.start()",
    ...     "forward(x1_0_0, out1_0_0)",
    ...     "send_out1_0.start()",
    ... ]
    >>> lines += ["receive_g1_0.wait()", "backward(x1_0_0, g1_0_0)", "pass"]
    >>> layouts = dict.fromkeys(["x1_0_0", "out1_0_0"], ((2,), float, np))
    >>> for use in uses_of(lines, layouts, {"out1_0_0": ["g1_0_0"]}):
    ...     print(*use)
    x1_0_0 0 4
    out1_0_0 1 4
    """
    named: dict[str, list[int]] = {}
    for number, line in enumerate(lines):
        for name in NAME.findall(line):
            named.setdefault(name, []).append(number)
    around: dict[str, list[int]] = {}  # names around a message, such as send_x1_0
    for name, numbers in named.items():
        around.setdefault(f"{name.partition('_')[2]}_0", []).extend(numbers)
    uses = []
    for name in layouts:
        numbers = sorted([*named.get(name, ()), *around.get(name, ())])
        if not numbers:
            continue
        last = numbers[-1]
        if name in sent:
            reads = [named[each][0] for each in sent[name] if each in named]
            last = max([min(reads, default=len(lines)), *named.get(name, ())])
        if any(".payload(" in lines[number] for number in numbers):
            last = len(lines)  # handlers or the user keep it
        uses.append(Use(name, numbers[0], last))
    return uses


def slots_of(uses: Iterable[Use]) -> list[list[Use]]:
    """Return the uses of each slot, for as few slots as possible.

    Examples
    --------
    >>> slots = slots_of([Use("a", 0, 2), Use("b", 1, 3), Use("c", 3, 4)])
    >>> [[use.name for use in slot] for slot in slots]
    [['a', 'c'], ['b']]
    """
    slots: list[list[Use]] = []
    for use in sorted(uses, key=lambda use: use.first):
        for slot in slots:
            if slot[-1].last < use.first:
                slot.append(use)
                break
        else:
            slots.append([use])
    return slots


class RowMemory:
    """The arrays of a row, which share memory.

    Parameters
    ----------
    lines : sequence of str
        The function of the row.
    layouts : mapping of str to (tuple of int, dtype, module)
        By name, the results of its sections.
    channels : mapping of str to SendChannel or ReceiveChannel
        By name; ``send_x1_0`` has the array ``x1_0_0``.
    sent : mapping of str to sequence of str
        As for :func:`uses_of`.

    Attributes
    ----------
    lines : list of str
        The function, with waits for earlier sends from the same memory.
    arrays : dict of str to array
        By name.
    is_running : bool
        Whether the row has begun and not ended.
    """

    def __init__(
        self,
        lines: Sequence[str],
        layouts: Mapping[str, Layout],
        channels: Mapping[str, Any],
        sent: Mapping[str, Sequence[str]],
    ) -> None:
        names = {f"{name.partition('_')[2]}_0": name for name in channels}
        self._channels = {array: channels[name] for array, name in names.items()}
        self._layouts = dict(layouts)
        for array, channel in self._channels.items():
            if type(channel) in (SendChannel, ReceiveChannel):
                self._layouts[array] = channel.array.shape, channel.array.dtype, np
            else:  # a persistent request owns its memory
                self._layouts.pop(array, None)
        by_layout: dict[Layout, list[Use]] = {}
        for use in uses_of(lines, self._layouts, sent):
            by_layout.setdefault(self._layouts[use.name], []).append(use)
        self._slots = [slot for uses in by_layout.values() for slot in slots_of(uses)]
        waits: dict[int, list[str]] = {}
        for slot in self._slots:
            for earlier, later in pairwise(slot):
                if earlier.name in sent:
                    channel = names[earlier.name]
                    wait = [f"    {line}" for line in until_sent(channel)]
                    waits.setdefault(later.first, []).extend(wait)
        numbered = enumerate(lines)
        self.lines = [
            each for i, line in numbered for each in [*waits.get(i, ()), line]
        ]
        if any(self._is_received_twice(slot) for slot in self._slots):
            self.lines[1:1] = _BEGIN
            self.lines += _END
        self.is_running = False
        self.arrays = self.renewed()

    def _is_received_twice(self, slot: Sequence[Use]) -> bool:
        """Return whether messages of several channels arrive in an array."""
        channels = [self._channels.get(use.name) for use in slot]
        return len(slot) > 1 and any(isinstance(c, ReceiveChannel) for c in channels)

    def renewed(self) -> dict[str, Array]:
        """Return new arrays, by name.

        A message of a failed row may still arrive in the earlier ones.
        """
        arrays: dict[str, Array] = {}
        for slot in self._slots:
            shape, dtype, xp = self._layouts[slot[0].name]
            array = dialect_of(xp).empty(shape, dtype)
            for use in slot:
                arrays[use.name] = array
                if use.name in self._channels:
                    self._channels[use.name].use(array)
        return arrays


_BEGIN = """\
    if memory.is_running:
        globals().update(memory.renewed())
    memory.is_running = True""".splitlines()
_END = ["    memory.is_running = False"]


def read_after(executor: Executor, names: Mapping[Any, str]) -> dict[str, list[str]]:
    """Return, by sent array, the received ones that prove that it has been read.

    Parameters
    ----------
    executor : Executor
    names : mapping of Value to str
        By the value of a message, the name of its array here.
    """
    program = executor.program
    reads_of = dict[str, list[str]]()
    for action, (value, peer, *_) in executor.routes.items():
        if action.kind not in (SEND_F, SEND_B):
            continue
        row = program.actions[peer]
        kinds = _READERS[value.direction]
        reads = [Action(value.consumer_stage, kind, value.microbatch) for kind in kinds]
        position = next((i for i, each in enumerate(row) if each in reads), len(row))
        later = (a for a in row[position:] if a.kind in (SEND_F, SEND_B))
        routes = (Route.of(program, each) for each in later)
        received = (names[r.value] for r in routes if r.peer == executor.group.rank)
        reads_of[names[value]] = [*islice(received, _FEW)]
    return reads_of


_READERS = {Direction.FORWARD: (F,), Direction.BACKWARD: (B, I)}
_FEW = 4  # messages of a receiver: one of the first is read first

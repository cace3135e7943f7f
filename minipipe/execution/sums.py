"""The gradient all-reduce over the replicas of a stage, overlapped with the computations of their ranks.

Replica j of n adds part j of the gradients, and sends the sum to the others; two replicas, one stage::

    rank 0   0B0 0REDUCE_GRAD0 --[1] part 1--.   .-- [2] adds part 0 --[3] sum of part 0--.   .-- [4] has both parts
                                              \\ /                                          \\ /
    rank 1   0B1 0REDUCE_GRAD1 --[1] part 0----'---- [2] adds part 1 --[3] sum of part 1----'---- [4] has both parts

This is a reduce-scatter and an all-gather: every rank sends 2 (n - 1) / n of the gradients. No rank waits at [1]. After
each of its actions a rank checks which messages have arrived, and continues with [2] to [4]; at the end of the step it
waits. In that wait, [2] of all sums comes before [4] of any, so the order in which ranks begin their sums is
irrelevant.
Contributions are added in pairs, in the order of the replicas, so that the bits depend on their number alone.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import pairwise
from math import prod
from time import perf_counter
from types import ModuleType
from typing import Any

from minipipe.autograd import Leaf, backend
from minipipe.autograd.backend import Array
from minipipe.comm import ProcessGroup, Request
from minipipe.comm.message import finish
from minipipe.errors import Code, MicrobatchError, ScheduleError, counted
from minipipe.execution.batch import Batch
from minipipe.execution.executor import Executor, Step
from minipipe.execution.payload import Payload
from minipipe.execution.plan import Plan
from minipipe.execution.stage import Stage
from minipipe.nn.parameter import sum_of_gradients
from minipipe.nn.sequential import parameters_of
from minipipe.nn.shards import pieces_of, sum_in_pairs
from minipipe.schedules.action import REDUCE_GRAD, Action, B, W
from minipipe.schedules.analysis.replicas import gradient_sums


class GradientSums:
    """An observer of the executor that adds gradients by blocks of microbatches, and runs the REDUCE_GRADs of a rank.

    Parameters
    ----------
    plan : Plan
    stages : mapping of int to Stage
        Of this rank.
    group : ProcessGroup
    xp : module
        The array module of the gradients.

    Attributes
    ----------
    last_tag : int
        The tags from here on are free.
    observers : tuple
        Itself; none if all gradients of a stage are added on one rank, in the order of its row.
    """

    def __init__(self, plan: Plan, stages: Mapping[int, Stage], group: ProcessGroup, xp: ModuleType) -> None:
        program = plan.program
        self._group, self._xp, self._ranks_of = group, xp, program.ranks_of
        first_tag = 2 * program.num_stages * program.num_microbatches  # after the executor's tags
        sums = gradient_sums(program)
        number_of = program.number_of
        self._tags = {
            Action(stage, kind, number_of(k)): first_tag + 2 * i
            for i, members in enumerate(sums)
            for stage, kind, k in members
        }
        self.last_tag = first_tag + 2 * len(sums)
        row, self._blocks = program.numbered[group.rank], dict[int, Blocks]()
        for index, stage in stages.items():
            num_blocks = plan.gradient_blocks // len(program.ranks_of(index))
            self._blocks[index] = Blocks(leaves_of(stage), block_size(row, index, num_blocks))
        self._earlier: list[tuple[Leaf, Array | None]] = []
        self._pending, self._sends = list[_Sum](), list[Request]()
        self.observers = (self,) if plan.gradient_blocks > 1 else ()

    def begin(self, accumulate: bool) -> None:
        """Begin a step. Its gradients are added to the gradients of earlier steps as a sum."""
        if not self.observers:
            return
        self._pending, self._sends = [], []
        leaves = [leaf for blocks in self._blocks.values() for leaf in blocks.leaves] if accumulate else []
        self._earlier = [(leaf, leaf.grad) for leaf in leaves]
        for leaf in leaves:
            leaf.grad = None
        for blocks in self._blocks.values():
            blocks.begin()

    def watch(self, action: Action, step: Step) -> Step:
        """Return a step that contributes to a sum; or one that then goes on with the sums that can go on."""
        blocks = self._blocks[action.stage]

        def contribute(executor: Executor, batch: Batch) -> None:
            blocks.finish()
            ranks, where = self._ranks_of(action.stage), (self._group, self._xp)
            found = _Sum(action, ranks, blocks.leaves, where, self._tags[action], batch.step)
            self._pending.append(found)
            executor.record.sums[action] = found.times

        def run_and_advance(executor: Executor, batch: Batch) -> None:
            step(executor, batch)
            if action.kind is B or action.kind is W:
                blocks.note_gradient()
            self.advance()

        return contribute if action.kind is REDUCE_GRAD else run_and_advance

    def advance(self) -> None:
        """Continue the sums whose messages have arrived. Local; waits for nothing."""
        for found in self._pending:
            if found.can_go_on():
                found.go_on()
        over = [found for found in self._pending if found.is_over]
        if over:
            self._sends += [send for found in over for send in found.sends]
            self._pending = [found for found in self._pending if not found.is_over]

    def finish(self) -> None:
        """Wait for all sums. Collective among the replicas of each stage.

        Raises
        ------
        MessageError
            Code ``timeout``, naming the awaited part.
        """
        if not self.observers:
            return
        for is_added in (False, True):
            self._group.activity.round = 1 + is_added  # of two that are blocked on each other, which is ahead
            for found in self._pending:
                if found.is_added == is_added:
                    found.go_on()
        self._group.activity.round = 0
        finish([*self._sends, *(send for found in self._pending for send in found.sends)])
        self._sends, self._pending = [], []
        for blocks in self._blocks.values():
            blocks.finish()
        for leaf, gradient in self._earlier:
            leaf.grad = sum_of_gradients([gradient, leaf.grad])
        self._earlier = []


class Blocks:
    """Adds the gradients of a stage by blocks of microbatches: each block separately, and then the blocks in pairs.

    A block is complete before the next one begins, so there are no more gradients at once than the number of blocks
    has binary digits.

    Parameters
    ----------
    leaves : list of Leaf
    size : int
        Microbatches of a block; 0 if all form one block.
    """

    def __init__(self, leaves: list[Leaf], size: int) -> None:
        self.leaves, self._size = leaves, size
        self.begin()

    def begin(self) -> None:
        """Begin a step."""
        self._num_noted, self._sums = 0, list[tuple[int, list[Array | None]]]()  # (number of blocks, their gradients)

    def note_gradient(self) -> None:
        """Note that the gradient of one more microbatch was added."""
        self._num_noted += 1
        if self._size and self._num_noted % self._size == 0:
            self._sums.append((1, [leaf.grad for leaf in self.leaves]))
            while len(self._sums) > 1 and self._sums[-1][0] == self._sums[-2][0]:
                self._add_last()
            for leaf in self.leaves:
                leaf.grad = None

    def finish(self) -> None:
        """Leave the sum of all blocks in the leaves."""
        while len(self._sums) > 1:
            self._add_last()
        for _, gradients in self._sums:
            for leaf, gradient in zip(self.leaves, gradients):
                leaf.grad = gradient
        self._sums.clear()

    def _add_last(self) -> None:
        (m, left), (n, right) = self._sums[-2:]
        self._sums[-2:] = [(m + n, [sum_of_gradients(pair) for pair in zip(left, right)])]


def block_size(row: Sequence[Action], stage: int, num_blocks: int) -> int:
    """Return the number of microbatches in each of the blocks of a stage in a row; 0 for a single block.

    Raises
    ------
    MicrobatchError
        Code ``out-of-range``, if the microbatches do not divide.
    ScheduleError
        Code ``value``, if the blocks do not follow each other.
    """
    order = [k for s, kind, k in row if s == stage and (kind is B or kind is W)]
    if num_blocks == 1 or not order:
        return 0
    if len(order) % num_blocks:
        message = f"The {len(order)} microbatches of stage {stage} on a rank cannot be divided into {num_blocks} blocks"
        raise MicrobatchError("out-of-range", f"{message} of equal size; give another number of gradient_blocks.")
    size = len(order) // num_blocks
    if any(a // size > b // size for a, b in pairwise(order)) or len({k // size for k in order}) > num_blocks:
        message = (
            f"Stage {stage} does not add the gradients of one block of {counted(size, 'microbatch')} after the other"
        )
        raise ScheduleError.of(Code.VALUE, f"{message}; gradient_blocks needs a schedule that does.")
    return size


class _Sum:
    """One sum under way, of all gradients of a stage. The tags [1] to [4] are explained in this file's picture."""

    def __init__(
        self,
        action: Action,
        ranks: Sequence[int],
        leaves: Sequence[Leaf],
        where: tuple[ProcessGroup, ModuleType],
        tag: int,
        step: int,
    ) -> None:
        self.times = [perf_counter(), 0.0, 0.0]  # when this rank came, when the sum was there, and its bytes
        self.is_added = self.is_over = False
        self._group, self._xp = where
        self._action, self._ranks, self._leaves, self._tag, self._step = action, ranks, leaves, tag, step
        self._place = ranks.index(self._group.rank)
        own = [leaf.grad for leaf in leaves]
        self.times[2] = float(sum(backend.num_bytes(gradient) for gradient in own if gradient is not None))
        self._gradients = [None if gradient is None else backend.contiguous(gradient) for gradient in own]
        self._flat: list[Any] = [
            None if gradient is None else self._xp.reshape(gradient, (-1,)) for gradient in self._gradients
        ]
        self.sends: list[Request] = []  # of copies: nobody waits for them before the end of the step
        self._others = [j for j in range(len(ranks)) if j != self._place]
        self._arriving = self._receives(tag)  # before the sends, which then do not wait for a receiver that sends
        for j in self._others:
            self._send(self._part(j), [j], tag)  # [1]

    def can_go_on(self) -> bool:
        """Whether the messages that it waits for have arrived."""
        return all(self._group.has_arrived(self._ranks[j], self._tag + self.is_added) for j in self._arriving)

    def go_on(self) -> None:
        """Wait for the messages of the others, then add or take their parts."""
        came = {j: Payload.from_message(request.wait(), self._xp).arrays for j, request in self._arriving.items()}
        if not self.is_added:  # [2]
            came[self._place] = self._part(self._place)
            total = [sum_in_pairs(pieces) for pieces in zip(*(came.get(j, []) for j in range(len(self._ranks))))]
            came, self._arriving, self.is_added = {self._place: total}, self._receives(self._tag + 1), True
            self._send(total, self._others, self._tag + 1)  # [3]
        else:
            self.is_over = True
        for j, pieces in came.items():
            self._take(j, pieces)
        if self.is_over:  # [4]
            for leaf, gradient, flat in zip(self._leaves, self._gradients, self._flat):
                if gradient is None and flat is not None:
                    leaf.grad = self._xp.reshape(flat, leaf.shape)
                elif leaf.grad is not None and leaf.grad is not gradient:
                    leaf.grad[...] = gradient  # in the memory order that it had
            self.times[1] = perf_counter()

    # -- parts ----------------------------------------------------------------------------------------------

    def _cuts(self, j: int) -> Iterator[tuple[int, slice]]:
        return pieces_of([prod(leaf.shape or ()) for leaf in self._leaves], len(self._ranks), j)

    def _part(self, j: int) -> list[Array | None]:
        return [None if (flat := self._flat[i]) is None else flat[piece] for i, piece in self._cuts(j)]

    def _take(self, j: int, pieces: Sequence[Array | None]) -> None:
        for (i, piece), found in zip(self._cuts(j), pieces):
            if found is not None:
                if self._flat[i] is None:
                    self._flat[i] = self._xp.zeros(prod(self._leaves[i].shape or ()), dtype=found.dtype)
                self._flat[i][piece] = found

    # -- messages -------------------------------------------------------------------------------------------

    def _send(self, pieces: list[Any], destinations: Iterable[int], tag: int) -> None:
        if pieces:
            message = Payload(pieces, [False] * len(pieces), (None,) * len(pieces)).to_message()
            for j in destinations:
                self.sends.append(self._group.isend(message, self._ranks[j], tag, step=self._step))

    def _receives(self, tag: int) -> dict[int, Any]:
        """Return the requests of the incoming messages: first for this rank's part, then for the others' parts."""
        found = {}
        for j in self._others:
            part = self._place if tag == self._tag else j
            if any(True for _ in self._cuts(part)):
                what = "part" if tag == self._tag else "the sum of part"
                words = f"{what} {part} of the gradients of {self._action}"
                found[j] = self._group.irecv(self._ranks[j], tag, step=self._step, what=words)
        return found


def bytes_of_sum(gradients: Sequence[tuple[int, int]], n: int, place: int) -> int:
    """Return the most bytes that a sum over n replicas takes beside its gradients, on one of their ranks.

    These are the parts that it sent, which may be in flight until the end; its own part, to which it added; and the
    parts that it received: [2] or [4] of this file's picture, whichever are more.

    Parameters
    ----------
    gradients : sequence of (int, int)
        The elements of each, and their bytes; 0 if it has none.
    n, place : int
        Of the replicas, and the number of this one.

    Examples
    --------
    >>> bytes_of_sum([(6, 4), (2, 4)], 2, 0), bytes_of_sum([(8, 4)], 4, 0), bytes_of_sum([(8, 4)], 1, 0)
    (48, 56, 0)
    """
    parts = _bytes_of_parts(gradients, n)
    others = sum(parts) - parts[place]
    return others + parts[place] + max(others, (n - 1) * parts[place]) if n > 1 else 0


def bytes_sent_in_sum(gradients: Sequence[tuple[int, int]], n: int, place: int) -> int:
    """Return the bytes of gradients that one rank sends in a sum over n replicas: [1] and [3] of this file's picture.

    For n equal parts they are 2 (n - 1) / n of the gradients. Parameters are as in :func:`bytes_of_sum`.

    Examples
    --------
    >>> bytes_sent_in_sum([(6, 4), (2, 4)], 2, 0), bytes_sent_in_sum([(8, 4)], 4, 0), bytes_sent_in_sum([(8, 4)], 1, 0)
    (32, 48, 0)
    """
    parts = _bytes_of_parts(gradients, n)
    return sum(parts) + (n - 2) * parts[place]


def _bytes_of_parts(gradients: Sequence[tuple[int, int]], n: int) -> list[int]:
    return [
        sum((cut.stop - cut.start) * gradients[i][1] for i, cut in pieces_of([size for size, _ in gradients], n, j))
        for j in range(n)
    ]


def most_sums_of_blocks(num_blocks: int) -> int:
    """Return the maximal number of gradients of each parameter, besides the sum, if they are added in blocks.

    Examples
    --------
    With 4 blocks: the sum of the first two, the third, and, next to the fourth, the sum of the third and the fourth.

    >>> list(map(most_sums_of_blocks, (1, 2, 4, 8)))
    [0, 2, 3, 4]
    """
    ended = (block.bit_count() + block % 2 for block in range(num_blocks))  # and the sum of the last two, of which
    return max(*ended, num_blocks.bit_count()) if num_blocks > 1 else 0


def leaves_of(stage: Stage) -> list[Leaf]:
    """Return the leaves of the gradients that replicas add up: one for each use of a parameter in a stage's layers."""
    uses = (use for layer in stage.module.layers for use in parameters_of(layer) if not use.is_summed)
    return list({id(use.node): use.node for use in uses}.values())

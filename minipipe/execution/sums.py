"""The gradient all-reduce over the replicas of a stage, overlapped with the
computations of their ranks.

Each REDUCE_GRAD of a row begins one (``minipipe/parallel/reduction.py``), and no rank
waits there. After each of its actions a rank continues the all-reduces whose messages
have arrived; at the end of the step it waits for the others.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import pairwise
from math import prod
from time import perf_counter
from types import ModuleType
from typing import Any

import numpy as np

from minipipe.autograd import Leaf
from minipipe.comm import ProcessGroup
from minipipe.core.autograd import backend
from minipipe.core.autograd.backend import Array, sum_of_gradients
from minipipe.core.execution.executor import Executor, Handlers
from minipipe.core.execution.stage import Stage
from minipipe.core.nn.sequential import parameters_of
from minipipe.core.schedules.action import REDUCE_GRAD, Action, B, W
from minipipe.errors import Code, MicrobatchError, ScheduleError, counted
from minipipe.execution.plan import Plan
from minipipe.execution.row_handlers import and_then
from minipipe.parallel.reduction import AllReduce, Channel, equal_parts, finish_all
from minipipe.parallel.repeated import RepeatedAllReduce, is_small
from minipipe.schedules.analysis.replicas import gradient_sums


class GradientSums:
    """The handlers of B, W and REDUCE_GRAD that add gradients by blocks of
    microbatches, and over replicas.

    Parameters
    ----------
    plan : Plan
    stages : mapping of int to Stage
        The stages of this rank.
    group : ProcessGroup
    xp : module
        The array module of the gradients.

    Attributes
    ----------
    last_tag : int
        The tags from here on are free.
    rank : int
        This rank.
    """

    def __init__(
        self,
        plan: Plan,
        stages: Mapping[int, Stage],
        group: ProcessGroup,
        xp: ModuleType,
    ) -> None:
        program = plan.program
        self._group = group
        self._xp = xp
        self._ranks_of = program.ranks_of
        self.rank = group.rank
        # after the executor's tags
        first_tag = 2 * program.num_stages * program.num_microbatches
        sums = gradient_sums(program)
        number_of = program.number_of
        self._tags = {
            Action(stage, kind, number_of(k)): first_tag + 2 * i
            for i, members in enumerate(sums)
            for stage, kind, k in members
        }
        self.last_tag = first_tag + 2 * len(sums)
        row = program.numbered[group.rank]
        self._blocks = dict[int, Blocks]()
        for index, stage in stages.items():
            num_blocks = plan.gradient_blocks // len(program.ranks_of(index))
            self._blocks[index] = Blocks(
                leaves_of(stage), block_size(row, index, num_blocks)
            )
        self._earlier: list[tuple[Leaf, Array | None]] = []
        self._under_way = list[_Sum | _SmallSum]()
        self._small = dict[Action, RepeatedAllReduce]()

    def begin(self, accumulate: bool) -> None:
        """Begin a step. Its gradients are added to the gradients of earlier steps as a
        sum.
        """
        if self._under_way:  # of a step that has failed, with messages to come
            self._small.clear()
        self._under_way = []
        leaves = (
            [leaf for blocks in self._blocks.values() for leaf in blocks.leaves]
            if accumulate
            else []
        )
        self._earlier = [(leaf, leaf.grad) for leaf in leaves]
        for leaf in leaves:
            leaf.grad = None
        for blocks in self._blocks.values():
            blocks.begin()

    def handlers(self, handlers: Handlers) -> Handlers:
        """Return handlers of which one contributes to a sum; others also note the
        gradients of each microbatch, if there are several blocks.
        """
        handlers = {**handlers, REDUCE_GRAD: self._contribute}
        if not any(blocks.are_several for blocks in self._blocks.values()):
            return handlers

        def note(executor: Executor, action: Action) -> None:
            self._blocks[action.stage].note_gradient()

        noting: Handlers = {kind: and_then(handlers[kind], note) for kind in (B, W)}
        return {**handlers, **noting}

    def _contribute(self, executor: Executor, action: Action) -> None:
        blocks = self._blocks[action.stage]
        blocks.finish()
        step = executor.batch.step
        reduction: _Sum | _SmallSum
        if (small := self._small_sum(action, blocks.leaves)) is not None:
            reduction = _SmallSum(blocks.leaves, small, step)
        else:
            channel = Channel(self._group, self._tags[action], step, self._xp)
            ranks = self._ranks_of(action.stage)
            reduction = _Sum(action, ranks, blocks.leaves, channel)
        self._under_way.append(reduction)
        executor.record.sums[action] = reduction.times
        if self not in executor.background:
            executor.background.append(self)

    def _small_sum(
        self, action: Action, leaves: Sequence[Leaf]
    ) -> RepeatedAllReduce | None:
        """Return the all-reduce of a REDUCE_GRAD over channels; None if it must have
        messages and arrays of its own in this step.
        """
        gradients: list[Any] = [leaf.grad for leaf in leaves]
        if self._xp is not np or any(map(_is_irregular, gradients)):
            return None
        dtypes = {gradient.dtype for gradient in gradients}
        if len(dtypes) != 1:
            return None
        (dtype,) = dtypes
        known = self._small.get(action)
        if known is None or known.dtype != dtype:
            sizes = tuple(gradient.size for gradient in gradients)
            ranks = self._ranks_of(action.stage)
            if not is_small(sizes, dtype.itemsize, len(ranks)):
                return None
            known = self._small[action] = RepeatedAllReduce(
                *(self._group, self._tags[action], ranks, sizes, dtype),
                _WHAT.format(action),
            )
        return known

    def advance(self) -> None:
        """Continue the all-reduces whose messages have arrived. Local; waits for
        nothing.
        """
        for reduction in self._under_way:
            reduction.advance()

    def finish(self) -> None:
        """Wait for all all-reduces. Collective among the replicas of each stage.

        Raises
        ------
        MessageError
            Code ``timeout``, naming the awaited part.
        """
        finish_all(self._group, self._under_way)
        self._under_way = []
        for blocks in self._blocks.values():
            blocks.finish()
        for leaf, gradient in self._earlier:
            leaf.grad = sum_of_gradients([gradient, leaf.grad])
        self._earlier = []


class Blocks:
    """Adds the gradients of a stage by blocks of microbatches: each block separately,
    and then the blocks in pairs.

    A block is complete before the next one begins, so there are no more gradients at
    once than the number of blocks has binary digits.

    Parameters
    ----------
    leaves : list of Leaf
    size : int
        Microbatches of a block; 0 if all form one block.

    Attributes
    ----------
    are_several : bool
        Whether gradients are taken out of the leaves after each block.
    """

    def __init__(self, leaves: list[Leaf], size: int) -> None:
        self.leaves = leaves
        self._size = size
        self.are_several = size > 0
        self.begin()

    def begin(self) -> None:
        """Begin a step."""
        # (number of blocks, their gradients)
        self._num_noted = 0
        self._sums = list[tuple[int, list[Array | None]]]()

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
        self._sums[-2:] = [
            (m + n, [sum_of_gradients(pair) for pair in zip(left, right)])
        ]


def block_size(row: Sequence[Action], stage: int, num_blocks: int) -> int:
    """Return the number of microbatches in each of the blocks of a stage in a row; 0
    for a single block.

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
        message = (
            f"The {len(order)} microbatches of stage {stage} on a rank cannot be "
            f"divided into {num_blocks} blocks"
        )
        raise MicrobatchError(
            "out-of-range",
            f"{message} of equal size; give another number of gradient_blocks.",
        )
    size = len(order) // num_blocks
    if (
        any(a // size > b // size for a, b in pairwise(order))
        or len({k // size for k in order}) > num_blocks
    ):
        message = (
            f"Stage {stage} does not add the gradients of one block of "
            f"{counted(size, 'microbatch')} after the other"
        )
        raise ScheduleError.of(
            Code.VALUE, f"{message}; gradient_blocks needs a schedule that does."
        )
    return size


_WHAT = "{{}} of the gradients of {}"


def _is_irregular(gradient: Array | None) -> bool:
    """Return whether a gradient does not exist, or its elements are no row."""
    return type(gradient) is not np.ndarray or not gradient.flags.c_contiguous


class _SmallSum:
    """The all-reduce of the small gradients of a stage in a step, over channels."""

    def __init__(
        self, leaves: Sequence[Leaf], reduction: RepeatedAllReduce, step: int
    ) -> None:
        gradients: list[Any] = [leaf.grad for leaf in leaves]
        self.times = [perf_counter(), 0.0, float(reduction.num_bytes)]  # as of _Sum
        self._reduction = reduction
        self.sends = reduction.sends
        reduction.begin([gradient.reshape(-1) for gradient in gradients], step)

    @property
    def round(self) -> int:
        """Return the round, as of AllReduce."""
        return self._reduction.round

    def advance(self) -> None:
        """Continue, if the messages of the round have arrived."""
        if self.round < 3:
            self._reduction.advance()
            self._note_end()

    def go_on(self) -> None:
        """Wait for the messages of the round."""
        self._reduction.go_on()
        self._note_end()

    def _note_end(self) -> None:
        if self.round == 3:
            self.times[1] = perf_counter()


class _Sum(AllReduce):
    """The all-reduce of all gradients of a stage, whose leaves get the sums."""

    def __init__(
        self,
        action: Action,
        ranks: Sequence[int],
        leaves: Sequence[Leaf],
        channel: Channel,
    ) -> None:
        gradients = [leaf.grad for leaf in leaves]
        num_bytes = sum(
            backend.num_bytes(gradient)
            for gradient in gradients
            if gradient is not None
        )
        # when this rank came, when the sum was there, its bytes
        self.times = [perf_counter(), 0.0, float(num_bytes)]
        self._leaves = leaves
        self._gradients = [
            None if gradient is None else backend.contiguous(gradient)
            for gradient in gradients
        ]
        flat = [
            None if gradient is None else channel.xp.reshape(gradient, (-1,))
            for gradient in self._gradients
        ]
        parts = equal_parts(
            tuple(prod(leaf.shape or ()) for leaf in leaves), len(ranks)
        )
        super().__init__(channel, ranks, flat, parts, _WHAT.format(action))

    def go_on(self) -> None:
        """Wait for the messages of the round; behind the last one, give the leaves the
        sums.
        """
        super().go_on()
        if self.round < 3:
            return
        for leaf, gradient, total in zip(self._leaves, self._gradients, self.arrays):
            if gradient is None and total is not None:
                leaf.grad = self._channel.xp.reshape(total, leaf.shape)
            elif leaf.grad is not None and leaf.grad is not gradient:
                leaf.grad[...] = gradient  # in the memory order that it had
        self.times[1] = perf_counter()


def most_sums_of_blocks(num_blocks: int) -> int:
    """Return the maximal number of gradients of each parameter, besides the sum, if
    they are added in blocks.

    Examples
    --------
    With 4 blocks: the sum of the first two, the third, and, next to the fourth, the sum
    of the third and the fourth.

    >>> list(map(most_sums_of_blocks, (1, 2, 4, 8)))
    [0, 2, 3, 4]
    """
    # and the sum of the last two, of which
    ended = (block.bit_count() + block % 2 for block in range(num_blocks))
    return max(*ended, num_blocks.bit_count()) if num_blocks > 1 else 0


def leaves_of(stage: Stage) -> list[Leaf]:
    """Return the leaves of the gradients that replicas add up: one for each use of a
    parameter in a stage's layers.
    """
    uses = (
        use
        for layer in stage.module.layers
        for use in parameters_of(layer)
        if not use.is_summed
    )
    return list({id(use.node): use.node for use in uses}.values())

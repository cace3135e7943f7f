"""The memory of each rank of a plan: parameters, gradients, optimiser state,
activations, messages and copies.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from itertools import chain
from typing import Any, NamedTuple

import numpy as np

from minipipe.core.autograd import backend
from minipipe.core.flow import flow_of
from minipipe.core.nn.parameter import Parameter
from minipipe.core.nn.sequential import parameters_of
from minipipe.core.schedules.action import U
from minipipe.core.schedules.analysis.dependencies import Direction, Transfer
from minipipe.core.schedules.analysis.walk import complete_walk
from minipipe.core.specs import Spec
from minipipe.execution.plan import Plan
from minipipe.execution.sums import most_sums_of_blocks
from minipipe.io import html_table, text_table
from minipipe.nn import Module
from minipipe.nn.fully_sharded import FullySharded
from minipipe.optim.optimiser import Optimiser
from minipipe.parallel.reduction import bytes_of_sum
from minipipe.parallel.repeated import bytes_of_buffers, is_small
from minipipe.schedules import Costs, Schedule
from minipipe.schedules.analysis.activations import memory_levels
from minipipe.schedules.analysis.copies import Copies, copies_held

_MAKER = Spec(
    Optimiser,
    expected="a function that makes one of parameters, such as optim.Adam or "
    "lambda parameters: optim.SGD(parameters, learning_rate=0.1)",
    code="type",
)
_RUN = 2  # microbatches for each rank: a longer run holds no more at once
MakeOptimiser = Callable[[list[Parameter]], Optimiser]


class RankMemory(NamedTuple):
    """The memory of one rank in a training step, in bytes.

    Attributes
    ----------
    parameters : int
        The values of its stages' parameters; a parameter that several stages share
        counts once.
    gradients : int
        One for each use of a trained parameter.
    optimiser_state : int
        The optimiser's state for these parameters.
    activations : int
        The most that graphs hold at once.
    messages : int
        The most that is in flight at once, if every action takes equally long. A rank
        with a late consumer holds more.
    sums : int
        The most memory, besides the gradients, for gradient all-reduces over replicas,
        for gradient blocks and for later updates: parts in flight, and further
        accumulators. All stages of a rank count at the same time. If replicas are fully
        sharded, it also includes the largest layer whole, and its gradients.
    versions : int
        The most memory of older weight versions that backwards still need, on all
        stages at once.

    Examples
    --------
    >>> RankMemory(8, 8, 16, 100, 20).total
    152
    """

    parameters: int
    gradients: int
    optimiser_state: int
    activations: int
    messages: int
    sums: int = 0
    versions: int = 0

    @property
    def total(self) -> int:
        """The sum: an upper bound, unless messages are blocked on a late consumer."""
        return sum(self)


_HEAD = (
    "rank",
    *(name.removesuffix("_state") for name in RankMemory._fields),
    "total bytes",
)


class MemoryPrediction(tuple[RankMemory, ...]):
    """The memory of each rank in a training step: a tuple of :class:`RankMemory`, by
    rank, which prints as a table.

    :meth:`minipipe.Plan.memory` makes it, and lists what is not counted.

    Examples
    --------
    >>> print(MemoryPrediction([RankMemory(8, 8, 16, 1000, 20)]))
    rank  parameters  gradients  optimiser  activations  messages  sums  versions  total bytes
       0           8          8         16        1,000        20     0         0        1,052
    """

    __slots__ = ()

    def __str__(self) -> str:
        return text_table(self._table(), range(len(_HEAD)))

    def _repr_html_(self) -> str:
        return html_table(self._table(), range(len(_HEAD)))

    def _table(self) -> list[tuple[str, ...]]:
        rows = []
        for rank, own in enumerate(self):
            sizes = [f"{size:,}" for size in (*own, own.total)]
            rows.append((str(rank), *sizes))
        return [_HEAD, *rows]


def in_flight(schedule: Schedule, sizes: Sequence[tuple[int, int]]) -> list[int]:
    """Return, by rank, the most bytes that it has in flight: sent, and not yet
    consumed.

    Every action takes equally long. A message lives from its producer's action until
    its consumer's begins.

    Parameters
    ----------
    schedule : Schedule
    sizes : sequence of (int, int)
        By stage, the bytes of its activation, and of the gradient of the activation.

    Examples
    --------
    Eager forwards wait for their consumer, which runs backwards in between.

    >>> from minipipe import schedules
    >>> in_flight(schedules.one_f_one_b(2, 8), [(10, 10), (0, 0)])
    [10, 10]
    >>> in_flight(schedules.eager_1f1b(2, 8), [(10, 10), (0, 0)])
    [20, 10]
    """
    crosses = [schedule.crosses_ranks(stage) for stage in range(schedule.num_stages)]
    held = [0] * schedule.num_ranks
    most = [0] * schedule.num_ranks

    walk = complete_walk(schedule)
    heads = [iter(row) for row in schedule.actions]
    for ranks in walk.rounds:
        actions = [next(heads[rank]) for rank in ranks]
        for sign, value_of in ((-1, Transfer.consumed_by), (1, Transfer.produced_by)):
            for value in filter(None, map(value_of, actions)):
                if 0 <= value.cut < len(crosses) and crosses[value.cut]:
                    size = sizes[value.cut][value.direction is Direction.BACKWARD]
                    held[schedule.rank_of(value.stage, value.microbatch)] += sign * size
        most = list(map(max, most, held))
    return most


def memory_of(
    plan: Plan,
    costs: Costs,
    messages: Sequence[tuple[int, int]],
    optimiser: MakeOptimiser | None,
    stash: bool | None,
) -> MemoryPrediction:
    """Return the memory of each rank of a plan.

    Parameters
    ----------
    plan : Plan
    costs : Costs
        By stage, the memory of one microbatch.
    messages : sequence of (int, int)
        By stage, the bytes of its activation, and of the gradient of the activation.
    optimiser, stash
        As for :meth:`minipipe.Plan.memory`.
    """
    schedule = plan.schedule
    if U in schedule.kinds:
        count = max(schedule.num_microbatches, _RUN * schedule.num_ranks)
        schedule = plan.program_of_run(count).schedule
    levels = memory_levels(schedule, costs.memory(schedule.num_stages))
    sent = in_flight(schedule, messages)
    found = []
    for rank in range(schedule.num_ranks):
        stages = schedule.stages_of(rank)
        own = list(chain.from_iterable(map(plan.part, stages)))
        parameters, gradients, state = kept_bytes(own, optimiser)
        activations = int(max((during for during, _ in levels[rank]), default=0))
        versions = 0
        sums = sum(_sums(plan, stage, rank) for stage in stages)
        sums += _whole_layer(own)
        if schedule.is_forward_only:
            gradients = sums = 0
        elif U in schedule.kinds:
            sums, versions = _copies(plan, schedule, rank, plan.is_stashed(stash))
        found.append(
            RankMemory(
                parameters, gradients, state, activations, sent[rank], sums, versions
            )
        )
    return MemoryPrediction(found)


def kept_bytes(
    layers: Iterable[Module], optimiser: MakeOptimiser | None
) -> tuple[int, int, int]:
    """Return the bytes of the parameters, the gradients and the optimiser's state of
    layers.
    """
    uses = uses_in(layers)
    parameters = list({id(use.owner): use.owner for use in uses}.values())
    own = sum(parameter.nbytes for parameter in parameters)
    return own, gradient_bytes(uses), state_bytes(optimiser, parameters)


def uses_in(layers: Iterable[Module]) -> list[Parameter]:
    """Return the uses of parameters in layers, each once."""
    uses = chain.from_iterable(map(parameters_of, layers))
    return list({id(use): use for use in uses}.values())


def _sums(plan: Plan, stage: int, rank: int) -> int:
    """Return the additional bytes that sums of a stage's gradients over its replicas or
    blocks take.
    """
    ranks = plan.program.ranks_of(stage)
    uses = [use for use in uses_in(plan.part(stage)) if not use.is_summed]
    gradients = [(use.size, gradient_bytes([use])) for use in uses]
    of_blocks = sum(nbytes for _, nbytes in gradients)
    of_blocks *= most_sums_of_blocks(plan.gradient_blocks // len(ranks))
    each = [(size, nbytes // max(1, size)) for size, nbytes in gradients]
    place = len(ranks), ranks.index(rank)
    sizes = tuple(size for size, _ in each)
    itemsizes = {itemsize for _, itemsize in each}
    if len(itemsizes) == 1 and len(ranks) > 1:
        (itemsize,) = itemsizes
        if itemsize and is_small(sizes, itemsize, len(ranks)):
            return max(of_blocks, bytes_of_buffers(sizes, itemsize, *place))
    return max(of_blocks, bytes_of_sum(each, *place))


def _whole_layer(layers: Iterable[Module]) -> int:
    """Return the bytes of the workspace of fully sharded layers, and of as many
    gradients; 0 if there are none.
    """
    parts = (part for layer in layers for part in layer.modules())
    sharded = [part for part in parts if isinstance(part, FullySharded)]
    spaces = {id(part.workspace): part.workspace.sizes for part in sharded}
    total = 0
    for sizes in spaces.values():
        for dtype, size in sizes.items():
            total += 2 * size * backend.numpy_dtype(dtype).itemsize
    return total


def _copies(
    plan: Plan, schedule: Schedule, rank: int, is_stashed: bool
) -> tuple[int, int]:
    """Return the bytes of gradient accumulators that wait for their U, beyond one per
    stage, and of older versions.

    With replicas, each accumulator is sent, arrives from every other replica, and then
    all are added.
    """
    most: dict[int, Copies] = {}
    for held in chain.from_iterable(copies_held(flow_of(schedule), rank)):
        most[held.stage] = Copies(*map(max, held, most.get(held.stage, held)))
    sums = versions = 0
    for stage, held in most.items():
        uses = uses_in(plan.part(stage))
        trained = {id(use.owner): use.nbytes for use in uses if use.requires_grad}
        n = len(plan.program.ranks_of(stage))
        copies = max(0, held.sums - 1)
        if n > 1:
            copies += n * held.sums + 1
        sums += copies * gradient_bytes(uses)
        versions += is_stashed * (held.versions - 1) * sum(trained.values())
    return sums, versions


def state_bytes(
    make_optimiser: MakeOptimiser | None, parameters: Iterable[Parameter]
) -> int:
    """Return the bytes of an optimiser's state for parameters, which need no values
    yet.

    The optimiser takes one step with stand-ins of one element each, and the size of
    their state is scaled up. Frozen parameters have no state.

    Parameters
    ----------
    make_optimiser : function, or None
        ``parameters -> Optimiser``. None has no state.
    parameters : iterable of Parameter

    Raises
    ------
    ArgumentError
        Code ``type``, if the function returns no optimiser.

    Examples
    --------
    >>> from minipipe import nn, optim
    >>> layer = nn.Linear(1000, 1000, bias=False)
    >>> state_bytes(optim.Adam, layer.parameters())
    8000000
    >>> state_bytes(
    ...     lambda parameters: optim.SGD(parameters, learning_rate=0.1),
    ...     layer.parameters(),
    ... )
    0
    """
    trained = [parameter for parameter in parameters if parameter.requires_grad]
    if make_optimiser is None or not trained:
        return 0
    standins = []
    for own in trained:
        blank = np.zeros((1,) * len(own.shape), backend.numpy_dtype(own.dtype))
        standins.append(Parameter(blank))
    optimiser: Any = make_optimiser
    if callable(make_optimiser):
        optimiser = make_optimiser(list(standins))
    if not isinstance(optimiser, Optimiser):
        raise _MAKER.refusal("optimiser", make_optimiser)
    for standin in standins:
        standin.grad = np.zeros_like(standin.data)
    optimiser.step()
    total = 0
    for parameter, standin in zip(trained, standins):
        kept = optimiser._states.get(id(standin), {}).values()
        arrays = filter(backend.is_array, kept)
        total += parameter.size * sum(map(backend.num_bytes, arrays))
    return total


def gradient_bytes(parameters: Iterable[Parameter]) -> int:
    """Return the bytes of the gradients of trained parameters; gradients of halves are
    float32.

    Examples
    --------
    >>> from minipipe import nn
    >>> gradient_bytes(
    ...     [
    ...         nn.Parameter(np.ones(10, np.float32)),
    ...         nn.Parameter(np.ones(10, np.float16)),
    ...     ]
    ... )
    80
    """
    trained = (p for p in parameters if p.requires_grad)
    return sum(p.size * max(4, p.nbytes // max(1, p.size)) for p in trained)

"""The action U: each stage updates its weights while others run on, and a backward uses
the weights of its forward.

The handlers of a run with updates. Positions alone determine which gradients it applies
(``schedules/analysis/copies.py``): each U has a separate sum, to which each of its
microbatches adds::

    row              0F0  0F1  0B0    0U0        0F2  0B1       0U1
    weights          v0   v0   v0     v0 -> v1   v1   v0 again  v1 -> v2      a copy, since 1 or 2 still needs the old
    sum of gradients           of U0  applied         of U1     applied

Before a backward the weights of its forward are put back into the parameters, and
afterwards the newest: so it reads weights of one version, whether it was recorded,
captured or is computed again. That is *weight stashing*. A version that no microbatch
needs any more is updated in place; without stashing, all are, and a backward uses newer
weights.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import wraps
from itertools import chain
from time import perf_counter
from types import ModuleType
from typing import Any, NamedTuple
from weakref import ref

from minipipe.comm import ProcessGroup, Request
from minipipe.comm.objects import pack
from minipipe.core.autograd import backend
from minipipe.core.autograd.backend import Array
from minipipe.core.comm.message import finish
from minipipe.core.execution.executor import Executor, Handlers
from minipipe.core.execution.stage import Stage
from minipipe.core.flow import flow_of
from minipipe.core.memory import pairs_of
from minipipe.core.schedules.action import REDUCE_GRAD, Action, B, F, I, R, U, W
from minipipe.core.schedules.action_table import Program
from minipipe.core.values import Handler
from minipipe.execution.sums import leaves_of
from minipipe.optim import Optimiser
from minipipe.parallel.pairwise import sum_in_pairs
from minipipe.parallel.reduction import Channel, Exchange, opened
from minipipe.schedules.analysis.copies import applied
from minipipe.schedules.analysis.held import lifetimes
from minipipe.schedules.analysis.replicas import gradient_sums

_COMPUTING = (F, B, I, W, R)


class HeldCopies(NamedTuple):
    """The most that a stage held at once during a run.

    Attributes
    ----------
    versions : int
        Versions of its weights, including the newest.
    stashed_bytes : int
        Bytes of all versions except the newest, as long as anything refers to their
        arrays.
    gradient_bytes : int
        Bytes of the sums of gradients that waited for their U.
    """

    versions: int = 1
    stashed_bytes: int = 0
    gradient_bytes: int = 0


class ReplicaSums:
    """The sums over the replicas of a stage that its updates apply: each replica sends
    its gradients to all others.

    ::

        rank 0   0B0 0REDUCE_GRAD0 --.   .-- 0F1  0U0 adds both
                                      \\ /
        rank 2   0B3 0REDUCE_GRAD3 ---'-'--- 0F4  0U3 adds both, in the order of the replicas

    A U waits only for these messages, which are sent without waiting and which the
    verifier knows. In the two rounds of an all-reduce, which sends less from three
    replicas on, it would wait for ranks that may be blocked.

    Parameters
    ----------
    program : Program
    group : ProcessGroup
    xp : module
        The array module of the gradients.
    """

    def __init__(self, program: Program, group: ProcessGroup, xp: ModuleType) -> None:
        self._group = group
        self._xp = xp
        self._ranks_of = program.ranks_of
        # after the executor's tags
        first_tag = 2 * program.num_stages * program.num_microbatches
        self._tags = {
            a: first_tag + i
            for i, each in enumerate(gradient_sums(program))
            for a in each
        }
        # by stage, of its last sum: its receivers have received all before
        self._sends: dict[int, list[Request]] = {}
        self._under_way: dict[tuple[int, int], tuple[Exchange, list[float]]] = {}

    def send(
        self, action: Action, own: Sequence[Array | None], step: int
    ) -> list[float]:
        """Send this rank's gradients of a REDUCE_GRAD; return its times for the record:
        now, the end, and the bytes.
        """
        times = [
            perf_counter(),
            0.0,
            float(sum(backend.num_bytes(each) for each in own if each is not None)),
        ]
        channel = Channel(self._group, self._tags[action], step, self._xp)
        others = channel.others(self._ranks_of(action.stage)) if own else []
        awaited = dict.fromkeys(
            others, f"the gradients of another replica for {action}"
        )
        exchange = Exchange(channel, [(pack(own), others)], awaited)
        self._sends[action.stage] = exchange.sends
        self._under_way[action.stage, action.microbatch] = exchange, times
        return times

    def total(self, update: Action, own: list[Array | None]) -> list[Array | None]:
        """Return the sum that an update applies: this rank's gradients, if the stage
        has no replicas.
        """
        if (key := (update.stage, update.microbatch)) not in self._under_way:
            return own
        exchange, times = self._under_way.pop(key)
        found = {
            rank: opened(message, (), self._xp)
            for rank, message in exchange.wait().items()
        }
        found[self._group.rank], times[1] = own, perf_counter()
        ranks = [rank for rank in self._ranks_of(update.stage) if rank in found]
        return [sum_in_pairs(each) for each in zip(*(found[rank] for rank in ranks))]

    def finish(self) -> None:
        """Wait until the last gradients were taken."""
        finish(chain.from_iterable(self._sends.values()))


class Updating:
    """The handlers of one run that updates the weights of a rank's stages.

    Parameters
    ----------
    program : Program
    rank : int
    stages : mapping of int to Stage
    optimiser : Optimiser
        Over the parameters of these stages.
    is_stashed : bool
        Whether the weights of a forward are kept for its backward.
    sums : ReplicaSums
    """

    def __init__(
        self,
        program: Program,
        rank: int,
        stages: Mapping[int, Stage],
        optimiser: Optimiser,
        is_stashed: bool,
        sums: ReplicaSums,
    ) -> None:
        row = program.actions[rank]
        changes = pairs_of(flow_of(program), with_away=True)
        updates = (
            (row[position], microbatches)
            for position, microbatches in applied(changes, rank).items()
        )
        self._update_of = {
            (action.stage, k): action
            for action, microbatches in updates
            for k in microbatches
        }
        self._ends = {
            row[life.last] for life in lifetimes(changes, rank) if life.last is not None
        }
        self._stages = {
            index: StageWeights(stage, is_stashed) for index, stage in stages.items()
        }
        self._optimiser = optimiser
        self._num_steps = 0
        self._sums = sums

    def handlers(self, handlers: Handlers) -> Handlers:
        """Return handlers that compute with the weights, and for the sum, of their
        microbatch; and that update.
        """
        computing = {
            kind: self._with_own_weights(handler)
            for kind, handler in handlers.items()
            if kind in _COMPUTING
        }
        return {**handlers, **computing, REDUCE_GRAD: self._contribute, U: self._update}

    def _with_own_weights(self, handler: Handler) -> Handler:
        @wraps(handler)
        def run(executor: Executor, action: Action, *values: Any) -> Any:
            stage, kind, k = action
            own = self._stages[stage]
            if kind is F:
                own.keep(k)
            update = self._update_of.get((stage, k)) if kind is B or kind is W else None
            with own.of_microbatch(k, update):
                found = handler(executor, action, *values)
            own.measure()
            if action in self._ends:
                own.release(k)
            return found

        return run

    def _contribute(self, executor: Executor, action: Action) -> None:
        sums = self._stages[action.stage].sums[
            self._update_of[action.stage, action.microbatch]
        ]
        executor.record.sums[action] = self._sums.send(
            action, sums, executor.batch.step
        )

    def _update(self, executor: Executor, action: Action) -> None:
        own = self._stages[action.stage]
        own.sums[action] = self._sums.total(action, own.sums[action])
        own.update(action, self._apply)

    def finish(self) -> dict[int, HeldCopies]:
        """End the run: graphs of other computations that still exist are out of date.
        Return the most that was held.
        """
        for own in self._stages.values():
            for parameter in own.parameters:
                parameter.note_change()
        return {index: own.most for index, own in self._stages.items()}

    def _apply(self, num_updates: int) -> None:
        """Change the parameters that have a gradient now, in one stage. All stages of a
        rank make one step.
        """
        if num_updates > self._num_steps:
            self._num_steps += 1
            self._optimiser.step()
        else:
            self._optimiser.apply()


class StageWeights:
    """The versions of a stage's weights that microbatches need, and the sums of
    gradients that wait for their U.

    Parameters
    ----------
    stage : Stage
    is_stashed : bool

    Attributes
    ----------
    parameters : list of Parameter
        The trained parameters; the others have one version.
    sums : dict of Action to list of array or None
        By update, its sum of gradients so far.
    most : HeldCopies
        The maxima so far.
    """

    def __init__(self, stage: Stage, is_stashed: bool) -> None:
        self.parameters = [
            parameter
            for parameter in stage.parameters.values()
            if parameter.requires_grad
        ]
        self.most = HeldCopies()
        self._leaves = leaves_of(stage)
        self._is_stashed = is_stashed
        self._newest = self._arrays()
        # by microbatch, the weights of its forward
        self._needed: dict[int, list[Array]] = {}
        self.sums: dict[Action, list[Array | None]] = {}
        self._replaced: list[ref[Array]] = []
        self._num_updates = 0

    def keep(self, microbatch: int) -> None:
        """Keep the newest weights for the backward of a microbatch."""
        if self._is_stashed:
            self._needed[microbatch] = self._newest

    def release(self, microbatch: int) -> None:
        """Release the weights that were kept for a microbatch."""
        self._needed.pop(microbatch, None)

    @contextmanager
    def of_microbatch(self, microbatch: int, update: Action | None) -> Iterator[None]:
        """Compute with the weights of a microbatch inside this block; its gradients
        count for an update.
        """
        weights = self._needed.get(microbatch, self._newest)
        self._put(weights)
        if update is not None:
            self._put_gradients(self.sums.pop(update, None))
        try:
            yield
        finally:
            self._put(self._newest)
            if update is not None:
                self.sums[update] = [leaf.grad for leaf in self._leaves]
                self._put_gradients(None)

    def update(self, action: Action, apply: Callable[[int], None]) -> None:
        """Apply the sum of an update."""
        self._put_gradients(self.sums.pop(action))
        if any(leaf.grad is not None for leaf in self._leaves):
            self._num_updates += 1
            if any(weights is self._newest for weights in self._needed.values()):
                self._replaced += map(ref, self._newest)
                self._newest = list(map(backend.copy, self._newest))
                self._put(self._newest)
            changed = [leaf.changed for leaf in self._leaves]
            apply(self._num_updates)
            # The table allows it: a backward reads the weights of its forward or,
            # without a stash, newer ones.
            for leaf, order in zip(self._leaves, changed):
                leaf.changed = order
            self.measure()
        self._put_gradients(None)

    def measure(self) -> None:
        """Note the versions and bytes that are held now."""
        versions = {id(weights) for weights in (*self._needed.values(), self._newest)}
        alive = [array for each in self._replaced if (array := each()) is not None]
        self._replaced = list(map(ref, alive))
        sums = (
            gradient
            for row in self.sums.values()
            for gradient in row
            if gradient is not None
        )
        now = HeldCopies(
            len(versions),
            sum(map(backend.num_bytes, alive)),
            sum(map(backend.num_bytes, sums)),
        )
        self.most = HeldCopies(*map(max, self.most, now))

    def _arrays(self) -> list[Array]:
        return [parameter.data for parameter in self.parameters]

    def _put(self, weights: Sequence[Array]) -> None:
        for parameter, array in zip(self.parameters, weights):
            parameter.data = array

    def _put_gradients(self, gradients: Iterable[Array | None] | None) -> None:
        for leaf, gradient in zip(
            self._leaves, gradients or [None] * len(self._leaves)
        ):
            leaf.grad = gradient

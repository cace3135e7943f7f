"""Training without flushes: a run over many batches, in which the schedule updates the
weights itself.

All batches are one batch of the executor, divided into the microbatches of the whole
run; ``execution/versions.py`` runs the updates. The gradient of an update is the mean
over its microbatches, so each counts by its weight among them.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import partial
from itertools import zip_longest
from math import isfinite
from time import perf_counter
from typing import Any

import numpy as np

from minipipe.comm import ProcessGroup
from minipipe.core.autograd.modes import current_mode, mode, setting
from minipipe.core.execution.executor import Executor
from minipipe.core.execution.payload import Payload
from minipipe.core.execution.record import Record
from minipipe.core.execution.stage import Stage
from minipipe.core.flow import flow_of
from minipipe.core.memory import pairs_of
from minipipe.core.schedules.action import Action, R
from minipipe.core.schedules.action_table import ActionTable
from minipipe.core.specs import Spec
from minipipe.errors import (
    ArgumentError,
    Code,
    MicrobatchError,
    NotFiniteError,
    ScheduleError,
    counted,
)
from minipipe.execution import BatchLoss
from minipipe.execution.checks.calls import check_frozen, part_of
from minipipe.execution.objective import (
    BatchObjective,
    Exchange,
    Loss,
    Weight,
    added,
    shares,
)
from minipipe.execution.plan import Plan
from minipipe.execution.row_handlers import handlers_of
from minipipe.execution.samples import Microbatches, as_given, samples, sizes_of
from minipipe.execution.versions import HeldCopies, ReplicaSums, Updating
from minipipe.nn import Recompute
from minipipe.optim import Optimiser
from minipipe.passes.framing import frame
from minipipe.pipeline.framing import Framing
from minipipe.pipeline.intake import Intake
from minipipe.pipeline.training_call import TrainingCall
from minipipe.schedules.analysis.copies import applied

_OPTIMISER = Spec(
    Optimiser, expected="an optimiser, such as optim.Adam(pipeline.parameters())"
)


class RunLosses(list[BatchLoss]):
    """The losses of a run, batch by batch; each has the losses of its microbatches in
    ``losses``.

    Attributes
    ----------
    copies : dict of int to HeldCopies
        By stage of this rank, the most that it held of versions of its weights and of
        sums of gradients. Empty if the schedule is synchronous.
    """

    def __init__(
        self,
        losses: Iterable[BatchLoss],
        copies: Mapping[int, HeldCopies] | None = None,
    ) -> None:
        super().__init__(losses)
        self.copies = dict(copies or {})


class RunObjective(BatchObjective):
    """The loss of a run, whose microbatches count by their weight in an update.

    Parameters
    ----------
    loss, loss_weight : function
    updates, batches : list of list of int
        The microbatches of each update, and of each batch.
    is_stashed : bool
        Whether weights are kept for backwards; the same on all ranks.
    compared : mapping of str to number
        Other numbers that must be the same on all ranks, from the optimiser.
    **options
        As for :class:`BatchObjective <minipipe.execution.objective.BatchObjective>`.
    """

    def __init__(
        self,
        loss: Loss,
        loss_weight: Weight | None,
        updates: Sequence[Sequence[int]],
        batches: Sequence[Sequence[int]],
        is_stashed: bool,
        compared: Mapping[str, float | None],
        **options: Any,
    ) -> None:
        super().__init__(loss, loss_weight, **options)
        self._given = loss, loss_weight
        self._updates = updates
        self._batches = batches
        self._is_stashed = is_stashed
        self._compared = compared
        self.num_microbatches = sum(map(len, updates))

    @property
    def alike(self) -> dict[str, float | None]:
        """Numbers, by name, that must be equal on all ranks."""
        counts = {
            "microbatches of the run": self.num_microbatches,
            "microbatches of a batch": len(self._batches[0]),
        }
        return {**super().alike, **counts, "stash": self._is_stashed, **self._compared}

    def begin(
        self,
        sizes: Sequence[int],
        targets: Sequence[Payload] | None,
        exchange: Exchange | None = None,
    ) -> None:
        """Take the sizes of the microbatches of the run, and its targets; all of these
        are here.
        """
        super().begin(sizes, targets, exchange)
        self._of_batches = [self._shares_of(sizes, batch) for batch in self._batches]
        for update in self._updates:
            for k, share in zip(update, self._shares_of(sizes, update)):
                self.shares[k] = share

    def _shares_of(
        self, sizes: Sequence[int], microbatches: Sequence[int]
    ) -> list[float]:
        targets = None
        if self.targets is not None:
            targets = [self.targets[k] for k in microbatches]
        return shares([sizes[k] for k in microbatches], *self._given, targets)

    def rows(self) -> np.ndarray:
        """Return for each batch its loss, and its microbatches' losses: an array of
        shape (batches, 1 + per batch).
        """
        found = self.read_losses()
        losses = [[found[k] for k in batch] for batch in self._batches]
        means = [
            added(map(float.__mul__, own, row))
            for own, row in zip(self._of_batches, losses)
        ]
        return np.column_stack([means, losses])


def in_turn(
    step: Callable[..., BatchLoss],
    batches: Iterable[tuple[Any, Any]],
    optimiser: Optimiser,
) -> RunLosses:
    """Return the losses of steps with a synchronous schedule, and update after each.
    Collective.
    """
    losses = RunLosses([])
    for inputs, targets in batches:
        losses.append(step(inputs, targets))
        optimiser.step()
    return losses


class Runs:
    """The runs of one pipeline whose schedule updates weights itself.

    Parameters
    ----------
    plan : Plan
    group : ProcessGroup
    framing : Framing
    intake : Intake
    executor : partial
        ``(program, handlers=…) -> Executor``, with the stages of this rank and their
        array module.
    objective : partial
        Makes a :class:`BatchObjective <minipipe.execution.objective.BatchObjective>`;
        its arguments are the loss and the weight of a loss.
    check_finite : str
    compiled : CompiledStages, optional
        The stages of this rank, if they are to be compiled.

    Attributes
    ----------
    program : Program
        The program of the last run; before the first run, the plan's.

    Raises
    ------
    ScheduleError
        Code ``unsupported``: parts of the plan that cannot be updated at different
        times.
    """

    def __init__(
        self,
        plan: Plan,
        group: ProcessGroup,
        framing: Framing,
        intake: Intake,
        executor: partial[Executor],
        objective: partial[BatchObjective],
        check_finite: str,
        compiled: Any = None,
    ) -> None:
        self.program = plan.program
        self.compiled = compiled
        self._plan = plan
        self._group = group
        self._framing = framing
        self._intake = intake
        self._build = executor
        self._objective = objective
        self._check_finite = check_finite
        _check_plan(plan)

    def run(
        self,
        batches: list[tuple[Any, Any]],
        optimiser: Optimiser,
        stash: bool | None,
        is_training: bool,
        step: int,
    ) -> tuple[RunLosses, Record]:
        """Run over all batches; see :meth:`minipipe.Pipeline.run`."""
        begun = perf_counter()
        is_stashed = self._plan.is_stashed(stash)
        self._take_program(len(batches))
        self._check_optimiser(optimiser, is_stashed)
        numbers = batches_of(
            self.program.num_microbatches, len(batches), self._plan.replicas
        )
        inputs, targets = (
            _cut(each, noun, numbers)
            for each, noun in zip(zip(*batches), ("inputs", "targets"))
        )
        objective = self._objective_of(numbers, optimiser, is_stashed)
        call = TrainingCall("run", inputs, targets, objective, is_training, step)
        self._framing.agree(call)
        for stage in self._stages.values():
            check_frozen(stage)
            stage.begin()
        record, copies = self._execute(call, optimiser, is_stashed)
        losses = RunLosses(call.result, copies)
        self._look_at(losses, self._group.rank)
        record.begun = begun
        record.left = perf_counter()
        return losses, record

    @property
    def _stages(self) -> Mapping[int, Stage]:
        return self._build.keywords["stages"]

    def _objective_of(
        self, numbers: Sequence[Sequence[int]], optimiser: Optimiser, is_stashed: bool
    ) -> RunObjective:
        """Return the loss of a run, from the microbatches of each batch."""
        compared: Mapping[str, float | None] = {}
        if (updates := self._intake.calls.updates) is not None:
            compared = updates.of_run(optimiser)
        loss, weight = self._objective.args
        return RunObjective(
            loss,
            weight,
            updates_of(self.program),
            numbers,
            is_stashed,
            compared,
            **self._objective.keywords,
        )

    def _execute(
        self, call: TrainingCall, optimiser: Optimiser, is_stashed: bool
    ) -> tuple[Record, dict[int, HeldCopies]]:
        """Run the row of this rank; return its record, and the copies that its stages
        held.
        """
        group = self._group
        sums = ReplicaSums(self.program, group, self._build.keywords["xp"])
        updating = Updating(
            self.program, group.rank, self._stages, optimiser, is_stashed, sums
        )
        handlers = handlers_of(self.program.actions[group.rank], self._plan.is_half)
        handlers = self._framing.around(updating.handlers(handlers), self._deliver)
        executor = self._build(frame(self.program), handlers=handlers)
        if self.compiled is not None:
            executor.stages = self.compiled.begin_row(executor.actions)
        here = mode()
        if not is_stashed:  # the watch would refuse changes in place, which are meant
            here = here._replace(watch=None)
        try:
            with setting(current_mode, here):
                record = executor.run(call)
            sums.finish()
        finally:
            copies = updating.finish()
        return record, copies

    def _deliver(self, executor: Executor, action: Action) -> None:
        """Run the LOSS: give all ranks the losses of all batches."""
        call = executor.call
        group = self._group
        root = self._intake.last_rank
        numbers = None
        if group.rank == root:
            numbers = call.objective.rows()
        rows = group.broadcast(numbers, root, what=part_of("run")).tolist()
        call.result = [BatchLoss(mean, losses) for mean, *losses in rows]

    def _take_program(self, num_batches: int) -> None:
        """Take a program with the microbatches of all batches; the last one again, if
        it is.
        """
        plan = self._plan
        m = plan.schedule.num_microbatches
        count = m
        if plan.built_as:
            count = m * num_batches
        if num_batches < 1 or count % (num_batches * plan.replicas):
            raise MicrobatchError(
                "wrong-number",
                f"{plan.schedule.name} has {counted(m, 'microbatch')} for a run of "
                f"{counted(num_batches, 'batch')}; expected the same number of "
                "microbatches for each batch. Pass such a table, or the name of a "
                "schedule.",
            )
        if self.program.num_microbatches != count:
            self.program = plan.program_of_run(count)

    def _check_optimiser(self, optimiser: Any, is_stashed: bool) -> None:
        _OPTIMISER.of_class("run", optimiser)
        if type(optimiser).step is not Optimiser.step:
            raise ArgumentError(
                "type",
                f"{type(optimiser).__name__} overrides step(); in a run each stage "
                "updates its parameters separately. Pass an optimiser that defines "
                "_update, such as optim.Adam.",
            )
        modules = [
            *self._plan.model.modules(),
            *(stage._forward for stage in self._stages.values()),
        ]
        if not is_stashed and (
            R in self.program.kinds
            or any(isinstance(part, Recompute) for part in modules)
        ):
            raise ScheduleError.of(
                Code.UNSUPPORTED,
                "Recomputation with newer weights than the forward gives different "
                "activations; leave out recompute, or pass stash=True.",
            )

    def _look_at(self, losses: RunLosses, rank: int) -> None:
        """Stop or warn, if a loss is not finite. Updates were made meanwhile."""
        numbers = [loss for batch in losses for loss in batch.losses]
        first = next((k for k, loss in enumerate(numbers) if not isfinite(loss)), None)
        if first is None or self._check_finite == "off":
            return
        message = (
            f"The loss of microbatch {first} of the run is not finite. A schedule "
            "without flushes has updated the parameters since, before all ranks knew. "
            "A smaller learning rate often helps."
        )
        if self._check_finite == "stop":
            raise NotFiniteError(Code.NOT_FOUND, message)
        if rank == 0:
            warnings.warn(message, stacklevel=4)


def updates_of(table: ActionTable) -> list[list[int]]:
    """Return the microbatches of each update.

    Raises
    ------
    ScheduleError
        Code ``unsupported``, where stages differ.

    Examples
    --------
    >>> from minipipe import schedules
    >>> updates_of(schedules.two_buffered(2, 5))
    [[0, 1], [2, 3], [4]]
    """
    by_stage: dict[int, list[list[int]]] = {}
    changes = pairs_of(flow_of(table), with_away=True)
    for rank, row in enumerate(table.actions):
        local: dict[int, list[list[int]]] = {}
        for position, microbatches in applied(changes, rank).items():
            local.setdefault(row[position].stage, []).append([*microbatches])
        for stage, updates in local.items():  # each replica has a part of every update
            earlier = by_stage.get(stage, [])
            pairs = zip_longest(earlier, updates, fillvalue=list[int]())
            by_stage[stage] = [sorted(a + b) for a, b in pairs]
    (first, updates), *others = sorted(by_stage.items())
    for stage, other_updates in others:
        if other_updates != updates:
            raise ScheduleError.of(
                Code.UNSUPPORTED,
                f"Stages {first} and {stage} of {table.name} update after different "
                "microbatches. The gradient of an update is the mean over its "
                "microbatches, so all stages need the same microbatches.",
            )
    return updates


def _check_plan(plan: Plan) -> None:
    """Refuse plans for which a run with updates would compute wrong results."""
    for reason in _against_runs(plan, plan.schedule.name):
        raise ScheduleError.of(Code.UNSUPPORTED, reason)
    updates_of(plan.schedule)


def _against_runs(plan: Plan, name: str) -> Iterator[str]:
    """Yield the reasons why a plan cannot run with updates inside."""
    stages = range(plan.schedule.num_stages)
    num_replicas = max(len(plan.program.ranks_of(stage)) for stage in stages)
    if plan.schedule.num_slices > 1:
        yield (
            f"{name} has slices, which would use different weights: it can be drawn "
            "and simulated, but not run."
        )
    if plan.inputs_require_grad:
        yield (
            f"inputs_require_grad=True does not work with {name}, which updates "
            "weights itself: a run returns losses, but no gradients of its inputs. "
            "Leave it out, or choose a schedule such as '1f1b'."
        )
    if plan.gradient_blocks != num_replicas:
        yield (
            f"gradient_blocks is {plan.gradient_blocks}, but {name} sums the gradients "
            f"of {num_replicas} replicas in each update. Leave it out."
        )
    for shared, uses in plan.uses.items():
        if len(set(uses.values())) > 1:
            yield (
                f"Several stages share the parameter {shared}, but in {name} each "
                "stage updates at another time. Untie the parameter, or choose a "
                "synchronous schedule."
            )


def batches_of(count: int, num_batches: int, replicas: int) -> list[list[int]]:
    """Return the microbatches of each batch of a run; every replica has the same number
    of each batch.

    Examples
    --------
    >>> (
    ...     batches_of(8, num_batches=2, replicas=1),
    ...     batches_of(8, num_batches=2, replicas=2),
    ... )
    ([[0, 1, 2, 3], [4, 5, 6, 7]], [[0, 1, 4, 5], [2, 3, 6, 7]])
    """
    each = count // num_batches // replicas
    starts = [
        [d * num_batches * each + b * each for d in range(replicas)]
        for b in range(num_batches)
    ]
    return [
        [k for start in of_batch for k in range(start, start + each)]
        for of_batch in starts
    ]


def _cut(
    batches: Sequence[Any], noun: str, numbers: Sequence[Sequence[int]]
) -> Microbatches | None:
    """Return the microbatches of all batches by their numbers, or None if this rank has
    none.
    """
    if all(batch is None for batch in batches):
        return None
    each = len(numbers[0])
    parts = dict[int, Any]()
    for number, batch in enumerate(batches):
        whole = samples(batch, f"{noun} of batch {number}")
        if whole.is_cut and len(whole.sizes) != each:
            count = counted(len(whole.sizes), "microbatch")
            message = f"Batch {number} has {count}; expected {each}, as in all others."
            raise MicrobatchError("wrong-number", message)
        cut = whole.cut(sizes_of(whole.num_samples, each, whole))
        parts.update(zip(numbers[number], map(as_given, cut)))
    return Microbatches([parts[k] for k in sorted(parts)])

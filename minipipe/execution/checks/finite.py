"""Are the losses and gradients of a step finite? Checked at its end; all ranks know
before one of them updates.

Each rank checks its own gradients, and sends the result along with the loss
(``intake.py``). If something is not finite, the step is run once more, to locate the
first such value (``probe.py``).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import replace
from math import isfinite
from types import ModuleType
from typing import Literal
from weakref import ref

import numpy as np

from minipipe.autograd import Leaf, backend
from minipipe.autograd.backend import Array
from minipipe.comm import Grid, ProcessGroup
from minipipe.errors import Code, NotFiniteError, warn_caller
from minipipe.execution import BatchLoss
from minipipe.execution.batch import Batch
from minipipe.execution.checks.calls import part_of
from minipipe.execution.checks.probe import (
    MINUS,
    Culprit,
    Probe,
    Seen,
    What,
    find_culprit,
    words_of,
)
from minipipe.execution.executor import Executor
from minipipe.execution.handlers import handlers_of
from minipipe.execution.observers import journal
from minipipe.execution.plan import Plan
from minipipe.execution.stage import Stage
from minipipe.nn.arena import Arena
from minipipe.optim import gradients_are_finite
from minipipe.schedules import Action, ActionKind, Program

WhenNotFinite = Literal["stop", "warn", "off"]


class FiniteCheck:
    """Checks the gradients of this rank after every step.

    On a device mesh, tensor-parallel ranks check together, so that all of them stop, or
    none.
    """

    def __init__(
        self,
        when_not_finite: WhenNotFinite,
        plan: Plan,
        stages: Mapping[int, Stage],
        group: ProcessGroup,
        xp: ModuleType,
        grid: Grid | None = None,
    ) -> None:
        self.when_not_finite = when_not_finite
        self.plan, self.grid = plan, grid
        self.stages, self.group, self.xp = stages, group, xp
        self.names = list(plan.owners)
        self._parameters = {
            name: p for stage in stages.values() for name, p in stage.parameters.items()
        }
        self._trained = next(
            (each for each in self._parameters.values() if each.requires_grad), None
        )
        self._arena: ref[Arena] | None = None
        # the leaves whose gradients are not in the arena
        self._outside: list[Leaf] = []
        self._leaves = [
            leaf
            for parameter in self._parameters.values()
            for leaf in parameter.leaves.values()
        ]
        dtypes = {
            backend.numpy_dtype(parameter.dtype)
            for parameter in plan.model.parameters()
        }
        self.may_overflow = np.dtype(np.float16) in dtypes

    def of_step(self, batch: Batch, waits: bool) -> StepCheck | None:
        """Check the gradients that a step has left here; ``waits`` is whether this rank
        waits for its loss.

        Local, except among tensor-parallel ranks.
        """
        if self.when_not_finite == "off":
            return None
        return StepCheck(
            self, batch, waits, not self.may_overflow and batch.objective.scale <= 1
        )

    def first_not_finite(self) -> int:
        """Return which parameter of the model has the first gradient that is not finite
        here; -1 without one.
        """
        # large gradients have squares that overflow: check again
        if not self._squares_are_finite():
            for name, parameter in self._parameters.items():
                if not gradients_are_finite([parameter]):
                    return self.names.index(name)
        return -1

    def _squares_are_finite(self) -> bool:
        # without a context: vdot does not warn of what this looks for
        if self.xp is np:
            return all(
                isfinite(np.vdot(gradient, gradient)) for gradient in self._gradients()
            )
        with np.errstate(all="ignore"):
            return isfinite(
                sum(
                    float(backend.sum_of_squares(gradient))
                    for gradient in self._gradients()
                )
            )

    def _gradients(self) -> list[Array]:
        """Return all gradients: in a few arrays if they lie side by side."""
        reference = None if self._trained is None else self._trained.arena
        arena = None if reference is None else reference()
        if arena is not None and (joined := arena.joined_gradients()) is not None:
            if reference is not self._arena:
                self._arena, self._outside = (
                    reference,
                    arena.leaves_outside(self._leaves),
                )
            return [
                *joined,
                *(leaf.grad for leaf in self._outside if leaf.grad is not None),
            ]
        return [leaf.grad for leaf in self._leaves if leaf.grad is not None]


class StepCheck:
    """The findings of this rank after one step, and the diagnosis once all ranks have
    sent theirs.

    Attributes
    ----------
    findings : tuple of float
        The number of a parameter whose gradient is not finite here, or -1; and 1, if
        this rank waits for the loss.
    """

    def __init__(
        self, check: FiniteCheck, batch: Batch, waits: bool, with_gradients: bool
    ) -> None:
        number, busy = check.first_not_finite() if with_gradients else -1, -waits
        if check.grid is not None:
            found = np.array([number, busy], np.float64)
            number, busy = check.grid.tensor.all_reduce(found, "max").tolist()
        self.findings = (float(number), float(-busy))
        self._check, self._batch, self._with_gradients = check, batch, with_gradients

    def judge(self, loss: BatchLoss, findings: Sequence[Sequence[float]]) -> None:
        """Stop or warn, if the loss or a gradient is not finite. Collective, if all
        ranks wait for the loss.

        Parameters
        ----------
        loss : BatchLoss
        findings : sequence of (float, float)
            The findings of all ranks.

        Raises
        ------
        NotFiniteError
            Any of its codes, for the place of the first value that is not finite.
        """
        losses = () if self._batch.objective.is_given else (loss, *loss.losses)
        is_finite = all(map(isfinite, losses))
        for parameter, _ in findings:
            is_finite = is_finite and parameter < 0
        if is_finite:
            return
        check, step = self._check, self._batch.training_step + 1
        if all(waits for _, waits in findings):
            code, found = culprit_of(check, self._batch, self._with_gradients)
            words = f"Step {step}: {found}"
            end = "No parameter was changed: every rank has stopped before the update."
        else:
            code, words = (
                Code.NOT_FOUND,
                f"Step {step}: {self._symptom(loss, findings)} not finite.",
            )
            end = (
                "Nothing waited for the loss, so parameters may have changed; step(…, "
                "wait=True) finds the place."
            )
        if check.when_not_finite == "stop":
            for stage in check.stages.values():
                stage.begin()  # a step that fails leaves no gradients
            is_given = code in (Code.INPUTS, Code.TARGETS, Code.PARAMETER)
            advice = "" if is_given else "A smaller learning rate often helps; "
            advice += "Pipeline(…, check_finite='warn') continues with a warning."
            raise NotFiniteError(code, f"{words} {end} {advice}")
        if (check.grid or check).group.rank == 0:
            warn_caller(f"{words} Training continues, because of check_finite='warn'.")

    def _symptom(self, loss: BatchLoss, findings: Sequence[Sequence[float]]) -> str:
        microbatches = [
            str(k) for k, value in enumerate(loss.losses) if not isfinite(value)
        ]
        if microbatches and not self._batch.objective.is_given:
            more = (
                f" and of {len(microbatches) - 1} more" if len(microbatches) > 1 else ""
            )
            return f"the loss of microbatch {microbatches[0]}{more} is"
        ranks = [rank for rank, (parameter, _) in enumerate(findings) if parameter >= 0]
        if not ranks:
            return "the loss of the batch is"
        name, rank = (
            self._check.names[int(findings[ranks[0]][0])],
            self._check.group.name(ranks[0]),
        )
        return f"the gradient of {name} (rank {rank}) is"


# -- the culprit -----------------------------------------------------------------------


_NOT_FOUND = (
    "a loss or a gradient was not finite, but in a second run of the step every value "
    "between two layers was. Either a layer computes different values each time, or "
    "only a sum has overflowed, such as gradients of several steps or gradients of "
    "several uses of a parameter."
)


def culprit_of(
    check: FiniteCheck, batch: Batch, with_gradients: bool = True
) -> tuple[Code, str]:
    """Run a step once more, and locate the first value that is not finite; the same on
    every rank.

    Collective. It changes no parameter and no gradient, and draws the random numbers of
    the first run. Metrics are not computed again. A second run differs from the first
    in one respect: gradients of values between two layers are added up there, which may
    change their last bits. Gradients do not count if a loss scale will check them.
    """
    plan, stages = check.plan, check.stages.values()
    probe = Probe(plan)
    probe.look_at_batch(batch)
    again = replace(batch, objective=batch.objective.alone())
    parameters = [
        parameter for stage in stages for parameter in stage.parameters.values()
    ]
    kept = [
        (leaf, leaf.grad)
        for parameter in parameters
        for leaf in parameter.leaves.values()
    ]
    try:
        with ExitStack() as until_run, np.errstate(all="ignore"):
            for stage in stages:
                until_run.enter_context(probe.watching(stage))
                stage.begin()
            # Another executor: it does not stack W, so a gradient belongs to one
            # microbatch. Nor does it sum over replicas: the probe looks at the
            # gradients of each replica alone.
            row = plan.program.numbered[check.group.rank]
            handlers = {**handlers_of(row), ActionKind.REDUCE_GRAD: _sum_nothing}
            again_on = Executor(
                plan.program, check.stages, check.group, check.xp, handlers, journal()
            )
            again_on.run(again, probe)
    finally:
        for leaf, gradient in kept:
            leaf.grad = gradient
    if not batch.objective.is_given:
        probe.look_at_losses(again.objective.losses)
    own = np.array(probe.sightings, np.int64).reshape(-1, len(Seen._fields))
    group = (check.grid or check).group
    rows = group.all_gather(own, what=part_of(batch.call))
    sightings = [Seen(*row) for part in rows for row in part.tolist()]
    if not with_gradients:
        sightings = [
            seen
            for seen in sightings
            if seen.what not in (What.GRADIENT, What.WEIGHT_GRADIENT)
        ]
    # over replicas: it does not identify a microbatch
    if any(parameter.is_summed for parameter in parameters):
        sightings = [
            seen for seen in sightings if seen.what != What.WEIGHT_GRADIENT
        ] or sightings
    culprit = find_culprit(sightings, len(batch.sizes), len(plan.layers))
    if culprit is None:
        return Code.NOT_FOUND, _NOT_FOUND
    masks = [
        seen
        for seen in sightings
        if seen[:2] == (What.INPUTS, culprit.microbatch) and seen.kinds & MINUS
    ]
    who = next(
        rank
        for rank, part in enumerate(rows)
        if list(culprit.cause or culprit.seen) in part.tolist()
    )
    return _described(culprit, plan, batch, bool(masks), group.name(who))


def _sum_nothing(executor: Executor, action: Action) -> None:
    """Run a REDUCE_GRAD that leaves the gradients of this replica as they are."""


def _described(
    culprit: Culprit, plan: Plan, batch: Batch, has_masks: bool, rank: int
) -> tuple[Code, str]:
    """Return the code, and a sentence: which layer or loss made which value, and
    where.
    """
    k, layer, seen, cause = (
        culprit.microbatch,
        culprit.layer,
        culprit.seen,
        culprit.cause,
    )
    made, first, names = words_of(seen.kinds), sum(batch.sizes[:k]), list(plan.owners)
    if layer < 0:
        where = (
            f"first in sample {first + seen.which}"
            if seen.which >= 0
            else "in an array that is not divided"
        )
        return Code.INPUTS, f"the inputs have {made}, {where} (microbatch {k})."
    is_loss = layer == len(plan.layers)
    stage = (
        len(plan.partition) - 1
        if is_loss
        else next(i for i, part in enumerate(plan.partition) if layer in part)
    )
    name = (
        f"the loss, after layer {layer - 1},"
        if is_loss
        else f"layer {layer}, {plan.layers[layer].brief()},"
    )
    finite = (
        "finite inputs (except -inf, perhaps a mask)" if has_masks else "finite inputs"
    )
    what = (
        f"{'added a loss of' if seen.what == What.AUXILIARY_LOSS else 'returned'} "
        f"{made} for {finite}"
    )
    if culprit.is_backward:
        of = names[seen.which] if culprit.is_weight else "its input"
        what = (
            f"returned {made} in the gradient of {of}, for a finite gradient of its "
            "result"
        )
    where = f"on rank {rank}, stage {stage}, microbatch {k}"
    sentence = f"{name} {what}, {where}, action {_action(culprit, plan.program, stage)}"
    if culprit.is_backward:
        return Code.BACKWARD, f"{sentence}."
    if cause is None:
        return Code.LOSS if is_loss else Code.FORWARD, f"{sentence}."
    had = words_of(cause.kinds)
    if is_loss:
        sample = f", first in sample {first + cause.which}" if cause.which >= 0 else ""
        return Code.TARGETS, f"{sentence}: the targets have {had}{sample}."
    return (
        Code.PARAMETER,
        f"{sentence}: its parameter {names[cause.which]} had {had} before the step.",
    )


def _action(culprit: Culprit, program: Program, stage: int) -> Action:
    """Return the action in which it was made."""
    if not culprit.is_backward:
        return Action(stage, ActionKind.FORWARD, culprit.microbatch)
    half = (
        ActionKind.BACKWARD_WEIGHT if culprit.is_weight else ActionKind.BACKWARD_INPUT
    )
    # a frozen stage has no W
    kinds = (ActionKind.BACKWARD, half, ActionKind.BACKWARD_INPUT)
    found = (Action(stage, kind, culprit.microbatch) for kind in kinds)
    row = set(program.numbered[program.rank_of(stage, culprit.microbatch)])
    return next(action for action in found if action in row)

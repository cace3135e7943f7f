"""Which layer made the first value that is not finite, and where.

The step is run once more, and a probe (``probe.py``) looks at each value between two
layers.
"""

from __future__ import annotations

from collections.abc import Iterable
from contextlib import ExitStack
from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np

from minipipe.core.execution.executor import Executor
from minipipe.errors import Code
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
from minipipe.execution.row_handlers import handlers_of, journal
from minipipe.schedules import Action, ActionKind, Program

if TYPE_CHECKING:
    from minipipe.execution.batch import Batch
    from minipipe.execution.checks.finite import FiniteCheck
    from minipipe.execution.plan import Plan
    from minipipe.nn import Parameter

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
    plan = check.plan
    group = (check.grid or check).group
    probe = _run_again(check, batch)
    own = np.array(probe.sightings, np.int64).reshape(-1, len(Seen._fields))
    rows = group.all_gather(own, what=part_of(batch.call))
    sightings = [Seen(*row) for part in rows for row in part.tolist()]
    if not with_gradients:
        sightings = _without(sightings, What.GRADIENT, What.WEIGHT_GRADIENT)
    if any(parameter.is_summed for parameter in _parameters_of(check)):
        # Summed over replicas, such a gradient does not identify a microbatch.
        sightings = _without(sightings, What.WEIGHT_GRADIENT) or sightings
    culprit = find_culprit(sightings, len(batch.sizes), len(plan.layers))
    if culprit is None:
        return Code.NOT_FOUND, _NOT_FOUND
    inputs = What.INPUTS, culprit.microbatch
    has_masks = any(seen[:2] == inputs and seen.kinds & MINUS for seen in sightings)
    first = list(culprit.cause or culprit.seen)
    who = next(rank for rank, part in enumerate(rows) if first in part.tolist())
    return _described(culprit, plan, batch, has_masks, group.name(who))


def _run_again(check: FiniteCheck, batch: Batch) -> Probe:
    """Run a step once more; return a probe that has seen its values."""
    plan = check.plan
    probe = Probe(plan)
    probe.look_at_batch(batch)
    again = replace(batch, objective=batch.objective.alone())
    leaves = [leaf for one in _parameters_of(check) for leaf in one.leaves.values()]
    kept = [(leaf, leaf.grad) for leaf in leaves]
    # Another executor: it does not stack W, so a gradient belongs to one microbatch.
    # Nor does it sum over replicas: the probe looks at the gradients of each alone.
    row = plan.program.numbered[check.group.rank]
    handlers = plan.with_handlers(handlers_of(row))
    handlers = {**handlers, ActionKind.REDUCE_GRAD: _sum_nothing}
    executor = Executor(
        plan.program, check.stages, check.group, check.xp, handlers, journal()
    )
    try:
        with ExitStack() as until_run, np.errstate(all="ignore"):
            for stage in check.stages.values():
                until_run.enter_context(probe.watching(stage))
                stage.begin()
            executor.run(again, probe)
    finally:
        for leaf, gradient in kept:
            leaf.grad = gradient
    if not batch.objective.is_given:
        probe.look_at_losses(again.objective.read_losses())
    return probe


def _parameters_of(check: FiniteCheck) -> list[Parameter]:
    stages = check.stages.values()
    return [parameter for stage in stages for parameter in stage.parameters.values()]


def _without(sightings: Iterable[Seen], *kinds: What) -> list[Seen]:
    return [seen for seen in sightings if seen.what not in kinds]


def _sum_nothing(executor: Executor, action: Action) -> None:
    """Run a REDUCE_GRAD that leaves the gradients of this replica as they are."""


def _described(
    culprit: Culprit, plan: Plan, batch: Batch, has_masks: bool, rank: int
) -> tuple[Code, str]:
    """Return the code, and a sentence: which layer or loss made which value, and
    where.
    """
    k = culprit.microbatch
    layer = culprit.layer
    seen = culprit.seen
    made = words_of(seen.kinds)
    first = sum(batch.sizes[:k])
    if layer < 0:
        where = "in an array that is not divided"
        if seen.which >= 0:
            where = f"first in sample {first + seen.which}"
        return Code.INPUTS, f"the inputs have {made}, {where} (microbatch {k})."
    is_loss = layer == len(plan.layers)
    if is_loss:
        stage = len(plan.partition) - 1
        name = f"the loss, after layer {layer - 1},"
    else:
        stage = next(i for i, part in enumerate(plan.partition) if layer in part)
        name = f"layer {layer}, {plan.layers[layer].brief()},"
    action = _action(culprit, plan.program, stage)
    where = f"on rank {rank}, stage {stage}, microbatch {k}, action {action}"
    sentence = f"{name} {_made(culprit, plan, has_masks)}, {where}"
    if culprit.is_backward:
        return Code.BACKWARD, f"{sentence}."
    cause = culprit.cause
    if cause is None:
        code = Code.LOSS if is_loss else Code.FORWARD
        return code, f"{sentence}."
    had = words_of(cause.kinds)
    if is_loss:
        sample = ""
        if cause.which >= 0:
            sample = f", first in sample {first + cause.which}"
        return Code.TARGETS, f"{sentence}: the targets have {had}{sample}."
    parameter = list(plan.owners)[cause.which]
    had_before = f"its parameter {parameter} had {had} before the step"
    return Code.PARAMETER, f"{sentence}: {had_before}."


def _made(culprit: Culprit, plan: Plan, has_masks: bool) -> str:
    """Return what a layer or a loss returned, and for which inputs or gradients."""
    seen = culprit.seen
    made = words_of(seen.kinds)
    if culprit.is_backward:
        of = "its input"
        if culprit.is_weight:
            of = list(plan.owners)[seen.which]
        result = "for a finite gradient of its result"
        return f"returned {made} in the gradient of {of}, {result}"
    is_auxiliary = seen.what == What.AUXILIARY_LOSS
    did = "added a loss of" if is_auxiliary else "returned"
    sentence = f"{did} {made} for finite inputs"
    if has_masks:
        sentence += " (except -inf, perhaps a mask)"
    return sentence


def _action(culprit: Culprit, program: Program, stage: int) -> Action:
    """Return the action in which it was made."""
    if not culprit.is_backward:
        return Action(stage, ActionKind.FORWARD, culprit.microbatch)
    half = ActionKind.BACKWARD_INPUT
    if culprit.is_weight:
        half = ActionKind.BACKWARD_WEIGHT
    # a frozen stage has no W
    kinds = (ActionKind.BACKWARD, half, ActionKind.BACKWARD_INPUT)
    found = (Action(stage, kind, culprit.microbatch) for kind in kinds)
    row = set(program.numbered[program.rank_of(stage, culprit.microbatch)])
    return next(action for action in found if action in row)

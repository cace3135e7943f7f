"""Where the first value was made that is not finite: found by a second run of the step, and said in a sentence."""

from __future__ import annotations

from contextlib import ExitStack
from dataclasses import replace
from typing import Any, cast

import numpy as np

from minipipe.comm import ProcessGroup
from minipipe.errors import NotFiniteCode
from minipipe.execution.checks import part_of
from minipipe.execution.checks.probe import Probe
from minipipe.execution.checks.sightings import MINUS, Culprit, Seen, What, find_culprit, words_of
from minipipe.execution.executor import Executor
from minipipe.execution.microbatch import Batch
from minipipe.execution.plan import Plan
from minipipe.schedules.action import Action, ActionKind
from minipipe.schedules.action_table import Program

_NOT_FOUND = (
    "a loss or a gradient was not finite, but in a second run of the step every value between two layers was. Either a "
    "layer computes something else each time; or only a sum has overflowed, such as the gradients of several steps, or "
    "those of several uses of a parameter."
)


def culprit_of(plan: Plan, executor: Executor, batch: Batch, with_gradients: bool = True) -> tuple[NotFiniteCode, str]:
    """Run a step once more, and say where the first value was made that is not finite; the same on every rank.

    Collective. It changes no parameter and no gradient, and draws the random numbers of the first run. Metrics are not
    computed again. A second run differs from the first in one thing: gradients of what passes between two layers are
    added up there, which may change their last bits.

    Parameters
    ----------
    plan : Plan
    executor : Executor
        Has run the step, with the stages of this rank.
    batch : Batch
        That of the step.
    with_gradients : bool
        Whether gradients count. They do not where a loss scale will look at them.
    """
    probe = Probe(plan)
    probe.look_at_batch(batch)
    again = replace(batch, objective=batch.objective.alone())
    parameters = [parameter for stage in executor.stages.values() for parameter in stage.parameters.values()]
    kept = [(leaf, leaf.grad) for parameter in parameters for leaf in parameter.leaves.values()]
    try:
        with ExitStack() as until_run, np.errstate(all="ignore"):
            stages = {index: until_run.enter_context(probe.watching(s)) for index, s in executor.stages.items()}
            for stage in stages.values():
                stage.begin()
            Executor(executor.program, cast(Any, stages), executor.group, executor.xp).run(again)
    finally:
        for leaf, gradient in kept:
            leaf.grad = gradient
    if not batch.objective.is_given:
        probe.look_at_losses(again.objective.losses)
    sightings = _of_all_ranks(executor.group, probe.sightings, batch.call)
    if not with_gradients:
        sightings = [seen for seen in sightings if seen.what not in (What.GRADIENT, What.WEIGHT_GRADIENT)]
    culprit = find_culprit(sightings, len(batch.slices), len(plan.layers))
    if culprit is None:
        return NotFiniteCode.NOT_FOUND, _NOT_FOUND
    masks = [seen for seen in sightings if seen[:2] == (What.INPUTS, culprit.microbatch) and seen.kinds & MINUS]
    return _described(culprit, plan, executor, batch, bool(masks))


def _of_all_ranks(group: ProcessGroup, sightings: list[Seen], call: str) -> list[Seen]:
    rows = group.all_gather(np.array(sightings, np.int64).reshape(-1, len(Seen._fields)), what=part_of(call))
    return [Seen(*row) for part in rows for row in part.tolist()]


def _described(
    culprit: Culprit, plan: Plan, executor: Executor, batch: Batch, has_masks: bool
) -> tuple[NotFiniteCode, str]:
    """Return the code, and who made what where."""
    k, layer, seen, cause = culprit.microbatch, culprit.layer, culprit.seen, culprit.cause
    made, first, names = words_of(seen.kinds), batch.slices[k].start, list(plan.owners)
    if layer < 0:
        where = f"first in sample {first + seen.which}" if seen.which >= 0 else "in an array that is not divided"
        return NotFiniteCode.INPUTS, f"the inputs have {made}, {where} (microbatch {k})."
    is_loss = layer == len(plan.layers)
    stage = len(plan.partition) - 1 if is_loss else next(i for i, part in enumerate(plan.partition) if layer in part)
    name = f"the loss, behind layer {layer - 1}," if is_loss else f"layer {layer}, {plan.layers[layer].brief()},"
    finite = "finite inputs (but for -inf, a mask perhaps)" if has_masks else "finite inputs"
    what = f"{'added a loss of' if seen.what == What.AUXILIARY_LOSS else 'returned'} {made} for {finite}"
    if culprit.is_backward:
        of = names[seen.which] if culprit.is_weight else "its input"
        what = f"returned {made} in the gradient of {of}, for a finite gradient of its result"
    program, group = executor.program, executor.group
    where = f"on rank {group.name(program.placement[stage])}, stage {stage}, microbatch {k}"
    sentence = f"{name} {what}, {where}, action {_action(culprit, program, stage)}"
    if culprit.is_backward:
        return NotFiniteCode.BACKWARD, f"{sentence}."
    if cause is None:
        return NotFiniteCode.LOSS if is_loss else NotFiniteCode.FORWARD, f"{sentence}."
    had = words_of(cause.kinds)
    if is_loss:
        sample = f", first in sample {first + cause.which}" if cause.which >= 0 else ""
        return NotFiniteCode.TARGETS, f"{sentence}: the targets have {had}{sample}."
    return NotFiniteCode.PARAMETER, f"{sentence}: its parameter {names[cause.which]} had {had} before the step."


def _action(culprit: Culprit, program: Program, stage: int) -> Action:
    """Return the action in which it was made."""
    if not culprit.is_backward:
        return Action(stage, ActionKind.FORWARD, culprit.microbatch)
    half = ActionKind.BACKWARD_WEIGHT if culprit.is_weight else ActionKind.BACKWARD_INPUT
    kinds = (ActionKind.BACKWARD, half, ActionKind.BACKWARD_INPUT)  # a frozen stage has no W
    found = (Action(stage, kind, culprit.microbatch) for kind in kinds)
    row = set(program.actions[program.placement[stage]])
    return next(action for action in found if action in row)

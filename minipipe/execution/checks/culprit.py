"""Which layer made the first value that is not finite, and where.

The step is run once more, and a probe (``probe.py``) looks at each value between two
layers.
"""

from __future__ import annotations

from contextlib import ExitStack
from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np

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
from minipipe.execution.executor import Executor
from minipipe.execution.handlers import handlers_of
from minipipe.execution.observers import journal
from minipipe.schedules import Action, ActionKind, Program

if TYPE_CHECKING:
    from minipipe.execution.batch import Batch
    from minipipe.execution.checks.finite import FiniteCheck
    from minipipe.execution.plan import Plan

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

"""What the ranks give to a call: each takes what it needs of it, and all agree on it."""

from __future__ import annotations

from types import ModuleType
from typing import Any, NamedTuple

from minipipe.comm import ProcessGroup
from minipipe.errors import ArgumentError, MicrobatchError, ModelError
from minipipe.execution.checks import Calls, batch_marks
from minipipe.execution.division import divided
from minipipe.execution.microbatch import Batch
from minipipe.execution.objective import Objective
from minipipe.execution.plan import Plan
from minipipe.execution.samples import Pieces, Samples, samples


class Needs(NamedTuple):
    """Which parts of a batch a rank reads: the inputs on that of the first stage, the targets on that of the last."""

    inputs: bool
    targets: bool


class Intake:
    """Makes a batch of what the ranks were given for a call, and counts the calls.

    Parameters
    ----------
    plan : Plan
    group : ProcessGroup
    xp : module
        The array module to compute with.
    seed : int
    compares : bool
        Whether batches are compared.
    """

    def __init__(self, plan: Plan, group: ProcessGroup, xp: ModuleType, seed: int, compares: bool = True) -> None:
        self._plan, self._group, self._xp, self._seed = plan, group, xp, seed
        self._compares = compares and group.size > 1
        self.first_rank, self.last_rank = plan.placement[0], plan.placement[-1]
        self.needs = Needs(group.rank == self.first_rank, group.rank == self.last_rank)
        self.calls = Calls(group, self.first_rank)

    def batch(
        self, call: str, inputs: Any, targets: Any, objective: Objective, is_training: bool, training_step: int
    ) -> Batch:
        """Agree on the call and on the size of the batch, and divide it. Collective."""
        if not objective.has_loss and call != "predict":
            message = f"{call}() needs a loss, but this pipeline has none: Pipeline(…, loss=nn.MSELoss())."
            raise ModelError("loss", message)
        try:
            own_inputs = self._own(inputs, "inputs", "inputs") if self.needs.inputs else None
            reads_targets = self.needs.targets and objective.needs_targets
            own_targets = self._own(targets, objective.noun, "targets") if reads_targets else None
        except Exception:
            self.calls.count += 1  # so that no later call is taken for this one
            raise
        size, own_layout = (0, 0) if own_inputs is None else (own_inputs.num_samples, own_inputs.layout)
        batch = batch_marks(inputs, targets) if self._compares else {}
        alike = {"mode": bool(is_training), "number of training steps": training_step, **objective.alike, **batch}
        num_samples, layout = self.calls.begin(call, alike, size, own_layout)
        if own_targets is not None:
            self._check_alike(own_targets, objective.noun, num_samples, layout)
        count = self._plan.schedule.num_microbatches
        if call in ("evaluate", "predict", "measure_memory"):  # any number of samples will do, but none
            count = max(1, min(count, num_samples))
        slices = divided(num_samples, count, own_inputs, own_targets)
        if self.needs.targets:
            objective.begin(slices, own_targets)
        rest: dict[str, Any] = {"step": self.calls.count, "training_step": training_step, "seed": self._seed}
        wants = {"is_cut": bool(layout), "inputs_require_grad": self._plan.inputs_require_grad}
        return Batch(call, slices, own_inputs, objective, **rest, **wants)

    def _check_alike(self, targets: Samples | Pieces, noun: str, num_samples: int, layout: int) -> None:
        if targets.num_samples != num_samples:
            raise MicrobatchError(
                "unequal-lengths",
                f"There are {num_samples} inputs (on rank {self._group.name(self.first_rank)}), but "
                f"{targets.num_samples} {noun} (on rank {self._group.name()}); expected one for each: every rank "
                "must be given the same batch.",
            )
        if targets.layout != layout:
            message = f"Inputs and {noun} are not cut into the same microbatches: give both as Microbatches, each of"
            raise MicrobatchError("unequal-lengths", f"{message} as many samples as the other's, or neither.")

    def _own(self, given: Any, noun: str, kind: str) -> Samples | Pieces:
        """Return what this rank needs of a batch, in the model's dtype."""
        if given is None:
            raise ArgumentError("value", f"Rank {self._group.name()} needs the {noun}, but was given None.")
        return samples(given, noun, self._plan.dtypes[kind], self._xp)

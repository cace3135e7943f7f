"""What advice is based on: layers measured with microbatches of several sizes, and messages.

Nothing is interpolated: every number of microbatches that is weighed is measured. A batch is measured in microbatches
of 1, 1/2, 1/4 … of it, one of each, which takes little more than the whole batch.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace
from types import ModuleType
from typing import Any, NamedTuple

import numpy as np

from minipipe.advice.messages import Messages
from minipipe.batch.objective import Loss
from minipipe.errors import MicrobatchError
from minipipe.nn import Identity, Linear, Sequential
from minipipe.pipeline.plan import Plan
from minipipe.profiling.layers import MeasuredLayers
from minipipe.profiling.measuring import measured_layers
from minipipe.simulation.costs import Costs


class Call(NamedTuple):
    """The seconds that F, I and W of a stage take whatever its layers: what each layer has, measured as a stage."""

    forward: float = 0.0
    backward_input: float = 0.0
    backward_weight: float = 0.0


class Measurements(NamedTuple):
    """What was measured, on one rank and between ranks.

    Attributes
    ----------
    layers : mapping of int to MeasuredLayers
        By the number of microbatches.
    num_samples : int
        In the batch.
    messages : Messages
    cores : float, optional
        How much of the cores the ranks share; None where each has its own.
    call : Call
        What a stage costs beside its layers.

    Examples
    --------
    >>> Measurements({}, num_samples=64, messages=Messages()).samples_of(microbatches=5)
    13
    """

    layers: Mapping[int, MeasuredLayers]
    num_samples: int
    messages: Messages
    cores: float | None = None
    call: Call = Call()

    def samples_of(self, microbatches: int) -> int:
        """Return the samples of the largest microbatch."""
        return -(-self.num_samples // microbatches)

    def costs(self, plan: Plan, recompute: bool) -> Costs:
        """Return the costs of a plan's stages: sums over layers, but one call of each stage, and messages.

        Parameters
        ----------
        plan : Plan
        recompute : bool
        """
        layers = self.layers[plan.schedule.num_microbatches]
        costs = layers.costs(plan.partition, plan.placement, recompute)
        more = [len(part) - 1 for part in plan.partition]  # calls than the one of the stage
        more[-1] += layers.loss is not None
        again = self.call.forward if recompute else 0.0
        changed: dict[str, Any] = {
            "forward": _less(costs.forward, more, self.call.forward),
            "backward_input": _less(costs.backward_input, more, self.call.backward_input + again),
            "backward_weight": _less(costs.backward_weight, more, self.call.backward_weight),
        }
        known = self.messages._asdict()
        changed |= {name: known[name] for name in ("latency", "bandwidth", "overhead")} | {"cores": self.cores}
        return replace(costs, **changed)


def _less(times: Any, more: list[int], call: float) -> list[float]:
    return [max(0.0, time - count * call) for time, count in zip(times, more)]


def measure_sizes(
    model: Sequential,
    inputs: Any,
    targets: Any,
    loss: Loss | None,
    counts: Iterable[int],
    repeats: int,
    seed: int,
    xp: ModuleType,
) -> dict[int, MeasuredLayers]:
    """Measure the layers for each number of microbatches. Local.

    Parameters are those of :func:`minipipe.profiling.measuring.measured_layers`; ``counts`` are those numbers.

    Raises
    ------
    MicrobatchError
        When no number fits the batch. Codes as for :func:`minipipe.measure_layers`.
    """
    found, refused = {}, None
    for count in counts:
        try:
            found[count] = measured_layers(model, inputs, targets, loss, count, repeats, seed, xp)
        except MicrobatchError as error:  # such as microbatches that are given, and as many as they are
            refused = error
    if refused is not None and not found:
        raise refused
    return found


def measure_call(repeats: int, xp: ModuleType) -> Call:
    """Return what a stage costs beside its layers: the times of a layer between others that does nothing. Local.

    Parameters
    ----------
    repeats : int
    xp : module
    """
    model = Sequential(Linear(1, 1), Identity(), Linear(1, 1))
    ones = np.ones((1, 1), np.float32)
    layer = measured_layers(model, ones, None, None, 1, repeats, 0, xp)[1]
    return Call(layer.forward, layer.backward_input, layer.backward_weight)

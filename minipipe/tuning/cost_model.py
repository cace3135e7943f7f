"""The costs that advice is based on: layers measured with microbatches of several sizes, and messages.

No time of a layer is interpolated: each number of microbatches that is weighed is measured. A batch is measured in
microbatches of 1, 1/2, 1/4 … of it, one of each size, which takes little longer than the whole batch.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace
from types import ModuleType
from typing import Any, NamedTuple

import numpy as np

from minipipe.errors import MicrobatchError
from minipipe.execution.objective import Loss
from minipipe.execution.plan import Plan
from minipipe.nn import Identity, Linear, Sequential
from minipipe.schedules.simulation.costs import Costs
from minipipe.tuning.layers import MeasuredLayers
from minipipe.tuning.measuring import measure_on_this_rank
from minipipe.tuning.messages import Messages


class Call(NamedTuple):
    """The seconds of F, I and W of a stage that does nothing. Each layer was measured as a stage and includes them."""

    forward: float = 0.0
    backward_input: float = 0.0
    backward_weight: float = 0.0


class CostModel(NamedTuple):
    """The measured costs of a model and of messages, from which the costs of any plan follow.

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
        What a stage costs in addition to its layers.
    waited : float
        The share of the time that the process wanted a core and had none, because of other programs, while the layers
        were measured. Known on Linux only; elsewhere 0.

    Examples
    --------
    >>> CostModel({}, num_samples=64, messages=Messages()).samples_of(microbatches=5)
    13
    """

    layers: Mapping[int, MeasuredLayers]
    num_samples: int
    messages: Messages
    cores: float | None = None
    call: Call = Call()
    waited: float = 0.0

    def samples_of(self, microbatches: int) -> int:
        """Return the samples of the largest microbatch."""
        return -(-self.num_samples // microbatches)

    def costs(self, plan: Plan, recompute: bool) -> Costs:
        """Return the costs of a plan's stages: sums over layers, with one call of each stage, and messages.

        Parameters
        ----------
        plan : Plan
        recompute : bool
        """
        layers = self.layers[plan.schedule.num_microbatches]
        costs = layers.costs(plan.partition, plan.placement, recompute)
        extra_calls = [len(part) - 1 for part in plan.partition]
        extra_calls[-1] += layers.loss is not None
        again = self.call.forward if recompute else 0.0

        def with_one_call(times: Any, call: float) -> list[float]:
            return [max(0.0, time - count * call) for time, count in zip(times, extra_calls)]

        return replace(
            costs,
            forward=with_one_call(costs.forward, self.call.forward),
            backward_input=with_one_call(costs.backward_input, self.call.backward_input + again),
            backward_weight=with_one_call(costs.backward_weight, self.call.backward_weight),
            latency=self.messages.latency,
            bandwidth=self.messages.bandwidth,
            overhead=self.messages.overhead,
            cores=self.cores,
        )


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
    """Measure the layers for each number of microbatches in ``counts``. Local.

    The other parameters are those of :func:`~minipipe.tuning.measuring.measure_on_this_rank`.

    Raises
    ------
    MicrobatchError
        When no number fits the batch. Codes as for :func:`minipipe.measure_layers`.
    """
    found, refused = {}, None
    for count in counts:
        try:
            found[count] = measure_on_this_rank(model, inputs, targets, loss, count, repeats, seed, xp)
        except MicrobatchError as error:  # such as another number of microbatches than were given
            refused = error
    if refused is not None and not found:
        raise refused
    return found


def measure_call(repeats: int, xp: ModuleType) -> Call:
    """Measure a layer that does nothing, between two others. Local.

    Parameters
    ----------
    repeats : int
    xp : module
    """
    model = Sequential(Linear(1, 1), Identity(), Linear(1, 1))
    ones = np.ones((1, 1), np.float32)
    layer = measure_on_this_rank(model, ones, None, None, 1, repeats, 0, xp)[1]
    return Call(layer.forward, layer.backward_input, layer.backward_weight)

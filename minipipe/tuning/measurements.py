"""What advice is based on: layers measured with microbatches of several sizes, and messages.

No time of a layer is interpolated: every number of microbatches that is weighed is measured. A batch is measured in
microbatches of 1, 1/2, 1/4 … of it, one of each, which takes little more than the whole batch.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from math import isnan, log2
from statistics import mean
from types import MappingProxyType, ModuleType
from typing import Any, NamedTuple

import numpy as np

from minipipe.errors import MicrobatchError
from minipipe.execution.objective import Loss
from minipipe.execution.plan import Plan
from minipipe.nn import Identity, Linear, Sequential
from minipipe.schedules.simulation.costs import Costs
from minipipe.tuning.layers import MeasuredLayers
from minipipe.tuning.measuring import measured_layers
from minipipe.tuning.messages import Messages


class Call(NamedTuple):
    """The seconds that F, I and W of a stage take whatever its layers: what each layer has, measured as a stage."""

    forward: float = 0.0
    backward_input: float = 0.0
    backward_weight: float = 0.0


class AtWork(NamedTuple):
    """What holds where all ranks work.

    Attributes
    ----------
    slowdown : float
        How many times as long as alone an action takes.
    latency, overhead : float
        As in :class:`~minipipe.tuning.messages.Messages`.
    cores : float or None
        How much of the cores the ranks share; None where each has its own.
    """

    slowdown: float
    latency: float
    overhead: float
    cores: float | None


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
    at_work : mapping of int to AtWork
        By the number of microbatches of pipelines that ran. Where none did, messages and cores hold.
    waited : float
        While the layers were measured: for which part of the time that the process wanted a core it had none, because
        of other programs. Only Linux tells; elsewhere 0.

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
    at_work: Mapping[int, AtWork] = MappingProxyType({})
    waited: float = 0.0

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
        slowdown, latency, overhead, cores = self.conditions(plan.schedule.num_microbatches)

        def at_work(times: Any, call: float) -> list[float]:
            return [slowdown * max(0.0, time - count * call) for time, count in zip(times, more)]

        return replace(
            costs,
            forward=at_work(costs.forward, self.call.forward),
            backward_input=at_work(costs.backward_input, self.call.backward_input + again),
            backward_weight=at_work(costs.backward_weight, self.call.backward_weight),
            latency=latency,
            bandwidth=self.messages.bandwidth,
            overhead=overhead,
            cores=cores,
        )

    def conditions(self, microbatches: int) -> AtWork:
        """Return what holds for a number of microbatches: on a line between those that ran, over its logarithm."""
        if not self.at_work:
            return AtWork(1.0, self.messages.latency, self.messages.overhead, self.cores)
        known = sorted(self.at_work)
        found = np.array([self.at_work[k] for k in known], float)
        columns = (np.interp(log2(microbatches), np.log2(known), column) for column in found.T)
        slowdown, latency, overhead, cores = map(float, columns)
        return AtWork(slowdown, latency, overhead, None if isnan(cores) else cores)

    def with_runs(self, runs: Mapping[int, Sequence[tuple[Costs, Costs]]]) -> Measurements:
        """Return measurements that know how pipelines ran, the means of several runs.

        Parameters
        ----------
        runs : mapping of int to sequence of (Costs, Costs)
            By the number of microbatches, what was expected of each run, and what it cost.
        """
        return self._replace(at_work={number: self._mean(pairs) for number, pairs in runs.items()})

    def _mean(self, runs: Sequence[tuple[Costs, Costs]]) -> AtWork:
        work = [(_work(expected), _work(found)) for expected, found in runs]
        slowdown = mean(found / expected if found and expected else 1.0 for expected, found in work)
        cores = [found.cores for _, found in runs if isinstance(found.cores, float)]  # of one host
        latency, overhead = (mean(getattr(found, name) for _, found in runs) for name in ("latency", "overhead"))
        return AtWork(slowdown, latency, overhead, mean(cores) if cores else None)


def _work(costs: Costs) -> float:
    """Return what all stages together cost for a microbatch."""
    return float(sum(map(np.sum, (costs.forward, costs.backward_input, costs.backward_weight))))


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

    Parameters are those of :func:`minipipe.tuning.measuring.measured_layers`; ``counts`` are those numbers.

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

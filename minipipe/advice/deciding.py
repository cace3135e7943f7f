"""What the ranks of a pipeline leave to measurements: rank 0 measures and decides for all."""

from __future__ import annotations

import os
from collections.abc import Mapping
from math import inf
from types import ModuleType
from typing import Any

import numpy as np

from minipipe import backend
from minipipe.advice.advising import REPEATS, counts_of, measurements, weighed
from minipipe.advice.memory_size import memory_size
from minipipe.advice.messages import measure_messages
from minipipe.advice.report import Advice
from minipipe.advice.text import options_of_text, text_of
from minipipe.advice.weighing import Weighing
from minipipe.batch.objective import Loss
from minipipe.comm import ProcessGroup
from minipipe.errors import ArgumentError
from minipipe.job.launcher import LOCAL_SIZE, told
from minipipe.nn import Sequential
from minipipe.partition.layers import partition_evenly
from minipipe.pipeline.plan import check_model
from minipipe.profiling.balancing import measured_partition

_CONSUMED = ("schedule", "partition", "num_microbatches", "chunks_per_rank", "sample", "memory_limit", "optimiser")


def decided(
    model: Any,
    group: ProcessGroup,
    options: Mapping[str, Any],
    loss: Loss,
    seed: int,
    device: str | ModuleType,
    recompute: bool,
) -> tuple[dict[str, Any], bool]:
    """Return the options of a pipeline with what was left to measurements, and whether to recompute.

    Collective. With ``schedule="auto"`` messages are measured between all ranks; then rank 0 measures layers and weighs
    choices, while the others wait, as long as the group allows. Otherwise it measures for ``partition="measured"``.

    Parameters
    ----------
    model : Sequential
    group : ProcessGroup
    options : mapping
        Those of :class:`minipipe.Plan`, and ``sample``: inputs and targets, of which only rank 0 needs some. With
        ``schedule="auto"`` also ``memory_limit`` and ``optimiser``, as for :func:`minipipe.advise`.
    loss : function
    seed : int
    device : str or module
    recompute : bool

    Raises
    ------
    ArgumentError
        Code ``value``: without a sample on rank 0, or with costs of layers.
    PartitionError
        Code ``too-few-layers``, when there are fewer layers than ranks.
    ScheduleError
        Code ``memory``: on rank 0, when nothing is within the limit.
    """
    if options.get("schedule") != "auto":
        partition = measured_partition(model, group, options, loss, seed, device, recompute)
        return {name: value for name, value in options.items() if name != "sample"} | {
            "partition": partition
        }, recompute
    check_model(model)
    if options.get("layer_costs") is not None:
        message = 'schedule="auto" balances times that it measures; expected no layer_costs beside it.'
        raise ArgumentError("value", message)
    partition_evenly(len(model.flat_layers), group.size)  # which refuses fewer layers than ranks, on every rank
    messages = measure_messages(group, "the ranks of this job")
    found = None
    if group.rank == 0:
        xp = backend.module_for(device, group.local_rank)
        inputs, targets = _sample(options)
        counts = counts_of(inputs, group.size, options.get("num_microbatches"))
        is_one_host = told(os.environ, LOCAL_SIZE, group.size) == group.size
        run = (model, inputs, targets, loss, counts, REPEATS, seed, xp)
        measured = measurements(*run, messages, group.size if is_one_host else 0)
        best = _advice(model, group.size, options, measured, recompute).best
        found = np.frombuffer(text_of(best).encode(), np.uint8)
    said = group.broadcast(found, what='the choice, which rank 0 makes for schedule="auto",')
    choice = options_of_text(said.tobytes().decode())
    kept = {name: value for name, value in options.items() if name not in _CONSUMED}
    again = choice.pop("recompute")
    return {**kept, **choice}, again


def _sample(options: Mapping[str, Any]) -> tuple[Any, Any]:
    sample = options.get("sample")
    if not isinstance(sample, tuple | list) or len(sample) != 2:
        raise ArgumentError("value", 'schedule="auto" needs a batch to measure: sample=(inputs, targets).')
    inputs, targets = sample
    return inputs, targets


def _advice(model: Sequential, num_ranks: int, options: Mapping[str, Any], measured: Any, recompute: bool) -> Advice:
    limit = inf if options.get("memory_limit") is None else memory_size(options["memory_limit"])
    partition = options.get("partition")
    weighing = Weighing(
        model,
        num_ranks,
        measured,
        limit,
        options.get("optimiser"),
        None if str(partition) == "measured" else partition,
        options.get("inputs_require_grad", False),
    )
    return weighed(weighing, options.get("chunks_per_rank"), True if recompute else None)

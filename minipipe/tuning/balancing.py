"""A partition that balances ranks by measured costs, from one process, or from one rank for all."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from types import ModuleType
from typing import Any

import numpy as np

from minipipe.autograd import backend
from minipipe.comm import ProcessGroup
from minipipe.errors import ArgumentError
from minipipe.execution.objective import Loss
from minipipe.execution.plan import Plan, check_model
from minipipe.nn import Sequential
from minipipe.schedules.action_table import Schedule
from minipipe.schedules.registry import NUM_MICROBATCHES
from minipipe.tuning.layers import MakeOptimiser
from minipipe.tuning.measuring import measure_layers, measure_on_this_rank

_REPEATS = 5


def balance(
    model: Sequential,
    inputs: Any,
    targets: Any = None,
    num_stages: int | None = None,
    *,
    by: str = "time",
    loss: Loss | None = None,
    placement: Sequence[int] | None = None,
    schedule: Schedule | None = None,
    num_microbatches: int | None = None,
    optimiser: MakeOptimiser | None = None,
    recompute: bool = False,
    repeats: int = _REPEATS,
    seed: int = 0,
) -> list[range]:
    """Measure the layers of a model, and return the partition that minimises the largest cost of any rank.

    Local; no messages. Two calls may differ, because times do: let one rank decide for all, as
    ``Pipeline(…, partition="measured", sample=(inputs, targets))`` does. :func:`minipipe.partition_by_cost` describes
    how close it is to the optimum if a rank has several stages.

    Parameters
    ----------
    model : Sequential
    inputs, targets : array of shape (samples, ...), or bundle
        A batch, as for :func:`minipipe.measure_layers`.
    num_stages : int, optional
        Each on a rank of its own, unless there is a placement.
    by : str
        ``"time"``: the seconds of F, I and W, the loss among them. ``"parameters"``: their number. ``"memory"``: the
        bytes that the microbatches in flight hold, with parameters, gradients and the optimiser's state; as if all
        stages of a rank held most at once, and counting twice what two neighbouring layers hold.
    loss : function, optional
        Goes with the targets.
    placement : sequence of int, optional
        The rank of each stage.
    schedule : Schedule, optional
        Replaces ``num_stages`` and ``placement``, and gives the number of microbatches that each stage holds, which
        is otherwise one.
    num_microbatches : int, optional
        Into how many the batch is divided; by default as many as the schedule has, or 8.
    optimiser : function, optional
        ``parameters -> Optimiser``, for its state.
    recompute : bool
        Whether stages recompute their forward in backward: then its time counts twice.
    repeats, seed : int
        As for :func:`minipipe.measure_layers`.

    Returns
    -------
    list of range
        The layers of each stage: for ``partition=``.

    Raises
    ------
    ArgumentError
        Code ``name``: another ``by``. Code ``value``: neither ``num_stages`` nor a schedule, or both; and what
        :func:`minipipe.measure_layers` raises.
    PartitionError
        Codes ``zero-stages`` and ``too-few-layers``.

    Examples
    --------
    >>> import numpy as np
    >>> from minipipe import balance, nn
    >>> model = nn.Sequential(nn.Linear(300, 300), nn.Linear(300, 2), nn.Linear(2, 2), nn.Linear(2, 2))
    >>> balance(model, np.ones((64, 300)), np.ones((64, 2)), num_stages=2, by="memory", loss=nn.MSELoss())
    [range(0, 1), range(1, 4)]
    """
    if num_microbatches is None:
        num_microbatches = NUM_MICROBATCHES if schedule is None else schedule.num_microbatches
    layers = measure_layers(model, inputs, targets, loss, num_microbatches=num_microbatches, repeats=repeats, seed=seed)
    return layers.balance(
        num_stages, by=by, placement=placement, schedule=schedule, optimiser=optimiser, recompute=recompute
    )


def measured_partition(
    model: Any,
    group: ProcessGroup,
    options: Mapping[str, Any],
    loss: Loss,
    seed: int,
    device: str | ModuleType,
    recompute: bool,
) -> list[range]:
    """Return the measured partition for the options of a pipeline: rank 0 measures, and broadcasts the result.

    Collective. The other ranks wait for rank 0, at most for the timeout of the group.

    Parameters
    ----------
    model : Sequential
    group : ProcessGroup
    options : mapping
        Those of :class:`minipipe.Plan`, and ``sample=(inputs, targets)``, which only rank 0 needs.
    loss : function
    seed : int
    device : str or module
    recompute : bool

    Raises
    ------
    ArgumentError
        Code ``value``: on rank 0, when there is no sample.
    """
    check_model(model)
    others = {name: value for name, value in options.items() if name not in ("partition", "sample")}
    schedule = Plan(model, num_ranks=group.size, **others).schedule
    found = None
    if group.rank == 0:
        sample = options.get("sample")
        if not isinstance(sample, tuple | list) or len(sample) != 2:
            raise ArgumentError("value", 'partition="measured" needs a batch to measure: sample=(inputs, targets).')
        inputs, targets = sample
        xp = backend.module_for(device, group.local_rank)
        layers = measure_on_this_rank(model, inputs, targets, loss, schedule.num_microbatches, _REPEATS, seed, xp)
        found = np.array([part.stop for part in layers.balance(schedule=schedule, recompute=recompute)])
    ends = group.broadcast(found, what='the partition, which rank 0 measures for partition="measured",').tolist()
    return [range(start, end) for start, end in zip([0, *ends], ends)]

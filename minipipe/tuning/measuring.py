"""Measuring a model layer by layer, on one process.

Each layer becomes a stage on a rank of its own, by the functions that make the stages
of a pipeline: the code measured is the code that runs. One layer at a time has values:
once for its result, and again, from the last layer to the first, for its times and its
memory::

    build layer i, F, drop it       i = 0, 1, ..., n - 1      keeps the values between layers
    build layer i, F I W, drop it   i = n, n - 1, ..., 0      layer n is the loss; keeps the gradients between layers

A layer runs eagerly, as in a pipeline by default.
"""

from __future__ import annotations

from collections.abc import Hashable, Mapping, Sequence
from statistics import median
from time import perf_counter
from types import ModuleType
from typing import Any, NamedTuple

from minipipe.autograd import Node
from minipipe.autograd.memory import buffer_of, held_buffers
from minipipe.comm import ProcessGroup, objects, spawn
from minipipe.core.autograd import backend
from minipipe.core.autograd.backend import Array
from minipipe.core.autograd.modes import current_place, enable_grad, random_key
from minipipe.core.execution.payload import Payload
from minipipe.core.execution.stage import Stage
from minipipe.core.schedules.action import F, I, W
from minipipe.core.specs import COUNT
from minipipe.errors import ArgumentError, MicrobatchError
from minipipe.execution.batch import Batch
from minipipe.execution.building import build_stages
from minipipe.execution.checks.calls import check_loss
from minipipe.execution.meter import MemoryMeter, persistent_arrays, roots_of
from minipipe.execution.objective import BatchObjective, Loss
from minipipe.execution.plan import Plan, check_model
from minipipe.execution.samples import samples, sizes_of
from minipipe.nn import Identity, Sequential
from minipipe.schedules import Action, ActionKind, Schedule, one_microbatch
from minipipe.schedules.registry import NUM_MICROBATCHES
from minipipe.tuning.layers import (
    Buffers,
    Holding,
    LayerProfile,
    MeasuredLayers,
    Passed,
)
from minipipe.tuning.memory import MakeOptimiser

REPEATS = 5  # runs of each layer, of which the time is the median
_NOTHING = Payload([], [], ())


def measure_layers(
    model: Sequential,
    inputs: Any,
    targets: Any = None,
    loss: Loss | None = None,
    *,
    num_microbatches: int = NUM_MICROBATCHES,
    repeats: int = REPEATS,
    seed: int = 0,
    device: str | ModuleType = "cpu",
) -> MeasuredLayers:
    """Measure the costs of each layer of a model: times, memory, and the size of its
    message to the next layer.

    Local; no messages. It runs the first microbatch of a batch on this process alone,
    with one BLAS thread, in the mode and with the random numbers of a pipeline's step.
    Each layer runs as a stage of its own. Only one layer at a time has values, drawn
    for it if it has none, so the model may exceed the memory of this process. The
    values between the layers are kept for all of them, for one microbatch. The model is
    not changed.

    Parameters
    ----------
    model : Sequential
    inputs, targets : array of shape (samples, ...), or pytree
        A batch, as for :meth:`minipipe.Pipeline.step`.
    loss : function, optional
        ``(outputs, targets) -> Tensor``. Without one, backward begins with gradients of
        ones.
    num_microbatches : int
        Into how many the batch is divided.
    repeats : int
        The times are medians of this many runs of each layer, after some untimed runs;
        at least 1.
    seed : int
        For initial values and random numbers.
    device : str or module
        As for :class:`minipipe.Pipeline`.

    Returns
    -------
    MeasuredLayers
        A :class:`LayerCosts <minipipe.tuning.LayerCosts>` for each layer; a sequence
        inside the model counts as its layers. It prints as a table.

    Raises
    ------
    ModelError
        Codes ``type`` and ``loss``.
    ArgumentError
        Code ``value``: targets without a loss or a loss without targets, or a number
        that is out of range.
    MicrobatchError
        Codes ``too-few`` and ``wrong-number``.

    Notes
    -----
    A layer is timed alone, on a machine on which nothing else computes: ranks that
    share a memory bus are slower. The input of a layer is in the cache, like the input
    of a stage.

    Examples
    --------
    >>> import numpy as np
    >>> from minipipe import measure_layers, nn
    >>> model = nn.Sequential(nn.Linear(64, 32), nn.ReLU(), nn.Linear(32, 10))
    >>> layers = measure_layers(
    ...     model,
    ...     np.ones((80, 64)),
    ...     np.ones((80, 10)),
    ...     nn.MSELoss(),
    ...     num_microbatches=8,
    ... )
    >>> [
    ...     (costs.num_parameters, costs.message_size, costs.activation)
    ...     for costs in layers
    ... ]
    [(2080, 1280, 0), (0, 1280, 1280), (330, 400, 1280)]
    >>> all(time > 0 for time in layers.times)
    True
    """
    check_question("measure_layers", model, targets, loss)
    repeats = COUNT.check("repeats", repeats)
    xp = backend.module_for(device)

    def measure(group: ProcessGroup) -> MeasuredLayers:
        return measure_on_this_rank(
            model,
            inputs,
            targets,
            loss,
            num_microbatches,
            repeats,
            seed,
            xp,
        )

    return spawn(measure, num_ranks=1)[0]


def check_question(
    call: str, model: Sequential, targets: Any, loss: Loss | None
) -> None:
    """Refuse a model that is not a sequence of layers, an unsuitable loss, and targets
    or a loss without the other.

    Raises
    ------
    ModelError
        Codes ``type`` and ``loss``.
    ArgumentError
        Code ``value``.
    """
    check_model(model)
    check_loss(loss)
    if (loss is None) != (targets is None):
        problem = "targets, but no loss"
        if targets is None:
            problem = "a loss, but no targets"
        raise ArgumentError(f"{call} has {problem}; give both, or neither.")


def measure_on_this_rank(
    model: Sequential,
    inputs: Any,
    targets: Any,
    loss: Loss | None,
    num_microbatches: int,
    repeats: int,
    seed: int,
    xp: ModuleType,
) -> MeasuredLayers:
    """Like :func:`measure_layers`, with the current number of BLAS threads, and without
    its checks.
    """
    plan = _plan_of_layers(model)
    batch = _first_microbatch(plan, inputs, targets, loss, num_microbatches, seed, xp)
    layers = plan.layers[:-1]

    def stage_of(index: int) -> Stage:
        return build_stages(plan, index, seed, xp=xp)[index]

    with random_key(seed), enable_grad():
        values = [batch.input(0)]  # by layer, its input
        for index in range(len(layers)):
            current_place().begin(0)
            values.append(stage_of(index).forward(0, values[-1])[0])
        outputs = values[-1] if loss is None else _NOTHING
        ones = []
        for array, requires_grad in zip(outputs.arrays, outputs.requires_grad):
            ones.append(xp.ones_like(array) if requires_grad else None)
        gradients = [Payload(ones, [], ())]
        results = [*values[1:], None]  # the loss passes nothing on
        profiles = []
        for index in reversed(range(len(layers) + (loss is not None))):
            passing = _Passing(values[index], results[index], gradients)
            profile, gradient = _measure(stage_of(index), passing, batch, repeats, xp)
            profiles.append(profile)
            gradients.append(gradient)
    return MeasuredLayers(layers, profiles[::-1], loss)


class _Passing(NamedTuple):
    """The input and the result of a layer, and the gradients after it, the last one for
    its result.
    """

    received: Payload
    result: Payload | None
    gradients: list[Payload]

    @property
    def size(self) -> int:
        """The bytes of the result as a message."""
        if self.result is None:
            return 0
        return backend.num_bytes(self.result.to_message(may_be_on_device=True))


def _plan_of_layers(model: Sequential) -> Plan:
    """Return a plan with a stage for each layer, each on a rank of its own, and one for
    the loss.
    """
    whole = Sequential(*model.tied(), Identity())
    num_stages = len(whole.flat_layers)
    schedule = one_microbatch(range(num_stages), num_stages)
    return Plan(whole, schedule, partition=[range(i, i + 1) for i in range(num_stages)])


def _first_microbatch(
    plan: Plan,
    inputs: Any,
    targets: Any,
    loss: Loss | None,
    num_microbatches: int,
    seed: int,
    xp: ModuleType,
) -> Batch:
    """Return the first microbatch of a batch, in memory of its own."""
    x = samples(inputs, "inputs", plan.dtypes["inputs"], xp)
    read = [x]
    if loss is not None:
        y = samples(targets, "targets", plan.dtypes["targets"], xp)
        read.append(y)
        if y.num_samples != x.num_samples:
            counts = f"{x.num_samples} inputs, but {y.num_samples} targets"
            message = f"There are {counts}; expected one for each."
            raise MicrobatchError("wrong-number", message)
    sizes = sizes_of(x.num_samples, num_microbatches, *read)
    first_x, *first_y = (_copied(each.cut(sizes)[0]) for each in read)
    objective = BatchObjective(loss)
    objective.begin(sizes[:1], first_y or None)
    return Batch("measure_layers", sizes[:1], [first_x], objective, 0, 0, seed)


def _copied(part: Payload) -> Payload:
    return part._replace(arrays=list(map(backend.copy, part.arrays)))


def _measure(
    stage: Stage, passing: _Passing, batch: Batch, repeats: int, xp: ModuleType
) -> tuple[LayerProfile, Payload]:
    """Run F, I and W of a stage, once for its memory and then for the times; also
    return the gradient of its inputs.
    """
    actions = _Actions(stage, passing, batch)
    times: dict[ActionKind, list[float]] = {kind: [] for kind in (F, I, W)}
    holding, returned = _held(stage, actions, passing, batch)
    for _ in range(repeats):
        stage.begin(accumulate=True)
        for kind in actions.kinds:
            start = perf_counter()
            actions.run(kind)
            backend.synchronise(xp)
            times[kind].append(perf_counter() - start)
    medians: Any = (median(spent or [0.0]) for spent in times.values())
    return LayerProfile(tuple(medians), holding, passing.size), returned


class _Actions:
    """F, I and W of a stage for one microbatch, and what it holds between them.

    Attributes
    ----------
    kinds : tuple of ActionKind
    held : Held, WeightWork or None
    """

    def __init__(self, stage: Stage, passing: _Passing, batch: Batch) -> None:
        self._stage = stage
        self._received = passing.received
        self._batch = batch
        self._gradient = None if stage.is_last else passing.gradients[-1]
        self.kinds: tuple[ActionKind, ...] = (F, I, W)
        if stage.is_frozen:
            self.kinds = (F, I)
        if not stage.has_backward:
            self.kinds = (F,)
        self.held: Any = None

    def run(self, kind: ActionKind) -> Payload:
        """Run one of them; return the values that it passes on."""
        stage = self._stage
        held = self.held
        self.held = None
        passed = _NOTHING
        if kind is F:
            current_place().begin(0)
            if stage.is_last:  # the loss, after the last layer
                self.held = stage.forward_with_loss(
                    0, self._received, self._batch.objective
                )
            else:
                passed, self.held = stage.forward(0, self._received)
        elif kind is I:
            passed, self.held = stage.backward_input(0, held, self._gradient)
        else:
            stage.backward_weight(0, held)
        return passed

    @property
    def graph(self) -> list[Any]:
        """The roots of the graph that is held now."""
        return roots_of([self.held])


class _Identities:
    """The identities of buffers: those that other stages know, and others of a stage.

    Another stage may reuse the identity of a buffer later.
    """

    def __init__(self, stage: Stage, passing: _Passing, result: Payload) -> None:
        self._stage = stage.index
        # The next layer has the buffer of the result that was computed before.
        self._same: dict[int, int] = {}
        if passing.result is not None:
            pairs = zip(result.arrays, passing.result.arrays)
            self._same = {_buffer(a): _buffer(b) for a, b in pairs}
        self._known = set(self._same.values())
        for payload in (passing.received, *passing.gradients):
            self.add(payload)

    def add(self, payload: Payload) -> None:
        self._known.update(map(_buffer, payload.arrays))

    def marked(self, buffers: dict[int, int]) -> Buffers:
        """Return the bytes of buffers by their marked identities."""
        marked: dict[Hashable, int] = {}
        for buffer, size in buffers.items():
            key: Hashable = self._same.get(buffer, buffer)
            if key not in self._known:
                key = (self._stage, key)
            marked[key] = size
        return marked


def _held(
    stage: Stage, actions: _Actions, passing: _Passing, batch: Batch
) -> tuple[Holding, Payload]:
    """Run each action once; return the buffers held after F and I, and the gradient of
    the stage's inputs.
    """
    targets = [array for part in batch.objective.targets or () for array in part.arrays]
    meter = MemoryMeter(targets)
    result = actions.run(F)  # alive until the end: no other buffer gets its identity
    identities = _Identities(stage, passing, result)
    # after F, which allocates the memory of fully sharded parameters
    not_counted = [*persistent_arrays(stage.module), *targets]
    after_forward = identities.marked(held_buffers(actions.graph, not_counted))
    has_graph = any(
        node.needs_gradient for node in actions.graph if isinstance(node, Node)
    )
    after_input: Buffers = {}
    returned = _NOTHING
    transient = 0
    if I in actions.kinds:
        meter.observe(stage, actions.graph, list)
        returned = actions.run(I)
        identities.add(returned)
        after_input = identities.marked(held_buffers(actions.graph, not_counted))
        action = Action(stage.index, I, 0)
        (_, recomputed), _ = meter.measure(action, stage, actions.graph)
        transient = max(0, recomputed - sum(after_forward.values()))
    if W in actions.kinds:
        actions.run(W)
    holding = Holding(
        _passed(passing.received),
        _passed(passing.gradients[-1]),
        after_forward,
        after_input,
        transient,
        has_graph,
    )
    return holding, returned


def _passed(payload: Payload) -> Passed:
    arrays = [array for array in payload.arrays if array is not None]
    distinct = map(buffer_of, arrays)
    buffers: Buffers = {id(buffer): backend.num_bytes(buffer) for buffer in distinct}
    if not arrays:
        return Passed(buffers, 0)
    message = payload.to_message(may_be_on_device=True)
    if message is arrays[0]:  # one array is sent as it is
        return Passed(buffers, 0)
    return Passed(buffers, backend.num_bytes(message))


def _buffer(array: Array | None) -> int:
    return id(buffer_of(array))


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
    repeats: int = REPEATS,
    seed: int = 0,
) -> list[range]:
    """Measure the layers of a model, and return the partition that minimises the
    largest cost of any rank.

    Local; no messages. Results of two calls may differ, because times do: let one rank
    decide for all, as ``Pipeline(…, partition="measured", sample=(inputs, targets))``
    does. :func:`minipipe.partition_by_cost` describes how close it is to the optimum if
    a rank has several stages.

    Parameters
    ----------
    model : Sequential
    inputs, targets : array of shape (samples, ...), or pytree
        A batch, as for :func:`minipipe.measure_layers`.
    num_stages : int, optional
        The number of stages, each on a rank of its own, unless there is a placement.
    by : str
        ``"time"``: the seconds of F, I and W, the loss among them. ``"parameters"``:
        their number. ``"memory"``: the bytes that the microbatches in flight hold, with
        parameters, gradients and the optimiser's state. This counts all stages of a
        rank at their peaks, and buffers that two neighbouring layers hold twice.
    loss : function, optional
        Goes with the targets.
    placement : sequence of int, optional
        The rank of each stage.
    schedule : Schedule, optional
        Replaces ``num_stages`` and ``placement``, and gives the number of microbatches
        that each stage holds, which is otherwise one.
    num_microbatches : int, optional
        Into how many the batch is divided; by default as many as the schedule has, or
        8.
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
        Code ``name``: another ``by``. Code ``value``: neither ``num_stages`` nor a
        schedule, or both; and the errors of :func:`minipipe.measure_layers`.
    PartitionError
        Codes ``value`` and ``too-few``.

    Examples
    --------
    >>> import numpy as np
    >>> from minipipe import balance, nn
    >>> model = nn.Sequential(
    ...     nn.Linear(300, 300), nn.Linear(300, 2), nn.Linear(2, 2), nn.Linear(2, 2)
    ... )
    >>> balance(
    ...     model,
    ...     np.ones((64, 300)),
    ...     np.ones((64, 2)),
    ...     num_stages=2,
    ...     by="memory",
    ...     loss=nn.MSELoss(),
    ... )
    [range(0, 1), range(1, 4)]
    """
    if num_microbatches is None:
        num_microbatches = NUM_MICROBATCHES
        if schedule is not None:
            num_microbatches = schedule.num_microbatches
    layers = measure_layers(
        model,
        inputs,
        targets,
        loss,
        num_microbatches=num_microbatches,
        repeats=repeats,
        seed=seed,
    )
    return layers.balance(
        num_stages,
        by=by,
        placement=placement,
        schedule=schedule,
        optimiser=optimiser,
        recompute=recompute,
    )


def batch_of(sample: Any, option: str) -> Sequence[Any]:
    """Return the inputs and targets of ``sample=``.

    Raises
    ------
    ArgumentError
        Code ``value``: it is not a pair.
    """
    if not isinstance(sample, tuple | list) or len(sample) != 2:
        hint = "pass sample=(inputs, targets)"
        raise ArgumentError(f"{option} needs a batch to measure: {hint}.")
    return sample


def measured_partition(
    model: Any,
    group: ProcessGroup,
    options: Mapping[str, Any],
    recompute: bool,
    loss: Loss,
    seed: int,
    device: str | ModuleType,
) -> list[range]:
    """Return the measured partition for the options of a pipeline: rank 0 measures, and
    broadcasts the result.

    Collective. The other ranks wait for rank 0, at most for the timeout of the group.

    Parameters
    ----------
    model : Sequential
    group : ProcessGroup
    options : mapping
        The options of :class:`minipipe.Plan`, and ``sample=(inputs, targets)``, which
        only rank 0 needs.
    recompute : bool
    loss : function
    seed : int
    device : str or module

    Raises
    ------
    ArgumentError
        Code ``value``: on rank 0, if there is no sample.
    """
    check_model(model)
    others = {name: options[name] for name in options.keys() - {"partition", "sample"}}
    schedule = Plan(model, num_ranks=group.size, **others).schedule
    ends = None
    if group.rank == 0:
        inputs, targets = batch_of(options.get("sample"), 'partition="measured"')
        xp = backend.module_for(device, group.local_rank)
        layers = measure_on_this_rank(
            model, inputs, targets, loss, schedule.num_microbatches, REPEATS, seed, xp
        )
        parts = layers.balance(schedule=schedule, recompute=recompute)
        ends = [part.stop for part in parts]
    ends = objects.broadcast(group, 0, ends, 'partition="measured"')
    return [range(start, end) for start, end in zip([0, *ends], ends)]

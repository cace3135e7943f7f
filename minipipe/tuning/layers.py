"""The measured costs of each layer of a model, and the costs and the memory of any
stages made of these layers.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Mapping, Sequence
from itertools import groupby
from typing import Any, NamedTuple, overload

from minipipe.core.flow import flow_of
from minipipe.core.memory import pairs_of
from minipipe.core.specs import Spec
from minipipe.errors import ArgumentError, counted
from minipipe.execution.partition import (
    check_partition,
    partition_by_cost,
    partition_by_stage_cost,
)
from minipipe.execution.plan import Plan
from minipipe.io import html_table, text_table
from minipipe.nn import Module
from minipipe.schedules import Costs, Schedule
from minipipe.schedules.analysis.replicas import pipelines_of
from minipipe.tuning.memory import (
    MakeOptimiser,
    MemoryPrediction,
    gradient_bytes,
    kept_bytes,
    memory_of,
    uses_in,
)

Buffers = Mapping[Hashable, int]  # bytes, by the identity of a buffer


class Passed(NamedTuple):
    """The values that pass over one stage boundary, in one direction.

    Attributes
    ----------
    buffers : mapping
    packed : int
        The bytes of the message that they are packed into; 0 for a single array, which
        is sent without packing.
    """

    buffers: Buffers
    packed: int

    def where(self, message: str) -> dict[Hashable, tuple[Hashable, int]]:
        """Return, by buffer, the message that holds it after it was received from
        another rank, and its bytes.
        """
        return {key: (message, self.packed) for key in self.buffers if self.packed}


class Holding(NamedTuple):
    """The buffers that one microbatch holds in a layer, or in the loss.

    Attributes
    ----------
    inputs, gradients : Passed
        Received from the previous layer, and from the next one.
    after_forward, after_input : mapping
        The buffers that its graph keeps alive after F and after I.
    transient : int
        Bytes beyond ``after_forward`` while its I runs: recomputed activations.
    has_graph : bool
        Whether a gradient passes through it; False before the first trained layer.
    """

    inputs: Passed
    gradients: Passed
    after_forward: Buffers
    after_input: Buffers
    transient: int
    has_graph: bool = True


def held_by_stage(
    layers: Sequence[Holding],
    loss: Sequence[Holding],
    recompute: bool = False,
    came: Passed | None = None,
    came_back: Passed | None = None,
    batch: Buffers | None = None,
) -> tuple[int, int, int]:
    """Return the bytes that a stage of layers holds after F, after I, and additionally
    while its I runs.

    Parameters
    ----------
    layers : sequence of Holding
        Consecutive, at least one.
    loss : sequence of Holding
        The buffers of the loss, if it follows; otherwise empty.
    recompute : bool
        Whether the stage keeps only its input between F and I.
    came, came_back : Passed, optional
        The values, and the gradients, that this stage received in a message, or a
        neighbouring stage on the same rank that may pass them on.
    batch : mapping, optional
        The buffers of the batch, if the rank has it without a message. They do not
        count.

    Examples
    --------
    The result of a layer is the input of the next one, so it counts once. After I the
    stage also holds a gradient of 8 bytes.

    >>> first = Holding(Passed({"batch": 4}, 0), Passed({}, 0), {"result": 8}, {}, 0)
    >>> gradient = Passed({"gradient": 8}, 0)
    >>> second = Holding(
    ...     Passed({"result": 8}, 0),
    ...     gradient,
    ...     {"result": 8},
    ...     {"result": 8, "gradient": 8},
    ...     0,
    ... )
    >>> held_by_stage([first, second], [])
    (8, 16, 0)
    >>> held_by_stage([first, second], [], recompute=True)
    (4, 16, 4)
    """
    parts = [*layers, *loss]
    lies_in: dict[Hashable, tuple[Hashable, int]] = {}
    lies_in |= dict.fromkeys(batch or (), ("batch", 0))
    if came is not None:
        lies_in |= came.where("message")
    if came_back is not None:
        lies_in |= came_back.where("gradient message")

    def num_bytes(held: Sequence[Buffers]) -> int:
        """Return the bytes of buffers that may occur several times."""
        sizes: dict[Hashable, int] = {}
        for buffer, size in (item for part in held for item in part.items()):
            place, nbytes = lies_in.get(buffer, (buffer, size))
            sizes[place] = nbytes
        return sum(sizes.values())

    has_graph = any(part.has_graph for part in layers)
    held = [part.after_forward for part in parts]
    recomputed: Sequence[Holding] = parts
    if recompute:
        held = [part.after_forward for part in loss]
        recomputed = layers
        if has_graph:
            held.append(layers[0].inputs.buffers)
    activation = num_bytes(held)
    # Backward recomputes the last layer first, while the layers before it still hold
    # their activations.
    during = []
    for i, part in enumerate(recomputed):
        before = [other.after_forward for other in recomputed[: i + 1]]
        during.append(num_bytes(before) + part.transient)
    transient = 0
    if has_graph:
        transient = max(0, max(during) - activation)
    return activation, num_bytes([part.after_input for part in parts]), transient


_HEAD = (
    "layer",
    "",
    "F ms",
    "I ms",
    "W ms",
    "held after F",
    "after I",
    "message",
    "gradient",
    "parameters",
    "bytes",
)
_ON_THE_RIGHT = {0, *range(2, len(_HEAD))}


class LayerProfile(NamedTuple):
    """The measurements of a layer, or of the loss, from which :class:`LayerCosts`
    follow.
    """

    times: tuple[float, float, float]
    holding: Holding
    message_size: int


class LayerCosts(NamedTuple):
    """The costs of one microbatch in one layer, as if it were a stage. The names are as
    in :class:`minipipe.Costs`.

    Attributes
    ----------
    layer : str
        A short description of the layer.
    forward, backward_input, backward_weight : float
        The times of F, I and W, in seconds: medians.
    activation, weight_activation, transient_activation : int
        The bytes held from F until I, from I until W, and additionally while I runs.
    message_size : int
        The bytes of the message to another rank, if a stage boundary follows. The
        gradient has as many.
    returns_gradient : bool
        Whether a gradient is sent back over that boundary.
    num_parameters : int
        The number of elements.
    parameter_bytes : int

    Examples
    --------
    >>> LayerCosts("Linear(2, 2)", 1e-3, 1e-3, 2e-3, 32, 48, 0, 16, True, 6, 24).time
    0.004
    """

    layer: str
    forward: float
    backward_input: float
    backward_weight: float
    activation: int
    weight_activation: int
    transient_activation: int
    message_size: int
    returns_gradient: bool
    num_parameters: int
    parameter_bytes: int

    @property
    def time(self) -> float:
        """The seconds of one microbatch: F, I and W."""
        return self.forward + self.backward_input + self.backward_weight


class MeasuredLayers(Sequence[LayerCosts]):
    """The costs of each layer of a model: a sequence of :class:`LayerCosts`, which
    prints as a table.

    :func:`minipipe.measure_layers` makes it. It is never changed.

    Attributes
    ----------
    loss : LayerCosts or None
        The costs of the loss after the last layer, if there was one.

    Examples
    --------
    >>> import numpy as np
    >>> from minipipe import measure_layers, nn
    >>> model = nn.Sequential(nn.Linear(2, 3), nn.Tanh())
    >>> layers = measure_layers(
    ...     model, np.ones((40, 2)), np.ones((40, 3)), nn.MSELoss(), num_microbatches=4
    ... )
    >>> [costs.layer for costs in layers], layers[1].activation, layers.loss.activation
    (['Linear(2, 3)', 'Tanh()'], 120, 120)
    """

    def __init__(
        self, layers: list[Module], measured: Sequence[LayerProfile], loss: Any = None
    ) -> None:
        self._layers = layers
        self._holdings = [profile.holding for profile in measured]
        names = [layer.brief() for layer in layers]
        names.append(getattr(loss, "__qualname__", type(loss).__name__))
        sizes = [(layer.num_parameters, _num_bytes(layer)) for layer in layers]
        self._rows: list[LayerCosts] = []  # the loss at the end, if there is one
        for name, profile, size in zip(names, measured, [*sizes, (0, 0)]):
            holding = profile.holding
            batch = None if self._rows else holding.inputs.buffers
            held = held_by_stage([holding], [], batch=batch)
            self._rows.append(
                LayerCosts(
                    name,
                    *profile.times,
                    *held,
                    profile.message_size,
                    bool(holding.gradients.buffers),
                    *size,
                )
            )
        self.loss: LayerCosts | None = None
        if loss is not None:
            self.loss = self._rows[-1]

    def __len__(self) -> int:
        return len(self._layers)

    @overload
    def __getitem__(self, index: int) -> LayerCosts: ...
    @overload
    def __getitem__(self, index: slice) -> list[LayerCosts]: ...
    def __getitem__(self, index: int | slice) -> LayerCosts | list[LayerCosts]:
        return self._rows[: len(self)][index]

    @property
    def times(self) -> list[float]:
        """The seconds of one microbatch in each layer, the loss counted with the last:
        for ``layer_costs``.
        """
        last = 0.0 if self.loss is None else self.loss.time
        times = [costs.time for costs in self]
        return [*times[:-1], *(time + last for time in times[-1:])]

    def memory(
        self,
        plan: Plan,
        *,
        optimiser: MakeOptimiser | None = None,
        recompute: bool = False,
        stash: bool | None = None,
    ) -> MemoryPrediction:
        """Return how much memory each rank of a plan takes in a training step, as
        :meth:`minipipe.Plan.memory` does.
        """
        if len(self) != len(plan.layers):
            measured = f"These are figures of {counted(len(self), 'layer')}"
            problem = f"{measured}, but the plan has {len(plan.layers)}"
            raise ArgumentError(f"{problem}; measure the model of the plan.")
        costs = self.costs(plan.partition, plan.pipelines[0], recompute)
        cuts = [self[part.stop - 1] for part in plan.partition]
        pairs = ((cut.message_size, cut.returns_gradient) for cut in cuts)
        messages = [(size, size * returns) for size, returns in pairs]
        return memory_of(plan, costs, messages, optimiser, stash)

    def costs(
        self,
        partition: Iterable[range],
        placement: Sequence[int] | None = None,
        recompute: bool = False,
    ) -> Costs:
        """Return the costs of the stages of a partition, in seconds and bytes, for
        ``simulate``.

        The bytes are the same as in :meth:`minipipe.Pipeline.measure_memory`: a buffer
        that two layers hold counts once. The times are sums over layers. Messages were
        not measured: set ``latency`` and ``bandwidth``.

        Parameters
        ----------
        partition : iterable of range
            The layers of each stage.
        placement : sequence of int, optional
            The rank of each stage, because a message of several tensors is one buffer.
            The default is a different rank for every stage.
        recompute : bool
            Whether a stage keeps only its input between forward and backward.

        Raises
        ------
        PartitionError
            Code ``value``.

        Examples
        --------
        >>> import numpy as np
        >>> from minipipe import measure_layers, nn
        >>> model = nn.Sequential(nn.Linear(2, 3), nn.Tanh(), nn.Linear(3, 3))
        >>> layers = measure_layers(model, np.ones((40, 2)), num_microbatches=4)
        >>> (
        ...     layers.costs([range(0, 2), range(2, 3)]).activation,
        ...     layers.costs([range(0, 3)]).activation,
        ... )
        ((120, 120), (120,))
        """
        ranges = list(partition)
        parts = check_partition(ranges, len(self), len(ranges))
        rows = [self._rows[self._with_loss(part)] for part in parts]
        forward = [sum(row.forward for row in stage) for stage in rows]
        backward_input = [sum(row.backward_input for row in stage) for stage in rows]
        backward_weight = [sum(row.backward_weight for row in stage) for stage in rows]
        if recompute:
            pairs = zip(backward_input, forward)
            backward_input = [time and time + again for time, again in pairs]
        if placement is None:
            placement = range(len(parts))
        # Neighbouring stages on one rank need no message: a buffer received by one may
        # be part of the graph of another.
        stages = groupby(range(len(parts)), list(placement).__getitem__)
        runs = [[parts[stage] for stage in run] for _, run in stages]
        held = []
        for run in runs:
            held += [
                self._held(part, recompute, run[0].start, run[-1].stop) for part in run
            ]
        activation, weight_activation, transient = zip(*held)
        sizes = [self[part.stop - 1].message_size for part in parts[:-1]]
        uses = [uses_in(self._layers[part.start : part.stop]) for part in parts]
        return Costs(
            forward=forward,
            backward_input=backward_input,
            backward_weight=backward_weight,
            message_size=[*sizes, 0],
            activation=activation,
            weight_activation=weight_activation,
            transient_activation=transient,
            gradient_size=list(map(gradient_bytes, uses)),
            unit="s",
            memory_unit="bytes",
        )

    def _with_loss(self, part: range) -> slice:
        """Return the positions of a stage's layers among the rows, with the loss if it
        follows.
        """
        if part.stop == len(self):
            return slice(part.start, None)
        return slice(part.start, part.stop)

    def _held(
        self, part: range, recompute: bool, first: int, end: int
    ) -> tuple[int, int, int]:
        """Return the bytes that a stage holds, on a rank with the consecutive layers
        ``first`` to ``end - 1``.
        """
        holdings = self._holdings[self._with_loss(part)]
        layers = holdings[: len(part)]
        loss = holdings[len(part) :]
        received: dict[str, Any] = {}
        if first == 0:
            received["batch"] = self._holdings[0].inputs.buffers
        else:
            received["came"] = self._holdings[first].inputs
        if end < len(self):
            received["came_back"] = self._holdings[end - 1].gradients
        return held_by_stage(layers, loss, recompute, **received)

    def balance(
        self,
        num_stages: int | None = None,
        *,
        by: str = "time",
        placement: Sequence[int] | None = None,
        schedule: Schedule | None = None,
        optimiser: MakeOptimiser | None = None,
        recompute: bool = False,
    ) -> list[range]:
        """Return the partition that minimises the largest sum of costs on any rank.

        Parameters are as in :func:`minipipe.balance`, which measures first.

        Raises
        ------
        ArgumentError
            Codes ``name``, ``value``.
        PartitionError
            Codes ``value`` and ``too-few``.

        Examples
        --------
        >>> import numpy as np
        >>> from minipipe import measure_layers, nn, schedules
        >>> layers = measure_layers(
        ...     nn.Sequential(*(nn.Linear(4, 4) for _ in range(6))), np.ones((8, 4))
        ... )
        >>> layers.balance(3, by="parameters")
        [range(0, 2), range(2, 4), range(4, 6)]

        In 1F1B the first rank holds the most microbatches, so it gets the fewest
        layers.

        >>> layers.balance(by="memory", schedule=schedules.one_f_one_b(2, 8))
        [range(0, 3), range(3, 6)]
        """
        if (num_stages is None) == (schedule is None):
            raise ArgumentError(
                "balance takes num_stages, or a schedule instead, which has its own."
            )
        if schedule is not None:
            # replicas are alike
            num_stages = schedule.num_stages
            placement = next(iter(pipelines_of(schedule)))
        assert num_stages is not None
        if by == "memory":
            counts = [1] * num_stages
            if schedule is not None:
                counts = microbatches_in_flight(schedule)
            held = [max(costs.activation, costs.weight_activation) for costs in self]
            kept = [sum(kept_bytes([layer], optimiser)) for layer in self._layers]
            pairs = list(zip(held, kept))
            rows = [[count * each + fixed for each, fixed in pairs] for count in counts]
            return partition_by_stage_cost(rows, num_stages, placement)
        return partition_by_cost(self._amounts(by, recompute), num_stages, placement)

    def _amounts(self, by: str, recompute: bool) -> Sequence[float]:
        Spec(str, choices=("time", "memory", "parameters"), code="name").check("by", by)
        if by == "parameters":
            return [costs.num_parameters for costs in self]
        times = self.times
        if recompute:
            for index, costs in enumerate(self):
                if costs.backward_input:
                    times[index] += costs.forward
        return times

    # -- as a table --------------------------------------------------------------------

    def __repr__(self) -> str:
        time = f"{1e3 * sum(self.times):.3g} ms a microbatch"
        return f"<MeasuredLayers: {counted(len(self), 'layer')}, {time}>"

    def __str__(self) -> str:
        return text_table(self._table(), _ON_THE_RIGHT)

    def _repr_html_(self) -> str:
        return html_table(self._table(), _ON_THE_RIGHT)

    def _table(self) -> list[tuple[str, ...]]:
        numbers = [*map(str, range(len(self))), ""]
        return [_HEAD, *map(_cells, numbers, self._rows)]


def _num_bytes(layer: Module) -> int:
    return sum(parameter.nbytes for parameter in layer.parameters())


def _cells(number: str, costs: LayerCosts) -> tuple[str, ...]:
    times = costs.forward, costs.backward_input, costs.backward_weight
    held = costs.activation, costs.weight_activation, costs.message_size
    gradient = "yes" if costs.returns_gradient else "no"
    return (
        number,
        costs.layer,
        *(f"{1e3 * time:.3f}" for time in times),
        *(f"{size:,}" for size in held),
        gradient,
        f"{costs.num_parameters:,}",
        f"{costs.parameter_bytes:,}",
    )


def microbatches_in_flight(schedule: Schedule) -> list[int]:
    """Return, by stage, the largest number of microbatches that it holds at once, on
    any of its ranks.

    Examples
    --------
    >>> from minipipe import schedules
    >>> microbatches_in_flight(schedules.one_f_one_b(4, 8))
    [4, 3, 2, 1]
    """
    most = [0] * schedule.num_stages
    counts = pairs_of(flow_of(schedule))
    for rank, row in enumerate(schedule.actions):
        held = [0] * schedule.num_stages
        for (stage, _, _), change in zip(row, counts.of_row(rank)):
            held[stage] += change.begins
            most[stage] = max(most[stage], held[stage])
            held[stage] -= change.ends
    return most

"""The plan: which layers of a model are on which stage, on which rank, and which ranks
share a parameter.

A plan can be inspected without any ranks, before it runs. A :class:`minipipe.Pipeline`
is a plan, a group and stages.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Sequence
from functools import cached_property
from math import prod
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from minipipe.core.autograd import backend
from minipipe.core.execution.executor import Handlers
from minipipe.core.nn.module import computes_as
from minipipe.core.nn.sequential import parameters_of
from minipipe.core.schedules.analysis.verifier import verify
from minipipe.errors import ArgumentError, ModelError, counted
from minipipe.execution.choosing import (
    checked_blocks,
    ranks_of_each,
    replicated,
    schedule_of_modules,
)
from minipipe.execution.partition import partition_of
from minipipe.nn import Module, Parameter, Sequential
from minipipe.schedules import REGISTRY, Program, Schedule, lower
from minipipe.schedules.analysis.replicas import pipelines_of
from minipipe.schedules.registry import spelled

if TYPE_CHECKING:
    from minipipe.optim import Optimiser

# The features of schedules that pipelines run; there is no handler for a kind that a
# program has declared.
_RUN = (
    "replicas",
    "slices",
    "updates",
    "recompute",
    "overlap",
)
_HEAD = ("layer", "", "stage", "rank", "parameters", "bytes")
_ON_THE_RIGHT = {0, 2, 3, 4, 5}


class Plan:
    """A model, a schedule and a partition that fit together. It cannot be changed.

    Local; no messages.

    Parameters
    ----------
    model : Sequential
        The layers. A stage boundary may lie between any two.
    schedule : str, Path, Schedule or Program
        A name in ``schedules.REGISTRY``, in any case, a file (``.csv`` or ``.txt``), or
        a custom Schedule, with or without its sends and receives. It runs exactly as
        written.
    num_ranks : int, optional
        Needed for a named schedule; other schedules set it themselves.
    num_microbatches : int, optional
        In each batch; 8 by default, whatever the number of ranks.
    chunks_per_rank : int, optional
        Stages on each rank, for schedules that take it.
    partition : list of range, optional
        The layers of each stage; by default the most parameters on one rank are as few
        as possible.
    layer_costs : sequence of float, optional
        Costs to balance, one for each layer, instead of numbers of parameters.
    inputs_require_grad : bool
        Whether every step also computes the gradients of the inputs.
    replicas : int
        Copies of the pipeline, each with its part of a batch: ``num_microbatches``
        microbatches each. The ranks are divided among them. A Schedule argument
        describes one replica.
    gradient_blocks : int, optional
        Blocks of microbatches whose gradients are summed separately, and then in pairs:
        one for each replica by default. With as many blocks, other numbers of replicas
        have the same bits; each replica has a power of two.

    Attributes
    ----------
    model : Sequential
    program : Program
        The lowered schedule, which the ranks run.
    schedule : Schedule
        Its computations. If parameters are frozen, a stage that trains none has no W,
        and stages before the first stage that trains have no backward. A model without
        frozen parameters runs its schedule exactly as written, and so does any model if
        the inputs require gradients.
    partition : tuple of range
        The layers of each stage.
    placement : tuple of int or tuple
        The rank of each stage, or the ranks of its replicas.
    pipelines : tuple of tuple of int
        By pipeline, the rank of each stage: one, or as many as a microbatch has ways
        through the replicas.
    inputs_require_grad : bool

    Raises
    ------
    RankError, PartitionError, ScheduleError, ModelError
        The message names the value that does not fit, the expected value, and a fix.

    Examples
    --------
    >>> from minipipe import Plan, nn
    >>> print(
    ...     Plan(
    ...         nn.Sequential(nn.Linear(64, 32), nn.ReLU(), nn.Linear(32, 10)),
    ...         "1f1b",
    ...         num_ranks=2,
    ...     )
    ... )
    layer                  stage  rank  parameters  bytes
        0  Linear(64, 32)      0     0       2,080  8,320
        1  ReLU()              0     0           0      0
        2  Linear(32, 10)      1     1         330  1,320
                                   all       2,410  9,640
    """

    model: Sequential
    program: Program
    partition: tuple[range, ...]
    pipelines: tuple[tuple[int, ...], ...]
    inputs_require_grad: bool
    gradient_blocks: int
    replicas: int  # the argument: replicas inside a schedule are not among them
    built_as: str | None  # the name of the schedule, if the argument was a name
    _tied: Sequential  # the model, whose layers have no common parameters but aliases

    def __init__(
        self,
        model: Sequential,
        schedule: str | Path | Schedule | Program = "1f1b",
        *,
        num_ranks: int | None = None,
        num_microbatches: int | None = None,
        chunks_per_rank: int | None = None,
        partition: Sequence[range] | None = None,
        layer_costs: Sequence[float] | None = None,
        inputs_require_grad: bool = False,
        replicas: int = 1,
        gradient_blocks: int | None = None,
    ) -> None:
        check_model(model)
        schedule = spelled(schedule)
        table = replicated(
            schedule, num_ranks, num_microbatches, chunks_per_rank, replicas
        )
        verify(table)
        # on demand: the list of features belongs to the schedules
        from minipipe.schedules.features import check_known

        check_known(table, "a Pipeline", *_RUN)
        pipelines = tuple(pipelines_of(table))
        parts = _partition(model, pipelines[0], partition, layer_costs)
        tied = model.tied()
        _check_in_layers(model, tied)
        frozen = _frozen_stages(model, tied, parts, table, inputs_require_grad)
        vars(self).update(
            model=model,
            program=lower(_frozen(table, frozen)),
            partition=parts,
            _tied=tied,
            inputs_require_grad=bool(inputs_require_grad),
            pipelines=pipelines,
            gradient_blocks=checked_blocks(gradient_blocks, table),
            replicas=replicas,
            built_as=_name_of(schedule),
        )

    def __setattr__(self, name: str, value: object) -> None:
        raise AttributeError(
            f"A plan cannot be changed; make another one with the {name} that you want."
        )

    def __delattr__(self, name: str) -> None:
        self.__setattr__(name, None)

    @classmethod
    def of_modules(
        cls,
        modules: Sequence[Module],
        num_ranks: int,
        schedule: str | Path | Schedule | Program | None = None,
        num_microbatches: int | None = None,
        inputs_require_grad: bool = False,
        replicas: int = 1,
    ) -> Plan:
        """Return a plan with a stage for each module.

        A named schedule is built with as many chunks on each rank as the fullest rank
        needs. In a straight schedule the modules are spread over the ranks, neighbours
        together; in others the stages beyond the modules are left out.

        Parameters
        ----------
        modules : sequence of Module
            Any number, at least one. With fewer modules than ranks, the last ranks hold
            none.
        num_ranks : int
        schedule : str, Path, Schedule or Program, optional
            By default 1F1B, in its interleaved form if ranks hold several modules.
        num_microbatches : int, optional
            By default 8.
        inputs_require_grad : bool
        replicas : int
            Each of them has all modules, on its part of the ranks.

        Raises
        ------
        RankError
            Code ``wrong-number``, when there is no module, or a custom schedule has
            another number of stages.
        """
        schedule = spelled(schedule)
        resolved = schedule_of_modules(
            len(modules), ranks_of_each(num_ranks, replicas), schedule, num_microbatches
        )
        parts = [range(i, i + 1) for i in range(len(modules))]
        model = Sequential(*modules)
        needs = inputs_require_grad
        plan = cls(
            model,
            resolved,
            num_ranks=num_ranks,
            partition=parts,
            inputs_require_grad=needs,
            replicas=replicas,
        )
        if len(modules) * replicas == num_ranks:
            vars(plan).update(built_as=_name_of(schedule))
        return plan

    @property
    def schedule(self) -> Schedule:
        """The computations of all ranks."""
        return self.program.schedule

    def program_of_run(self, num_microbatches: int) -> Program:
        """Return the program of a run in which weights are updated, with a total number
        of microbatches.

        A table is the schedule of its run; a named schedule is built for the number of
        microbatches.
        """
        if self.built_as is None or num_microbatches == self.program.num_microbatches:
            return self.program
        n = self.replicas
        table = replicated(
            self.built_as, self.program.num_ranks, num_microbatches // n, None, n
        )
        verify(table)
        return lower(_frozen(table, self.schedule.frozen))

    def is_stashed(self, stash: bool | None) -> bool:
        """Return whether a run keeps the weights of a forward for its backward: by
        default, except for PACI by name.
        """
        if stash is None:
            return self.built_as != "paci"
        return bool(stash)

    @property
    def placement(self) -> tuple[int | tuple[int, ...], ...]:
        """The rank of each stage, or the ranks of its replicas."""
        return self.program.placement

    @cached_property
    def rank_of_layer(self) -> tuple[int, ...]:
        """The rank of each layer; with replicas, the rank in the first replica."""
        return tuple(self.pipelines[0][stage] for stage in self.stage_of_layer)

    @cached_property
    def stage_of_layer(self) -> tuple[int, ...]:
        """The stage of each layer."""
        return tuple(
            stage for stage, layers in enumerate(self.partition) for _ in layers
        )

    @property
    def layers(self) -> list[Module]:
        """The flat layers, between which a stage boundary may lie: a sequence in the
        model counts as its layers.
        """
        return self._tied.flat_layers

    def part(self, stage: int) -> Sequential:
        """Return the layers of a stage."""
        return self._tied.cut(self.partition[stage])

    @property
    def owners(self) -> dict[str, int]:
        """By name of a parameter, the first rank that has it; for a shared one, the
        rank of the first layer with it.
        """
        return {
            name: self.pipelines[0][next(iter(stages.values()))]
            for name, stages in self.uses.items()
        }

    @property
    def uses(self) -> dict[str, dict[int, int]]:
        """By name of a parameter, its uses, each with its stage, in the order of the
        layers.
        """
        names = {
            id(parameter.owner): name
            for name, parameter in self.model.named_parameters()
        }
        uses: dict[str, dict[int, int]] = {name: {} for name in names.values()}
        for layer, stage in zip(self.layers, self.stage_of_layer):
            for parameter in parameters_of(layer):
                uses[names[id(parameter.owner)]][parameter.use] = stage
        return uses

    @property
    def shared(self) -> dict[str, dict[int, dict[int, int]]]:
        """By name of a parameter that several stages share: by use, for each rank that
        has the parameter, a rank.

        That rank has the use, and is the rank itself or one of its pipeline.
        """
        found = {}
        for name, stages in self.uses.items():
            users: dict[int, dict[int, int]] = {use: {} for use in sorted(stages)}
            for pipeline in self.pipelines:
                ranks = {use: pipeline[stages[use]] for use in users}
                for holder in set(ranks.values()):
                    for use, rank in ranks.items():
                        users[use].setdefault(holder, rank)
                        users[use][rank] = rank
            if any(
                holder != source
                for sources in users.values()
                for holder, source in sources.items()
            ):
                found[name] = users
        return found

    @property
    def roles(self) -> dict[int, str]:
        """By rank, its replicas and stages, for messages; none without replicas."""
        if not self.schedule.has_replicas:
            return {}
        own: dict[int, dict[int, list[int]]] = {}
        for stage in range(self.schedule.num_stages):
            for replica, rank in enumerate(self.program.ranks_of(stage)):
                own.setdefault(rank, {}).setdefault(replica, []).append(stage)
        return {
            rank: "; ".join(
                (
                    f"replica {replica}, stage{'s' * (len(stages) > 1)} "
                    f"{', '.join(map(str, stages))}"
                )
                for replica, stages in sorted(parts.items())
            )
            for rank, parts in own.items()
        }

    @property
    def description(self) -> dict[str, Any]:
        """Values, by name, that must be equal on all ranks."""
        return {
            "replicas": max(
                len(self.program.ranks_of(stage))
                for stage in range(self.schedule.num_stages)
            ),
            "schedule": str(self.program).splitlines(),
            "partition": self.partition,
            "inputs_require_grad": self.inputs_require_grad,
            "gradient_blocks": self.gradient_blocks,
        }

    @cached_property
    def dtypes(self) -> dict[str, Any]:
        """The dtypes of floating inputs and targets: the dtypes of the first and the
        last parameter.

        If parameters are in half precision, targets are float32, as losses are.
        """
        dtypes = [parameter.dtype for parameter in self.model.parameters()] or [
            np.dtype(np.float32)
        ]
        return {
            "inputs": dtypes[0],
            "targets": np.dtype(np.float32)
            if backend.is_half(dtypes[-1])
            else dtypes[-1],
        }

    @cached_property
    def sharded_stages(self) -> frozenset[int]:
        """The stages with fully sharded layers."""
        found = set()
        for stage in range(self.program.num_stages):
            if any(parameter.is_summed for parameter in self.part(stage).parameters()):
                found.add(stage)
        return frozenset(found)

    def with_handlers(self, handlers: Handlers, trains: bool = True) -> Handlers:
        """Return the handlers of a call's rows; other plans add handlers of kinds that
        a pass has added.
        """
        return handlers

    def check_measurable(self, call: str) -> None:
        """Refuse a call that measures stages, if a plan has no such stages."""

    @property
    def is_half(self) -> bool:
        """Whether some parameters are in half precision: their gradients may overflow."""
        return any(backend.is_half(one.dtype) for one in self.model.parameters())

    def memory(
        self,
        layers: Any,
        *,
        optimiser: Callable[[list[Parameter]], Optimiser] | None = None,
        recompute: bool = False,
        stash: bool | None = None,
    ) -> Any:
        """Return how much memory each rank will take in a training step, before
        anything is allocated.

        Local; no messages. Parameters, gradients and the optimiser's state follow from
        shapes. The memory of one microbatch is measured; the number of microbatches
        that a rank holds at once follows from the schedule. For microbatches of the
        measured size, the bytes of activations are exactly the bytes that graphs keep
        alive. For a schedule that updates weights itself, the result is the memory of a
        run, and of a long one if the schedule is a name.

        Parameters
        ----------
        layers : MeasuredLayers
            Measured for this model, with the loss, by :func:`minipipe.measure_layers`.
            One measurement serves any plan with microbatches of that size; its
            ``num_microbatches`` counts the microbatches of all replicas.
        optimiser : function, optional
            ``parameters -> Optimiser``, such as ``optim.Adam``.
        recompute : bool
            As for :class:`Pipeline`.
        stash : bool, optional
            As for :meth:`Pipeline.run`.

        Returns
        -------
        MemoryPrediction
            A :class:`RankMemory <minipipe.tuning.RankMemory>` for each rank, in bytes.
            It prints as a table.

        Raises
        ------
        ArgumentError
            Codes ``type`` and ``value``: layers that are not measured, or not of this
            model.

        Notes
        -----
        Not counted: the batch, temporary arrays of one operation, copies of gradients
        that ranks with shared parameters exchange, Python, NumPy and MPI themselves,
        about 60 MB for each process, and memory that the allocator keeps.

        Examples
        --------
        >>> import numpy as np
        >>> from minipipe import Plan, measure_layers, nn, optim
        >>> model = nn.Sequential(nn.Linear(64, 32), nn.Tanh(), nn.Linear(32, 10))
        >>> layers = measure_layers(
        ...     model,
        ...     np.ones((80, 64)),
        ...     np.ones((80, 10)),
        ...     nn.MSELoss(),
        ...     num_microbatches=8,
        ... )
        >>> print(
        ...     Plan(model, "1f1b", num_ranks=2, num_microbatches=8).memory(
        ...         layers, optimiser=optim.Adam
        ...     )
        ... )
        rank  parameters  gradients  optimiser  activations  messages  sums  versions  total bytes
           0       8,320      8,320     16,640        2,560     1,280     0         0       37,120
           1       1,320      1,320      2,640        1,680     1,280     0         0        8,240
        """
        if not callable(getattr(layers, "memory", None)):
            message = (
                f"The layers are of type {type(layers).__name__}; expected the result "
                "of minipipe.measure_layers."
            )
            raise ArgumentError("type", message)
        return layers.memory(
            self, optimiser=optimiser, recompute=recompute, stash=stash
        )

    # -- as a table --------------------------------------------------------------------

    def __repr__(self) -> str:
        return (
            f"<Plan {self.schedule.describe()}, {counted(len(self.layers), 'layer')}>"
        )

    def __str__(self) -> str:
        from minipipe.io import text_table

        return text_table([_HEAD, *self._rows()], _ON_THE_RIGHT)

    def _repr_html_(self) -> str:
        from minipipe.io import html_table

        return html_table([_HEAD, *self._rows()], _ON_THE_RIGHT)

    def _home(self, stage: int) -> str:
        return ", ".join(map(str, self.program.ranks_of(stage)))

    def _rows(self) -> Iterator[tuple[str, ...]]:
        """Yield the columns of each layer, and then of all."""
        total_size = total_bytes = 0
        rows = self.layers
        for stage, layers in enumerate(self.partition):
            for i in layers:
                layer = rows[i]
                size = layer.num_parameters
                nbytes = sum(p.nbytes for p in layer.parameters())
                label = layer.brief()
                if size and not any(p.requires_grad for p in layer.parameters()):
                    label += ", frozen"
                yield (
                    str(i),
                    label,
                    str(stage),
                    self._home(stage),
                    f"{size:,}",
                    f"{nbytes:,}",
                )
                total_size += size
                total_bytes += nbytes
        yield "", "", "", "all", f"{total_size:,}", f"{total_bytes:,}"


def _name_of(schedule: object) -> str | None:
    """Return the name of a schedule in ``schedules.REGISTRY``; None for a file or a
    table.
    """
    if isinstance(schedule, str) and schedule in REGISTRY:
        return schedule
    return None


def _partition(
    model: Sequential,
    placement: Sequence[int],
    partition: Sequence[range] | None,
    layer_costs: Sequence[float] | None,
) -> tuple[range, ...]:
    """Return the flat layers of each stage; see :class:`Plan`."""
    sizes = [len(Sequential(layer).flat_layers) for layer in model]
    numbers = []
    for layer in model.flat_layers:
        shapes = [parameter.whole_shape for parameter in layer.parameters()]
        numbers.append(sum(map(prod, shapes)))
    return tuple(partition_of(sizes, numbers, placement, partition, layer_costs))


def _frozen_stages(
    model: Sequential,
    tied: Sequential,
    parts: Sequence[range],
    table: Schedule | Program,
    inputs_require_grad: bool,
) -> list[int]:
    """Return the stages that train no parameters, if any parameter of the model is
    frozen; refuse a schedule that does not fit them.
    """
    is_trained = [
        any(p.requires_grad for p in tied.cut(part).parameters()) for part in parts
    ]
    _check_frozen(table, parts, is_trained, inputs_require_grad)
    if inputs_require_grad or all(p.requires_grad for p in model.parameters()):
        return []
    return [stage for stage, is_one in enumerate(is_trained) if not is_one]


def _frozen(table: Schedule | Program, stages: Collection[int]) -> Schedule | Program:
    """Return a table in which some stages train no parameters."""
    if not stages:
        return table
    from minipipe.schedules import freeze_stages  # few models have frozen stages

    return freeze_stages(table, stages)


def check_model(model: Any) -> None:
    """Refuse a model that cannot be partitioned.

    Raises
    ------
    ModelError
        Code ``type``.
    """
    if not computes_as(model, Sequential):
        kind = type(model).__name__
        if isinstance(model, Sequential):
            kind += ", with a forward of its own"
        raise ModelError(
            "type",
            "A pipeline partitions an nn.Sequential between its layers; this model is "
            f"{kind}. Write nn.Sequential(*layers), or "
            "Pipeline.from_modules([part, …], group, …).",
        )


def _check_in_layers(model: Sequential, tied: Sequential) -> None:
    """Refuse parameters that are attributes of a sequence and of none of its layers: no
    stage would have them.
    """
    in_layers = {
        id(parameter.owner)
        for layer in tied.flat_layers
        for parameter in parameters_of(layer)
    }
    beside = [
        name
        for name, parameter in model.named_parameters()
        if id(parameter.owner) not in in_layers
    ]
    if beside:
        raise ModelError(
            "unsupported",
            f"{', '.join(beside)} of {type(model).__name__} belongs to none of its "
            "layers, which are all that a pipeline computes. Make it an attribute of a "
            "layer with a forward that uses it.",
        )


def _check_frozen(
    given: Schedule | Program,
    parts: Sequence[range],
    is_trained: Sequence[bool],
    inputs_require_grad: bool,
) -> None:
    """Refuse a schedule whose frozen stages are trained, or have to return a
    gradient.
    """
    for stage in sorted(given.frozen):
        if is_trained[stage]:
            raise ModelError(
                "frozen",
                f"The schedule has stage {stage} frozen, but parameters of its layers "
                f"are trained. Freeze them: model[{parts[stage].start}].freeze() and "
                "so on; or give a schedule without freeze_stages.",
            )
    if inputs_require_grad and given.frozen and given.first_backward_stage > 0:
        raise ModelError(
            "frozen",
            "inputs_require_grad=True needs a backward on every stage, but the first "
            "stages of the schedule are frozen. Give it without freeze_stages.",
        )

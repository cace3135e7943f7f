"""The plan of a pipeline, from the arguments of its constructor: a model or a plan, a
group or a mesh, and options.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from functools import partial
from importlib import import_module
from inspect import signature
from typing import Any, NamedTuple

from minipipe.comm import Grid, ProcessGroup
from minipipe.core.schedules.action import U
from minipipe.errors import ArgumentError, ModelError, RankError, counted
from minipipe.execution.checks.calls import check_loss
from minipipe.execution.checks.comparison import check_first_values
from minipipe.execution.objective import BatchObjective, Weight
from minipipe.execution.partition import named_partition
from minipipe.execution.plan import Plan, check_model
from minipipe.hints import check_pipeline_options
from minipipe.nn import Sequential
from minipipe.pipeline.options import MeasuringOptions, PipelineOptions


class Planned(NamedTuple):
    """The result of :func:`planned`.

    Attributes
    ----------
    plan : Plan
    group : ProcessGroup
        The ranks of one pipeline.
    grid : Grid or None
        The device mesh to which they belong.
    recompute : bool
        Whether the stages recompute their activations.
    compares : bool
        Whether arguments of all calls are compared.
    """

    plan: Plan
    group: ProcessGroup
    grid: Grid | None
    recompute: bool
    compares: bool = True


class Stages(NamedTuple):
    """The modules of :meth:`Pipeline.from_modules`, one for each stage."""

    modules: list[Any]

    @property
    def model(self) -> Sequential:
        """The modules as one model."""
        return Sequential(*self.modules)

    def plan(
        self, num_ranks: int, options: Mapping[str, Any]
    ) -> tuple[Plan, dict[str, Any]]:
        """Return a plan with these stages, and the options that it does not take."""
        rest = dict(options)
        taken = signature(Plan.of_modules).parameters
        own = {name: rest.pop(name) for name in options if name in taken}
        return Plan.of_modules(self.modules, num_ranks, **own), rest


def planned(
    model: Sequential | Plan | Stages,
    group: ProcessGroup | Grid,
    own: Mapping[str, Any],
    options: Mapping[str, Any],
    pipeline: type,
) -> Planned:
    """Return the plan argument, or a plan of a model and options, and the ranks that
    run it.

    Collective if the partition or the schedule follows from measurements: ``pipeline``
    makes the pipelines that are measured, and ``own`` has their loss, seed, device and
    recompute. Otherwise local.

    Raises
    ------
    ArgumentError
        Code ``name``, for an option that does not exist. Code ``value``, for arguments
        that do not fit a device mesh, see :func:`over_grid`.
    ModelError
        Code ``unsupported``, for options together with a plan.
    RankError
        Code ``wrong-number``, for a plan with another number of ranks.
    """
    made: Any = model
    grid: Grid | None = None
    recompute = own["recompute"]
    if isinstance(group, Grid):
        grid = group
        _check_over_grid(options)
        group = group.pipeline
        made, options = over_grid(model, grid, options)
    if isinstance(made, Stages):
        made, options = made.plan(group.size, options)
    elif not isinstance(made, Plan):
        named = _named_partition(options)
        if named is not None:
            run = {name: own[name] for name in own if name != "check_agreement"}
            made, options, recompute = named(made, group, options, pipeline, **run)
    if not isinstance(made, Plan):
        made = Plan(made, num_ranks=group.size, **options)
        options = {}
    if options:
        message = f"The stages determine {', '.join(options)}; leave it out."
        raise ModelError("unsupported", message)
    if made.schedule.num_ranks != group.size:
        raise RankError(
            "wrong-number",
            f"The plan is for {counted(made.schedule.num_ranks, 'rank')}, but this "
            f"group has {group.size}. Start as many ranks, or make a plan for "
            f"{group.size}.",
        )
    for reason in _against_shards(made):
        raise ArgumentError(reason)
    return Planned(made, group, grid, recompute)


def _named_partition(options: Mapping[str, Any]) -> Callable[..., Any] | None:
    """Return the function of a partition that has a name, or of schedule="auto", which
    measures; None without them.

    Raises
    ------
    ArgumentError
        Code ``name``, for an option that does not exist.
    PartitionError
        Code ``value``, for a name that is unknown.
    """
    only = [*MeasuringOptions.__annotations__]
    taken = [name for name in PipelineOptions.__annotations__ if name not in only]
    check_pipeline_options(options, taken, only)
    name = options.get("partition")
    if not isinstance(name, str) and options.get("schedule") == "auto":
        name = "measured"
    if not isinstance(name, str):
        return None
    home, _, function = named_partition(name).function.rpartition(".")
    # imported here, because most plans have no such partition
    made_by: Callable[..., Any] = getattr(import_module(home), function)
    return made_by


def _check_over_grid(options: Mapping[str, Any]) -> None:
    """Refuse a partition that does not work with a device mesh."""
    name = options.get("partition")
    if isinstance(name, str) and not named_partition(name).over_grid:
        problem = "A Grid has replicas or tensor-parallel ranks, which do not work with"
        raise ArgumentError(f"{problem} partition={name!r}; pass a process group.")


def _against_shards(plan: Plan) -> Iterator[str]:
    """Yield the reasons why replicas with shards of parameters cannot run a plan."""
    name = plan.schedule.name
    summed = [one for one in plan.model.parameters() if one.is_summed]
    if summed and not plan.sharded_stages:
        return  # its parts are on the ranks of one pipeline
    for size in {one.owner.shard.group.size for one in summed}:
        for stage in range(plan.program.num_stages):
            count = len(plan.program.ranks_of(stage))
            advice = "; pass replicas= or a grid with as many replicas."
            if count > plan.replicas:
                advice = (
                    ": fully sharded layers do not work with a schedule that has "
                    "replicas itself. Choose another schedule, such as '1f1b', or "
                    "layers that are not fully sharded."
                )
            if count != size:
                yield (
                    f"Stage {stage} of {name} is on {counted(count, 'rank')}, but its "
                    f"parameters have {size} shards{advice}"
                )
    if summed and U in plan.program.kinds:
        yield (
            f"{name} keeps versions of weights, but a fully sharded replica keeps a "
            "shard of the last version only; choose a schedule with a flush, such as "
            "'1f1b'."
        )


def over_grid(
    model: Any, grid: Grid, options: Mapping[str, Any]
) -> tuple[Any, dict[str, Any]]:
    """Return a model whose layers are divided among the tensor-parallel ranks of a
    mesh, and options with its replicas.

    A plan stays as it is.

    Raises
    ------
    ArgumentError
        Code ``value``: replicas in addition to the mesh's; a plan of a whole model, or
        of another number of replicas; a fully sharded model together with tensor
        parallelism.
    ModelError
        Code ``type``.
    """
    is_shared = grid.tensor.size > 1
    is_sharded = grid.fully_sharded and grid.replicas > 1
    if "replicas" in options:
        replicas = counted(grid.replicas, "replica")
        raise ArgumentError(f"The grid has {replicas} already; leave replicas out.")
    if isinstance(model, Stages):
        divided, options = over_grid(model.model, grid, options)
        return Stages(list(divided.layers)), options
    if not isinstance(model, Plan):
        check_model(model)
        from minipipe.nn import fully_shard, parallelise
        from minipipe.nn.dividing import check_not_sharded

        if is_shared:
            check_not_sharded(model)
        if is_shared or is_sharded:
            # Before each rank takes its part; afterwards any part would do.
            values = dict(model.named_parameters())
            check_first_values(grid.group, values, of_wholes=True)
        model = parallelise(model, grid.tensor) if is_shared else model
        model = fully_shard(model, grid.data) if is_sharded else model
        return model, {**options, "replicas": grid.replicas}
    _check_divided(model, grid)
    return model, {**options}


def _check_divided(plan: Plan, grid: Grid) -> None:
    """Refuse a plan of a whole model, or of another number of replicas than a mesh."""
    if plan.replicas != grid.replicas:
        raise ArgumentError(
            f"The plan has {counted(plan.replicas, 'replica')}, and the grid "
            f"{grid.replicas}; make it with replicas={grid.replicas}.",
        )
    is_sharded = grid.fully_sharded and grid.replicas > 1
    parameters = list(plan.model.parameters())
    made = ""
    if grid.tensor.size > 1 and not any(one.is_divided for one in parameters):
        made = "nn.parallelise(model, grid.tensor)"
    elif is_sharded and not any(one.is_summed for one in parameters):
        made = "nn.fully_shard(model, grid.data)"
    if made:
        raise ArgumentError(
            "The grid divides the model, but the plan has whole layers; make the plan "
            f"from {made}.",
        )


def objective_of(
    plan: Plan, loss: Any, loss_weight: Weight | None, grid: Grid | None
) -> partial[BatchObjective]:
    """Return the function by which every call takes the results of the last stage,
    after checking the loss.

    Raises
    ------
    ModelError
        Code ``loss``.
    """
    check_loss(loss)
    division = None
    weight = loss_weight
    is_divided = any(parameter.is_divided for parameter in plan.model.parameters())
    if grid is not None or is_divided or hasattr(loss, "group"):
        from minipipe.execution.outputs import output_division

        division = output_division(plan.model, loss, grid)
    if plan.schedule.num_slices > 1:
        from minipipe.execution.sliced import weight_of_loss

        weight = weight_of_loss(loss, loss_weight)
    return partial(BatchObjective, loss, weight, division=division)


def roles_of(plan: Plan, group: ProcessGroup, grid: Grid | None) -> dict[int, str]:
    """Return the names of ranks in messages, by their numbers in the world: by mesh
    coordinates, and by stage.
    """
    if grid is None:
        return {group.name(rank): role for rank, role in plan.roles.items()}
    places = grid.pipeline.size // grid.replicas
    found = {}
    for rank, (name, role) in enumerate(grid.roles.items()):
        place, replica, _ = grid.coordinates_of(rank)
        stages = plan.schedule.stages_of(replica * places + place)
        found[name] = (
            f"{role}; stage{'s' * (len(stages) > 1)} {', '.join(map(str, stages))}"
        )
    return found

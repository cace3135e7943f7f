"""The arguments and results of a call: each rank reads its part of the batch, and all ranks get the loss."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from inspect import signature
from types import ModuleType
from typing import Any, NamedTuple

import numpy as np

from minipipe.comm import Grid, ProcessGroup
from minipipe.comm.message import finish
from minipipe.comm.objects import pack, unpack
from minipipe.comm.process_group import OwnTag
from minipipe.data import Share
from minipipe.errors import ArgumentError, MicrobatchError, ModelError, RankError, counted
from minipipe.execution import BatchLoss, PendingLoss
from minipipe.execution.batch import Batch
from minipipe.execution.checks.calls import Calls, check_loss, part_of
from minipipe.execution.checks.comparison import check_first_values
from minipipe.execution.checks.finite import StepCheck
from minipipe.execution.checks.updates import batch_marks
from minipipe.execution.objective import BatchObjective, Weight
from minipipe.execution.outputs import output_division
from minipipe.execution.payload import Payload
from minipipe.execution.plan import Plan, check_model
from minipipe.execution.samples import (
    ABSENT,
    OF_SHARES,
    Samples,
    into_slices,
    samples,
    samples_of_share,
    sizes_of,
    split_microbatches,
)
from minipipe.execution.sliced import weight_of_loss
from minipipe.nn import Sequential, fully_shard, parallelise
from minipipe.nn.dividing import check_not_sharded
from minipipe.schedules.action import U
from minipipe.specs import INDEX

_WHOLE = ("evaluate", "predict", "measure_memory")  # calls that take any number of samples, and sequences as they are


def planned(
    model: Sequential | Plan, group: ProcessGroup | Grid, given: Mapping[str, object], pipeline: type, **run: Any
) -> tuple[Plan, ProcessGroup, Grid | None, bool]:
    """Return the plan argument, or a plan of a model and options, the group, its mesh, and whether to recompute.

    Collective if the partition or the schedule follows from measurements: ``pipeline`` makes the pipelines that
    are measured, and ``run`` has their loss, seed, device and recompute. Otherwise local.

    Raises
    ------
    ArgumentError
        Code ``name``, for an option that does not exist. Code ``value``, for a seed that is not a whole number; and for
        arguments that do not fit a device mesh, see :func:`over_grid`.
    ModelError
        Code ``unsupported``, for options together with a plan.
    RankError
        Code ``wrong-number``, for a plan with another number of ranks.
    """
    options: dict[str, Any] = {**given}
    for name in ("seed", "dropout_seed"):
        INDEX.check(name, run[name])
    grid = group if isinstance(group, Grid) else None
    if isinstance(group, Grid):
        model, options = over_grid(model, group, options)
        group = group.pipeline
    is_asked = options.get("schedule") == "auto" or str(options.get("partition")) == "measured"
    if is_asked and not isinstance(model, Plan) and any(one.is_divided for one in model.parameters()):
        message = 'Tensor-parallel and fully sharded layers cannot be measured on one rank, as schedule="auto" and'
        advice = 'partition="measured" would; pass the name of a schedule, and a partition or layer_costs.'
        raise ArgumentError("value", f"{message} {advice}")
    others = options.keys() - (signature(Plan).parameters.keys() - {"num_ranks"})
    if (is_asked or others) and not isinstance(model, Plan):
        from minipipe.tuning.race import decided  # here, because most programs measure nothing

        model, options, run["recompute"] = decided(model, group, options, pipeline, **run)
    if not isinstance(model, Plan):
        return _fitting(Plan(model, num_ranks=group.size, **options)), group, grid, run["recompute"]
    if options:
        raise ModelError("unsupported", f"The stages determine {', '.join(options)}; leave it out.")
    if model.schedule.num_ranks != group.size:
        message = f"The plan is for {counted(model.schedule.num_ranks, 'rank')}, but this group has {group.size}."
        raise RankError("wrong-number", f"{message} Start as many ranks, or make a plan for {group.size}.")
    return _fitting(model), group, grid, run["recompute"]


def _fitting(plan: Plan) -> Plan:
    """Return the plan, unless replicas that keep shards cannot run it."""
    program, name = plan.program, plan.schedule.name
    sizes = {one.owner.shard.group.size for one in plan.model.parameters() if one.is_summed}
    for stage in range(program.num_stages) if sizes else ():
        count = len(program.ranks_of(stage))
        if {count} != sizes:
            message = (
                f"Stage {stage} of {name} is on {counted(count, 'rank')}, but its parameters have {sizes.pop()} shards"
            )
            advice = "; pass replicas= or a grid with as many replicas."
            if count > plan.replicas:
                advice = ": fully sharded layers do not work with a schedule that has replicas itself. Choose another"
                advice += " schedule, such as '1f1b', or layers that are not fully sharded."
            raise ArgumentError("value", message + advice)
    if sizes and any(action.kind is U for row in program.actions for action in row):
        message = (
            f"{name} keeps versions of weights, but a fully sharded replica keeps a shard of the last version only"
        )
        raise ArgumentError("value", f"{message}; choose a schedule with a flush, such as '1f1b'.")
    return plan


def over_grid(model: Any, grid: Grid, options: Mapping[str, Any]) -> tuple[Any, dict[str, Any]]:
    """Return a model whose layers are divided among the tensor-parallel ranks of a mesh, and options with its replicas.

    A plan stays as it is.

    Raises
    ------
    ArgumentError
        Code ``value``: replicas in addition to the mesh's; a plan of a whole model, or of another number of
        replicas; a fully sharded model together with tensor parallelism.
    ModelError
        Code ``type``.
    """
    is_shared, is_sharded = grid.tensor.size > 1, grid.fully_sharded and grid.replicas > 1
    if "replicas" in options:
        raise ArgumentError("value", f"The grid has {counted(grid.replicas, 'replica')} already; leave replicas out.")
    if not isinstance(model, Plan):
        check_model(model)
        if is_shared:
            check_not_sharded(model)
        if is_shared or is_sharded:
            # Before each rank takes its part; afterwards any part would do.
            check_first_values(grid.group, dict(model.named_parameters()), of_wholes=True)
        model = parallelise(model, grid.tensor) if is_shared else model
        return fully_shard(model, grid.data) if is_sharded else model, {**options, "replicas": grid.replicas}
    if model.replicas != grid.replicas:
        message = (
            f"The plan has {counted(model.replicas, 'replica')}, and the grid {grid.replicas}; make it with replicas="
        )
        raise ArgumentError("value", f"{message}{grid.replicas}.")
    parameters = list(model.model.parameters())
    wanted = {"nn.parallelise(model, grid.tensor)": is_shared and not any(one.is_divided for one in parameters)}
    wanted["nn.fully_shard(model, grid.data)"] = is_sharded and not any(one.is_summed for one in parameters)
    for made in (name for name, is_missing in wanted.items() if is_missing):
        raise ArgumentError(
            "value", f"The grid divides the model, but the plan has whole layers; make the plan from {made}."
        )
    return model, {**options}


def objective_of(plan: Plan, loss: Any, loss_weight: Weight | None, grid: Grid | None) -> partial[BatchObjective]:
    """Return the function by which every call takes the results of the last stage, after checking the loss.

    Raises
    ------
    ModelError
        Code ``loss``.
    """
    division = output_division(plan.model, check_loss(loss), grid)
    return partial(BatchObjective, loss, weight_of_loss(plan.schedule, loss, loss_weight), division=division)


def roles_of(plan: Plan, group: ProcessGroup, grid: Grid | None) -> dict[int, str]:
    """Return the names of ranks in messages, by their numbers in the world: by mesh coordinates, and by stage."""
    if grid is None:
        return {group.name(rank): role for rank, role in plan.roles.items()}
    places, found = grid.pipeline.size // grid.replicas, {}
    for rank, (name, role) in enumerate(grid.roles.items()):
        place, replica, _ = grid.coordinates_of(rank)
        stages = plan.schedule.stages_of(replica * places + place)
        found[name] = f"{role}; stage{'s' * (len(stages) > 1)} {', '.join(map(str, stages))}"
    return found


class _Reads(NamedTuple):
    inputs: bool
    targets: bool


class Needs(_Reads):
    """The parts of a batch that a rank reads: the first stage's rank reads inputs, the last stage's rank reads targets.

    Attributes
    ----------
    inputs, targets : bool
    """

    microbatches: list[list[int]]  # of this rank, in the first stage and in the last
    num_microbatches: int  # of all ranks

    @classmethod
    def of(cls, plan: Plan, rank: int) -> Needs:
        """Return the needs of a rank."""
        table = plan.schedule
        stages, numbers = (0, table.num_stages - 1), range(table.num_microbatches)
        own = [[k for k in numbers if table.rank_of(stage, k) == rank] for stage in stages]
        found = cls(*(rank in table.ranks_of(stage) for stage in stages))
        found.microbatches, found.num_microbatches = own, len(numbers)
        return found

    def share(self, num_samples: int) -> tuple[slice | None, slice | None]:
        """Return which rows this rank reads of the inputs, and of the targets; with replicas not all of them. Local.

        Parameters
        ----------
        num_samples : int
            In the batch.

        Examples
        --------
        >>> from minipipe import Pipeline, nn, spawn
        >>> layers = nn.Sequential(nn.Linear(2, 2), nn.Linear(2, 2))
        >>> spawn(lambda group: Pipeline(layers, group, replicas=2, num_microbatches=2).needs.share(8), num_ranks=2)
        [(slice(0, 4, None), slice(0, 4, None)), (slice(4, 8, None), slice(4, 8, None))]
        """
        slices = split_microbatches(num_samples, self.num_microbatches)
        first, last = (slice(slices[ks[0]].start, slices[ks[-1]].stop) if ks else None for ks in self.microbatches)
        return first, last


class Intake:
    """Makes a batch of the arguments of a call, and counts the calls.

    Parameters
    ----------
    plan : Plan
    group : ProcessGroup
    xp : module
        The array module to compute with.
    seed : int
    compares : bool
        Whether batches are compared.
    grid : Grid, optional
        The device mesh to which the group, a pipeline, belongs.
    """

    def __init__(
        self, plan: Plan, group: ProcessGroup, xp: ModuleType, seed: int, compares: bool, grid: Grid | None
    ) -> None:
        self._plan, self._group, self._xp, self._seed, self._compares = plan, group, xp, seed, compares
        self._first_ranks, self.last_ranks = (
            plan.program.ranks_of(0),
            plan.program.ranks_of(plan.program.num_stages - 1),
        )
        self.first_rank, self.last_rank = self._first_ranks[0], self.last_ranks[0]
        self.needs = Needs.of(plan, group.rank)
        self.calls = Calls(group, self.first_rank, grid.tensor if grid else None)
        group.describe_ranks(roles_of(plan, group, grid))

    def batch(
        self, call: str, inputs: Any, targets: Any, objective: BatchObjective, is_training: bool, training_step: int
    ) -> Batch:
        """Agree on the call and on the size of the batch, and divide it. Collective."""
        if not objective.has_loss and call != "predict":
            message = f"{call}() needs a loss, but this pipeline has none: Pipeline(…, loss=nn.MSELoss())."
            raise ModelError("loss", message)
        num_slices = 1 if call in _WHOLE else self._plan.schedule.num_slices
        try:
            own = self._read(inputs, targets, objective, num_slices)
        except Exception:
            self.calls.count += 1  # so that no later call is taken for this one
            raise
        if any(each.layout == OF_SHARES for each in own.values()):
            self._check_share(call, num_slices)
        seen = (None if isinstance(given, Share) else given for given in (inputs, targets))  # those differ
        marks = batch_marks(*seen) if self._compares else {}
        alike = {"mode": bool(is_training), "number of training steps": training_step, **objective.alike, **marks}
        first = own.get("inputs")
        size, own_layout = (0, 0) if first is None else (first.num_samples, first.layout)
        num_samples, layout = self.calls.begin(call, alike, size, own_layout)
        for noun, each in own.items():
            self._check_alike(each, noun, num_samples, layout)
        count = objective.num_microbatches or self._plan.schedule.num_microbatches
        if call in _WHOLE:  # any number of samples will do, but none
            count = max(1, min(count // self._plan.schedule.num_slices, num_samples))
        sizes = sizes_of(num_samples, count, *own.values())
        parts = {noun: each.cut(sizes) for noun, each in own.items()}
        if layout == OF_SHARES:
            self._check_rows(own, parts, sizes)
        self.calls.check_trained(call)
        if self.needs.targets:
            exchange = self._all_weights if layout == OF_SHARES else None
            objective.begin(sizes, parts.get(objective.noun), exchange)
        run: dict[str, Any] = {"step": self.calls.count, "training_step": training_step, "seed": self._seed}
        return Batch(call, sizes, parts.get("inputs"), objective, **run, is_cut=bool(layout & 1), num_slices=num_slices)

    def _read(self, inputs: Any, targets: Any, objective: BatchObjective, num_slices: int) -> dict[str, Samples]:
        """Return the parts of a batch that this rank reads, by the nouns for them in messages."""
        own = {}
        if self.needs.inputs:
            own["inputs"] = self._own(inputs, "inputs", "inputs", num_slices)
        if self.needs.targets and objective.needs_targets:
            own[objective.noun] = self._own(targets, objective.noun, "targets", num_slices)
        return own

    def input_gradients(self, batch: Batch, own: dict[int, Payload]) -> Any:
        """Return the gradients of the inputs, if they are requested, on the first rank of the first stage."""
        if not self._plan.inputs_require_grad:
            return None
        if len(self._first_ranks) > 1:
            sent = [(k, payload.to_message()) for k, payload in own.items()]
            for found in gathered(self._group, self._first_ranks, sent):
                own.update((k, Payload.from_message(message, self._xp)) for k, message in found)
        return batch.input_gradients(own) if self._group.rank == self.first_rank else None

    def _check_alike(self, own: Samples, noun: str, num_samples: int, layout: int) -> None:
        if own.num_samples != num_samples:
            raise MicrobatchError(
                "wrong-number",
                f"There are {num_samples} inputs (on rank {self._group.name(self.first_rank)}), but "
                f"{own.num_samples} {noun} (on rank {self._group.name()}); expected equal numbers: pass the same batch "
                "on every rank.",
            )
        if OF_SHARES in (own.layout, layout) and own.layout != layout:
            what = "a share" if own.layout == OF_SHARES else "not a share"
            message = f"The {noun} on rank {self._group.name()} are {what} of a batch,"
            hint = "On every rank that reads inputs or targets, pass its Share of both, or the whole batch."
            raise MicrobatchError("wrong-number", f"{message} unlike the inputs on rank {self.first_rank}. {hint}")
        if own.layout != layout:
            message = f"Inputs and {noun} are split into different microbatches; pass both as Microbatches with equal"
            raise MicrobatchError("wrong-number", f"{message} numbers of samples, or neither.")

    def _check_share(self, call: str, num_slices: int) -> None:
        """Refuse a part of a batch if this rank may need other rows, or would return some."""
        why = "it divides the whole batch among the replicas" if call in _WHOLE else ""
        why = "this schedule splits sequences into slices" if num_slices > 1 else why
        why = "it returns the gradients of all inputs" if self._plan.inputs_require_grad else why
        if why:
            raise ArgumentError("value", f"{call}() does not take a Share, because {why}; pass the whole batch.")

    def _check_rows(
        self, own: Mapping[str, Samples], parts: Mapping[str, Sequence[Payload]], sizes: Sequence[int]
    ) -> None:
        """Refuse a part of a batch without all rows of this rank's microbatches."""
        for noun, each in own.items():
            numbers = self.needs.microbatches[noun != "inputs"]
            if any(parts[noun][k] is ABSENT for k in numbers):
                message = (
                    f"Rank {self._group.name()} has rows {each.rows.start} to {each.rows.stop - 1} of the {noun}, but "
                    f"its microbatches have rows {sum(sizes[: numbers[0]])} to {sum(sizes[: numbers[-1] + 1]) - 1}"
                )
                advice = f"pipeline.needs.share({each.num_samples}) returns the rows to pass."
                raise MicrobatchError("out-of-range", f"{message}; {advice}")

    def _all_weights(self, own: Sequence[float | None]) -> list[float]:
        """Return the weights of all microbatches. Collective among the ranks of the last stage."""
        found, stage = dict(enumerate(own)), self._plan.schedule.num_stages - 1
        table, rank, others = (
            self._plan.schedule,
            self._group.rank,
            [r for r in self.last_ranks if r != self._group.rank],
        )
        ks = {r: [k for k in found if table.rank_of(stage, k) == r] for r in self.last_ranks}
        mine = np.array([found[k] for k in ks[rank]], np.float64)
        sends = [self._group.isend(mine, other, OwnTag.RESULTS) for other in others]
        for other in others:
            words = "the weights of another replica's targets"
            found.update(zip(ks[other], self._group.irecv(other, OwnTag.RESULTS, what=words).wait().tolist()))
        finish(sends)
        return [found[k] for k in sorted(found)]  # type: ignore[misc]

    def _own(self, given: Any, noun: str, kind: str, num_slices: int) -> Samples:
        """Return this rank's part of a batch, in the model's dtype."""
        if given is None:
            raise ArgumentError("value", f"Rank {self._group.name()} needs the {noun}, but got None.")
        requires_grad = kind == "inputs" and self._plan.inputs_require_grad
        how = noun, self._plan.dtypes[kind], self._xp, requires_grad
        if isinstance(given, Share):
            return samples_of_share(given, *how)
        own = samples(given, *how)
        num_sequences = self._plan.schedule.num_microbatches // num_slices
        return own if num_slices == 1 else into_slices(own, noun, num_sequences, num_slices)


# -- results ----------------------------------------------------------------------------------------------------------


def gathered(group: ProcessGroup, ranks: Sequence[int], found: Any) -> list[Any]:
    """Return the results of the other replicas of a stage on the first of its ranks; return nothing on the others.

    Collective among these ranks.

    Parameters
    ----------
    group : ProcessGroup
    ranks : sequence of int
    found : tree
        The results, arrays and numbers; see :func:`minipipe.comm.objects.pack`.
    """
    first, *others = ranks
    if group.rank == first:
        words = "the results of another replica"
        return [unpack(group.irecv(other, OwnTag.RESULTS, what=words).wait()) for other in others]
    if group.rank in others:
        group.isend(pack(found), first, OwnTag.RESULTS).wait()
    return []


def gather_results(group: ProcessGroup, ranks: Sequence[int], batch: Batch) -> None:
    """Give the objective of the first replica of the last stage the results of the other replicas. Collective."""
    if len(ranks) > 1 and group.rank in ranks:
        for found in gathered(group, ranks, batch.objective.found()):
            batch.objective.take(found)


def deliver_outputs(group: ProcessGroup, root: int, batch: Batch) -> Any:
    """Return the outputs of a batch on the ranks that are to have them.

    Collective, where that is all of them.

    Parameters
    ----------
    group : ProcessGroup
    root : int
        The rank of the last stage.
    batch : Batch
    """
    found = batch.outputs() if group.rank == root else None
    if batch.objective.where == "everywhere":
        message = None if found is None else found.to_message()
        found = Payload.from_message(group.broadcast(message, root, what=part_of(batch.call)))
        found = found._replace(arrays=[a if a.flags.writeable else a.copy() for a in found.arrays])
    return None if found is None else batch.returned(found)


def deliver_loss(group: ProcessGroup, root: int, batch: Batch, check: StepCheck | None = None) -> PendingLoss:
    """Begin to give the loss of a batch to every rank, and its outputs to those that are to have them.

    Collective; parameters are as in :func:`deliver_outputs`, and a check of the loss. Each rank
    sends its findings to all others, the root with the loss. So when the slowest rank finishes, the findings of all
    others have arrived already.
    """
    outputs = deliver_outputs(group, root, batch)
    own = () if check is None else check.findings
    numbers = batch.objective.numbers(*own) if group.rank == root else None
    tell = partial(group.ibroadcast, step=batch.step, what=part_of(batch.call))
    request = tell(numbers, root)
    others = [rank for rank in range(group.size) if rank != root] if own else []
    arriving = [tell(np.array(own) if rank == group.rank else None, rank) for rank in others]

    def receive() -> BatchLoss:
        numbers = request.wait().tolist()
        loss = BatchLoss.read(numbers, len(batch.sizes), list(batch.objective.metrics), outputs)
        if check is not None:
            findings = [one.wait().tolist() for one in arriving]
            findings.insert(root, numbers[-len(own) :])
            check.judge(loss, findings)
        return loss

    return PendingLoss(receive, batch.training_step + 1)

"""The arguments of a call, of which each rank reads its part of the batch; and the
results of replicas.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from types import ModuleType
from typing import Any, NamedTuple

import numpy as np

from minipipe.comm import Grid, ProcessGroup
from minipipe.comm.objects import pack, unpack
from minipipe.core.comm.message import finish
from minipipe.core.comm.process_group import OwnTag
from minipipe.core.execution.payload import Payload
from minipipe.data import Share
from minipipe.errors import ArgumentError, MicrobatchError, ModelError
from minipipe.execution.batch import Batch
from minipipe.execution.checks.calls import Calls
from minipipe.execution.checks.updates import batch_marks
from minipipe.execution.objective import BatchObjective
from minipipe.execution.plan import Plan
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
from minipipe.pipeline.delivery import LossDelivery
from minipipe.pipeline.plain_batch import PlainBatch
from minipipe.pipeline.planning import roles_of

_MOST_FORMS = 16  # of batches that are remembered
# calls that take any number of samples, and sequences as they are
_WHOLE = ("evaluate", "predict", "measure_memory")


class _Reads(NamedTuple):
    inputs: bool
    targets: bool


class Needs(_Reads):
    """The parts of a batch that a rank reads: the first stage's rank reads inputs, the
    last stage's rank reads targets.

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
        stages = (0, table.num_stages - 1)
        numbers = range(table.num_microbatches)
        own = [
            [k for k in numbers if table.rank_of(stage, k) == rank] for stage in stages
        ]
        found = cls(*(rank in table.ranks_of(stage) for stage in stages))
        found.microbatches = own
        found.num_microbatches = len(numbers)
        return found

    def share(self, num_samples: int) -> tuple[slice | None, slice | None]:
        """Return which rows this rank reads of the inputs, and of the targets; with
        replicas not all of them. Local.

        Parameters
        ----------
        num_samples : int
            In the batch.

        Examples
        --------
        >>> from minipipe import Pipeline, nn, spawn
        >>> layers = nn.Sequential(nn.Linear(2, 2), nn.Linear(2, 2))
        >>> spawn(
        ...     lambda group: Pipeline(
        ...         layers, group, replicas=2, num_microbatches=2
        ...     ).needs.share(8),
        ...     num_ranks=2,
        ... )
        [(slice(0, 4, None), slice(0, 4, None)), (slice(4, 8, None), slice(4, 8, None))]
        """
        rows = split_microbatches(num_samples, self.num_microbatches)
        found: list[slice | None] = []
        for ks in self.microbatches:
            found.append(slice(rows[ks[0]].start, rows[ks[-1]].stop) if ks else None)
        return found[0], found[1]


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

    Attributes
    ----------
    last : PlainBatch or None
        What is known of batches like the last one.
    """

    def __init__(
        self,
        plan: Plan,
        group: ProcessGroup,
        xp: ModuleType,
        seed: int,
        compares: bool,
        grid: Grid | None,
    ) -> None:
        self._plan = plan
        self._group = group
        self._xp = xp
        self._seed = seed
        self._compares = compares
        self._first_ranks = plan.program.ranks_of(0)
        self.last_ranks = plan.program.ranks_of(plan.program.num_stages - 1)
        self.first_rank = self._first_ranks[0]
        self.last_rank = self.last_ranks[0]
        self.last: PlainBatch | None = None
        self._plain_batches: dict[Any, PlainBatch] = {}
        self.needs = Needs.of(plan, group.rank)
        self.delivery = LossDelivery(group, self.last_rank)
        self.calls = Calls(group, self.first_rank, grid.tensor if grid else None)
        group.describe_ranks(roles_of(plan, group, grid))

    def batch(
        self,
        call: str,
        inputs: Any,
        targets: Any,
        objective: BatchObjective,
        is_training: bool,
        training_step: int,
    ) -> Batch:
        """Agree on the call and on the size of the batch, and cut it. Collective."""
        if not objective.has_loss and call != "predict":
            message = (
                f"{call}() needs a loss, but this pipeline has none: Pipeline(…, "
                "loss=nn.MSELoss())."
            )
            raise ModelError("loss", message)
        given = call, inputs, targets, objective
        like = None if self.last is None else self.last.like(*given)
        own: dict[str, Samples] = {}
        if like is None:
            try:
                own = self._read(*given)
            except Exception:
                self.calls.count += 1  # so that no later call is taken for this one
                raise
        alike: dict[str, float | None] = {}
        if not self.calls.is_alone:
            alike["mode"] = bool(is_training)
            alike["number of training steps"] = training_step
            alike |= objective.alike
            if self._compares:
                alike |= batch_marks(_compared(inputs), _compared(targets))
        agreed = self.calls.begin(call, alike, self._form_of(like, own))
        if self.last is not None and like is not None:
            if agreed == self.last.agreed:
                self.calls.check_trained(call)
                return self.last.batch(self.calls.count, training_step, like, objective)
            own = self._read(*given)
        return self.agreed_batch(*given, training_step, agreed, own)

    def agreed_batch(
        self,
        call: str,
        inputs: Any,
        targets: Any,
        objective: BatchObjective,
        training_step: int,
        agreed: tuple[int, ...],
        own: Mapping[str, Samples] | None = None,
    ) -> Batch:
        """Cut a batch that is not like the last one. Collective, after the agreement.

        The parts of this rank are read unless they are given.
        """
        if own is None:
            own = self._read(call, inputs, targets, objective)
        batch = self._cut(call, own, objective, training_step, agreed)
        self.last = self._plain(batch, own, (inputs, targets), agreed)
        batch.form = self.last
        return batch

    def _form_of(
        self, like: Mapping[str, Payload] | None, own: Mapping[str, Samples]
    ) -> tuple[int, ...]:
        """Return the size, the layout and the form of the inputs, as far as this rank
        knows them.
        """
        if self.last is not None and like is not None and "inputs" in like:
            return self.last.agreed
        read = own.get("inputs")
        return (0, 0, 0) if read is None else (read.num_samples, read.layout, read.form)

    def _cut(
        self,
        call: str,
        own: Mapping[str, Samples],
        objective: BatchObjective,
        training_step: int,
        agreed: tuple[int, ...],
    ) -> Batch:
        """Return a batch of this rank's parts, cut into microbatches. Collective."""
        num_samples, layout, form = agreed
        for noun, each in own.items():
            self._check_alike(each, noun, num_samples, layout)
        count = objective.num_microbatches or self._plan.schedule.num_microbatches
        if call in _WHOLE:  # any number of samples will do, but none
            count = max(1, min(count // self._plan.schedule.num_slices, num_samples))
        sizes = sizes_of(num_samples, count, *own.values())
        parts = {noun: each.cut(sizes) for noun, each in own.items()}
        exchange = None
        if layout == OF_SHARES:
            self._check_rows(own, parts, sizes)
            exchange = self._all_weights
        self.calls.check_trained(call)
        if self.needs.targets:
            objective.begin(sizes, parts.get(objective.noun), exchange)
        of_call = self.calls.count, training_step, self._seed
        how = bool(layout & 1), self._num_slices(call), form
        return Batch(call, sizes, parts.get("inputs"), objective, *of_call, *how)

    def _num_slices(self, call: str) -> int:
        return 1 if call in _WHOLE else self._plan.schedule.num_slices

    def _plain(
        self,
        batch: Batch,
        own: Mapping[str, Samples],
        given: tuple[Any, Any],
        agreed: tuple[int, ...],
    ) -> PlainBatch | None:
        """Return what is known of a batch for others like it, the same for batches of
        one form; None if not plain.
        """
        for noun, each in own.items():
            array = given[noun != "inputs"]
            if (
                agreed[1]
                or type(array) is not np.ndarray
                or each.parts[0].arrays[0] is not array
            ):
                return None
        if (
            batch.num_slices > 1
            or batch.objective.num_microbatches is not None
            or len(batch.sizes) == 1
        ):
            return None
        parts = {noun: each.parts[0] for noun, each in own.items()}
        made = PlainBatch(batch, parts, agreed, self.needs.targets)
        key = made.call, made.sizes, agreed, *made.forms.items()
        known = self._plain_batches.get(key)
        if known is not None and made.loss is known.loss:
            return known
        if len(self._plain_batches) >= _MOST_FORMS:
            self._plain_batches.clear()
        self._plain_batches[key] = made
        return made

    def _read(
        self,
        call: str,
        inputs: Any,
        targets: Any,
        objective: BatchObjective,
    ) -> dict[str, Samples]:
        """Return the parts of a batch that this rank reads, by the nouns for them in
        messages.
        """
        own = {}
        num_slices = self._num_slices(call)
        if self.needs.inputs:
            own["inputs"] = self._own(inputs, "inputs", "inputs", num_slices)
        if self.needs.targets and objective.needs_targets:
            noun = objective.noun
            own[noun] = self._own(targets, noun, "targets", num_slices)
        if any(each.layout == OF_SHARES for each in own.values()):
            self._check_share(call, num_slices)
        return own

    def _own(self, given: Any, noun: str, kind: str, num_slices: int) -> Samples:
        """Return this rank's part of a batch, in the model's dtype."""
        if given is None:
            message = f"Rank {self._group.name()} needs the {noun}, but got None."
            raise ArgumentError(message)
        requires_grad = kind == "inputs" and self._plan.inputs_require_grad
        how = noun, self._plan.dtypes[kind], self._xp, requires_grad
        if isinstance(given, Share):
            return samples_of_share(given, *how)
        own = samples(given, *how)
        if num_slices == 1:
            return own
        num_sequences = self._plan.schedule.num_microbatches // num_slices
        return into_slices(own, noun, num_sequences, num_slices)

    def gather_input_gradients(self, own: dict[int, Payload]) -> None:
        """Gather the gradients of the inputs on the first rank of the first stage.
        Collective among its replicas.
        """
        sent = [(k, payload.to_message()) for k, payload in own.items()]
        for found in gathered(self._group, self._first_ranks, sent):
            own.update(
                (k, Payload.from_message(message, self._xp)) for k, message in found
            )

    @property
    def returns_input_gradients(self) -> bool:
        """Whether gradients of the inputs are requested, and this rank returns them."""
        is_first = self._group.rank == self.first_rank
        return self._plan.inputs_require_grad and is_first

    def input_gradients(self, batch: Batch, own: dict[int, Payload]) -> Any:
        """Return the gradients of the inputs, if they are requested, on the first rank
        of the first stage. Local.
        """
        if not self.returns_input_gradients:
            return None
        return batch.input_gradients(own)

    def _check_alike(
        self, own: Samples, noun: str, num_samples: int, layout: int
    ) -> None:
        rank = self._group.name()
        problem = ""
        if own.num_samples != num_samples:
            problem = (
                f"There are {num_samples} inputs (on rank "
                f"{self._group.name(self.first_rank)}), but "
                f"{own.num_samples} {noun} (on rank {rank}); expected equal "
                "numbers: pass the same batch on every rank."
            )
        elif OF_SHARES in (own.layout, layout) and own.layout != layout:
            what = "a share" if own.layout == OF_SHARES else "not a share"
            problem = (
                f"The {noun} on rank {rank} are {what} of a batch, unlike the inputs "
                f"on rank {self.first_rank}. On every rank that reads inputs or "
                "targets, pass its Share of both, or the whole batch."
            )
        elif own.layout != layout:
            problem = (
                f"Inputs and {noun} are split into different microbatches; pass both "
                "as Microbatches with equal numbers of samples, or neither."
            )
        if problem:
            raise MicrobatchError("wrong-number", problem)

    def _check_share(self, call: str, num_slices: int) -> None:
        """Refuse a part of a batch if this rank may need other rows, or would return
        some.
        """
        why = ""
        if self._plan.inputs_require_grad:
            why = "it returns the gradients of all inputs"
        elif num_slices > 1:
            why = "this schedule splits sequences into slices"
        elif call in _WHOLE:
            why = "it divides the whole batch among the replicas"
        if why:
            raise ArgumentError(
                f"{call}() does not take a Share, because {why}; pass the whole batch."
            )

    def _check_rows(
        self,
        own: Mapping[str, Samples],
        parts: Mapping[str, Sequence[Payload]],
        sizes: Sequence[int],
    ) -> None:
        """Refuse a part of a batch without all rows of this rank's microbatches."""
        for noun, each in own.items():
            numbers = self.needs.microbatches[noun != "inputs"]
            if any(parts[noun][k] is ABSENT for k in numbers):
                first = sum(sizes[: numbers[0]])
                end = sum(sizes[: numbers[-1] + 1])
                message = (
                    f"Rank {self._group.name()} has rows {each.rows.start} to "
                    f"{each.rows.stop - 1} of the {noun}, "
                    f"but its microbatches have rows {first} to {end - 1}; "
                    f"pipeline.needs.share({each.num_samples}) returns the rows to "
                    "pass."
                )
                raise MicrobatchError("out-of-range", message)

    def _all_weights(self, own: Sequence[float | None]) -> list[float]:
        """Return the weights of all microbatches. Collective among the ranks of the
        last stage.
        """
        table = self._plan.schedule
        group = self._group
        found = dict(enumerate(own))
        stage = table.num_stages - 1
        ks: dict[int, list[int]] = {rank: [] for rank in self.last_ranks}
        for k in found:
            ks[table.rank_of(stage, k)].append(k)
        mine = np.array([found[k] for k in ks.pop(group.rank)], np.float64)
        sends = [group.isend(mine, other, OwnTag.RESULTS) for other in ks]
        what = "the weights of another replica's targets"
        for other, numbers in ks.items():
            weights = group.irecv(other, OwnTag.RESULTS, what=what).wait()
            found.update(zip(numbers, weights.tolist()))
        finish(sends)
        return [found[k] for k in sorted(found)]  # type: ignore[misc]


def _compared(given: Any) -> Any:
    """Return inputs or targets that are compared on all ranks; shares differ."""
    return None if isinstance(given, Share) else given


# -- results ---------------------------------------------------------------------------

_RESULTS = "the results of another replica"


def gathered(group: ProcessGroup, ranks: Sequence[int], found: Any) -> list[Any]:
    """Return the results of the other replicas of a stage on the first of its ranks;
    return nothing on the others.

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
        return [
            unpack(group.irecv(other, OwnTag.RESULTS, what=_RESULTS).wait())
            for other in others
        ]
    if group.rank in others:
        group.isend(pack(found), first, OwnTag.RESULTS).wait()
    return []


def gather_results(group: ProcessGroup, ranks: Sequence[int], batch: Batch) -> None:
    """Give the objective of the first replica of the last stage the results of the
    other replicas. Collective among them, of which there are several.
    """
    objective = batch.objective
    if not (objective.metrics or objective.where):  # on all ranks
        _gather_losses(group, ranks, objective.read_losses())
        return
    for found in gathered(group, ranks, objective.found()):
        objective.take(found)


def _gather_losses(
    group: ProcessGroup, ranks: Sequence[int], losses: dict[int, float]
) -> None:
    """Give the first of some ranks the losses of the others, by microbatch.
    Collective.
    """
    first, *others = ranks
    if group.rank == first:
        for other in others:
            pairs = group.irecv(other, OwnTag.RESULTS, what=_RESULTS).wait()
            losses.update((int(k), loss) for k, loss in pairs.tolist())
    else:  # numbers without a description: most steps ask for no more
        group.isend(np.array([*losses.items()]), first, OwnTag.RESULTS).wait()

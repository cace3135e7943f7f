"""The pipeline: a model cut into stages, over the ranks of a group."""

from __future__ import annotations

import warnings
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np

from minipipe import backend
from minipipe.backend import Array
from minipipe.comm import ProcessGroup
from minipipe.errors import MicrobatchError, Problem, ScheduleError, TensorError
from minipipe.nn import Module, Parameter, Sequential
from minipipe.nn.module import check_state
from minipipe.optim.clipping import clip_gradients, squared_norms, total_norm
from minipipe.pipeline.agreement import Calls, check_agreement, part_of
from minipipe.pipeline.executor import Batch, Executor, Record
from minipipe.pipeline.layout import (
    check_arguments,
    description,
    divide_layers,
    resolve_schedule,
    schedule_of_modules,
)
from minipipe.pipeline.local import local_stages
from minipipe.pipeline.measured import MemoryPerMicrobatch, gather_memory, gather_timeline
from minipipe.pipeline.microbatch import split_microbatches
from minipipe.pipeline.shared import SharedParameters
from minipipe.pipeline.stage import Loss
from minipipe.pipeline.table import layer_table
from minipipe.schedules import Schedule, Timeline, forward_only_over, one_microbatch, verify
from minipipe.tensor import Tensor

__all__ = ["Pipeline"]


class Pipeline:
    """A model cut into stages over the ranks of a group. Making one is collective.

    Every rank describes the same model; only the layers of its own stages take memory. They are copied out of
    ``model``, which stays as it was.

    Parameters
    ----------
    model : Sequential
        The layers. A cut may fall between any two.
    group : ProcessGroup
    loss : function
        ``(outputs, targets) -> Tensor`` with one element, a mean over the first axis.
    schedule : str, Path or Schedule
        A name in ``schedules.REGISTRY``, a file (``.csv`` or ``.txt``), or a Schedule of your own. What you wrote runs
        exactly as written.
    num_microbatches : int, optional
        For each batch; 4 for each stage by default.
    chunks_per_rank : int, optional
        Stages on each rank, for schedules that take it.
    partition : list of range, optional
        The layers of each stage; by default the largest stage has as few parameters as can be.
    layer_costs : sequence of float, optional
        Balances these, one for each layer, instead of numbers of parameters.
    seed : int
        First values come from it and the parameter's name, whatever the partition.
    timeout : float, optional
        Seconds that a wait may last; the group's own by default.
    recompute : bool
        Whether a stage keeps only its input between forward and backward, and computes its activations again:
        less memory, one more forward, the same bits. :class:`minipipe.nn.Recompute` does it for single layers.
    device : str or module
        ``"cpu"``, or ``"gpu"``: parameters, activations and the optimiser's state stay on a GPU, one for each rank of
        a machine, or shared where there are more ranks. Or an array module to compute with.

    Attributes
    ----------
    schedule : Schedule
    partition : list of range
    measures_memory : bool
        Whether ``step`` measures the bytes held after each action. Slow; off by default.

    Raises
    ------
    RankError, PartitionError, ScheduleError, ModelError
        What does not fit: given, expected, what to do.

    Examples
    --------
    >>> import numpy as np
    >>> from minipipe import Pipeline, nn, optim, spawn
    >>> def train(group):
    ...     model = nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 1))
    ...     pipeline = Pipeline(model, group, loss=nn.MSELoss(), num_microbatches=4)
    ...     optimiser = optim.SGD(pipeline.parameters(), learning_rate=0.1)
    ...     x = np.ones((8, 4), dtype=np.float32)
    ...     for _ in range(50):
    ...         loss = pipeline.step(x, x[:, :1])
    ...         optimiser.step()
    ...     return round(loss, 4)
    >>> spawn(train, num_ranks=2)
    [0.0, 0.0]
    """

    def __init__(
        self,
        model: Sequential,
        group: ProcessGroup,
        *,
        loss: Loss,
        schedule: str | Path | Schedule = "1f1b",
        num_microbatches: int | None = None,
        chunks_per_rank: int | None = None,
        partition: Sequence[range] | None = None,
        layer_costs: Sequence[float] | None = None,
        seed: int = 0,
        timeout: float | None = None,
        recompute: bool = False,
        device: str | ModuleType = "cpu",
    ) -> None:
        check_arguments(model, loss, timeout)
        self.model = model
        self.group = group
        self.schedule = resolve_schedule(schedule, group.size, num_microbatches, chunks_per_rank)
        verify(self.schedule)
        self.partition = divide_layers(model, self.schedule.num_stages, partition, layer_costs)
        check_agreement(group, description(model, self.schedule, self.partition, seed, loss), timeout)
        if not self.schedule.is_reproducible and group.rank == 0:
            warnings.warn(
                f"{self.schedule.name} adds gradients of some stage in another order than ascending microbatches; "
                "it runs as written, but its last bits may differ from those of one process.",
                stacklevel=2,
            )
        self._timeout = timeout
        self._calls = Calls(group, self.schedule.placement[0], timeout)
        self._seed = seed
        self._xp = backend.module_for(device, group.local_rank)
        self._is_training = model.is_training
        self._num_steps = 0
        self._last_step: Record | None = None
        own = self.schedule.stages_of(group.rank)
        self._stages = local_stages(model, self.partition, own, loss, seed, recompute, self._xp)
        self._parameters = {name: p for stage in self._stages.values() for name, p in stage.parameters.items()}
        self._shared = SharedParameters(model, self.partition, self.schedule.placement)
        self._shared.take_first_values(group, self._parameters, timeout)
        dtypes = [parameter.dtype for parameter in model.parameters()] or [np.dtype(np.float32)]
        self._dtypes = {"inputs": dtypes[0], "targets": dtypes[-1]}
        self._trainer = self._executor(self.schedule)
        self._predictors: dict[int, Executor] = {}

    @classmethod
    def from_modules(
        cls,
        modules: Sequence[Module],
        group: ProcessGroup,
        *,
        schedule: str | Path | Schedule | None = None,
        **options: Any,
    ) -> Pipeline:
        """Make a pipeline whose stages are given: module i is stage i.

        Collective. The same as their ``Sequential``, cut between them. Stage i is on rank ``i % num_ranks``, unless the
        schedule places it elsewhere.

        Parameters
        ----------
        modules : sequence of Module
            As many as there are ranks, or a multiple.
        group : ProcessGroup
        schedule : str, Path or Schedule, optional
            By default 1F1B, in its interleaved form where ranks hold several modules.
        **options
            As for :class:`Pipeline`, without ``partition``, ``layer_costs`` and ``chunks_per_rank``.

        Raises
        ------
        RankError
            Code ``wrong-number``, when the modules cannot be dealt out evenly.
        """
        schedule = schedule_of_modules(len(modules), group.size, schedule, options.pop("num_microbatches", None))
        partition = [range(i, i + 1) for i in range(len(modules))]
        return cls(Sequential(*modules), group, schedule=schedule, partition=partition, **options)

    def _executor(self, schedule: Schedule) -> Executor:
        return Executor(schedule, self._stages, self.group, self._timeout, self._seed, self._xp)

    # -- training -------------------------------------------------------------------------------------------

    def step(self, inputs: Any, targets: Any) -> float:
        """Run forward and backward of one batch; leave its gradients, overwriting the last ones.

        Collective. ``inputs`` are read on the rank of the first stage, ``targets`` on that of the last; others may
        give None. Floating inputs are taken in the model's dtype.

        Parameters
        ----------
        inputs : array of shape (samples, ...)
        targets : array of shape (samples, ...)

        Returns
        -------
        float
            The mean loss of the batch, the same on every rank.

        Raises
        ------
        MicrobatchError
            Codes ``too-few-samples`` and ``unequal-lengths``.
        MessageError
            Code ``timeout``, naming what was awaited, from whom and since when.
        """
        if self.schedule.is_forward_only:
            raise ScheduleError(
                [
                    Problem(
                        "forward-only",
                        f"{self.schedule.name} has no backward, which step() needs: "
                        "choose another schedule to train, or evaluate() and predict().",
                    )
                ]
            )
        batch = self._batch("step", inputs, targets)
        self._zero_grad()
        self._last_step = self._trainer.run(batch)
        first_tag = 2 * self.num_stages * len(batch.slices)  # behind those of the executor
        self._shared.exchange_gradients(self.group, self._parameters, batch.step, first_tag, self._timeout)
        self._num_steps += 1
        return self._mean_loss("step", batch, self._last_step)

    def _zero_grad(self) -> None:
        for stage in self._stages.values():
            stage.zero_grad()

    def evaluate(self, inputs: Any, targets: Any) -> float:
        """Return the mean loss of a batch, forward only.

        Collective; parameters and result are those of :meth:`step`. Batches smaller than the number of microbatches
        are fine. Call :meth:`eval` first where layers such as Dropout shall be off, and :meth:`train` afterwards.
        """
        batch = self._batch("evaluate", inputs, targets)
        return self._mean_loss("evaluate", batch, self._predictor(batch).run(batch))

    def predict(self, inputs: Any) -> np.ndarray:
        """Return the model's outputs for a batch, forward only; the same array on every rank.

        Collective. ``inputs`` are read on the rank of the first stage; others may give None. Call :meth:`eval` first
        where layers such as Dropout shall be off, and :meth:`train` afterwards.

        Parameters
        ----------
        inputs : array of shape (samples, ...)

        Returns
        -------
        array of shape (samples, ...)
        """
        batch = self._batch("predict", inputs, None)
        outputs = self._predictor(batch).run(batch).outputs
        parts = [backend.to_numpy(outputs[k]) for k in sorted(outputs)]
        mine = np.concatenate(parts) if parts else None
        return self.group.broadcast(mine, self._last_rank, timeout=self._timeout, what=part_of("predict"))

    def _predictor(self, batch: Batch) -> Executor:
        count = len(batch.slices)
        if count not in self._predictors:
            schedule = forward_only_over(self.schedule.placement, count, self.schedule.num_ranks)
            self._predictors[count] = self._executor(schedule)
        return self._predictors[count]

    def _batch(self, call: str, inputs: Any, targets: Any) -> Batch:
        """Agree on the call and on the size of the batch, and divide it."""
        needs_targets = call != "predict" and self.group.rank == self._last_rank
        own_inputs = self._own(inputs, "inputs", is_needed=self.group.rank == self._first_rank)
        own_targets = self._own(targets, "targets", is_needed=needs_targets)
        num_samples = self._calls.begin(call, 0 if own_inputs is None else own_inputs.shape[0])
        if own_targets is not None and own_targets.shape[0] != num_samples:
            raise MicrobatchError(
                "unequal-lengths",
                f"There are {num_samples} inputs (on rank {self._first_rank}), but {own_targets.shape[0]} targets "
                f"(on rank {self.group.rank}); expected one for each: every rank must be given the same batch.",
            )
        count = self.schedule.num_microbatches
        if call != "step":  # any number of samples will do, but none
            count = max(1, min(count, num_samples))
        slices = split_microbatches(num_samples, count)
        return Batch(slices, own_inputs, own_targets, self._calls.count, self._num_steps)

    def _own(self, given: Any, name: str, is_needed: bool) -> Array | None:
        """Return what this rank needs as an array in the model's dtype, and None for what it does not need."""
        if not is_needed:
            return None
        if given is None:
            raise ValueError(f"Rank {self.group.rank} needs the {name}, but was given None.")
        array = Tensor(given).data
        if array.ndim == 0:
            raise TensorError("shape", f"The {name} are a single number; expected an array of shape (samples, ...).")
        return backend.moved(array, self._xp, self._dtypes[name] if backend.is_floating(array.dtype) else None)

    def _mean_loss(self, call: str, batch: Batch, record: Record) -> float:
        """Add the microbatches' losses in ascending order, whatever the order in which they were computed."""
        total = sum(batch.weight(k) * record.losses[k] for k in sorted(record.losses))
        mine = np.array(total) if self.group.rank == self._last_rank else None
        return float(self.group.broadcast(mine, self._last_rank, timeout=self._timeout, what=part_of(call)))

    @property
    def _first_rank(self) -> int:
        return self.schedule.placement[0]

    @property
    def _last_rank(self) -> int:
        return self.schedule.placement[-1]

    # -- this rank's part -----------------------------------------------------------------------------------

    @property
    def num_stages(self) -> int:
        """The number of stages, all ranks together."""
        return self.schedule.num_stages

    @property
    def local_stages(self) -> tuple[int, ...]:
        """The indices of the stages on this rank."""
        return tuple(self._stages)

    def named_parameters(self) -> Iterator[tuple[str, Parameter]]:
        """Yield this rank's parameters, named as in the model. Local."""
        yield from self._parameters.items()

    def parameters(self) -> Iterator[Parameter]:
        """Yield this rank's parameters. Local."""
        yield from self._parameters.values()

    @property
    def is_training(self) -> bool:
        """Whether the layers train (the default) or are evaluated."""
        return self._is_training

    def train(self, mode: bool = True) -> Pipeline:
        """Set this rank's layers to train, or with ``mode=False`` to be evaluated. Local; returns the pipeline.

        Every rank must do it, or its part of the model is in another mode than the others.
        """
        self._is_training = mode
        for stage in self._stages.values():
            stage.module.train(mode)
        return self

    def eval(self) -> Pipeline:
        """Set this rank's layers to be evaluated. Local, and for every rank to do; returns the pipeline."""
        return self.train(False)

    @property
    def measures_memory(self) -> bool:
        """Whether ``step`` measures the bytes held after each action. Slow; off by default."""
        return self._trainer.measures_memory

    @measures_memory.setter
    def measures_memory(self, value: bool) -> None:
        self._trainer.measures_memory = value

    def clip_grad_norm(self, max_norm: float) -> float:
        """Scale the gradients of all ranks by one factor, so that their norm is at most ``max_norm``.

        Collective. The norm has the same bits for any partition, and as :func:`minipipe.optim.clip_grad_norm` finds it
        in one process; a parameter that several ranks share counts once.

        Parameters
        ----------
        max_norm : float
            Above 0; ``float("inf")`` only measures.

        Returns
        -------
        float
            The norm before, the same on every rank.

        Raises
        ------
        ValueError
            When max_norm is not above 0.
        ParameterError
            Code ``not-finite``, on every rank, when the norm is infinite or not a number.
        """
        self._calls.begin("clip_grad_norm")
        owned = [self._parameters[name] for name, owner in self._owners() if owner == self.group.rank]
        squares = self.group.all_gather(
            np.array(squared_norms(owned)), timeout=self._timeout, what=part_of("clip_grad_norm")
        )
        norm = total_norm(np.concatenate(squares).tolist())
        clip_gradients(self.parameters(), norm, max_norm)
        return norm

    # -- all ranks' parts -----------------------------------------------------------------------------------

    def state_dict(self) -> dict[str, np.ndarray]:
        """Return the whole model's values on every rank, named as in the model. Collective."""
        self._calls.begin("state_dict")
        state = {}
        for name, owner in self._owners():
            mine = backend.to_numpy(self._parameters[name].data) if owner == self.group.rank else None
            state[name] = np.array(self.group.broadcast(mine, owner, timeout=self._timeout, what=part_of("state_dict")))
        return state

    def load_state_dict(self, state: Mapping[str, np.ndarray]) -> None:
        """Take this rank's part of the whole model's values.

        Collective in this sense: every rank gives the same state.

        Raises
        ------
        ParameterError
            Codes ``missing``, ``unexpected`` and ``shape``.
        """
        check_state(dict(self.model.named_parameters()), state)
        for name, parameter in self.named_parameters():
            parameter.load(np.asarray(state[name]), name)

    def _owners(self) -> list[tuple[str, int]]:
        """Return the name of every parameter of the model with the rank that has it."""
        stage_of = {str(layer): stage for stage, layers in enumerate(self.partition) for layer in layers}
        names = [name for name, _ in self.model.named_parameters()]
        return [(name, self.schedule.placement[stage_of[name.partition(".")[0]]]) for name in names]

    def timeline(self) -> Timeline:
        """Return what every rank did in the last step, and when, in seconds from its beginning.

        Collective.
        """
        if self._last_step is None:
            raise ValueError("There is no step yet whose timeline could be shown; call step() first.")
        self._calls.begin("timeline")
        return gather_timeline(self.group, self._last_step, self.schedule, self._timeout)

    def measure_memory(self, inputs: Any, targets: Any) -> MemoryPerMicrobatch:
        """Return what one microbatch of a batch holds on each stage, in bytes: after F, and after I.

        Collective; runs the first microbatch alone, and leaves no gradients. With it ``simulate`` predicts the bytes of
        any schedule over these stages, exactly where microbatches are equal:
        ``Costs(**pipeline.measure_memory(x, y)._asdict(), memory_unit="bytes")``. Counted is what the graph keeps
        alive for the backward to come, by stage; not parameters, their gradients, or the batch itself.
        """
        batch = self._batch("measure_memory", inputs, targets)
        executor = self._executor(one_microbatch(self.schedule.placement, self.schedule.num_ranks))
        executor.measures_memory = True
        slices = batch.slices[:1]
        self._zero_grad()
        record = executor.run(replace(batch, slices=slices))
        self._zero_grad()
        return gather_memory(self.group, record, self.num_stages, self._timeout)

    def __str__(self) -> str:
        return layer_table(self.model, self.partition, self.schedule.placement)

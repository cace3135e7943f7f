"""The pipeline: a model cut into stages, over the ranks of a group."""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np

from minipipe import backend
from minipipe.analysis.lowering import lower
from minipipe.analysis.verifier import verify
from minipipe.backend import Array
from minipipe.comm import ProcessGroup
from minipipe.errors import MicrobatchError, Problem, ScheduleCode, ScheduleError, TensorError
from minipipe.nn import Module, Sequential
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
from minipipe.pipeline.measuring import Measuring
from minipipe.pipeline.microbatch import split_microbatches
from minipipe.pipeline.part_of_model import PartOfModel
from minipipe.pipeline.shared import SharedParameters
from minipipe.pipeline.stage import Loss
from minipipe.pipeline.table import layer_table, layer_table_html
from minipipe.schedules.action_table import ActionTable
from minipipe.schedules.program import Program
from minipipe.schedules.schedule import Schedule
from minipipe.schedules.sequential import forward_only_over
from minipipe.tensor import Tensor

__all__ = ["Pipeline"]


class Pipeline(PartOfModel, Measuring):
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
    schedule : str, Path, Schedule or Program
        A name in ``schedules.REGISTRY``, a file (``.csv`` or ``.txt``), or a Schedule of your own, with or without its
        sends and receives. It runs exactly as written.
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
    model : Sequential
    group : ProcessGroup
    schedule : Schedule
        The computations that ``step`` runs.
    partition : list of range
        These four cannot be set: for another of them make another pipeline.
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
        schedule: str | Path | Schedule | Program = "1f1b",
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
        given = resolve_schedule(schedule, group.size, num_microbatches, chunks_per_rank)
        verify(given)
        self._model, self._group, self._program = model, group, lower(given)
        self._partition = divide_layers(model, self.schedule.num_stages, partition, layer_costs)
        check_agreement(group, description(model, given, self._partition, seed, loss), timeout)
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
        self._stages = local_stages(model, self._partition, own, loss, seed, recompute, self._xp)
        self._parameters = {name: p for stage in self._stages.values() for name, p in stage.parameters.items()}
        self._shared = SharedParameters(model, self._partition, self.schedule.placement)
        self._shared.take_first_values(group, self._parameters, timeout)
        dtypes = [parameter.dtype for parameter in model.parameters()] or [np.dtype(np.float32)]
        self._dtypes = {"inputs": dtypes[0], "targets": dtypes[-1]}
        self._trainer = self._executor(self._program)
        self._predictors: dict[int, Executor] = {}

    @classmethod
    def from_modules(
        cls,
        modules: Sequence[Module],
        group: ProcessGroup,
        *,
        schedule: str | Path | Schedule | Program | None = None,
        **options: Any,
    ) -> Pipeline:
        """Make a pipeline whose stages are given: module i is stage i.

        Collective. The same as their ``Sequential``, cut between them. Stage i is on rank ``i % num_ranks``, unless the
        schedule places it elsewhere: straight schedules, such as ``"gpipe"``, keep neighbours together.

        Parameters
        ----------
        modules : sequence of Module
            Any number, at least one. With fewer modules than ranks, the last ranks hold none.
        group : ProcessGroup
        schedule : str, Path or Schedule, optional
            By default 1F1B, in its interleaved form where ranks hold several modules.
        **options
            As for :class:`Pipeline`, without ``partition``, ``layer_costs`` and ``chunks_per_rank``.

        Raises
        ------
        RankError
            Code ``wrong-number``, when there is no module, or a given Schedule has another number of stages.

        Examples
        --------
        >>> from minipipe import Pipeline, nn, spawn
        >>> def stages(group):
        ...     modules = [nn.Linear(4, 4) for _ in range(2 * group.size)]
        ...     return Pipeline.from_modules(modules, group, loss=nn.MSELoss()).local_stages
        >>> spawn(stages, num_ranks=2)
        [(0, 2), (1, 3)]
        """
        schedule = schedule_of_modules(len(modules), group.size, schedule, options.pop("num_microbatches", None))
        partition = [range(i, i + 1) for i in range(len(modules))]
        return cls(Sequential(*modules), group, schedule=schedule, partition=partition, **options)

    @property
    def model(self) -> Sequential:
        """The model that was given, as it was: its layers were copied."""
        return self._model

    @property
    def group(self) -> ProcessGroup:
        """The ranks."""
        return self._group

    @property
    def schedule(self) -> Schedule:
        """The computations that :meth:`step` runs."""
        return self._program.schedule

    @property
    def partition(self) -> list[range]:
        """The layers of each stage."""
        return list(self._partition)

    def _executor(self, schedule: ActionTable) -> Executor:
        return Executor(lower(schedule), self._stages, self._group, self._timeout, self._seed, self._xp)

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

        Examples
        --------
        >>> import numpy as np
        >>> from minipipe import Pipeline, nn, spawn
        >>> def train(group):
        ...     model = nn.Sequential(nn.Linear(2, 4), nn.Tanh(), nn.Linear(4, 1))
        ...     pipeline = Pipeline(model, group, loss=nn.MSELoss(), num_microbatches=4)
        ...     loss = pipeline.step(np.ones((8, 2)), np.ones((8, 1)))
        ...     return loss > 0, [name for name, parameter in pipeline.named_parameters() if parameter.grad is not None]
        >>> spawn(train, num_ranks=2)
        [(True, ['0.weight', '0.bias']), (True, ['2.weight', '2.bias'])]
        """
        if self.schedule.is_forward_only:
            raise ScheduleError(
                [
                    Problem(
                        ScheduleCode.FORWARD_ONLY,
                        f"{self.schedule.name} has no backward, which step() needs: "
                        "choose another schedule to train, or evaluate() and predict().",
                    )
                ]
            )
        batch = self._batch("step", inputs, targets)
        self._zero_grad()
        self._last_step = self._trainer.run(batch)
        first_tag = 2 * self.num_stages * len(batch.slices)  # behind those of the executor
        self._shared.exchange_gradients(self._group, self._parameters, batch.step, first_tag, self._timeout)
        self._num_steps += 1
        return self._mean_loss("step", batch, self._last_step)

    def _zero_grad(self) -> None:
        for stage in self._stages.values():
            stage.zero_grad()

    def evaluate(self, inputs: Any, targets: Any) -> float:
        """Return the mean loss of a batch, forward only.

        Collective; ``inputs`` and ``targets`` are read as by :meth:`step`. Batches smaller than the number of
        microbatches are fine. Call :meth:`eval` first where layers such as Dropout shall be off, and :meth:`train`
        afterwards.

        Parameters
        ----------
        inputs, targets : array of shape (samples, ...)

        Returns
        -------
        float
            The same on every rank.

        Examples
        --------
        >>> import numpy as np
        >>> from minipipe import Pipeline, nn, spawn
        >>> def test(group):
        ...     model = nn.Sequential(nn.Identity(), nn.Identity())
        ...     pipeline = Pipeline(model, group, loss=nn.MSELoss()).eval()
        ...     return pipeline.evaluate(np.ones((5, 2)), np.zeros((5, 2)))
        >>> spawn(test, num_ranks=2)
        [1.0, 1.0]
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

        Examples
        --------
        >>> import numpy as np
        >>> from minipipe import Pipeline, nn, spawn
        >>> def predict(group):
        ...     model = nn.Sequential(nn.ReLU(), nn.Flatten())
        ...     pipeline = Pipeline(model, group, loss=nn.MSELoss()).eval()
        ...     return pipeline.predict(np.array([[-1.0, 2.0]])).tolist()
        >>> spawn(predict, num_ranks=2)
        [[[0.0, 2.0]], [[0.0, 2.0]]]
        """
        batch = self._batch("predict", inputs, None)
        outputs = self._predictor(batch).run(batch).outputs
        parts = [backend.to_numpy(outputs[k]) for k in sorted(outputs)]
        mine = np.concatenate(parts) if parts else None
        return self._group.broadcast(mine, self._last_rank, timeout=self._timeout, what=part_of("predict"))

    def _predictor(self, batch: Batch) -> Executor:
        count = len(batch.slices)
        if count not in self._predictors:
            schedule = forward_only_over(self.schedule.placement, count, self.schedule.num_ranks)
            self._predictors[count] = self._executor(schedule)
        return self._predictors[count]

    def _batch(self, call: str, inputs: Any, targets: Any) -> Batch:
        """Agree on the call and on the size of the batch, and divide it."""
        needs_targets = call != "predict" and self._group.rank == self._last_rank
        own_inputs = self._own(inputs, "inputs", is_needed=self._group.rank == self._first_rank)
        own_targets = self._own(targets, "targets", is_needed=needs_targets)
        num_samples = self._calls.begin(call, 0 if own_inputs is None else own_inputs.shape[0])
        if own_targets is not None and own_targets.shape[0] != num_samples:
            raise MicrobatchError(
                "unequal-lengths",
                f"There are {num_samples} inputs (on rank {self._first_rank}), but {own_targets.shape[0]} targets "
                f"(on rank {self._group.rank}); expected one for each: every rank must be given the same batch.",
            )
        count = self.schedule.num_microbatches
        if call not in ("step", "measure_costs"):  # any number of samples will do, but none
            count = max(1, min(count, num_samples))
        slices = split_microbatches(num_samples, count)
        return Batch(slices, own_inputs, own_targets, self._calls.count, self._num_steps)

    def _own(self, given: Any, name: str, is_needed: bool) -> Array | None:
        """Return what this rank needs as an array in the model's dtype, and None for what it does not need."""
        if not is_needed:
            return None
        if given is None:
            raise ValueError(f"Rank {self._group.rank} needs the {name}, but was given None.")
        array = Tensor(given).data
        if array.ndim == 0:
            raise TensorError("shape", f"The {name} are a single number; expected an array of shape (samples, ...).")
        return backend.moved(array, self._xp, self._dtypes[name] if backend.is_floating(array.dtype) else None)

    def _mean_loss(self, call: str, batch: Batch, record: Record) -> float:
        """Add the microbatches' losses in ascending order, whatever the order in which they were computed."""
        total = sum(batch.weight(k) * record.losses[k] for k in sorted(record.losses))
        mine = np.array(total) if self._group.rank == self._last_rank else None
        return float(self._group.broadcast(mine, self._last_rank, timeout=self._timeout, what=part_of(call)))

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

    @property
    def is_training(self) -> bool:
        """Whether the layers train (the default) or are evaluated."""
        return self._is_training

    def train(self, mode: bool = True) -> Pipeline:
        """Set this rank's layers to train, or with ``mode=False`` to be evaluated. Local; returns the pipeline.

        Every rank must do it, or its part of the model is in another mode than the others.

        Examples
        --------
        >>> from minipipe import Pipeline, init_process_group, nn
        >>> with init_process_group() as group:
        ...     pipeline = Pipeline(nn.Sequential(nn.Dropout(0.5)), group, loss=nn.MSELoss()).eval()
        ...     pipeline.is_training, pipeline.train().is_training
        (False, True)
        """
        self._is_training = mode
        for stage in self._stages.values():
            stage.module.train(mode)
        return self

    def eval(self) -> Pipeline:
        """Set this rank's layers to be evaluated. Local, and for every rank to do; returns the pipeline.

        Examples
        --------
        >>> import numpy as np
        >>> from minipipe import Pipeline, init_process_group, nn
        >>> with init_process_group() as group:
        ...     pipeline = Pipeline(nn.Sequential(nn.Dropout(0.5)), group, loss=nn.MSELoss())
        ...     pipeline.eval().predict(np.ones((1, 4), np.float32))
        array([[1., 1., 1., 1.]], dtype=float32)
        """
        return self.train(False)

    def __str__(self) -> str:
        return layer_table(self._model, self._partition, self.schedule.placement)

    def _repr_html_(self) -> str:
        return layer_table_html(self._model, self._partition, self.schedule.placement)

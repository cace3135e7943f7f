"""What a pipeline can measure of itself: when its actions ran, what they hold, what they cost."""

from __future__ import annotations

from abc import abstractmethod
from dataclasses import replace
from typing import Any

from minipipe.comm import ProcessGroup
from minipipe.pipeline.agreement import Calls
from minipipe.pipeline.executor import Batch, Executor, Record
from minipipe.pipeline.measured import MemoryPerMicrobatch, gather_memory, gather_timeline
from minipipe.schedules.action_table import ActionTable
from minipipe.schedules.program import Program
from minipipe.schedules.sequential import one_microbatch
from minipipe.schedules.split_backward import split_backward
from minipipe.simulation.costs import Costs
from minipipe.simulation.timeline import Timeline

__all__ = ["Measuring"]


class Measuring:
    """The part of a :class:`minipipe.Pipeline` that measures; it adds no state."""

    _group: ProcessGroup
    _program: Program
    _calls: Calls
    _last_step: Record | None
    _timeout: float | None
    _trainer: Executor

    @property
    @abstractmethod
    def num_stages(self) -> int:
        """The number of stages, all ranks together."""

    @abstractmethod
    def _batch(self, call: str, inputs: Any, targets: Any) -> Batch: ...

    @abstractmethod
    def _executor(self, schedule: ActionTable) -> Executor: ...

    @abstractmethod
    def _zero_grad(self) -> None: ...

    @property
    def measures_memory(self) -> bool:
        """Whether ``step`` measures the bytes held after each action. Slow; off by default."""
        return self._trainer.measures_memory

    @measures_memory.setter
    def measures_memory(self, value: bool) -> None:
        self._trainer.measures_memory = value

    def timeline(self) -> Timeline:
        """Return what every rank did in the last step, and when, in seconds from its beginning.

        Collective.

        Examples
        --------
        >>> import numpy as np
        >>> from minipipe import Pipeline, nn, spawn
        >>> def measure(group):
        ...     model = nn.Sequential(nn.Linear(2, 4), nn.Tanh(), nn.Linear(4, 1))
        ...     pipeline = Pipeline(model, group, loss=nn.MSELoss(), num_microbatches=2)
        ...     pipeline.step(np.ones((8, 2)), np.ones((8, 1)))
        ...     return " ".join(str(span.action) for span in pipeline.timeline().spans[1])
        >>> spawn(measure, num_ranks=2)
        ['1F0 1B0 1F1 1B1', '1F0 1B0 1F1 1B1']
        """
        if self._last_step is None:
            raise ValueError("There is no step yet whose timeline could be shown; call step() first.")
        self._calls.begin("timeline")
        return gather_timeline(self._group, self._last_step, self._program, self._timeout)

    def measure_memory(self, inputs: Any, targets: Any) -> MemoryPerMicrobatch:
        """Return what one microbatch of a batch holds on each stage, in bytes: after F, and after I.

        Collective; runs the first microbatch alone, and leaves no gradients. With it ``simulate`` predicts the bytes of
        any schedule over these stages, exactly where microbatches are equal:
        ``Costs(**pipeline.measure_memory(x, y)._asdict(), memory_unit="bytes")``. Counted is what the graph keeps
        alive for the backward to come, by stage; not parameters, their gradients, or the batch itself.

        Parameters
        ----------
        inputs, targets : array of shape (samples, ...)

        Examples
        --------
        After F tanh holds its result and the loss its differences, 100 samples of 3 numbers of 4 bytes each; after I
        only the gradient is left that W will multiply the inputs with.

        >>> import numpy as np
        >>> from minipipe import Pipeline, init_process_group, nn
        >>> model = nn.Sequential(nn.Linear(2, 3), nn.Tanh())
        >>> with init_process_group() as group:
        ...     pipeline = Pipeline(model, group, loss=nn.MSELoss(), num_microbatches=1)
        ...     pipeline.measure_memory(np.ones((100, 2)), np.ones((100, 3)))
        MemoryPerMicrobatch(activation=(2400,), weight_activation=(1200,), transient_activation=(0,))
        """
        batch = self._batch("measure_memory", inputs, targets)
        return self._measure_memory(batch)

    def _measure_memory(self, batch: Batch) -> MemoryPerMicrobatch:
        executor = self._executor(one_microbatch(self._program.placement, self._program.num_ranks))
        executor.measures_memory = True
        self._zero_grad()
        record = executor.run(replace(batch, slices=batch.slices[:1]))
        self._zero_grad()
        return gather_memory(self._group, record, self.num_stages, self._timeout)

    def measure_costs(self, inputs: Any, targets: Any, num_steps: int = 10) -> Costs:
        """Return what the actions of each stage take and hold, and what messages take, as measured over some steps.

        Collective; leaves no gradients, and changes no parameter. With it ``simulate`` predicts other schedules over
        the same stages, in seconds and bytes; with :meth:`minipipe.Costs.cut` also such as put several stages on a
        rank. It runs this pipeline's own schedule, every backward in its two halves so that I and W are timed apart;
        if it is forward only, nothing is known of a backward, and its times are 0.

        Parameters
        ----------
        inputs : array of shape (samples, ...)
        targets : array of shape (samples, ...)
        num_steps : int
            How many steps to measure, after one that is not; at least 1.

        Returns
        -------
        Costs
            Times in seconds, memory and sizes in bytes.

        Raises
        ------
        MicrobatchError
            Code ``too-few-samples``: as for :meth:`minipipe.Pipeline.step`, each microbatch needs one.

        Examples
        --------
        >>> import numpy as np
        >>> from minipipe import Pipeline, nn, schedules, simulate, spawn
        >>> def train(group):
        ...     pipeline = Pipeline(nn.Sequential(nn.Linear(4, 8), nn.Linear(8, 1)), group, loss=nn.MSELoss())
        ...     costs = pipeline.measure_costs(np.ones((8, 4)), np.ones((8, 1)), num_steps=2)
        ...     return simulate(schedules.zb_h1(2, 4), costs).unit
        >>> spawn(train, num_ranks=2)
        ['s', 's']
        """
        if not isinstance(num_steps, int) or num_steps < 1:
            raise ValueError(f"num_steps is {num_steps!r}; expected a whole number, at least 1.")
        batch = self._batch("measure_costs", inputs, targets)
        executor = self._executor(split_backward(self._program.schedule))
        timelines = []
        for _ in range(num_steps + 1):
            self._zero_grad()
            self._group.barrier()
            record = executor.run(batch)
            timelines.append(gather_timeline(self._group, record, executor.program, self._timeout))
        memory = self._measure_memory(batch)
        return replace(Costs.measured(*timelines[1:]), **memory._asdict(), memory_unit="bytes")

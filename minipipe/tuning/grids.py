"""One model on some ranks, with every device mesh: bytes sent, memory and time of each,
measured and predicted.

Every mesh computes the same batch in microbatches of the same size, so all have the
same losses within rounding. Steps of the meshes alternate, in short turns, because
machines are noisy. The predictions: the bytes sent follow from the program and the
sizes of its layers, the memory from the plan, and the time from a simulation with
measured costs.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import asdict, dataclass
from functools import partial
from random import Random
from statistics import median
from time import perf_counter
from typing import Any, NamedTuple

import numpy as np

from minipipe.comm import Grid, ProcessGroup, objects
from minipipe.errors import counted
from minipipe.execution.plan import Plan
from minipipe.nn import (
    CrossEntropyLoss,
    Embedding,
    LayerNorm,
    Linear,
    PositionalEmbedding,
    Sequential,
    TransformerBlock,
)
from minipipe.optim import Adam
from minipipe.schedules.simulation.costs import Costs
from minipipe.schedules.simulation.timeline import Timeline
from minipipe.tuning.measuring import measure_on_this_rank
from minipipe.tuning.race import MakePipeline, Tell, silent
from minipipe.tuning.traffic import Sizes, Traffic, promised

# by dtype, the relative difference that losses of two meshes may have
CLOSE = {"float64": 1e-12, "float32": 1e-5}
_CALL = "minipipe compare"
_COMPARED_LOSSES = 2  # the second one belongs to updated parameters
# steps: an eager one, a recorded one, and one whose times are not measured
_UNTIL_COMPILED = 3
# of a turn, after one that is not measured because the caches have no parameters yet
_STEPS = 2


class GridSizes(NamedTuple):
    """The sizes of a device mesh."""

    pipeline: int
    data: int
    tensor: int
    fully_sharded: bool = False

    @property
    def name(self) -> str:
        """A description of the sizes above 1.

        Examples
        --------
        >>> (
        ...     GridSizes(2, 1, 2).name,
        ...     GridSizes(1, 4, 1, fully_sharded=True).name,
        ...     GridSizes(1, 1, 1).name,
        ... )
        ('pipeline 2 x tensor 2', 'fully sharded 4', 'one rank')
        """
        data = "fully sharded" if self.fully_sharded else "data"
        names = {"pipeline": self.pipeline, data: self.data, "tensor": self.tensor}
        parts = [f"{name} {size}" for name, size in names.items() if size > 1]
        return " x ".join(parts) or "one rank"


@dataclass(frozen=True)
class Task:
    """A small GPT, and the division of its batch; every rank makes the same.

    Attributes
    ----------
    layers, width, heads, symbols, length : int
        Blocks, elements of a vector, attention heads, different tokens, tokens of a
        sequence.
    batch, microbatches : int
        Sequences of a step, and their number of microbatches, of all replicas together.
    dtype : str
    """

    layers: int = 4
    width: int = 128
    heads: int = 4
    symbols: int = 64
    length: int = 64
    batch: int = 32
    microbatches: int = 16
    dtype: str = "float32"

    def model(self) -> Sequential:
        """Return the model, without values."""
        dtype = np.dtype(self.dtype)
        blocks = [
            TransformerBlock(self.width, self.heads, True, dtype=dtype)
            for _ in range(self.layers)
        ]
        return Sequential(
            Embedding(self.symbols, self.width, dtype=dtype),
            PositionalEmbedding(self.length, self.width, dtype=dtype),
            *blocks,
            LayerNorm(self.width, dtype=dtype),
            Linear(self.width, self.symbols, dtype=dtype),
        )

    @property
    def positions(self) -> int:
        """Tokens of a microbatch."""
        return self.batch // self.microbatches * self.length

    def tokens(self) -> tuple[np.ndarray, np.ndarray]:
        """Return inputs and targets, each of shape (batch, length)."""
        size = (self.batch, self.length + 1)
        drawn = np.random.default_rng(0).integers(0, self.symbols, size)
        return drawn[:, :-1].copy(), drawn[:, 1:].copy()

    def partition(self, num_stages: int) -> list[range]:
        """Return the same number of blocks for each stage; the first one also embeds,
        the last one also scores.
        """
        size = self.layers // num_stages
        last = self.layers + 4
        ends = [*(2 + size * stage for stage in range(1, num_stages)), last]
        return [range(start, end) for start, end in zip([0, *ends], ends)]

    def grids(self, num_ranks: int) -> tuple[list[GridSizes], dict[str, str]]:
        """Return the device meshes of ``num_ranks`` ranks that fit, and by name of each
        other mesh the reason.

        Examples
        --------
        >>> found, left_out = Task(layers=4, heads=2).grids(4)
        >>> [grid.name for grid in found if not grid.fully_sharded]
        ['data 4', 'data 2 x tensor 2', 'pipeline 2 x data 2', 'pipeline 2 x tensor 2', 'pipeline 4']
        >>> [grid.name for grid in found if grid.fully_sharded]
        ['fully sharded 4', 'pipeline 2 x fully sharded 2']
        >>> left_out
        {'tensor 4': 'heads are 2, not a multiple of 4'}
        """
        fitting = []
        left_out = {}
        for sizes in _products(num_ranks):
            counts = {
                "layers": sizes.pipeline,
                "microbatches": sizes.data,
                "heads": sizes.tensor,
                "symbols": sizes.tensor,
            }
            wrong = []
            for name, size in counts.items():
                own = getattr(self, name)
                if own % size:
                    wrong.append(f"{name} are {own}, not a multiple of {size}")
            if wrong:
                left_out[sizes.name] = wrong[0]
            else:
                fitting.append(sizes)
        return fitting, left_out


def _products(num_ranks: int) -> Iterator[GridSizes]:
    divisors = [size for size in range(1, num_ranks + 1) if num_ranks % size == 0]
    for pipeline in divisors:
        for tensor in divisors:
            if num_ranks % (pipeline * tensor) == 0:
                sizes = GridSizes(pipeline, num_ranks // (pipeline * tensor), tensor)
                yield sizes
                if sizes.data > 1 == tensor:
                    yield sizes._replace(fully_sharded=True)


# -- running them ----------------------------------------------------------------------


def compare_on_ranks(
    task: Task,
    group: ProcessGroup,
    make: MakePipeline,
    rounds: int = 5,
    tell: Tell = silent,
) -> list[dict[str, Any]]:
    """Run every device mesh of a task, and return the figures of each, as plain data,
    on every rank.

    Collective. Times are in seconds, sizes in bytes.

    Parameters
    ----------
    task : Task
    group : ProcessGroup
    make : function
        Makes a pipeline: ``(model, group, **options)``.
    rounds : int
        Turns of each mesh, of two steps each. With 0 the figures contain no times.
    tell : function
        Called with a line about each phase.
    """
    grids, _ = task.grids(group.size)
    runners = []
    for sizes in grids:
        tell(f"{sizes.name}: losses, bytes and memory")
        runners.append(_Runner(task, sizes, group, make))
    chance = Random(0)
    for number in range(rounds):
        steps = f"steps of {counted(len(runners), 'mesh')} in turns"
        tell(f"round {number + 1} of {rounds}: {steps}")
        for runner in chance.sample(runners, len(runners)):
            runner.turn()
    return [runner.row() for runner in runners]


def _measured(task: Task, plan: Plan, grid: Grid) -> tuple[Sizes, list[dict[str, int]]]:
    """Return the sizes of a plan whose layers were measured, and its memory by rank of
    the pipeline.

    Collective. One rank measures for all that have the same parts of the layers: a
    whole pipeline with its replicas, or each replica if they are fully sharded.
    """
    replica = grid.coordinates[1] if grid.fully_sharded else 0
    first = replica * (grid.pipeline.size // grid.replicas)
    measured = None
    if grid.pipeline.rank == first:
        loss = CrossEntropyLoss()
        layers = measure_on_this_rank(
            plan.model, *task.tokens(), loss, task.microbatches, 1, 0, np
        )
        sizes = Sizes.of(plan, layers, task.positions)
        memory = plan.memory(layers, optimiser=Adam)
        measured = [sizes, [each._asdict() for each in memory]]
    sizes, memory = objects.gather(grid.pipeline, measured, _CALL)[first]
    return Sizes(*sizes), memory


class _Training:
    """A pipeline that trains on the batch of a task. Its constructor is collective."""

    def __init__(
        self, task: Task, grid: Grid, make: MakePipeline, **options: Any
    ) -> None:
        self.pipeline = make(task.model(), grid, **options)
        self.optimiser = Adam(self.pipeline.parameters(), learning_rate=1e-3)
        self._batch = task.tokens()

    def step(self) -> tuple[float, float, float]:
        """Return the loss, and the times of the step and of the optimiser."""
        begun = perf_counter()
        loss = self.pipeline.step(*self._batch)
        ended = perf_counter()
        self.optimiser.step()
        return float(loss), ended - begun, perf_counter() - ended


class _Runner:
    """One device mesh. Its constructor is collective: it runs the steps whose losses,
    bytes and memory are compared.
    """

    def __init__(
        self, task: Task, sizes: GridSizes, group: ProcessGroup, make: MakePipeline
    ) -> None:
        grid = Grid(group, **sizes._asdict())
        self._group = group
        options = {
            "loss": CrossEntropyLoss(),
            "check_agreement": False,
            "check_finite": "off",
            "partition": task.partition(sizes.pipeline),
            "num_microbatches": task.microbatches // sizes.data,
        }
        self._eager = _Training(task, grid, make, **options)
        options["compile"] = "where-possible"
        self._make_compiled = partial(_Training, task, grid, make, **options)
        self._compiled: _Training | None = None
        # of each step, and of the optimiser after it
        self._times: list[tuple[float, float]] = []
        self._times_compiled: list[float] = []
        self._timelines: list[Timeline] = []
        compared = self._compared(task, grid)
        self._found = {"grid": sizes.name, **sizes._asdict(), **compared}

    def _compared(self, task: Task, grid: Grid) -> dict[str, Any]:
        """Take the first steps; return losses, and bytes and memory of each rank."""
        plan: Plan = self._eager.pipeline.plan
        sizes, memory = _measured(task, plan, grid)
        traffic = Traffic(grid, plan)
        with traffic.counting():
            losses = [self._eager.step()[0]]
        losses += [self._eager.step()[0] for _ in range(1, _COMPARED_LOSSES)]
        own = {
            "coordinates": grid.coordinates,
            "sent": traffic.sent,
            "promised_sent": promised(plan, grid, sizes),
            "memory": self._memory(),
            "promised_memory": memory[grid.pipeline.rank],
        }
        ranks = objects.gather(self._group, own, _CALL)
        return {"losses": losses, "ranks": ranks, "sizes": sizes._asdict()}

    def _memory(self) -> dict[str, int]:
        """Take a step whose memory is measured; return the bytes of this rank."""
        pipeline = self._eager.pipeline
        pipeline.measures_memory = True
        self._eager.step()
        pipeline.measures_memory = False
        peak = pipeline.timeline().peak_memory
        parameters = list(pipeline.parameters())
        return {
            "parameters": sum(parameter.nbytes for parameter in parameters),
            "gradients": sum(parameter.grad.nbytes for parameter in parameters),
            "optimiser_state": self._eager.optimiser.nbytes,
            "activations": int(peak[pipeline.group.rank]),
        }

    def turn(self) -> None:
        """Take some steps, eager and then compiled. Collective."""
        self._eager.step()  # its parameters are in no cache yet
        for _ in range(_STEPS):
            self._group.barrier()
            self._times.append(self._eager.step()[1:])
            self._timelines.append(self._eager.pipeline.timeline())
        others = 1
        if self._compiled is None:
            self._compiled = self._make_compiled()
            others = _UNTIL_COMPILED
        for number in range(others + _STEPS):
            self._group.barrier()
            _, step, update = self._compiled.step()
            if number >= others:
                self._times_compiled.append(step + update)

    def row(self) -> dict[str, Any]:
        """Return the results. Collective."""
        if not self._times:
            return self._found
        times = np.max(objects.gather(self._group, self._times, _CALL), axis=0)
        bubbles = [timeline.bubble_fraction for timeline in self._timelines]
        compiled = objects.gather(self._group, self._times_compiled, _CALL)
        bubble = np.mean(objects.gather(self._group, bubbles, _CALL), axis=0)
        return {
            **self._found,
            "seconds": times.sum(axis=1).tolist(),
            "compiled_seconds": np.max(compiled, axis=0).tolist(),
            "update_seconds": median(times[:, 1].tolist()),
            "bubble": median(bubble.tolist()),
            "costs": asdict(Costs.measured(*self._timelines)),
        }

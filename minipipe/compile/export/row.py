"""The function ``step`` of a stand-alone file: the row of a rank, line by line.

A send is written around the computation of its array, and a receive in the place of its
array::

    losses[0] = forward_1(0, receive(0, X1 + 0, (4, 8)), y[0])
    send(0, G1 + 0, backward_1(0, seed))
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping
from itertools import accumulate, count
from typing import Any

import numpy as np

from minipipe.compile.export.loops import STRAIGHT, number, with_loops
from minipipe.compile.export.recorded import Recording
from minipipe.compile.export.stage_source import StageSource
from minipipe.compile.export.texts import dicts
from minipipe.compile.stage_program import SECTIONS, StageProgram
from minipipe.compile.value_form import Form
from minipipe.compile.wrapping import WIDTH, function, wrapped
from minipipe.core.execution.executor import Binding, Executor, role_of
from minipipe.core.schedules.action import (
    RECV_B,
    RECV_F,
    REDUCE_GRAD,
    SEND_B,
    SEND_F,
    Action,
    F,
)
from minipipe.core.schedules.analysis.dependencies import Direction
from minipipe.errors import Code, ModelError, ScheduleError
from minipipe.execution.plan import Plan
from minipipe.execution.sums import block_size

_FIRST_TAG_OF_SUMS = 30_000  # of the 32,768 that every MPI has


class RowSource:
    """Prints the row of a rank.

    Parameters
    ----------
    executor : Executor
    sources : mapping of (int, int) to StageSource
        By stage and microbatch.
    plan : Plan
    uses : mapping of str to mapping of int to str
        The names of the gradients of the uses of shared parameters.
    recording : Recording
    has_sizes : bool
        Whether functions read the sizes of microbatches.

    Attributes
    ----------
    source : str
        The function.
    has_loss : bool
        Whether the function returns a loss.
    has_weights : bool
        Whether it takes the weights of the microbatches, which differ between steps.
    batch : list of str
        The letters of inputs, x, and targets, y, if the rank reads them.

    Raises
    ------
    ModelError, ScheduleError
        Code ``unsupported``.
    """

    def __init__(
        self,
        executor: Executor,
        sources: Mapping[tuple[int, int], StageSource],
        plan: Plan,
        uses: Mapping[str, Mapping[int, str]],
        recording: Recording,
        has_sizes: bool,
    ) -> None:
        self._recording = recording
        self._has_sizes = has_sizes
        self._executor = executor
        self._sources = sources
        self._plan = plan
        self._uses = uses
        self._num_stages = executor.program.num_stages
        self._count = executor.program.num_microbatches
        self.has_loss = self._num_stages - 1 in executor.stages
        self.has_weights = self.has_loss and recording.weights is None
        self.batch = [letter for letter, parts in recording.batch.items() if parts]
        self._tags: dict[str, int] = {}
        self._dicts: dict[str, None] = {}
        self._pending: tuple[Any, str] | None = None
        self._expressions: dict[Any, str] = {}
        self._rows: list[str] = []
        self._noted = Counter[int]()  # by stage, microbatches with a gradient
        self._block_sizes: dict[int, int] = {}
        self._reductions: list[str] = []  # lines that wait for other replicas
        self._add_instructions()
        self._check_reductions()
        parameters = [*self.batch, *["weights"] * self.has_weights]
        self.source = function("step", parameters, self._statements())

    def _check_reductions(self) -> None:
        """Refuse reductions over blocks or replicas with shared parameters."""
        text = "\n".join(self._rows)
        has_reductions = "end_block(" in text or bool(self._reductions)
        if has_reductions and (self._uses or self._plan.shared):
            message = "Gradients are added over replicas or blocks of microbatches"
            advice = "export supports that only without shared parameters"
            raise ModelError("unsupported", f"{message}; {advice}.")

    # -- instructions ------------------------------------------------------------------

    def _add_instructions(self) -> None:
        for binding in self._executor.bindings:
            if not binding.action.kind.declaration.of_rank:
                self._add(binding)
        self._flush()
        for stage in [*self._block_sizes]:
            self._join_blocks(stage)
        self._rows += self._reductions

    def _add(self, binding: Binding) -> None:
        action = binding.action
        kind = action.kind
        if kind in (RECV_F, RECV_B):
            self._receive(binding)
        elif kind in (SEND_F, SEND_B):
            self._send(binding)
        elif kind is REDUCE_GRAD:
            self._reduce(action)
        elif kind in SECTIONS and (action.stage, action.microbatch) in self._sources:
            self._compute(binding)
            self._note_block(binding)
        else:
            message = f"The schedule has {action}, but export does not support {kind}."
            advice = "Export the program without it."
            raise ScheduleError.of(Code.UNSUPPORTED, f"{message} {advice}")

    def _note_block(self, binding: Binding) -> None:
        """End a block of microbatches, whose gradients are added first."""
        stage = binding.action.stage
        if not hasattr(binding.handler, "then"):
            return
        self._flush()
        self._noted[stage] += 1
        size = self._block_sizes.setdefault(stage, self._block_size(stage))
        if size and self._noted[stage] % size == 0:
            self._rows.append(f"end_block({self._plan.partition[stage]})")

    def _block_size(self, stage: int) -> int:
        num_blocks = self._plan.gradient_blocks
        num_blocks //= len(self._executor.program.ranks_of(stage))
        return block_size(self._executor.actions, stage, num_blocks)

    def _reduce(self, action: Action) -> None:
        """Begin to add the gradients of all replicas of a stage."""
        self._flush()
        self._join_blocks(action.stage)
        ranks = list(self._executor.program.ranks_of(action.stage))
        tag = _FIRST_TAG_OF_SUMS + action.stage
        arguments = f"{self._plan.partition[action.stage]}, {ranks}, {tag}"
        self._rows.append(f"send_gradients({arguments})")
        self._reductions.append(f"add_replicas({arguments})")

    def _join_blocks(self, stage: int) -> None:
        if self._block_sizes.pop(stage, 0):
            self._rows.append(f"join_blocks({self._plan.partition[stage]})")

    def _receive(self, binding: Binding) -> None:
        stage, kind, k = binding.action
        recorded = self._sources[stage, k].program.recorded
        form = recorded.result
        if kind is RECV_F:
            form = recorded.received
        shape, dtype = self._plain(form, k)
        peer, tag = self._route(binding)
        self._expressions[binding.gives[0][1]] = _receive(peer, tag, shape, dtype)

    def _plain(self, form: Form | None, k: int) -> tuple[str, str]:
        """Return the shape and the dtype of a message."""
        if form is None or not form.is_plain:
            raise _several("activations between two stages")
        shape = form.shapes[0]
        dtype = np.dtype(form.dtypes[0]).name
        size = self._recording.sizes[k]
        if not self._has_sizes or not shape or shape[0] % size:
            return str(shape), dtype
        factor = shape[0] // size
        first = f"sizes[{number(k)}]"
        if factor > 1:
            first = f"{factor} * {first}"
        if len(shape) == 1:
            return f"({first},)", dtype
        return f"({', '.join([first, *map(str, shape[1:])])})", dtype

    def _send(self, binding: Binding) -> None:
        peer, tag = self._route(binding)
        self._rows.append(f"send({peer}, {tag}, {self._value(binding.takes[0])})")

    def _route(self, binding: Binding) -> tuple[int, str]:
        """Return the other rank of a message, and its tag: name and microbatch."""
        route = self._executor.routes[binding.action]
        value = route.value
        if value.direction is Direction.BACKWARD:
            name = f"G{value.stage}"
            first_tag = 2 * value.stage * self._count + self._count
        else:
            name = f"X{value.consumer_stage}"
            first_tag = 2 * value.consumer_stage * self._count
        self._tags[name] = first_tag
        return route.peer, f"{name} + {number(value.microbatch)}"

    def _compute(self, binding: Binding) -> None:
        stage, kind, k = binding.action
        source = self._sources[stage, k]
        section = source.program.section_of(kind)
        arguments = [number(k)]
        taken = {role_of(value): value for value in binding.takes}
        for name in source.parameters[section]:
            arguments.append(self._argument(name, source.program, k, taken))
        self._flush()
        text = f"{section}_{source.name}({', '.join(arguments)})"
        results = {role_of(value): value for _, value in binding.gives}
        result = results.get("x" if kind is F else "g")
        if kind is F and source.program.recorded.result is None:
            self._rows.append(f"losses[{number(k)}] = {text}")
        elif result is not None and source.results[section]:
            self._pending = result, text
        else:
            self._rows.append(text)

    def _argument(
        self, name: str, program: StageProgram, k: int, taken: Mapping[str, Any]
    ) -> str:
        """Return the argument for an input of a section."""
        letter = name[0]
        i = int(name[1:])
        num_inputs = program.recorded.num_inputs
        stage = program.stage
        if letter == "g" and "g" in taken:
            return self._value(taken["g"])
        if letter == "g":
            return self._seed(k)
        if i > num_inputs:
            raise _several("targets")
        if i == num_inputs:
            return f"y[{number(k)}]"
        if i > 0 and stage > 0:
            raise _several("activations between two stages")
        if i > 0:
            raise _several("inputs")
        if stage > 0:
            return self._value(taken["x"])
        return f"x[{number(k)}]"

    def _seed(self, k: int) -> str:
        if self._has_one_weight:
            return "seed"
        return f"seeds[{number(k)}]"

    @property
    def _has_one_weight(self) -> bool:
        weights = self._recording.weights
        return weights is not None and len({*weights}) == 1

    def _value(self, value: Any) -> str:
        """Return the expression of a value, which is used once."""
        if self._pending is not None and self._pending[0] == value:
            _, text = self._pending
            self._pending = None
            return text
        return self._expressions.pop(value)

    def _flush(self) -> None:
        """Keep the result of the last computation for a later line."""
        if self._pending is None:
            return
        value, text = self._pending
        self._pending = None
        name = f"{role_of(value)}{value.stage}"
        self._dicts[name] = None
        self._rows.append(f"{name}[{number(value.microbatch)}] = {text}")
        self._expressions[value] = f"{name}.pop({number(value.microbatch)})"

    # -- the function ------------------------------------------------------------------

    def constants(self) -> Iterator[str]:
        """Yield the lines that define the globals of the function."""
        if self._tags:
            numbers = ", ".join(map(str, self._tags.values()))
            line = f"{', '.join(self._tags)} = {numbers}"
            comment = "# tags: activations into a stage, gradients"
            if len(f"{line}  {comment}") <= WIDTH:
                yield f"{line}  {comment}"
            else:
                yield comment
                yield line
        yield from dicts(self._dicts, "by microbatch")
        sizes = self._recording.sizes
        if self._has_sizes:
            yield from wrapped(f"sizes = {[*sizes]}", 0)
        weights = self._recording.weights
        if not self.has_loss or weights is None:
            return
        if self._has_one_weight:
            yield f"weight = {weights[0]!r}  # of the loss of a microbatch"
            yield f'seed = np.array(weight, "{self._dtype_of_loss()}")'
            return
        by_size = [size / sum(sizes) for size in sizes]
        if self._has_sizes and weights == by_size:
            yield "weights = [size / sum(sizes) for size in sizes]  # of their losses"
        else:
            yield from wrapped(f"weights = {weights}", 0)

    def _dtype_of_loss(self) -> str:
        recorded = (each.program.recorded for each in self._sources.values())
        dtypes = (each.loss_dtype for each in recorded)
        return next(dtype for dtype in dtypes if dtype is not None).name

    def _statements(self) -> Iterator[str]:
        rank = self._executor.group.rank
        yield f'"""The row of rank {rank}, an instruction a line."""'
        for letter in self.batch:
            yield f"{letter} = {self._cut(letter)}"
        if self.has_loss:
            yield "losses = {}"
            if not self._has_one_weight:
                dtype = self._dtype_of_loss()
                yield f'seeds = [np.array(weight, "{dtype}") for weight in weights]'
        yield from with_loops(self._rows, self._count > STRAIGHT)
        yield from self._shared_gradients()
        if self._tags or self._reductions:
            yield "while sent:\n    sent.pop()[0].Wait()"
        if self.has_loss:
            weight = "weights[k]"
            if self._has_one_weight:
                weight = "weight"
            yield f"return sum({weight} * float(losses[k]) for k in losses)"

    def _cut(self, letter: str) -> str:
        """Return the microbatches of an array of the batch."""
        parts = self._recording.batch[letter]
        sizes = list(map(len, parts.values()))
        sections = str(list(accumulate(sizes))[:-1])
        if len({*sizes}) == 1:
            sections = str(len(sizes))
        elif self._has_sizes and len(sizes) == len(self._recording.sizes):
            sections = "np.cumsum(sizes)[:-1]"
        cut = f"np.split({letter}, {sections})"
        if list(parts) == list(range(len(parts))):
            return cut
        return f"dict(zip({list(parts)}, {cut}))"

    def _shared_gradients(self) -> Iterator[str]:
        """Yield the lines that add the gradients of the uses of shared parameters."""
        rank = self._executor.group.rank
        tags = count(2 * self._num_stages * self._count)
        sends = []
        terms = defaultdict[str, list[str]](list)
        for name, users in self._plan.shared.items():
            for (use, sources), tag in zip(users.items(), tags):
                if rank not in sources:
                    continue
                if sources[rank] != rank:
                    terms[name].append(self._receive_use(name, sources[rank], tag))
                    continue
                key = self._uses.get(name, {}).get(use, name)
                gradient = f'gradients["{key}"]'
                others = [o for o in sources if o != rank == sources[o]]
                sends += [f"send({other}, {tag}, {gradient})" for other in others]
                terms[name].append(gradient)
        for name, uses in self._uses.items():
            if name not in self._plan.shared:
                terms[name] = [f'gradients["{uses[n]}"]' for n in sorted(uses)]
        yield from sends
        for name, of_uses in terms.items():
            yield f'gradients["{name}"] = {" + ".join(of_uses)}'
            for each in self._uses.get(name, {}).values():
                yield f'gradients.pop("{each}", None)'

    def _receive_use(self, name: str, peer: int, tag: int) -> str:
        """Return the expression of a gradient that another rank has."""
        stages = self._executor.stages.values()
        owner = next(s.parameters[name] for s in stages if name in s.parameters)
        dtype = np.dtype(owner.data.dtype).name
        return _receive(peer, str(tag), str(owner.shape), dtype)


def _receive(peer: int, tag: str, shape: str, dtype: str) -> str:
    """Return the call that receives an array."""
    arguments = f"{peer}, {tag}, {shape}"
    if dtype != "float32":
        arguments += f', "{dtype}"'
    return f"receive({arguments})"


def _several(values: str) -> ModelError:
    message = f"The {values} are several arrays; export supports one array."
    return ModelError("unsupported", f"{message} Let the model take and return one.")

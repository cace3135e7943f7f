"""A compiled training step for a call like the last one, printed as one function.

An ordinary step reads its batch, agrees on it, sets the modes of computing, runs its
row and judges the result. If the last one was compiled and its batch was plain, most
of that is known, and the rest is printed, instruction by instruction of the row::

    HANDSHAKE    forms, guards, agreement
    …            the compiled schedule; if it has REDUCE_GRADs, a wait for their sums
    FINITE       a dot product of all gradients
    LOSS         a sum, or an exchange

Other instructions call their handlers.

``Pipeline.step`` calls the function itself, and an ordinary step if that returns no
loss: the call is not like the last one. It may return the batch on which all ranks have
agreed.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator
from functools import partial
from math import isfinite
from time import perf_counter
from typing import TYPE_CHECKING, Any
from zlib import crc32

import numpy as np

from minipipe.compile.program import CompiledRow, Compiler
from minipipe.compile.sections import code_of
from minipipe.core.autograd.modes import mode
from minipipe.core.execution.executor import Binding, Executor
from minipipe.core.objective import Objective
from minipipe.data import take_last_draw
from minipipe.execution import BatchLoss, PendingLoss
from minipipe.execution.batch import Batch
from minipipe.execution.checks.finite import FiniteCheck
from minipipe.execution.checks.updates import fingerprint, form_of_array
from minipipe.execution.source import name_of
from minipipe.pipeline.intake import Intake
from minipipe.pipeline.plain_batch import PlainBatch
from minipipe.pipeline.training_call import TrainingCall

if TYPE_CHECKING:
    from minipipe.execution.sums import GradientSums

# Does not warn of an overflow; in C, if NumPy shows what stands behind its function.
_VDOT = getattr(np.vdot, "_implementation", np.vdot)

Repeated = Callable[[Any, Any, Any, float], BatchLoss | Batch | None]

_CALL = """\
call = TrainingCall("step", inputs, targets, objective, True, pipeline.num_steps)
rank.call, call.earlier = call, {}""".splitlines()
"""For handlers."""

_COMPARED = {
    "mode": "pipeline._is_training",
    "number of training steps": "pipeline.num_steps",
    "request for metrics and outputs": "0",
    "request for outputs": "False",
    "scale": "scale",
    "inputs": "fingerprint(inputs)",
    "targets": "fingerprint(targets)",
    "batch of data": "take_last_draw()",
}
"""Expressions for the numbers that ranks compare in a handshake, by name."""


def repeated(
    executor: Executor,
    compiler: Compiler,
    intake: Intake,
    finite: FiniteCheck,
    pending: deque[PendingLoss],
    sums: GradientSums | None,
) -> RepeatedStep | None:
    """Return what runs steps like the last one; None if no other can be like it.

    Parameters
    ----------
    executor : Executor
        Of training steps.
    compiler : Compiler
    intake : Intake
    finite : FiniteCheck
    pending : deque of PendingLoss
        The losses of earlier steps that nothing has waited for.
    sums : GradientSums or None
        The gradient all-reduces of replicas.
    """
    program = compiler.program
    form = intake.last
    if program is None or not program.is_whole or form is None:
        return None
    if form.call != "step":
        return None
    names = {"rank": executor, "compiler": compiler, "pending": pending}
    if sums is not None:
        names["sums"] = sums
    step = RepeatedStep(executor, program, intake, form, finite, names)
    return step if step.source else None


class RepeatedStep:
    """Prints a step for calls like the last one, and runs it.

    Parameters
    ----------
    executor : Executor
        Of training steps.
    program : CompiledRow
        That ran last.
    intake : Intake
    form : PlainBatch
        The form of the last batch.
    finite : FiniteCheck
    names : dict of str to object
        To which the function may refer.

    Attributes
    ----------
    source : str
        The function; empty if a further instruction takes or gives a value.
    run : function
        It, of the pipeline, the inputs, the targets and the scale. Returns the loss; or
        None or a batch, if the step has to be an ordinary one, of that batch. Raises
        the errors of an ordinary step.
    """

    run: Repeated

    def __init__(
        self,
        executor: Executor,
        program: CompiledRow,
        intake: Intake,
        form: PlainBatch,
        finite: FiniteCheck,
        names: dict[str, Any],
    ) -> None:
        self._executor = executor
        self._program = program
        self._finite = finite
        self._intake = intake
        self._form = form
        self._names: dict[str, Any] = {
            **names,
            "program": program,
            "group": executor.group,
            "calls": intake.calls,
            "leaves": [
                leaf for stage in executor.stages.values() for leaf in stage.leaves
            ],
            "mode": mode,
            "ndarray": np.ndarray,
            "isfinite": isfinite,
            "now": perf_counter,
            "TrainingCall": TrainingCall,
        }
        self.source = "\n".join(self._lines())
        if self.source:
            self.run = self._compiled()

    def serves(self, compiler: Compiler, intake: Intake) -> bool:
        """Return whether this is the step for calls like the last one now."""
        return compiler.program is self._program and intake.last is self._form

    def _compiled(self) -> Repeated:
        name = f"step of rank {self._executor.group.rank}"
        exec(code_of(self.source, name, self), self._names)
        function = self._names.pop("step")  # a function in its globals is a cycle
        assert callable(function)
        return function

    # -- lines -------------------------------------------------------------------------

    def _instructions(self) -> list[Callable[[], Iterator[str]]]:
        """Return what prints each instruction around the schedule; nothing if one
        cannot be printed.
        """
        printers: dict[str, Callable[[], Iterator[str]]] = {
            "HANDSHAKE": self._handshake,
            "FINITE": self._check,
            "LOSS": self._deliver,
        }
        bindings = self._executor.bindings
        framing = [b for b in bindings if b.action.kind.declaration.of_rank]
        others = [b for b in framing if b.action.kind not in printers]
        self._has_others = bool(others)
        self._has_sums = "sums" in self._names
        self._checks = any(b.action.kind == "FINITE" for b in framing)
        if any(binding.takes or binding.gives for binding in others):
            return []
        for binding in others:
            printers[binding.action.kind] = partial(self._handler, binding)
        return [printers[binding.action.kind] for binding in framing]

    def _lines(self) -> list[str]:
        """Return the lines of the function; none if an instruction cannot have any."""
        rank = self._executor.group.rank
        program = self._executor.program
        instructions = self._instructions()
        if not instructions:
            return []
        handshake, *behind = instructions
        forget = [f"{noun}_of_batch[0] = None" for noun in self._form.forms]
        head = f"# rank {rank} of {program.name}, like the last step"
        return [
            f"def step(pipeline, inputs, targets, scale):  {head}",
            "    begun, steps = now(), pipeline._steps",
            *(f"    {line}" for line in handshake()),
            "    rank.begin_again(batch)",
            *[f"    {line}" for line in _CALL] * self._has_others,
            "    for leaf in leaves:",
            "        leaf.grad = None",
            "    try:",
            "        program.run(rank)  # the schedule",
            *["        sums.finish()"] * self._has_sums,
            *(f"        {line}" for lines in behind for line in lines()),
            *(f"        {line}" for line in forget),
            "        record = rank.record",
            "        record.begun, record.left = begun, now()",
            "        steps.records.append(record)",
            "        return loss",
            "    except BaseException as error:",
            "        rank.fail(error)",
            "        if not compiler.begins_again(rank, error):",
            *(f"            {line}" for line in forget),
            "            steps.records.clear()",
            "            raise",
            "        other = error",
            "    finally:",
            "        rank.forget()",
            "    rank.early[other.value] = other.arrived",
            "    return batch",
        ]

    def _handler(self, binding: Binding) -> Iterator[str]:
        """Yield the call of the handler of an ordinary step."""
        name = name_of(binding)
        action = f"action_{len(self._names)}"
        self._names |= {name: binding.handler, action: binding.action}
        yield f"{name}(rank, {action})  # {binding.action}"

    def _handshake(self) -> Iterator[str]:
        """Yield the lines behind which all ranks make a call like the last one."""
        calls = self._intake.calls
        form = self._form
        group: Any = self._executor.group
        yield "if rank.call is not None or pending or type(scale) is not float:"
        yield "    return None"
        yield "if pipeline.measures_memory or mode().watch is not None:"
        yield "    return None"
        self._names["loss_function"] = form.loss
        yield "if pipeline._objective.args[0] is not loss_function:"
        yield "    return None"
        for noun in form.forms:
            yield from self._comparison_with_last(noun)
        yield "if compiler.program is not program:"
        yield "    return None"
        if self._program.keys:
            self._names |= {"keys": self._program.keys, "posted": group.posted}
            yield "if not keys.isdisjoint(posted):  # a step has failed"
            yield "    return None"
        yield "if not program.holds(compiler.gradients):"
        yield "    return None"
        if calls.is_alone:
            yield "group.check_open()"
            yield "calls.count += 1"
        else:
            self._names["under_way"] = group.under_way
            yield "if under_way:"
            yield "    return None"
            yield from self._agreement()
        if calls.trained is not None and not calls.trained.is_alone:
            yield "calls.check_trained('step')"
        yield from self._batch()

    def _comparison_with_last(self, noun: str) -> Iterator[str]:
        shape, strides, dtype = self._form.forms[noun]
        self._names[f"dtype_of_{noun}"] = dtype
        yield f"if type({noun}) is not ndarray or {noun}.shape != {shape}:"
        yield "    return None"
        yield f"if {noun}.strides != {strides} or {noun}.dtype != dtype_of_{noun}:"
        yield "    return None"

    def _agreement(self) -> Iterator[str]:
        """Yield the lines that compare the call on all ranks."""
        intake = self._intake
        names = self._intake.calls.compared
        self._names |= {"intake": intake, "names": names}
        self._names |= {"fingerprint": fingerprint, "take_last_draw": take_last_draw}
        values = [
            self._fingerprint(name) or _COMPARED[name]
            for name in names
            if name in _COMPARED
        ]
        if intake.calls.updates is not None:
            self._names["updates"] = intake.calls.updates
            values.append("*updates.marks().values()")
        yield "calls.count += 1"
        yield "values = ("
        yield from (f"    {value}," for value in values)
        yield ")"
        agreed = self._form.agreed
        yield f"agreed = calls.agree('step', names, values, {agreed})"
        yield f"if agreed != {agreed}:"
        yield "    parts = inputs, targets, pipeline._objective(scale=scale)"
        yield "    return intake.agreed_batch('step', *parts, pipeline.num_steps, agreed)"

    def _fingerprint(self, noun: str) -> str:
        """Return what computes the fingerprint of an array of this rank; empty if it
        needs more.
        """
        if noun not in self._form.forms:
            return ""
        shape, strides, dtype = self._form.forms[noun]
        begin, positions = form_of_array(shape, dtype)
        if positions is None or strides != np.empty(shape, dtype).strides:
            return ""
        self._names |= {"crc32": crc32, f"compared_{noun}": positions}
        return f"crc32({noun}.take(compared_{noun}).tobytes(), {begin}) or 1"

    def _batch(self) -> Iterator[str]:
        """Yield the lines that make the batch of the last call one of this call."""
        batch, cuts = self._form.empty()
        objective = batch.objective = self._form.objective()
        self._names |= {"batch": batch, "sizes": batch.sizes, "objective": objective}
        yield "batch.step, batch.training_step = calls.count, pipeline.num_steps"
        yield "objective.scale = scale"
        yield "objective.losses.clear()"
        for noun, cut in cuts.items():
            self._names[f"{noun}_of_batch"] = cut.whole.arrays
            yield f"{noun}_of_batch[0] = {noun}"
        if self._has_sums:
            yield "sums.begin(False)"
        if self._intake.needs.targets:
            self._names["targets_in_microbatches"] = cuts.get("targets")
            begin = "objective.begin(sizes, targets_in_microbatches)"
            if objective.weighs_by_form:
                yield "if objective.targets is None:"
                yield f"    {begin}"
            else:
                yield begin

    def _check(self) -> Iterator[str]:
        """Yield the lines that find a gradient that is not finite."""
        finite = self._finite
        program = self._program
        self._names |= {"finite": finite, "given": program.given}
        if finite.is_shared:  # by tensor-parallel ranks
            yield "culprit, waits = finite.of_step(batch, waits=True).findings"
            return
        yield "culprit = -1.0  # the number of a parameter whose gradient is not finite"
        yield "waits = 1.0"
        if finite.may_overflow:
            return
        yield "if scale <= 1:"
        has_others = self._has_others or self._has_sums or finite.xp is not np
        if program.is_static and not has_others:
            self._names |= {"vdot": _VDOT}
            yield "    squares = map(vdot, given.flat, given.flat)"
            yield "    if not all(map(isfinite, squares)):"
            yield "        culprit = float(finite.first_not_finite())"
        else:
            yield "    culprit = float(finite.first_not_finite())"

    def _deliver(self) -> Iterator[str]:
        """Yield the lines that give all ranks the loss, and judge it."""
        intake = self._intake
        group = self._executor.group
        self._names |= {"BatchLoss": BatchLoss, "results": Objective.numbers}
        yield "pipeline.num_steps += 1"
        if intake.returns_input_gradients:
            self._names["intake"] = intake
            gradients = "batch, rank.record.input_gradients"
            yield f"steps.input_gradients = intake.input_gradients({gradients})"
        num_results = 1 + len(self._form.sizes)
        findings = "culprit, waits" if self._checks else ""
        root = intake.delivery.root
        own = f"[{findings}]"
        if group.rank == root:
            own = f"[*results(objective), {findings}]"
        if intake.calls.is_alone:
            yield f"found = {{{root}: {own}}}"
        else:
            delivery = intake.delivery
            channel = delivery.channel(num_results, 2 * self._checks)
            self._names |= {"exchange": channel.exchange, "part": delivery.part}
            yield "part.call = 'step'"
            yield f"found = exchange({own}, calls.count)"
        yield f"numbers = found[{root}]"
        yield f"loss = BatchLoss(numbers[0], numbers[1:{num_results}])"
        if self._checks:
            yield from self._judgement(num_results, root)

    def _judgement(self, num_results: int, root: int) -> Iterator[str]:
        yield f"found[{root}] = numbers[{num_results}:]"
        ranks = range(self._executor.group.size)
        culprits = " or ".join(f"found[{rank}][0] >= 0" for rank in ranks)
        yield f"if not all(map(isfinite, numbers)) or {culprits}:"
        yield "    findings = [found[number] for number in sorted(found)]"
        yield "    finite.of_step(batch, waits=True).judge(loss, findings)"

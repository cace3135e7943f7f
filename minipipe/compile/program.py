"""The compiled schedule of a rank: recorded in one step, and run in later ones.

`Compiler` runs after the handshake of a step, which gives it the batch. It decides
whether the schedule runs eagerly, is recorded, or runs as an earlier program. All three
send the same messages, so each rank decides alone.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from time import perf_counter
from typing import Any

from minipipe.compile.arrivals import OtherForm, has_run
from minipipe.compile.failures import compute_again, place_of
from minipipe.compile.gradients import GivenGradients, GradientArrays, Seeds
from minipipe.compile.graphs import as_graphs, note_of
from minipipe.compile.guards import Attributes, JoinedAttributes, Same
from minipipe.compile.printing import preparation_of
from minipipe.compile.reasons import (
    attributes_of_loss,
    reason_for_eager,
    refused,
    report_of,
)
from minipipe.compile.recording import Recorder, cache_key
from minipipe.compile.row import SECTIONS, Row, memory_of
from minipipe.compile.sections import Pool, Sections, code_of
from minipipe.compile.stage_program import (
    StageProgram,
    action_kinds,
    assign_slots,
    suffix_of,
)
from minipipe.compile.trace import key_of
from minipipe.core.autograd.backend import Array
from minipipe.core.autograd.modes import mode
from minipipe.core.execution.executor import Executor, Step
from minipipe.core.execution.payload import Payload
from minipipe.core.schedules.action import L, O
from minipipe.errors import MessageError
from minipipe.execution.batch import Batch
from minipipe.execution.samples import Cut

MOST_PROGRAMS = 8
"""Programs that are kept for a schedule, such as one for a smaller last batch."""

MOST_TRIES = 4
"""Programs in a row that never ran, after which a schedule stays eager."""


class Compiler:
    """Runs the schedule of an executor: eagerly, recorded, or compiled.

    Parameters
    ----------
    is_strict : bool
        Whether a layer that cannot be compiled is an error. Otherwise its stage runs
        eagerly.

    Attributes
    ----------
    program : CompiledRow or None
        The program that ran last.
    gradients : GradientArrays or None
        The gradients of all programs.

    Raises
    ------
    ModelError
        Code ``unsupported``: a layer cannot be compiled.
    """

    def __init__(self, is_strict: bool) -> None:
        self._is_strict = is_strict
        self._programs: dict[Any, CompiledRow | None] = {}
        self._tries: dict[Any, int] = {}  # programs that have not run, by form
        self.gradients: GradientArrays | None = None
        self.program: CompiledRow | None = None
        self._report = "has not run yet"

    @property
    def report(self) -> str:
        """How the last step ran, and why."""
        return self._report if self.program is None else self.program.report

    @property
    def latest(self) -> CompiledRow | None:
        """The newest program, whether or not it ran last."""
        if self.program is not None:
            return self.program
        programs = (each for each in reversed(self._programs.values()) if each)
        return next(programs, None)

    def __call__(self, executor: Executor, steps: Sequence[Step]) -> None:
        """Run the schedule of the batch that the executor has."""
        self.program = None
        self._report = reason_for_eager(executor)
        if self._report:
            executor.run_eagerly(steps)
            return
        key = form_of(executor)
        if key not in self._programs:  # the first step creates lazy attributes
            while len(self._programs) >= MOST_PROGRAMS:
                self._drop(next(iter(self._programs)))
            self._programs[key] = None
            self._report = "runs eagerly in the first step of a kind"
            executor.run_eagerly(steps)
            return
        if self._has_run(executor, steps, key):
            return
        if self._tries.get(key, 0) == MOST_TRIES:
            self._report = "runs eagerly: its layers or parameters change in every step"
            executor.run_eagerly(steps)
            return
        self._tries[key] = self._tries.get(key, 0) + 1
        self._drop(key)
        self._record(executor, steps, key)

    def _has_run(self, executor: Executor, steps: Sequence[Step], key: Any) -> bool:
        """Run the program of a batch; return whether a valid one exists.

        No variable of the caller may refer to it or to the gradients.
        """
        program = self._programs[key]
        if program is None or not program.holds(self.gradients):
            return False
        if not program.is_ready():
            self._report = "runs eagerly in the step after one that failed"
            executor.run_eagerly(steps)
            return True
        self.program = program
        self._tries.pop(key, None)
        try:
            program.run(executor)
        except OtherForm as error:
            if has_run(executor):
                raise
            executor.group.activity.position = 0
            executor.early[error.value] = error.arrived
            self.program = None
            return False
        return True

    def begins_again(self, executor: Executor, error: BaseException) -> bool:
        """Drop the program that ran last, if its first message had another form.

        Returns
        -------
        bool
            Whether the schedule can begin again: the error is no other one, and no
            action has run.
        """
        if not isinstance(error, OtherForm) or has_run(executor):
            return False
        for key in [k for k, p in self._programs.items() if p is self.program]:
            self._drop(key)
        self.program = None
        executor.group.activity.position = 0
        return True

    def _drop(self, key: Any) -> None:
        """Drop a program, and count the references to gradients anew.

        Otherwise its references would still be subtracted, and hide references of a user.
        """
        if self._programs.pop(key) is not None and self.gradients is not None:
            self.gradients.renew()

    def _record(self, executor: Executor, steps: Sequence[Step], key: Any) -> None:
        """Run a step eagerly, and make a program from it."""
        self._programs[key] = None
        self._report = "is recorded"
        stages = executor.stages
        recorders: dict[int, Any] = {
            index: Recorder(stage, action_kinds(executor.actions, index))
            for index, stage in stages.items()
        }
        executor.stages = recorders
        try:
            executor.run_eagerly(steps)
        finally:
            executor.stages = stages
        program = CompiledRow(executor, recorders, self._is_strict)
        gradients = None
        if not executor.program.is_forward_only:
            gradients = self._gradients_of(recorders)
        program.bind(gradients)
        self._programs[key] = program

    def _gradients_of(self, recorders: dict[int, Recorder]) -> GradientArrays:
        """Return the gradients of all programs.

        If parameters have changed, they are replaced, and all programs are dropped.
        """
        owners = [owner for each in recorders.values() for owner in each.owners]
        owners = list({id(owner): owner for owner in owners}.values())
        if self.gradients is not None and self.gradients.serve(owners):
            return self.gradients
        if self.gradients is not None:
            self.gradients.close()
        self._programs.clear()  # which refer to the arrays
        for each in recorders.values():
            each.guard.forget_arrays()
        uses = [use for each in recorders.values() for use in each.uses]
        self.gradients = GradientArrays(owners, uses)
        for each in recorders.values():
            each.guard.note_arrays()
        return self.gradients


class CompiledRow:
    """The compiled schedule of a rank for batches of one form.

    Parameters
    ----------
    executor : Executor
    recorders : dict of int to Recorder
        By stage, after the recorded step.
    is_strict : bool

    Attributes
    ----------
    recorders : dict of int to Recorder
    programs : dict of (int, int) to StageProgram
        By stage and microbatch.
    parts : list of StageProgram
        Each of them once.
    source : str
        The source of the whole module.
    sources : dict of int to str
        The source of the sections, by compiled stage.
    is_whole : bool
        Whether all computations are compiled.
    is_static : bool
        Whether all weight gradients are arrays that are written in each step.
    given : GivenGradients
        The gradients that it writes.
    keys : set
        The keys of receives that the lines of the schedule post themselves.
    """

    def __init__(
        self, executor: Executor, recorders: dict[int, Recorder], is_strict: bool
    ) -> None:
        self.recorders = recorders
        self._trained = mode().is_enabled
        self._reports = _reports(recorders, is_strict)
        self.programs = programs = _stage_programs(executor, recorders)
        row = Row(executor, programs)
        memory = memory_of(row)
        self._arguments = row.arguments
        parts = list({id(program): program for program in programs.values()}.values())
        self.parts = parts
        sources = [program.sections.source for program in parts]
        self.source = "\n\n".join([*sources, "\n".join(memory.lines) + "\n"])
        self.sources: dict[int, str] = {}
        for part, source in zip(parts, sources):
            earlier = self.sources.get(part.stage, "")
            self.sources[part.stage] = f"{earlier}\n\n{source}".lstrip("\n")
        self._guards = [recorders[s].guard for s in {part.stage for part in parts}]
        self._attributes = JoinedAttributes(self._attributes_of(executor))
        seeds = Seeds(row.losses, executor.xp)
        names = {"now": perf_counter, "key_of": key_of, "seeds_of": seeds}
        names["mark"] = executor.now
        self.given = GivenGradients()
        names |= {"given": self.given}
        self._namespace = {**names, **row.names, "memory": memory}
        self._note_messages(row)
        self._namespace |= memory.arrays
        self._schedule = self._compiled("\n".join(memory.lines), executor)
        self.is_whole = _is_whole(executor, programs)
        self.is_static = all(part.is_static for part in parts)

    def _note_messages(self, row: Row) -> None:
        """Note the channels of a row, and the receives that its lines post."""
        self._receives: list[tuple[Any, Any]] = []
        self.keys: set[Any] = set()
        for message in row.messages.values():
            self._namespace |= message.names
            if not message.is_send:
                self._receives.append((message.channel, message.route.value))
                self.keys |= {message.names.get(f"key_{message.value}")} - {None}

    def _attributes_of(self, executor: Executor) -> Iterator[Attributes]:
        """Yield the attributes of the compiled layers and of the loss."""
        for guard in self._guards:
            yield guard.attributes
        last = executor.program.num_stages - 1
        objective = executor.batch.objective
        if objective.has_loss and any(part.stage == last for part in self.parts):
            yield attributes_of_loss(objective.loss)

    @property
    def report(self) -> str:
        """Return a line for each stage: whether it is compiled and captured, or why not."""
        notes = {part.stage: note_of(part.functions) for part in self.parts}
        lines = self._reports.items()
        return "\n".join(line + notes.get(stage, "") for stage, line in lines)

    def bind(self, gradients: GradientArrays | None) -> None:
        """Bind all functions to arrays; a forward-only row has no gradients."""
        self._gradients = gradients
        if gradients is not None and not gradients.arena.gradients_are_free():
            gradients.renew()
        self._bind_parts(gradients)
        if gradients is not None:  # now without references of local variables
            gradients.count_references()
            self._version = gradients.version

    def _bind_parts(self, gradients: GradientArrays | None) -> None:
        parts = self.parts
        pool = Pool(max((p.sections.temporary_bytes for p in parts), default=0))
        written: dict[int, tuple[Any, Array]] = {}  # leaves and gradients
        for part in parts:
            recorder = self.recorders[part.stage]
            arrays = [owner.data for owner in recorder.owners]
            leaves = [use.node for use in recorder.uses]
            targets: Sequence[Any] = leaves
            if part.is_static and gradients is not None:
                targets = gradients.of(leaves)
                for i in part.contributes:
                    written[id(leaves[i])] = leaves[i], targets[i]
            functions = part.sections.bind(arrays, targets, part.num_slots, pool)
            reason = ""
            if part.leaves:
                reason = "its values leave the device"
                for i, values in enumerate(part.sections.stashes(functions)):
                    self._namespace[f"stash{i}_{part.name}"] = values
            part.functions = as_graphs(part.sections, functions, reason)
            for section, function in part.functions.items():
                self._namespace[part.name_of(section)] = function
        self.given.pairs = list(written.values())
        if gradients is not None:
            self.given.flat = gradients.flat([leaf for leaf, _ in self.given.pairs])

    def _compiled(self, text: str, executor: Executor) -> Callable[[Executor], None]:
        name = f"schedule of rank {executor.group.rank}"
        exec(code_of(text, name, self), self._namespace)
        function = self._namespace.pop("schedule")
        assert callable(function)
        return function

    def holds(self, gradients: GradientArrays | None) -> bool:
        """Return whether all guards hold."""
        if gradients is not self._gradients or mode().is_enabled != self._trained:
            return False
        if gradients is not None and not gradients.arena.is_open:
            return False
        for guard in self._guards:
            if not guard.parameters_hold():
                return False
        return self._attributes.still_hold() or self._attributes.hold_again()

    def is_ready(self) -> bool:
        """Return whether no posted receive is left from a failed run.

        An eager step takes its message; the lines would post it again.
        """
        return self.keys.isdisjoint(self._namespace.get("posted", ()))

    def run(self, executor: Executor) -> None:
        """Run the schedule of a batch.

        The layers raise an error of a forward again, with their notes.
        """
        if executor.sends:
            executor.finish_sends()  # the row writes into their arrays
        gradients = self._gradients
        if gradients is not None:
            is_free = gradients.arena.gradients_are_free()
            if not is_free or self._version != gradients.version:
                self.bind(gradients)
        try:
            self._schedule(executor)
            executor.group.activity.position = len(executor.actions)  # it is over
        except OtherForm:
            raise
        except MessageError as error:
            self._raise_other_form(error)
            raise
        except Exception as error:
            called, values = place_of(error, self._schedule)
            sections = ("forward", preparation_of("forward"))
            forwards = {p.name_of(section) for p in self.parts for section in sections}
            if not forwards.isdisjoint(called):
                values = {**self._namespace, **values}
                received = partial(self._received, values)
                compute_again(executor, received, partial(self._pass_on, values))
            raise

    def _received(self, values: Mapping[str, Any], stage: int, k: int) -> Payload:
        """Return the input of a forward, from variables of the schedule."""
        name = self._arguments.inputs[stage, k]
        form = self.recorders[stage].recording_of[k].received
        arrays = [values[f"{name}_{i}"] for i in range(len(form.shapes))]
        return form.payload(arrays)

    def _pass_on(self, values: Mapping[str, Any], stage: int, k: int) -> None:
        """Give a stage the arrays of earlier slices, from variables of the schedule."""
        recorder = self.recorders[stage]
        for (of_stage, each), names in self._arguments.passed.items():
            if of_stage == stage and each < k:
                arrays = [values[name] for name in names]
                recorder.passed.keep(each, arrays, recorder.recording_of[each].passed)

    def _raise_other_form(self, error: MessageError) -> None:
        """Raise ``OtherForm`` instead, if a message of another form has arrived."""
        for channel, value in self._receives:
            message = channel.other
            channel.other = None
            if message is not None:
                raise OtherForm(str(error), value, message) from None


def form_of(executor: Executor) -> Any:
    """Return the properties of a batch, besides its values, on which lines depend."""
    batch: Batch = executor.batch
    modes = [stage.module.is_training for stage in executor.stages.values()]
    if batch.form is not None:
        return (batch.form, mode().is_enabled, *modes)
    loss = Same(batch.objective.loss)
    key: list[Any] = [batch.sizes, batch.form_of_inputs, loss]
    key += [mode().is_enabled, *modes]
    for payloads in (batch.inputs, batch.objective.targets):
        parts = payloads or ()
        if isinstance(payloads, Cut):
            parts = [payloads.whole]
        key.extend(cache_key(part, part.arrays) for part in parts)
    return tuple(key)


def _stage_programs(
    executor: Executor, recorders: dict[int, Recorder]
) -> dict[tuple[int, int], StageProgram]:
    """Return the programs of stages that could be recorded."""
    result: dict[tuple[int, int], StageProgram] = {}
    leaves = any(action.kind is O for action in executor.actions)
    for stage, recorder in recorders.items():
        if recorder.first_reason:
            continue
        programs: dict[int, StageProgram] = {}
        is_static = _is_static(executor, recorder)
        how = "static" if is_static else "leaves"
        for k, recorded in recorder.recording_of.items():
            if id(recorded) not in programs:
                suffix = suffix_of(len(programs))
                keeps = "values" if leaves else "arrays"
                name = f"{stage}{suffix}"
                sections = Sections(recorded.trace, name, how, keeps=keeps)
                program = StageProgram(stage, suffix, recorded, sections)
                program.is_static = is_static
                program.leaves = leaves
                program.contributes = recorded.contributes
                programs[id(recorded)] = program
            result[stage, k] = programs[id(recorded)]
        for program in programs.values():
            microbatches = {k for (_, k), each in result.items() if each is program}
            places = {
                (program.section_of(action.kind), action.microbatch): position
                for position, action in enumerate(executor.actions)
                if action.stage == stage and action.microbatch in microbatches
                if action.kind in SECTIONS
            }
            assign_slots(program, places)
    return result


def _is_whole(executor: Executor, programs: Mapping[Any, StageProgram]) -> bool:
    """Return whether all computations are compiled sections or copies to a file."""
    for binding in executor.bindings:
        stage, kind, k = binding.action
        if not binding.is_timed:
            continue
        if (stage, k) not in programs or kind not in (*SECTIONS, O, L):
            return False
    return True


def _is_static(executor: Executor, recorder: Recorder) -> bool:
    """Return whether the gradients of a stage are arrays that are written in each step.

    They are not if a handler takes them away in the middle of a step, or if microbatches
    contribute to different leaves.
    """
    contributes = {frozenset(each.contributes) for each in recorder.recordings.values()}
    is_taken = any(hasattr(binding.handler, "then") for binding in executor.bindings)
    return len(contributes) == 1 and not is_taken


def _reports(recorders: dict[int, Recorder], is_strict: bool) -> dict[int, str]:
    """Return a line for each stage; refuse one that cannot be compiled, if strict."""
    lines = {}
    for stage, recorder in recorders.items():
        reason = recorder.first_reason
        if reason and is_strict:
            raise refused(stage, reason)
        lines[stage] = report_of(stage, reason)
    return lines

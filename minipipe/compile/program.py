"""The compiled schedule of a rank: recorded in one step, and run from then on.

`Compiler` stands behind the handshake of a step. It knows the batch, and decides
whether its schedule runs eagerly, is recorded, or is run by an earlier program. All
three send the same messages, so each rank decides alone.
"""

from __future__ import annotations

import linecache
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from itertools import count
from time import perf_counter
from typing import Any
from weakref import finalize

from minipipe.compile.arrivals import OtherForm, has_run
from minipipe.compile.failures import compute_again, place_of
from minipipe.compile.gradients import GivenGradients, GradientArrays, Seeds
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
from minipipe.compile.sections import Pool, Sections
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
"""Programs kept for one schedule: of whole batches, of a last, smaller one, …"""

MOST_TRIES = 4
"""Programs made in vain, one after the other, until a schedule stays eager."""

_numbers = count()  # of programs: each has its own file name


class Compiler:
    """Runs the schedule of an executor: eagerly, recorded, or compiled.

    Parameters
    ----------
    is_strict : bool
        Whether what cannot be compiled is an error. Otherwise its stage runs eagerly.

    Attributes
    ----------
    program : CompiledRow or None
        That ran last.
    gradients : GradientArrays or None
        Of all programs.
    report : str
        What the last step did, and why.

    Raises
    ------
    ModelError
        Code ``unsupported``, when it meets what it cannot compile.
    """

    def __init__(self, is_strict: bool) -> None:
        self._is_strict = is_strict
        self._programs: dict[Any, CompiledRow | None] = {}
        self._tries: dict[Any, int] = {}  # programs that were made and have not run
        self.gradients: GradientArrays | None = None
        self.program: CompiledRow | None = None
        self.report = "has not run yet"

    @property
    def latest(self) -> CompiledRow | None:
        """The newest program, whether or not it ran last."""
        programs = [program for program in self._programs.values() if program]
        return self.program or (programs[-1] if programs else None)

    def __call__(self, executor: Executor, steps: Sequence[Step]) -> None:
        """Run the schedule of the batch that the executor has."""
        self.program = None
        self.report = reason_for_eager(executor)
        if self.report:
            executor.run_eagerly(steps)
            return
        key = form_of(executor)
        if key not in self._programs:  # its first step fills in parameters and the like
            while len(self._programs) >= MOST_PROGRAMS:
                self._drop(next(iter(self._programs)))
            self._programs[key] = None
            self.report = "runs eagerly in the first step of a kind"
            executor.run_eagerly(steps)
            return
        if self._has_run(executor, steps, key):
            return
        if self._tries.get(key, 0) == MOST_TRIES:
            self.report = "runs eagerly: its layers or parameters change in every step"
            executor.run_eagerly(steps)
            return
        self._tries[key] = self._tries.get(key, 0) + 1
        self._drop(key)
        self._record(executor, steps, key)

    def _has_run(self, executor: Executor, steps: Sequence[Step], key: Any) -> bool:
        """Run the program of a batch; return whether there is one, and it is valid.

        No variable of the caller may refer to it, and to the gradients.
        """
        program = self._programs[key]
        if program is None or not program.holds(self.gradients):
            return False
        if not program.is_ready():
            self.report = "runs eagerly in the step after one that failed"
            executor.run_eagerly(steps)
            return True
        self.program = program
        self.report = program.report
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
        """Forget the program that ran last, if a message of another form came first.

        Returns
        -------
        bool
            Whether the schedule can begin once more: nothing else has been wrong, and
            nothing has run.
        """
        if not isinstance(error, OtherForm) or has_run(executor):
            return False
        for key in [k for k, p in self._programs.items() if p is self.program]:
            self._drop(key)
        self.program = None
        executor.group.activity.position = 0
        return True

    def _drop(self, key: Any) -> None:
        """Forget a program.

        Its references to gradients go, and would hide as many that a user keeps.
        """
        if self._programs.pop(key) is not None and self.gradients is not None:
            self.gradients.renew()

    def _record(self, executor: Executor, steps: Sequence[Step], key: Any) -> None:
        """Run a step eagerly, and make a program of it."""
        self._programs[key] = None
        self.report = "is recorded"
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
        is_trained = not executor.program.is_forward_only
        program.bind(self._gradients_of(recorders) if is_trained else None)
        self._programs[key] = program

    def _gradients_of(self, recorders: dict[int, Recorder]) -> GradientArrays:
        """Return the gradients of all programs, made anew if parameters have changed.

        Then earlier programs are valid no more.
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
    source : str
        That of the whole module.
    sources : dict of int to str
        Of the sections of each compiled stage.
    report : str
    is_whole : bool
        Whether nothing in it computes eagerly.
    is_static : bool
        Whether all weight gradients are arrays that are written in each step.
    given : GivenGradients
    keys : set
        Of receives that the lines of the schedule post themselves.
    """

    def __init__(
        self, executor: Executor, recorders: dict[int, Recorder], is_strict: bool
    ) -> None:
        self._recorders = recorders
        self._trained = mode().is_enabled
        self.report = "\n".join(_reports(recorders, is_strict))
        programs = _stage_programs(executor, recorders)
        row = Row(executor, programs)
        memory = memory_of(row)
        self._arguments = row.arguments
        parts = list({id(program): program for program in programs.values()}.values())
        self._parts = parts
        sources = [program.sections.source for program in parts]
        self.source = "\n\n".join([*sources, "\n".join(memory.lines) + "\n"])
        self.sources: dict[int, str] = {}
        for part, source in zip(parts, sources):
            earlier = self.sources.get(part.stage)
            self.sources[part.stage] = f"{earlier}\n\n{source}" if earlier else source
        self._guards = [recorders[s].guard for s in {part.stage for part in parts}]
        self._attributes = JoinedAttributes(self._attributes_of(executor))
        seeds = Seeds(row.losses, executor.xp)
        names = {"now": perf_counter, "key_of": key_of, "seeds_of": seeds}
        self.given = GivenGradients()
        names |= {"given": self.given}
        self._namespace = {**names, **row.names, "memory": memory}
        self._note_messages(row)
        self._namespace |= memory.arrays
        self._schedule = self._compiled("\n".join(memory.lines), executor)
        self.is_whole = _is_whole(executor, programs)
        self.is_static = all(part.is_static for part in parts)

    def _note_messages(self, row: Row) -> None:
        """Note the channels of a row, and which receives its lines post themselves."""
        self._receives: list[tuple[Any, Any]] = []
        self.keys: set[Any] = set()
        for message in row.messages.values():
            self._namespace |= message.names
            if not message.is_send:
                self._receives.append((message.channel, message.route.value))
                self.keys |= {message.names.get(f"key_{message.value}")} - {None}

    def _attributes_of(self, executor: Executor) -> Iterator[Attributes]:
        """Yield the attributes of the compiled layers, and of the loss among them."""
        for guard in self._guards:
            yield guard.attributes
        last = executor.program.num_stages - 1
        objective = executor.batch.objective
        if objective.has_loss and any(part.stage == last for part in self._parts):
            yield attributes_of_loss(objective.loss)

    @property
    def recorders(self) -> dict[int, Recorder]:
        """Return the recorders, by stage."""
        return self._recorders

    def bind(self, gradients: GradientArrays | None) -> None:
        """Give all functions their arrays; without gradients, if it is forward only."""
        self._gradients = gradients
        if gradients is not None and not gradients.arena.gradients_are_free():
            gradients.renew()
        self._bind_parts(gradients)
        if gradients is not None:  # no variable refers to them now
            gradients.count_references()
            self._version = gradients.version

    def _bind_parts(self, gradients: GradientArrays | None) -> None:
        parts = self._parts
        pool = Pool(max((p.sections.temporary_bytes for p in parts), default=0))
        given: dict[int, tuple[Any, Array]] = {}
        for part in parts:
            recorder = self._recorders[part.stage]
            arrays = [owner.data for owner in recorder.owners]
            leaves = [use.node for use in recorder.uses]
            own: Sequence[Any] = leaves
            if part.is_static and gradients is not None:
                own = gradients.of(leaves)
                for i in part.contributes:
                    given[id(leaves[i])] = leaves[i], own[i]
            found = part.sections.bind(arrays, own, part.num_slots, pool)
            for section, function in found.items():
                self._namespace[part.name_of(section)] = function
            if part.leaves:
                for i, values in enumerate(part.sections.stashes(found)):
                    self._namespace[f"stash{i}_{part.name}"] = values
        self.given.pairs = list(given.values())
        if gradients is not None:
            self.given.flat = gradients.flat([leaf for leaf, _ in self.given.pairs])

    def _compiled(self, text: str, executor: Executor) -> Callable[[Executor], None]:
        file = f"<schedule of rank {executor.group.rank}, {next(_numbers)}>"
        linecache.cache[file] = len(text), None, text.splitlines(keepends=True), file
        finalize(self, linecache.cache.pop, file, None)
        exec(compile(text, file, "exec"), self._namespace)
        function = self._namespace.pop("schedule")
        assert callable(function)
        return function

    def holds(self, gradients: GradientArrays | None) -> bool:
        """Return whether nothing has changed on which the program depends."""
        if gradients is not self._gradients or mode().is_enabled != self._trained:
            return False
        if gradients is not None and not gradients.arena.is_open:
            return False
        for guard in self._guards:
            if not guard.parameters_hold():
                return False
        return self._attributes.still_hold() or self._attributes.hold_again()

    def is_ready(self) -> bool:
        """Return whether no receive is left from a run that has failed.

        Another way of running takes its message; the lines would post it once more.
        """
        return self.keys.isdisjoint(self._namespace.get("posted", ()))

    def run(self, executor: Executor) -> None:
        """Run the schedule of a batch.

        An error in a forward is raised again by the layers, which add their notes.
        """
        if executor.sends:
            executor.finish_sends()  # whose arrays are filled again now
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
            forwards = {p.name_of(section) for p in self._parts for section in sections}
            if called in forwards:
                values = {**self._namespace, **values}
                received = partial(self._received, values)
                compute_again(executor, received, partial(self._pass_on, values))
            raise

    def _received(self, values: Mapping[str, Any], stage: int, k: int) -> Payload:
        """Return what a forward has received, from variables of the schedule."""
        name = self._arguments.inputs[stage, k]
        form = self._recorders[stage].recording_of[k].received
        arrays = [values[f"{name}_{i}"] for i in range(len(form.shapes))]
        return form.payload(arrays)

    def _pass_on(self, values: Mapping[str, Any], stage: int, k: int) -> None:
        """Give a stage what earlier slices have left, from variables of the schedule."""
        recorder = self._recorders[stage]
        for (of_stage, each), names in self._arguments.passed.items():
            if of_stage == stage and each < k:
                arrays = [values[name] for name in names]
                recorder.passed.keep(each, arrays, recorder.recording_of[each].passed)

    def _raise_other_form(self, error: MessageError) -> None:
        """Raise an error again as one of the form of a message, if it is."""
        for channel, value in self._receives:
            message = channel.other
            channel.other = None
            if message is not None:
                raise OtherForm(str(error), value, message) from None


def form_of(executor: Executor) -> Any:
    """Return everything about a batch, besides its numbers, on which lines depend."""
    batch: Batch = executor.batch
    modes = [stage.module.is_training for stage in executor.stages.values()]
    if batch.form is not None:
        return (batch.form, mode().is_enabled, *modes)
    loss = Same(batch.objective.loss)
    found: list[Any] = [
        batch.sizes,
        batch.form_of_inputs,
        loss,
        mode().is_enabled,
        *modes,
    ]
    for payloads in (batch.inputs, batch.objective.targets):
        parts = [payloads.whole] if isinstance(payloads, Cut) else payloads or ()
        found.extend(cache_key(part, part.arrays) for part in parts)
    return tuple(found)


def _stage_programs(
    executor: Executor, recorders: dict[int, Recorder]
) -> dict[tuple[int, int], StageProgram]:
    """Return the programs of stages that could be recorded."""
    found: dict[tuple[int, int], StageProgram] = {}
    leaves = any(action.kind is O for action in executor.actions)
    for stage, recorder in recorders.items():
        if recorder.first_reason:
            continue
        programs: dict[int, StageProgram] = {}
        how = "static" if _is_static(executor, recorder) else "leaves"
        for k, recorded in recorder.recording_of.items():
            if id(recorded) not in programs:
                suffix = suffix_of(len(programs))
                keeps = "values" if leaves else "arrays"
                name = f"{stage}{suffix}"
                sections = Sections(recorded.trace, name, how, keeps=keeps)
                program = StageProgram(stage, suffix, recorded, sections)
                program.is_static = how == "static"
                program.leaves = leaves
                program.contributes = recorded.contributes
                programs[id(recorded)] = program
            found[stage, k] = programs[id(recorded)]
        for program in programs.values():
            own = {k for (s, k), one in found.items() if one is program}
            places = {
                (program.section_of(action.kind), action.microbatch): position
                for position, action in enumerate(executor.actions)
                if action.stage == stage and action.microbatch in own
                if action.kind in SECTIONS
            }
            assign_slots(program, places)
    return found


def _is_whole(executor: Executor, programs: Mapping[Any, StageProgram]) -> bool:
    """Return whether all computations of a schedule are compiled sections, or copies to
    a file.
    """
    for binding in executor.bindings:
        stage, kind, k = binding.action
        if not binding.is_timed:
            continue
        if (stage, k) not in programs or kind not in (*SECTIONS, O, L):
            return False
    return True


def _is_static(executor: Executor, recorder: Recorder) -> bool:
    """Return whether the gradients of a stage are arrays that are written in each step.

    Not if they are taken away in the middle of a step, or if some microbatches give
    other leaves a gradient.
    """
    given = {
        frozenset(recorded.contributes) for recorded in recorder.recordings.values()
    }
    taken = any(hasattr(binding.handler, "then") for binding in executor.bindings)
    return len(given) == 1 and not taken


def _reports(recorders: dict[int, Recorder], is_strict: bool) -> list[str]:
    """Return a line for each stage; refuse one that cannot be compiled, if strict."""
    lines = []
    for stage, recorder in recorders.items():
        reason = recorder.first_reason
        if reason and is_strict:
            raise refused(stage, reason)
        lines.append(report_of(stage, reason))
    return lines

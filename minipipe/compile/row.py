"""A rank's row as straight-line Python, whose computations are compiled sections.

The lines of three instructions of a rank::

    RECV_F    out0_2 = receive_activation(rank, cell[4])
    F         out0_2, = form0.arrays(out0_2)
              forward_1(0, out0_2, out1_2)
    SEND_F    send_activation(rank, cell[6], payload_out1_2)

Every other instruction calls its handler of an eager step.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from types import ModuleType
from typing import Any

import numpy as np

from minipipe.compile.arguments import Arguments
from minipipe.compile.memory import Layout, RowMemory, read_after
from minipipe.compile.messages import Message, until_sent
from minipipe.compile.offloads import Kept, Offloads, with_deletions
from minipipe.compile.recording import Recorded
from minipipe.compile.stage_program import SECTIONS, StageProgram
from minipipe.compile.value_form import Form
from minipipe.core.autograd import backend
from minipipe.core.comm.message import packed_step
from minipipe.core.execution.executor import Binding, Executor, role_of
from minipipe.core.execution.record import Receipt
from minipipe.core.schedules.action import (
    RECV_B,
    RECV_F,
    REDUCE_GRAD,
    SEND_B,
    SEND_F,
    Action,
    B,
    F,
    I,
    O,
    R,
    W,
)
from minipipe.core.values import NOUNS
from minipipe.execution.source import name_of, targets_of, variable_of


class Row:
    """Prints the row of a rank.

    Parameters
    ----------
    executor : Executor
    programs : mapping of (int, int) to StageProgram
        By stage and microbatch. A stage without a program computes as in an eager step.

    Attributes
    ----------
    names : dict of str to object
        The globals of the lines, besides the sections.
    losses : dict of int to dtype
        By microbatch, the dtypes of the losses of this rank.
    arguments : Arguments
    forms : dict of str to Form
        By name, the values whose arrays are allocated once.
    """

    def __init__(
        self, executor: Executor, programs: Mapping[tuple[int, int], StageProgram]
    ) -> None:
        self._executor = executor
        self._programs = programs
        self._bindings = [
            binding
            for binding in executor.bindings
            if not binding.action.kind.declaration.of_rank
        ]
        self._last_stage = executor.program.num_stages - 1
        # The state of a value: "pending", "payload", "arrays" or "channel".
        self._state: dict[Any, str] = {}
        self.losses: dict[int, Any] = {}
        self.arguments = Arguments(executor.program.num_slices, executor.xp)
        self._form_by_value: dict[Any, Any] = {}
        self.forms: dict[str, Form] = {}
        self.messages: dict[str, Message] = {}
        self._routes = {
            b.gives[0][1]: i
            for i, b in enumerate(self._bindings)
            if b.action.kind in (RECV_F, RECV_B)
        }
        self._sends = {
            b.takes[0] for b in self._bindings if b.action.kind in (SEND_F, SEND_B)
        }
        self._counts: dict[int, int] = {}  # microbatches in memory, by stage
        # The times and the losses of a device are read after the row.
        self._now = "now()" if self._is_in_numpy else "mark()"
        self._float = "float" if self._is_in_numpy else ""
        self._local = set[str]()  # arrays that are new in each step, and deleted in it
        self._offloads = Offloads(programs, self.arguments, self._local)
        self.names: dict[str, Any] = {
            "Kept": Kept,
            "cell": [binding.action for binding in self._bindings],
            "carried": [_carried(executor, b.action) for b in self._bindings],
            "Receipt": Receipt,
            "new": tuple.__new__,
            "packed_step": packed_step,
            "asarray": backend.as_array,
            "add": backend.quietly(np.add),  # sums of halves may be infinite
        }

    @property
    def xp(self) -> ModuleType:
        """The array module of the rank."""
        return self._executor.xp

    @property
    def _is_in_numpy(self) -> bool:
        return self.xp is np

    def _is_plain(self, form: Form | None) -> bool:
        """Return whether a value is one array of NumPy that is a whole message."""
        return self._is_in_numpy and form is not None and form.is_plain

    def lines(self) -> list[str]:
        """Return the lines of the function `schedule`."""
        lines = list(self._lines())  # which find the local arrays
        return with_deletions(lines, self._local)

    def _lines(self) -> Iterator[str]:
        yield "def schedule(rank):"
        yield "    batch, ran = rank.batch, rank.record.ran.append"
        yield "    seed, step = batch.seed, batch.training_step"
        yield "    call, activity = batch.step, rank.group.activity"
        yield "    head = packed_step(call)"
        yield "    sent, received = rank.record.sent, rank.record.received"
        stages = {stage for stage, _ in self._programs}
        batch = self._executor.batch
        if 0 in stages:
            yield from self.arguments.of_batch(0, "x", "batch.inputs", batch.inputs)
        if self._last_stage in stages:
            yield "    objective = batch.objective"
        if self._last_stage in stages and batch.objective.has_loss:
            yield "    losses, seeds = objective.losses, seeds_of(objective)"
            given = "y", "objective.targets", batch.objective.targets
            yield from self.arguments.of_batch(self._last_stage, *given)
        has_begun = False  # a gradient all-reduce, which advances between instructions
        first_reduction = next(
            (b for b in self._bindings if b.action.kind is REDUCE_GRAD), None
        )
        for position, binding in enumerate(self._bindings):
            if has_begun:
                yield "    rank.advance()"
            elif position:
                yield f"    activity.position = {position}"
            if binding is first_reduction:
                has_begun = True
                yield from _GIVEN
            for line in self._observed(position, binding):
                yield f"    {line}"
        for name, message in self.messages.items():
            if message.is_send:
                yield from (f"    {line}" for line in until_sent(name))
        if first_reduction is None:
            yield from _GIVEN

    # -- instructions ------------------------------------------------------------------

    def _observed(self, position: int, binding: Binding) -> Iterator[str]:
        """Yield the lines of an instruction, between the calls of observers."""
        observers = list(enumerate(self._executor.observers))
        for i, observer in observers:
            self.names[f"observer{i}"] = observer
            yield f"observer{i}.begin(rank, cell[{position}])"
        yield from self._instruction(position, binding)
        for i, _ in observers:
            yield f"observer{i}.end(rank, cell[{position}])"

    def _instruction(self, position: int, binding: Binding) -> Iterator[str]:
        action = binding.action
        program = self._programs.get((action.stage, action.microbatch))
        if program is not None and action.kind in SECTIONS:
            yield from self._section(program, position, binding)
        elif program is not None and action.kind is O:
            yield self._offloads.collected(program, binding)
            yield from self._handler(position, binding)
        elif action.kind in (SEND_F, SEND_B) and self._is_sent_plainly(binding):
            message = self._message(binding, self._form_by_value[binding.takes[0]])
            yield f"sent[carried[{position}]] = now()"
            yield from message.start()
        elif action.kind in (RECV_F, RECV_B) and (form := self._plain_form(action)):
            value = _sent_or_received(binding)
            yield from self._message(binding, form).start()
            self._state[value], self._form_by_value[value] = "channel", form
        else:
            yield from self._handler(position, binding)

    def _section(
        self, program: StageProgram, position: int, binding: Binding
    ) -> Iterator[str]:
        """Yield the lines of a computation of a compiled stage."""
        stage, kind, k = binding.action
        recorded = program.recorded
        is_forward = kind is F
        roles = {role_of(given): given for _, given in binding.gives}
        value = roles.get("x" if is_forward else "g")
        result = recorded.result if is_forward else recorded.gradient
        section = program.section_of(kind)
        yield from self._taken_arrays(binding, recorded)
        yield from self._offloads.loaded(program, binding)
        out = self._out(program, binding.action, value)
        is_local = not self._local.isdisjoint(out)
        if is_local or self._is_output(program, binding.action):
            assert result is not None
            yield f"{', '.join(out)}, = {self._form(result)}.new(rank.xp)"
        further = self._further(program, section, k)
        results = [*(out or ["None"] * recorded.num_inputs), *further]
        if is_forward:
            self.arguments.results[stage, k] = results
            self.arguments.passed[stage, k] = further
        call = self.arguments.call(program, section, k, results)
        is_sent = value in self._sends and self._is_plain(result)
        if is_sent and not is_local:
            yield from until_sent(f"send_{variable_of(value)}")
        yield f"begun = {self._now}"
        if is_forward and result is None:
            yield f"losses[{k}] = {self._float}({call})"
            self.losses[k] = recorded.loss_dtype
        else:
            yield from _assigned(out, result, call)
        yield f"ran((begun, {self._now}, {self._held(binding)}))"
        if not is_forward:
            yield from self.arguments.added(stage, k, further)
        if value is not None and out:
            self._state[value], self._form_by_value[value] = "arrays", result
        yield from self._behind_section(position, binding, section)
        yield from self._left_for_user(program, binding.action, out)

    def _is_output(self, program: StageProgram, action: Action) -> bool:
        """Return whether an action returns outputs to the user."""
        is_last = action.kind is F and action.stage == self._last_stage
        return is_last and program.recorded.result is not None

    def _out(self, program: StageProgram, action: Action, value: Any) -> list[str]:
        """Return the names of the results of a section, and note their memory.

        Results that outlive the step do not lie in arrays of the program.
        """
        recorded = program.recorded
        is_forward = action.kind is F
        if is_forward and recorded.result is None:
            return ["loss"]
        if action.kind in (R, W) or (not is_forward and recorded.gradient is None):
            return []
        result = recorded.result if is_forward else recorded.gradient
        assert result is not None
        base = self._name_of_result(action, value)
        names = result.names(base)
        if is_forward and self._offloads.has_result(program, value):
            self._local.update(names)
        elif not self._is_output(program, action):
            self.forms[base] = result
        return names

    def _left_for_user(
        self, program: StageProgram, action: Action, out: Sequence[str]
    ) -> Iterator[str]:
        """Yield the line that keeps outputs, or gradients of inputs, for the user."""
        (stage, kind, k), recorded = action, program.recorded
        payload = f".payload([{', '.join(out)}])"
        if self._is_output(program, action):
            yield f"objective.outputs[{k}] = {self._form(recorded.outputs)}{payload}"
        elif kind in (B, I) and stage == 0 and recorded.gradient is not None:
            value = f"{self._form(recorded.gradient)}{payload}"
            yield f"rank.record.input_gradients[{k}] = {value}"

    def _name_of_result(self, action: Action, value: Any) -> str:
        """Return the name of the result of a section, also if no action takes it."""
        stage, kind, k = action
        if value is not None:
            return variable_of(value)
        if kind is F:
            return f"out{stage}_{k}"
        return f"g_in{stage}_{k}"

    def _taken_arrays(self, binding: Binding, recorded: Recorded) -> Iterator[str]:
        """Yield the lines that name the arrays of the values that an action takes."""
        stage, kind, k = binding.action
        if kind is F:
            yield from self.arguments.read(stage, k)
        taken = {role_of(value): value for value in binding.takes}
        for role, form in (("x", recorded.received), ("g", recorded.output_gradient)):
            if role in taken:
                assert form is not None
                yield from self._as_arrays(taken[role], form)
        if kind is F and "x" in taken:
            name = self.arguments.inputs[stage, k] = variable_of(taken["x"])
            if self._programs[stage, k].takes_away("x"):
                self._local.update(recorded.received.names(name))
        if "g" in taken:  # a later W may read it again
            self.arguments.gradients[stage, k] = variable_of(taken["g"])

    def _behind_section(
        self, position: int, binding: Binding, section: str
    ) -> Iterator[str]:
        """Yield the line that calls the part of a handler after a section."""
        if section in ("backward", "backward_weight"):
            self.arguments.begun.add(binding.action.stage)
        if then := getattr(binding.handler, "then", None):
            name = f"after_{binding.action.kind}"
            self.names[name] = then
            yield f"{name}(rank, cell[{position}])"

    def _further(self, program: StageProgram, section: str, k: int) -> list[str]:
        """Return the names of the results of a section for other slices."""
        form = program.further(section)
        name = f"passed{program.stage}_{k}"
        if section != "forward":
            name = f"grad_{name}"
        if form.shapes:
            self.forms[name] = form
        return form.names(name)

    # -- channels ----------------------------------------------------------------------

    def _is_sent_plainly(self, binding: Binding) -> bool:
        """Return whether a SEND sends one array that a section has written."""
        value = binding.takes[0]
        if f"{variable_of(value)}_0" in self._local:
            return False
        return self._state.get(value) == "arrays" and self._is_plain(
            self._form_by_value[value]
        )

    def _plain_form(self, action: Action) -> Form | None:
        """Return the form of the value of a RECV, if it is one array for a section."""
        program = self._programs.get((action.stage, action.microbatch))
        is_forward = action.kind is RECV_F
        if self._executor.observers:  # they observe the handler
            return None
        if program is None or (is_forward and program.takes_away("x")):
            return None
        form = program.recorded.output_gradient
        if is_forward:
            form = program.recorded.received
        if not self._is_plain(form):
            return None
        return form

    def _message(self, binding: Binding, form: Form) -> Message:
        """Return the message of a SEND or a RECV."""
        is_send = binding.action.kind in (SEND_F, SEND_B)
        value = _sent_or_received(binding)
        route = self._executor.routes[binding.action]
        group = self._executor.group
        message = Message(variable_of(value), is_send, form, route, group)
        self.messages[message.name] = message
        return message

    def read_after(self) -> dict[str, list[str]]:
        """Return, by sent array, the received ones that prove that it has been read."""
        routes = self._executor.routes
        names = {}
        for binding in self._bindings:
            if binding.action in routes:
                name = variable_of(_sent_or_received(binding))
                names[routes[binding.action].value] = f"{name}_0"
        return read_after(self._executor, names)

    def _handler(self, position: int, binding: Binding) -> Iterator[str]:
        """Yield the lines that call the handler of an instruction."""
        name = name_of(binding)
        self.names[name] = binding.handler
        arguments = ["rank", f"cell[{position}]"]
        for value in binding.takes:
            yield from self._as_payload(value)
            arguments.append(variable_of(value))
        call = f"{name}({', '.join(arguments)})"
        targets = targets_of(binding)
        held = self._held(binding)
        if binding.is_timed:
            yield f"begun = {self._now}"
            yield f"{targets}{call}"
            yield f"ran((begun, {self._now}, {held}))"
        else:
            yield f"{targets}{call}"
        state = "payload"
        if binding.handler.__annotations__.get("return") == "Pending":
            state = "pending"
        for _, value in binding.gives:
            self._state[value] = state
        if binding.takes:
            yield f"del {', '.join(map(variable_of, binding.takes))}"

    # -- values ------------------------------------------------------------------------

    def _as_arrays(self, value: Any, form: Form) -> Iterator[str]:
        """Yield the lines that name the arrays of a value."""
        state = self._state.get(value, "arrays")
        name = variable_of(value)
        if state == "channel":
            route = self._routes[value]
            yield "awaited = now()"
            message = self.messages[f"receive_{name}"]
            yield from message.wait()
            receipt = f"awaited, now(), {message.channel.array.nbytes}"
            yield f"received[carried[{route}]] = new(Receipt, ({receipt}))"
            state = "arrays"
        if state == "pending":
            yield f"{name} = {name}.wait()"
        if state != "arrays":
            names = ", ".join(f"{name}_{i}" for i in range(len(form.shapes)))
            arguments = name
            if value in self._routes:
                arguments += f", carried[{self._routes[value]}]"
            yield f"{names}, = {self._form(form)}.arrays({arguments})"
            yield f"del {name}"
        self._state[value] = "arrays"

    def _as_payload(self, value: Any) -> Iterator[str]:
        """Yield the lines that make a payload of a value, as handlers take it."""
        state = self._state.get(value, "payload")
        name = variable_of(value)
        if state == "channel":
            yield from self._as_arrays(value, self._form_by_value[value])
            state = "arrays"
        if state == "pending":
            yield f"{name} = {name}.wait()"
        elif state == "arrays":
            form = self._form_by_value[value]
            names = ", ".join(form.names(name))
            yield f"{name} = {self._form(form)}.payload([{names}])"
        self._state[value] = "payload"

    def _form(self, form: Form) -> str:
        """Return the name of a form."""
        for name, known in self.names.items():
            if isinstance(known, Form) and known == form:
                return name
        name = f"form{sum(isinstance(x, Form) for x in self.names.values())}"
        self.names[name] = form
        return name

    def _held(self, binding: Binding) -> int:
        """Return the number of microbatches in memory of a stage after an action."""
        stage = binding.action.stage
        begun = sum(_is_held(value) for _, value in binding.gives)
        ended = sum(map(_is_held, binding.takes))
        self._counts[stage] = self._counts.get(stage, 0) + begun - ended
        return self._counts[stage]


_GIVEN = """\
    for leaf, gradient in given.pairs:
        leaf.grad = gradient""".splitlines()
"""Lines after all sections that write gradients, or before the first gradient
all-reduce: the other sections write into the same arrays."""


def _assigned(names: Sequence[str], form: Form | None, call: str) -> Iterator[str]:
    """Yield the lines of a call, and of the results that it returns."""
    returned = []
    if form is not None:
        returned = [name for name, shape in zip(names, form.shapes) if shape == ()]
    if returned:
        call = f"{', '.join(returned)} = {call}"
    yield call
    yield from (f"{name} = asarray({name})" for name in returned)


def memory_of(row: Row) -> RowMemory:
    """Print a row, and return it with the memory of its arrays."""
    lines = list(row.lines())
    layouts = dict[str, Layout]()
    for name, form in row.forms.items():
        for array, shape, dtype in zip(form.names(name), form.shapes, form.dtypes):
            if shape is not None:
                layouts[array] = shape, dtype, row.xp
    channels = {name: each.channel for name, each in row.messages.items()}
    return RowMemory(lines, layouts, channels, row.read_after())


def _sent_or_received(binding: Binding) -> Any:
    """Return the value of a SEND or a RECV."""
    return [*binding.takes, *(each for _, each in binding.gives)][0]


def _carried(executor: Executor, action: Action) -> Any:
    """Return the value of a message; None for another action."""
    if action not in executor.routes:
        return None
    return executor.routes[action].value


def _is_held(value: Any) -> bool:
    """Return whether a value is a graph in memory."""
    noun = NOUNS[value.name]
    return noun.keeps_weights and not noun.is_away

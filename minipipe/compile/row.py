"""A rank's row as Python in straight lines, whose computations are compiled sections.

What is printed for three instructions of a rank::

    RECV_F    out0_2 = receive_activation(rank, cell[4])
    F         out0_2, = form0.arrays(out0_2)
              forward_1(0, out0_2, out1_2)
    SEND_F    send_activation(rank, cell[6], payload_out1_2)

Every other instruction calls the handler that runs it in an eager step.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from types import ModuleType
from typing import Any

import numpy as np

from minipipe.compile.arguments import Arguments
from minipipe.compile.memory import Layout, RowMemory, read_after
from minipipe.compile.messages import Message, sent
from minipipe.compile.offloads import Kept, with_deletions
from minipipe.compile.recording import Recorded
from minipipe.compile.stage_program import SECTIONS, StageProgram
from minipipe.compile.value_form import Form
from minipipe.core.autograd import backend
from minipipe.core.comm.message import packed_step
from minipipe.core.execution.executor import Binding, Executor
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
        To which the lines refer, besides the sections.
    losses : dict of int to dtype
        By microbatch, of those that this rank computes.
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
        self._state: dict[Any, str] = {}  # of a value: "pending", "payload" or "arrays"
        self.losses: dict[int, Any] = {}
        self.arguments = Arguments(executor.program.num_slices, executor.xp)
        self._form_by_value: dict[Any, Any] = {}
        self.forms: dict[str, Form] = {}  # of the arrays in which results are kept
        self.messages: dict[str, Message] = {}
        self._routes = {
            b.gives[0][1]: i
            for i, b in enumerate(self._bindings)
            if b.action.kind in (RECV_F, RECV_B)
        }
        self._sends = {
            b.takes[0] for b in self._bindings if b.action.kind in (SEND_F, SEND_B)
        }
        self._counts: dict[int, int] = {}  # by stage, the microbatches that it holds
        self._local = set[str]()  # arrays that are new in each step, and deleted in it
        self.names: dict[str, Any] = {
            "Kept": Kept,
            "cell": [binding.action for binding in self._bindings],
            "carried": [_carried(executor, b.action) for b in self._bindings],
            "Receipt": Receipt,
            "new": tuple.__new__,
            "packed_step": packed_step,
            "asarray": backend.as_array,
            "add": backend.quietly(np.add),  # halves, whose sum may be infinite
        }

    @property
    def xp(self) -> ModuleType:
        """The array module of the rank."""
        return self._executor.xp

    @property
    def _is_in_numpy(self) -> bool:
        return self.xp is np

    def _is_plain(self, form: Form | None) -> bool:
        """Return whether a value is one array of NumPy's that travels as it is."""
        return self._is_in_numpy and form is not None and form.is_plain

    def lines(self) -> list[str]:
        """Return the lines of the function `schedule`."""
        lines = list(self._lines())  # which find the local arrays
        return with_deletions(lines, self._local) if self._local else lines

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
            yield from self.arguments.of_batch("x", "batch.inputs", batch.inputs)
        if self._last_stage in stages:
            yield "    objective = batch.objective"
        if self._last_stage in stages and batch.objective.has_loss:
            yield "    losses, seeds = objective.losses, seeds_of(objective)"
            targets = batch.objective.targets
            yield from self.arguments.of_batch("y", "objective.targets", targets)
        has_begun = False  # a sum, which goes on between the instructions
        first_sum = next(
            (b for b in self._bindings if b.action.kind is REDUCE_GRAD), None
        )
        for position, binding in enumerate(self._bindings):
            if has_begun:
                yield "    rank.advance()"
            elif position:
                yield f"    activity.position = {position}"
            if binding is first_sum:
                has_begun = True
                yield from _GIVEN
            for line in self._observed(position, binding):
                yield f"    {line}"
        for name, message in self.messages.items():
            if message.is_send:
                yield from (f"    {line}" for line in sent(name))
        if first_sum is None:
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
            yield self._taken_out(program, binding)
            yield from self._handler(position, binding)
        elif action.kind in (SEND_F, SEND_B) and self._is_sent_plainly(binding):
            message = self._message(binding, self._form_by_value[binding.takes[0]])
            yield f"sent[carried[{position}]] = now()"
            yield from message.start()
        elif action.kind in (RECV_F, RECV_B) and (form := self._plain_form(action)):
            value = binding.gives[0][1]
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
        own = self._given(position).get("x" if is_forward else "g")
        result = recorded.result if is_forward else recorded.gradient
        section = program.section_of(kind)
        yield from self._taken_arrays(binding, recorded)
        yield from self._put_back(program, binding)
        out = self._out(program, binding.action, own)
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
        is_sent = own in self._sends and self._is_plain(result)
        if is_sent and not is_local:
            yield from sent(f"send_{variable_of(own)}")
        yield "begun = now()"
        if is_forward and result is None:
            yield f"losses[{k}] = float({call})"
            self.losses[k] = recorded.loss_dtype
        else:
            yield from _assigned(out, result, call)
        yield f"ran((begun, now(), {self._held(binding)}))"
        if not is_forward:
            yield from self.arguments.added(stage, k, further)
        if own is not None and out:
            self._state[own], self._form_by_value[own] = "arrays", result
        yield from self._behind_section(position, binding, section)
        yield from self._left_for_user(program, binding.action, out)

    def _is_output(self, program: StageProgram, action: Action) -> bool:
        """Return whether an action gives outputs for the user."""
        is_last = action.kind is F and action.stage == self._last_stage
        return is_last and program.recorded.result is not None

    def _out(self, program: StageProgram, action: Action, value: Any) -> list[str]:
        """Return the names of the results of a section, and note where they lie: not in
        arrays of the program, if they are kept longer.
        """
        recorded = program.recorded
        is_forward = action.kind is F
        result = recorded.result if is_forward else recorded.gradient
        if result is None or action.kind in (R, W):
            return ["loss"] if is_forward else []
        base = self._name_of_result(action, value)
        names = result.names(base)
        if is_forward and self._leaves(program, value):
            self._local.update(names)
        elif not self._is_output(program, action):
            self.forms[base] = result
        return names

    def _left_for_user(
        self, program: StageProgram, action: Action, out: Sequence[str]
    ) -> Iterator[str]:
        """Yield the line that keeps outputs, or gradients of inputs."""
        (stage, kind, k), recorded = action, program.recorded
        payload = f".payload([{', '.join(out)}])"
        if self._is_output(program, action):
            yield f"objective.outputs[{k}] = {self._form(recorded.outputs)}{payload}"
        elif kind in (B, I) and stage == 0 and recorded.gradient is not None:
            value = f"{self._form(recorded.gradient)}{payload}"
            yield f"rank.record.input_gradients[{k}] = {value}"

    def _name_of_result(self, action: Action, value: Any) -> str:
        """Return the name of what a section gives, also if nobody takes it."""
        stage, kind, k = action
        if value is None:
            return f"{'out' if kind is F else 'g_in'}{stage}_{k}"
        return variable_of(value)

    def _taken_arrays(self, binding: Binding, recorded: Recorded) -> Iterator[str]:
        """Yield lines behind which the values that an action takes have names."""
        stage, kind, k = binding.action
        taken = self._taken(binding)
        for role, form in (("x", recorded.received), ("g", recorded.came)):
            if role in taken:
                assert form is not None
                yield from self._as_arrays(taken[role], form)
        if kind is F and "x" in taken:
            name = self.arguments.inputs[stage, k] = variable_of(taken["x"])
            if self._programs[stage, k].takes_away("x"):
                self._local.update(recorded.received.names(name))
        if "g" in taken:  # a later W may read it once more
            self.arguments.gradients[stage, k] = variable_of(taken["g"])

    def _behind_section(
        self, position: int, binding: Binding, section: str
    ) -> Iterator[str]:
        """Yield the line of what a handler does behind a section."""
        if section in ("backward", "backward_weight"):
            self.arguments.begun.add(binding.action.stage)
        if then := getattr(binding.handler, "then", None):
            name = f"after_{binding.action.kind}"
            self.names[name] = then
            yield f"{name}(rank, cell[{position}])"

    # -- values that are away ----------------------------------------------------------

    def _leaves(self, program: StageProgram, value: Any) -> bool:
        """Return whether the result of a forward leaves the memory, for the stage itself
        or for the next one, if that is on this rank.
        """
        is_neighbours = value is not None and value.name == "x"
        place = (value.stage, value.microbatch) if is_neighbours else None
        following = self._programs.get(place) if place else None
        is_read = following is not None and following.takes_away("x")
        return is_read or program.takes_away("y")

    def _further(self, program: StageProgram, section: str, k: int) -> list[str]:
        """Return the names of the results of a section for other slices."""
        form = program.further(section)
        gradient = "" if section == "forward" else "grad_"
        name = f"{gradient}passed{program.stage}_{k}"
        if form.shapes:
            self.forms[name] = form
        return form.names(name)

    def _away(self, program: StageProgram, k: int) -> dict[str, str]:
        """Return the arrays of the row that are away with the values of sections."""
        names = {p: self.arguments.of(p, program, k) for p in program.read_later}
        return {p: name for p, name in names.items() if name in self._local}

    def _taken_out(self, program: StageProgram, binding: Binding) -> str:
        """Return the line that takes the values of a microbatch for its O."""
        k = binding.action.microbatch
        name = variable_of(binding.takes[0])
        slots = [
            f"(stash{i}_{program.name}, {program.slots[k][i]})"
            for i, (first, _) in enumerate(program.sections.lifetimes)
            if first == "forward"
        ]
        away = self._away(program, k).items()
        arrays = ", ".join(f'"{parameter}": {array}' for parameter, array in away)
        return f"{name} = Kept({{{arrays}}}, [{', '.join(slots)}])"

    def _put_back(self, program: StageProgram, binding: Binding) -> Iterator[str]:
        """Yield lines that wait for the values of a microbatch after its L."""
        for value in binding.takes:
            if value.name == "back":
                name = variable_of(value)
                arrays = self._away(program, value.microbatch).values()
                left = f"{', '.join(arrays)}, = " if arrays else ""
                yield f"{left}{name}.wait().arrays.values()"
                yield f"del {name}"

    # -- channels ----------------------------------------------------------------------

    def _is_sent_plainly(self, binding: Binding) -> bool:
        """Return whether a SEND sends one array, which a section has written."""
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
        if self._executor.observers:  # which see the handler
            return None
        if program is None or (is_forward and program.takes_away("x")):
            return None
        form = program.recorded.received if is_forward else program.recorded.came
        return form if self._is_plain(form) else None

    def _message(self, binding: Binding, form: Form) -> Message:
        """Return the message of a SEND or a RECV."""
        is_send = binding.action.kind in (SEND_F, SEND_B)
        value = binding.takes[0] if is_send else binding.gives[0][1]
        route = self._executor.routes[binding.action]
        group = self._executor.group
        message = Message(variable_of(value), is_send, form, route, group)
        self.messages[message.name] = message
        return message

    def read_after(self) -> dict[str, list[str]]:
        """Return the received arrays after which each sent one has been read."""
        routes = self._executor.routes
        names = {}
        for binding in self._bindings:
            if binding.action in routes:
                value = [*binding.takes, *(each for _, each in binding.gives)][0]
                names[routes[binding.action].value] = f"{variable_of(value)}_0"
        return read_after(self._executor, names)

    def _handler(self, position: int, binding: Binding) -> Iterator[str]:
        """Yield the line of an instruction that its eager handler runs."""
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
            yield "begun = now()"
            yield f"{targets}{call}"
            yield f"ran((begun, now(), {held}))"
        else:
            yield f"{targets}{call}"
        is_pending = binding.handler.__annotations__.get("return") == "Pending"
        for _, value in binding.gives:
            self._state[value] = "pending" if is_pending else "payload"
        if binding.takes:
            yield f"del {', '.join(map(variable_of, binding.takes))}"

    # -- values ------------------------------------------------------------------------

    def _taken(self, binding: Binding) -> dict[str, Any]:
        return {_role(value): value for value in binding.takes}

    def _given(self, position: int) -> dict[str, Any]:
        return {_role(value): value for _, value in self._bindings[position].gives}

    def _as_arrays(self, value: Any, form: Form) -> Iterator[str]:
        """Yield lines behind which the arrays of a value have names."""
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
            given = name
            if value in self._routes:
                given += f", carried[{self._routes[value]}]"
            yield f"{names}, = {self._form(form)}.arrays({given})"
            yield f"del {name}"
        self._state[value] = "arrays"

    def _as_payload(self, value: Any) -> Iterator[str]:
        """Yield lines behind which a value has the form in which handlers take it."""
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
        """Return how many microbatches the stage holds after an action."""
        stage = binding.action.stage
        given = sum(_is_held(value) for _, value in binding.gives)
        taken = sum(map(_is_held, binding.takes))
        self._counts[stage] = self._counts.get(stage, 0) + given - taken
        return self._counts[stage]


_GIVEN = """\
    for leaf, gradient in given.pairs:
        leaf.grad = gradient""".splitlines()
"""Behind all sections that write gradients, or before a sum takes the first ones; the
other sections write into these arrays too."""


def _assigned(names: Sequence[str], form: Form | None, call: str) -> Iterator[str]:
    """Yield the line of a call, and those that keep the results that it returns."""
    shapes = () if form is None else form.shapes
    returned = [name for name, shape in zip(names, shapes) if shape == ()]
    yield f"{', '.join(returned)} = {call}" if returned else call
    yield from (f"{name} = asarray({name})" for name in returned)


def memory_of(row: Row) -> RowMemory:
    """Print a row, and return it with the memory of its arrays."""
    lines = list(row.lines())
    layouts = dict[str, Layout]()
    for name, form in row.forms.items():
        for own, shape, dtype in zip(form.names(name), form.shapes, form.dtypes):
            if shape is not None:
                layouts[own] = shape, dtype, row.xp
    channels = {name: each.channel for name, each in row.messages.items()}
    return RowMemory(lines, layouts, channels, row.read_after())


def _carried(executor: Executor, action: Action) -> Any:
    """Return the value of a message, as records know it; None for another action."""
    route = executor.routes.get(action)
    return None if route is None else route.value


def _is_held(value: Any) -> bool:
    """Return whether a value is a graph in memory."""
    noun = NOUNS[value.name]
    return noun.keeps_weights and not noun.is_away


def _role(value: Any) -> str:
    return {"out": "x", "grad out": "g"}.get(value.name, value.name)

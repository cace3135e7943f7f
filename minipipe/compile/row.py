"""A rank's row as Python in straight lines, whose computations are compiled sections.

What is printed for three instructions of a rank::

    RECV_F    out0_2 = receive_activation(rank, cell[4])
    F         out0_2, = arrays_of(out0_2, form_out0)
              forward_1(0, out0_2, out1_2)
    SEND_F    send_activation(rank, cell[6], payload_out1_2)

Every other instruction calls the handler that runs it in an eager step.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np

from minipipe.autograd.backend import Array
from minipipe.comm import ProcessGroup
from minipipe.compile.arrivals import arrays_of
from minipipe.compile.recording import Form, Recorded
from minipipe.core.values import NOUNS
from minipipe.errors import MessageError
from minipipe.execution.executor import HANDLERS, Binding, Executor, Route
from minipipe.execution.offloading import recompute
from minipipe.execution.payload import Payload
from minipipe.execution.record import Receipt
from minipipe.execution.samples import Cut
from minipipe.schedules.action import (
    ActionKind,
    RECV_B,
    RECV_F,
    SEND_B,
    SEND_F,
    Action,
    B,
    F,
    I,
    R,
    W,
)

SECTIONS = {
    F: "forward",
    R: "recompute",
    B: "backward",
    I: "backward_input",
    W: "backward_weight",
}
"""The section of a stage that an action runs."""


class Channel(NamedTuple):
    """A message of every step.

    Attributes
    ----------
    array : str
        The name of its array.
    is_send : bool
    form : Form
    route : Route
    """

    array: str
    is_send: bool
    form: Form
    route: Route

    def opened(self, group: ProcessGroup) -> Any:
        """Return the channel itself."""
        (shape,), (dtype,) = self.form.shapes, self.form.dtypes
        assert shape is not None  # it is plain
        make = group.send_channel if self.is_send else group.receive_channel
        return make(shape, dtype, self.route.peer, self.route.tag, self.route.words)


@dataclass
class StageProgram:
    """The compiled sections of a stage, for one kind of its microbatches.

    Attributes
    ----------
    stage : int
    suffix : str
        Behind the names of its functions.
    recorded : Recorded
    sections : Sections
    slots : dict of int to tuple of int
        By microbatch, its slot in each class of kept arrays.
    num_slots : list of int
    is_static : bool
        Whether weight gradients are arrays that exist before a step.
    contributes : list of int
        The uses of parameters that get a gradient.
    """

    stage: int
    suffix: str
    recorded: Recorded
    sections: Any
    slots: dict[int, tuple[int, ...]] = field(default_factory=dict)
    num_slots: list[int] = field(default_factory=list)
    is_static: bool = False
    contributes: list[int] = field(default_factory=list)

    def name_of(self, section: str) -> str:
        """Return the name of the function of a section."""
        return f"{section}_{self.stage}{self.suffix}"

    def section_of(self, kind: ActionKind) -> str:
        """Return the section that an action of this kind runs.

        The I of a frozen stage, without a W, is a whole backward.
        """
        section = SECTIONS[kind]
        if section in self.sections.parameters:
            return section
        return "backward"


def assign_slots(program: StageProgram, places: Mapping[tuple[str, int], int]) -> None:
    """Give each microbatch its slots: one is used again once its last section has run.

    Parameters
    ----------
    program : StageProgram
    places : mapping of (str, int) to int
        By section and microbatch, the position in the row.
    """
    microbatches = sorted({k for _, k in places})
    found: dict[int, list[int]] = {k: [] for k in microbatches}
    program.num_slots = []
    for first, last in program.sections.lifetimes:
        order = sorted(microbatches, key=lambda k: places[first, k])
        ends: list[int] = []
        for k in order:
            free = (i for i, end in enumerate(ends) if end < places[first, k])
            slot = next(free, len(ends))
            ends[slot : slot + 1] = [places[last, k]]
            found[k].append(slot)
        program.num_slots.append(len(ends))
    program.slots = {k: tuple(slots) for k, slots in found.items()}


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
    inputs : dict of (int, int) to str
        By stage and microbatch, the name of the value that it gets.
    forms : dict of str to Form
        By name, the values whose arrays are allocated once.
    """

    def __init__(
        self, executor: Executor, programs: Mapping[tuple[int, int], StageProgram]
    ) -> None:
        self._executor, self._programs = executor, programs
        self._bindings = [
            binding
            for binding in executor.bindings
            if not binding.action.kind.declaration.of_rank
        ]
        self._last_stage = executor.program.num_stages - 1
        self._reduces = any(b.action.kind == "REDUCE_GRAD" for b in self._bindings)
        self._state: dict[Any, str] = {}  # of a value: "pending", "payload" or "arrays"
        self._begun: set[int] = set()  # stages that have given a weight gradient
        self.losses: dict[int, Any] = {}
        self.inputs: dict[tuple[int, int], str] = {}  # by stage and microbatch
        self._outputs: dict[tuple[int, int], str] = {}
        self._gradients: dict[tuple[int, int], str] = {}  # that came back
        self._batch: dict[tuple[str, int], list[str]] = {}  # names of its arrays
        self._form_by_value: dict[Any, Any] = {}
        self.forms: dict[str, Form] = {}  # of the arrays in which results are kept
        self.channels: dict[str, Channel] = {}
        self._routes = {
            b.gives[0][1]: i
            for i, b in enumerate(self._bindings)
            if b.action.kind in (RECV_F, RECV_B)
        }
        self._sends = {
            b.takes[0] for b in self._bindings if b.action.kind in (SEND_F, SEND_B)
        }
        self._counts: dict[int, int] = {}  # by stage, the microbatches that it holds
        self.names: dict[str, Any] = {
            "arrays_of": arrays_of,
            "cell": [binding.action for binding in self._bindings],
            "carried": [_carried(executor, b.action) for b in self._bindings],
            "Receipt": Receipt,
            "asarray": np.asarray,
        }

    def lines(self) -> Iterator[str]:
        """Yield the lines of the function `schedule`."""
        yield "def schedule(rank):"
        yield "    batch, ran = rank.batch, rank.record.ran.append"
        yield "    seed, step = batch.seed, batch.training_step"
        yield "    call, activity = batch.step, rank.group.activity"
        yield "    sent, received = rank.record.sent, rank.record.received"
        stages = {stage for stage, _ in self._programs}
        batch = self._executor.batch
        if 0 in stages:
            yield from self._given_arrays("x", "batch.inputs", batch.inputs)
        if self._last_stage in stages:
            yield "    objective = batch.objective"
        if self._last_stage in stages and batch.objective.has_loss:
            yield "    losses, seeds = objective.losses, seeds_of(objective)"
            targets = batch.objective.targets
            yield from self._given_arrays("y", "objective.targets", targets)
        for position, binding in enumerate(self._bindings):
            if position:
                advance = f"activity.position = {position}"
                yield f"    {'rank.advance()' if self._reduces else advance}"
            for line in self._instruction(position, binding):
                yield f"    {line}"
        for name, channel in self.channels.items():
            if channel.is_send:
                yield f"    {name}.wait()"
        yield "    give_gradients()"

    def _given_arrays(self, letter: str, given: str, parts: Any) -> Iterator[str]:
        """Yield the lines that name the arrays of a batch, and remember its rows."""
        if isinstance(parts, Cut):
            names = [f"{letter}{i}" for i in range(len(parts.whole.arrays))]
            names = [letter] if len(names) == 1 else names
            yield f"    {', '.join(names)}, = {given}.whole.arrays"
            whole = parts.whole.replicated
            for k, rows in enumerate(parts.rows):
                own = [f"{name}[{rows.start}:{rows.stop}]" for name in names]
                own = [name if i in whole else own[i] for i, name in enumerate(names)]
                self._batch[letter, k] = own
            return
        yield f"    {letter} = [each.arrays for each in {given}]"
        for k, part in enumerate(parts):
            own = [f"{letter}[{k}][{i}]" for i in range(len(part.arrays))]
            self._batch[letter, k] = own

    # -- instructions ------------------------------------------------------------------

    def _instruction(self, position: int, binding: Binding) -> Iterator[str]:
        action = binding.action
        program = self._programs.get((action.stage, action.microbatch))
        if program is not None and action.kind in SECTIONS:
            yield from self._section(program, position, binding)
        elif action.kind in (SEND_F, SEND_B) and self._is_sent_plainly(binding):
            name = self._channel(binding, self._form_by_value[binding.takes[0]])
            yield f"sent[carried[{position}]] = now()"
            yield f"{name}.start(call)"
        elif action.kind in (RECV_F, RECV_B) and (form := self._plain_form(action)):
            value = binding.gives[0][1]
            yield f"{self._channel(binding, form)}.start(call)"
            self._state[value], self._form_by_value[value] = "channel", form
        else:
            yield from self._handler(position, binding)

    def _section(
        self, program: StageProgram, position: int, binding: Binding
    ) -> Iterator[str]:
        """Yield the lines of a computation of a compiled stage."""
        stage, kind, k = binding.action
        recorded, is_forward = program.recorded, kind is F
        taken, given = self._taken(binding), self._given(position)
        for role, form in (("x", recorded.received), ("g", recorded.came)):
            if role in taken:
                assert form is not None
                yield from self._as_arrays(taken[role], form)
        if is_forward and "x" in taken:
            self.inputs[stage, k] = _name(taken["x"])
        if "g" in taken:  # a later W may read it once more
            self._gradients[stage, k] = _name(taken["g"])
        section = program.section_of(kind)
        is_loss = is_forward and recorded.result is None
        is_output = is_forward and stage == self._last_stage and not is_loss
        own, out = given.get("x" if is_forward else "g"), list[str]()
        result = recorded.result if is_forward else recorded.gradient
        if kind not in (R, W) and result is not None:
            base = (
                _name(own) if own else f"{'out' if is_forward else 'g_in'}{stage}_{k}"
            )
            out = result.names(base)
            if is_output:  # not in arrays of the program: the user keeps them
                yield f"{', '.join(out)}, = {self._form(result)}.new()"
            else:
                self.forms[base] = result
            if is_forward:
                self._outputs[stage, k] = base
        arguments = []
        for parameter in program.sections.parameters[section]:
            arguments.append(self._argument(parameter, program, k, out))
        call = f"{program.name_of(section)}({', '.join(arguments)})"
        if own in self._sends and result is not None and result.is_plain:
            yield f"send_{_name(own)}.wait()"
        yield "begun = now()"
        if is_loss:
            yield f"losses[{k}] = {call}.item()"
            self.losses[k] = recorded.loss_dtype
        else:
            yield from _assigned(out, result, call)
        yield f"ran((begun, now(), {self._held(binding)}))"
        if is_output:
            value = f"{self._form(recorded.outputs)}.payload([{', '.join(out)}])"
            yield f"objective.outputs[{k}] = {value}"
        if own is not None and out:
            self._state[own], self._form_by_value[own] = "arrays", result
        if section in ("backward", "backward_weight"):
            self._begun.add(stage)
        if then := getattr(binding.handler, "then", None):
            self.names[f"after_{kind}"] = then
            yield f"after_{kind}(rank, cell[{position}])"
        if kind in (B, I) and stage == 0 and result is not None:
            value = f"{self._form(result)}.payload([{', '.join(out)}])"
            yield f"rank.record.input_gradients[{k}] = {value}"

    # -- channels ----------------------------------------------------------------------

    def _is_sent_plainly(self, binding: Binding) -> bool:
        """Return whether a SEND sends one array, which a section has written."""
        value = binding.takes[0]
        return (
            self._state.get(value) == "arrays" and self._form_by_value[value].is_plain
        )

    def _plain_form(self, action: Action) -> Form | None:
        """Return the form of the value of a RECV, if it is one array for a section."""
        program = self._programs.get((action.stage, action.microbatch))
        if program is None:
            return None
        is_forward = action.kind is RECV_F
        form = program.recorded.received if is_forward else program.recorded.came
        return form if form is not None and form.is_plain else None

    def _channel(self, binding: Binding, form: Form) -> str:
        """Return the name of the channel of a message."""
        is_send = binding.action.kind in (SEND_F, SEND_B)
        value = binding.takes[0] if is_send else binding.gives[0][1]
        name = f"{'send' if is_send else 'receive'}_{_name(value)}"
        route = self._executor.routes[binding.action]
        self.channels[name] = Channel(f"{_name(value)}_0", is_send, form, route)
        return name

    # -- arguments ---------------------------------------------------------------------

    def _argument(
        self,
        parameter: str,
        program: StageProgram,
        k: int,
        out: Sequence[str],
    ) -> str:
        """Return what stands for a parameter of a section."""
        letter, number = parameter.rstrip("0123456789"), parameter
        i = int(number[len(letter) :] or 0)
        if letter == "slot":
            return str(program.slots[k][i])
        if letter == "first":
            return str(program.stage not in self._begun)
        if letter == "key":
            return f"key_of(seed, step, {k})"
        if letter == "x":
            return self._input(program, k, i)
        if letter == "g":
            name = self._gradients.get((program.stage, k))
            return f"seeds[{k}]" if name is None else f"{name}_{i}"
        if letter == "out":
            return out[i]
        assert letter == "y", parameter
        return f"{self._outputs[program.stage, k]}_{i}"

    def _input(self, program: StageProgram, k: int, i: int) -> str:
        """Return the name of an array of a stage's input, or of the targets."""
        count = program.recorded.num_inputs
        if i >= count:
            return self._batch["y", k][i - count]
        if program.stage == 0:
            return self._batch["x", k][i]
        return f"{self.inputs[program.stage, k]}_{i}"

    def _handler(self, position: int, binding: Binding) -> Iterator[str]:
        """Yield the line of an instruction that its eager handler runs."""
        name = _name_of(binding)
        self.names[name] = binding.handler
        arguments = ["rank", f"cell[{position}]"]
        for value in binding.takes:
            yield from self._as_payload(value)
            arguments.append(_name(value))
        call = f"{name}({', '.join(arguments)})"
        targets = self._targets(binding)
        if binding.is_timed:
            yield "begun = now()"
            yield f"{targets}{call}"
            yield f"ran((begun, now(), {self._held(binding)}))"
        else:
            yield f"{targets}{call}"
        is_pending = binding.handler.__annotations__.get("return") == "Pending"
        for _, value in binding.gives:
            self._state[value] = "pending" if is_pending else "payload"
        if binding.takes:
            yield f"del {', '.join(map(_name, binding.takes))}"

    def _targets(self, binding: Binding) -> str:
        if not binding.gives:
            return ""
        if binding.is_only:
            return f"{_name(binding.gives[0][1])} = "
        kept = {place: _name(value) for place, value in binding.gives}
        count = len(binding.handler.gives)  # type: ignore[attr-defined]
        return f"{', '.join(kept.get(place, '_') for place in range(count))} = "

    # -- values ------------------------------------------------------------------------

    def _taken(self, binding: Binding) -> dict[str, Any]:
        return {_role(value): value for value in binding.takes}

    def _given(self, position: int) -> dict[str, Any]:
        return {_role(value): value for _, value in self._bindings[position].gives}

    def _as_arrays(self, value: Any, form: Form) -> Iterator[str]:
        """Yield lines behind which the arrays of a value have names."""
        state, name = self._state.get(value, "arrays"), _name(value)
        if state == "channel":
            route = self._routes[value]
            yield "awaited = now()"
            yield f"receive_{name}.wait()"
            receipt = f"Receipt(awaited, now(), receive_{name}.array.nbytes)"
            yield f"received[carried[{route}]] = {receipt}"
            state = "arrays"
        if state == "pending":
            yield f"{name} = {name}.wait()"
        if state != "arrays":
            names = ", ".join(f"{name}_{i}" for i in range(len(form.shapes)))
            given = f"{name}, {self._form(form)}"
            if value in self._routes:
                given += f", carried[{self._routes[value]}]"
            yield f"{names}, = arrays_of({given})"
            yield f"del {name}"
        self._state[value] = "arrays"

    def _as_payload(self, value: Any) -> Iterator[str]:
        """Yield lines behind which a value has the form in which handlers take it."""
        state, name = self._state.get(value, "payload"), _name(value)
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
        given = sum(NOUNS[value.name].keeps_weights for _, value in binding.gives)
        taken = sum(NOUNS[value.name].keeps_weights for value in binding.takes)
        self._counts[stage] = self._counts.get(stage, 0) + given - taken
        return self._counts[stage]


def _assigned(names: Sequence[str], form: Form | None, call: str) -> Iterator[str]:
    """Yield the line of a call, and those that keep the results that it returns."""
    shapes = () if form is None else form.shapes
    returned = [name for name, shape in zip(names, shapes) if shape == ()]
    yield f"{', '.join(returned)} = {call}" if returned else call
    yield from (f"{name} = asarray({name})" for name in returned)


def allocated(row: Row) -> dict[str, Array | None]:
    """Return arrays for the results of compiled sections, by their names."""
    found: dict[str, Array | None] = {}
    for name, form in row.forms.items():
        found.update(zip(form.names(name), form.new()))
    found.pop("None", None)
    return found


def is_plain(binding: Binding) -> bool:
    """Return whether a computation is run by the handler of all runs."""
    handler = getattr(binding.handler, "__wrapped__", binding.handler)
    return {**HANDLERS, R: recompute}.get(binding.action.kind) is handler


def _carried(executor: Executor, action: Action) -> Any:
    """Return the value of a message, as records know it; None for another action."""
    route = executor.routes.get(action)
    return None if route is None else route.value


def _role(value: Any) -> str:
    return {"out": "x", "grad out": "g"}.get(value.name, value.name)


def _name(value: Any) -> str:
    stage = f"{value.name.replace(' ', '_')}{value.stage}"
    return stage if NOUNS[value.name].of_rank else f"{stage}_{value.microbatch}"


def _name_of(binding: Binding) -> str:
    handler: Any = binding.handler
    return getattr(handler, "__name__", binding.action.kind.lower()).lstrip("_")

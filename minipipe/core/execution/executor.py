"""The executor: runs one rank's row, instruction by instruction. It decides no order.

File 5 of 13 on the first path through the code (README.md): after
``core/schedules/analysis/lowering.py``, before ``core/execution/handlers.py``. Begin at ``run``,
then see how ``_bound`` and ``_step`` make a function of each instruction. Not on the
path: a ``Record`` is the result of a run, and ``activity`` the position of the rank,
for error messages.

It branches on no kind of instruction: handlers, stages and the group are given.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from itertools import takewhile
from threading import get_ident
from types import ModuleType
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

from minipipe.core.autograd import backend
from minipipe.core.autograd.modes import RandomKey, at, enable_grad, no_grad
from minipipe.core.balance import is_balanced
from minipipe.core.errors import Code, ScheduleError, misuse, quoted
from minipipe.core.execution.record import Record
from minipipe.core.flow import flow_of
from minipipe.core.schedules.action import SEND_B, SEND_F, Action
from minipipe.core.schedules.analysis.dependencies import Direction, Transfer
from minipipe.core.values import NOUNS, Handler

if TYPE_CHECKING:
    from minipipe.core.comm.message import Request
    from minipipe.core.comm.process_group import ProcessGroup
    from minipipe.core.execution.stage import Stage
    from minipipe.core.schedules.action_table import Program

Handlers = Mapping[str, Handler]
"""Handlers by kind of action."""

_ROLES = {"out": "x", "grad out": "g", "back": "graph", "rebuilt": "graph"}
"""What handlers call values of other names: a SEND takes an `out`, but its handler an
`x`, because there is one handler for both.
"""

_CONTENTS = {Direction.FORWARD: "activations", Direction.BACKWARD: "gradient"}

# The executor is an argument: a step that closed over it would keep all parameters
# alive after their last use.
Step = Callable[["Executor"], None]


class Pending:
    """A value that has not arrived yet. The action that takes it waits for it."""

    def wait(self) -> Any:
        """Return the value, as soon as it has come."""
        raise NotImplementedError


class Resource:
    """A value that has to be released, by the action that takes it or after an error."""

    def release(self) -> None:
        """Release what it holds."""
        raise NotImplementedError


class Background(Protocol):
    """Work that goes on between the actions of a rank, such as a gradient
    all-reduce.
    """

    def advance(self) -> None:
        """Do what can be done now, without waiting for anything."""


class Observer(Protocol):
    """Observes a run: its memory, its times on a core, its values. A run without
    observers pays nothing for them. A compiled row calls one that ``is_printed``.
    """

    def begin(self, executor: Executor, action: Action) -> None:
        """Note that an action begins."""

    def end(self, executor: Executor, action: Action) -> None:
        """Note that an action has ended."""


class Executor:
    """Runs one rank's row on its stages. Holds no reference to a batch after its run
    and its sends have completed.

    Each action is bound once to the handler of its kind, and to the values that this
    kind takes and gives by its declaration (``core/values.py``): a list of functions,
    which every batch runs. A value is kept from the action that gives it until the one
    that takes it; neighbouring stages on this rank hand over without a message. A RECV
    gives a pending message, for which the action that takes it waits; a SEND is
    finished at the end of the run, or of the next one. Rank 1 holds stages 1 and 2::

        rank 0    0F3 --[1]--> values --[2] SEND----.
        rank 1                                      `--> [3] RECV --> values --[4]--> 1F3 --[1]--> values --[4]--> 2F3

    [1] keeps what an action gives; [2] sends a value; [3] gives a message that is still
    to come; [4] takes a value out, or waits for it. The tags are repeated at the code.

    Parameters
    ----------
    program : Program
        A legal program of all ranks.
    stages : mapping of int to Stage
        This rank's stages, by index.
    group : ProcessGroup
    xp : module
        The array module to compute with.
    handlers : mapping of str to function
        The handler of each kind of instruction, such as in ``core/execution/handlers.py``.
    observers : sequence of Observer
        The observers of every run.
    run_schedule : function, optional
        ``(executor, steps)``: replaces :meth:`run_eagerly`, for instance by a compiled
        row.

    Attributes
    ----------
    call, batch : object, Batch
        The argument of the current run, and its batch.
    graphs : dict of int to dict
        By stage and value (of ``core/values.py``), what its microbatches have kept for
        their backwards.
    background : list of Background
        Work that goes on after each action.
    early : dict of Transfer to Request
        Messages that have come before their RECV: an earlier attempt to run the row
        took them.
    sends : list of Request
        The sends that have not finished.
    bindings : list of Binding
        The row, with handlers and values.
    now : function
        The clock of computations.
    actions : sequence of Action
        The schedule in the row: its actions of stages.
    record : Record
        The record of the current run.
    observers : sequence of Observer
        The observers of the current run.

    Raises
    ------
    ScheduleError
        Code ``name``: an action without a handler. Any code of
        :func:`minipipe.verify`, such as ``missing``: a program whose values do not fit,
        for want of an action.
    """

    call: Any
    batch: Any

    def __init__(
        self,
        program: Program,
        stages: Mapping[int, Stage],
        group: ProcessGroup,
        xp: ModuleType,
        handlers: Handlers,
        observers: Sequence[Observer] = (),
        run_schedule: Callable[[Executor, Sequence[Step]], None] | None = None,
    ) -> None:
        _check_values(program)
        self.program = program
        self.stages = stages
        self.group = group
        self.xp = xp
        self.now = backend.clock_of(xp)
        self.allocate = backend.empty_on_host(xp)
        if group.takes_device_arrays:
            self.allocate = xp.empty
        self.graphs: dict[int, dict[Any, Any]] = {stage: {} for stage in stages}
        self.background: list[Background] = []
        self.early: dict[Transfer, Any] = {}
        self._name = group.name_of_program()
        rows = list(map(_schedule_of, program.actions))
        self._sent_at = partial(_sent_at, rows)
        self._row = rows[group.rank]  # as it is printed
        self._values: dict[Any, Any] = {}  # all but the graphs
        self.observers = self._observers = observers
        self._run_schedule = run_schedule
        self._bind(program.numbered[group.rank], handlers)
        messages = (action for action in self.actions if action.kind.is_communication)
        self.routes = {action: Route.of(program, action) for action in messages}
        self.sends: list[Request] = []
        self._thread = get_ident()  # of the current run
        self.forget()

    def run(
        self, call: Any, *observers: Observer, finishes_sends: bool = True
    ) -> Record:
        """Run the row once. Collective: every rank runs its own, and exchanges messages
        with neighbouring stages.

        Parameters
        ----------
        call : Batch or object
            The batch; or, if the row begins with a handshake, the arguments from which
            the handshake makes a batch.
        *observers : Observer
            Further observers of the schedule in this run.
        finishes_sends : bool
            Whether to wait for all sends at the end, or only for sends of earlier runs.
        """
        steps = self._steps
        observers = (*self._observers, *observers)
        earlier = (self.call, self.batch)
        self.observers = observers
        if observers:
            steps = [
                _observed(step, action, observers)
                for step, action in zip(steps, self.actions)
            ]
        self.call = self.batch = call
        try:
            for step in self._before:
                step(self)
            self._thread = get_ident()
        except BaseException:
            # A run in another thread may be going on: then this one was refused.
            self.call, self.batch = earlier
            raise
        try:
            with self.schedule():
                if self._run_schedule is None:
                    self.run_eagerly(steps)
                else:
                    self._run_schedule(self, steps)
                self.finish_sends(finishes_sends)
                for step in self._after:
                    step(self)
            return self.record  # before forget makes a new one
        finally:
            self.forget()

    def begin_again(self, batch: Any) -> None:
        """Begin the schedule of a batch whose handshake is over, and which sets no
        modes: :meth:`forget` ends it.
        """
        self.call = self.batch = batch
        self._begin_activity()
        self._thread = get_ident()
        self.place.seed = batch.seed
        self.place.step = batch.training_step

    def run_eagerly(self, steps: Sequence[Step]) -> None:
        """Run the actions of the schedule, one after the other."""
        for step in steps:
            step(self)
            self.advance()

    @property
    def is_running(self) -> bool:
        """Whether a run of this thread has begun and not ended: a layer or a metric
        asks.
        """
        return self.call is not None and self._thread == get_ident()

    def schedule(self) -> Running:
        """Run the schedule of a batch inside this block. An error gets a note of the
        place, and leaves no gradients.
        """
        return Running(self)

    def begin_schedule(self) -> RandomKey:
        """Begin the schedule of a batch; return the key of its random numbers."""
        self._begin_activity()
        self.place = RandomKey(self.batch.seed, self.batch.training_step)
        return self.place

    def _begin_activity(self) -> None:
        self._num_earlier = len(self.sends)
        self.group.activity.begin(self._name, self._row, self.batch.step, self._sent_at)

    def fail(self, error: BaseException) -> None:
        """Give an error a note of the place, and leave no half of a gradient."""
        if not self.program.is_forward_only:
            for stage in self.stages.values():
                stage.begin()
        del self.sends[self._num_earlier :]
        if (action := self.group.activity.current) is not None:
            error.add_note(
                f"on rank {self.group.name()}, stage {action.stage}, microbatch "
                f"{action.microbatch}, action {action} of {self.program.name}, step "
                f"{self.batch.step}"
            )

    def advance(self) -> None:
        """Go on to the next action of the schedule."""
        for work in self.background:
            work.advance()
        self.group.activity.position += 1

    def finish_sends(self, are_all: bool = True) -> None:
        """Wait until messages are sent: all, or the ones of earlier runs."""
        done = len(self.sends) if are_all else self._num_earlier
        for send in self.sends[:done]:
            send.wait()
        del self.sends[:done]
        self._num_earlier = max(0, self._num_earlier - done)

    def send(self, array: Any, destination: int, tag: int) -> None:
        """Send a message, to be finished at the end of a run."""
        self.sends.append(
            self.group.isend(array, destination, tag, step=self.batch.step)
        )

    def forget(self) -> None:
        """End a run."""
        self.record = Record()
        self.call = self.batch = None
        self.background.clear()
        for value in self._values.values():  # of a run that has failed
            if isinstance(value, Resource):
                value.release()
        for kept in (self._values, self.early, *self.graphs.values()):
            kept.clear()

    # -- binding -----------------------------------------------------------------------

    def _bind(self, row: Sequence[Action], handlers: Handlers) -> None:
        """Make a function of each action of the row: the schedule of the batch, and the
        actions of the rank before and after it.
        """
        self.bindings = [self._bound(handlers, *one) for one in enumerate(row)]
        self.actions = _schedule_of(row)
        steps = list(map(self._step, self.bindings))
        begin = len(list(takewhile(_is_of_rank, row)))
        end = begin + len(self.actions)
        self._before = steps[:begin]
        self._steps = steps[begin:end]
        self._after = steps[end:]

    def _bound(self, handlers: Handlers, position: int, action: Action) -> Binding:
        """Return an action with its handler and values."""
        handler = handlers.get(action.kind)
        if handler is None:
            message = (
                f"{action} has no handler here: this run has no "
                f"{action.kind.declaration.words}"
            )
            raise ScheduleError.of(
                Code.NAME, f"{message}. Run the schedule without such actions."
            )
        takes, gives = self._values_of(position)
        names = _names(handler, "takes")
        taken = [name for name in names if name in takes]
        assert taken == names[: len(taken)], (
            f"{handler} takes a value that does not exist before others: {names}"
        )
        returned = _names(handler, "gives")
        return Binding(
            action,
            handler,
            takes=[takes[name] for name in taken],
            gives=[
                (place, gives[name])
                for place, name in enumerate(returned)
                if name in gives
            ],
            is_only=len(returned) == 1,
        )

    def _step(self, binding: Binding) -> Step:
        """Return the function that runs an action with the values that it takes, and
        keeps those that it gives.
        """
        action, handler, _, _, is_only = binding
        stage = action.stage
        is_timed = binding.is_timed
        takes = [(self._dict_of(value), value) for value in binding.takes]
        gives = [(place, self._dict_of(value), value) for place, value in binding.gives]
        now = self.now

        def step(executor: Executor) -> None:
            values = []
            for store, key in takes:
                value = store.pop(key)  # [4]
                if isinstance(value, Pending):
                    value = value.wait()
                values.append(value)
            if is_timed:
                start = now()
                result = handler(executor, action, *values)
                end = now()
            else:
                result = handler(executor, action, *values)
            for place, store, key in gives:
                store[key] = result if is_only else result[place]  # [1]
            if is_timed:
                executor.record.ran.append((start, end, len(executor.graphs[stage])))

        return step

    def _values_of(self, position: int) -> list[dict[str, Any]]:
        """Return the values that an action takes, and those that it gives, by name."""
        flow = flow_of(self.program)
        numbers = flow.numbers(self.group.rank, position)
        assert numbers is not None  # the program is legal
        by_name = []
        for part in (numbers.takes, numbers.gives):
            # Gradients of several microbatches have been added up already; of several
            # sums, the last is the latest.
            values = map(flow.value_of, part)
            by_name.append({role_of(value): value for value in values})
        return by_name

    def _dict_of(self, value: Any) -> dict[Any, Any]:
        """Return the store of a value: the graphs of its stage, or all others."""
        noun = NOUNS[value.name]
        if noun.keeps_weights and not noun.is_away:
            return self.graphs[value.stage]
        return self._values


class Running:
    """The block in which a schedule runs: with or without a graph, and with its random
    numbers.
    """

    def __init__(self, executor: Executor) -> None:
        self._executor = executor

    def __enter__(self) -> None:
        executor = self._executor
        self._place = at(executor.begin_schedule())
        self._graph = enable_grad()
        if executor.program.is_forward_only:
            self._graph = no_grad()
        self._place.__enter__()
        self._graph.__enter__()

    def __exit__(self, kind: Any, error: BaseException | None, trace: Any) -> None:
        self._graph.__exit__()
        self._place.__exit__()
        if error is not None:  # sys.exit and Ctrl-C in a layer have a place, too
            self._executor.fail(error)


class Binding(NamedTuple):
    """An action of a row with its handler, and the values of `core/values.py` that it
    takes and gives.

    Attributes
    ----------
    action : Action
    handler : function
    takes : list of Value
        In the order of the handler's parameters.
    gives : list of (int, Value)
        The values that it gives, each with its place among the handler's results.
    is_only : bool
        Whether the handler returns one value, and no tuple.
    """

    action: Action
    handler: Handler
    takes: list[Any]
    gives: list[tuple[int, Any]]
    is_only: bool

    @property
    def is_timed(self) -> bool:
        """Whether it is a computation of a stage."""
        kind = self.action.kind.declaration
        has_time = kind.time.isupper()  # "I+W"; messages have "latency" and the like
        return has_time and kind.lane == "compute" and not kind.of_rank


def role_of(value: Any) -> str:
    """Return the name of a value in ``@takes`` and ``@gives``."""
    return _ROLES.get(value.name, value.name)


def _names(handler: Handler, part: str) -> list[str]:
    """Return the names of values that ``@takes`` or ``@gives`` has noted.

    Raises
    ------
    ScheduleError
        Code ``value``, for a name that is not declared.
    """
    names = [*getattr(handler, part, ())]
    for name in names:
        if name not in NOUNS:
            message = f"The handler {handler} {part} {quoted(name)}, which is no value"
            raise misuse(f"{message}; expected a name of NOUNS, such as 'graph'.")
    return names


def _observed(step: Step, action: Action, observers: Sequence[Observer]) -> Step:
    def run(executor: Executor) -> None:
        for observer in observers:
            observer.begin(executor, action)
        step(executor)
        for observer in observers:
            observer.end(executor, action)

    return run


class Route(NamedTuple):
    """The value of a message, the other rank, the tag, and a label for errors."""

    value: Transfer
    peer: int
    tag: int
    words: str

    @classmethod
    def of(cls, program: Program, action: Action) -> Route:
        """Return the route of a SEND or RECV. The tag numbers consuming stage,
        microbatch and direction.
        """
        value = Transfer.carried_by(action)
        pair = value.consumer_stage * program.num_microbatches + value.microbatch
        tag = 2 * pair + (value.direction is Direction.BACKWARD)
        content = _CONTENTS[value.direction]
        microbatch = program.microbatches[value.microbatch]
        label = f"the {content} of microbatch {microbatch} from stage {value.stage}"
        stage = value.stage
        if action.kind in (SEND_F, SEND_B):
            stage = value.consumer_stage
        return cls(value, program.rank_of(stage, value.microbatch), tag, label)


def _check_values(program: Program) -> None:
    """Refuse a program in which a value is not given, or no action takes it."""
    if not is_balanced(flow_of(program)):
        # says what is missing, and where
        from minipipe.core.schedules.analysis.verifier import verify

        verify(program)


def _schedule_of(row: Sequence[Action]) -> Sequence[Action]:
    """Return a row without the frame of a step."""
    return [action for action in row if not _is_of_rank(action)]


def _is_of_rank(action: Action) -> bool:
    return action.kind.declaration.of_rank


def _sent_at(rows: Sequence[Sequence[Action]], action: Action) -> int | None:
    """Return at which position of another rank's actions the value that an action
    consumes is sent.
    """
    value = Transfer.consumed_by(action)
    for row in rows:
        if value and value.send in row:
            return row.index(value.send)
    return None

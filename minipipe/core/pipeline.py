"""The pipeline of the core: a model partitioned into stages over the ranks of a group.

Each call runs one row of instructions on each rank (``core/framing.py``)::

    HANDSHAKE | schedule, with its messages | FINITE | LOSS | U

Passes change these rows, and handlers run the instructions that they add, or replace
the handlers of others. The public :class:`minipipe.Pipeline` runs the same executor. It
has more calls and options, each of which is a pass, or handlers of its own.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, Protocol

import numpy as np

from minipipe.core.batch import Batch, Call, concatenated
from minipipe.core.comm.process_group import ProcessGroup
from minipipe.core.dividing import even_sizes, partition_evenly, rows_of
from minipipe.core.errors import Code, ModelError, NotFiniteError, RankError, misuse
from minipipe.core.execution.executor import Executor, Handlers
from minipipe.core.execution.handlers import HANDLERS
from minipipe.core.execution.payload import Payload
from minipipe.core.execution.stage import Stage, claimed
from minipipe.core.framing import check, handshake, loss, updates
from minipipe.core.nn.module import load_state
from minipipe.core.nn.parameter import Parameter
from minipipe.core.nn.sequential import Sequential
from minipipe.core.objective import Loss, Objective, shares_of
from minipipe.core.schedules.action import Action, ActionKind, F
from minipipe.core.schedules.action_table import Program, Schedule
from minipipe.core.schedules.analysis.lowering import lower
from minipipe.core.schedules.analysis.verifier import verify
from minipipe.core.values import Handler, gives, takes

Pass = Callable[[Program], Program]
"""Returns a program with other instructions: see ``core/framing.py``."""

_CALLS = ("step", "evaluate", "predict")


class Updates(Protocol):
    """An optimiser, as a pipeline needs it."""

    def step(self) -> None:
        """Update parameters by their gradients."""


class Pipeline:
    """A model partitioned into stages over the ranks of a group. Making one is
    collective.

    Every rank describes the same model; only the layers of its own stages take memory.
    They are copied out of ``model``, which is not changed.

    Parameters
    ----------
    model : Sequential
        The layers. A stage boundary may lie between any two.
    group : ProcessGroup
    schedule : Schedule
        For as many ranks as the group has.
    loss : function
        ``(outputs, targets) -> Tensor`` with one element, a mean over the first axis.
    partition : sequence of range, optional
        The layers of each stage; by default their numbers differ by at most one.
    seed : int
        First values come from it and the parameter's name, whatever the partition.
    optimiser : function, optional
        ``parameters -> optimiser``. Then every step ends with an update of each stage.
    passes : sequence of function, optional
        Each ``program -> program``. They are applied in turn to everything that the
        ranks do in a step, from HANDSHAKE to U; and to the rows of ``evaluate`` and
        ``predict``, for which ``program.is_forward_only`` is True.
    handlers : mapping of str to function, optional
        By kind of instruction, ``(executor, action, *values) -> values``: for kinds
        that the passes add, or instead of the handlers here.

    Attributes
    ----------
    rows : Program
        Everything that the ranks do in a step.
    stages : dict of int to Stage
        Of this rank, by index.
    num_steps : int
        The number of training steps taken. Dropout and the like draw from the seed and
        this number.

    Raises
    ------
    ArgumentError
        Code ``name``: a handler of a kind that is not declared.
    ScheduleError
        Codes of :func:`minipipe.verify`, also for the result of a pass that is not
        legal; ``name`` for a kind without a handler;
        ``value`` for slices, tied stages or stages on several ranks, which need
        ``minipipe.Pipeline``.
    RankError, PartitionError, ModelError

    Examples
    --------
    >>> from minipipe import nn, optim, schedules, spawn
    >>> def train(group):
    ...     model = nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 1))
    ...     sgd = lambda parameters: optim.SGD(parameters, learning_rate=0.1)
    ...     table = schedules.one_f_one_b(num_ranks=2, num_microbatches=4)
    ...     pipeline = Pipeline(model, group, table, nn.MSELoss(), optimiser=sgd)
    ...     x = np.ones((8, 4), dtype=np.float32)
    ...     for _ in range(50):
    ...         loss = pipeline.step(x, x[:, :1])
    ...     return round(loss, 4)
    >>> spawn(train, num_ranks=2)
    [0.0, 0.0]
    """

    def __init__(
        self,
        model: Sequential,
        group: ProcessGroup,
        schedule: Schedule,
        loss: Loss,
        *,
        partition: Sequence[range] | None = None,
        seed: int = 0,
        optimiser: Callable[[list[Parameter]], Updates] | None = None,
        passes: Sequence[Pass] = (),
        handlers: Mapping[str, Handler] = {},
    ) -> None:
        verify(schedule)
        _check_plain(schedule, group.size)
        layers = len(model.flat_layers)
        count = schedule.num_stages
        parts = list(map(model.cut, partition or partition_evenly(layers, count)))
        self.group = group
        self.schedule = schedule
        self.loss = loss
        self.seed = seed
        self.num_steps = self._num_calls = 0
        self.rank_of = [schedule.ranks_of(stage)[0] for stage in range(count)]
        self._dtypes = _dtypes(model)
        names = {id(each.owner): name for name, each in model.named_parameters()}
        self._homes = _homes(names, parts, self.rank_of)
        self.stages: dict[int, Stage] = {}
        self._optimisers: dict[int, Updates] = {}
        for index in schedule.stages_of(group.rank):
            module, owned = claimed(parts[index], index, names, seed, {})
            self.stages[index] = Stage(module, index, schedule, owned)
            if optimiser is not None:
                self._optimisers[index] = optimiser(list(owned.values()))
        self._passes = passes
        self._handlers = self._with_frame(handlers)
        whole = framed(lower(schedule), optimiser is not None)
        self._trainer = self._executor(whole)
        self._predictor = self._executor(framed(lower(forwards(schedule))))
        self.rows = self._trainer.program

    # -- calls -------------------------------------------------------------------------

    def step(self, inputs: Any, targets: Any) -> float:
        """Compute the gradients of one batch, and return its loss. Collective.

        The gradients replace the gradients of the step before. With an optimiser every
        stage is then updated.

        Parameters
        ----------
        inputs : array of shape (samples, ...)
            Needed on the rank of the first stage; others may pass None.
        targets : array of shape (samples, ...)
            Needed on the rank of the last stage.

        Raises
        ------
        MicrobatchError
            Code ``too-few``.
        NotFiniteError
            On every rank, before any of them updates a parameter.
        """
        call = Call("step", inputs, targets, Objective(self.loss))
        self._trainer.run(call)
        self.num_steps += 1
        return call.result

    def evaluate(self, inputs: Any, targets: Any) -> float:
        """Return the loss of one batch, in the current mode. Collective."""
        call = Call("evaluate", inputs, targets, Objective(self.loss))
        self._predictor.run(call)
        return call.result

    def predict(self, inputs: Any) -> Any:
        """Return the outputs of one batch on every rank, in the current mode.
        Collective.
        """
        call = Call("predict", inputs, None, Objective())
        self._predictor.run(call)
        return call.result

    # -- the model ---------------------------------------------------------------------

    def named_parameters(self) -> Iterator[tuple[str, Parameter]]:
        """Yield the parameters of this rank, named as in the model."""
        for stage in self.stages.values():
            yield from stage.parameters.items()

    def parameters(self) -> list[Parameter]:
        """Return the parameters of this rank."""
        return [parameter for _, parameter in self.named_parameters()]

    def train(self, mode: bool = True) -> None:
        """Set the layers of this rank to training, or to evaluation."""
        for stage in self.stages.values():
            stage.module.train(mode)

    def eval(self) -> None:
        """Set the layers of this rank to evaluation."""
        self.train(False)

    def state_dict(self) -> dict[str, np.ndarray]:
        """Return the whole model's values on every rank, named as in the model.
        Collective.
        """
        own = dict(self.named_parameters())
        state = {}
        for name, rank in self._homes.items():
            values = own[name].data if name in own else None
            state[name] = self.group.broadcast(values, rank)
        return state

    def load_state_dict(self, state: Mapping[str, np.ndarray]) -> None:
        """Take this rank's part of the whole model's values."""
        load_state(dict(self.named_parameters()), state)

    # -- handlers ----------------------------------------------------------------------

    def _with_frame(self, handlers: Handlers) -> Handlers:
        """Return the handlers of all instructions, with the given ones instead of the
        core's.
        """
        frame: Handlers = {
            "HANDSHAKE": self._handshake,
            "FINITE": self._check,
            "LOSS": self._deliver,
            "U": self._update,
        }
        kinds = map(ActionKind, handlers)  # unless one is not declared
        return {**HANDLERS, **frame, **dict(zip(kinds, handlers.values()))}

    def _executor(self, program: Program) -> Executor:
        for each in self._passes:
            program = each(program)
            verify(program)
        return Executor(program, self.stages, self.group, np, self._handlers)

    def _handshake(self, executor: Executor, action: Action) -> None:
        """Run a HANDSHAKE: compare the call, and make the batch of it."""
        call = executor.call
        given = [call.inputs, call.targets]
        lengths = [-1 if one is None else len(one) for one in given]
        own = np.array([_CALLS.index(call.name), self.num_steps, *lengths])
        all_of_them = np.array(self.group.all_gather(own, what="the handshake"))
        num_samples = _agreed(all_of_them, self.rank_of)
        sizes = even_sizes(num_samples, self.schedule.num_microbatches)
        objective = call.objective
        parts: list[list[Payload] | None] = [None, None]
        for place, home in enumerate((0, -1)):
            if self.rank_of[home] == self.group.rank and given[place] is not None:
                parts[place] = _cut(given[place], self._dtypes[home], sizes)
        inputs, objective.targets = parts
        if objective.loss is not None:
            objective.shares = shares_of(objective.loss, sizes, objective.targets)
        self._num_calls += 1
        numbers = (self._num_calls, self.num_steps, self.seed)
        executor.batch = Batch(call.name, sizes, inputs, objective, *numbers)
        if call.name == "step":
            for stage in self.stages.values():
                stage.begin()

    @gives("finite")
    def _check(self, executor: Executor, action: Action) -> bool:
        """Run a FINITE: return whether all gradients of this rank are finite."""
        leaves = [leaf for stage in self.stages.values() for leaf in stage.leaves]
        found = [leaf.grad for leaf in leaves if leaf.grad is not None]
        return all(bool(np.isfinite(gradient).all()) for gradient in found)

    @takes("finite")
    def _deliver(self, executor: Executor, action: Action, finite: bool = True) -> None:
        """Run a LOSS: every rank gets the loss, and knows what others have found."""
        batch = executor.batch
        root = self.rank_of[-1]
        numbers = [float(finite)]
        is_last = self.group.rank == root
        if batch.objective.loss is None:
            message = None
            if is_last:
                kept = batch.objective.outputs
                message = concatenated([kept[k] for k in sorted(kept)]).to_message()
            found = Payload.from_message(self.group.broadcast(message, root))
            executor.call.result = found.rebuilt()
            return
        if is_last:
            numbers += batch.objective.numbers()
        results = self.group.all_gather(np.array(numbers), what="the loss")
        loss = float(results[root][1])
        bad = [rank for rank, (is_fine, *_) in enumerate(results) if not is_fine]
        is_training = batch.call == "step"
        if is_training and (bad or not np.isfinite(loss)):
            for stage in self.stages.values():
                stage.begin()
            message = f"Step {self.num_steps} has the loss {loss}, and gradients that "
            message += f"are not finite on ranks {bad}; no parameter was updated."
            raise NotFiniteError(Code.NOT_FINITE, message)
        executor.call.result = loss

    def _update(self, executor: Executor, action: Action) -> None:
        """Run a U."""
        if self.stages[action.stage].parameters:
            self._optimisers[action.stage].step()


def framed(program: Program, is_updated: bool = False) -> Program:
    """Return a program with all that its ranks do in a call.

    Examples
    --------
    >>> from minipipe import schedules
    >>> print(framed(lower(schedules.gpipe(2, 1)), is_updated=True))
    # gpipe: 2 ranks, 2 stages, 1 microbatch
    rank 0: HANDSHAKE 0F0 0SEND_F0 0RECV_B0 0B0 FINITE LOSS 0U0
    rank 1: HANDSHAKE 1RECV_F0 1F0 1B0 1SEND_B0 FINITE LOSS 1U0
    """
    if program.is_forward_only:
        return loss(handshake(program))
    whole = loss(check(handshake(program)))
    return updates(whole) if is_updated else whole


def forwards(schedule: Schedule) -> Schedule:
    """Return the forwards of a schedule alone."""
    rows = []
    for row in schedule.actions:
        rows.append([action for action in row if action.kind is F])
    return schedule.with_rows(Schedule, rows)


def _agreed(numbers: np.ndarray, rank_of: Sequence[int]) -> int:
    """Return the number of samples of a batch, by what the ranks say of their calls.

    Raises
    ------
    RankError
        Code ``disagreement``.
    """
    calls = numbers[:, :2]
    lengths = numbers[:, 2:]
    if (calls != calls[0]).any():
        each = [f"{_CALLS[call]} after {steps} steps" for call, steps in calls]
        message = f"The ranks make different calls: {', '.join(each)}."
        raise RankError(Code.DISAGREEMENT, message)
    num_inputs = lengths[rank_of[0], 0]
    num_targets = lengths[rank_of[-1], 1]
    needs_targets = _CALLS[calls[0][0]] != "predict"
    if num_inputs < 0 or (needs_targets and num_targets != num_inputs):
        message = f"The batch has {num_inputs} inputs on rank {rank_of[0]}, and "
        message += f"{num_targets} targets on rank {rank_of[-1]} (-1: None); expected "
        raise RankError(Code.DISAGREEMENT, f"{message}arrays of one length.")
    return int(num_inputs)


def _cut(array: Any, dtype: Any, sizes: tuple[int, ...]) -> list[Payload]:
    """Return the microbatches of an array; real numbers in the dtype of the model."""
    array = np.asarray(array)
    is_real = array.dtype.kind == "f"
    if is_real:
        array = np.ascontiguousarray(array, dtype)
    return [Payload([array[rows]], [False]) for rows in rows_of(sizes)]


def _dtypes(model: Sequential) -> list[Any]:
    """Return the dtypes of inputs and targets: of the first and the last parameter."""
    dtypes = [parameter.dtype for parameter in model.parameters()]
    return dtypes or [np.dtype(np.float32)]


def _check_plain(schedule: Schedule, num_ranks: int) -> None:
    """Refuse another number of ranks, and schedules that only the public pipeline
    runs.
    """
    ranks = map(schedule.ranks_of, range(schedule.num_stages))
    refused = {
        f"{schedule.num_slices} slices of each sequence": schedule.num_slices > 1,
        "tied stages": bool(schedule.tied),
        "a stage on several ranks": any(len(each) > 1 for each in ranks),
    }
    for name, is_there in refused.items():
        if is_there:
            instead = "the pipeline of the core runs none; use minipipe.Pipeline"
            raise misuse(f"The schedule has {name}; {instead}.")
    if schedule.num_ranks != num_ranks:
        message = f"The schedule has {schedule.num_ranks} ranks, and the group "
        raise RankError(Code.WRONG_NUMBER, f"{message}{num_ranks}.")


def _homes(
    names: Mapping[int, str], parts: Sequence[Sequential], rank_of: Sequence[int]
) -> dict[str, int]:
    """Return the rank of each parameter, by name: names are by identity.

    Raises
    ------
    ModelError
        Code ``unsupported``.
    """
    homes: dict[str, int] = {}
    for part, rank in zip(parts, rank_of):
        for name in {names[id(parameter.owner)] for parameter in part.parameters()}:
            if name in homes:
                message = f"Several stages share {name}; minipipe.Pipeline sums the "
                raise ModelError(Code.UNSUPPORTED, f"{message}gradients of such ones.")
            homes[name] = rank
    return {name: homes[name] for name in names.values()}

"""One tree of errors, each with a code for programs and a sentence for people.

Programs and tests compare ``error.code``; people read the sentence: the value, the expected value, what to do.
At the end are the checks of arguments that all packages use. Every package imports this file, so it imports none.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from enum import StrEnum
from math import inf
from numbers import Integral, Real
from typing import Any, NamedTuple

__all__ = [
    "ArgumentError",
    "CheckpointError",
    "CourseworkError",
    "FileError",
    "LaunchError",
    "MessageError",
    "MicrobatchError",
    "MinipipeError",
    "ModelError",
    "NotFiniteError",
    "ParameterError",
    "PartitionError",
    "Problem",
    "RankError",
    "RankLostError",
    "ScheduleCode",
    "ScheduleError",
    "TensorError",
]


class MinipipeError(Exception):
    """The root of the tree.

    Parameters
    ----------
    code : str
        A short constant name for programs: ``"too-few-layers"``.
    message : str
        A sentence for people.

    Attributes
    ----------
    codes : StrEnum
        The codes of the class. A code equals its text: ``error.code == "too-few-layers"``.
    is_self_explaining : bool
        Whether the sentence is sufficient; then a failing rank prints it without a traceback.

    Examples
    --------
    >>> from minipipe import partition_evenly
    >>> try:
    ...     partition_evenly(num_layers=2, num_stages=3)
    ... except MinipipeError as error:
    ...     print(error.code)
    too-few-layers
    """

    is_self_explaining = True
    codes: type[StrEnum] | None = None

    def __init__(self, code: str, message: str) -> None:
        self.code = code if self.codes is None else self.codes(code)
        self.message = message
        super().__init__(str(code), message)

    def __str__(self) -> str:
        return self.message


Refusal = Callable[[Any, str], MinipipeError]  # from a code and a message


class ArgumentCode(StrEnum):
    """The codes of an :class:`ArgumentError`."""

    VALUE = "value"  # a number that is out of range, or does not fit the others
    TYPE = "type"  # something of another kind
    NAME = "name"  # a name that does not exist, often from another library


class ArgumentError(MinipipeError, ValueError, TypeError):
    """An argument has a value or a type that does not fit, or a name that does not exist.

    Examples
    --------
    >>> from minipipe import nn
    >>> try:
    ...     nn.Dropout(2)
    ... except ArgumentError as error:
    ...     print(error.code)
    value
    """

    codes = ArgumentCode
    is_self_explaining = False


class TensorCode(StrEnum):
    """The codes of a :class:`TensorError`."""

    SHAPE = "shape"
    DTYPE = "dtype"
    RANGE = "range"  # an index or a number that does not exist
    NOT_A_TENSOR = "not-a-tensor"
    SEVERAL_TENSORS = "several-tensors"  # expected one
    NOT_SCALAR = "not-scalar"  # at the start of a gradient, or from a metric
    NO_GRAPH = "no-graph"
    NO_GRADIENT = "no-gradient"  # a vjp returned None
    BACKWARD_TWICE = "backward-twice"
    CHANGED_IN_PLACE = "changed-in-place"
    NO_RANDOM_KEY = "no-random-key"
    NOT_REPEATABLE = "not-repeatable"  # computed again, a module gave other values
    DIVIDED = "divided"  # among ranks, although a whole was expected; or the reverse
    NOT_COPYABLE = "not-copyable"  # a result, which belongs to its graph


class TensorError(MinipipeError, ValueError):
    """An operation cannot be computed or differentiated.

    Examples
    --------
    >>> from minipipe import Tensor
    >>> try:
    ...     Tensor([1.0, 2.0], requires_grad=True).backward()
    ... except TensorError as error:
    ...     print(error.code)
    not-scalar
    """

    codes = TensorCode
    is_self_explaining = False


class ParameterCode(StrEnum):
    """The codes of a :class:`ParameterError`."""

    UNINITIALISED = "uninitialised"
    MISSING = "missing"  # in a state
    UNEXPECTED = "unexpected"  # in a state
    SHAPE = "shape"
    DTYPE = "dtype"  # of values in a file, which the parameter's cannot hold
    NOT_FINITE = "not-finite"  # a gradient


class ParameterError(MinipipeError, ValueError):
    """A parameter has no values, unfit ones or a useless gradient.

    Examples
    --------
    >>> from minipipe import nn
    >>> try:
    ...     nn.Linear(2, 3).load_state_dict({})
    ... except ParameterError as error:
    ...     print(error.code)
    missing
    """

    codes = ParameterCode
    is_self_explaining = False


class NotFiniteCode(StrEnum):
    """The codes of a :class:`NotFiniteError`: the place of the first value that is not finite."""

    INPUTS = "inputs"
    TARGETS = "targets"
    PARAMETER = "parameter"  # before the step
    FORWARD = "forward"
    LOSS = "loss"
    BACKWARD = "backward"
    NOT_FOUND = "not-found"  # every value was finite in a second run, or there was none


class NotFiniteError(MinipipeError, ArithmeticError):
    """A loss or a gradient of a step is infinite or not a number; the same error on every rank.

    Examples
    --------
    >>> import numpy as np
    >>> from minipipe import Pipeline, init_process_group, nn
    >>> with init_process_group() as group:
    ...     pipeline = Pipeline(nn.Sequential(nn.Linear(2, 1)), group, loss=nn.MSELoss(), num_microbatches=1)
    ...     try:
    ...         pipeline.step(np.full((1, 2), np.nan), np.ones((1, 1)))
    ...     except NotFiniteError as error:
    ...         print(error.code)
    inputs
    """

    codes = NotFiniteCode


class ModelCode(StrEnum):
    """The codes of a :class:`ModelError`."""

    NOT_A_SEQUENCE = "not-a-sequence"
    BESIDE_LAYERS = "beside-layers"  # a parameter of a sequence that none of its layers has
    LOSS = "loss"
    LOSS_WITH_PARAMETERS = "loss-with-parameters"
    PLANNED = "planned"  # an option that a plan has already
    FROZEN = "frozen"
    NOT_COPYABLE = "not-copyable"  # also a pipeline, and other objects that exchange messages
    SLICES = "slices"


class ModelError(MinipipeError, TypeError):
    """A model cannot be partitioned into stages, or an object cannot be copied or pickled.

    Examples
    --------
    >>> from minipipe import Pipeline, functional, nn, spawn
    >>> try:
    ...     spawn(lambda group: Pipeline(nn.Linear(2, 3), group, loss=functional.cross_entropy), 1)
    ... except ModelError as error:
    ...     print(error.code)
    not-a-sequence
    """

    codes = ModelCode
    is_self_explaining = False


class PartitionCode(StrEnum):
    """The codes of a :class:`PartitionError`."""

    ZERO_STAGES = "zero-stages"
    TOO_FEW_LAYERS = "too-few-layers"
    INVALID_COST = "invalid-cost"
    NOT_A_PARTITION = "not-a-partition"


class PartitionError(MinipipeError, ValueError):
    """Layers cannot be divided among the stages.

    Examples
    --------
    >>> from minipipe import partition_evenly
    >>> try:
    ...     partition_evenly(num_layers=2, num_stages=3)
    ... except PartitionError as error:
    ...     print(error.code)
    too-few-layers
    """

    codes = PartitionCode


class MicrobatchCode(StrEnum):
    """The codes of a :class:`MicrobatchError`."""

    TOO_FEW_SAMPLES = "too-few-samples"
    OUT_OF_RANGE = "out-of-range"
    UNEQUAL_LENGTHS = "unequal-lengths"
    NO_WEIGHT = "no-weight"
    WRONG_NUMBER = "wrong-number"


class MicrobatchError(MinipipeError, ValueError):
    """A batch cannot be divided into microbatches.

    Examples
    --------
    >>> from minipipe import split_microbatches
    >>> try:
    ...     split_microbatches(num_samples=2, num_microbatches=3)
    ... except MicrobatchError as error:
    ...     print(error.code)
    too-few-samples
    """

    codes = MicrobatchCode


class RankCode(StrEnum):
    """The codes of a :class:`RankError`."""

    OUT_OF_RANGE = "out-of-range"
    WRONG_NUMBER = "wrong-number"
    DISAGREEMENT = "disagreement"  # ranks run different programs
    NOT_ALL_RANKS = "not-all-ranks"  # one rank's part, but a decision depends on all of them


class RankError(MinipipeError, ValueError):
    """A rank does not exist, or there are too many or too few of them.

    Examples
    --------
    >>> from minipipe import spawn
    >>> try:
    ...     spawn(lambda group: group.rank, 0)
    ... except RankError as error:
    ...     print(error.code)
    wrong-number
    """

    codes = RankCode


class MessageCode(StrEnum):
    """The codes of a :class:`MessageError`."""

    SHAPE = "shape"
    DTYPE = "dtype"
    STEP = "step"  # of another call
    HEADER = "header"  # not minipipe's
    TIMEOUT = "timeout"
    DEADLOCK = "deadlock"
    PEER_LEFT = "peer-left"


class MessageError(MinipipeError, RuntimeError):
    """A message is late, lost or another than the expected one.

    Examples
    --------
    >>> from minipipe import spawn
    >>> try:
    ...     spawn(lambda group: group.recv(1 - group.rank), 2)  # each waits for the other
    ... except MessageError as error:
    ...     print(error.code)
    deadlock
    """

    codes = MessageCode


class LaunchCode(StrEnum):
    """The codes of a :class:`LaunchError`."""

    NO_MPI4PY = "no-mpi4py"
    NO_LAUNCHER = "no-launcher"  # no mpirun
    NO_SCRIPT = "no-script"
    WRONG_MPI = "wrong-mpi"
    NOT_A_RANK = "not-a-rank"  # but a child of one
    NO_GPU = "no-gpu"
    CLOSED = "closed"
    TWO_THREADS = "two-threads"  # of one rank communicate at once
    RANK_LOST = "rank-lost"  # one has ended before the group was there
    TIMEOUT = "timeout"
    NO_FAULT_TOLERANCE = "no-fault-tolerance"  # the launcher ends all ranks when one is lost


class LaunchError(MinipipeError, RuntimeError):
    """The ranks cannot be started as requested.

    Examples
    --------
    >>> from minipipe import init_process_group
    >>> with init_process_group() as group:
    ...     rank = group.rank
    >>> try:
    ...     group.barrier()
    ... except LaunchError as error:
    ...     print(error.code)
    closed
    """

    codes = LaunchCode


class RankLostCode(StrEnum):
    """The codes of a :class:`RankLostError`."""

    VALUES = "values"  # of some parameter no copy is left


class RankLostError(MinipipeError, RuntimeError):
    """Ranks were lost, and the others cannot continue without them.

    Examples
    --------
    >>> print(RankLostError("values", "The values of stage 2 are lost."))
    The values of stage 2 are lost.
    """

    codes = RankLostCode


class FileCode(StrEnum):
    """The codes of a :class:`FileError`."""

    UNREADABLE = "unreadable"
    UNWRITABLE = "unwritable"
    NOT_A_FILE = "not-a-file"  # a directory, a device or a socket; a pipe or a link where those are refused
    TOO_LARGE = "too-large"
    NOT_TEXT = "not-text"
    DAMAGED = "damaged"  # not the contents that were written there


class FileError(MinipipeError, OSError):
    """A file cannot be read or written, or has other contents than it claims.

    Examples
    --------
    >>> from minipipe import render, schedules
    >>> try:
    ...     render.save("/no/such/folder/gpipe.svg", schedules.gpipe(2, 2))
    ... except FileError as error:
    ...     print(error.code)
    unwritable
    """

    codes = FileCode

    def __init__(self, code: str, message: str) -> None:
        super().__init__(code, message)
        self.errno = None  # where OSError keeps its first argument


class CheckpointCode(StrEnum):
    """The codes of a :class:`CheckpointError`."""

    NOT_FOUND = "not-found"  # there is none
    DAMAGED = "damaged"  # not the contents that were written there, or not all of them
    MISMATCH = "mismatch"  # of another model, optimiser or seed
    VERSION = "version"  # of a form that this version does not know
    UNWRITABLE = "unwritable"  # the system refuses, or a rank has failed
    VALUE = "value"  # something that a checkpoint cannot hold


class CheckpointError(MinipipeError, RuntimeError):
    """A checkpoint cannot be written, or training cannot resume from it.

    Examples
    --------
    >>> from minipipe import Pipeline, checkpoint, init_process_group, nn
    >>> with init_process_group() as group:
    ...     pipeline = Pipeline(nn.Sequential(nn.Linear(2, 1)), group)
    ...     try:
    ...         checkpoint.restore("/no/such/folder", pipeline)
    ...     except CheckpointError as error:
    ...         print(error.code)
    not-found
    """

    codes = CheckpointCode


class CourseworkCode(StrEnum):
    """The codes of a :class:`CourseworkError`."""

    NO_SOURCE = "no-source"
    MARKERS = "markers"
    NOT_EMPTY = "not-empty"
    NOT_WRITTEN = "not-written"
    WRONG_DIRECTORY = "wrong-directory"
    UNKNOWN_TASK = "unknown-task"
    TIME_LIMIT = "time-limit"


class CourseworkError(MinipipeError, ValueError):
    """Coursework cannot be written or graded as requested.

    Examples
    --------
    >>> from minipipe.coursework import grade
    >>> try:
    ...     grade("coursework", only="no such task")
    ... except CourseworkError as error:
    ...     print(error.code)
    unknown-task
    """

    codes = CourseworkCode


class ScheduleCode(StrEnum):
    """The codes of a :class:`ScheduleError`.

    Examples
    --------
    >>> ScheduleCode("deadlock").is_misuse, ScheduleCode("unknown").is_misuse
    (False, True)
    """

    # The request cannot be carried out as it was made.
    UNKNOWN = "unknown"
    PARAMETERS = "parameters"
    COSTS = "costs"
    FILE = "file"
    TOO_LARGE = "too-large"  # beyond a limit of minipipe/io.py
    # The text or the object is not a schedule.
    SYNTAX = "syntax"
    EMPTY = "empty"
    PLACEMENT = "placement"
    NOT_A_SCHEDULE = "not-a-schedule"
    # The schedule is not legal. The verifier checks in this order.
    OUT_OF_RANGE = "out-of-range"
    WRONG_RANK = "wrong-rank"
    DUPLICATE = "duplicate"
    TAG_COLLISION = "tag-collision"
    MISSING = "missing"
    MIXED_BACKWARD = "mixed-backward"
    FROZEN = "frozen"
    NO_PARTNER = "no-partner"
    OTHER_REPLICA = "other-replica"
    MIXED_CUT = "mixed-cut"
    SLICE_ORDER = "slice-order"
    OVERLAP = "overlap"
    EARLY_SUM = "early-sum"
    EARLY_UPDATE = "early-update"
    SKIPPED = "skipped"
    NO_SUM = "no-sum"
    UNPAIRED = "unpaired"
    ORDER = "order"
    DEADLOCK = "deadlock"
    OVERLAP_DEADLOCK = "overlap-deadlock"
    RENDEZVOUS_DEADLOCK = "rendezvous-deadlock"
    MEMORY = "memory"
    VERSIONS = "versions"
    STALENESS = "staleness"
    # The schedule is legal and does not serve the purpose.
    REPLICAS = "replicas"
    SLICES = "slices"
    UPDATES = "updates"
    RECOMPUTE = "recompute"
    KINDS = "kinds"  # that a program has declared
    FORWARD_ONLY = "forward-only"
    NO_FORMULA = "no-formula"
    CERTIFICATE = "certificate"  # its claims are not those that hold

    @property
    def is_misuse(self) -> bool:
        """Whether the request is at fault, and not the schedule."""
        own = type(self)
        return self in (own.UNKNOWN, own.PARAMETERS, own.COSTS, own.FILE, own.TOO_LARGE)


class Problem(NamedTuple):
    """One thing that is wrong with a schedule.

    Attributes
    ----------
    code : ScheduleCode
        The kind of problem, for programs; equal to its text, such as ``"missing"``.
    message : str
        A sentence.
    rank : int or None
        The rank in whose list of actions the problem is.
    step : int or None
        The position of the action in that list, from 0.

    Examples
    --------
    >>> problem = Problem(ScheduleCode.MISSING, "1B0 is missing on rank 1.", rank=1)
    >>> problem.code == "missing", problem.rank, problem.step
    (True, 1, None)
    """

    code: ScheduleCode
    message: str
    rank: int | None = None
    step: int | None = None


class ScheduleError(MinipipeError, ValueError):
    """A schedule is illegal, or text is not a schedule.

    Parameters
    ----------
    problems : sequence of Problem
        Ordered, the cause first. Its message becomes the message of the error.
    grid : str
        A drawing of the schedule with the step marked, or nothing.

    Examples
    --------
    >>> from minipipe import Schedule, verify
    >>> try:
    ...     verify(Schedule.from_text("0F0 0B0 0F1"))
    ... except ScheduleError as error:
    ...     for problem in error.problems:
    ...         print(problem.code, problem.message)
    missing 0B1 is missing on rank 0.
    """

    codes = ScheduleCode

    def __init__(self, problems: Sequence[Problem], grid: str = "") -> None:
        self.problems = tuple(problem._replace(code=ScheduleCode(problem.code)) for problem in problems)
        self.grid = grid
        first = self.problems[0]
        more = len(self.problems) - 1
        others = f" ({counted(more, 'more problem')} in .problems)" if more else ""
        drawing = f"\n\n{grid}" if grid else ""
        super().__init__(first.code, f"[{first.code}] {first.message}{others}{drawing}")

    @classmethod
    def of(cls, code: ScheduleCode, message: str, rank: int | None = None, step: int | None = None) -> ScheduleError:
        """Return the error of a single problem."""
        return cls([Problem(code, message, rank, step)])

    def __reduce__(self) -> tuple:
        return type(self), (self.problems, self.grid)


# -- checks of arguments with common messages -------------------------------------------------------------------


def quoted(given: object, most: int = 60) -> str:
    """Return the repr of anything in at most ``most`` printable characters, for a message.

    It always succeeds, although a repr may fail: for example of an integer with more than 4300 digits.

    Examples
    --------
    >>> quoted("x" * 100, most=10), quoted(10**5000)
    ("'xxxxxxxx…", 'a value of type int')
    """
    try:
        text = repr(given[: most + 1] if isinstance(given, str | bytes) else given)
    except Exception:  # a class may do anything in its __repr__
        text = f"a value of type {type(given).__name__}"
    text = "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in text[: most + 1])
    return text if len(text) <= most else f"{text[: most - 1]}…"


def not_copyable(given: object, why: str, instead: str) -> ModelError:
    """Return the error of an attempt to copy or pickle an object that is not a value.

    Examples
    --------
    >>> print(not_copyable(open, "it is bound to its file", "Copy the path."))
    A builtin_function_or_method cannot be copied or pickled: it is bound to its file. Copy the path.
    """
    return ModelError("not-copyable", f"A {type(given).__name__} cannot be copied or pickled: {why}. {instead}")


def counted(count: float, noun: str) -> str:
    """Return a number with its noun, in the plural unless it is 1.

    Examples
    --------
    >>> counted(1, "rank"), counted(2, "microbatch"), counted(0, "copy"), counted(1.5, "core"), counted(4096, "rank")
    ('1 rank', '2 microbatches', '0 copies', '1.5 cores', '4096 ranks')
    """
    text = str(count) if isinstance(count, int) else f"{count:g}"
    if text == "1":
        return f"1 {noun}"
    if noun.endswith("is"):
        return f"{text} {noun[:-2]}es"  # as axis, axes
    if noun.endswith(("ch", "sh", "s", "x")):
        return f"{text} {noun}es"
    return f"{text} {noun[:-1]}ies" if noun.endswith("y") else f"{text} {noun}s"


def misuse(message: str, code: ScheduleCode = ScheduleCode.PARAMETERS) -> ScheduleError:
    """Return the error of a request about schedules that cannot be carried out.

    Examples
    --------
    >>> misuse("There are 3 ranks; dualpipe takes an even number.").code.value
    'parameters'
    """
    return ScheduleError.of(code, message)


def unfit(name: str, given: object, expected: str, code: ScheduleCode = ScheduleCode.PARAMETERS) -> ScheduleError:
    """Return the error of an unexpected argument, about schedules.

    Examples
    --------
    >>> print(unfit("seconds", -1, "a time above 0"))
    [parameters] seconds is -1; expected a time above 0.
    """
    return misuse(f"{name} is {quoted(given)}; expected {expected}.", code)


def whole_number(
    name: str,
    value: Any,
    least: int | None = 1,
    most: int | None = None,
    *,
    advice: str = "",
    error: Refusal = ArgumentError,
    code: str = "value",
) -> int:
    """Return an argument as an int; refuse fractions, truth values and numbers out of range.

    Parameters
    ----------
    name : str
        Name of the argument; after ``"operation: "`` if the caller's name helps.
    value : Any
        An int, or an integer of NumPy.
    least, most : int, optional
        The bounds, both included.
    advice : str
        A sentence after the message.
    error : function
        From a code and a message to an error: a class, or ``ScheduleError.of``.
    code : str
        One of its codes.

    Examples
    --------
    >>> whole_number("num_steps", 3)
    3
    >>> whole_number("num_steps", 2.5)
    Traceback (most recent call last):
    minipipe.errors.ArgumentError: num_steps is 2.5; expected a whole number, at least 1.
    """
    if isinstance(value, Integral) and not isinstance(value, bool):
        number = int(value)
        if (least is None or number >= least) and (most is None or number <= most):
            return number
    if least is not None and most is not None:
        bounds = f", {least} to {most}"
    else:
        bounds = f", at least {least}" if least is not None else f", at most {most}" if most is not None else ""
    raise error(code, f"{name} is {quoted(value)}; expected a whole number{bounds}.{advice and f' {advice}'}")


def schedule_number(name: str, value: Any, least: int = 1, advice: str = "") -> int:
    """Return an argument about schedules as an int; refuse it as :func:`whole_number` does, with code ``parameters``.

    Examples
    --------
    >>> schedule_number("num_slices", 0)
    Traceback (most recent call last):
    minipipe.errors.ScheduleError: [parameters] num_slices is 0; expected a whole number, at least 1.
    """
    return whole_number(name, value, least, advice=advice, error=ScheduleError.of, code=ScheduleCode.PARAMETERS)


def divisor(name: str, value: Any, *numbers: int, of: str, error: Refusal = ArgumentError, code: str = "value") -> int:
    """Return an argument that divides numbers; refuse anything else.

    ``of`` describes ``numbers``; the other parameters are as in :func:`whole_number`.

    Examples
    --------
    >>> divisor("num_groups", 4, 6, of="the 6 channels")
    Traceback (most recent call last):
    minipipe.errors.ArgumentError: num_groups is 4; expected a divisor of the 6 channels.
    """
    if isinstance(value, Integral) and int(value) >= 1 and not any(number % int(value) for number in numbers):
        return int(value)
    raise error(code, f"{name} is {quoted(value)}; expected a divisor of {of}.")


def as_float(number: Any) -> float:
    """Return a number as a float; one beyond its range, such as ``10**400``, as infinity.

    Examples
    --------
    >>> as_float(2), as_float(-(10**400))
    (2.0, -inf)
    """
    try:
        return float(number)
    except OverflowError:
        return inf if number > 0 else -inf


def real_number(name: str, value: Any, interval: str, advice: str = "") -> float:
    """Return an argument as a float; refuse an object that is not a number, and a number outside an interval.

    Parameters other than ``interval`` are as in :func:`whole_number`.

    Parameters
    ----------
    interval : str
        Two bounds, each included next to a square bracket: ``"[0, 1)"``.

    Examples
    --------
    >>> real_number("momentum", 0, "[0, 1)")
    0.0
    >>> real_number("momentum", 1, "[0, 1)")
    Traceback (most recent call last):
    minipipe.errors.ArgumentError: momentum is 1; expected a number in [0, 1).
    """
    low, high = map(float, interval[1:-1].split(","))
    if isinstance(value, Real) and not isinstance(value, bool):
        number = as_float(value)
        if low < number < high or (number == low and interval[0] == "[") or (number == high and interval[-1] == "]"):
            return number
    raise ArgumentError(
        "value", f"{name} is {quoted(value)}; expected a number in {interval}.{advice and f' {advice}'}"
    )


def of_kind(taker: str, value: Any, kind: Any, expected: str, advice: str = "") -> None:
    """Refuse an argument of another class than a function or a class takes.

    Examples
    --------
    >>> of_kind("Recompute", 4, type, "a class")
    Traceback (most recent call last):
    minipipe.errors.ArgumentError: Recompute takes a class; this is of type int.
    """
    if not isinstance(value, kind):
        message = f"{taker} takes {expected}; this is of type {type(value).__name__}.{advice and f' {advice}'}"
        raise ArgumentError("type", message)


def one_of(name: str, value: Any, names: Iterable[str]) -> str:
    """Return an argument that is one of several names; refuse anything else.

    Examples
    --------
    >>> one_of("reduction", "max", ("mean", "sum"))
    Traceback (most recent call last):
    minipipe.errors.ArgumentError: reduction is 'max'; expected 'mean' or 'sum'.
    """
    known = [str(each) for each in names]
    if isinstance(value, str) and value in known:
        return value
    *others, last = map(repr, known)
    expected = f"{', '.join(others)} or {last}" if others else last
    raise ArgumentError("value", f"{name} is {quoted(value)}; expected {expected}.")


def shape_error(operation: str, expected: str, **shapes: tuple[int, ...]) -> TensorError:
    """Return the error for operands whose shapes do not fit each other, to be raised.

    Parameters
    ----------
    operation : str
    expected : str
        What follows "expected", without a full stop.
    **shapes : tuple of int
        The shape of each operand, by its name.

    Examples
    --------
    >>> print(shape_error("linear", "(..., k) and (k, n)", input=(2, 3), weight=(4, 5)))
    linear: input has shape (2, 3), weight (4, 5); expected (..., k) and (k, n).
    """
    (first, shape), *others = ((name.replace("_", " "), shape) for name, shape in shapes.items())
    rest = "".join(f", {name} {shape}" for name, shape in others)
    return TensorError("shape", f"{operation}: {first} has shape {shape}{rest}; expected {expected}.")

"""One tree of errors, each with a code for programs and a sentence for people.

Programs and tests compare ``error.code``; people read the sentence: the value, the
expected value, what to do. At the end are parts of messages that all packages use.
Every package imports this file, so it imports none. Programs import the names from
``minipipe.errors``, and that is where errors say that they come from.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from enum import StrEnum
from os import PathLike
from os.path import dirname
from typing import NamedTuple
from warnings import warn

__all__ = [
    "ArgumentError",
    "CheckpointError",
    "Code",
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
    "ScheduleError",
    "TensorError",
]


class Code(StrEnum):
    """The codes of all errors; which one says what is at fault, whatever the class of
    the error.

    Attributes
    ----------
    old : frozenset of str
        Codes of earlier versions with the same meaning, as ``minipipe.errors`` lists
        them. For one release each is equal to the code, with a ``DeprecationWarning``,
        except in sets and dictionaries, which look up by hash.
    is_misuse : bool
        In a :class:`ScheduleError`: whether the request is at fault, and not the
        schedule.

    Examples
    --------
    >>> Code("deadlock").is_misuse, Code("name").is_misuse
    (False, True)
    """

    old: frozenset[str]

    # Arguments.
    VALUE = "value"
    TYPE = "type"
    # one that does not exist, often from another library
    NAME = "name"
    SHAPE = "shape"
    DTYPE = "dtype"
    OUT_OF_RANGE = "out-of-range"  # an index or a number that does not exist
    WRONG_NUMBER = "wrong-number"
    TOO_FEW = "too-few"
    # something that belongs there: an action, a parameter or its values, a gradient
    MISSING = "missing"
    UNEXPECTED = "unexpected"  # something that does not belong there
    DUPLICATE = "duplicate"
    UNSUPPORTED = "unsupported"
    # Tensors and models.
    NO_GRAPH = "no-graph"
    CHANGED_IN_PLACE = "changed-in-place"
    NOT_REPEATABLE = "not-repeatable"  # computed again, a module gave other values
    DIVIDED = "divided"  # among ranks, although a whole was expected; or the reverse
    NOT_COPYABLE = "not-copyable"  # what belongs to its graph, its file or its ranks
    FROZEN = "frozen"
    # The place of the first value that is not finite; not-found if a second run had
    # none.
    NOT_FINITE = "not-finite"  # a gradient that an optimiser or a norm was to use
    INPUTS = "inputs"
    TARGETS = "targets"
    PARAMETER = "parameter"  # before the step
    FORWARD = "forward"
    LOSS = "loss"  # also a loss that no pipeline can compute
    BACKWARD = "backward"
    # Ranks and messages.
    DISAGREEMENT = "disagreement"  # ranks run different programs
    TIMEOUT = "timeout"
    DEADLOCK = "deadlock"
    # only if sends block until they are received
    RENDEZVOUS_DEADLOCK = "rendezvous-deadlock"
    RANK_LOST = "rank-lost"
    # a child of a rank, or a second thread of it
    NOT_A_RANK = "not-a-rank"
    CLOSED = "closed"
    UNAVAILABLE = "unavailable"
    # Files.
    NOT_FOUND = "not-found"
    UNREADABLE = "unreadable"
    UNWRITABLE = "unwritable"
    TOO_LARGE = "too-large"  # beyond a limit of minipipe/io.py
    # not the contents that were written there, or not all of them
    DAMAGED = "damaged"
    # of another model, optimiser or seed; claims that do not hold
    MISMATCH = "mismatch"
    # Schedules.
    SYNTAX = "syntax"
    PLACEMENT = "placement"
    ORDER = "order"
    OVERLAP = "overlap"
    MEMORY = "memory"
    STALENESS = "staleness"

    @classmethod
    def _missing_(cls, value: object) -> Code | None:
        return next((code for code in cls if value in _old_names(code)), None)

    def __eq__(self, other: object) -> bool:
        return self._equals(other)

    def __ne__(self, other: object) -> bool:  # str has its own
        return not self._equals(other)

    def _equals(self, other: object) -> bool:
        if other is self or str.__eq__(self, other) is True:
            return True
        if isinstance(other, Code) or other not in _old_names(self):
            return False
        message = (
            f"The error code {str(other)!r} is now {self.value!r}; the next release "
            "forgets the old one."
        )
        warn(message, DeprecationWarning, stacklevel=3)  # at the comparison
        return True

    __hash__ = str.__hash__

    @property
    def is_misuse(self) -> bool:
        """Whether the request is at fault, and not the schedule."""
        return self in (Code.VALUE, Code.NAME, Code.UNREADABLE, Code.TOO_LARGE)


def _old_names(code: Code) -> frozenset[str]:
    try:
        import minipipe.errors  # noqa: F401 -- sets them
    except ImportError:  # the core alone has none
        return frozenset()
    return code.old


class MinipipeError(Exception):
    """The root of the tree.

    Parameters
    ----------
    code : str
        A short constant name for programs: ``"too-few"``.
    message : str
        A sentence for people.

    Attributes
    ----------
    code : Code
        It equals its text: ``error.code == "too-few"``.
    is_self_explaining : bool
        Whether the sentence is sufficient; then a failing rank prints it without a
        traceback.

    Examples
    --------
    >>> from minipipe import partition_evenly
    >>> try:
    ...     partition_evenly(num_layers=2, num_stages=3)
    ... except MinipipeError as error:
    ...     print(error.code)
    too-few
    """

    is_self_explaining = True

    def __init__(self, code: str, message: str) -> None:
        self.code = Code(code)
        self.message = message
        super().__init__(self.code.value, message)

    def __str__(self) -> str:
        return self.message


class ArgumentError(MinipipeError, ValueError, TypeError):
    """An argument has a value or a type that does not fit, or a name that does not
    exist.

    ``ArgumentError(message)`` has the code ``value``, as most of them.

    Examples
    --------
    >>> from minipipe import nn
    >>> try:
    ...     nn.Dropout(2)
    ... except ArgumentError as error:
    ...     print(error.code)
    value
    """

    is_self_explaining = False

    def __init__(self, code: str, message: str | None = None) -> None:
        if message is None:
            super().__init__(Code.VALUE, code)
        else:
            super().__init__(code, message)


class TensorError(MinipipeError, ValueError):
    """An operation cannot be computed or differentiated.

    Examples
    --------
    >>> from minipipe import Tensor
    >>> try:
    ...     Tensor([1.0, 2.0], requires_grad=True).backward()
    ... except TensorError as error:
    ...     print(error.code)
    shape
    """

    is_self_explaining = False


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

    is_self_explaining = False


class NotFiniteError(MinipipeError, ArithmeticError):
    """A loss or a gradient of a step is infinite or not a number; the same error on
    every rank.

    Examples
    --------
    >>> import numpy as np
    >>> from minipipe import Pipeline, init_process_group, nn
    >>> with init_process_group() as group:
    ...     pipeline = Pipeline(
    ...         nn.Sequential(nn.Linear(2, 1)),
    ...         group,
    ...         loss=nn.MSELoss(),
    ...         num_microbatches=1,
    ...     )
    ...     try:
    ...         pipeline.step(np.full((1, 2), np.nan), np.ones((1, 1)))
    ...     except NotFiniteError as error:
    ...         print(error.code)
    inputs
    """


class ModelError(MinipipeError, TypeError):
    """A model cannot be partitioned into stages, or an object cannot be copied or
    pickled.

    Examples
    --------
    >>> from minipipe import Pipeline, functional, nn, spawn
    >>> try:
    ...     spawn(
    ...         lambda group: Pipeline(
    ...             nn.Linear(2, 3), group, loss=functional.cross_entropy
    ...         ),
    ...         1,
    ...     )
    ... except ModelError as error:
    ...     print(error.code)
    type
    """

    is_self_explaining = False


class PartitionError(MinipipeError, ValueError):
    """Layers cannot be divided among the stages.

    Examples
    --------
    >>> from minipipe import partition_evenly
    >>> try:
    ...     partition_evenly(num_layers=2, num_stages=3)
    ... except PartitionError as error:
    ...     print(error.code)
    too-few
    """


class MicrobatchError(MinipipeError, ValueError):
    """A batch cannot be divided into microbatches.

    Examples
    --------
    >>> from minipipe import split_microbatches
    >>> try:
    ...     split_microbatches(num_samples=2, num_microbatches=3)
    ... except MicrobatchError as error:
    ...     print(error.code)
    too-few
    """


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


class MessageError(MinipipeError, RuntimeError):
    """A message is late, lost or another than the expected one.

    Examples
    --------
    >>> from minipipe import spawn
    >>> try:
    ...     spawn(
    ...         lambda group: group.recv(1 - group.rank), 2
    ...     )  # each waits for the other
    ... except MessageError as error:
    ...     print(error.code)
    deadlock
    """


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


class RankLostError(MinipipeError, RuntimeError):
    """Ranks were lost, and the others cannot continue without them.

    Examples
    --------
    >>> print(RankLostError("rank-lost", "The values of stage 2 are lost."))
    The values of stage 2 are lost.
    """


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

    def __init__(self, code: str, message: str) -> None:
        super().__init__(code, message)
        self.errno = None  # where OSError keeps its first argument

    @classmethod
    def of(cls, path: object, reason: str, code: str = Code.UNREADABLE) -> FileError:
        """Return the error of a file that cannot be read; a path is quoted in at most
        200 characters.
        """
        name = str(path) if isinstance(path, PathLike) else path
        return cls(code, f"{quoted(name, 200)} cannot be read: {reason}.")


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


class CourseworkError(MinipipeError, ValueError):
    """Coursework cannot be written or graded as requested.

    Examples
    --------
    >>> from minipipe.coursework import grade
    >>> try:
    ...     grade("coursework", only="no such task")
    ... except CourseworkError as error:
    ...     print(error.code)
    name
    """


class Problem(NamedTuple):
    """One thing that is wrong with a schedule.

    Attributes
    ----------
    code : Code
        The kind of problem, for programs; equal to its text, such as ``"missing"``.
    message : str
        A sentence.
    rank : int or None
        The rank in whose list of actions the problem is.
    step : int or None
        The position of the action in that list, from 0.

    Examples
    --------
    >>> problem = Problem(Code.MISSING, "1B0 is missing on rank 1.", rank=1)
    >>> problem.code == "missing", problem.rank, problem.step
    (True, 1, None)
    """

    code: Code
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

    def __init__(self, problems: Sequence[Problem], grid: str = "") -> None:
        self.problems = tuple(
            problem._replace(code=Code(problem.code)) for problem in problems
        )
        self.grid = grid
        first = self.problems[0]
        more = len(self.problems) - 1
        others = f" ({counted(more, 'more problem')} in .problems)" if more else ""
        drawing = f"\n\n{grid}" if grid else ""
        super().__init__(first.code, f"[{first.code}] {first.message}{others}{drawing}")

    @classmethod
    def of(
        cls, code: Code, message: str, rank: int | None = None, step: int | None = None
    ) -> ScheduleError:
        """Return the error of a single problem."""
        return cls([Problem(code, message, rank, step)])

    def __reduce__(self) -> tuple:
        return type(self), (self.problems, self.grid)


# -- common messages -------------------------------------------------------------------


def quoted(given: object, most: int = 60) -> str:
    """Return the repr of anything in at most ``most`` printable characters, for a
    message.

    It always succeeds, although a repr may fail: for example of an integer with more
    than 4300 digits.

    Examples
    --------
    >>> quoted("x" * 100, most=10), quoted(10**5000)
    ("'xxxxxxxx…", 'a value of type int')
    """
    try:
        text = repr(given[: most + 1] if isinstance(given, str | bytes) else given)
    except Exception:  # a class may do anything in its __repr__
        text = f"a value of type {type(given).__name__}"
    text = "".join(
        c if c.isprintable() else c.encode("unicode_escape").decode()
        for c in text[: most + 1]
    )
    return text if len(text) <= most else f"{text[: most - 1]}…"


def not_copyable(given: object, why: str, instead: str) -> ModelError:
    """Return the error of an attempt to copy or pickle an object that is not a value.

    Examples
    --------
    >>> print(not_copyable(open, "it is bound to its file", "Copy the path."))
    A builtin_function_or_method cannot be copied or pickled: it is bound to its file. Copy the path.
    """
    return ModelError(
        "not-copyable",
        f"A {type(given).__name__} cannot be copied or pickled: {why}. {instead}",
    )


def warn_caller(message: str, category: type[Warning] = UserWarning) -> None:
    """Warn, at the line of the program that has called minipipe: however deep inside it
    this is called.

    Examples
    --------
    >>> import warnings
    >>> with warnings.catch_warnings(record=True) as caught:
    ...     warnings.simplefilter("always")
    ...     warn_caller("Not a good idea.")
    >>> caught[0].lineno
    3
    """
    inside = dirname(dirname(__file__))
    frame = sys._getframe(1)
    level = 2
    while frame.f_code.co_filename.startswith(inside) and frame.f_back is not None:
        frame = frame.f_back
        level = level + 1
    warn(message, category, stacklevel=level)


def counted(count: float, noun: str) -> str:
    """Return a number with its noun, in the plural unless it is 1.

    Examples
    --------
    >>> (
    ...     counted(1, "rank"),
    ...     counted(2, "microbatch"),
    ...     counted(0, "copy"),
    ...     counted(2, "key"),
    ...     counted(1.5, "core"),
    ...     counted(4096, "rank"),
    ... )
    ('1 rank', '2 microbatches', '0 copies', '2 keys', '1.5 cores', '4096 ranks')
    """
    text = str(count) if isinstance(count, int) else f"{count:g}"
    if text == "1":
        return f"1 {noun}"
    if noun.endswith("is"):
        return f"{text} {noun[:-2]}es"  # as axis, axes
    if noun.endswith(("ch", "sh", "s", "x")):
        return f"{text} {noun}es"
    if noun.endswith("y") and not noun.endswith(("ay", "ey", "oy", "uy")):
        return f"{text} {noun[:-1]}ies"
    return f"{text} {noun}s"


def misuse(message: str, code: Code = Code.VALUE) -> ScheduleError:
    """Return the error of a request about schedules that cannot be carried out.

    Examples
    --------
    >>> misuse("There are 3 ranks; dualpipe takes an even number.").code.value
    'value'
    """
    return ScheduleError.of(code, message)


def shape_error(
    operation: str, expected: str, **shapes: tuple[int, ...]
) -> TensorError:
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
    (first, shape), *others = (
        (name.replace("_", " "), shape) for name, shape in shapes.items()
    )
    rest = "".join(f", {name} {shape}" for name, shape in others)
    return TensorError(
        "shape", f"{operation}: {first} has shape {shape}{rest}; expected {expected}."
    )


for _name in __all__:  # as users import them: so a traceback prints them
    globals()[_name].__module__ = "minipipe.errors"

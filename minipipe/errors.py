"""One tree of errors, each with a code for programs and a sentence for people.

Programs (and the tests) compare ``error.code``; people read the sentence, which says what was given, what was
expected and what to do. Both towers, numerics and schedules, import this file, so it imports nothing.
"""

from __future__ import annotations

from collections.abc import Sequence
from enum import StrEnum
from typing import NamedTuple

__all__ = [
    "CourseworkError",
    "LaunchError",
    "MessageError",
    "MicrobatchError",
    "MinipipeError",
    "ModelError",
    "ParameterError",
    "PartitionError",
    "Problem",
    "RankError",
    "ScheduleCode",
    "ScheduleError",
    "TensorError",
]


class MinipipeError(Exception):
    """The root of the tree.

    Parameters
    ----------
    code : str
        A short word that never changes, for programs: ``"too-few-layers"``.
    message : str
        A sentence for people.

    Attributes
    ----------
    is_self_explaining : bool
        Whether the sentence says all; then a failing rank prints it without a traceback.

    Examples
    --------
    >>> from minipipe import partition_evenly
    >>> try:
    ...     partition_evenly(num_layers=2, num_stages=3)
    ... except MinipipeError as error:
    ...     print(error.code)
    too-few-layers
    """

    is_self_explaining = False

    def __init__(self, code: str, message: str) -> None:
        super().__init__(code, message)
        self.code = code
        self.message = message

    def __str__(self) -> str:
        return self.message


class TensorError(MinipipeError, ValueError):
    """An operation cannot be computed or differentiated.

    Codes: shape, dtype, not-scalar, no-graph, backward-twice, range, no-gradient, changed-in-place.

    Examples
    --------
    >>> from minipipe import Tensor
    >>> try:
    ...     Tensor([1.0, 2.0], requires_grad=True).backward()
    ... except TensorError as error:
    ...     print(error.code)
    not-scalar
    """


class ParameterError(MinipipeError, ValueError):
    """A parameter has no values, unfit ones or a useless gradient.

    Codes: uninitialised, missing, unexpected, shape, not-finite.

    Examples
    --------
    >>> from minipipe import nn
    >>> try:
    ...     nn.Linear(2, 3).load_state_dict({})
    ... except ParameterError as error:
    ...     print(error.code)
    missing
    """


class ModelError(MinipipeError, TypeError):
    """A model cannot be cut into stages (not-a-sequence, loss, loss-with-parameters, planned).

    Examples
    --------
    >>> from minipipe import Pipeline, functional, nn, spawn
    >>> try:
    ...     spawn(lambda group: Pipeline(nn.Linear(2, 3), group, loss=functional.cross_entropy), 1)
    ... except ModelError as error:
    ...     print(error.code)
    not-a-sequence
    """


class PartitionError(MinipipeError, ValueError):
    """Layers cannot be divided among the stages (zero-stages, too-few-layers, invalid-cost, not-a-partition).

    Examples
    --------
    >>> from minipipe import partition_evenly
    >>> try:
    ...     partition_evenly(num_layers=2, num_stages=3)
    ... except PartitionError as error:
    ...     print(error.code)
    too-few-layers
    """

    is_self_explaining = True


class MicrobatchError(MinipipeError, ValueError):
    """A batch cannot be divided into microbatches (too-few-samples, out-of-range, unequal-lengths).

    Examples
    --------
    >>> from minipipe import split_microbatches
    >>> try:
    ...     split_microbatches(num_samples=2, num_microbatches=3)
    ... except MicrobatchError as error:
    ...     print(error.code)
    too-few-samples
    """

    is_self_explaining = True


class RankError(MinipipeError, ValueError):
    """A rank does not exist, or there are too many or too few of them (out-of-range, wrong-number, disagreement).

    Examples
    --------
    >>> from minipipe import spawn
    >>> try:
    ...     spawn(lambda group: group.rank, 0)
    ... except RankError as error:
    ...     print(error.code)
    wrong-number
    """

    is_self_explaining = True


class MessageError(MinipipeError, RuntimeError):
    """A message is late, lost or not what was expected (shape, dtype, step, header, timeout, deadlock, peer-left).

    Examples
    --------
    >>> from minipipe import spawn
    >>> try:
    ...     spawn(lambda group: group.recv(1 - group.rank), 2)  # each waits for the other
    ... except MessageError as error:
    ...     print(error.code)
    deadlock
    """

    is_self_explaining = True


class LaunchError(MinipipeError, RuntimeError):
    """The ranks cannot be started as asked (no-mpi4py, wrong-mpi, no-gpu, closed).

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

    is_self_explaining = True


class CourseworkError(MinipipeError, ValueError):
    """Coursework cannot be written or graded as asked.

    Codes: no-source, markers, not-empty, not-written, wrong-directory, unknown-task, time-limit.

    Examples
    --------
    >>> from minipipe.coursework import grade
    >>> try:
    ...     grade("coursework", only="no such task")
    ... except CourseworkError as error:
    ...     print(error.code)
    unknown-task
    """

    is_self_explaining = True


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
    # The text or the object is not a schedule.
    SYNTAX = "syntax"
    EMPTY = "empty"
    PLACEMENT = "placement"
    NOT_A_SCHEDULE = "not-a-schedule"
    # The schedule is not legal. In this order the verifier looks for them.
    OUT_OF_RANGE = "out-of-range"
    WRONG_RANK = "wrong-rank"
    DUPLICATE = "duplicate"
    TAG_COLLISION = "tag-collision"
    MISSING = "missing"
    MIXED_BACKWARD = "mixed-backward"
    NO_PARTNER = "no-partner"
    ORDER = "order"
    DEADLOCK = "deadlock"
    RENDEZVOUS_DEADLOCK = "rendezvous-deadlock"
    MEMORY = "memory"
    # The schedule is legal and does not serve the purpose.
    FORWARD_ONLY = "forward-only"
    NO_FORMULA = "no-formula"

    @property
    def is_misuse(self) -> bool:
        """Whether the request is at fault, and not the schedule."""
        return self in (ScheduleCode.UNKNOWN, ScheduleCode.PARAMETERS, ScheduleCode.COSTS, ScheduleCode.FILE)


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
        The index of the action in that list, from 0.

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
        Ordered, the cause first. The message is that of the first.
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

    is_self_explaining = True

    def __init__(self, problems: Sequence[Problem], grid: str = "") -> None:
        self.problems = tuple(problem._replace(code=ScheduleCode(problem.code)) for problem in problems)
        self.grid = grid
        first = self.problems[0]
        more = len(self.problems) - 1
        others = f" ({more} more problem{'s' * (more > 1)} in .problems)" if more else ""
        drawing = f"\n\n{grid}" if grid else ""
        super().__init__(first.code, f"[{first.code}] {first.message}{others}{drawing}")

    @classmethod
    def of(cls, code: ScheduleCode, message: str, rank: int | None = None, step: int | None = None) -> ScheduleError:
        """Return the error of a single problem."""
        return cls([Problem(code, message, rank, step)])

    def __reduce__(self) -> tuple:
        return type(self), (self.problems, self.grid)

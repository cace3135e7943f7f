"""A student's module as seen by tests, functions of plain data in any process; a test,
and its result.

A test runs in the grader's process, the student's code in another. Only calls and
values pass between the two, as plain data: numbers, text, None, arrays of numbers, and
lists of them. So student code cannot replace a comparison, and has neither the test nor
the expected value. Arguments other than plain data, such as tensors or a schedule, are
built around the call by a function of the checks that is marked ``remote``::

    @remote  # runs in the student's process; task is the module
    def differentiated(task, a, b, gradient):
        x, y = Tensor(a, requires_grad=True), Tensor(b, requires_grad=True)
        result = task.multiply(x, y)
        result.backward(gradient)
        return result.numpy(), x.grad, y.grad


    def test_two_factors(task):  # runs in the grader
        value, *gradients = differentiated(task, a, b, gradient)

Remote functions belong above ``# HIDDEN``: the student's process never gets the rest of
the checks.
"""

from __future__ import annotations

import base64
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from difflib import get_close_matches
from functools import partial, wraps
from numbers import Real
from pathlib import Path
from traceback import walk_tb
from types import ModuleType
from typing import Any, NamedTuple, NoReturn

import numpy as np

from minipipe.core.schedules.action import Action
from minipipe.coursework.expectations import Unexpected, shown
from minipipe.errors import CourseworkError, not_copyable

# pytest shows a student frames of his own files, and none of this one
__tracebackhide__ = True
_DTYPES = {np.dtype(code).str: np.dtype(code) for code in "?bBhHiIqQefd"}


class Task:
    """A student's module: its functions by name, called with plain data.

    Parameters
    ----------
    ask : function
        A function of the name of a student's function, or of a remote function of the
        checks, and of its arguments.

    Examples
    --------
    >>> Task(lambda function, arguments: f"{function}{arguments}").rows(2, 3)
    'rows(2, 3)'
    """

    def __init__(
        self, ask: Callable[[str | Callable[..., Any], tuple[Any, ...]], Any]
    ) -> None:
        self._ask = ask

    def __reduce_ex__(self, protocol: object) -> NoReturn:
        """Refuse to be copied and pickled."""
        why = "its functions run in the student's process"
        raise not_copyable(self, why, "Copy what they return.")

    def __getattr__(self, name: str) -> Callable[..., Any]:
        # Python asks for these, such as __deepcopy__; no student's function has such a
        # name
        if name.startswith("__"):
            raise AttributeError(f"A Task has no {name}.")
        return lambda *arguments: self._ask(name, arguments)


def remote(function: Callable[..., Any]) -> Callable[..., Any]:
    """Mark a function of the checks that runs in the student's process, with ``task``
    the module.

    Arguments and result are plain data. Called with a module instead of a
    :class:`Task`, it runs in this process.

    Examples
    --------
    >>> @remote
    ... def first_row(task, num_ranks):
    ...     return task.rows(num_ranks)[0]
    >>> module = ModuleType("mine")
    >>> module.rows = lambda num_ranks: [["0F0", "0B0"]] * num_ranks
    >>> first_row(local_task(module), 2)
    ['0F0', '0B0']
    """

    @wraps(function)
    def wrapper(task: Any, *arguments: Any) -> Any:
        if isinstance(task, Task):
            return task._ask(wrapper, arguments)
        return function(task, *arguments)

    return wrapper


def local_task(module: ModuleType) -> Task:
    """Return a task that runs in this process, for students' own tests; it also passes
    only plain data.

    Examples
    --------
    >>> module = ModuleType("mine")
    >>> module.rows = range
    >>> local_task(module).rows(3)
    [0, 1, 2]
    """

    def ask(function: str | Callable[..., Any], arguments: tuple[Any, ...]) -> Any:
        return unpacked(packed_result(module, function, unpacked(packed(arguments))))

    return Task(ask)


def packed_result(
    module: ModuleType, function: str | Callable[..., Any], arguments: Sequence[Any]
) -> Any:
    """Call a function with plain data, and return its result packed."""
    if isinstance(function, str):
        name = function
        called: Any = getattr(module, name, None)
        if called is None and not hasattr(module, name):
            near = get_close_matches(name, vars(module), 1, cutoff=0.5)
            guess = ""
            if near and not near[0].startswith("_"):
                guess = f"; is it {near[0]}? Name it {name} again"
            expected = "a function of this name, as in the original file"
            raise Unexpected(name, expected, f"none{guess}")
    else:
        name = function.__name__
        called = partial(function, module)
    # Describe the call before the student's code can change the arguments.
    call = f"{name}({', '.join(map(shown, arguments))})"
    return packed(called(*arguments), call)


def packed(value: Any, what: str = "an argument") -> Any:
    """Return plain data in JSON's types; raise ``Unexpected`` for anything else.

    Examples
    --------
    >>> packed((1, np.float64(0.5), [Action.parse("0F0")]))
    [1, 0.5, ['0F0']]
    """
    if isinstance(value, np.generic):
        value = value.item()
    if isinstance(value, np.ndarray) and value.dtype.str in _DTYPES:
        data = base64.b64encode(value.tobytes()).decode()
        return {"dtype": value.dtype.str, "shape": list(value.shape), "data": data}
    if isinstance(value, Action):
        return str(value)
    if value is None or isinstance(value, (bool, str)):
        return value
    if isinstance(value, int):
        return int(value)
    if isinstance(value, Real):
        return float(value)
    if isinstance(value, (Sequence, Iterator)) and not isinstance(value, bytes):
        return [packed(item, what) for item in value]
    expected = "numbers, text, or lists of them"
    raise Unexpected(what, expected, f"an object {shown(value)}")


def unpacked(data: Any) -> Any:
    """Return the plain data of :func:`packed`; of forged data, raise ValueError,
    TypeError or KeyError.

    Examples
    --------
    >>> unpacked([1, {"dtype": "|b1", "shape": [2], "data": "AAE="}])
    [1, array([False,  True])]
    """
    if isinstance(data, list):
        return [unpacked(item) for item in data]
    if not isinstance(data, dict):
        return data
    content = base64.b64decode(data["data"])
    array = np.frombuffer(content, _DTYPES[data["dtype"]])
    return array.reshape(data["shape"]).copy()


_LONGEST = 4000  # characters of each part of a result
_LONGEST_LINE = 200  # characters of a line that is quoted


class CheckResult(NamedTuple):
    """The result of a test.

    Attributes
    ----------
    passed : bool
    reason : str
        One sentence; empty if it passed.
    expected, got : str
        The two values, if values were compared.
    where : str
        A line of the student's file.
    compared : str
        The call that gave the compared value.
    drawing : str
        The drawing of a compared schedule, with its problem marked.
    is_unwritten : bool
        Whether the test reached a part that is not written yet.
    """

    passed: bool
    reason: str = ""
    expected: str = ""
    got: str = ""
    where: str = ""
    compared: str = ""
    drawing: str = ""
    is_unwritten: bool = False


class Failed(Exception):
    """A call of the student's code failed, in this process or another."""

    def __init__(self, outcome: CheckResult) -> None:
        message = outcome.reason
        if outcome.where:
            message += f" ({outcome.where})"
        super().__init__(message)
        self.outcome = outcome


class Ended(Exception):
    """The student's process has exited."""


class Late(Ended):
    """The student's process is out of time."""


def load(
    name: str, text: str, path: str | Path = "", names: Mapping[str, Any] | None = None
) -> ModuleType:
    """Return a module with this source text and these initial names; raise the
    exceptions of the text.
    """
    # dataclasses look up their module in sys.modules.
    sys.modules[name] = module = ModuleType(name)
    module.__file__ = str(path or f"{name}.py")
    module.__dict__.update(names or {})
    exec(compile(text, module.__file__, "exec", dont_inherit=True), module.__dict__)
    return module


def load_checks(name: str, text: str) -> ModuleType:
    """Return the checks of an exercise as a module.

    Raises
    ------
    CourseworkError
        Code ``damaged``, if they cannot be loaded.
    """
    try:
        return load(f"checks_of_{name}", text)
    except Exception as error:
        problem = f"its checks cannot be loaded: {type(error).__name__}: {error}"
        raise CourseworkError("damaged", f"{name}: {problem}.") from None


def run_test(test: Callable[[Task], object], task: Task) -> CheckResult:
    """Run one test of a student's task, a function that raises if something is wrong;
    ``Ended`` propagates.
    """
    try:
        test(task)
    except Failed as failed:
        return failed.outcome
    except Ended:
        raise
    except Exception as error:
        return outcome_of(error)
    return CheckResult(True)


def reply_of(
    task: ModuleType, function: str | Callable[..., Any], arguments: Any, text: str
) -> dict[str, Any]:
    """Return the reply to a call: its value, or the result of a test whose call raised
    this exception.
    """
    try:
        return {"value": packed_result(task, function, unpacked(arguments))}
    except BaseException as error:
        return {"outcome": outcome_of(error, str(task.__file__), text)._asdict()}


def value_of(reply: Mapping[str, Any]) -> Any:
    """Return the value of a reply, which the student's code may have forged.

    Raises
    ------
    Failed
        With a result instead of a value.
    """
    try:
        if "outcome" not in reply:
            return unpacked(reply["value"])
        outcome = CheckResult(**{**reply["outcome"], "passed": False})
        are_usual = map(isinstance, outcome, map(type, CheckResult(True)))
        if outcome.reason and all(are_usual):
            raise Failed(CheckResult(*map(_cut, outcome)))
    except (ValueError, TypeError, KeyError, AttributeError, ArithmeticError):
        pass
    except (RecursionError, MemoryError):
        pass
    raise Failed(CheckResult(False, "its process returned an invalid result"))


def _cut(value: Any) -> Any:
    if isinstance(value, str):
        return value[:_LONGEST]
    return value


def outcome_of(error: BaseException, path: str = "", text: str = "") -> CheckResult:
    """Explain an exception to the student, with the path and text of the file."""
    where = _where(error, path, text)
    is_unwritten = isinstance(error, NotImplementedError)
    if isinstance(error, Unexpected):
        return CheckResult(
            False,
            str(error),
            error.expected,
            error.got,
            compared=error.what,
            drawing=error.drawing,
        )
    if is_unwritten:
        reason = f"not written yet: {_message(error)}"
    elif isinstance(error, SystemExit):
        reason = f"it called sys.exit({shown(error.code)}); return a result instead"
    elif isinstance(error, MemoryError):
        reason = "it needed more memory than a task may use"
    elif isinstance(error, AssertionError):
        reason = _message(error) or "an assertion failed"
    elif isinstance(error, SyntaxError) and error.filename in (path, None):
        reason = f"it is not valid Python: {error.msg}"
        where = ""
        if error.lineno:
            line = (error.text or "").strip()[:_LONGEST_LINE]
            where = f"line {error.lineno}: {line}"
    else:
        reason = f"it raised {type(error).__name__}: {_message(error)}"
    return CheckResult(False, reason, where=where, is_unwritten=is_unwritten)


def _message(error: BaseException) -> str:
    try:
        return str(error)[:2000]
    except Exception:
        return "(an error that cannot be printed)"


def _where(error: BaseException, path: str, text: str) -> str:
    """Return the innermost line of the student's file in a traceback."""
    # traceback.extract_tb would read the file again, in the encoding that it declares.
    where = ""
    lines = text.split("\n")
    for frame, number in walk_tb(error.__traceback__):
        if frame.f_code.co_filename == path and number <= len(lines):
            where = f"line {number}: {lines[number - 1].strip()[:_LONGEST_LINE]}"
    return where

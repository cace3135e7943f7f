"""A student's module as tests see it: functions of plain data, wherever the module is.

A test runs in the grader's process, the student's code in another. Only calls and values pass between the two, as
plain data: numbers, text, None, arrays of numbers, and lists of them. So student code cannot replace a comparison, and
has neither the test nor the expected value. Arguments other than plain data, such as tensors or a schedule, are built
around the call by a function of the checks that is marked ``remote``::

    @remote
    def differentiated(task, a, b, gradient):      # runs beside the student's code; task is the module
        x, y = Tensor(a, requires_grad=True), Tensor(b, requires_grad=True)
        result = task.multiply(x, y)
        result.backward(gradient)
        return result.numpy(), x.grad, y.grad

    def test_two_factors(task):                    # runs in the grader
        value, *gradients = differentiated(task, a, b, gradient)

Remote functions belong above ``# HIDDEN``: the student's process never gets the rest of the checks.
"""

from __future__ import annotations

import base64
from collections.abc import Callable, Iterator, Sequence
from functools import partial, wraps
from numbers import Real
from types import ModuleType
from typing import Any

import numpy as np

from minipipe.coursework.expectations import Unexpected, shown
from minipipe.schedules.action import Action

_DTYPES = {np.dtype(code).str: np.dtype(code) for code in "?bBhHiIqQefd"}


class Task:
    """A student's module: its functions by name, called with plain data.

    Parameters
    ----------
    ask : function
        Of the name of a student's function, or of a remote function of the checks, and its arguments.

    Examples
    --------
    >>> Task(lambda function, given: f"{function}{given}").rows(2, 3)
    'rows(2, 3)'
    """

    def __init__(self, ask: Callable[[str | Callable[..., Any], tuple[Any, ...]], Any]) -> None:
        self._ask = ask

    def __getattr__(self, name: str) -> Callable[..., Any]:
        return lambda *given: self._ask(name, given)


def remote(function: Callable[..., Any]) -> Callable[..., Any]:
    """Mark a function of the checks that runs beside the student's code, where ``task`` is the module.

    Arguments and result are plain data. Called with a module instead of a :class:`Task`, it runs in this process.

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
    def asked(task: Any, *given: Any) -> Any:
        return task._ask(asked, given) if isinstance(task, Task) else function(task, *given)

    return asked


def local_task(module: ModuleType) -> Task:
    """Return a task that runs in this process, for students' own tests; it also passes only plain data.

    Examples
    --------
    >>> module = ModuleType("mine")
    >>> module.rows = range
    >>> local_task(module).rows(3)
    [0, 1, 2]
    """
    return Task(lambda function, given: unpacked(packed_result(module, function, unpacked(packed(given)))))


def packed_result(module: ModuleType, function: str | Callable[..., Any], given: Sequence[Any]) -> Any:
    """Call a function with plain data, and return its result packed."""
    name = function if isinstance(function, str) else function.__name__
    called = getattr(module, name) if isinstance(function, str) else partial(function, module)
    call = f"{name}({', '.join(map(shown, given))})"  # before the student's code can change the arguments
    return packed(called(*given), call)


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
    if isinstance(value, Real):
        return int(value) if isinstance(value, int) else float(value)
    if isinstance(value, (Sequence, Iterator)) and not isinstance(value, bytes):
        return [packed(item, what) for item in value]
    raise Unexpected(what, "numbers, text, or lists of them", f"an object {shown(value)}")


def unpacked(data: Any) -> Any:
    """Return the plain data of :func:`packed`; of forged data, raise ValueError, TypeError or KeyError.

    Examples
    --------
    >>> unpacked([1, {"dtype": "|b1", "shape": [2], "data": "AAE="}])
    [1, array([False,  True])]
    """
    if isinstance(data, list):
        return [unpacked(item) for item in data]
    if not isinstance(data, dict):
        return data
    return np.frombuffer(base64.b64decode(data["data"]), _DTYPES[data["dtype"]]).reshape(data["shape"]).copy()

"""Other versions of a function of arrays, for the arrays of some modules.

A function that has none is called as it is: arrays of NumPy do not wait for a choice of
another module, unless the process has chosen one.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from functools import wraps
from typing import Any

from minipipe.core.autograd.backend import Array, array_module
from minipipe.core.autograd.operation import SHAPE, GradientRule
from minipipe.gpu.kernels import real_of


def by_module(
    plain: Callable[..., Any], module: str, version: Callable[..., Any]
) -> Callable[..., Any]:
    """Return a function of arrays with another version for the arrays of a module.

    The first argument decides. A version gets arrays of float32 or float64; all others
    are left to the plain function, and those for which it returns ``NotImplemented``.

    Examples
    --------
    >>> import numpy as np
    >>> size = by_module(lambda x: x.size, "numpy", lambda x: f"{x.size} in NumPy")
    >>> size(np.ones(3)), size(np.ones(3, np.float16))
    ('3 in NumPy', 3)
    """

    @wraps(plain)  # with the signature, for messages
    def call(array: Array, *others: Any, **attributes: Any) -> Any:
        result = NotImplemented
        if array_module(array).__name__ == module and real_of(array.dtype) is not None:
            result = version(array, *others, **attributes)
        if result is NotImplemented:
            return plain(array, *others, **attributes)
        return result

    return call


def add_version(
    function: Any,
    module: str,
    forward: Callable[..., Any] | None = None,
    **rules: Callable[..., Array],
) -> None:
    """Let a function compute in another way for arrays of a module.

    Parameters
    ----------
    function : function
        One that calls an operation with tensors, such as ``functional.gelu``; or one of
        arrays, which its module calls by its name.
    module : str
        The name of the array module.
    forward : function, optional
        Takes and returns the same as the function itself, or as the operation.
    **rules : function
        By the name of an input or of a shared value of the operation, the rule for it,
        as for ``gradients`` and ``shared`` of :func:`minipipe.op`.
    """
    for name, rule in rules.items():
        operation = function.operation
        table = operation.steps if name in operation.steps else operation.shared
        table[name] = _with_version(table[name], module, rule)
        operation.plans.clear()
    if forward is not None:
        set_forward(function, by_module(forward_of(function), module, forward))


def forward_of(function: Any) -> Callable[..., Any]:
    """Return the function of arrays by which an operation computes; or the function
    that has the name of another one now.
    """
    if hasattr(function, "operation"):
        return function.operation.forward
    return getattr(sys.modules[function.__module__], function.__name__)


def set_forward(function: Any, forward: Callable[..., Any]) -> None:
    """Let an operation compute with another function, or give the name of a function in
    its module to another one.

    The printed call of an operation (``core/autograd/calls.py``) refers to its function
    by a closure.
    """
    if not hasattr(function, "operation"):
        setattr(sys.modules[function.__module__], function.__name__, forward)
        return
    number = function.__code__.co_freevars.index("forward")
    function.__closure__[number].cell_contents = forward
    function.operation.forward = forward


def _with_version(
    plain: GradientRule, module: str, function: Callable[..., Array]
) -> GradientRule:
    """Return a rule with another function for gradients of a module. It needs what both
    functions name.
    """
    other = GradientRule.of(plain.name, function)
    needs = tuple(dict.fromkeys(plain.needs + other.needs))
    takes_shape = plain.takes_shape or other.takes_shape
    both = by_module(_from(plain, needs), module, _from(other, needs))
    return GradientRule(plain.name, both, needs, takes_shape)


def _from(rule: GradientRule, available: tuple[str, ...]) -> Callable[..., Array]:
    """Return the function of a rule that takes all available values, and perhaps the
    shape.
    """
    names = (*rule.needs, *[SHAPE] * rule.takes_shape)
    places = [(*available, SHAPE).index(name) for name in names]
    return lambda g, *values: rule.function(g, *[values[place] for place in places])

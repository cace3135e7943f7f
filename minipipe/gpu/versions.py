"""Other versions of an operation's functions, for the arrays of some modules.

An operation that has none calls its own functions as they are: arrays of NumPy do not
wait for a choice of another module, unless the process has chosen one.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import update_wrapper
from typing import Any

from minipipe.core.autograd.backend import Array, array_module
from minipipe.core.autograd.operation import SHAPE, GradientRule


class ByModule:
    """A function of arrays with other versions for arrays of some modules.

    Parameters
    ----------
    plain : function
        Its first argument is an array, which decides.
    versions : dict of str to function
        By the name of the module.

    Examples
    --------
    >>> import numpy as np
    >>> size = ByModule(lambda x: x.size, {"numpy": lambda x: f"{x.size} in NumPy"})
    >>> size(np.ones(3))
    '3 in NumPy'
    """

    def __init__(
        self, plain: Callable[..., Any], versions: dict[str, Callable[..., Any]]
    ) -> None:
        update_wrapper(self, plain)  # the signature, for messages; and all attributes
        self.plain = plain
        self.versions = versions

    def __call__(self, array: Array, *others: Any, **attributes: Any) -> Any:
        name = array_module(array).__name__
        return self.versions.get(name, self.plain)(array, *others, **attributes)


def add_version(
    function: Any,
    module: str,
    forward: Callable[..., Any] | None = None,
    **rules: Callable[..., Array],
) -> None:
    """Let an operation compute with other functions for arrays of a module.

    Parameters
    ----------
    function : function
        The one that calls the operation with tensors: ``functional.gelu``.
    module : str
        The name of the array module.
    forward : function, optional
        Takes and returns what the operation's own does.
    **rules : function
        By the name of an input or of a shared value, the rule for it, as for
        ``gradients`` and ``shared`` of :func:`minipipe.op`.
    """
    operation = function.operation
    for name, rule in rules.items():
        table = operation.steps if name in operation.steps else operation.shared
        table[name] = _with_version(table[name], module, rule)
    operation.plans.clear()
    if forward is not None:
        set_forward(function, ByModule(operation.forward, {module: forward}))


def set_forward(function: Any, forward: Callable[..., Any]) -> None:
    """Let an operation compute with another function, which its printed call
    (``core/autograd/calls.py``) refers to by a closure.
    """
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
    by_module = ByModule(_from(plain, needs), {module: _from(other, needs)})
    return GradientRule(plain.name, by_module, needs, takes_shape)


def _from(rule: GradientRule, available: tuple[str, ...]) -> Callable[..., Array]:
    """Return the function of a rule that takes all available values, and perhaps the
    shape.
    """
    names = (*rule.needs, *[SHAPE] * rule.takes_shape)
    places = [(*available, SHAPE).index(name) for name in names]
    return lambda g, *values: rule.function(g, *[values[place] for place in places])

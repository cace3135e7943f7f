"""A group of parameters with its hyper-parameters, and the range of each hyper-parameter."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from math import inf, nan
from numbers import Real
from types import SimpleNamespace
from typing import Any

from minipipe.errors import ArgumentError
from minipipe.nn.parameter import Parameter


class ParameterGroup(SimpleNamespace):
    """Parameters that are changed by the same rule with the same numbers.

    Parameters
    ----------
    parameters : iterable of Parameter
    hyper_parameters : mapping
        Each becomes an attribute, ``group.learning_rate``, which may be changed between steps. Numbers are kept as
        Python floats: those leave float32 alone, where NumPy's float64 would not.

    Attributes
    ----------
    parameters : tuple of Parameter

    Raises
    ------
    ArgumentError
        Code ``value``: when a number is out of its range, here or when it is changed.
        Code ``type``: when something is no parameter.
    AttributeError
        When an attribute is set that is not there.

    Examples
    --------
    >>> from minipipe import nn, optim
    >>> weight, bias = nn.Linear(4, 3).parameters()
    >>> groups = [{"parameters": [weight]}, {"parameters": [bias], "weight_decay": 0}]
    >>> optim.AdamW(groups, learning_rate=0.01).groups[1]
    ParameterGroup(1 parameters, learning_rate=0.01, betas=(0.9, 0.999), epsilon=1e-08, weight_decay=0.0)
    """

    def __init__(self, parameters: Iterable[Parameter], hyper_parameters: Mapping[str, Any]) -> None:
        numbers = {name: checked(name, value) for name, value in hyper_parameters.items()}
        super().__init__(parameters=tuple(map(_as_parameter, parameters)), **numbers)

    def __setattr__(self, name: str, value: Any) -> None:
        if name not in self.hyper_parameters:
            known = ", ".join(self.hyper_parameters)
            raise AttributeError(f"{name} cannot be set in this group of parameters; expected one of {known}.")
        super().__setattr__(name, checked(name, value))

    @property
    def hyper_parameters(self) -> dict[str, Any]:
        """The hyper-parameters as they are now, by name."""
        return {name: value for name, value in vars(self).items() if name != "parameters"}

    def __repr__(self) -> str:
        numbers = ", ".join(f"{name}={value}" for name, value in self.hyper_parameters.items())
        return f"ParameterGroup({len(self.parameters)} parameters, {numbers})"


_RANGES = {
    "learning_rate": (lambda x: 0 <= x < inf, "a finite number, at least 0"),
    "momentum": (lambda x: 0 <= x < 1, "at least 0 and less than 1"),
    "weight_decay": (lambda x: 0 <= x < inf, "a finite number, at least 0"),
    "betas": (lambda x: 0 <= x < 1, "two numbers, each at least 0 and less than 1"),
    "epsilon": (lambda x: 0 < x < inf, "a finite number, more than 0"),  # at 0, a gradient of 0 would be 0 / 0
}


def checked(name: str, value: Any) -> Any:
    """Return a hyper-parameter as a Python float, or as a pair of them. Names without a range pass as they are."""
    if name not in _RANGES:
        return value
    is_in_range, expected = _RANGES[name]
    is_pair = name == "betas"
    given = value if is_pair and isinstance(value, Sequence) else (value,)
    # True is no number here, and nan lies in no range.
    numbers = tuple(float(x) if isinstance(x, Real) and not isinstance(x, bool) else nan for x in given)
    if len(numbers) != (2 if is_pair else 1) or not all(map(is_in_range, numbers)):
        raise ArgumentError("value", f"{name} is {value!r}; expected {expected}.")
    return numbers if is_pair else numbers[0]


def _as_parameter(item: Any) -> Parameter:
    if not isinstance(item, Parameter):
        raise ArgumentError(
            "type",
            f"An optimiser takes parameters; {type(item).__name__} is none. Give model.parameters() or "
            'pipeline.parameters(), a list: [model.weight], or groups: [{"parameters": [model.weight]}].',
        )
    return item

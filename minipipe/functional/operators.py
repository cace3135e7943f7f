"""Attaches + - * / ** @ [] and the methods to Tensor, so that imports point one way: the tensor knows no operation."""

from __future__ import annotations

import operator
from collections.abc import Callable, Sequence
from numbers import Integral
from typing import Any

from minipipe.functional import activation, elementwise, linear, precision, reduction, shape
from minipipe.tensor import Operand, Tensor, record


def _swapped(operation: Callable[[Operand, Operand], Tensor]) -> Callable[[Tensor, Operand], Tensor]:
    return lambda self, other: operation(other, self)


def _comparison(compare: Callable[[Any, Any], Any]) -> Callable[[Tensor, Operand], Tensor]:
    """Compare values, element by element; the result is a constant."""

    def compared(self: Tensor, other: Operand) -> Tensor:
        return record(compare(self.data, other.data if isinstance(other, Tensor) else other))

    return compared


def _reshape(self: Tensor, *lengths: Any) -> Tensor:
    """Return the same elements in another shape: ``x.reshape(2, -1)``; see :func:`minipipe.functional.reshape`."""
    return shape.reshape(self, _unpacked(lengths))


def _transpose(self: Tensor, *axes: Any) -> Tensor:
    """Return the axes in another order, by default reversed; see :func:`minipipe.functional.transpose`."""
    return shape.transpose(self, _unpacked(axes) if axes else None)


def _unpacked(numbers: tuple[Any, ...]) -> Sequence[int]:
    """Allow both ``reshape(2, 3)`` and ``reshape((2, 3))``."""
    return numbers[0] if len(numbers) == 1 and not isinstance(numbers[0], Integral) else numbers


_METHODS: dict[str, Any] = {
    "__add__": elementwise.add,
    "__radd__": _swapped(elementwise.add),
    "__sub__": elementwise.subtract,
    "__rsub__": _swapped(elementwise.subtract),
    "__mul__": elementwise.multiply,
    "__rmul__": _swapped(elementwise.multiply),
    "__truediv__": elementwise.divide,
    "__rtruediv__": _swapped(elementwise.divide),
    "__pow__": elementwise.power,
    "__rpow__": _swapped(elementwise.power),
    "__matmul__": linear.matmul,
    "__rmatmul__": _swapped(linear.matmul),
    "__neg__": elementwise.negative,
    **{f"__{name}__": _comparison(getattr(operator, name)) for name in ("eq", "ne", "lt", "le", "gt", "ge")},
    "__hash__": object.__hash__,
    "__getitem__": shape.index,
    "astype": precision.astype,
    "sum": reduction.total,
    "mean": reduction.mean,
    "max": reduction.amax,
    "min": reduction.amin,
    "var": reduction.variance,
    "exp": elementwise.exp,
    "log": elementwise.log,
    "tanh": activation.tanh,
    "sqrt": elementwise.sqrt,
    "relu": activation.relu,
    "sigmoid": activation.sigmoid,
    "reshape": _reshape,
    "transpose": _transpose,
    "T": property(shape.transpose),
}

for _name, _method in _METHODS.items():
    setattr(Tensor, _name, _method)

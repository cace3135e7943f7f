"""Attaches arithmetic, methods, NumPy's protocols and hints to Tensor, which knows no operation itself.

NumPy's functions of a tensor are refused, with the method to use: they would compute without a graph. Only
``array * tensor`` and the like pass: NumPy then asks the tensor. ``numpy.asarray(tensor)`` returns the values.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Sequence
from numbers import Integral
from typing import Any

import numpy as np

from minipipe.errors import ArgumentError
from minipipe.functional import contraction, elementwise, operands, reduction, shape
from minipipe.hints import Familiar
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


# -- protocols of Python and NumPy ----------------------------------------------------------------------------


def _len(self: Tensor) -> int:
    if not self.shape:
        raise TypeError("len() of a tensor without axes")
    return self.shape[0]


def _format(self: Tensor, spec: str) -> str:
    return format(self.item(), spec) if spec else str(self)


def _repr(self: Tensor) -> str:
    name, grad = type(self).__name__, ", requires_grad=True" if self.requires_grad else ""
    return f"{name}({np.array2string(self.numpy(), separator=', ', prefix=f'{name}(')}{grad})"


def _array(self: Tensor, dtype: Any = None, copy: bool | None = None) -> np.ndarray:
    return np.array(self.numpy(), dtype=dtype, copy=copy)


_ARITHMETIC = {  # the operations are called as NumPy's functions are
    **{"add": elementwise.add, "sub": elementwise.subtract, "mul": elementwise.multiply},
    **{"truediv": elementwise.divide, "pow": elementwise.power, "matmul": contraction.matmul},
}
_REFLECTED = {
    **{operation.__name__: f"__r{name}__" for name, operation in _ARITHMETIC.items()},
    **{"equal": "__eq__", "less": "__gt__", "less_equal": "__ge__"},
    **{"not_equal": "__ne__", "greater": "__lt__", "greater_equal": "__le__"},
}


def _array_function(self: Tensor, function: Any, types: Any, args: Any, kwargs: Any) -> Any:
    raise _refused(function.__name__)


def _array_ufunc(self: Tensor, ufunc: Any, method: str, *inputs: Any, **kwargs: Any) -> Any:
    operator = _REFLECTED.get(ufunc.__name__)
    if operator is None or method != "__call__" or kwargs or isinstance(inputs[0], Tensor):
        raise _refused(ufunc.__name__)
    return getattr(self, operator)(inputs[0])


def _refused(name: str) -> ArgumentError:
    own = f"x.{name}(…), or " if callable(vars(Tensor).get(name)) else ""
    sentence = f"np.{name} of a tensor would compute without a graph; write {own}np.{name}(x.numpy()) for values alone."
    return ArgumentError("name", sentence)


_METHODS: dict[str, Any] = {
    **{f"__{name}__": operation for name, operation in _ARITHMETIC.items()},
    **{f"__r{name}__": _swapped(operation) for name, operation in _ARITHMETIC.items()},
    "__neg__": elementwise.negative,
    **{f"__{name}__": _comparison(getattr(operator, name)) for name in ("eq", "ne", "lt", "le", "gt", "ge")},
    "__hash__": object.__hash__,
    "__getitem__": shape.index,
    "astype": operands.astype,
    "sum": reduction.total,
    "mean": reduction.mean,
    "max": reduction.amax,
    "min": reduction.amin,
    "var": reduction.variance,
    "exp": elementwise.exp,
    "log": elementwise.log,
    "tanh": elementwise.tanh,
    "sqrt": elementwise.sqrt,
    "relu": elementwise.relu,
    "sigmoid": elementwise.sigmoid,
    "reshape": _reshape,
    "transpose": _transpose,
    "T": property(shape.transpose),
    "__len__": _len,
    "__iter__": lambda self: (self[i] for i in range(len(self))),
    "__float__": lambda self: float(self.item()),
    "__bool__": lambda self: bool(self.item()),
    "__format__": _format,
    "__repr__": _repr,
    "__array__": _array,
    "__array_function__": _array_function,
    "__array_ufunc__": _array_ufunc,
    "__getattr__": vars(Familiar)["__getattr__"],  # names of other libraries
}

for _name, _method in _METHODS.items():
    setattr(Tensor, _name, _method)

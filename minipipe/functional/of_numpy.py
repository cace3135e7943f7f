"""NumPy's functions applied to a tensor: refused, with the method to use. They would compute without a graph.

Only ``array * tensor`` and its kin are let through: there NumPy's array stands on the left, and NumPy asks the tensor.
``numpy.asarray(tensor)`` asks for the values by name, and gets them.
"""

from __future__ import annotations

from typing import Any

from minipipe.errors import ArgumentError
from minipipe.tensor import Tensor

_REFLECTED = {
    **{"add": "__radd__", "subtract": "__rsub__", "multiply": "__rmul__", "divide": "__rtruediv__"},
    **{"power": "__rpow__", "matmul": "__rmatmul__", "equal": "__eq__", "not_equal": "__ne__"},
    **{"less": "__gt__", "less_equal": "__ge__", "greater": "__lt__", "greater_equal": "__le__"},
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


for _name, _method in (("__array_function__", _array_function), ("__array_ufunc__", _array_ufunc)):
    setattr(Tensor, _name, _method)

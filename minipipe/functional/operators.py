"""Attaches comparisons, methods, NumPy's protocols and hints to Tensor, whose own file
defines no operations. The core attaches ``+ - * / **``
(``core/functional/elementwise.py``).

Type checkers see :class:`TensorMethods` as a base of Tensor, so each method is listed
once. It cannot be a real base: the operations make tensors, and imports point one way.

NumPy's functions refuse a tensor and name the method to use: they would compute without
a graph. Only ``array * tensor`` and the like work: NumPy then calls the tensor.
``numpy.asarray(tensor)`` returns the values.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Iterator, Sequence
from numbers import Integral
from typing import Any, NoReturn

import numpy as np

from minipipe.core.autograd import backend
from minipipe.core.autograd.backend import Array
from minipipe.core.autograd.graph import Leaf
from minipipe.core.functional import elementwise, operands, reduction
from minipipe.core.tensor import Operand, Tensor
from minipipe.core.tensor import op as op
from minipipe.errors import ArgumentError, TensorError, shape_error
from minipipe.functional import contraction, shape, statistics
from minipipe.functional.gelu import sigmoid as logistic
from minipipe.hints import Familiar, instead_of, with_hints


def _comparison(
    compare: Callable[[Any, Any], Any],
) -> Callable[[Tensor, Operand], Tensor]:
    """Compare values, element by element; the result is a constant."""

    def compared(self: Tensor, other: Operand) -> Tensor:
        if isinstance(other, Tensor):
            other = other.data
        return operands.constant(compare(self.data, other))

    return compared


def _unpacked(numbers: tuple[Any, ...]) -> Sequence[int]:
    """Allow both ``reshape(2, 3)`` and ``reshape((2, 3))``."""
    if len(numbers) == 1 and not isinstance(numbers[0], Integral):
        return numbers[0]
    return numbers


_REFLECTED = {  # NumPy's name of an operator, and the method of a tensor on its right
    "add": "__radd__",
    "subtract": "__rsub__",
    "multiply": "__rmul__",
    "divide": "__rtruediv__",
    "power": "__rpow__",
    "matmul": "__rmatmul__",
    "equal": "__eq__",
    "not_equal": "__ne__",
    "less": "__gt__",
    "less_equal": "__ge__",
    "greater": "__lt__",
    "greater_equal": "__le__",
}


def _without_graph(name: str) -> ArgumentError:
    replacement = f"np.{name}(x.numpy()) for values alone"
    if callable(vars(Tensor).get(name)):
        replacement = f"x.{name}(…), or {replacement}"
    return ArgumentError(
        "name",
        f"np.{name} of a tensor would compute without a graph; write {replacement}.",
    )


def _without(name: str, written: str) -> Callable[..., NoReturn]:
    """Return a method of Python's that tensors do not have; ``written`` is how a
    program calls it.
    """

    def refuse(self: Tensor, *others: Any) -> NoReturn:
        message = f"A tensor has no {written}; instead: {instead_of('Tensor')[name]}."
        raise ArgumentError("name", message)

    return refuse


def _restored(
    kind: type[Tensor], data: Array, requires_grad: bool, gradient: Array | None
) -> Tensor:
    tensor = object.__new__(kind)
    tensor.data = data
    tensor.node = None
    if requires_grad:
        tensor.node = leaf = Leaf(data.shape, data.dtype)
        leaf.grad = gradient
    return tensor


class TensorMethods(elementwise.Operators):
    """The methods of Tensor that are defined outside its own file; ``self`` is a
    Tensor.
    """

    __slots__ = ()

    # -- arithmetic --------------------------------------------------------------------

    __matmul__ = contraction.matmul
    __rmatmul__ = elementwise.swapped(contraction.matmul)
    __eq__, __ne__ = _comparison(operator.eq), _comparison(operator.ne)  # type: ignore[assignment]
    __lt__ = _comparison(operator.lt)
    __le__ = _comparison(operator.le)
    __gt__ = _comparison(operator.gt)
    __ge__ = _comparison(operator.ge)
    __hash__ = object.__hash__

    # -- operations --------------------------------------------------------------------

    __getitem__ = shape.index
    astype = operands.astype
    sum = reduction.total
    mean = reduction.mean
    var = statistics.variance
    max = statistics.amax
    min = statistics.amin
    exp = elementwise.exp
    log = elementwise.log
    sqrt = elementwise.sqrt
    tanh = elementwise.tanh
    relu = elementwise.relu
    sigmoid = logistic
    T = property(shape.transpose)

    def reshape(self: Any, *lengths: Any) -> Tensor:
        """Return the same elements in another shape: ``x.reshape(2, -1)``; see
        :func:`minipipe.functional.reshape`.
        """
        return shape.reshape(self, _unpacked(lengths))

    def transpose(self: Any, *axes: Any) -> Tensor:
        """Return the axes in another order, by default reversed; see
        :func:`minipipe.functional.transpose`.
        """
        if not axes:
            return shape.transpose(self)
        return shape.transpose(self, _unpacked(axes))

    # -- values ------------------------------------------------------------------------

    @property
    def ndim(self: Any) -> int:
        """The number of axes."""
        return len(self.shape)

    @property
    def size(self: Any) -> int:
        """The number of elements."""
        return backend.prod(self.shape)

    def item(self: Any) -> float:
        """Return the only element as a Python number.

        Examples
        --------
        >>> Tensor([[2.0]]).item()
        2.0
        """
        if self.size != 1:
            raise shape_error("item()", "one element", tensor=self.shape)
        return backend.values(self.data).item()

    def numpy(self: Any) -> np.ndarray:
        """Return the values as a NumPy array, without a copy if they are already in
        NumPy's memory.

        Examples
        --------
        >>> Tensor([1.0, 2.0]).numpy()
        array([1., 2.], dtype=float32)
        """
        return backend.values(self.data)

    def detach(self: Any) -> Tensor:
        """Return a tensor with the same values and no graph behind it.

        Examples
        --------
        >>> x = Tensor([1.0, 2.0], requires_grad=True)
        >>> (x * x.detach()).sum().backward()
        >>> x.grad
        array([1., 2.], dtype=float32)
        """
        return operands.constant(self.data)

    def zero_grad(self: Any) -> None:
        """Forget the gradient."""
        if isinstance(self.node, Leaf):
            self.node.grad = None

    # -- copies ------------------------------------------------------------------------

    def __copy__(self: Any) -> Tensor:
        """Return another object for the same array at the same place of the graph."""
        twin = object.__new__(type(self))
        twin.data = self.data
        twin.node = self.node
        return twin

    def __reduce__(self: Any) -> tuple[Any, ...]:
        """Return the arguments of a deep copy and a pickle: the values, and the
        gradient of a leaf.

        Raises
        ------
        TensorError
            Code ``not-copyable``, for a result: it belongs to its graph.
        """
        if self.node is not None and not isinstance(self.node, Leaf):
            raise TensorError(
                "not-copyable",
                "This tensor is the result of a computation, and a copy would not "
                "belong to its graph. Copy the values, x.detach(); x * 1 also has the "
                "graph.",
            )
        if isinstance(self.data, np.ndarray):
            data = backend.values(self.data)
        else:
            data = self.data
        return _restored, (type(self), data, self.requires_grad, self.grad)

    # -- protocols of Python and NumPy -------------------------------------------------

    def __len__(self: Any) -> int:
        if not self.shape:
            raise TypeError("len() of a tensor without axes")
        return self.shape[0]

    def __iter__(self: Any) -> Iterator[Tensor]:
        return (self[i] for i in range(len(self)))

    __setitem__ = _without("__setitem__", "x[…] = value")
    __abs__ = _without("__abs__", "abs(x)")
    __floordiv__ = __mod__ = _without("__floordiv__", "x // y and no x % y")
    __and__ = __or__ = __xor__ = __invert__ = _without(
        "__and__", "x & y, x | y, x ^ y and ~x"
    )

    def __int__(self) -> int:
        return int(self.item())

    def __float__(self) -> float:
        return float(self.item())

    def __bool__(self) -> bool:
        return bool(self.item())

    def __format__(self, spec: str) -> str:
        if not spec:
            return str(self)
        return format(self.item(), spec)

    def __repr__(self: Any) -> str:
        name = type(self).__name__
        grad = ", requires_grad=True" if self.requires_grad else ""
        values = np.array2string(self.numpy(), separator=", ", prefix=f"{name}(")
        return f"{name}({values}{grad})"

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> np.ndarray:
        return np.array(self.numpy(), dtype=dtype, copy=copy)

    def __array_function__(
        self, function: Any, types: Any, args: Any, kwargs: Any
    ) -> Any:
        raise _without_graph(function.__name__)

    def __array_ufunc__(
        self, ufunc: Any, method: str, *inputs: Any, **kwargs: Any
    ) -> Any:
        reflected = _REFLECTED.get(ufunc.__name__)
        is_call = method == "__call__" and not kwargs
        if reflected is None or not is_call or isinstance(inputs[0], Tensor):
            raise _without_graph(ufunc.__name__)
        return getattr(self, reflected)(inputs[0])


_hint = ("__getattr__", vars(Familiar)["__getattr__"])
for _name, _method in (*vars(TensorMethods).items(), _hint):
    # a method or a property; hints for names of other libraries come from Familiar
    if hasattr(_method, "__get__"):
        setattr(Tensor, _name, _method)

Tensor.__init__ = with_hints(Tensor.__init__)  # type: ignore[method-assign]
Tensor.backward = with_hints(Tensor.backward)  # type: ignore[method-assign]

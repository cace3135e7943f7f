"""The tensor: an array that knows how it was computed. Arithmetic is attached by ``functional/operators.py``.

File 8 of 12 on the first path through the code (README.md):
after ``functional/linear.py``, before ``autograd/graph.py``. Begin with ``record``: its ``mode`` says whether a graph
is recorded, and counts the results.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import numpy as np

from minipipe import autograd
from minipipe.autograd import backend
from minipipe.autograd.backend import Array
from minipipe.autograd.grad_mode import mode
from minipipe.autograd.graph import Edge, Leaf, Node, StageInput, Vjp
from minipipe.errors import TensorError
from minipipe.habits import Familiar

__all__ = ["Operand", "Tensor", "as_constant", "as_real", "as_tensor", "operands", "record"]


class Tensor(Familiar):
    """An array that knows how it was computed.

    Parameters
    ----------
    data : array, number or nested list of numbers
        Arrays keep their dtype; numbers and lists of real numbers become float32.
    requires_grad : bool
        Whether ``backward`` shall leave a gradient in ``grad``. Only real numbers can have one.
    dtype : dtype, optional
        Another dtype, for instance ``numpy.float64``.

    Attributes
    ----------
    data : array
        The values, of shape ``shape``.

    Raises
    ------
    TensorError
        Code ``dtype``: integers that should need gradients, or data that are not numbers.

    Examples
    --------
    >>> x = Tensor([[1.0, 2.0], [3.0, 4.0]], requires_grad=True)
    >>> (x * x).sum().backward()
    >>> x.grad
    array([[2., 4.],
           [6., 8.]], dtype=float32)
    """

    __slots__ = ("__weakref__", "data", "node")

    data: Array
    node: Node | None

    def __init__(self, data: object, requires_grad: bool = False, dtype: Any = None) -> None:
        if isinstance(data, Tensor):
            data = data.data
        _refuse_bundle(data)
        array = backend.as_array(data, dtype)
        if dtype is None and array is not data and array.dtype == np.float64:
            array = array.astype(np.float32)
        if backend.numpy_dtype(array.dtype).kind not in "fiub" and not backend.is_floating(array.dtype):
            raise TensorError("dtype", f"A tensor holds real or whole numbers; this is {array.dtype}: {data!r:.60}.")
        self.data = array
        self.node = None
        if requires_grad:
            if not backend.is_floating(array.dtype):
                raise TensorError(
                    "dtype",
                    f"Only real numbers have gradients; this tensor is {array.dtype}. Give dtype=numpy.float32.",
                )
            self.node = Leaf(array.shape, array.dtype)

    # -- attributes -----------------------------------------------------------------------------------------

    @property
    def shape(self) -> tuple[int, ...]:
        """The length of each axis."""
        return self.data.shape

    @property
    def dtype(self) -> Any:
        """The type of the elements."""
        return self.data.dtype

    @property
    def ndim(self) -> int:
        """The number of axes."""
        return len(self.shape)

    @property
    def size(self) -> int:
        """The number of elements."""
        return backend.prod(self.shape)

    @property
    def requires_grad(self) -> bool:
        """Whether a gradient can flow to or through this tensor."""
        return self.node is not None and self.node.needs_gradient

    @property
    def grad(self) -> Array | None:
        """The gradient that ``backward`` left here, of shape ``shape``; None for a result, or before ``backward``."""
        return self.node.grad if isinstance(self.node, Leaf | StageInput) else None

    @grad.setter
    def grad(self, gradient: Array | None) -> None:
        if not isinstance(self.node, Leaf):
            raise TensorError(
                "no-graph", "Only a tensor made with requires_grad=True, or a parameter, keeps a gradient."
            )
        if gradient is not None and gradient.shape != self.shape:
            raise TensorError("shape", f"The gradient has shape {gradient.shape}; the tensor has {self.shape}.")
        self.node.grad = gradient

    def __len__(self) -> int:
        if not self.shape:
            raise TypeError("len() of a tensor without axes")
        return self.shape[0]

    def __iter__(self) -> Iterator[Tensor]:
        return (self[i] for i in range(len(self)))

    def __float__(self) -> float:
        return float(self.item())

    def __bool__(self) -> bool:
        return bool(self.item())

    def __format__(self, spec: str) -> str:
        return format(self.item(), spec) if spec else str(self)

    def __repr__(self) -> str:
        name, grad = type(self).__name__, ", requires_grad=True" if self.requires_grad else ""
        return f"{name}({np.array2string(backend.to_numpy(self.data), separator=', ', prefix=f'{name}(')}{grad})"

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> np.ndarray:
        return np.array(backend.to_numpy(self.data), dtype=dtype, copy=copy)

    def item(self) -> float:
        """Return the only element as a Python number.

        Examples
        --------
        >>> Tensor([[2.0]]).item()
        2.0
        """
        if self.size != 1:
            raise TensorError("shape", f"item() needs a tensor with one element; this one has shape {self.shape}.")
        return backend.to_numpy(self.data).item()

    def numpy(self) -> np.ndarray:
        """Return the values as a NumPy array, without a copy where they are in NumPy's memory already.

        Examples
        --------
        >>> Tensor([1.0, 2.0]).numpy()
        array([1., 2.], dtype=float32)
        """
        return backend.to_numpy(self.data)

    def detach(self) -> Tensor:
        """Return a tensor with the same values and no graph behind it.

        Examples
        --------
        >>> x = Tensor([1.0, 2.0], requires_grad=True)
        >>> (x * x.detach()).sum().backward()
        >>> x.grad
        array([1., 2.], dtype=float32)
        """
        return record(self.data)

    # -- gradients ------------------------------------------------------------------------------------------

    def backward(self, gradient: Array | float | None = None) -> None:
        """Add to ``grad`` of every leaf behind this tensor its gradient, and release the graph.

        Parameters
        ----------
        gradient : array or float, optional
            The gradient of this tensor, of its shape. For a tensor with one element it is 1 by default.

        Raises
        ------
        TensorError
            Codes ``no-graph``, ``not-scalar``, ``shape``, ``backward-twice``.

        Examples
        --------
        >>> x = Tensor([1.0, 2.0], requires_grad=True)
        >>> (x * 3).backward(np.array([1.0, 10.0]))
        >>> x.grad
        array([ 3., 30.], dtype=float32)
        """
        if self.node is None:
            raise TensorError(
                "no-graph",
                "backward() found no graph: nothing that this tensor was computed from has requires_grad=True, "
                "or it was computed inside no_grad().",
            )
        autograd.backward({self.node: self.seed_gradient(gradient)})

    def seed_gradient(self, gradient: Array | float | None = None) -> Array:
        """Return ``gradient`` as an array of this tensor's shape and dtype; by default 1 for a single element."""
        if gradient is None:
            if self.size != 1:
                raise TensorError(
                    "not-scalar",
                    f"backward() of a tensor of shape {self.shape} needs the gradient of that shape; "
                    "only a tensor with one element has a gradient of its own, 1. Take .sum() or .mean() first?",
                )
            gradient = 1.0
        if isinstance(gradient, (int, float)):
            return backend.filled(self.shape, float(gradient), self.data)
        array = backend.as_array(gradient, self.dtype, self.data)
        if array.shape != self.shape:
            raise TensorError("shape", f"The gradient has shape {array.shape}; the tensor has {self.shape}.")
        return array

    def zero_grad(self) -> None:
        """Forget the gradient."""
        if isinstance(self.node, Leaf):
            self.node.grad = None

    if TYPE_CHECKING:  # attached by functional/operators.py, which has the list, so that imports point one way

        def _unary(self) -> Tensor: ...
        def _binary(self, other: Operand) -> Tensor: ...
        def _reduction(self, axis: int | tuple[int, ...] | None = None, keepdims: bool = False) -> Tensor: ...
        def _rearranged(self, *axes: int) -> Tensor: ...
        def __getitem__(self, index: Any) -> Tensor: ...

        T: Tensor

        def astype(self, dtype: Any) -> Tensor: ...

        exp = log = tanh = sqrt = relu = sigmoid = __neg__ = _unary
        __add__ = __radd__ = __sub__ = __rsub__ = __mul__ = __rmul__ = __truediv__ = __rtruediv__ = _binary
        __pow__ = __rpow__ = __matmul__ = __rmatmul__ = __lt__ = __le__ = __gt__ = __ge__ = _binary
        sum = mean = max = min = _reduction
        reshape = transpose = _rearranged

        def var(self, axis: Any = None, keepdims: bool = False, correction: int = 0) -> Tensor: ...


Operand = Tensor | Array | float | int

_new = object.__new__  # a result needs none of the checks of Tensor(…)


def record(data: Array, *inputs: tuple[Tensor, Vjp]) -> Tensor:
    """Return a result, and note in the graph how it was computed.

    Parameters
    ----------
    data : array
        The values of the result.
    *inputs : (Tensor, function)
        Each input with its vjp: from the gradient of the result, of its shape, to that of the input, of the
        input's shape and dtype; anything else is refused. A vjp returns a new array, its argument, or a view of that;
        it changes neither its argument nor the arrays that it captured, and does not return the latter, because its
        result may be added to in place. Inputs without a graph are left out, and the arrays that their vjp captured
        are released.

    Examples
    --------
    An operation of your own: three times a tensor.

    >>> def triple(a):
    ...     return record(3 * a.data, (a, lambda g: 3 * g))
    >>> x = Tensor([1.0, 2.0], requires_grad=True)
    >>> triple(x).sum().backward()
    >>> x.grad
    array([3., 3.], dtype=float32)
    """
    result = _new(Tensor)
    if isinstance(data, np.generic):
        data = np.asarray(data)
    result.data = data
    result.node = None
    is_enabled, creation, watch = mode()  # see autograd/grad_mode.py
    order = next(creation)  # also where nothing is recorded: a recomputation gets the same numbers
    if not is_enabled:
        return result
    edges: list[Edge] = []
    is_activation = False
    for tensor, vjp in inputs:
        node = tensor.node
        if node is not None:
            is_activation = is_activation or node.is_activation
            if node.needs_gradient:
                edges.append((node, vjp))
    if edges or is_activation:  # without edges, too: autograd/split.py asks what depends on the stage's input
        result.node = Node(edges, order, bool(edges), is_activation, data.shape, data.dtype)
        if watch is not None:
            result.node = watch(result.node, [data, *(tensor.data for tensor, _ in inputs)])
    return result


def as_tensor(value: Operand) -> Tensor:
    """Return the value itself if it is a tensor, and a constant tensor of it otherwise.

    Examples
    --------
    >>> as_tensor([1.0, 2.0])
    Tensor([1., 2.])
    """
    return value if isinstance(value, Tensor) else Tensor(value)


def as_constant(value: Operand, like: Tensor) -> Tensor:
    """Return a value as a constant beside a tensor: in its module, and in its dtype where that is real.

    NumPy promotes float32 to float64 on the slightest occasion (a ``numpy.float64``, an integer array); a constant
    takes the tensor's dtype instead.

    Examples
    --------
    >>> as_constant(np.float64(0.5), like=Tensor([1.0, 2.0])).dtype
    dtype('float32')
    """
    data = value.data if isinstance(value, Tensor) else value
    _refuse_bundle(data)
    if backend.is_floating(like.dtype):
        return record(backend.as_array(data, like.dtype, like.data))
    # Beside whole numbers a real one is float32, the default, and not float64 as in NumPy.
    float32 = backend.array_module(like.data).float32
    return record(backend.as_array(data, float32 if isinstance(data, float) else None, like.data))


def _refuse_bundle(data: object) -> None:
    """NumPy would make one array of several tensors, and cut the graph behind them."""
    if isinstance(data, (tuple, list, dict)):
        items = data.values() if isinstance(data, dict) else data
        if any(isinstance(item, Tensor) for item in items):
            raise TensorError(
                "several-tensors",
                f"This is a {type(data).__name__} of tensors where one tensor was expected. nn.Take('x') goes on with "
                "one of them, nn.On('x', layer) calls a layer with it; functional.stack makes one tensor of them all.",
            )


def as_real(value: Operand) -> Tensor:
    """Return the value as a tensor of real numbers: whole ones become float32, the default.

    Examples
    --------
    >>> as_real(Tensor([1, 2]))
    Tensor([1., 2.])
    """
    tensor = as_tensor(value)
    if backend.is_floating(tensor.dtype):
        return tensor
    return record(backend.as_array(tensor.data, backend.array_module(tensor.data).float32))


def operands(left: Operand, right: Operand) -> tuple[Tensor, Tensor]:
    """Return both operands as tensors of one dtype.

    Raises
    ------
    TensorError
        Code ``dtype``, when two tensors of different real dtypes meet: float64 has crept in somewhere.

    Examples
    --------
    >>> operands(2, Tensor([1.0, 2.0]))
    (Tensor(2.), Tensor([1., 2.]))
    """
    if not isinstance(left, Tensor):
        left = as_constant(left, as_tensor(right))
    if not isinstance(right, Tensor):
        right = as_constant(right, left)
    if left.data.dtype is not right.data.dtype and left.data.dtype != right.data.dtype:
        if not backend.is_floating(left.dtype):
            left = as_constant(left, right)
        elif not backend.is_floating(right.dtype):
            right = as_constant(right, left)
        else:
            raise TensorError(
                "dtype",
                f"A tensor of {left.dtype} meets one of {right.dtype}. Make them equal where they are made: "
                "values.astype(numpy.float32) or Tensor(values, dtype=numpy.float32) where the input is made, or "
                "Linear(…, dtype=numpy.float64) to compute in float64.",
            )
    return left, right

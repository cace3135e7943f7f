"""The tensor: an array that knows how it was computed. Arithmetic is attached by ``functional/operators.py``.

File 9 of 12 on the first path through the code (README.md):
after ``autograd/graph.py``, before ``autograd/walk.py``. Begin with ``record``, at the end.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from minipipe import autograd
from minipipe.autograd import backend
from minipipe.autograd.backend import Array
from minipipe.autograd.graph import Edge, Leaf, Node, StageInput, Vjp
from minipipe.autograd.modes import mode
from minipipe.errors import TensorError, shape_error
from minipipe.hints import refuse_calls

__all__ = ["Operand", "Tensor", "as_tensor", "record"]

refuse_calls(__name__, "minipipe.Tensor(data)")


if TYPE_CHECKING:
    from minipipe.functional.operators import TensorMethods
else:
    TensorMethods = object  # functional/operators.py attaches the methods, so that imports point one way


class Tensor(TensorMethods):
    """An array that knows how it was computed.

    Parameters
    ----------
    data : array, number or nested list of numbers
        Arrays keep their dtype and are not copied; numbers and lists of real numbers become float32.
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
        array = backend.as_array(data, dtype)
        if dtype is None and array is not data and array.dtype == np.float64:
            array = array.astype(np.float32)
        if backend.numpy_dtype(array.dtype).kind not in "fiub" and not backend.is_floating(array.dtype):
            raise TensorError("dtype", f"A tensor holds real or whole numbers; this is {array.dtype}: {data!r:.60}.")
        if requires_grad and not backend.is_floating(array.dtype):
            message = f"Only real numbers have gradients; this tensor is {array.dtype}. Give dtype=numpy.float32."
            raise TensorError("dtype", message)
        self.data = array
        self.node = Leaf(array.shape, array.dtype) if requires_grad else None

    @property
    def shape(self) -> tuple[int, ...]:
        """The length of each axis."""
        return self.data.shape

    @property
    def dtype(self) -> Any:
        """The type of the elements."""
        return self.data.dtype

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
            raise TensorError("no-graph", "Only a parameter or a tensor with requires_grad=True keeps a gradient.")
        if gradient is not None and gradient.shape != self.shape:
            raise shape_error("grad", f"the tensor's, {self.shape}", gradient=gradient.shape)
        self.node.grad = gradient

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
            message = "backward() found no graph: no input has requires_grad=True, or it was computed inside no_grad()."
            raise TensorError("no-graph", message)
        autograd.backward({self.node: self.seed_gradient(gradient)})

    def seed_gradient(self, gradient: Array | float | None = None) -> Array:
        """Return ``gradient`` as an array of this tensor's shape and dtype; by default 1 for a single element."""
        if gradient is None:
            if backend.prod(self.shape) != 1:
                message = f"backward() of a tensor of shape {self.shape} needs a gradient of that shape."
                raise TensorError("not-scalar", f"{message} Take .sum() or .mean() first?")
            gradient = 1.0
        if isinstance(gradient, (int, float)):
            return backend.filled(self.shape, float(gradient), self.data)
        array = backend.as_array(gradient, self.dtype, self.data)
        if array.shape != self.shape:
            raise shape_error("backward()", f"the tensor's, {self.shape}", gradient=array.shape)
        return array


Operand = Tensor | Array | float | int

_new = object.__new__  # a result needs none of the checks of Tensor(…)


def record(data: Array, *inputs: tuple[Tensor, Vjp]) -> Tensor:
    """Return a result, and note in the graph how it was computed.

    Parameters
    ----------
    data : array
        The values of the result.
    *inputs : (Tensor, function)
        Each input with its vjp: a function from the gradient of the result, of the result's shape, to the gradient of
        the input, of the input's shape and dtype; other shapes and dtypes are refused. A vjp changes no array. It
        returns a new array, its argument, or a view of its argument, but no captured array: its result may be added
        to in place. Inputs without a graph are left out, and the arrays that their vjp captured are released.

    Examples
    --------
    A custom operation: three times a tensor.

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
    is_enabled, creation, watch = mode()  # see autograd/modes.py
    order = next(creation)  # even if nothing is recorded: a recomputation gets the same numbers
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
    if edges or is_activation:  # also without edges: autograd/split.py asks what depends on the stage's input
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

"""The tensor: an array that knows how it was computed. Its operators are attached by
``core/functional/elementwise.py``, and its methods by ``functional/operators.py``.

File 10 of 13 on the first path through the code (README.md):
after ``core/autograd/graph.py``, before ``core/autograd/walk.py``. Begin with ``op``, at the end.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cache, update_wrapper
from types import FunctionType
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np

from minipipe.core.autograd import backend
from minipipe.core.autograd.backend import Array
from minipipe.core.autograd.calls import Nothing, calling, has_half, recording
from minipipe.core.autograd.graph import CUSTOM, Leaf, Node, StageInput, Vjp
from minipipe.core.autograd.operation import Operation, names_in
from minipipe.core.autograd.walk import backward
from minipipe.core.errors import TensorError, shape_error
from minipipe.core.familiar import with_hints

__all__ = ["Operand", "Tensor", "as_tensor", "op", "record"]

if TYPE_CHECKING:
    from minipipe.functional.operators import TensorMethods
else:
    # functional/operators.py attaches the methods, so that imports point one way
    TensorMethods = object


class Tensor(TensorMethods):
    """An array that knows how it was computed.

    Parameters
    ----------
    data : array, number or nested list of numbers
        Arrays keep their dtype and are not copied; numbers and lists of real numbers
        become float32.
    requires_grad : bool
        Whether ``backward`` shall leave a gradient in ``grad``. Only real numbers can
        have one.
    dtype : dtype, optional
        Another dtype, for instance ``numpy.float64``.

    Attributes
    ----------
    data : array
        The values, of shape ``shape``.

    Raises
    ------
    TensorError
        Code ``dtype``: integers that should need gradients, or data that are not
        numbers.

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

    def __init__(
        self, data: object, requires_grad: bool = False, dtype: Any = None
    ) -> None:
        if isinstance(data, Tensor):
            data = data.data
        array = backend.as_array(data, dtype)
        if dtype is None and array is not data and array.dtype == np.float64:
            array = array.astype(np.float32)
        kind = backend.numpy_dtype(array.dtype).kind
        if kind not in "fiub" and not backend.is_floating(array.dtype):
            raise TensorError(
                "dtype",
                f"A tensor holds real or whole numbers; this is {array.dtype}: "
                f"{data!r:.60}.",
            )
        if requires_grad and not backend.is_floating(array.dtype):
            message = (
                f"Only real numbers have gradients; this tensor is {array.dtype}. Give "
                "dtype=numpy.float32."
            )
            raise TensorError("dtype", message)
        if type(array) is not np.ndarray:
            backend.module_for(backend.array_module(array))
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
        """The gradient that ``backward`` left here, of shape ``shape``; None for a
        result, or before ``backward``.
        """
        return self.node.grad if isinstance(self.node, Leaf | StageInput) else None

    @grad.setter
    def grad(self, gradient: Array | None) -> None:
        if not isinstance(self.node, Leaf):
            raise TensorError(
                "no-graph",
                "Only a parameter or a tensor with requires_grad=True keeps a "
                "gradient.",
            )
        if gradient is not None and gradient.shape != self.shape:
            raise shape_error(
                "grad", f"the tensor's, {self.shape}", gradient=gradient.shape
            )
        self.node.grad = gradient

    def _check_whole(self, operation: str) -> None:
        """Refuse a tensor that is one of several parts; subclasses may be such."""

    def backward(self, gradient: Array | float | None = None) -> None:
        """Add to ``grad`` of every leaf behind this tensor its gradient, and release
        the graph.

        Parameters
        ----------
        gradient : array or float, optional
            The gradient of this tensor, of its shape. For a tensor with one element it
            is 1 by default.

        Raises
        ------
        TensorError
            Codes ``no-graph`` and ``shape``.

        Examples
        --------
        >>> x = Tensor([1.0, 2.0], requires_grad=True)
        >>> (x * 3).backward(np.array([1.0, 10.0]))
        >>> x.grad
        array([ 3., 30.], dtype=float32)
        """
        if self.node is None:
            message = (
                "backward() found no graph: no input has requires_grad=True, or it was "
                "computed inside no_grad()."
            )
            raise TensorError("no-graph", message)
        backward({self.node: self.seed_gradient(gradient)})

    def seed_gradient(self, gradient: Array | float | None = None) -> Array:
        """Return ``gradient`` as an array of this tensor's shape and dtype; by default
        1 for a single element.
        """
        if gradient is None:
            if backend.prod(self.shape) != 1:
                message = (
                    f"backward() of a tensor of shape {self.shape} needs a gradient of "
                    "that shape."
                )
                raise TensorError("shape", f"{message} Take .sum() or .mean() first?")
            gradient = 1.0
        if isinstance(gradient, (int, float)):
            return backend.filled(self.shape, float(gradient), self.data)
        array = backend.as_array(gradient, self.dtype, self.data)
        if array.shape != self.shape:
            raise shape_error(
                "backward()", f"the tensor's, {self.shape}", gradient=array.shape
            )
        return array


Operand = Tensor | Array | float | int


def record(data: Array, *inputs: tuple[Tensor, Vjp]) -> Tensor:
    """Return a result, and note in the graph how it was computed.

    Parameters
    ----------
    data : array
        The values of the result.
    *inputs : (Tensor, function)
        Each input with its vjp: a function from the gradient of the result, of the
        result's shape, to the gradient of the input, of the input's shape and dtype;
        other shapes and dtypes are refused. A vjp changes no array. It returns a new
        array, its argument, or a view of its argument, but no captured array: its
        result may be added to in place. Inputs without a graph are left out, and the
        arrays that their vjp captured are released.

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
    nodes = [(tensor.node, vjp) for tensor, vjp in inputs if tensor.node is not None]
    is_activation = any(node.is_activation for node, _ in nodes)
    parents = [node for node, _ in nodes if node.needs_gradient]
    vjps = [vjp for node, vjp in nodes if node.needs_gradient]
    arrays = [tensor.data for tensor, _ in inputs]
    return _record(data, tuple(vjps), arrays, parents, len(parents), is_activation)


Operands = Callable[..., Sequence[Any]]


class OperationCall(Protocol):
    """An operation as it is called: with tensors and attributes."""

    operation: Operation
    gradients: Callable[..., None]
    shared: Callable[..., None]

    def __call__(self, *operands: Any, **attributes: Any) -> Tensor:
        """Return the result, with its node."""
        ...


@with_hints
def op(
    *,
    takes: Operands | None = None,
    attributes: str = "",
    saves: str = "",
    in_float32: bool = False,
    is_broadcast: bool = False,
) -> Callable[[Callable[..., Any]], OperationCall]:
    """Make an operation of a function of arrays: called with tensors, it computes, and
    notes itself in the graph.

    The positional parameters of the function are tensors; one may be None, and the last
    may be ``*parts``. Those named by ``attributes`` and keyword-only ones are
    attributes, which have no gradients. ``operation.gradients(…)`` then sets a gradient
    for each input: a function whose parameters name what it needs. Values that no
    gradient names are not kept.

    ==================  =====================================================================
    parameter           what a gradient gets
    ==================  =====================================================================
    ``g``               the gradient of the result, of the result's shape and dtype
    an input            its array
    an attribute        its value
    ``result``          the array of the result
    a saved name        what the function returned behind its result
    a shared name       the value of ``operation.shared(name=…)``, computed once
    ``number``          which of ``*parts`` the input is, from 0
    ``shape``, last     the shape of the input, and so of the gradient to return
    ==================  =====================================================================

    Parameters
    ----------
    takes : function, optional
        ``(*operands) -> tensors``: converts the operands, and raises an error for those
        that do not fit. Without it each becomes a tensor.
    attributes : str
        Names, separated by spaces, of positional parameters that are attributes: the
        last ones.
    saves : str
        Names, separated by spaces, of values for the gradients: the function returns
        ``(result, *saved)``.
    in_float32 : bool
        Whether the result of float16 and bfloat16 is computed in float32, with its
        gradients, and rounded once.
    is_broadcast : bool
        Whether the inputs are broadcast; then a gradient may have the shape of the
        result, and is summed over the axes along which its input was stretched.

    Raises
    ------
    ArgumentError
        Code ``value``, for a function with two values of one name or a positional
        default, and from ``gradients`` and ``shared``: a gradient of something that is
        no input, that does not take ``g`` first, or that needs a value which the
        operation does not have; also from a call, for an input without a gradient. Code
        ``type``, for a gradient that is no function, and for a result that is no array.
        Code ``name``, for unknown arguments.

    Notes
    -----
    A gradient changes no array. It returns a new array, ``g``, a value that it names,
    or a view of one of these.

    Examples
    --------
    >>> @op()
    ... def cube(x):
    ...     return x * x * x
    >>> cube.gradients(x=lambda g, x: g * (3 * x * x))
    >>> x = Tensor([1.0, 2.0], requires_grad=True)
    >>> cube(x).sum().backward()
    >>> x.grad
    array([ 3., 12.], dtype=float32)
    """
    names = names_in("attributes", attributes), names_in("saves", saves)

    def made(forward: Callable[..., Any]) -> OperationCall:
        operation = Operation(forward, *names, takes, in_float32, is_broadcast)
        call = _call_of(operation)
        # With the globals of the module: doctest runs only functions with the globals
        # of the module that it reads.
        twin: Any = update_wrapper(
            FunctionType(call.__code__, forward.__globals__, closure=call.__closure__),
            forward,
        )
        twin.__signature__ = operation.signature
        parameters = operation.signature.parameters.values()
        twin.__annotations__ = {
            one.name: one.annotation
            for one in parameters
            if one.annotation is not one.empty
        }
        twin.__annotations__["return"] = operation.signature.return_annotation
        twin.operation = operation
        twin.gradients = operation.set_gradients
        twin.shared = operation.set_shared
        return twin

    return made


def _call_of(operation: Operation) -> Callable[..., Tensor]:
    """Return a function that calls an operation with tensors."""
    known = {"tensor": Tensor, "as_tensors": _as_tensors, "widened": _in_float32}
    if not operation.is_variadic:
        return calling(operation, len(operation.inputs), **known)
    of_count = cache(lambda count: calling(operation, count, **known))

    def call(*given: Any, **attributes: Any) -> Tensor:
        given, attributes = operation.bound(given, attributes)
        if operation.takes is not None:
            given = tuple(operation.takes(*given))
        return of_count(len(given))(*given, **attributes)

    return call


_record = recording(CUSTOM[0].operation, tensor=Tensor)


def _in_float32(
    operation: Callable[..., Tensor], tensors: Sequence[Any], attributes: dict[str, Any]
) -> Tensor:
    """Return the result of an operation on halves, computed in float32 and rounded
    once.
    """
    wide = [None if tensor is Nothing else tensor for tensor in tensors]
    halves = []
    for i, tensor in enumerate(tensors):
        if has_half((tensor.data,)):
            halves.append(tensor.dtype)
            wide[i] = cast(tensor, "float32")
    return cast(operation(*wide, **attributes), halves[0])


def _as_tensors(operands: Sequence[Any]) -> list[Any]:
    return [
        each if each is Nothing or isinstance(each, Tensor) else Tensor(each)
        for each in operands
    ]


def as_tensor(value: Operand) -> Tensor:
    """Return the value itself if it is a tensor, and a constant tensor of it otherwise.

    Examples
    --------
    >>> as_tensor([1.0, 2.0])
    Tensor([1., 2.])
    """
    return value if isinstance(value, Tensor) else Tensor(value)


def cast(a: Tensor, dtype: Any) -> Tensor:
    """Return real numbers in another dtype, and the gradient in the dtype of a; a
    itself if it has the dtype.

    Examples
    --------
    >>> cast(Tensor([1.0, 2.0002]), np.float16)
    Tensor([1., 2.])
    """
    if backend.numpy_dtype(a.dtype) == backend.numpy_dtype(dtype):
        return a
    return _cast(a, dtype=dtype, before=a.dtype)


@op()
def _cast(a: Array, *, dtype: Any, before: Any) -> Array:
    return backend.moved(a, backend.array_module(a), dtype)


_cast.gradients(a=lambda g, before: backend.as_array(g, before))

"""The array module of some data, and the differences between array modules.

NumPy, CuPy and array-api-strict share most of their names. Operations call
``array_module(x)`` and use the shared names; this file hides the few calls that differ.
``autograd/devices.py`` chooses a GPU; no other file may import CuPy.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Callable, Iterable
from functools import lru_cache, wraps
from time import perf_counter
from types import ModuleType
from typing import Any

import numpy as np

from minipipe.core.errors import LaunchError, TensorError

Array = Any
"""An array of any supported module: ``numpy.ndarray``, ``cupy.ndarray`` or
array-api-strict's.
"""
Arrays = tuple[Array, ...]
"""Several arrays, such as a result and what its gradients need."""
Shape = tuple[int, ...]
"""The length of each axis."""


def array_module(array: Array) -> ModuleType:
    """Return the module that the array belongs to: NumPy, CuPy or one that follows the
    array API standard; NumPy for None.
    """
    if isinstance(array, np.ndarray):
        return np
    if hasattr(array, "__array_namespace__"):
        return array.__array_namespace__()
    cupy = sys.modules.get("cupy")  # an array of CuPy's means that somebody imported it
    if cupy is not None and isinstance(array, cupy.ndarray):
        return cupy
    return np


def one_line(function: Callable[..., Any], **marks: Any) -> Callable[..., Any]:
    """Return a function that a compiled step calls in one line, without noting its
    inside (``compile/trace.py``).

    It takes arrays by position, and what follows from shapes alone; changes none of
    them; and returns a new array, or a tuple of these and of integers that follow from
    shapes alone, or nothing if it checks their values. ``marks`` become attributes of
    the function, which a trace asks for.
    """

    plain = np.ndarray
    vars(function).update(marks)

    @wraps(function)
    def call(*given: Any) -> Any:
        for each in given:
            kind = type(each)
            if kind is not plain and hasattr(kind, "note_call"):
                return each.note_call(function, given)
        return function(*given)

    return call


def collective(function: Callable[..., Any]) -> Callable[..., Any]:
    """Return a function as :func:`one_line` does, which is called even if nothing reads
    its result: ranks wait for it.

    The group of ranks is one of its arguments.
    """
    return one_line(function, is_collective=True)


def on_host(
    function: Callable[..., Any], reads_values: bool = True
) -> Callable[..., Any]:
    """Return a function as :func:`one_line` does, which works on the host whatever the
    module of its arrays. It reads values of inputs alone, or only shapes and modules.

    A compiled section on a device has no part on the host: there the function is called
    before it.
    """
    return one_line(function, is_on_host=True, reads_values=reads_values)


def kernel(function: Callable[..., Any], num_outputs: int, **marks: Any) -> Any:
    """Return a function as :func:`one_line` does, which writes into its last arguments:
    arrays that exist.

    It reads the other arguments: arrays, and numbers that follow from shapes and
    attributes. It writes every element of its outputs, which its caller makes with
    ``empty``.

    Examples
    --------
    >>> double = kernel(lambda x, out: np.multiply(x, 2, out=out), num_outputs=1)
    >>> out = np.empty(2)
    >>> _ = double(np.ones(2), out)
    >>> out
    array([2., 2.])
    """
    return one_line(function, num_outputs=num_outputs, **marks)


PRODUCTS: dict[str, Callable[..., Array]] = {}
"""By the name of an array module, what it multiplies by in place of its ``matmul``."""


def plain(array: Array) -> Array:
    """Return an array for inspection: a compiled step does not depend on the values
    that are read from it.
    """
    return getattr(array, "plain", array)


def number(array: Array) -> Any:
    """Return the only element of an array, for inspection: a number of Python's; or, of
    a device, the array, which ``numbers`` of ``host.py`` reads when all are computed.
    """
    array = plain(array)
    if isinstance(array, np.ndarray | np.generic):
        return array.item()
    return array


def is_array(value: object) -> bool:
    """Return whether a value is an array of some module, and no number, list or NumPy
    scalar.
    """
    if isinstance(value, np.generic):
        return False
    protocol = "__cuda_array_interface__"
    return hasattr(value, "__array_namespace__") or hasattr(value, protocol)


_PLAIN = (np.ndarray, np.memmap)


def as_array(data: Any, dtype: Any = None, like: Array | None = None) -> Array:
    """Return ``data`` as an array: an array stays in its module, anything else goes to
    the module of ``like``.

    Raises
    ------
    TensorError
        Code ``dtype``, for a matrix, a masked array and other classes that do not add
        and multiply as arrays do: a message carries only the bare values, so the
        results would depend on the number of ranks. Code ``wrong-number``, for a pytree
        of tensors: NumPy would make one array of them, without their graphs.
    """
    if isinstance(data, float | int):
        return array_module(like).asarray(data, dtype=dtype)
    is_subclass = isinstance(data, np.ndarray) and type(data) not in _PLAIN
    if is_subclass and not hasattr(data, "note_call"):
        raise TensorError(
            "dtype",
            f"A {type(data).__name__} is not a plain array; pass numpy.asarray(x) or "
            "x.filled(0).",
        )
    if is_array(data):
        if dtype is None or data.dtype == dtype:
            return data
        return array_module(data).astype(data, dtype)
    items: Any = ()
    if isinstance(data, dict):
        items = data.values()
    elif isinstance(data, tuple | list):
        items = data
    if any(hasattr(item, "node") for item in items):
        raise TensorError(
            "wrong-number",
            f"A {type(data).__name__} of tensors was passed; expected one tensor. "
            "nn.Take('x') selects one of them, nn.On('x', layer) calls a layer with "
            "it; functional.stack combines them into one tensor.",
        )
    return array_module(like).asarray(data, dtype=dtype)


def numpy_dtype(dtype: Any) -> np.dtype:
    """Return NumPy's dtype of the same name as one of any module."""
    if isinstance(dtype, np.dtype):
        return dtype
    if isinstance(dtype, type):
        return np.dtype(dtype)
    return np.dtype(str(dtype).rsplit(".", 1)[-1])


def num_bytes(array: Array) -> int:
    """Return the size of an array in bytes; the array API has no name for it."""
    return math.prod(array.shape) * numpy_dtype(array.dtype).itemsize


def is_floating(dtype: Any) -> bool:
    """Return whether a dtype holds real numbers, the only kind that has gradients."""
    found = numpy_dtype(dtype)
    # bfloat16 of ml_dtypes
    return found.kind == "f" or (found.kind == "V" and found.name == "bfloat16")


def is_half(dtype: Any) -> bool:
    """Return whether a dtype holds real numbers of two bytes: float16 or bfloat16."""
    return getattr(dtype, "itemsize", 0) == 2 and is_floating(dtype)


def dtype_name(dtype: np.dtype) -> str:
    """Return NumPy's name for a dtype: its code, except for bfloat16, whose code is
    ambiguous.
    """
    return dtype.name if dtype.kind == "V" else dtype.str


def is_boolean(dtype: Any) -> bool:
    """Return whether a dtype holds truth values."""
    return numpy_dtype(dtype).kind == "b"


def is_integer(dtype: Any) -> bool:
    """Return whether a dtype holds whole numbers."""
    return numpy_dtype(dtype).kind in "iu"


def contiguous(array: Array) -> Array:
    """Return the array in C order, with the very strides of a fresh one.

    A product sums in an order that depends on the strides, so equal bits need equal
    strides. NumPy calls an array with an axis of length one contiguous whatever that
    axis' stride; here it is made plain too.
    """
    flags = getattr(array, "flags", None)
    if flags is None:  # the array API standard knows no strides, so a copy it must be
        xp = array_module(array)
        return xp.reshape(xp.concat([xp.reshape(array, (-1,))]), array.shape)
    if not flags.c_contiguous:
        return array.copy()
    return array.reshape(-1).reshape(array.shape) if 1 in array.shape else array


def copy(array: Array) -> Array:
    """Return a copy in C order with its own memory: a transposed array gives the same
    bits once loaded.
    """
    if isinstance(array, np.ndarray):
        return np.array(values(array), order="C")
    return contiguous(array_module(array).asarray(array, copy=True))


def is_fresh(array: Array) -> bool:
    """Return whether an array owns its memory, in C order: then it may be handed over
    without a copy.
    """
    has_views = type(array) is np.ndarray or hasattr(array, "__cuda_array_interface__")
    return has_views and array.base is None and array.flags.c_contiguous


_INTEGERS = {2: np.int16, 4: np.int32, 8: np.int64}  # by size in bytes


def masked(array: Array, mask: Array) -> Array:
    """Return the array with 0 wherever the mask is false, even if the array is infinite
    or NaN there.

    Examples
    --------
    >>> masked(
    ...     np.array([1.0, np.inf, np.nan, 2.0]), np.array([True, False, False, True])
    ... )
    array([1., 0., 0., 2.])
    """
    integer = _INTEGERS.get(array.itemsize) if isinstance(array, np.ndarray) else None
    if integer is None:
        return array_module(array).where(mask, array, 0)
    # inf * 0 is NaN, but the bits of inf, as an integer, times 0 are the bits of 0.
    # np.where branches at every element, and takes up to 20 times as long; so does a
    # product of two dtypes if it is small.
    return (array.view(integer) * mask.astype(integer)).view(array.dtype)


def masked_like(array: Array, other: Array) -> Array:
    """Return the array with 0 wherever another is 0.

    Examples
    --------
    >>> masked_like(np.array([1.0, np.inf, 2.0]), np.array([3.0, 0.0, np.nan]))
    array([1., 0., 2.])
    """
    # NumPy compares with an array of its dtype in half the time that it takes for a
    # number.
    zero = _zeros_in_numpy((), other.dtype) if isinstance(other, np.ndarray) else 0
    return masked(array, other != zero)


def one_per_row(matrix: Array, columns: Array) -> Array:
    """Return ``matrix[i, columns[i]]`` for each row i; shapes (n, k) and (n,) give
    (n,).
    """
    if isinstance(matrix, np.ndarray):
        # a third of the time of take_along_axis
        return matrix[np.arange(matrix.shape[0]), columns]
    return array_module(matrix).take_along_axis(matrix, columns[:, None], axis=1)[:, 0]


def reshape(array: Array, shape: tuple[int, ...]) -> Array:
    """Return the elements in another shape; arrays of the array API standard have no
    such method.
    """
    if array.shape == shape:
        return array
    if hasattr(array, "reshape"):
        return array.reshape(shape)
    return array_module(array).reshape(array, shape)


def rows_of(array: Array) -> Array:
    """Return an array as a matrix whose rows are its last axis."""
    if array.ndim == 2:
        return array
    length = array.shape[-1]
    if length and isinstance(array, np.ndarray):
        return array.reshape(-1, length)
    return reshape(array, (prod(array.shape[:-1]), length))


def permuted(array: Array, axes: tuple[int, ...]) -> Array:
    """Return the axes in another order, as a view if its module has views."""
    # arrays of the array API standard have no such method
    if hasattr(array, "transpose"):
        return array.transpose(axes)  # a third of the time of the function
    return array_module(array).permute_dims(array, axes)


def scalars(like: Array, *values: float) -> tuple[Any, ...]:
    """Return Python's numbers as operands of an array, with the result that they have
    themselves; not -0.0.

    NumPy converts a number in a third of the time that a small product takes, so these
    are converted once.
    """
    try:
        if isinstance(like, np.ndarray):
            return _scalars_in_numpy(like.dtype, *values)
        return values
    except TypeError:  # an array of one number, which has no hash
        return values


@lru_cache(maxsize=256, typed=True)  # a float64 of NumPy's is no number of Python's
def _scalars_in_numpy(dtype: np.dtype, *values: float) -> tuple[Any, ...]:
    return tuple(
        np.asarray(value, dtype) if type(value) in (int, float) else value
        for value in values
    )


def product(a: Array, b: Array) -> Array:
    """Return the product of two matrices, or of two vectors."""
    if isinstance(a, np.ndarray) and a.itemsize != 2:
        return a.dot(b)  # the method saves a fifth of small products
    return matmul(a, b)


def matmul(a: Array, b: Array) -> Array:
    """Return the product over the last two axes. Halves are multiplied and added up in
    float32, and rounded once.

    BLAS knows no halves, so NumPy would take ten times as long over float16, and return
    float32 for bfloat16.
    """
    if isinstance(a, np.ndarray) and a.itemsize == 2 and is_half(a.dtype):
        return (a.astype(np.float32) @ b.astype(np.float32)).astype(a.dtype)
    multiplied = PRODUCTS and PRODUCTS.get(array_module(a).__name__)
    return multiplied(a, b) if multiplied else a @ b


def _constants(value: float) -> Callable[..., np.ndarray]:
    @lru_cache(maxsize=64)
    def constant(shape: int | Shape, dtype: np.dtype) -> np.ndarray:
        array = np.full(shape, value, dtype)
        array.flags.writeable = False
        return array

    return constant


_ones_in_numpy = _constants(1)
_zeros_in_numpy = _constants(0)


def positive_part(array: Array) -> Array:
    """Return the larger of each element and 0."""
    if isinstance(array, np.ndarray):
        # With the zeros of a row it takes half the time that it takes with a number.
        return np.maximum(array, _zeros_in_numpy(array.shape[-1:], array.dtype))
    return array_module(array).maximum(array, filled(array.shape[-1:], 0, array))


def ones_of_row(array: Array) -> Array:
    """Return ones for one row of an array: the product with them is the sum of each
    row.
    """
    return _kept_ones(array.shape[-1:], array)


def _kept_ones(shape: Shape, like: Array) -> Array:
    if isinstance(like, np.ndarray):
        return _ones_in_numpy(shape, like.dtype)
    return ones(shape, like)


def sum_over_rows(array: Array) -> Array:
    """Return the sum over the last axis but one, (..., 1, t), as a product: a quarter
    of the time of a reduction.
    """
    return matmul(_kept_ones((1, array.shape[-2]), array), array)


def sum_of_rows(matrix: Array) -> Array:
    """Return the sum over the first axis, from shape (n, k) to (k,): as a product,
    faster than a reduction.
    """
    if isinstance(matrix, np.ndarray) and matrix.itemsize != 2:
        ones_of_rows = _ones_in_numpy(matrix.shape[0], matrix.dtype)
        # The method takes two thirds of the time, but a trace (compile/) notices only
        # the function.
        if type(matrix) is np.ndarray:
            return ones_of_rows.dot(matrix)
        return np.dot(ones_of_rows, matrix)
    return matmul(ones((matrix.shape[0],), matrix), matrix)


def ones(shape: tuple[int, ...], like: Array) -> Array:
    """Return ones of the module and dtype of ``like``."""
    return filled(shape, 1.0, like)


def filled(shape: tuple[int, ...], value: float, like: Array) -> Array:
    """Return one value everywhere, of the module and dtype of ``like``."""
    if isinstance(like, np.ndarray):
        result = np.empty(shape, like.dtype)
        result.fill(value)  # half the time of np.full
        return result
    return array_module(like).full(shape, value, dtype=like.dtype)


def sum_of_squares(array: Array) -> Array:
    """Return the sum of the squares of all elements."""
    flat = array.ravel() if isinstance(array, np.ndarray) else reshape(array, (-1,))
    return product(flat, flat)  # no squares in memory, and no second pass over them


def reduce_sum(array: Array, axis: Any = None, keepdims: bool = False) -> Array:
    """Return the sum over one axis, several, or all; halves add up in float32."""
    if isinstance(array, np.ndarray):
        add: Any = np.add
        if array.itemsize == 2 and is_half(array.dtype):
            total = add.reduce(array, axis=axis, keepdims=keepdims, dtype=np.float32)
            return total.astype(array.dtype)
        # half the time of np.sum's wrapper
        return add.reduce(array, axis=axis, keepdims=keepdims)
    return array_module(array).sum(array, axis=axis, keepdims=keepdims)


def unbroadcast(gradient: Array, shape: tuple[int, ...]) -> Array:
    """Sum a gradient over the axes along which its input, of shape ``shape``, was
    broadcast.
    """
    if gradient.shape == shape:
        return gradient
    extra = gradient.ndim - len(shape)
    pairs = enumerate(zip(gradient.shape[extra:], shape), extra)
    stretched = tuple(i for i, (now, length) in pairs if length == 1 != now)
    axes = tuple(range(extra)) + stretched
    return reshape(reduce_sum(gradient, axis=axes, keepdims=True), shape)


# the number of elements of a shape, as a Python integer, which leaves float32 alone
prod = math.prod


def quietly(function: Callable[..., Any]) -> Callable[..., Any]:
    """Return a function during which NumPy does not warn of an overflow, nor of inf -
    inf that may follow.

    It is for gradients in half precision, whose overflow a loss scale expects and deals
    with.
    """
    return np.errstate(over="ignore", invalid="ignore")(function)


@quietly
def sum_of_gradients(gradients: Iterable[Array | None]) -> Array | None:
    """Return the sum of the gradients that are not None, in order; None if there is
    none.

    After an overflow in half precision opposite infinities may be added: no warning,
    since a loss scale detects them.
    """
    present = [gradient for gradient in gradients if gradient is not None]
    return sum(present[1:], present[0]) if present else None


# -- devices ---------------------------------------------------------------------------


def module_for(device: str | ModuleType, local_rank: int = 0) -> ModuleType:
    """Return the array module of a device: ``"cpu"``, ``"gpu"``, or an array module,
    which is returned as it is.

    With ``"gpu"`` this thread uses GPU ``local_rank`` from now on; if there are more
    ranks than GPUs, ranks share them round-robin. PyTorch's names are also accepted:
    ``"cuda"`` is ``"gpu"``, and ``"cuda:1"`` is the second GPU on any rank.

    Raises
    ------
    LaunchError
        Code ``unavailable``; the message says what is missing.
    """
    if isinstance(device, ModuleType):
        return device
    if isinstance(device, str) and device in ("cpu", "cpu:0"):
        return np
    try:
        # on demand: most programs use none
        from minipipe.autograd.devices import gpu_module
    except ModuleNotFoundError:
        alone = "the core alone takes 'cpu' or an array module, such as cupy"
        raise LaunchError("unavailable", f"device is {device!r}; {alone}.") from None
    return gpu_module(device, local_rank)


def moved(array: Array, xp: ModuleType, dtype: Any = None) -> Array:
    """Return an array in a module and, if one is given, a dtype; copied only if it is
    in another memory.
    """
    if array_module(array) is not xp:
        # CuPy copies what is not pinned into pinned memory of its pool, at once; arrays
        # in pinned memory of ours are not written again.
        array = xp.asarray(to_numpy(array))
    if dtype is None or array.dtype is dtype:
        return array
    found = numpy_dtype(dtype)
    return as_array(array, getattr(xp, found.name, found))


def to_numpy(array: Array) -> np.ndarray:
    """Return the values in NumPy's memory, copied only if they are elsewhere; from a
    GPU through pinned memory, which CuPy's pool uses again.
    """
    if not hasattr(array, "get"):
        return np.asarray(array)
    return array.get(out=empty_on_host(array_module(array))(array.shape, array.dtype))


def values(array: Array) -> np.ndarray:
    """Return the values in NumPy's memory for code that reads them, which breaks a
    trace.
    """
    if hasattr(array, "note_call") and array.trace is not None:
        array.trace.graph_break("reads a value")
        return to_numpy(array.plain)
    return to_numpy(array)


def empty_on_host(xp: ModuleType) -> Callable[..., np.ndarray]:
    """Return the allocator of the host memory that a device of this module copies to
    and from fastest.
    """
    if xp.__name__ != "cupy":
        return np.empty
    import cupyx

    return cupyx.empty_pinned


def clock_of(xp: ModuleType) -> Callable[[], Any]:
    """Return a function that notes the time: ``perf_counter``; of a device with events
    a clock that waits for nothing, whose times ``float()`` reads later.
    """
    if not hasattr(getattr(xp, "cuda", None), "Event"):
        return perf_counter
    from minipipe.core.autograd.clock import DeviceClock

    return DeviceClock(xp)


def synchronise(xp: ModuleType) -> None:
    """Wait until the device has finished its work; the host never runs ahead of other
    modules.
    """
    if xp.__name__ == "cupy":
        xp.cuda.get_current_stream().synchronize()

"""Products of matrices by cuBLAS, also while a stream captures a graph.

CuPy refuses to call cuBLAS then, because its handle may need memory or another stream.
Here every stream has a handle of its own, with a workspace that exists. cuBLAS reads
transposed operands and broadcast ones in place; CuPy copies both operands of a product
with more than two axes.

cuBLAS expects columns one after the other, and NumPy rows. A matrix of rows is the
transpose of one of columns, so it computes ``out.T = b.T @ a.T``.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from ctypes import CDLL, byref, c_double, c_float, c_longlong, c_size_t, c_void_p
from functools import lru_cache
from importlib import import_module
from itertools import pairwise
from math import prod
from types import ModuleType
from typing import Any, NamedTuple

import numpy as np

from minipipe.core.autograd import backend
from minipipe.core.autograd.backend import Array, Shape
from minipipe.errors import LaunchError
from minipipe.gpu.precision import allows_tf32

WORKSPACE = 32 << 20
"""Bytes of the workspace of a handle, as NVIDIA recommends for its newest GPUs."""
MOST_LAUNCHES = 4
"""Launches for one product, rather than copies of operands whose batch has no stride."""

# By dtype: its number in cudaDataType_t, the number of its sums in cublasComputeType_t,
# and the factors of the product and of the earlier result. Halves add up in float32.
_FLOATS = 68, byref(c_float(1)), byref(c_float(0))
_KINDS = {
    "float16": (2, *_FLOATS),
    "bfloat16": (14, *_FLOATS),
    "float32": (0, *_FLOATS),
    "float64": (1, 70, byref(c_double(1)), byref(c_double(0))),
}
_TF32 = 77  # sums in float32 of products of operands that are rounded to TF32
_FULL_SUMS = 16  # CUBLAS_MATH_DISALLOW_REDUCED_PRECISION_REDUCTION
_DEFAULT = -1  # CUBLAS_GEMM_DEFAULT
_LARGEST = 2**31 - 1  # of a length


def install(xp: ModuleType) -> None:
    """Let products of CuPy's arrays be computed here, if its cuBLAS can be found."""
    if xp.__name__ in backend.PRODUCTS:
        return  # its handles stay
    try:
        # A library answers for those that it was linked to: this is CuPy's own cuBLAS,
        # of CUDA 12 or 13.
        library = CDLL(_wrapper())
        assert library.cublasGemmStridedBatchedEx
    except (ImportError, OSError, AttributeError):
        return  # then sections have no graphs, and the report tells why
    backend.PRODUCTS[xp.__name__] = product_of(Products(xp, library))


def _wrapper() -> str | None:
    """Return the path of CuPy's module that calls cuBLAS."""
    return import_module("cupy_backends.cuda.libs.cublas").__file__


class Products:
    """The products of a module's arrays.

    Parameters
    ----------
    xp : module
        CuPy, or one with its names.
    library : ctypes.CDLL
        It has the functions of cuBLAS.
    """

    def __init__(self, xp: Any, library: Any) -> None:
        self._xp = xp
        self._library = library
        self._of_thread = threading.local()

    def __call__(self, a: Array, b: Array, out: Array | None = None) -> Array:
        """Return the product over the last two axes, in ``out`` if it is given: an array
        in C order.
        """
        kinds = a.dtype, b.dtype, allows_tf32()
        plan = _plan(a.shape, b.shape, (a.strides, b.strides), kinds)
        if plan is None:
            result = self._xp.matmul(a, b)  # which also tells what is wrong
            if out is None:
                return result
            out[...] = result
            return out
        if out is None:
            out = self._xp.empty(plan.shape, dtype=a.dtype)
        if plan.call is not None:
            name, given, places = plan.call
            given = given.copy()
            for place, array in zip(places, (b, a, out)):
                given[place] = c_void_p(array.data.ptr)
            self._call(name, self._handle(), *given)
        elif 0 in a.shape and out.size:
            out.fill(0)
        elif plan.num_parts:
            for i in range(plan.num_parts):
                self(_part(a, i, out.ndim), _part(b, i, out.ndim), out[i])
        elif out.size:
            self(self._readable(a, plan, 0), self._readable(b, plan, 1), out)
        return out

    def _readable(self, x: Array, plan: Plan, number: int) -> Array:
        """Return an operand as cuBLAS reads it: a copy in C order, if it cannot read
        x.
        """
        if not plan.copies[number]:
            return x
        if x.ndim > 2:
            x = self._xp.broadcast_to(x, plan.batch + x.shape[-2:])
        return x.copy()

    def _handle(self) -> Any:
        """Return the handle of the current stream of this thread."""
        cuda = self._xp.cuda
        stream = cuda.get_current_stream()
        key = cuda.runtime.getDevice(), stream.ptr
        handles = self._of_thread.__dict__.setdefault("handles", {})
        if key not in handles:
            handle, memory = c_void_p(), cuda.Memory(WORKSPACE)
            workspace = c_void_p(memory.ptr), c_size_t(WORKSPACE)
            self._call("cublasCreate_v2", byref(handle))
            # This takes an earlier workspace away.
            self._call("cublasSetStream_v2", handle, c_void_p(stream.ptr))
            self._call("cublasSetWorkspace_v2", handle, *workspace)
            self._call("cublasSetMathMode", handle, _FULL_SUMS)
            handles[key] = handle, memory, stream  # or another gets its address
        return handles[key][0]

    def _call(self, name: str, *arguments: Any) -> None:
        status = getattr(self._library, name)(*arguments)
        if status:
            message = f"{name} of cuBLAS fails with status {status}; 3: out of memory."
            raise LaunchError("unavailable", message)


def product_of(products: Products) -> Callable[..., Array]:
    """Return the function of some products that a compiled section calls."""

    def multiplied(a: Array, b: Array, out: Array | None = None) -> Array:
        return products(a, b, out)

    return backend.one_line(multiplied, has_out=True)


class Plan(NamedTuple):
    """How to compute a product.

    Attributes
    ----------
    shape : Shape
        The shape of the result.
    batch : Shape
        The axes along which matrices lie.
    call : tuple, or None
        The name of a function of cuBLAS, its arguments behind the handle, and the places
        of the addresses of b, a and the result among them; None if there is nothing to
        add up, or operands have to change.
    num_parts : int
        Of products, one for each element of the first axis; 0 for one product.
    copies : (bool, bool)
        Whether an operand is copied first.
    """

    shape: Shape
    batch: Shape
    call: tuple[str, list[Any], Shape] | None = None
    num_parts: int = 0
    copies: tuple[bool, ...] = (False, False)


@lru_cache(maxsize=4096)  # a plan takes several times as long as a launch
def _plan(
    a: Shape, b: Shape, strides: tuple[Shape, Shape], kinds: tuple[Any, Any, bool]
) -> Plan | None:
    """Return how to multiply arrays of these shapes, strides and dtypes, perhaps in
    TF32; None if cuBLAS cannot.
    """
    dtype, other, is_tf32 = kinds
    if dtype != other or dtype.name not in _KINDS or not (a and b):
        return None
    shape = a[-2:-1] + b[-1:] * (len(b) > 1)
    if len(a) == 1:
        a, strides = (1, *a), ((0, *strides[0]), strides[1])
    if len(b) == 1:
        b, strides = (*b, 1), (strides[0], (*strides[1], 0))
    if a[-1] != b[-2] or max(a + b) > _LARGEST:
        return None
    batch = np.broadcast_shapes(a[:-2], b[:-2])
    shape = batch + shape
    if 0 in shape + a:
        return Plan(shape, batch)
    a_turned, a_between, a_distance = _layout(a, strides[0], batch, dtype.itemsize)
    b_turned, b_between, b_distance = _layout(b, strides[1], batch, dtype.itemsize)
    if None in (a_distance, b_distance) and batch[0] <= MOST_LAUNCHES:
        return Plan(shape, batch, num_parts=batch[0])
    copies = not a_between or a_distance is None, not b_between or b_distance is None
    if any(copies):
        return Plan(shape, batch, copies=copies)
    kind, sums, one, zero = _KINDS[dtype.name]
    if kind == 0 and is_tf32:
        sums = _TF32
    m, k, n = a[-2], a[-1], b[-1]
    given = [b_turned, a_turned, n, m, k, one, None, kind, b_between]
    given += [None, kind, a_between, zero, None, kind, n]
    name, places = "cublasGemmEx", (6, 9, 13)
    if prod(batch) > 1:
        name, places = "cublasGemmStridedBatchedEx", (6, 10, 15)
        given += [c_longlong(m * n), prod(batch)]
        given.insert(12, c_longlong(a_distance or 0))
        given.insert(9, c_longlong(b_distance or 0))
    return Plan(shape, batch, (name, [*given, sums, _DEFAULT], places))


def _part(x: Array, i: int, num_axes: int) -> Array:
    """Return the operand of a part of a product."""
    if x.ndim < num_axes:
        return x
    return x[i if x.shape[0] > 1 else 0]


def _layout(
    shape: Shape, strides: Shape, batch: Shape, size: int
) -> tuple[int, int, int | None]:
    """Return whether the columns of a matrix lie one after the other, rather than its
    rows; the distance of two of them, 0 if neither do; and the distance of two matrices,
    None if it differs. Strides are in bytes, distances in elements.
    """
    steps = [each // size for each in strides]
    own = [step * (n > 1) for n, step in zip(shape[:-2], steps)]
    own = [0] * (len(batch) - len(own)) + own
    return *_order(shape[-2:], steps[-2:]), _distance(batch, own)


def _order(shape: Shape, steps: Sequence[int]) -> tuple[int, int]:
    """Return the first two numbers of a layout."""
    m, n = shape
    down, right = steps
    if m == 1:
        down = n
    if (right == 1 or n == 1) and n <= down <= _LARGEST:
        return 0, down
    if n == 1:
        right = m
    if (down == 1 or m == 1) and m <= right <= _LARGEST:
        return 1, right
    return 0, 0


def _distance(batch: Shape, steps: Sequence[int]) -> int | None:
    """Return the last number of a layout."""
    pairs = [pair for pair in zip(batch, steps) if pair[0] > 1]
    is_one = all(outer == n * inner for (_, outer), (n, inner) in pairwise(pairs))
    if not pairs or not is_one or pairs[-1][1] < 0:
        return None if pairs else 0
    return pairs[-1][1]

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
from collections.abc import Callable
from ctypes import CDLL, byref, c_double, c_float, c_longlong, c_size_t, c_void_p
from importlib import import_module
from itertools import pairwise
from math import prod
from types import ModuleType
from typing import Any

import numpy as np

from minipipe.core.autograd import backend
from minipipe.core.autograd.backend import Array
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
        left = a[None, :] if a.ndim == 1 else a
        right = b[:, None] if b.ndim == 1 else b
        lengths = *left.shape, *right.shape
        fits = 0 not in (a.ndim, b.ndim) and left.shape[-1] == right.shape[-2]
        is_known = a.dtype == b.dtype and a.dtype.name in _KINDS
        if not (fits and is_known and max(lengths) <= _LARGEST):
            result = self._xp.matmul(a, b)  # which also tells what is wrong
            if out is None:
                return result
            out[...] = result
            return out
        batch = np.broadcast_shapes(left.shape[:-2], right.shape[:-2])
        rows, columns = left.shape[-2:-1], right.shape[-1:]
        if out is None:
            shape = batch + rows * (a.ndim > 1) + columns * (b.ndim > 1)
            out = self._xp.empty(shape, dtype=a.dtype)
        self._write(left, right, out.reshape(batch + rows + columns))
        return out

    def _write(self, a: Array, b: Array, out: Array) -> None:
        """Write the product of matrices, or of a batch of them, into an array."""
        if out.size == 0:
            return
        if a.shape[-1] == 0:
            out.fill(0)
            return
        batch = out.shape[:-2]
        a = self._xp.broadcast_to(a, batch + a.shape[-2:])
        b = self._xp.broadcast_to(b, batch + b.shape[-2:])
        if None in (_distance(a), _distance(b)) and batch[0] <= MOST_LAUNCHES:
            for i in range(batch[0]):
                self._write(a[i], b[i], out[i])
            return
        a, b = _readable(a), _readable(b)
        m, n = out.shape[-2:]
        kind, sums, one, zero = _KINDS[out.dtype.name]
        if kind == 0 and allows_tf32():
            sums = _TF32
        b_turned, *of_b = _operand(b, kind)
        a_turned, *of_a = _operand(a, kind)
        head = self._handle(), b_turned, a_turned, n, m, a.shape[-1], one
        target, ends = (c_void_p(out.data.ptr), kind, n), (sums, _DEFAULT)
        size = prod(batch)
        if size == 1:
            self._call("cublasGemmEx", *head, *of_b, *of_a, zero, *target, *ends)
            return
        of_b.append(c_longlong(_distance(b) or 0))
        of_a.append(c_longlong(_distance(a) or 0))
        name = "cublasGemmStridedBatchedEx"
        self._call(
            name, *head, *of_b, *of_a, zero, *target, c_longlong(m * n), size, *ends
        )

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


def _readable(x: Array) -> Array:
    """Return an operand as cuBLAS reads it: a copy in C order, if it cannot read x."""
    return x if _order(x)[1] and _distance(x) is not None else x.copy()


def _operand(x: Array, kind: int) -> list[Any]:
    """Return whether the columns of an operand lie one after the other, its address, the
    number of its dtype, and the distance of columns or rows.
    """
    is_turned, between = _order(x)
    return [is_turned, c_void_p(x.data.ptr), kind, between]


def _order(x: Array) -> tuple[int, int]:
    """Return whether the columns of a matrix lie one after the other, rather than its
    rows, and the distance of two of them in elements; 0 if neither do.
    """
    (m, n), (down, right) = (
        x.shape[-2:],
        (each // x.itemsize for each in x.strides[-2:]),
    )
    if m == 1:
        down = n
    if (right == 1 or n == 1) and n <= down <= _LARGEST:
        return 0, down
    if n == 1:
        right = m
    if (down == 1 or m == 1) and m <= right <= _LARGEST:
        return 1, right
    return 0, 0


def _distance(x: Array) -> int | None:
    """Return the distance of two matrices of a batch in elements; None if it differs."""
    pairs = [pair for pair in zip(x.shape[:-2], x.strides[:-2]) if pair[0] > 1]
    is_one = all(outer == n * inner for (_, outer), (n, inner) in pairwise(pairs))
    if not pairs or not is_one or pairs[-1][1] < 0:
        return None if pairs else 0
    return pairs[-1][1] // x.itemsize

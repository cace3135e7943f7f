"""Products of matrices by cuBLAS, also while a stream captures a graph.

CuPy refuses to call cuBLAS then, because its handle may need memory or another stream.
Here every stream has a handle of its own, with a workspace that exists. cuBLAS reads
transposed operands and broadcast ones in place, where CuPy copies both operands of
a product with more than two axes.

cuBLAS expects columns one after the other, and NumPy rows. A matrix of rows is the
transpose of one of columns, so it computes ``out.T = b.T @ a.T``.
"""

from __future__ import annotations

import ctypes
import threading
from collections.abc import Callable
from importlib import import_module
from itertools import pairwise
from math import prod
from types import ModuleType
from typing import Any

import numpy as np

from minipipe.core.autograd import backend
from minipipe.core.autograd.backend import Array, Shape
from minipipe.gpu.precision import allows_tf32

WORKSPACE = 32 << 20
"""Bytes of the workspace of a handle, as NVIDIA recommends for its newest GPUs."""
MOST_LAUNCHES = 4
"""Launches for one product, rather than copies of operands whose batch has no stride."""

# By dtype, its number in cudaDataType_t, and the number of its sums in
# cublasComputeType_t: halves are added up in float32.
_KINDS = {
    "float16": (2, 68),
    "bfloat16": (14, 68),
    "float32": (0, 68),
    "float64": (1, 70),
}
_TF32 = 77  # sums in float32 of products of operands that are rounded to TF32
_FULL_SUMS = 16  # CUBLAS_MATH_DISALLOW_REDUCED_PRECISION_REDUCTION
_DEFAULT = -1  # CUBLAS_GEMM_DEFAULT
_LARGEST = 2**31 - 1  # of a length
_FACTORS = {  # of the product, and of what the result was before
    70: (ctypes.byref(ctypes.c_double(1.0)), ctypes.byref(ctypes.c_double(0.0))),
    68: (ctypes.byref(ctypes.c_float(1.0)), ctypes.byref(ctypes.c_float(0.0))),
}
_INT, _POINTER, _STRIDE = ctypes.c_int, ctypes.c_void_p, ctypes.c_longlong
_OPERAND = [_POINTER, _INT, _INT]  # address, dtype, stride of columns
_HEAD = [_POINTER, *[_INT] * 5, _POINTER]
_PARAMETERS = {
    "cublasCreate_v2": [_POINTER],
    "cublasSetStream_v2": [_POINTER, _POINTER],
    "cublasSetWorkspace_v2": [_POINTER, _POINTER, ctypes.c_size_t],
    "cublasSetMathMode": [_POINTER, _INT],
    "cublasGemmEx": [*_HEAD, *_OPERAND * 2, _POINTER, *_OPERAND, _INT, _INT],
    "cublasGemmStridedBatchedEx": [
        *(*_HEAD, *[*_OPERAND, _STRIDE] * 2, _POINTER),
        *(*_OPERAND, _STRIDE, _INT, _INT, _INT),
    ],
}


def install(xp: ModuleType) -> None:
    """Let products of CuPy's arrays be computed here, if its cuBLAS can be found."""
    try:
        # A library answers for those that it was linked to: this is CuPy's own cuBLAS,
        # of CUDA 12 or 13.
        library = Library(ctypes.CDLL(_wrapper()))
    except (ImportError, OSError, AttributeError):
        return  # then sections have no graphs, and the report tells why
    backend.PRODUCTS[xp.__name__] = product_of(Products(xp, library))


def _wrapper() -> str | None:
    """Return the path of CuPy's module that calls cuBLAS."""
    return import_module("cupy_backends.cuda.libs.cublas").__file__


class Library:
    """The functions of cuBLAS; an error of one is raised.

    Parameters
    ----------
    loaded : ctypes.CDLL

    Raises
    ------
    AttributeError
        The library lacks one of them.
    """

    def __init__(self, loaded: Any) -> None:
        self._functions = {name: getattr(loaded, name) for name in _PARAMETERS}
        for name, function in self._functions.items():
            function.argtypes = _PARAMETERS[name]

    def __call__(self, name: str, *arguments: Any) -> None:
        """Call a function."""
        status = self._functions[name](*arguments)
        if status:
            raise RuntimeError(f"{name} of cuBLAS fails with status {status}")


class Products:
    """The products of a module's arrays.

    Parameters
    ----------
    xp : module
        CuPy, or one with its names.
    library : Library
    """

    def __init__(self, xp: Any, library: Callable[..., None]) -> None:
        self._xp = xp
        self._library = library
        self._of_thread = threading.local()

    def __call__(self, a: Array, b: Array, out: Array | None) -> Array:
        """Return the product over the last two axes, in ``out`` if it is given."""
        shapes = _shapes(a, b)
        if shapes is None:
            result = self._xp.matmul(a, b)  # which also tells what is wrong
        elif out is not None and out.flags.c_contiguous:
            self._write(*_matrices(a, b), out.reshape(shapes[1]))
            return out
        else:
            result = self._xp.empty(shapes[0], dtype=a.dtype)
            self._write(*_matrices(a, b), result.reshape(shapes[1]))
        if out is None:
            return result
        out[...] = result
        return out

    def _write(self, a: Array, b: Array, out: Array) -> None:
        """Write the product of matrices, or of a batch of them, into an array."""
        if out.size == 0:
            return
        if a.shape[-1] == 0:
            out.fill(0)
            return
        if b.ndim == 2 and a.flags.c_contiguous and a.size <= _LARGEST:
            # one product of all rows
            a = a.reshape(-1, a.shape[-1])
            out = out.reshape(-1, out.shape[-1])
        batch = out.shape[:-2]
        a = self._xp.broadcast_to(a, batch + a.shape[-2:])
        b = self._xp.broadcast_to(b, batch + b.shape[-2:])
        if None in (_batch_stride(a), _batch_stride(b)) and batch[0] <= MOST_LAUNCHES:
            for i in range(batch[0]):
                self._write(a[i], b[i], out[i])
            return
        self._launch(_readable(a), _readable(b), out)

    def _launch(self, a: Array, b: Array, out: Array) -> None:
        m, n = out.shape[-2:]
        number, sums = _KINDS[out.dtype.name]
        one, zero = _FACTORS[sums]
        if sums == 68 and number == 0 and allows_tf32():
            sums = _TF32
        size = prod(out.shape[:-2])
        factors = []
        for each in (b, a):
            pointer = each.data.ptr, number, _order(each)[1]
            factors.append([*pointer, *[_batch_stride(each)] * (size > 1)])
        target = [out.data.ptr, number, n, *[m * n, size] * (size > 1)]
        name = "cublasGemmStridedBatchedEx" if size > 1 else "cublasGemmEx"
        head = self._handle(), _order(b)[0], _order(a)[0], n, m, a.shape[-1], one
        self._library(
            name, *head, *factors[0], *factors[1], zero, *target, sums, _DEFAULT
        )

    def _handle(self) -> Any:
        """Return the handle of the current stream of this thread."""
        cuda = self._xp.cuda
        stream = cuda.get_current_stream().ptr
        key = cuda.runtime.getDevice(), stream
        handles = self._of_thread.__dict__.setdefault("handles", {})
        if key not in handles:
            handle, workspace = ctypes.c_void_p(), cuda.Memory(WORKSPACE)
            self._library("cublasCreate_v2", ctypes.byref(handle))
            # This takes an earlier workspace away.
            self._library("cublasSetStream_v2", handle, stream)
            self._library("cublasSetWorkspace_v2", handle, workspace.ptr, WORKSPACE)
            self._library("cublasSetMathMode", handle, _FULL_SUMS)
            handles[key] = handle, workspace
        return handles[key][0]


def product_of(products: Products) -> Callable[..., Array]:
    """Return the function of some products that a compiled section calls."""

    def multiplied(a: Array, b: Array, out: Array | None = None) -> Array:
        return products(a, b, out)

    return backend.one_line(multiplied, has_out=True)


def _shapes(a: Array, b: Array) -> tuple[Shape, Shape] | None:
    """Return the shape of a product, and that with the axes of vectors; None if cuBLAS
    has no such product.
    """
    if a.dtype != b.dtype or a.dtype.name not in _KINDS or 0 in (a.ndim, b.ndim):
        return None
    left, right = _matrices(a, b)
    if left.shape[-1] != right.shape[-2] or max(*a.shape, *b.shape, 1) > _LARGEST:
        return None
    try:
        batch = np.broadcast_shapes(left.shape[:-2], right.shape[:-2])
    except ValueError:
        return None
    rows, columns = left.shape[-2:-1], right.shape[-1:]
    return batch + rows * (a.ndim > 1) + columns * (b.ndim > 1), batch + rows + columns


def _matrices(a: Array, b: Array) -> tuple[Array, Array]:
    """Return a vector on the left as a row, and one on the right as a column."""
    if a.ndim == 1:
        a = a[None, :]
    if b.ndim == 1:
        b = b[:, None]
    return a, b


def _readable(x: Array) -> Array:
    """Return an operand as cuBLAS reads it: a copy, if it cannot read this one."""
    if _order(x)[1] and _batch_stride(x) is not None:
        return x
    return x.copy()  # in C order


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


def _batch_stride(x: Array) -> int | None:
    """Return the distance of two matrices of a batch in elements; None if it differs."""
    pairs = [pair for pair in zip(x.shape[:-2], x.strides[:-2]) if pair[0] > 1]
    if any(outer != n * inner for (_, outer), (n, inner) in pairwise(pairs)):
        return None
    if not pairs:
        return 0
    stride = pairs[-1][1]
    return None if stride < 0 else stride // x.itemsize

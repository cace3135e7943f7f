"""Properties of an array module, NumPy or another one, that a recording depends on.

All properties follow from the names of the array API and of NumPy, and from attributes
of functions: there is no branch for a module of a certain name.
"""

from __future__ import annotations

from collections.abc import Hashable
from functools import lru_cache
from types import ModuleType
from typing import Any

import numpy as np

from minipipe.core.autograd import backend
from minipipe.core.autograd.backend import Array, Shape

# Elementwise functions that are rounded correctly: the bits are the same whatever path
# a module takes.
_EXACT = """
    add subtract multiply divide negative positive absolute fabs maximum minimum sqrt
    square sign floor ceil rint trunc equal not_equal less less_equal greater
    greater_equal logical_and logical_or logical_not logical_xor bitwise_and bitwise_or
    bitwise_xor invert isnan isinf isfinite copysign
"""
# Functions whose result's shape depends on the shapes of their arguments alone.
_STATIC = """
    concat stack where max min amax amin sum mean clip take take_along_axis broadcast_to
    permute_dims transpose matrix_transpose swapaxes expand_dims squeeze tril triu dot
    astype cumsum reshape zeros_like ones_like pad split
"""
# More such functions, which in NumPy are ufuncs, or are not called for its arrays.
_STATIC_ELSEWHERE = """
    abs acos acosh asin asinh atan atan2 atanh bitwise_invert bitwise_left_shift
    bitwise_right_shift cos cosh exp expm1 floor_divide hypot log log10 log1p log2
    logaddexp matmul pow power reciprocal remainder round signbit sin sinh tan tanh
    tensordot vecdot any all argmax argmin argsort sort prod std var cumulative_sum
    cumulative_prod flip roll moveaxis tile repeat broadcast_arrays asarray
"""
_WITH_OUT = "concat stack clip"
_REDUCTIONS = "max min amax amin sum mean cumsum"
_FILLINGS = {"zeros": 0, "ones": 1, "zeros_like": 0, "ones_like": 1}
_FILLINGS |= {"empty": 0, "empty_like": 0}  # every element is written later
# Functions and methods whose result may be a view of the argument.
_VIEWS = """
    reshape permute_dims transpose matrix_transpose swapaxes expand_dims squeeze
    broadcast_to broadcast_arrays flip moveaxis asarray astype split view ravel
"""
VIEWS = frozenset(_VIEWS.split())


class Dialect:
    """An array module, as the recording of a stage sees it.

    Attributes
    ----------
    xp : module
    is_numpy : bool
    has_out : bool
        Whether functions take ``out``, as NumPy's do. Then arrays have strides, and
        views have a base. Programs for other modules assign every result to a variable.
    exact, static, with_out, reductions : frozenset of function
    names : dict of function to str
        The names of the functions in programs, for other modules than NumPy.
    """

    def __init__(self, xp: ModuleType) -> None:
        self.xp = xp
        self.is_numpy = xp is np
        self.has_out = is_ufunc(getattr(xp, "add", None))
        self.exact = self._functions(_EXACT)
        self.static = self._functions(_STATIC)
        if not self.is_numpy:
            self.static |= self.exact | self._functions(_STATIC_ELSEWHERE)
        self.with_out = self._functions(_WITH_OUT)
        self.reductions = self._functions(_REDUCTIONS)
        self.names: dict[Hashable, str] = {}
        if not self.is_numpy:
            for name in f"{_EXACT} {_STATIC} {_STATIC_ELSEWHERE}".split():
                self.names.setdefault(getattr(xp, name, None), name)

    def _functions(self, names: str) -> frozenset[Any]:
        functions = (getattr(self.xp, name, None) for name in names.split())
        return frozenset(each for each in functions if each is not None)

    def ufunc(self, function: Any) -> Any:
        """Return the counterpart of a ufunc of NumPy's; None for a module without."""
        if self.is_numpy:
            return function
        if self.has_out:
            return getattr(self.xp, function.__name__)
        return None

    def fill_value(self, function: Any) -> int | None:
        """Return the number with which a function fills an array; None for others."""
        for name, value in _FILLINGS.items():
            if function is getattr(self.xp, name, None):
                return value
        return None

    def dtype_name(self, value: Any) -> str | None:
        """Return the name of a dtype of this module; None for anything else."""
        if self.is_numpy:
            return None
        if not isinstance(value, type | np.dtype | type(self.xp.float32)):
            return None
        try:
            name = backend.numpy_dtype(value).name
        except TypeError:
            return None
        if getattr(self.xp, name, value) == value:
            return name
        return None

    def dtype(self, dtype: np.dtype) -> Any:
        """Return the dtype of this module that has the name of one of NumPy's."""
        if self.is_numpy:
            return dtype.type
        return getattr(self.xp, dtype.name, dtype)  # bfloat16 of ml_dtypes

    def empty(self, shape: Shape, dtype: Any) -> Array:
        """Return a new array of one of NumPy's dtypes or of this module's."""
        if self.is_numpy:
            return np.empty(shape, dtype)
        return self.xp.empty(shape, dtype=self.dtype(backend.numpy_dtype(dtype)))

    def in_memory(self, memory: Array, offset: int, shape: Shape, dtype: Any) -> Array:
        """Return an array that lies in the memory of an array of bytes."""
        if self.is_numpy:
            return np.ndarray(shape, dtype, memory, offset)
        size = backend.prod(shape) * np.dtype(dtype).itemsize
        return memory[offset : offset + size].view(dtype).reshape(shape)


def is_ufunc(function: Any) -> bool:
    """Return whether a function is a ufunc of NumPy or of a similar module.

    Such a function is elementwise, takes ``out``, and has the number of its results as
    an attribute.
    """
    return hasattr(function, "nout")


@lru_cache(maxsize=16)
def dialect_of(xp: ModuleType) -> Dialect:
    """Return the dialect of an array module."""
    return Dialect(xp)


def strides_of(array: Array) -> tuple[int, ...]:
    """Return the strides of an array; in C order, if its module has no strides."""
    strides = getattr(array, "strides", None)
    if strides is None:
        size = backend.numpy_dtype(array.dtype).itemsize
        return new_strides(array.shape, size)
    return strides


def new_strides(shape: Shape, size: int) -> tuple[int, ...]:
    """Return the strides of a new array in C order, for elements of ``size`` bytes."""
    return np.empty(shape, f"V{size}").strides

"""An array module that stands in for a GPU's: arrays that are not NumPy's, kernels that
write into arrays which exist, streams, and graphs that launch captured kernels again.

It has what CuPy promises (strides, ``base``, ``out``, ``get``, ``cuda.Stream``), computes
with NumPy, and forbids while a stream captures what a CUDA graph forbids: to read a value
on the host, to copy from the host, to take elements by a mask, to wait, and whatever CuPy
leaves to cuBLAS, cuRAND or cuSOLVER, such as a product; :func:`product` may be captured,
as minipipe's own are. A captured kernel does not run; its new results are filled with NaN
until the graph is launched. It has the addresses and the numbers of its capture.
"""

import operator
import sys
from types import SimpleNamespace

import numpy as np

from minipipe.core.autograd import backend
from tests.compile import device_streams
from tests.compile.device_streams import (
    CaptureError,
    Forbidding,
    capturing,
    cuda,
    forbid,
)

__all__ = ["CaptureError", "capturing", "cuda"]
_VIEWS = {
    *("reshape", "transpose", "permute_dims", "matrix_transpose", "swapaxes"),
    *("expand_dims", "squeeze", "broadcast_to", "moveaxis", "flip", "ravel"),
}
_OF_LIBRARIES = {"matmul", "dot", "tensordot", "vecdot", "inner", "vdot", "einsum"}
_KEEPING_ORDER = (np.ndarray.astype, np.astype, np.zeros_like, np.ones_like)
random, linalg = Forbidding("random"), Forbidding("linalg")


def _do(kernel, memory):
    """Run a kernel, or note it; it refers to memory, and not to an :class:`Array`."""
    device_streams.current().do(kernel, memory)


def _data(value):
    """Return what a kernel gets of its argument: an address, or a number of its own."""
    if isinstance(value, Array):
        return value._data
    if type(value) in (tuple, list):
        return type(value)(map(_data, value))
    return value.copy() if isinstance(value, np.ndarray) else value


def _new(made):
    """Return an array of the device with the values of one of NumPy's, and its order."""
    order = sorted(range(made.ndim), key=lambda axis: -made.strides[axis])
    memory, data = device_streams.allocate([made.shape[i] for i in order], made.dtype)
    data = data.transpose(np.argsort(order))
    data[...] = made
    if device_streams.current().kernels is not None and made.dtype.kind == "f":
        data.fill(np.nan)
    return Array(data, memory=memory)


def _launch(function, given, options=None, out=None):
    """Run a kernel, or note it; return its result."""
    if any(isinstance(each, np.ndarray) for each in given):
        raise TypeError("An array on the device meets one of NumPy's")
    given, options = _data(tuple(given)), options or {}
    options = {name: _data(value) for name, value in options.items()}
    if out is None:
        made = np.asarray(function(*given, **options))
        if function not in _KEEPING_ORDER:  # of axes, as NumPy also does elsewhere
            made = np.asarray(made, order="C")
        out = _new(made)
    target = out._data

    def kernel():
        target[...] = function(*given, **options)

    _do(kernel, (given, options, target))
    return out


def empty(shape, dtype=float):
    """Return memory without a launch, full of NaN: every element is to be written."""
    memory, data = device_streams.allocate(np.empty(shape, "V0").shape, dtype)
    data.fill(np.nan if data.dtype.kind == "f" else 1)
    return Array(data, memory=memory)


class Ufunc:
    """A function of each element."""

    def __init__(self, ufunc):
        self._ufunc = ufunc
        self.__name__ = f"device_{ufunc.__name__}"
        self.nin, self.nout = ufunc.nin, ufunc.nout

    def __call__(self, *given, out=None, **options):
        if len(given) > self.nin:
            *given, out = given
        return _launch(self._ufunc, given, options, out)


def _kernel(name, function):
    def call(*given, out=None, **options):
        if name in _OF_LIBRARIES:
            forbid(f"{name} is called")
        if name in ("concat", "stack") and len(given[0]) > 8:
            forbid("An array of addresses is copied from the host")
        if name == "copyto":
            target, value = given
            mask = options.get("where", True)
            return _launch(np.where, (mask, value, target), out=target)
        return _launch(function, given, options, out)

    call.__name__ = name
    return call


def _view(name, function):
    def call(array, *given, **options):
        made = function(array._data, *given, **options)
        if not made.size or np.may_share_memory(made, array._data):
            return Array(made, array)
        return _launch(function, (array, *given), options)

    call.__name__ = name
    return call


def _matmul(a, b):
    return np.matmul(a, b).astype(a.dtype, copy=False)  # NumPy's of bfloat16 is float32


def product(a, b, out=None):
    """Return the product over the last two axes, also in a capture."""
    return _launch(_matmul, (a, b), out=out)


backend.PRODUCTS[__name__] = backend.one_line(product, has_out=True)


_FOUND = {}  # names in this file would hide Python's own, such as any and max


def __getattr__(name):
    if name in _FOUND:
        return _FOUND[name]
    value = getattr(np, name)  # AttributeError: there is no such function
    if isinstance(value, np.ufunc) and name not in _OF_LIBRARIES:
        value = Ufunc(value)
    elif name in _VIEWS:
        value = _view(name, value)
    elif callable(value) and not isinstance(value, type):
        value = _kernel(name, value)
    _FOUND[name] = value
    return value


def asarray(value, dtype=None, copy=None):
    """Return an array on the device."""
    if isinstance(value, Array):
        if dtype is None or value.dtype == dtype:
            return value.copy() if copy else value
        return value.astype(dtype)
    forbid("An array is copied from the host")
    return _new(np.asarray(value, dtype))


class Array:
    """An array on the device."""

    __array_ufunc__ = None
    __array_priority__ = 100
    __hash__ = None

    def __init__(self, data, of=None, memory=None):
        self._data, self._memory = data, memory
        self.base = None if of is None else (of if of.base is None else of.base)

    def __array_namespace__(self, api_version=None):
        return sys.modules[__name__]

    @property
    def __cuda_array_interface__(self):
        return {"shape": self.shape}

    @property
    def data(self):
        return SimpleNamespace(ptr=self._data.ctypes.data)

    def get(self, out=None):
        """Return the values on the host."""
        forbid("A value is read")
        if out is None:
            return self._data.copy()
        out[...] = self._data
        return out

    def __array__(self, dtype=None, copy=None):
        raise TypeError("An array is converted without get()")

    def __float__(self):
        return float(self.get())

    def __int__(self):
        return int(self.get())

    def __index__(self):
        return self.get().__index__()

    def __bool__(self):
        return bool(self.get())

    def item(self):
        return self.get().item()

    def __len__(self):
        return len(self._data)

    def __getitem__(self, key):
        parts = key if isinstance(key, tuple) else (key,)
        if any(isinstance(part, Array) and part.dtype.kind == "b" for part in parts):
            forbid("Elements are taken by a mask")
        if any(isinstance(part, list | np.ndarray) for part in parts):
            forbid("Indices are copied from the host")
        made = self._data[_data(key)]
        is_view = not made.size or np.may_share_memory(made, self._data)
        if is_view and isinstance(made, np.ndarray):
            return Array(made, self)
        return _launch(operator.getitem, (self, key))

    def __setitem__(self, key, value):
        if isinstance(value, np.ndarray):
            raise TypeError("An array of NumPy's is assigned to one on the device")
        target, key, value = self._data, _data(key), _data(value)
        _do(lambda: target.__setitem__(key, value), (target, key, value))

    def set(self, value, stream=None):
        """Copy from the host."""
        assert (value.shape, value.dtype) == (self.shape, self.dtype)
        assert self.flags.c_contiguous and value.flags.c_contiguous
        (stream or device_streams.current()).copy(self._data, value)

    def astype(self, dtype, copy=True):
        return _launch(np.ndarray.astype, (self, dtype))

    def copy(self):
        return _launch(np.ndarray.copy, (self,))

    def fill(self, value):
        _launch(np.asarray, (value,), out=self)

    def view(self, dtype):
        return Array(self._data.view(dtype), self)

    def transpose(self, *axes):
        return Array(self._data.transpose(*axes), self)

    def reshape(self, *shape):
        return sys.modules[__name__].reshape(
            self, shape[0] if len(shape) == 1 else shape
        )

    def dot(self, other, out=None):
        return sys.modules[__name__].dot(self, other, out=out)

    @property
    def T(self):
        return Array(self._data.T, self)

    @property
    def mT(self):
        return Array(self._data.mT, self)


for _name in (
    "shape",
    "dtype",
    "ndim",
    "size",
    "itemsize",
    "nbytes",
    "strides",
    "flags",
):
    setattr(Array, _name, property(lambda self, n=_name: getattr(self._data, n)))


def _method(name):
    def call(self, *given, **options):
        return getattr(sys.modules[__name__], name)(self, *given, **options)

    return call


for _name in (
    *("sum", "max", "min", "mean", "ravel", "swapaxes", "squeeze", "take", "clip"),
    *("cumsum", "repeat"),
):
    setattr(Array, _name, _method(_name))


def _operator(function, is_reflected=False):
    def call(self, other):
        if not isinstance(other, Array | int | float | np.generic | np.ndarray):
            return NotImplemented
        pair = (other, self) if is_reflected else (self, other)
        if function is np.matmul:
            forbid("matmul is called")
        return _launch(function, pair)

    return call


def _in_place(function):
    def call(self, other):
        return _launch(function, (self, other), out=self)

    return call


_OPERATORS = {
    **{"add": np.add, "sub": np.subtract, "mul": np.multiply, "matmul": np.matmul},
    **{"truediv": np.divide, "floordiv": np.floor_divide, "mod": np.remainder},
    **{"and": np.bitwise_and, "or": np.bitwise_or, "xor": np.bitwise_xor},
    **{"pow": lambda a, b: a**b},
}
for _name, _function in _OPERATORS.items():
    setattr(Array, f"__{_name}__", _operator(_function))
    setattr(Array, f"__r{_name}__", _operator(_function, is_reflected=True))
    setattr(Array, f"__i{_name}__", _in_place(_function))
for _name in ("lt", "le", "gt", "ge", "eq", "ne"):
    setattr(Array, f"__{_name}__", _operator(getattr(operator, _name)))
for _name, _function in {"neg": np.negative, "invert": np.invert}.items():
    setattr(Array, f"__{_name}__", lambda self, f=_function: _launch(f, (self,)))

"""An array module that stands in for a GPU's: arrays that are not NumPy's, kernels that
write into arrays which exist, and a graph that captures kernels and launches them again.

It has what CuPy promises (strides, ``base``, ``out``, ``get``), computes with NumPy, and
forbids while a graph captures what a CUDA graph forbids: to read a value on the host, to
copy from the host, and to take elements by a mask. A captured kernel does not run; its
new results are filled with NaN until the graph is launched.
"""

import operator
import sys
import threading
from contextlib import contextmanager
from types import SimpleNamespace

import numpy as np

_of_thread = threading.local()
_VIEWS = {
    *("reshape", "transpose", "permute_dims", "matrix_transpose", "swapaxes"),
    *("expand_dims", "squeeze", "broadcast_to", "moveaxis", "flip", "ravel"),
}


class CaptureError(Exception):
    """Something that a graph cannot capture."""


class Capture:
    """The kernels of a graph, and how many arrays it has allocated."""

    def __init__(self):
        self.kernels, self.num_allocations = [], 0


def _capture():
    return getattr(_of_thread, "capture", None)


@contextmanager
def capturing():
    """Note kernels inside this block, without running them."""
    assert _capture() is None
    _of_thread.capture = Capture()
    try:
        with np.errstate(all="ignore"):  # shapes are found by computing with NaN
            yield _of_thread.capture
    finally:
        _of_thread.capture = None


def _forbid(what):
    if _capture() is not None:
        raise CaptureError(f"{what} while a graph captures")


def _data(value):
    if isinstance(value, Array):
        return value._data
    if type(value) in (tuple, list):
        return type(value)(map(_data, value))
    return value


def _do(kernel):
    """Run a kernel without a result of its own, or note it."""
    capture = _capture()
    if capture is None:
        kernel()
    else:
        capture.kernels.append(kernel)


def _launch(compute, out=None):
    """Run a kernel, or note it; return its result."""
    if out is None:
        out = Array(np.array(compute()))
        if _capture() is None:
            return out
        _capture().num_allocations += 1
        if out.dtype.kind == "f":
            out._data.fill(np.nan)
    _do(lambda: out._data.__setitem__(..., compute()))
    return out


class Graph:
    """A function of arrays, captured when it is called first, and launched from then on.

    Its arguments must be the same arrays in each call.
    """

    def __init__(self, function):
        self._function, self._capture = function, None

    def __call__(self, *given):
        if self._capture is None:
            self._given = given
            with capturing() as self._capture:
                self._result = self._function(*given)
        for new, old in zip(given, self._given, strict=True):
            assert new is old or (isinstance(new, int) and new == old)
        for kernel in self._capture.kernels:
            kernel()
        return self._result

    @property
    def num_kernels(self):
        return len(self._capture.kernels)

    @property
    def num_allocations(self):
        return self._capture.num_allocations


class Ufunc:
    """A function of each element."""

    def __init__(self, ufunc):
        self._ufunc = ufunc
        self.__name__ = f"device_{ufunc.__name__}"
        self.nin, self.nout = ufunc.nin, ufunc.nout

    def __call__(self, *given, out=None, **options):
        if len(given) > self.nin:
            *given, out = given
        return _launch(lambda: self._ufunc(*_data(tuple(given)), **options), out)


def _kernel(name, function):
    def call(*given, out=None, **options):
        if name == "copyto":
            target, value = given
            mask = options.get("where", True)
            return _launch(
                lambda: np.where(_data(mask), _data(value), target._data), target
            )
        return _launch(lambda: function(*_data(given), **options), out)

    call.__name__ = name
    return call


def _view(name, function):
    def call(array, *given, **options):
        made = function(array._data, *given, **options)
        if np.may_share_memory(made, array._data):
            return Array(made, array)
        return _launch(lambda: function(array._data, *given, **options))

    call.__name__ = name
    return call


_FOUND = {}  # names in this file would hide Python's own, such as any and max


def __getattr__(name):
    if name in _FOUND:
        return _FOUND[name]
    value = getattr(np, name)  # AttributeError: there is no such function
    if isinstance(value, np.ufunc) and name != "matmul":  # as in CuPy
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
    _forbid("An array is copied from the host")
    return Array(np.array(value, dtype))


def empty(shape, dtype=float):
    """Return memory without a launch, full of NaN: every element is to be written."""
    data = np.empty(shape, dtype)
    data.fill(np.nan if data.dtype.kind == "f" else 1)
    if _capture() is not None:
        _capture().num_allocations += 1
    return Array(data)


class Array:
    """An array on the device."""

    __array_ufunc__ = None
    __array_priority__ = 100
    __hash__ = None

    def __init__(self, data, of=None):
        self._data = data
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
        _forbid("A value is read")
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
            _forbid("Elements are taken by a mask")
        made = self._data[_data(key)]
        if np.may_share_memory(made, self._data) and isinstance(made, np.ndarray):
            return Array(made, self)
        return _launch(lambda: self._data[_data(key)])

    def __setitem__(self, key, value):
        if isinstance(value, np.ndarray):
            _forbid("An array is copied from the host")
        _do(lambda: self._data.__setitem__(_data(key), _data(value)))

    def astype(self, dtype, copy=True):
        return _launch(lambda: self._data.astype(dtype))

    def copy(self):
        return _launch(lambda: self._data.copy())

    def fill(self, value):
        _launch(lambda: value, self)

    def view(self, dtype):
        return Array(self._data.view(dtype), self)

    def transpose(self, *axes):
        return Array(self._data.transpose(*axes), self)

    def reshape(self, *shape):
        return sys.modules[__name__].reshape(
            self, shape[0] if len(shape) == 1 else shape
        )

    def dot(self, other, out=None):
        return _launch(lambda: self._data.dot(other._data), out)

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
        if isinstance(other, np.ndarray) and other.ndim:
            raise TypeError("An array on the device meets one of NumPy's")
        pair = (other, self) if is_reflected else (self, other)
        return _launch(lambda: function(*_data(pair)))

    return call


def _in_place(function):
    def call(self, other):
        return _launch(lambda: function(self._data, _data(other)), self)

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
    setattr(
        Array,
        f"__{_name}__",
        lambda self, f=_function: _launch(lambda: f(self._data)),
    )

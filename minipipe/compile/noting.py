"""Operations of traced arrays: they compute as NumPy's arrays do, and note the line.

Every attribute of ``numpy.ndarray`` is noted, harmless, or breaks the trace: no method
reads a value unnoticed.

A form that writes into an array must have the bits of the one that allocates it.
NumPy computes an exact function (a sum, a product, a maximum) alike wherever its result
lies. Other functions may take another path for other strides, so they are only written
into an array with the strides of the one that was allocated, and never into an operand.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np

from minipipe.autograd import backend
from minipipe.autograd.memory import buffer_of
from minipipe.compile.lines import Form, Untraceable

Trace = Any
"""The trace of an array (``trace.py``, which imports this file)."""

Write = Callable[[Trace], Form]


class Traced(np.ndarray):
    """An array whose calls a trace notes; without one, NumPy made it unnoticed."""

    __array_priority__ = 1e6
    trace: Any = None
    name: str = ""
    plain: Any = None
    is_number: bool = False  # NumPy made it as a scalar, which nothing changes in place


def traced_in(values: Any) -> Iterator[Traced]:
    """Yield the traced arrays among values, also inside tuples and lists."""
    for value in values:
        if isinstance(value, Traced):
            if value.trace is not None:
                yield value
        elif isinstance(value, tuple | list):
            yield from traced_in(value)


def plain_of(value: Any) -> Any:
    """Return the plain array behind a traced one, also inside tuples and lists."""
    if isinstance(value, Traced):
        if value.trace is not None:
            return value.plain
        return np.ndarray.view(value, np.ndarray)
    if type(value) in (tuple, list):
        return type(value)(map(plain_of, value))
    return value


def _noted(
    write: Write,
    compute: Callable[[], Any],
    given: tuple[Any, ...],
    changed: tuple[Any, ...] = (),
    has_effect: bool = False,
) -> Any:
    """Compute, and note the line of ``write``; only compute if the trace is broken."""
    trace = next((each.trace for each in traced_in(given)), None)
    if trace is None or trace.reason is not None:
        return compute()
    try:
        form = write(trace)  # before computing: a constant may be changed later
    except Untraceable as error:
        trace.spoil(str(error))
        return compute()
    made = compute()
    try:
        if any(not isinstance(each, Traced) or each.is_number for each in changed):
            raise Untraceable("changes an array in place that was made outside of it")
        if not changed:
            form = _kept(form, made, given)
        return trace.note(form, made, given, changed, has_effect)
    except Untraceable as error:
        trace.spoil(str(error))
        return made


def _kept(form: Form, made: Any, given: tuple[Any, ...]) -> Form:
    """Return a form without the one into an array, if no such array can be made."""
    if form.into is None:
        return form
    is_owner = type(made) is np.ndarray and not any(
        buffer_of(made) is buffer_of(each.plain) for each in traced_in(given)
    )
    if is_owner and made.strides == _strides_of(made.shape, made.itemsize):
        return form
    is_dense = is_owner and form.is_exact and _is_dense(made)
    return form if is_dense else Form(form.text)


def _strides_of(shape: tuple[int, ...], size: int) -> tuple[int, ...]:
    """Return the strides of a new array in C order."""
    return np.empty(shape, f"V{size}").strides


def _is_dense(array: np.ndarray) -> bool:
    """Return whether another order of its axes makes it a new array in C order."""
    order = sorted(range(array.ndim), key=lambda axis: -array.strides[axis])
    turned = array.transpose(order)
    return turned.strides == _strides_of(turned.shape, array.itemsize)


# Each element of the result has one right value, which follows from the elements at
# its place: whatever path NumPy takes, the bits are the same.
_EXACT = """
    add subtract multiply divide negative positive absolute fabs maximum minimum sqrt
    square sign floor ceil rint trunc equal not_equal less less_equal greater
    greater_equal logical_and logical_or logical_not logical_xor bitwise_and bitwise_or
    bitwise_xor invert isnan isinf isfinite copysign
"""
_IS_EXACT = {getattr(np, name) for name in _EXACT.split()}
_BY_NAME = {np.maximum, np.minimum}  # NumPy 2.4 warns of a third argument by position

# Functions whose result's shape depends on the shapes of their arguments alone.
_STATIC = """
    concat stack where max min amax amin sum mean clip take take_along_axis broadcast_to
    permute_dims transpose matrix_transpose swapaxes expand_dims squeeze tril triu dot
    astype cumsum reshape zeros_like ones_like pad split
"""
_FUNCTIONS = {getattr(np, name) for name in _STATIC.split()}
# Those with an argument ``out``, which NumPy computes there in the same order.
_WITH_OUT = {np.concat, np.stack, np.clip}
_REDUCTIONS = {np.max, np.min, np.amax, np.amin, np.sum, np.mean, np.cumsum}
_METHODS = """
    dot reshape astype transpose copy sum max min mean ravel swapaxes squeeze take clip
    cumsum repeat view
"""
# Functions of ``backend.one_line`` whose lines are faster than a call.
_INLINE = {backend.masked.__wrapped__}  # type: ignore[attr-defined]
# Attributes that do not depend on the values.
_LOOKS = """
    shape strides dtype ndim size itemsize nbytes flags base device __len__ __class__
    __dir__ __doc__ __hash__ __new__ __init__ __getattribute__ __init_subclass__
    __subclasshook__ __class_getitem__ __array_priority__ __sizeof__ __array_namespace__
    __array_finalize__ __array_wrap__ __delattr__
"""
_SYMBOLS: dict[str, tuple[str, Any]] = {
    "add": ("+", np.add),
    "sub": ("-", np.subtract),
    "mul": ("*", np.multiply),
    "truediv": ("/", np.divide),
    "floordiv": ("//", np.floor_divide),
    "mod": ("%", np.remainder),
    "pow": ("**", None),  # np.power computes squares and roots in another way
    "matmul": ("@", np.matmul),
    "and": ("&", np.bitwise_and),
    "or": ("|", np.bitwise_or),
    "xor": ("^", np.bitwise_xor),
}
_COMPARISONS: dict[str, tuple[str, Any]] = {
    "lt": ("<", np.less),
    "le": ("<=", np.less_equal),
    "gt": (">", np.greater),
    "ge": (">=", np.greater_equal),
    "eq": ("==", np.equal),
    "ne": ("!=", np.not_equal),
}
_SIGNS: dict[str, tuple[str, Any]] = {
    "neg": ("-", np.negative),
    "pos": ("+", np.positive),
    "invert": ("~", np.invert),
}


def _with_out(trace: Trace, ufunc: Any, given: str, text: str) -> Form:
    """Return the form of a ufunc of one result."""
    into = f"{trace.callable(ufunc)}({given}, {'out=' * (ufunc in _BY_NAME)}{{out}})"
    return Form(text, into, ufunc in _IS_EXACT)


class _Noting:
    """Methods of :class:`Traced` arrays that replace NumPy's."""

    def __setattr__(self: Any, name: str, value: Any) -> None:
        is_layout = name in ("shape", "strides", "dtype", "flat", "real", "imag")
        if self.trace is not None and is_layout:
            self.trace.spoil(f"sets {name}")
            setattr(self.plain, name, value)
        object.__setattr__(self, name, value)

    def __array_ufunc__(
        self, ufunc: Any, method: str, *given: Any, out: Any = (), **options: Any
    ) -> Any:
        def write(trace: Trace) -> Form:
            return _written_ufunc(trace, ufunc, method, given, out, options)

        def compute() -> Any:
            plain = {name: plain_of(value) for name, value in options.items()}
            if out:
                plain["out"] = plain_of(out)
            return getattr(ufunc, method)(*plain_of(given), **plain)

        read = (*given, *out, *options.values())
        return _noted(write, compute, read, tuple(out))

    def __array_function__(
        self, function: Any, types: Any, given: Any, options: Any
    ) -> Any:
        def write(trace: Trace) -> Form:
            is_listed = function in _FUNCTIONS and "out" not in options
            if not is_listed or (function is np.where and len(given) != 3):
                raise Untraceable(f"calls numpy.{function.__name__}")
            return _written_function(trace, function, given, options)

        def compute() -> Any:
            plain = {name: plain_of(value) for name, value in options.items()}
            return function(*plain_of(given), **plain)

        read = (*given, *options.values())
        if function in (np.zeros_like, np.ones_like):
            return _noted_filling(function, given, options, compute)
        return _noted(write, compute, read)

    @staticmethod
    def note_call(function: Callable[..., Any], given: tuple[Any, ...]) -> Any:
        """Note a call of a function of :func:`backend.one_line` as one line."""
        if function in _INLINE:
            return function(*given)

        def write(trace: Trace) -> Form:
            return Form(f"{trace.callable(function)}({_arguments(trace, given, {})})")

        return _noted(write, lambda: function(*plain_of(given)), given)

    def __getitem__(self: Any, key: Any) -> Any:
        def write(trace: Trace) -> Form:
            return Form(f"{trace.written(self)}[{trace.item(key)}]")

        return _noted(write, lambda: plain_of(self)[plain_of(key)], (self, key))

    def __setitem__(self: Any, key: Any, value: Any) -> None:
        def write(trace: Trace) -> Form:
            left = f"{trace.written(self)}[{trace.item(key)}]"
            text = f"{left} = {trace.written(value)}"
            return Form(text, text)

        def compute() -> None:
            plain_of(self)[plain_of(key)] = plain_of(value)

        _noted(write, compute, (self, key, value), (self,))

    def __iter__(self: Any) -> Iterator[Any]:
        return (self[i] for i in range(len(self)))


def _written_ufunc(
    trace: Trace,
    ufunc: Any,
    method: str,
    given: tuple[Any, ...],
    out: tuple[Any, ...],
    options: dict[str, Any],
) -> Form:
    call = trace.callable(ufunc) + ("" if method == "__call__" else f".{method}")
    if out:
        shown = {**options, "out": out[0] if len(out) == 1 else out}
        text = f"{call}({_arguments(trace, given, shown)})"
        return Form(text, text)
    arguments = _arguments(trace, given, options)
    text = f"{call}({arguments})"
    if method == "__call__" and ufunc.nout == 1 and not options:
        return _with_out(trace, ufunc, arguments, text)
    if method == "reduce" and options.keys() <= {"axis", "keepdims", "dtype"}:
        return _reduced(text, given[0])
    return Form(text)


def _reduced(text: str, array: Any) -> Form:
    """Return the form of a sum and the like, whose order depends on the strides."""
    plain = plain_of(array)
    is_plain = plain.strides == _strides_of(plain.shape, plain.itemsize)
    return Form(text, f"{text[:-1]}, out={{out}})" if is_plain else None)


def _written_function(
    trace: Trace, function: Any, given: tuple[Any, ...], options: dict[str, Any]
) -> Form:
    if function is np.dot and len(given) == 2 and isinstance(given[0], np.ndarray):
        return _product(trace, *given)  # a call less, the same product
    text = f"{trace.callable(function)}({_arguments(trace, given, options)})"
    if function in _REDUCTIONS and isinstance(given[0], np.ndarray):
        return _reduced(text, given[0])
    if function is np.reshape and isinstance(given[0], np.ndarray):
        return _reshaped(trace, given[0], text)
    if function is np.astype:
        return Form(text, _copied(trace, given[0], given[1]))
    if function is np.where:
        mask, chosen, other = map(trace.written, given)
        trace.callable(np.copyto)
        into = f"copyto({{out}}, {other})\ncopyto({{out}}, {chosen}, where={mask})"
        return Form(text, into)
    is_whole = all(each is not None for each in given) and "dtype" not in options
    if function in _WITH_OUT and is_whole:
        return Form(text, f"{text[:-1]}, out={{out}})")
    return Form(text)


def _copied(trace: Trace, array: Any, dtype: Any = None) -> str:
    is_plain = dtype is None or np.can_cast(array.dtype, dtype, "same_kind")
    option = "" if is_plain else ', casting="unsafe"'
    return f"{trace.callable(np.copyto)}({{out}}, {trace.written(array)}{option})"


def _reshaped(trace: Trace, array: Any, text: str) -> Form:
    """Return the form of other axes: a view, or else a copy with the old axes."""
    shape = trace.written(plain_of(array).shape)
    return Form(
        text, _copied(trace, array).replace("{out}", f"{{out}}.reshape({shape})")
    )


def _product(trace: Trace, left: Any, right: Any) -> Form:
    call = f"{trace.written(left)}.dot({trace.written(right)}"
    return Form(f"{call})", f"{call}, {{out}})")


def _noted_filling(
    function: Any, given: Any, options: Any, compute: Callable[[], Any]
) -> Any:
    """Note an array of zeros or ones, which depends on no value."""
    value = 0 if function is np.zeros_like else 1
    made: list[Any] = []

    def write(trace: Trace) -> Form:
        made.append(compute())
        if type(made[0]) is not np.ndarray:
            raise Untraceable(f"calls numpy.{function.__name__}")
        dtype = trace.written(made[0].dtype)
        name = trace.callable(np.full)
        text = f"{name}({trace.written(made[0].shape)}, {value}, {dtype})"
        trace.callable(np.copyto)
        return Form(text, f"copyto({{out}}, {value})")

    trace = next((each.trace for each in traced_in((given, *options.values()))), None)
    if trace is None or trace.reason is not None:
        return compute()
    try:
        form = write(trace)
    except Untraceable as error:
        trace.spoil(str(error))
        return compute()
    return trace.note(_kept(form, made[0], ()), made[0], ())


def _arguments(trace: Trace, given: tuple[Any, ...], options: dict[str, Any]) -> str:
    named = [f"{name}={trace.written(value)}" for name, value in options.items()]
    return ", ".join([*map(trace.written, given), *named])


def _operator(
    name: str, symbol: str, ufunc: Any, is_reflected: bool = False
) -> Callable[..., Any]:
    function = getattr(operator, f"{name}_" if name in ("and", "or") else name)

    def method(self: Any, other: Any) -> Any:
        left, right = (other, self) if is_reflected else (self, other)

        def write(trace: Trace) -> Form:
            a, b = trace.written(left), trace.written(right)
            text = f"{_in_brackets(a)} {symbol} {b}"
            if ufunc is None:
                return Form(text)
            return _with_out(trace, ufunc, f"{a}, {b}", text)

        def compute() -> Any:
            return function(plain_of(left), plain_of(right))

        return _noted(write, compute, (left, right))

    return method


def _in_brackets(text: str) -> str:
    return f"({text})" if text.startswith("-") else text  # -2.0 ** v0 is -(2.0 ** v0)


def _in_place(name: str, symbol: str, ufunc: Any) -> Callable[..., Any]:
    function = getattr(operator, f"i{name}")

    def method(self: Any, other: Any) -> Any:
        def write(trace: Trace) -> Form:
            a, b = trace.written(self), trace.written(other)
            text = f"{a} {symbol}= {b}"
            if ufunc is None:
                return Form(text)
            return Form(text, f"{trace.callable(ufunc)}({a}, {b}, {a})")

        def compute() -> Any:
            return function(plain_of(self), plain_of(other))

        return _noted(write, compute, (self, other), (self,))

    return method


def _sign(name: str, symbol: str, ufunc: Any) -> Callable[[Traced], Any]:
    function = getattr(operator, name)

    def method(self: Any) -> Any:
        def write(trace: Trace) -> Form:
            array = trace.written(self)
            return _with_out(trace, ufunc, array, f"{symbol}{array}")

        return _noted(write, lambda: function(plain_of(self)), (self,))

    return method


def _method(name: str) -> Callable[..., Any]:
    def method(self: Any, *given: Any, **options: Any) -> Any:
        def write(trace: Trace) -> Form:
            call = f"{trace.written(self)}.{name}"
            text = f"{call}({_arguments(trace, given, options)})"
            if name == "dot" and len(given) == 1 and not options:
                return _product(trace, self, given[0])
            if name in ("sum", "max", "min", "mean", "cumsum"):
                return _reduced(text, self) if given or options else Form(text)
            if name in ("reshape", "ravel"):
                return _reshaped(trace, self, text)
            if name == "astype":
                return Form(text, _copied(trace, self, given[0]))
            if name == "copy":
                return Form(text, _copied(trace, self))
            return Form(text)

        def compute() -> Any:
            plain = {key: plain_of(value) for key, value in options.items()}
            return getattr(plain_of(self), name)(*plain_of(given), **plain)

        return _noted(write, compute, (self, *given, *options.values()))

    return method


def _view(name: str) -> property:
    def view(self: Any) -> Any:
        def write(trace: Trace) -> Form:
            return Form(f"{trace.written(self)}.{name}")

        return _noted(write, lambda: getattr(plain_of(self), name), (self,))

    return property(view)


def _spoiling(name: str) -> Any:
    def read(self: Any) -> Any:
        if self.trace is not None:
            self.trace.spoil(f"reads a value, by {name.strip('_')}")
        return getattr(plain_of(self), name)

    if callable(getattr(np.ndarray, name)):
        return lambda self, *given, **options: read(self)(*plain_of(given), **options)
    return property(read)


def attach() -> None:
    """Give the class every attribute of an array: noted, harmless, or a break."""
    made: dict[str, Any] = {"T": _view("T"), "mT": _view("mT")}
    made |= {name: _method(name) for name in _METHODS.split()}
    for name, (symbol, ufunc) in _SYMBOLS.items():
        made[f"__{name}__"] = _operator(name, symbol, ufunc)
        made[f"__r{name}__"] = _operator(name, symbol, ufunc, is_reflected=True)
        made[f"__i{name}__"] = _in_place(name, symbol, ufunc)
    for name, (symbol, ufunc) in _COMPARISONS.items():
        made[f"__{name}__"] = _operator(name, symbol, ufunc)
    for name, (symbol, ufunc) in _SIGNS.items():
        made[f"__{name}__"] = _sign(name, symbol, ufunc)
    for name, value in vars(_Noting).items():
        if callable(value) or isinstance(value, staticmethod):
            made[name] = value
    looks = {*_LOOKS.split(), *vars(Traced)}
    for name in {*dir(np.ndarray), "note_call"} - looks:
        setattr(Traced, name, made.get(name) or _spoiling(name))


attach()

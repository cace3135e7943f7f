"""The functions that call operations with tensors, printed for the number of inputs and
compiled.

A loop over the inputs would take as long as a small sum. For one input, without
attributes and saved values, the function is::

    def call(*given, **attributes):
        if len(given) != 1 or len(attributes) != num_attributes:
            given, attributes = bound(given, attributes)
        try:
            (t0,) = takes(*given)               # the tensor,
            try:
                (n0,) = (t0.node,)              # its node
            except AttributeError:
                (t0,) = as_tensors((t0,))
                (n0,) = (t0.node,)
            (a0,) = (t0.data,)                  # and its array
            data = forward(a0)
        except errors:
            bound(given, attributes)
            raise
        parents, pattern, is_activation = [], 2, False
        …                                       # if n0 is not None
        return result                           # with a node, which keeps what the plan says
"""

from __future__ import annotations

import itertools
import linecache
from collections.abc import Callable
from functools import cache
from typing import Any

import numpy as np

from minipipe.core.autograd import backend
from minipipe.core.autograd.backend import Array
from minipipe.core.autograd.graph import Node
from minipipe.core.autograd.modes import mode
from minipipe.core.autograd.operation import Operation
from minipipe.core.errors import TensorError

_CONVERTED = """
        if t{i} is None:
            t{i} = nothing"""

_WIDENED = """
        if {is_half} and has_half({a}):
            return widened(call, {t}, attributes)"""

_SAVED = """
    if type(data) is not tuple or len(data) != {count}:
        raise operation.wrong_result(data)
    data, {saved} = data"""

_PARENT = """
    if n{i} is not None:
        if n{i}.is_activation:
            is_activation = True
            if n{i}.shape is None:  # of a stage input, for the gradients that name it
                n{i}.shape, n{i}.dtype = a{i}.shape, a{i}.dtype
        if n{i}.needs_gradient:
            parents.append(n{i})
            pattern |= 1 << {i}"""

_RECORD = """
    if type(data) is not ndarray:
        data = array_of(data, operation)
    result = new(tensor)
    result.data = data
    result.node = None
    is_enabled, creation, watch = mode()  # see modes.py
    order = next(creation)  # even if nothing is recorded: a recomputation gets the same numbers
    if is_enabled and (parents or is_activation):  # also without parents: split.py asks what depends on the stage
        plan = plans[pattern]
        saved = ()
        if plan.names:
            values = {values}
            if plan.attributes:
                values += tuple(map(attributes.get, plan.attributes))
            saved = plan.keep(values)
        result.node = node = new(node_kind)  # without its constructor, which takes as long as a small sum
        node.plan, node.inputs, node.order = plan, parents, order
        node.saved = saved if watch is None else watch(saved, [data, *{arrays}])
        node.needs_gradient, node.is_activation, node.is_boundary = bool(parents), is_activation, False
        node.shape, node.dtype, node.pending = data.shape, data.dtype, None
    return result
"""


class Nothing:
    """Stands for an input that is None."""

    data = node = None


def recording(operation: Operation, **known: Any) -> Callable[..., Any]:
    """Return a function that returns a result that is already computed, with its node.

    It takes the result, the values some of which are kept, the arrays that may be
    watched, the nodes of the inputs that need a gradient, the pattern of these
    (:meth:`minipipe.core.autograd.operation.Operation.plan`), and whether the result is an
    activation. ``known`` is as for :func:`calling`.
    """
    head = "def call(data, values, arrays, parents, pattern, is_activation):"
    source = head + _RECORD.format(values="values", arrays="arrays")
    return _compiled(source, operation, known)


def calling(operation: Operation, count: int, **known: Any) -> Callable[..., Any]:
    """Return the function that calls an operation with some number of operands.

    Parameters
    ----------
    operation : Operation
    count : int
    **known
        The values to which the function refers: ``tensor``, the class of the result;
        ``as_tensors``, from the operands in a tuple to tensors; and ``widened``, from
        the function, tensors and attributes to the result for halves.
    """

    def each(text: str, first: int = 0) -> str:
        return "".join(text.format(i=i) for i in range(first, count))

    t = f"({each('t{i}, ')})"
    n = f"({each('n{i}, ')})"
    a = f"({each('a{i}, ')})"
    # else they are tensors already
    is_converted = operation.takes is not None and not operation.is_variadic
    taken = "takes(*given)" if is_converted else "given"
    is_half = each(" or a{i} is not None and getattr(a{i}.dtype, 'itemsize', 0) == 2")
    widened = ""
    if operation.in_float32:
        widened = _WIDENED.format(is_half=f"(False{is_half})", a=a, t=t)
    others = "**attributes" if operation.attributes else ""
    saved = "".join(f"s{i}, " for i in range(len(operation.saves)))
    count_of_results = 1 + len(operation.saves)
    unpacked = _SAVED.format(count=count_of_results, saved=saved) if saved else ""
    source = f"""\
def call(*given, **attributes):
    if len(given) != {count} or len(attributes) != num_attributes:
        given, attributes = bound(given, attributes)
    try:
        {t} = {taken}{each(_CONVERTED, operation.num_required)}
        try:
            {n} = ({each("t{i}.node, ")})
        except AttributeError:
            {t} = as_tensors({t})
            {n} = ({each("t{i}.node, ")})
        {a} = ({each("t{i}.data, ")}){widened}
        data = forward({each("a{i}, ")}{others})
    except errors:
        bound(given, attributes)  # raises an error, if there is an attribute that forward does not take
        raise{unpacked}
    parents, pattern, is_activation = [], {1 << count}, False{each(_PARENT)}
"""
    source += _RECORD.format(values=f"({each('a{i}, ')}data, {saved})", arrays=a)
    known["num_attributes"] = len(operation.attributes)
    return _compiled(source, operation, known)


_KNOWN: dict[str, Any] = {
    "nothing": Nothing,
    "ndarray": np.ndarray,
    "new": object.__new__,
    "node_kind": Node,
    "mode": mode,
    "errors": (TypeError, TensorError),
}


def _compiled(
    source: str, operation: Operation, known: dict[str, Any]
) -> Callable[..., Any]:
    """Return the function of a source. It refers to values by closures: its globals
    will be another module's.
    """
    names = dict(_KNOWN, operation=operation, has_half=has_half, array_of=_array_of)
    for name in ("plans", "bound", "forward", "takes"):
        names[name] = getattr(operation, name)
    names.update(known)
    return _maker(source, tuple(names))(**names)


_numbers = itertools.count()  # of sources: each has its own file name


@cache
def _maker(source: str, names: tuple[str, ...]) -> Callable[..., Callable[..., Any]]:
    head = f"def made({', '.join(names)}):"
    text = "\n    ".join([head, *source.strip().splitlines(), "return call"])
    # In this folder, so that reports of a user's line leave these frames out; a
    # traceback shows the printed line.
    file = f"{__file__}: call {next(_numbers)}"
    linecache.cache[file] = len(text), None, text.splitlines(keepends=True), file
    namespace: dict[str, Any] = {}
    exec(compile(text, file, "exec"), namespace)
    return namespace["made"]


def has_half(arrays: tuple[Any, ...]) -> bool:
    """Return whether some array is of float16 or bfloat16; others may be None."""
    return any(array is not None and backend.is_half(array.dtype) for array in arrays)


def _array_of(data: Any, operation: Operation) -> Array:
    """Return the result of a forward as an array, also a scalar of NumPy's; refuse
    anything else.
    """
    data = np.asarray(data) if isinstance(data, np.generic) else data
    if not backend.is_array(data):
        raise operation.wrong_result(data)
    return data

"""A trace: arrays that compute as plain ones do, and record each call as a line.

A :class:`Traced` array has a name: an ``ndarray`` of a subclass, or a wrapper of an
array of another module (``elsewhere.py``). Its operators, methods and the functions of
its module compute on the plain array, and the trace records the call::

    result = a.data.dot(w)        v0 = x0.dot(p0)         or   x0.dot(p0, v0)
    result += bias                v0 += p1                or   add(v0, p1, v0)

The second form writes into an array that exists already. Anything that cannot be
written so, such as ``float(x)`` or a mask as an index, gives the right result and is a
*graph break*: everything after it computes on plain arrays, and the lines are thrown
away. Only calls listed in ``noting.py`` are recorded.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Hashable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import is_dataclass
from types import FrameType, ModuleType
from typing import Any

import numpy as np

from minipipe.autograd.memory import buffer_of
from minipipe.compile.dialect import dialect_of, strides_of
from minipipe.compile.elsewhere import Namespace, TracedElsewhere
from minipipe.compile.forms import Traced, TracedInNumPy, plain_of, traced_in
from minipipe.compile.lines import Form, Line, Untraceable, Variable, add_under
from minipipe.compile.noting import attach
from minipipe.core.autograd.backend import (
    array_module,
    as_array,
    copy,
    is_array,
    is_boolean,
    numpy_dtype,
    to_numpy,
)
from minipipe.core.autograd.graph import BackwardWalk, Leaf
from minipipe.core.autograd.modes import Key, current_place
from minipipe.core.comm.process_group import ProcessGroup
from minipipe.core.nn.module import Module
from minipipe.core.nn.parameter import HalfLeaf

attach()  # traced arrays get the methods that note their lines


class Trace:
    """The lines of one microbatch, by section: forward and backward, or its halves.

    It holds no array of the microbatch, only names and constants.

    Parameters
    ----------
    key : Key
        The key of the random numbers of this microbatch.
    layers : mapping of int to str, optional
        The names of layers by their numbers, for the message of a graph break.
    xp : module, optional
        The module of its arrays; NumPy by default.

    Attributes
    ----------
    dialect : Dialect
        The properties of the module.
    layers : dict of int to str
    namespace : module
        The module for traced arrays: its functions record their calls.
    sections : dict of str to list of Line
    results : dict of str to tuple of str
        By section, the names of its results; ``"None"`` if it has none.
    inputs : dict of str to tuple of str
        By section, the names of its input arrays.
    variables : dict of str to Variable
    constants : dict
        By their properties (dtype, shape, strides, bytes): name and object.
    functions : dict of str to object
        The functions that the lines call, by name.
    draws : bool
        Whether a line draws random numbers.
    reason : str or None
        The reason of the graph break, if there was one.

    Examples
    --------
    >>> from minipipe.compile.statements import written
    >>> trace = Trace(Key(0, 0, 0, 0, 0))
    >>> trace.begin("forward")
    >>> x = trace.input("x0", np.ones(2))
    >>> y = x * 2 + x
    >>> [written(line.text) for line in trace.sections["forward"]]
    ['v0 = x0 * 2', 'v1 = v0 + x0']
    >>> trace.sections["forward"][0].form.into
    'multiply({x0}, 2, {out})'
    >>> float(y[0]), trace.reason.partition(" (")[0]
    (3.0, 'it reads a value, by float')
    """

    def __init__(
        self,
        key: Key,
        layers: Mapping[int, str] | None = None,
        xp: ModuleType = np,
    ) -> None:
        self.key = key
        self.dialect = dialect_of(xp)
        self.namespace = xp
        if xp is not np:
            self.namespace = Namespace(self)
        self.layers = dict(layers or {})
        self.sections: dict[str, list[Line]] = {}
        self.results: dict[str, tuple[str, ...]] = {}
        self.inputs: dict[str, tuple[str, ...]] = {}
        self.variables: dict[str, Variable] = {}
        self.constants: dict[Any, tuple[str, Any]] = {}
        self.functions: dict[str, Any] = {}
        self.draws = False
        self.reason: str | None = None
        self._section = ""
        self._num_variables = 0

    def begin(self, section: str) -> None:
        """Begin a section, which gets all further lines."""
        self._section = section
        self.sections[section] = []
        self.inputs[section] = ()
        self.results[section] = ()

    def input(self, name: str, array: Any) -> Any:
        """Return an input of this section under a name, traced; None for None."""
        if array is None:
            return None
        self.inputs[self._section] += (name,)
        return self.named(name, array)

    def named(self, name: str, array: Any, root: str | None = None) -> Traced:
        """Return a plain array, traced under a name."""
        plain = array
        if self.dialect.is_numpy:
            plain = np.asarray(array)
        self.variables[name] = Variable(
            root=root or name,
            shape=plain.shape,
            dtype=numpy_dtype(plain.dtype),
            strides=strides_of(plain),
            is_number=self.dialect.is_numpy and not isinstance(array, np.ndarray),
            is_fresh=root is None and array is plain,
        )
        traced = self._wrapped(plain)
        traced.trace = self
        traced.name = name
        traced.plain = plain
        traced.is_number = self.variables[name].is_number
        return traced

    def _wrapped(self, plain: Any) -> Traced:
        if self.dialect.is_numpy:
            return plain.view(TracedInNumPy)
        return TracedElsewhere()

    def is_plain(self, value: Any) -> bool:
        """Return whether a value is an array of the module, and no number."""
        if self.dialect.is_numpy:
            return type(value) is np.ndarray
        return not isinstance(value, np.ndarray) and is_array(value)

    def unnoted(self, made: Any) -> Any:
        """Return a result that is not recorded, after a graph break.

        Arrays of another module than NumPy are wrapped even then: functions of the
        module would refuse them together with traced arrays.
        """
        if self.dialect.is_numpy or isinstance(made, Traced):
            return made
        if isinstance(made, tuple | list):
            return type(made)(map(self.unnoted, made))
        if not self.is_plain(made):
            return made
        traced = TracedElsewhere()
        traced.trace = self
        traced.plain = made
        return traced

    @property
    def inputs_now(self) -> tuple[str, ...]:
        """The names of the inputs of this section."""
        return self.inputs[self._section]

    def returned(self, array: Any) -> Any:
        """Record that this section returns an array; return it, plain."""
        if array is None:
            self.results[self._section] += ("None",)
        elif isinstance(array, Traced) and array.trace is self:
            self.results[self._section] += (array.name,)
        elif self.reason is None:
            self.graph_break(
                "returns an array that does not depend on its input, "
                "or was computed outside of the trace"
            )
        return plain_of(array)

    def graph_break(self, verb: str) -> None:
        """Throw the lines away, and keep the reason of the first graph break.

        Parameters
        ----------
        verb : str
            The operation, such as ``"reads a value"``. The message adds the layer and
            the line of the user's program.
        """
        if self.reason is None:
            self.reason = f"{self._subject()} {verb}{_outside()}"
            self.sections = {}
            self.constants = {}

    def _subject(self) -> str:
        """Return the layer that runs now, as the subject of a message."""
        number = current_place().layer
        if number is None:
            return "it"
        if number in self.layers:
            return f"layer {number}, {self.layers[number]},"
        return f"layer {number}"

    # -- lines -------------------------------------------------------------------------

    def note(
        self,
        form: Form,
        made: Any,
        args: tuple[Any, ...],
        changed: tuple[Any, ...] = (),
        has_effect: bool = False,
        may_view: bool = False,
        is_on_host: bool = False,
    ) -> Any:
        """Record a line, and return its result, traced.

        Parameters
        ----------
        form : Form
        made : object
            The result of the call, plain.
        args, changed : tuple
            Its arguments, and the arrays that it changed.
        has_effect : bool
            Whether the line counts although nothing reads its result.
        may_view : bool
            Whether the result may lie in the memory of an argument, if the module's
            arrays do not tell.
        is_on_host : bool
            See :class:`Line`.
        """
        reads = tuple(dict.fromkeys(name for each in args for name in _names_in(each)))
        changes = tuple(each.name for each in changed)
        if any(self.variables[name].root[0] not in "v" for name in changes):
            raise Untraceable("changes its input, a parameter or a gradient in place")
        single = not isinstance(made, tuple | list)
        values = made
        if made is None:
            values = []
        elif single:
            values = [made]
        results = [self._result(value, args, single, may_view) for value in values]
        makes = tuple(name for _, name in results if name)
        has_effect = has_effect or (made is None and not changes)
        if makes or changes or has_effect:
            left = ""
            if makes:
                targets = ", ".join(_target(name) for _, name in results)
                comma = "," * (not single and len(results) == 1)
                left = f"{targets}{comma} = "
            layer = current_place().layer
            line = Line(
                form, left, makes, reads, changes, has_effect, None, layer, is_on_host
            )
            self.sections[self._section].append(line)
        if made is None:
            return None
        traced = [result for result, _ in results]
        if single:
            return traced[0]
        return type(made)(traced)

    def _result(
        self, value: Any, args: tuple[Any, ...], single: bool, may_view: bool
    ) -> Any:
        """Return a result, traced, and its name; no name if it is an argument."""
        if type(value) is int and not single:  # it follows from shapes alone
            return value, ""
        is_number = self.dialect.is_numpy and isinstance(value, np.generic)
        if not is_number and not is_array(value):
            raise Untraceable("reads a value")
        for each in traced_in(args):
            if each.plain is value:
                return each, ""
        result = self._new(value, args, may_view)
        return result, result.name

    def note_contribution(self, leaf: int, contribution: Traced) -> None:
        """Record that a variable is added to the gradient of a leaf."""
        name = contribution.name
        line = Line(Form(""), "", (), (name,), (), True, leaf, current_place().layer)
        self.sections[self._section].append(line)

    def _new(self, array: Any, args: tuple[Any, ...], may_view: bool) -> Traced:
        name = f"v{self._num_variables}"
        self._num_variables += 1
        bases: Iterable[Traced] = ()
        if getattr(array, "base", None) is not None:
            owner = buffer_of(array)
            bases = (each for each in traced_in(args) if buffer_of(each.plain) is owner)
        elif may_view and not self.dialect.has_out:  # its arrays know no base
            bases = traced_in(args)
        roots = (self.variables[each.name].root for each in bases)
        return self.named(name, array, next(roots, None))

    def written(self, value: Any) -> str:
        """Return an argument as a form writes it: names in braces."""
        if isinstance(value, Traced):
            if value.trace is not self:
                raise Untraceable(
                    "uses an array that was computed outside of the trace"
                )
            return f"{{{value.name}}}"
        if isinstance(value, Key):
            return self._written_key(value)
        if isinstance(value, tuple | list):
            return self._written_sequence(value)
        if value is None or type(value) in (bool, int):
            return repr(value)
        if type(value) is float and math.isfinite(value):
            return repr(value)
        if type(value) is str:
            return repr(value).replace("{", "{{").replace("}", "}}")
        if isinstance(value, int) and not isinstance(value, np.generic):  # an IntEnum
            return repr(int(value))
        if value is Ellipsis:
            return "..."
        if isinstance(value, slice):
            parts = value.start, value.stop, value.step
            return f"slice({', '.join(map(self.written, parts))})"
        if value is np:
            return "numpy"
        if isinstance(value, Namespace) or value is self.dialect.xp:
            return self.callable(self.dialect.xp)
        if (name := self.dialect.dtype_name(value)) is not None:
            self.functions[name] = getattr(self.dialect.xp, name, value)
            return name
        if isinstance(value, type) and (
            issubclass(value, np.generic) or value in (bool, int, float)
        ):
            return self.callable(value)
        if isinstance(value, np.dtype) and value == np.dtype(value.type):
            return self.callable(value.type)
        return self._constant(value)

    def _written_sequence(self, values: tuple[Any, ...] | list[Any]) -> str:
        inner = ", ".join(map(self.written, values))
        if isinstance(values, list):
            return f"[{inner}]"
        comma = "," * (len(values) == 1)
        return f"({inner}{comma})"

    def constant(self, made: Any) -> Any:
        """Return the result of a function without traced arguments, as a constant."""
        if self.reason is not None or not self.is_plain(made):
            return self.unnoted(made)
        return self.named(self._constant(made).strip("{}"), made)

    def _written_key(self, key: Key) -> str:
        drawn = key[0], key.step, key.microbatch
        if drawn != (self.key.seed, self.key.step, self.key.microbatch):
            raise Untraceable("draws random numbers under another key")
        self.draws = True
        layer = f"{{layer:{key.layer}}}"
        return f"{{key}}._replace(layer={layer}, draw={key.draw})"

    def _constant(self, value: Any) -> str:
        key: Any
        if isinstance(value, np.ndarray):
            key = value.dtype, value.shape, value.strides, value.tobytes()
        elif isinstance(value, np.generic | float | np.dtype):
            key = type(value), repr(value)
        elif isinstance(value, ProcessGroup | Module):
            key = type(value), id(value)
        elif is_dataclass(value) and isinstance(value, Hashable):  # a frozen one
            key = type(value), value
        elif self.is_plain(value):
            layout = value.shape, strides_of(value)
            key = type(value), str(value.dtype), *layout, to_numpy(value).tobytes()
        else:
            raise Untraceable(f"calls NumPy with a {type(value).__name__}")
        name = f"c{len(self.constants)}"
        return f"{{{self.constants.setdefault(key, (name, value))[0]}}}"

    def callable(self, function: Any) -> str:
        """Return the name under which lines call a function."""
        name = self.dialect.names.get(function) or function.__name__.lstrip("_")
        return add_under(self.functions, name, function)

    def item(self, key: Any) -> str:
        """Return an index as a line writes it between brackets."""
        parts = (key,)
        if isinstance(key, tuple):
            parts = key
        if any(map(_depends_on_values, parts)):
            raise Untraceable(
                "takes elements by a mask or a list, so a shape depends on values"
            )
        return ", ".join(map(self._part_of_index, parts)) or "()"

    def _part_of_index(self, part: Any) -> str:
        if not isinstance(part, slice):
            return self.written(part)
        bounds = [part.start, part.stop]
        if part.step is not None:
            bounds.append(part.step)
        return ":".join("" if b is None else self.written(b) for b in bounds)


def _target(name: str) -> str:
    """Return the target of an assignment, which may throw the value away."""
    if name:
        return f"{{{name}}}"
    return "_"


def _depends_on_values(part: Any) -> bool:
    return isinstance(part, list) or (hasattr(part, "dtype") and is_boolean(part.dtype))


_CONVERSIONS = {
    np.asarray,
    np.asanyarray,
    np.ascontiguousarray,
    np.array,
    np.frombuffer,
}


@contextmanager
def noticing_conversions(trace: Trace) -> Iterator[None]:
    """Break the graph if the user's code makes a plain array of a traced one.

    NumPy does not call the subclass in that case. So a profiler watches the calls during
    a capture.

    Examples
    --------
    minipipe's own code may do it, as in this example.

    >>> trace = Trace(Key(0, 0, 0, 0, 0))
    >>> trace.begin("forward")
    >>> with noticing_conversions(trace):
    ...     _ = np.asarray(trace.input("x0", np.ones(2)))
    >>> print(trace.reason)
    None
    """

    def profile(frame: FrameType, event: str, function: Any) -> None:
        is_conversion = event == "c_call" and function in _CONVERSIONS
        if is_conversion and not _is_library(frame):
            trace.graph_break(f"calls numpy.{function.__name__}")

    sys.setprofile(profile)
    try:
        yield
    finally:
        sys.setprofile(None)


def _is_library(frame: FrameType) -> bool:
    name = frame.f_globals.get("__name__", "")
    return name.partition(".")[0] in ("minipipe", "numpy", "contextlib", "threading")


def _outside() -> str:
    """Return the line of the user's program that has led to the current call."""
    frame: FrameType | None = sys._getframe(2)
    while frame is not None:
        if not _is_library(frame):
            file = frame.f_code.co_filename.rpartition("/")[2]
            return f" ({file}, line {frame.f_lineno})"
        frame = frame.f_back
    return ""


def _names_in(value: Any) -> Iterator[str]:
    yield from (each.name for each in traced_in((value,)))
    parts = [value]
    if isinstance(value, tuple):  # as a key is
        parts += value
    if any(isinstance(part, Key) for part in parts):
        yield "key"


def key_of(seed: int | None, step: int, microbatch: int) -> Key:
    """Return the key of a microbatch, to which each draw adds its layer and number.

    Examples
    --------
    >>> key_of(seed=0, step=3, microbatch=1)
    Key(seed=0, layer=0, step=3, microbatch=1, draw=0)
    """
    return Key(seed, 0, step, microbatch, 0)


class NotingLeaf(Leaf):
    """Stands in for a parameter's leaf: records each contribution, and passes it on.

    Parameters
    ----------
    leaf : Leaf
    name : str
        ``"l"`` and the number of the leaf.
    trace : Trace

    Examples
    --------
    >>> trace = Trace(Key(0, 0, 0, 0, 0))
    >>> trace.begin("backward")
    >>> leaf = NotingLeaf(Leaf((2,)), "l0", trace)
    >>> leaf.add(trace.input("g0", np.ones(2)) * 3, BackwardWalk())
    >>> leaf.leaf.grad, trace.sections["backward"][-1].leaf
    (array([3., 3.]), 0)
    """

    __slots__ = ("_number", "_trace", "leaf")

    def __init__(self, leaf: Leaf, name: str, trace: Trace) -> None:
        super().__init__(leaf.shape or (), leaf.dtype)
        self.shape = leaf.shape
        self.needs_gradient = leaf.needs_gradient
        self.leaf = leaf
        self._number = int(name[1:])
        self._trace = trace

    def add(self, contribution: Any, walk: BackwardWalk) -> None:
        """Add a contribution to the leaf itself, in the order of the walk."""
        trace = self._trace
        if isinstance(self.leaf, HalfLeaf):
            contribution = as_array(contribution, array_module(contribution).float32)
        if trace.reason is None:
            if isinstance(contribution, Traced) and contribution.trace is trace:
                trace.note_contribution(self._number, contribution)
            else:
                trace.graph_break(
                    "returns a gradient that does not depend on its result, "
                    "or was computed outside of the trace"
                )
        self.leaf.add(copy(plain_of(contribution)), walk)

"""Operations as data: an entry has a forward, and for each input a gradient that names
the values it needs.

What a node of the graph keeps follows from those names, and so does what can be freed
after each half of a split backward. For ``y = linear(x, weight)``, whose gradients are
``x(g, weight)`` and ``weight(g, x)``::

    inputs that need a gradient     kept after F     I computes    kept for W
    x, weight                       x, weight        x             g, x
    weight                          x                -             g, x
    x                               weight           x             -

A :class:`Plan` holds this for one pattern of inputs, and is made once.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable, Sequence
from operator import itemgetter
from types import FunctionType
from typing import Any, NamedTuple

from minipipe.core.autograd.backend import Array
from minipipe.core.errors import ArgumentError
from minipipe.core.familiar import check_arguments
from minipipe.core.specs import Spec

GRADIENT = "g"
"""The name of the gradient of the result, among the arguments of a gradient."""
SHAPE = "shape"
"""The name of the shape of the input whose gradient is computed."""
RESULT = "result"
"""The name of the result."""


class GradientRule(NamedTuple):
    """The rule for a value that a backward computes: the gradient of an input, or what
    several gradients share.

    Attributes
    ----------
    name : str
    function : function
        Takes the gradient of the result, the values named by ``needs``, and then
        perhaps the shape of the input.
    needs : tuple of str
    takes_shape : bool
    """

    name: str
    function: Callable[..., Array]
    needs: tuple[str, ...]
    takes_shape: bool = False

    @classmethod
    def of(cls, name: str, function: Callable[..., Array]) -> GradientRule:
        """Return the rule of a function whose parameters are the names.

        Raises
        ------
        ArgumentError
            Code ``type``, for what is no function with named parameters; code
            ``value``, unless the gradient of the result is the first of them, and the
            shape the last.
        """
        try:
            parameters = inspect.signature(function).parameters.values()
        except (TypeError, ValueError):  # no function, or one written in C
            raise ArgumentError(
                "type",
                f"The gradient of {name} is {function!r:.60}; expected a function "
                f"that names what it needs: {name}=lambda {GRADIENT}, …: …",
            ) from None
        names = list(map(_described, parameters))
        needs = names[1:]
        takes_shape = SHAPE in needs and needs.pop() == SHAPE
        if names[:1] != [GRADIENT] or SHAPE in needs:
            raise ArgumentError(
                f"The gradient of {name} takes ({', '.join(names)}); expected "
                f"{GRADIENT} first, and {SHAPE}, if it is needed, last.",
            )
        return cls(name, function, tuple(needs), takes_shape)


class Operation:
    """One entry of the table: a forward, its gradients and the values that these share.

    Attributes
    ----------
    name : str
    signature : Signature
        With which it is called.
    forward : function
        From arrays to the array of the result; with ``saves``, to a tuple of it and the
        saved values.
    inputs : tuple of str
        The names of the tensors. The last may stand for any number of them, ``*parts``.
    attributes : dict
        The names of the other arguments, with their defaults.
    positional : tuple of str
        The attributes that may be given by position, behind the tensors.
    saves : tuple of str
        The values that forward returns behind the result.
    steps : dict of str to GradientRule
        By input, its gradient.
    shared : dict of str to GradientRule
        By name, a value that several gradients need, computed when the first of them
        is.
    takes : function or None
        Converts the operands of a call to tensors.
    in_float32 : bool
        Whether the result of halves is computed in float32.
    is_broadcast : bool
        Whether its inputs are broadcast: the walk sums a gradient over the axes along
        which its input was stretched.
    sums_over_rows : set of str
        The inputs whose gradient is a sum over the rows of the values it needs
        (``functional/over_rows.py``).
    plans : dict of int to Plan
        By pattern of inputs; see :meth:`plan`.
    """

    def __init__(
        self,
        forward: Callable[..., Any],
        attributes: Iterable[str] = (),
        saves: Iterable[str] = (),
        takes: Callable[..., Sequence[Any]] | None = None,
        in_float32: bool = False,
        is_broadcast: bool = False,
    ) -> None:
        Spec(FunctionType, expected="a function of arrays").of_class("op", forward)
        self.name, self.is_broadcast = forward.__name__.lstrip("_"), is_broadcast
        self.forward, self.saves = forward, tuple(saves)
        self.takes, self.in_float32 = takes, in_float32
        of_arrays = inspect.signature(forward)
        parameters = [*of_arrays.parameters.values()]
        self.positional = tuple(attributes)
        for name in {*self.positional} - of_arrays.parameters.keys():
            raise ArgumentError(
                f"{self.name} has no parameter {name}, which op(attributes=…) names; "
                f"its parameters are {', '.join(of_arrays.parameters)}.",
            )
        unnamed = [p for p in parameters if p.kind is not p.KEYWORD_ONLY]
        inputs = [p for p in unnamed if p.name not in self.positional]
        others = [p for p in parameters if p not in inputs]
        tensors = [_as_operand(p) if p in inputs else p for p in parameters]
        of_tensors = of_arrays.replace(parameters=tensors)
        self.signature = of_tensors.replace(return_annotation="Tensor")
        _check_parameters(self.name, parameters, inputs, self.saves)
        self.inputs = tuple(p.name for p in inputs)
        self.is_variadic = any(p.kind is p.VAR_POSITIONAL for p in inputs)
        self.attributes = {p.name: p.default for p in others}
        single = [p for p in inputs if p.kind is p.POSITIONAL_OR_KEYWORD]
        self.num_required = sum(p.default is p.empty for p in single)
        self.required = {p.name for p in others if p.default is p.empty}
        self.steps: dict[str, GradientRule] = {}
        self.shared: dict[str, GradientRule] = {}
        self.sums_over_rows: set[str] = set()
        self.plans = Plans(self.plan)

    def __repr__(self) -> str:
        return self.name

    def set_gradients(
        self, /, *others: object, **gradients: Callable[..., Array]
    ) -> None:
        """Set the gradient of each input; see :func:`minipipe.op`."""
        _refuse_unnamed("gradients", (*self.inputs, "x")[0], others)
        for name, function in gradients.items():
            rule = GradientRule.of(name, function)
            self.steps[name] = self._checked(rule, self.inputs)

    def set_shared(self, /, *others: object, **values: Callable[..., Array]) -> None:
        """Set values that several gradients need, each before those that need it."""
        _refuse_unnamed("shared", "dz", others)
        taken = {GRADIENT, RESULT, SHAPE, "number"}
        taken.update(self.inputs, self.saves, self.attributes)
        for name, function in values.items():
            value = GradientRule.of(name, function)
            if name in taken or value.takes_shape:
                raise ArgumentError(
                    f"{self.name}.shared({name}=…) has the name of another value, or "
                    f"needs {SHAPE}, which only a gradient gets. Take another name, "
                    "or name an input instead.",
                )
            self.shared[name] = self._checked(value, (name,))

    def bound(
        self, given: tuple[Any, ...], attributes: dict[str, Any]
    ) -> tuple[tuple[Any, ...], dict[str, Any]]:
        """Return the inputs and the attributes of a call, with None and defaults for
        those that it leaves out.

        Raises
        ------
        ArgumentError
            Code ``name``, for arguments that the operation does not take.
        """
        num_inputs = len(self.inputs)
        has_more = attributes or self.required or self.is_variadic
        if len(given) == num_inputs and not has_more:
            return given, self.attributes
        further = () if self.is_variadic else given[num_inputs:]
        named = attributes
        if further:
            named = dict(zip(self.positional, further)) | attributes
        complete = self.attributes | named
        are_known = len(complete) == len(self.attributes)
        fits = are_known and len(named) == len(further) + len(attributes)
        if fits and len(given) >= self.num_required and self.required <= named.keys():
            if not self.is_variadic and len(given) != num_inputs:
                given = given[:num_inputs] + (None,) * (num_inputs - len(given))
            return given, complete
        check_arguments(self.name, self.forward, given, attributes)
        call = self.signature.bind(*given, **attributes)
        call.apply_defaults()
        values = call.arguments
        if self.is_variadic:
            inputs = call.args
        else:
            inputs = tuple([values[name] for name in self.inputs])
        return inputs, {name: values[name] for name in self.attributes}

    def wrong_result(self, computed: Any) -> ArgumentError:
        """Return the error for a forward that returned something else than an array,
        and its saved values.
        """
        if isinstance(computed, tuple):
            given = f"{len(computed)} values"
        else:
            given = f"a {type(computed).__name__}"
        expected = (
            "one array. An operation computes with arrays: array_module(x).exp(x)"
        )
        if self.saves:
            expected = f"({', '.join([RESULT, *self.saves])}), because of saves="
        message = f"{self.name} returned {given}; expected {expected}."
        return ArgumentError("type", message)

    def _checked(self, value: GradientRule, names: Sequence[str]) -> GradientRule:
        if value.name not in names:
            raise ArgumentError(
                f"{self.name} has no input {value.name}; its inputs are "
                f"{', '.join(self.inputs)}."
            )
        known = {RESULT, *self.inputs, *self.saves, *self.attributes, *self.shared}
        if self.is_variadic:
            known = known - {self.inputs[-1]} | {"number"}
        for name in value.needs:
            if name not in known:
                raise ArgumentError(
                    f"The gradient of {value.name} in {self.name} needs {name}; "
                    f"expected one of {', '.join(sorted({*known, SHAPE}))}.",
                )
        if value.takes_shape and SHAPE in known:
            raise ArgumentError(
                f"The gradient of {value.name} in {self.name} needs {SHAPE}: the "
                "shape of its input, and also a value of the operation. Give that "
                "another name.",
            )
        self.plans.clear()
        return value

    def plan(self, pattern: int) -> Plan:
        """Make the plan for a pattern of inputs: bit i is set if input i needs a
        gradient, and the one behind all.
        """
        count = pattern.bit_length() - 1
        names = self.inputs
        if self.is_variadic:
            names = (*names[:-1], *[names[-1]] * (count - len(names) + 1))
        wanted = [(i, names[i]) for i in range(count) if pattern >> i & 1]
        missing = [name for _, name in wanted if name not in self.steps]
        if missing:
            raise ArgumentError(
                f"{self.name} has no gradient for {missing[0]}, which requires one. "
                f"Add it: {self.name}.gradients({missing[0]}=lambda g: …).",
            )
        values = [*names, RESULT, *self.saves]
        steps = [self._numbered(self.steps[name], i) for i, name in wanted]
        return Plan(self, values, steps)

    def _numbered(self, step: GradientRule, number: int) -> GradientRule:
        """Return the gradient of one of any number of inputs, which may need its
        number.
        """
        if "number" not in step.needs:
            return step
        needs = tuple(name for name in step.needs if name != "number")
        place, function = step.needs.index("number"), step.function

        def with_number(gradient: Array, *values: Any) -> Array:
            return function(gradient, *values[:place], number, *values[place:])

        return GradientRule(step.name, with_number, needs, step.takes_shape)


class Plans(dict[int, "Plan"]):
    """Plans, each made by a function of its key when it is first needed."""

    def __init__(self, make: Callable[[int], Plan]) -> None:
        self._make = make

    def __missing__(self, key: int) -> Plan:
        plan = self[key] = self._make(key)
        return plan


Arguments = Callable[[tuple[Any, ...]], tuple[Any, ...]]


Step = tuple[int, Callable[..., Array], int | None, Arguments | None, GradientRule]
"""How a walk computes one contribution: the number of the input, and a function of the
gradient; of the gradient and the value at a place; or of the gradient, several values
and perhaps the shape of the input. Values are what a node kept, and what gradients
share."""


class Plan:
    """The values that a node keeps, and the steps of its backward, for one pattern of
    inputs that need a gradient.

    Parameters
    ----------
    operation : Operation
    available : sequence of str
        The names of the values of which it keeps some.
    gradients : sequence of GradientRule
        One for each input that needs a gradient.
    names : sequence of str, optional
        The names of the values that it keeps; by default the needed values.

    Attributes
    ----------
    keep : function
        From the available values to those kept.
    steps : tuple of Step
    shared : tuple of (function, function)
        How to compute each shared value from those before it.
    """

    __slots__ = (
        "_gradients",
        "_halves",
        "_values",
        "attributes",
        "keep",
        "names",
        "operation",
        "shared",
        "steps",
    )

    def __init__(
        self,
        operation: Operation,
        available: Sequence[str],
        gradients: Sequence[GradientRule],
        names: Sequence[str] | None = None,
    ) -> None:
        self.operation = operation
        self._gradients = gradients
        needed = {name for value in gradients for name in value.needs}
        computed: list[GradientRule] = []
        for value in reversed(operation.shared.values()):
            if value.name in needed and value.name not in available:
                computed.insert(0, value)
                needed.update(value.needs)
        needed_here = needed.difference(available)
        self.attributes = tuple(filter(needed_here.__contains__, operation.attributes))
        available = [*available, *self.attributes]
        if names is None:
            names = [name for name in dict.fromkeys(available) if name in needed]
        self.names = tuple(names)
        self.keep = _getter(available, self.names)
        self._values = [*self.names]
        functions: list[tuple[Callable[..., Any], Arguments]] = []
        for value in computed:
            functions.append((value.function, _getter(self._values, value.needs)))
            self._values.append(value.name)
        self.shared = tuple(functions)
        self.steps = tuple(self._step(*numbered) for numbered in enumerate(gradients))
        self._halves: dict[tuple[bool, ...], tuple[Plan, list[Plan]]] = {}

    def _step(self, number: int, value: GradientRule) -> Step:
        place = arguments = None
        if len(value.needs) == 1 and not value.takes_shape:
            place = self._values.index(value.needs[0])
        elif value.needs or value.takes_shape:
            arguments = _getter(self._values, value.needs)
        return number, value.function, place, arguments, value

    def values(self, gradient: Array, kept: tuple[Any, ...]) -> tuple[Any, ...]:
        """Return what was kept, and behind it what the gradients share."""
        for function, arguments in self.shared:
            kept += (function(gradient, *arguments(kept)),)
        return kept

    def halves(self, is_activation: tuple[bool, ...]) -> tuple[Plan, list[Plan]]:
        """Return a plan for I, which has the values of this one, and plans for W, which
        keep some of the values of I.

        The first for W keeps values that gradients share and I has computed; the
        second, if any, computes them again.
        """
        if is_activation not in self._halves:
            pairs = list(zip(self._gradients, is_activation))
            of_input = [value for value, is_now in pairs if is_now]
            of_weight = [value for value, is_now in pairs if not is_now]
            first = Plan(self.operation, self.names, of_input, self.names)
            later = [Plan(self.operation, first._values, of_weight)]
            without_shared = Plan(self.operation, self.names, of_weight)
            if without_shared.names != later[0].names:
                later.append(without_shared)
            self._halves[is_activation] = first, later
        return self._halves[is_activation]


def names_in(option: str, names: str) -> list[str]:
    """Return the names in an option of ``op``, which are separated by spaces."""
    Spec(str, expected="names separated by spaces").of_class(f"op: {option}", names)
    for name in names.split():
        if not name.isidentifier():
            raise ArgumentError(
                f"op: {option} is {names!r:.60}; expected names separated by spaces, "
                "such as 'mask scale'."
            )
    return names.split()


def _refuse_unnamed(method: str, example: str, others: tuple[object, ...]) -> None:
    if others:
        raise ArgumentError(
            "name",
            f"{method} takes functions by name; {len(others)} came without one. Write "
            f"{method}({example}=lambda g: …).",
        )


def _described(parameter: inspect.Parameter) -> str:
    if parameter.kind <= parameter.POSITIONAL_OR_KEYWORD:
        return parameter.name
    return f"the {parameter.kind.description} {parameter.name}"


def _as_operand(parameter: inspect.Parameter) -> inspect.Parameter:
    if parameter.default is None:
        return parameter.replace(annotation="Operand | None")
    return parameter.replace(annotation="Operand")


def _check_parameters(
    operation: str,
    parameters: Sequence[inspect.Parameter],
    inputs: Sequence[inspect.Parameter],
    saves: tuple[str, ...],
) -> None:
    for one in parameters:
        is_input = one in inputs and one.kind is one.POSITIONAL_OR_KEYWORD
        has_default = is_input and one.default not in (one.empty, None)
        if one.kind is one.VAR_KEYWORD or has_default:
            raise ArgumentError(
                f"{operation} takes {one}; expected tensors, which have no default "
                "but None. Other arguments are attributes: behind a *, or in "
                f"@op(attributes={one.name!r}).",
            )
        if is_input and one in parameters[len(inputs) :]:
            raise ArgumentError(
                f"{operation} takes the tensor {one.name} behind attributes; expected "
                "tensors first. Change the order of its parameters.",
            )
    names = [GRADIENT, RESULT, *saves, *(one.name for one in parameters)]
    for name in names:
        if names.count(name) > 1 or name == "number":
            raise ArgumentError(
                f"{operation} has two values {name}, or one with a name that means "
                "something else in a gradient. Rename the parameter, or the value of "
                "saves=.",
            )


def _getter(
    names: Sequence[str], wanted: Sequence[str]
) -> Callable[[tuple[Any, ...]], tuple[Any, ...]]:
    """Return a function from values with some names to the tuple of the wanted ones."""
    places = [names.index(name) for name in wanted]
    if not places:
        return itemgetter(slice(0))
    if len(places) == 1:
        return itemgetter(slice(places[0], places[0] + 1))
    return itemgetter(*places)

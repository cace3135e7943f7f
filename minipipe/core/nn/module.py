"""The module: a part of a model, made of parameters and other modules."""

from __future__ import annotations

import copy
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from functools import cache
from types import ModuleType
from typing import Any, Self, TypeGuard, TypeVar

import numpy as np

from minipipe.core.autograd import backend
from minipipe.core.errors import ArgumentError, ParameterError
from minipipe.core.familiar import (
    FamiliarKeywords,
    check_options,
    explain,
    optional,
    with_hints,
)
from minipipe.core.nn.parameter import Parameter
from minipipe.core.nn.rebinding import rebound
from minipipe.core.specs import Spec

Kind = TypeVar("Kind", bound="Module")


class Module(FamiliarKeywords):
    """A part of a model. Subclasses set parameters and modules as attributes and define
    ``forward``.

    A Parameter, a Module, or a list, tuple or dict of those, set as an attribute, is
    registered automatically. An array or a Tensor is a constant, which is neither
    trained nor saved. If it holds real numbers, the first call of the module, or a
    pipeline, warns of it once; a class lists its constants in ``not_trained``, a tuple,
    or begins their names with an underscore.

    Attributes
    ----------
    is_training : bool
        Whether it trains (the default) or is evaluated.

    Examples
    --------
    >>> from minipipe import nn
    >>> class Twice(nn.Module):
    ...     def __init__(self):
    ...         self.inner = nn.Linear(2, 2)
    ...
    ...     def forward(self, x):
    ...         return self.inner(self.inner(x))
    >>> [name for name, _ in Twice().named_parameters()]
    ['inner.weight', 'inner.bias']
    """

    is_training: bool = True
    _is_filled: bool = False
    _described: str = ""
    # the attribute whose parts keep the names that they would have without this module
    _inlined: str = ""
    # A module that this one computes by its method ``compute(function, x)``. If it is a
    # sequence, its layers draw random numbers as if they stood in place of this one.
    _unfolded: Any = None

    def forward(self, *inputs: Any, **options: Any) -> Any:
        """Compute the result; subclasses define how."""
        message = f"{type(self).__name__} does not define forward(self, x)."
        raise ArgumentError("type", message)

    def __call__(self, *inputs: Any, **options: Any) -> Any:
        """Compute the result. Parameters without values are filled with seed 0
        first.
        """
        if not self._is_filled:
            for name, parameter in self.named_parameters():
                if not parameter.is_filled:
                    parameter.fill(0, name)
            self._note_filled(warns=True)
        try:
            return self.forward(*inputs, **options)
        except TypeError as error:
            check_options(type(self).__name__, self.forward, options)
            explain(error)
            raise

    def __setattr__(self, name: str, value: Any) -> None:
        """Set an attribute. A parameter that another module holds is tied: this
        attribute becomes an alias of it.
        """
        if name == "requires_grad":
            raise ArgumentError(
                "name",
                f"{type(self).__name__} is a module and has no requires_grad of its "
                "own: freeze() trains none of its parameters, freeze(False) all of "
                "them.",
            )
        is_new = isinstance(value, Parameter) and vars(self).get(name) is not value
        if is_new and value.is_placed:
            value = value.alias()
        for _, part in _parts_in(name, value):
            if isinstance(part, Parameter):
                part.is_placed = True
        super().__setattr__(name, value)

    def _note_filled(self, warns: bool = False) -> None:
        """Note that all parameters inside have values, so that calls need not check;
        warn of untrained arrays.
        """
        new = [module for module in self.modules() if not module._is_filled]
        for module in new:
            module._is_filled = True
        if warns:
            with optional():
                from minipipe.nn.untrained import warn_of_untrained

                warn_of_untrained(new)

    # -- parts -------------------------------------------------------------------------

    def _parts(self) -> list[tuple[str, Any]]:
        """Return (name, Parameter or Module) for everything directly inside; an inlined
        module has the name "".

        Names, states, copies and comparisons all follow this enumeration, which no
        module overrides. An inlined attribute comes first, so that a second attribute
        for one of its parts renames nothing.
        """
        held = vars(self)
        parts = [*_parts_in("", held.get(self._inlined))]
        for name, value in held.items():
            if name != self._inlined:
                parts += _parts_in(name, value)
        return parts

    def modules(self) -> Iterator[Module]:
        """Yield this module and every module inside it."""
        coming = [self]
        while coming:
            module = coming.pop()
            yield module
            parts = [part for _, part in module._parts() if isinstance(part, Module)]
            coming += reversed(parts)

    def named_parameters(self) -> Iterator[tuple[str, Parameter]]:
        """Yield (qualified name, parameter); a tied parameter only once, under its
        first name.

        Raises
        ------
        ArgumentError
            Code ``name``: two parameters have the same name.
        """
        seen: set[int] = set()
        names: set[str] = set()
        for name, part in self._parts():
            is_one = isinstance(part, Parameter)
            inside = [("", part)] if is_one else part.named_parameters()
            for inner, parameter in inside:
                if id(parameter.owner) not in seen:
                    seen.add(id(parameter.owner))
                    qualified = ".".join(filter(None, (name, inner)))
                    if qualified in names:
                        raise ArgumentError(
                            "name",
                            f"{type(self).__name__} has two parameters named "
                            f"{qualified}; give one of the attributes another name.",
                        )
                    names.add(qualified)
                    yield qualified, parameter

    def parameters(self) -> Iterator[Parameter]:
        """Yield every parameter once."""
        for _, parameter in self.named_parameters():
            yield parameter

    @property
    def num_parameters(self) -> int:
        """The number of trainable numbers, known before there are values."""
        return sum(parameter.size for parameter in self.parameters())

    # -- state -------------------------------------------------------------------------

    def initialise(self, seed: int = 0) -> Module:
        """Fill every parameter, from the seed and its qualified name in this module.
        Returns the module.
        """
        for name, parameter in self.named_parameters():
            parameter.fill(seed, name)
        return self

    def train(self, mode: bool = True) -> Module:
        """Set this module and all inside it to training, or to evaluation with
        ``mode=False``. Returns the module.
        """
        for module in self.modules():
            module.is_training = mode
        return self

    def eval(self) -> Module:
        """Set this module and all inside it to evaluation. Returns the module."""
        return self.train(False)

    def freeze(self, is_frozen: bool = True) -> Module:
        """Stop training all parameters, or with ``is_frozen=False`` train them again.
        Returns the module.

        Nothing is recorded for a frozen parameter. A pipeline made afterwards skips the
        backward actions that become unnecessary; see
        :func:`minipipe.schedules.freeze_stages`. An existing pipeline has its own
        copies.

        Examples
        --------
        >>> from minipipe import nn
        >>> model = nn.Sequential(nn.Linear(4, 4).freeze(), nn.Linear(4, 2))
        >>> [
        ...     name
        ...     for name, parameter in model.named_parameters()
        ...     if parameter.requires_grad
        ... ]
        ['1.weight', '1.bias']
        """
        for parameter in self.parameters():
            parameter.requires_grad = not is_frozen
        return self

    def to(self, device: str | ModuleType) -> Module:
        """Keep all parameters on a device from now on: ``"cpu"``, ``"gpu"``, or an
        array module. Returns the module.

        ``"cuda"`` is ``"gpu"``, and ``"cuda:1"`` the second one.

        Raises
        ------
        LaunchError
            Code ``unavailable``.
        """
        xp = backend.module_for(device)
        for parameter in self.parameters():
            parameter.move(xp)
        return self

    @with_hints
    def zero_grad(self) -> None:
        """Set every gradient to None."""
        for parameter in self.parameters():
            parameter.zero_grad()

    def state_dict(self) -> dict[str, np.ndarray]:
        """Return a copy of every parameter's values, by qualified name."""
        return {
            name: np.array(backend.to_numpy(p.joined(p.data)))
            for name, p in self.named_parameters()
        }

    @with_hints
    def load_state_dict(self, state: Mapping[str, np.ndarray]) -> None:
        """Load values from :meth:`state_dict` of this or another model, in the dtype of
        the parameters.

        Raises
        ------
        ParameterError
            Codes ``missing``, ``unexpected`` and ``shape``; ``dtype``, for values that
            the conversion would round, such as most float64 values for float32, and for
            integers. After an error nothing has changed.
        """
        parameters = dict(self.named_parameters())
        check_state(parameters, state)
        load_state(parameters, state)

    def __deepcopy__(self, memo: dict[int, Any]) -> Self:
        """Return a copy as ``copy.deepcopy`` makes it, in which functions that were
        assigned refer to the copy.
        """
        copies = memo.get(id(rebound))
        is_outermost = copies is None
        if copies is None:
            copies = memo[id(rebound)] = []
        reduced: Any = self.__reduce_ex__(4)
        make, arguments, state = reduced[:3]
        twin = memo[id(self)] = make(*arguments)
        copies.append(twin)
        state = copy.deepcopy(state, memo)
        if hasattr(twin, "__setstate__"):
            twin.__setstate__(state)
        else:
            attributes, of_slots = state if isinstance(state, tuple) else (state, None)
            vars(twin).update(attributes or {})
            for name, value in (of_slots or {}).items():
                setattr(twin, name, value)
        # now every module has its copy, also one behind the module whose function
        # refers to it
        if is_outermost:
            del memo[id(rebound)]
            for each in copies:
                for name, value in vars(each).items():
                    vars(each)[name] = rebound(value, memo)
        return twin

    # -- representation ----------------------------------------------------------------

    def describe(self) -> str:
        """Return the arguments of the repr."""
        return self._described

    def brief(self) -> str:
        """Return the repr on one line; without the inner modules if it has more than 48
        characters.
        """
        whole = " ".join(repr(self).split())
        if len(whole) <= 48:
            return whole
        return f"{type(self).__name__}({self.describe() or '…'})"

    def __repr__(self) -> str:
        modules = [part for part in self._parts() if isinstance(part[1], Module)]
        if not modules:
            return f"{type(self).__name__}({self.describe()})"
        # options of this module itself
        lines = [self.describe()] * bool(self.describe())
        lines += [f"{name}: {part!r}".replace("\n", "\n  ") for name, part in modules]
        return f"{type(self).__name__}(\n  " + "\n  ".join(lines) + "\n)"


def _parts_in(name: str, value: Any) -> Sequence[tuple[str, Any]]:
    if isinstance(value, _PARTS):
        return [(name, value)]
    items: Iterable[tuple[Any, Any]] = ()
    if isinstance(value, (list, tuple)):
        items = enumerate(value)
    elif isinstance(value, dict):
        items = value.items()
    found: list[tuple[str, Any]] = []
    for key, item in items:
        found += _parts_in(f"{name}.{key}" if name else str(key), item)
    return found


_PARTS = (Parameter, Module)


def computes_as(module: Any, kind: type[Kind]) -> TypeGuard[Kind]:
    """Return whether a module computes by the code of a class: itself or a base class
    without an override.

    Neither a class between the two nor the instance itself replaces ``forward``, a
    hook, or another method or property that ``kind`` adds to every module's. Names,
    states and texts may differ.

    Examples
    --------
    >>> from minipipe import nn
    >>> layer = nn.Tanh()
    >>> computes_as(layer, nn.Tanh), computes_as(layer, nn.Linear)
    (True, False)
    >>> layer.forward = lambda x: -x
    >>> computes_as(layer, nn.Tanh)
    False
    """
    if not isinstance(module, kind):
        return False
    above = type(module).__mro__[: type(module).__mro__.index(kind)]
    held = [item for each in (*above, module) for item in vars(each).items()]
    replaced = {name for name, value in held if value is not None}
    any_kind: Any = kind
    return replaced.isdisjoint(_code_of(any_kind))


@cache
def _code_of(kind: type[Module]) -> frozenset[str]:
    """Return the names in a class on which results depend, without the state and
    representation of every module.
    """
    names = set(dir(kind)) - set(dir(Module))
    # Attributes that Python and copy leave in a class, such as __slotnames__, are not
    # code.
    hidden = {name for name in names if name.startswith("__")}
    is_code = names - {name for name in hidden if not callable(getattr(kind, name))}
    return frozenset(is_code | {"forward", "__call__"})


def is_exactly(module: Any, *kinds: type[Kind]) -> TypeGuard[Kind]:
    """Return whether a module is of one of some classes itself, and no attribute of the
    instance replaces its code.

    Only such a module may be computed in another way that is right for the class.

    Examples
    --------
    >>> from minipipe import nn
    >>> class Doubled(nn.Linear):
    ...     def forward(self, x):
    ...         return super().forward(x) * 2
    >>> is_exactly(nn.Linear(2, 2), nn.Linear), is_exactly(Doubled(2, 2), nn.Linear)
    (True, False)
    """
    return type(module) in kinds and computes_as(module, type(module))


@contextmanager
def in_modes(modes: Iterable[tuple[Module, bool]]) -> Iterator[None]:
    """Set whether each module trains inside this block, and leave its attributes as
    they were.
    """
    wanted = list(modes)
    # Read all first: a module may occur twice. None if the class declares it.
    before = [(module, vars(module).get("is_training")) for module, _ in wanted]
    try:
        for module, is_training in wanted:
            module.is_training = is_training
        yield
    finally:
        for module, was_training in before:
            if was_training is None:
                vars(module).pop("is_training", None)
            else:
                module.is_training = was_training


def modes_of(*modules: Module, is_training: bool) -> AbstractContextManager[None]:
    """Set modules and those inside them to training or evaluation inside this block.

    Examples
    --------
    >>> from minipipe import nn
    >>> layer = nn.Dropout(0.5)
    >>> with modes_of(layer, is_training=False):
    ...     print(layer.is_training)
    False
    >>> layer.is_training
    True
    """
    parts = (part for module in modules for part in module.modules())
    return in_modes((part, is_training) for part in parts)


def check_lengths(layer: str, **lengths: Any) -> None:
    """Check that the lengths of a layer are whole numbers, at least 0.

    Examples
    --------
    >>> check_lengths("Linear", in_features=64 / 2)
    Traceback (most recent call last):
        ...
    minipipe.errors.ArgumentError: Linear: in_features is 32.0; expected a whole number, at least 0. Write 64 // 2, ...
    """
    for name, value in lengths.items():
        advice = "Write 64 // 2, not 64 / 2."
        if isinstance(value, list | tuple):
            advice = (
                "It is the length of one axis, the last: x.reshape(len(x), -1) makes "
                "one of several."
            )
        Spec(int, minimum=0, advice=advice).check(f"{layer}: {name}", value)


def check_state(
    parameters: Mapping[str, Parameter], state: Mapping[str, np.ndarray]
) -> None:
    """Check that a state fits parameters: the same names and shapes, and numbers that
    are the same in their dtypes.

    Raises
    ------
    ParameterError
        Codes ``missing``, ``unexpected``, ``shape`` and ``dtype``.
    ArgumentError
        Code ``type``: when it is not a mapping.

    Examples
    --------
    >>> from minipipe import nn
    >>> parameters = dict(nn.Linear(2, 3).named_parameters())
    >>> check_state(parameters, {"weight": np.ones((2, 3))})
    Traceback (most recent call last):
        ...
    minipipe.errors.ParameterError: The state does not fit the model; missing: bias.
    """
    if not isinstance(state, Mapping):
        raise ArgumentError(
            "type",
            f"The state is a {type(state).__name__}; expected the result of "
            "state_dict().",
        )
    missing = parameters.keys() - state.keys()
    unexpected = state.keys() - parameters.keys()
    check_names(sorted(missing), unexpected)
    for name, parameter in parameters.items():
        given = backend.as_array(state[name])
        if given.shape != parameter.whole_shape:
            raise ParameterError(
                "shape",
                f"{name} has shape {parameter.whole_shape}; the state holds "
                f"{given.shape}.",
            )
        own = backend.numpy_dtype(parameter.dtype)
        _check_same_numbers(name, backend.to_numpy(given), own)


def load_state(
    parameters: Mapping[str, Parameter], state: Mapping[str, np.ndarray]
) -> None:
    """Load checked values into parameters, in place as :meth:`Parameter.load` does. All
    are copied first: a state may fail, or have the memory of another parameter.
    """
    given = {name: backend.copy(backend.as_array(state[name])) for name in parameters}
    for name, parameter in parameters.items():
        parameter.load(given.pop(name), name)


def check_names(missing: Sequence[str], unexpected: Iterable[str]) -> None:
    """Refuse a state that lacks parameters, or holds others."""
    for code, names in (("missing", missing), ("unexpected", sorted(unexpected))):
        if names:
            listed = ", ".join(names)
            message = f"The state does not fit the model; {code}: {listed}."
            raise ParameterError(code, message)


def _check_same_numbers(name: str, given: np.ndarray, own: np.dtype) -> None:
    """Refuse values that a cast would change, and integers."""
    if given.dtype == own:
        return
    is_real = backend.is_floating(given.dtype)
    with np.errstate(over="ignore"):
        again = given.astype(own).astype(given.dtype)
        is_same = is_real and np.array_equal(again, given, equal_nan=True)
    if not is_same:
        why = "which are not real numbers; if meant,"
        if is_real:
            why = "which it would round; give the layer that dtype, or"
        raise ParameterError(
            "dtype",
            f"{name} has dtype {own.name}, and the state holds {given.dtype.name}, "
            f"{why} convert the array: .astype({own.name!r}).",
        )

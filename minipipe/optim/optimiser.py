"""Base of all optimisers: groups of parameters, and the walk over them."""

from __future__ import annotations

import warnings
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Mapping, Sequence
from types import SimpleNamespace
from typing import Any, ClassVar, NoReturn, cast

import numpy as np

from minipipe.core.autograd import backend
from minipipe.core.autograd.backend import Array
from minipipe.core.autograd.modes import mode
from minipipe.core.familiar import FamiliarKeywords
from minipipe.core.nn.module import Module
from minipipe.core.nn.parameter import HalfLeaf, Parameter, stored
from minipipe.core.specs import COUNT, Spec
from minipipe.errors import ArgumentError, ModelError, ParameterError, counted
from minipipe.hints import Familiar, instead_of, missing, with_hints
from minipipe.optim.launches import Launch, launched
from minipipe.optim.nothing import steps_over_nothing
from minipipe.optim.runs import Run, Walk
from minipipe.optim.state import FIXED, MASTER, problem_with


class ParameterGroup(Familiar, SimpleNamespace):
    """Parameters that share their hyper-parameters.

    Parameters
    ----------
    parameters : iterable of Parameter
    hyper_parameters : mapping
        Each becomes an attribute, ``group.learning_rate``, which may be changed between
        steps. Numbers are kept as Python floats: those leave float32 alone, where
        NumPy's float64 would not.

    Attributes
    ----------
    parameters : tuple of Parameter

    Raises
    ------
    ArgumentError
        Code ``value``: when a number is out of its range, here or when it is changed.
        Code ``type``: when an object is not a parameter.
    AttributeError
        When an attribute is set that does not exist.

    Examples
    --------
    >>> from minipipe import nn, optim
    >>> weight, bias = nn.Linear(4, 3).parameters()
    >>> groups = [{"parameters": [weight]}, {"parameters": [bias], "weight_decay": 0}]
    >>> optim.SGD(groups, learning_rate=0.01).groups[1]
    ParameterGroup(1 parameter, learning_rate=0.01, momentum=0.0, weight_decay=0.0, nesterov=False)
    """

    def __init__(
        self, parameters: Iterable[Parameter], hyper_parameters: Mapping[str, Any]
    ) -> None:
        given = hyper_parameters.items()
        numbers = {name: checked(name, value) for name, value in given}
        super().__init__(parameters=tuple(map(_as_parameter, parameters)), **numbers)

    def __setattr__(self, name: str, value: Any) -> None:
        if name not in self.hyper_parameters:
            known = ", ".join(self.hyper_parameters)
            hint = ""
            if instead := instead_of("ParameterGroup").get(name):
                hint = f"; instead: {instead}"
            raise AttributeError(
                f"{name} cannot be set in this group of parameters{hint}; expected "
                f"one of {known}."
            )
        if name in FIXED and value != getattr(self, name):
            raise AttributeError(
                f"{name} cannot be changed in a group of parameters, since the state "
                "depends on it. Make another optimiser."
            )
        super().__setattr__(name, checked(name, value))

    def __getitem__(self, name: str) -> NoReturn:
        instead = instead_of("ParameterGroup")["__getitem__"]
        message = f"A group of parameters is not a dict; instead: {instead}."
        raise ArgumentError("name", message)

    @property
    def hyper_parameters(self) -> dict[str, Any]:
        """The hyper-parameters as they are now, by name."""
        numbers = dict(vars(self))
        del numbers["parameters"]
        return numbers

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), (self.parameters, self.hyper_parameters)

    def __repr__(self) -> str:
        numbers = [f"{name}={value}" for name, value in self.hyper_parameters.items()]
        count = counted(len(self.parameters), "parameter")
        return f"ParameterGroup({', '.join([count, *numbers])})"


HYPER_PARAMETERS = {
    "learning_rate": Spec(float, minimum=0),
    "momentum": Spec(float, minimum=0, below=1),
    "weight_decay": Spec(float, minimum=0),
    "betas": Spec(float, minimum=0, below=1, length=2),
    "epsilon": Spec(float, above=0),  # at 0, a gradient of 0 would be 0 / 0
    "rate_by_shape": Spec(str, choices=("moonlight", "jordan")),
    "num_iterations": COUNT,
    "orthogonal": Spec(bool),
}


_EXPECTED = (
    "Give model.parameters() or pipeline.parameters(), a list: [model.weight], or a "
    'list of groups: [{"parameters": [model.weight]}].'
)


def checked(name: str, value: Any) -> Any:
    """Return a hyper-parameter as a Python float, or as a pair of them. Names without a
    range pass as they are.
    """
    if name not in HYPER_PARAMETERS:
        return value
    return HYPER_PARAMETERS[name].check(name, value)


def _as_parameter(item: Any) -> Parameter:
    spec = Spec(Parameter, expected="parameters", advice=_EXPECTED)
    return spec.of_class("An optimiser", item)


class Optimiser(FamiliarKeywords, ABC):
    """A rule that changes parameters by their gradients.

    Local; no messages. A parameter's new values depend only on its own gradients and
    its group's hyper-parameters, so they have the same bits on any rank. An optimiser
    may have no parameters: a rank may hold only layers without any. A new rule defines
    ``_update``.

    A deep copy has copies of the parameters and of their states. To train a copy of a
    model, copy both at once: ``model, optimiser = copy.deepcopy((model, optimiser))``.
    A pickle also has the parameters. On disk, a checkpoint or :meth:`state_dict` needs
    neither.

    For a parameter in half precision (float16 or bfloat16) it keeps a float32 copy, the
    master values. It updates these and rounds them into the parameter; otherwise a step
    smaller than the spacing of halves would be lost. If anything else has changed the
    parameter, the copy is made again.

    Parameters
    ----------
    parameters : iterable of Parameter, or of dict
        All in one group; or a dict for each group, ``{"parameters": [...],
        "learning_rate": 0.1}``, whose other keys replace the defaults.
    defaults
        The hyper-parameters of every group that does not set them itself.

    Attributes
    ----------
    kept : dict of str to number, or None
        Class attribute: the values that the rule keeps for a parameter from the first
        change on, with their minimum; an int for a count, a float for the elements of
        an array of the parameter's shape. A state is checked against it before it is
        loaded. None for a rule that does not declare it: its states are loaded
        unchecked.
    is_elementwise : bool
        Class attribute, not inherited: whether each element of a parameter is changed
        by its own value, gradient and state alone. Then several ranks may update a
        shard each (:meth:`minipipe.Pipeline.sharded`), and parameters that lie side by
        side are updated as one array of one axis.
    joins_parts : bool
        Class attribute, not inherited: whether the rule reads parameters as a whole and
        joins the parts that ranks keep of them, as :class:`Muon` does.
    launches : dict of str to function
        Class attribute, not inherited: by the name of an array module, a function that
        changes several parameters in one launch, with the bits of ``_update``. A
        parameter that the rule takes whole is not among them.
    groups : list of ParameterGroup
        Their hyper-parameters may be changed between steps:
        ``optimiser.groups[0].learning_rate = 0.01``. No other attribute can be set,
        except the attributes of a custom rule.
    first : list of dict
        For each group its hyper-parameters before the first step; empty before that.
    history : (int, int)
        How many steps this optimiser took, and how often a state was loaded; all ranks
        of a pipeline have the same.
    rate_factor : float
        The factor of a :class:`LearningRateSchedule`, also the same on all ranks; it
        changes nothing by itself.

    Raises
    ------
    ArgumentError
        Code ``value``: when a number is out of its range, a group has a key that this
        optimiser does not know or lacks ``"parameters"``, or a parameter occurs twice.
        Code ``type``: when an object is not a parameter.

    References
    ----------
    Micikevicius et al. 2018, "Mixed precision training", section 3.1, for the master
    values.

    Examples
    --------
    A custom rule: a step of one size, in the direction of each gradient's sign.

    >>> import numpy as np
    >>> from minipipe import nn, optim
    >>> class SignDescent(optim.Optimiser):
    ...     def _update(self, data, gradient, state, group):
    ...         data -= group.learning_rate * np.sign(gradient)
    >>> weight = nn.Parameter(np.array([1.0, 2.0]))
    >>> weight.grad = np.array([1e-3, -4e3])
    >>> SignDescent([weight], learning_rate=0.5).step()
    >>> weight.data
    array([0.5, 2.5])
    """

    __slots__ = (
        "__weakref__",
        "_defaults",
        "_followers",
        "_is_one_group",
        "_states",
        "_walks",
        "first",
        "groups",
        "history",
        "rate_factor",
    )
    kept: ClassVar[Mapping[str, float] | None] = None
    is_elementwise: ClassVar[bool] = False
    joins_parts: ClassVar[bool] = False
    launches: ClassVar[dict[str, Launch]] = {}

    def __init__(
        self,
        parameters: Iterable[Parameter] | Iterable[Mapping[str, Any]],
        **defaults: Any,
    ) -> None:
        groups = _as_groups(parameters)
        self.groups = [self._group(given, defaults) for given in groups]
        _check_each_stands_once(self.groups)
        is_divided = any(parameter.is_divided for parameter in self.parameters)
        if is_divided and not takes_parts(type(self)):
            raise ArgumentError(
                f"{type(self).__name__} may read a parameter as a whole, but ranks "
                "keep parts of these; if it does not, write is_elementwise = True "
                "into the class.",
            )
        self._defaults = dict(defaults)
        self._is_one_group = len(groups) == 1 and groups[0].keys() == {"parameters"}
        self._followers = _followers_of(self.parameters)
        self._states: dict[int, dict[str, Any]] = {
            id(parameter): {} for parameter in self.parameters
        }
        self._walks: dict[int, Walk] = {}  # by group
        self.first: list[dict[str, Any]] = []
        self.history = (0, 0)
        self.rate_factor = 1.0

    def __setattr__(self, name: str, value: Any) -> None:
        try:
            super().__setattr__(name, value)
        except AttributeError:
            if name not in instead_of("Optimiser"):
                raise
            raise missing(type(self).__name__, name, (), "Optimiser") from None

    def _group(
        self, given: Mapping[str, Any], defaults: Mapping[str, Any]
    ) -> ParameterGroup:
        numbers = dict(given)
        parameters = numbers.pop("parameters", None)
        unknown = ", ".join(str(name) for name in numbers if name not in defaults)
        if parameters is None or unknown:
            wrong = 'has no "parameters"'
            if unknown:
                wrong = f"has {unknown}"
            expected = f'"parameters" and any of {", ".join(defaults)}'
            message = f"A group of {type(self).__name__} {wrong}; expected {expected}."
            raise ArgumentError(message)
        return ParameterGroup(parameters, {**defaults, **numbers})

    @property
    def parameters(self) -> list[Parameter]:
        """Every parameter, group by group."""
        return [parameter for group in self.groups for parameter in group.parameters]

    @property
    def learning_rate(self) -> float:
        """The learning rate of all groups. Setting it sets every group's.

        Raises
        ------
        ArgumentError
            Code ``value``: on reading, when the groups have different learning rates.
        """
        rates = [group.learning_rate for group in self.groups]
        if len(set(rates)) > 1:
            advice = "Read optimiser.groups[i].learning_rate."
            raise ArgumentError(f"The groups' learning rates differ: {rates}. {advice}")
        return rates[0]

    @learning_rate.setter
    def learning_rate(self, rate: float) -> None:
        for group in self.groups:
            group.learning_rate = rate

    @property
    def settings(self) -> dict[str, Any]:
        """Values equal on all ranks: the class, and the current numbers of a single
        group or else the defaults.

        Several groups may differ from rank to rank, since parameters do.
        """
        numbers = self._defaults
        if self._is_one_group:
            numbers = self.groups[0].hyper_parameters
        return {"class": type(self), **numbers}

    @property
    def numbers(self) -> list[Any]:
        """The values of ``settings`` without the class: quick to read and to
        compare.
        """
        if not self._is_one_group:
            return list(self._defaults.values())
        _, *numbers = vars(self.groups[0]).values()  # the parameters come first
        return numbers

    @property
    def nbytes(self) -> int:
        """The bytes of the arrays that this rank keeps in addition to the parameters,
        including master values.
        """
        kept = [value for state in self._states.values() for value in state.values()]
        return sum(map(backend.num_bytes, filter(backend.is_array, kept)))

    @with_hints
    def step(self) -> None:
        """Change every parameter that has a gradient, in place.

        A parameter without a gradient does not change, nor does its state.

        Raises
        ------
        ParameterError
            Code ``missing``, when not one parameter has values: these are not the ones
            that are trained.
        """
        for follower in self._followers:
            follower.note(self)
        if not self.first:
            self.first = [group.hyper_parameters for group in self.groups]
        num_steps, num_loads = self.history
        # past the method of this class, which only adds a hint to an error
        object.__setattr__(self, "history", (num_steps + 1, num_loads))
        if not self.apply():
            _check_and_warn(self.parameters)
            if not any(group.parameters for group in self.groups):
                steps_over_nothing.set(steps_over_nothing.get() + 1)

    def apply(self) -> bool:
        """Change every parameter that has a gradient, as a part of a step that was
        counted; return whether one has.
        """
        now = next(mode().creation)
        has_changed = False
        for group in self.groups:
            units = None
            if (walk := self._walks.get(id(group.parameters))) is not None:
                only = walk.only
                if only is not None and only.change(self._update, group, now):
                    has_changed = True
                    continue
                units = walk.units(group.parameters)
            if units is None:
                units = self._new_units(group.parameters)
            if launches := vars(type(self)).get("launches"):
                rule = group, self._update, self.takes_whole
                others = launched(launches, units, self._states, rule, now)
                has_changed |= len(others) < len(units)
                units = others
            for one in units:
                gradient = one.grad
                if gradient is not None:
                    self._change(one, gradient, group)
                    one.note_change(now)
                    has_changed = True
        return has_changed

    def _new_units(
        self, parameters: tuple[Parameter, ...]
    ) -> Sequence[Parameter | Run]:
        """Return what this step changes as one array each, by a new walk: a parameter,
        or a run of them.
        """
        if not vars(type(self)).get("is_elementwise"):
            return parameters
        walk = Walk(parameters, self._states)
        if vars(type(self)).get("launches"):
            walk.only = None  # a launch is as quick
        # It may join states anew that a walk over a group of earlier steps has joined.
        kept = {id(group.parameters) for group in self.groups} & self._walks.keys()
        self._walks = {key: self._walks[key] for key in kept} | {id(parameters): walk}
        units = walk.units(parameters)
        assert units is not None  # of a new walk
        return units

    def takes_whole(self, parameter: Any, group: ParameterGroup) -> bool:
        """Return whether one rank must have all elements of a parameter, or join them,
        to change it. Local.
        """
        return False

    def kept_of(
        self, parameter: Any, group: ParameterGroup
    ) -> Mapping[str, float] | None:
        """Return ``kept`` for one parameter. Local."""
        return self.kept

    def _rule_of(self, one: Any, group: ParameterGroup) -> Callable[..., None]:
        """Return the function that changes a parameter, with the arguments of
        ``_update``.
        """
        return self._update

    def _change(
        self, one: Parameter | Run, gradient: Array, group: ParameterGroup
    ) -> None:
        state = one.state if isinstance(one, Run) else self._states[id(one)]
        if isinstance(one.node, HalfLeaf):
            self._update_half(one, gradient, state, group)
        else:
            self._rule_of(one, group)(one.data, gradient, state, group)

    def _update_half(
        self,
        one: Parameter | Run,
        gradient: Array,
        state: dict[str, Any],
        group: ParameterGroup,
    ) -> None:
        """Change the master values, and round them into the parameter."""
        data = one.data
        xp = backend.array_module(data)
        master = state.get(MASTER)
        is_known: Any = False
        if master is not None:
            is_known = xp.all(xp.astype(master, data.dtype) == data)
            if xp is not np and not isinstance(one, Run):
                # a device chooses, and is not waited for
                master = xp.where(is_known, master, xp.astype(data, xp.float32))
                is_known = True
        # of some parameters only
        if not is_known and isinstance(one, Run) and master is not None:
            one.is_divided = True
            for parameter in one.parameters:
                self._change(parameter, cast(Array, parameter.grad), group)
            return
        if not is_known:  # loaded, or changed by hand
            master = xp.astype(data, xp.float32)
        state.pop(MASTER, None)  # a rule sees only what it keeps itself
        try:
            wide = backend.as_array(gradient, xp.float32)
            self._rule_of(one, group)(master, wide, state, group)
        finally:
            state[MASTER] = master
        data[...] = master

    @abstractmethod
    def _update(
        self, data: Array, gradient: Array, state: dict[str, Any], group: ParameterGroup
    ) -> None:
        """Change one parameter's values in place. Every change of a parameter goes
        through here.

        Parameters
        ----------
        data : array
            The parameter's values, or its master values in float32; to be changed.
        gradient : array of the same shape
            Not to be changed.
        state : dict
            What this optimiser keeps for this parameter; empty at first.
        group : ParameterGroup
            The numbers to use.
        """

    def state_dict(self) -> dict[str, Any]:
        """Return copies of everything that the next steps depend on, except parameters'
        values and gradients. Local.

        Returns
        -------
        dict
            ``"num_steps"``: how many were taken. ``"groups"``: for each group its
            hyper-parameters. ``"states"``: for each parameter, in the order of
            :attr:`parameters`, what is kept for it, by name: arrays of NumPy, and
            numbers. The master values of a parameter in half precision are stored as
            ``"master"``. ``"first"``: the groups before the first step.

        Examples
        --------
        >>> import numpy as np
        >>> from minipipe import nn, optim
        >>> weight = nn.Parameter(np.array([1.0, 2.0]))
        >>> weight.grad = np.array([4.0, -4.0])
        >>> optimiser = optim.SGD([weight], learning_rate=0.5, momentum=0.9)
        >>> optimiser.step()
        >>> optimiser.state_dict()["states"]
        [{'velocity': array([ 4., -4.])}]
        """
        states = [_copied(self._states[id(each)]) for each in self.parameters]
        groups = [group.hyper_parameters for group in self.groups]
        return {
            "num_steps": self.history[0],
            "first": list(map(dict, self.first)),
            "groups": groups,
            "states": states,
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Load the result of :meth:`state_dict`: training continues as with the
        optimiser that saved it. Local.

        Raises
        ------
        ArgumentError
            Code ``value``, as in :meth:`check_state`; then nothing has changed.
        """
        self.check_state(state)
        now = [group.hyper_parameters for group in self.groups]
        first = state.get("first", self.first or now)
        self.first = [ParameterGroup((), numbers).hyper_parameters for numbers in first]
        for group, numbers in zip(self.groups, state["groups"]):
            for name, value in numbers.items():
                setattr(group, name, value)
        for parameter, given in zip(self.parameters, state["states"]):
            earlier = self._states[id(parameter)]
            kept = self._states[id(parameter)] = dict(given)
            for name, value in given.items():
                if backend.is_array(value):
                    value = backend.moved(value, parameter.xp)
                    kept[name] = stored(value, earlier.get(name))
        self._walks.clear()
        self.history = (state.get("num_steps", 0), self.history[1] + 1)

    def check_state(self, state: Mapping[str, Any]) -> None:
        """Refuse a state of another optimiser, or of other parameters. Local.

        Raises
        ------
        ArgumentError
            Code ``value``: when there are other groups, hyper-parameters or parameters,
            or a number or an array is not one that the rule leaves behind.
        """
        if problem := problem_with(state, self):
            raise ArgumentError(f"{type(self).__name__}: {problem}.")
        for numbers in (*state["groups"], *(state.get("first") or ())):
            ParameterGroup((), numbers)

    # -- copies ------------------------------------------------------------------------

    def __copy__(self) -> NoReturn:
        """Refuse a copy that shares the parameters: each of two optimisers would keep a
        part of one state.
        """
        raise ModelError(
            "not-copyable",
            f"copy.copy would make a second {type(self).__name__} over the same "
            "parameters and some of its state. Copy both: model, optimiser = "
            "copy.deepcopy((model, optimiser)).",
        )

    def __getstate__(self) -> tuple[dict[str, Any], dict[str, Any]]:
        """Return the state of a deep copy or a pickle: the parameters and, in their
        order, the optimiser state.
        """
        attributes, slots = cast(Any, super().__getstate__())
        state = dict(slots)
        del state["_followers"], state["_walks"]
        state["_states"] = [self._states[id(each)] for each in self.parameters]
        return dict(attributes or {}), state

    def __setstate__(self, state: tuple[dict[str, Any], dict[str, Any]]) -> None:
        for part in state:
            for name, value in part.items():
                setattr(self, name, value)
        self._states = dict(zip(map(id, self.parameters), state[1]["_states"]))
        self._followers = _followers_of(self.parameters)
        self._walks = {}

    @with_hints
    def zero_grad(self) -> None:
        """Set every gradient to None. ``pipeline.step`` overwrites gradients, so this
        is not needed there.
        """
        for parameter in self.parameters:
            parameter.zero_grad()


def takes_parts(rule: type[Optimiser]) -> bool:
    """Return whether a class can change parameters of which ranks keep parts."""
    declared = vars(rule)
    return bool(declared.get("is_elementwise") or declared.get("joins_parts"))


def _as_groups(parameters: Iterable[Any]) -> list[Mapping[str, Any]]:
    """Return the groups of the argument; parameters without groups, and an empty
    argument, are one group.
    """
    is_one = isinstance(parameters, (Module, Parameter, Mapping))
    if is_one or not isinstance(parameters, Iterable):
        given = type(parameters).__name__
        message = f"An optimiser takes parameters; this is one {given}. {_EXPECTED}"
        raise ArgumentError("type", message)
    items = list(parameters)
    num_groups = sum(isinstance(item, Mapping) for item in items)
    if 0 < num_groups < len(items):
        raise ArgumentError(
            "type",
            f"{num_groups} of {len(items)} items are groups; expected parameters only "
            'or groups only. Put the others into a group: {"parameters": [...]}.',
        )
    if not num_groups:
        return [{"parameters": items}]
    return items


def _followers_of(parameters: list[Parameter]) -> tuple[Any, ...]:
    """Return the records of updates of the pipelines that train these parameters."""
    followers = {id(parameter.updates): parameter.updates for parameter in parameters}
    return tuple(follower for follower in followers.values() if follower is not None)


def _check_each_stands_once(groups: list[ParameterGroup]) -> None:
    first_group: dict[int, int] = {}
    for i, group in enumerate(groups):
        for parameter in group.parameters:
            owner = id(parameter.owner)
            if owner in first_group:
                raise ArgumentError(
                    f"A parameter of shape {parameter.shape} is in group "
                    f"{first_group[owner]} and again in group {i}; each step would "
                    "change it twice. Leave one out.",
                )
            first_group[owner] = i


def _copied(state: dict[str, Any]) -> dict[str, Any]:
    copies = dict(state)
    for name, value in state.items():
        if backend.is_array(value):
            copies[name] = np.array(backend.to_numpy(value))
    return copies


def _check_and_warn(parameters: list[Parameter]) -> None:
    """Say why nothing was changed."""
    if not any(parameter.requires_grad for parameter in parameters):
        return  # all are frozen, or there is none
    if any(parameter.is_filled for parameter in parameters):
        warnings.warn(
            f"optimiser.step() changed nothing: none of its {len(parameters)} "
            "parameters has a gradient. Call backward() or pipeline.step() first. A "
            "pipeline trains copies: give pipeline.parameters(), not "
            "model.parameters().",
            stacklevel=4,
        )
    else:
        raise ParameterError(
            "missing",
            "None of these parameters has values. A pipeline trains copies of the "
            "model's layers: give "
            "pipeline.parameters() to the optimiser, not model.parameters().",
        )

"""A parameter: a tensor that is declared first and filled later."""

from __future__ import annotations

import copy
from collections.abc import MutableMapping
from copyreg import __newobj__  # type: ignore[attr-defined]
from importlib import import_module
from numbers import Integral
from operator import attrgetter
from types import ModuleType
from typing import Any
from weakref import ReferenceType, WeakValueDictionary

import numpy as np

from minipipe.core.autograd import backend
from minipipe.core.autograd.backend import Array, Shape
from minipipe.core.autograd.graph import BackwardWalk, Leaf
from minipipe.core.autograd.modes import next_order
from minipipe.core.errors import ParameterError, TensorError
from minipipe.core.familiar import with_hints
from minipipe.core.nn.initialisers import Initialiser, generator_for
from minipipe.core.specs import Spec
from minipipe.core.tensor import Tensor


class HalfLeaf(Leaf):
    """The leaf of a parameter in half precision, whose gradient adds up in float32.

    A float16 sum drops terms below a 2,048th of it, and gradients are summed over many
    microbatches.
    """

    __slots__ = ()

    def add(self, contribution: Array, walk: BackwardWalk) -> None:
        """Add a contribution, as float32."""
        float32 = backend.array_module(contribution).float32
        super().add(backend.as_array(contribution, float32), walk)


def _leaf(shape: Shape, dtype: Any) -> Leaf:
    return (HalfLeaf if backend.is_half(dtype) else Leaf)(shape, dtype)


def stored(values: Array, earlier: Any) -> Array:
    """Return a copy of values in C order: in an earlier array, if there is one that is
    like a new one. Then programs and graphs with its address stay valid.
    """
    made = backend.copy(values)
    if _form(made) != _form(earlier):
        return made
    earlier[...] = made  # which the memory of the values may be
    return earlier


def _form(array: Any) -> list[Any]:
    # some modules have arrays without strides, flags or devices
    is_writeable = getattr(getattr(array, "flags", None), "writeable", True)
    names = ("shape", "dtype", "strides", "device")
    return [type(array), is_writeable, *(getattr(array, n, None) for n in names)]


# Attributes, other than the values, that a copy of a parameter takes over.
_COPIED = ("shape", "dtype", "initialiser", "num_uses", "is_placed")


def _is_length(length: Any) -> bool:
    return isinstance(length, Integral) and int(length) >= 0


class Parameter(Tensor):
    """A tensor that training changes.

    It is declared with a shape and an initialiser and takes no memory until it is
    filled, so every rank can describe a model that is larger than its memory.

    A deep copy and a pickle have the values and the initialiser, and no gradient, as in
    PyTorch. A pickle needs an initialiser that can be imported: one of
    ``nn.initialisers``, or a function of a module.

    Parameters
    ----------
    shape : tuple of int, or array
        The shape; or values, which fill it at once: ``initialise`` leaves those as they
        are.
    initialiser : function
        ``(generator, shape) -> values``, such as
        ``nn.initialisers.he_uniform(fan_in)``; with values, none.
    dtype : dtype
        float32 by default. Of a parameter in half precision, ``numpy.float16`` or
        ``ml_dtypes.bfloat16``, the gradient is float32: it adds up in that, and an
        optimiser keeps a copy of the values in that.

    Raises
    ------
    ParameterError
        Codes ``missing``, when the values are read before they exist, or a shape comes
        without an initialiser; ``shape``.

    Examples
    --------
    >>> from minipipe import nn
    >>> weight = nn.Parameter((2, 3), nn.initialisers.constant(0.5))
    >>> weight.nbytes, weight.is_filled
    (24, False)
    >>> weight.fill(seed=0, name="weight")
    >>> weight
    Parameter([[0.5, 0.5, 0.5],
               [0.5, 0.5, 0.5]], requires_grad=True)
    """

    __slots__ = (
        "arena",
        "dtype",
        "initialiser",
        "is_placed",
        "leaves",
        "num_uses",
        "shape",
        "updates",
        "xp",
    )

    @with_hints
    def __init__(
        self,
        shape: Shape | Array,
        initialiser: Initialiser | None = None,
        dtype: Any = None,
    ) -> None:
        if isinstance(shape, tuple) and not all(map(_is_length, shape)):
            raise ParameterError(
                "shape",
                f"The shape is {shape}; expected whole numbers, or values as a list "
                "or array.",
            )
        if isinstance(shape, tuple) and initialiser is None:
            raise ParameterError(
                "missing",
                f"nn.Parameter({shape}) has no initialiser, and zeros may never learn "
                f"(both factors of a product). Give one: nn.Parameter({shape}, "
                "nn.initialisers.normal(0.02)); for a bias, constant(0.0).",
            )
        values = None
        if not isinstance(shape, tuple):
            values = Tensor(shape, requires_grad=True, dtype=dtype).data
        # Known before there are values, unlike the shape and dtype of other tensors.
        self.shape: Shape = tuple(shape) if values is None else values.shape
        dtype = np.dtype(dtype or np.float32) if values is None else values.dtype
        self.dtype: Any = dtype
        self.initialiser = initialiser
        self.xp = backend.array_module(values)
        self.node: Leaf = _leaf(self.shape, self.dtype)
        self.leaves: MutableMapping[int, Leaf] = {0: self.node}  # by use
        self.num_uses = 1
        # whether a module holds it; every further attribute becomes an alias
        self.is_placed = False
        # the record of its updates, in a pipeline over several ranks
        self.updates: Any = None
        # to the arena that has its gradient, and perhaps its values
        self.arena: ReferenceType[Any] | None = None
        if values is not None:
            self.data = backend.copy(values)

    def __getattr__(self, name: str) -> Any:
        # Reached only when the normal look-up found nothing: `data` is not filled.
        if name == "data":
            raise ParameterError(
                "missing",
                f"This parameter of shape {self.shape} has no values yet. Call "
                "model.initialise(seed), call the model once, or give the model to a "
                "Pipeline and read pipeline.parameters().",
            )
        return super().__getattr__(name)  # type: ignore[misc]

    @property
    def nbytes(self) -> int:
        """How many bytes the values take, or will take."""
        return self.size * backend.numpy_dtype(self.dtype).itemsize

    # -- the parts of other ranks: mostly there are none -------------------------------

    is_divided = is_summed = False
    whole_shape = property(
        attrgetter("shape"), doc="The shape of all ranks' parts together."
    )

    def joined(self, values: Array) -> Array:
        """Return all ranks' parts together of values, or of an optimiser's array.
        Collective if ``is_divided``.
        """
        return values

    def cut(self, values: Array) -> Array:
        """Return this rank's part of the values, or of an optimiser's array, of the
        whole parameter. Local.
        """
        return values

    @property
    def is_filled(self) -> bool:
        """Whether there are values."""
        try:
            object.__getattribute__(self, "data")
        except AttributeError:
            return False
        return True

    # -- uses: a parameter with several uses has a leaf for each -----------------------

    use = 0  # its number among the uses of the owner

    @property
    def owner(self) -> Parameter:
        """The parameter that holds the values: itself, unless this is an
        :class:`Alias`.
        """
        return self

    @property
    def requires_grad(self) -> bool:
        """Whether it is trained. Where it is False nothing is recorded for it, and it
        gets no gradient.
        """
        return self.node.needs_gradient

    @requires_grad.setter
    def requires_grad(self, is_trained: bool) -> None:
        Spec(bool, code="type").check("requires_grad", is_trained)
        for leaf in self.leaves.values():
            leaf.needs_gradient = is_trained
        self._drop_grad()

    def alias(self) -> Alias:
        """Return another use of this parameter, with a separate leaf."""
        self.num_uses += 1
        return Alias(self.owner, self.num_uses - 1)

    @property
    def grad(self) -> Array | None:
        """The gradient, of shape ``shape``: the sum over all uses, in their order; None
        before ``backward``.

        It is float32 if the values are float16 or bfloat16, and has their dtype
        otherwise. If the parameter has aliases, each call adds them up; assign to it to
        change it. An assigned array is used as it is, not copied: clipping and
        ``unscale_gradients`` scale it in place.
        """
        if len(self.leaves) == 1:
            return self.node.grad
        uses = sorted(self.leaves)
        return backend.sum_of_gradients(self.leaves[use].grad for use in uses)

    @grad.setter
    def grad(self, gradient: Array | None) -> None:
        if gradient is not None and gradient.shape != self.shape:
            raise TensorError(
                "shape",
                f"The gradient has shape {gradient.shape}; the parameter has "
                f"{self.shape}.",
            )
        if gradient is None:
            self.zero_grad()
        else:
            self._drop_grad()
            self.leaves[min(self.leaves)].grad = gradient

    def zero_grad(self) -> None:
        """Set the gradient to None. In a pipeline every rank must do so between the
        same calls.
        """
        if self.updates is not None and any(
            leaf.grad is not None for leaf in self.leaves.values()
        ):
            self.updates.are_gradients_kept = False
        self._drop_grad()

    def take_grad(self) -> Array | None:
        """Return the gradient and set it to None."""
        gradient = self.grad
        self._drop_grad()
        return gradient

    def _drop_grad(self) -> None:
        for leaf in self.leaves.values():
            leaf.grad = None

    def grad_of_use(self, use: int) -> Array | None:
        """The gradient of one use, numbered from 0 in the order of declaration."""
        return self.leaves[use].grad if use in self.leaves else None

    def note_change(self, order: int | None = None) -> None:
        """Note that the values have changed: graphs recorded before are out of date.

        Parameters
        ----------
        order : int, optional
            When, on the scale of :attr:`Node.order <minipipe.autograd.Node>`; now by
            default.
        """
        order = next_order() if order is None else order
        for leaf in self.leaves.values():
            leaf.changed = order

    def __eq__(self, other: object) -> Any:
        """Tell parameters apart by identity, as in ``parameter in some_list``; compare
        values with anything else.
        """
        if isinstance(other, Parameter) or other is None:
            return self is other
        return super().__eq__(other)

    def __ne__(self, other: object) -> Any:
        if isinstance(other, Parameter) or other is None:
            return self is not other
        return super().__ne__(other)

    __hash__ = Tensor.__hash__

    # -- values ------------------------------------------------------------------------

    def fill(self, seed: int, name: str) -> None:
        """Draw first values from the seed and the parameter's qualified name; keep
        existing values.
        """
        if self.initialiser is not None:
            values = self.initialiser(generator_for(seed, name), self.whole_shape)
            if self.is_filled:  # whoever has the earlier values keeps them
                self.data = backend.copy(self.data)
            self.load(backend.as_array(values), name)

    def load(self, values: Array, name: str) -> None:
        """Take a copy of values of the same shape, in this parameter's dtype; the
        gradient is forgotten.

        The array of a trained parameter stays, with other values, as in an optimiser's
        step. A frozen one gets a new array: a graph does not notice that it changes.

        Raises
        ------
        ParameterError
            Code ``shape``.
        """
        if values.shape != self.shape:
            raise ParameterError(
                "shape",
                f"{name} has shape {self.shape}; the values given have {values.shape}.",
            )
        earlier = self.data if self.is_filled and self.requires_grad else None
        self.data = stored(backend.moved(values, self.xp, self.dtype), earlier)
        self._drop_grad()
        self.note_change()

    def move(self, xp: ModuleType) -> None:
        """Keep the values in another array module from now on; the gradient is
        forgotten.
        """
        self.xp = xp
        if self.is_filled and backend.array_module(self.data) is not xp:
            self.data = backend.moved(self.data, xp)
            self._drop_grad()

    # -- copies: no gradient and no record of updates goes with the values -------------

    def __copy__(self) -> Parameter:
        """Return another use of the same values: two parameters over one array would be
        updated twice.
        """
        return self.alias()

    def __deepcopy__(self, memo: dict[int, Any]) -> Parameter:
        twin = memo[id(self)] = object.__new__(type(self))
        state = self.__getstate__()
        state["attributes"] = copy.deepcopy(state["attributes"], memo)
        if self.is_filled:
            state["data"] = backend.copy(self.data)
        twin.__setstate__(state)
        return twin

    def __reduce__(self) -> tuple[Any, ...]:
        return __newobj__, (type(self),), self.__getstate__()

    def __getstate__(self) -> dict[str, Any]:
        """Return the arguments of a copy and a pickle, the array module by its name."""
        state = {name: getattr(self, name) for name in (*_COPIED, "requires_grad")}
        state["xp"] = self.xp.__name__
        state["attributes"] = dict(getattr(self, "__dict__", {}))  # of a subclass
        if self.is_filled:
            is_numpy = isinstance(self.data, np.ndarray)
            state["data"] = backend.values(self.data) if is_numpy else self.data
        return state

    def __setstate__(self, state: dict[str, Any]) -> None:
        for name in _COPIED:
            setattr(self, name, state[name])
        for name, value in state["attributes"].items():
            setattr(self, name, value)
        self.xp = import_module(state["xp"])
        self.node = _leaf(self.shape, self.dtype)
        self.node.needs_gradient = state["requires_grad"]
        self.leaves = {0: self.node}
        self.updates = None
        self.arena = None
        if "data" in state:
            self.data = state["data"]

    def __repr__(self) -> str:
        if not self.is_filled:
            return f"Parameter(shape={self.shape}, dtype={self.dtype}, no values yet)"
        return super().__repr__()


class Alias(Parameter):
    """Another use of a parameter, such as an embedding's vectors in the last layer.

    It has a separate leaf, which accumulates the gradients of this use; everything else
    is read from and written to the owner. So the sum over uses has the same bits in one
    process and over ranks that hold one use each.

    Parameters
    ----------
    owner : Parameter
    use : int
        Its number among the uses of the owner, whose own use is 0.
    """

    __slots__ = ("owner", "use")
    owner: Parameter

    def __init__(self, owner: Parameter, use: int) -> None:
        self.owner = owner
        self.use = use
        self.node = _leaf(owner.shape, owner.dtype)
        self.node.needs_gradient = owner.requires_grad
        if isinstance(owner.leaves, dict):
            # the leaf of an alias goes with it
            owner.leaves = WeakValueDictionary(owner.leaves)
        owner.leaves[use] = self.node
        if owner.arena is not None and (arena := owner.arena()) is not None:
            # it has one gradient for each parameter, not one for each use
            arena.close()

    def __deepcopy__(self, memo: dict[int, Any]) -> Alias:
        twin = memo[id(self)] = Alias(copy.deepcopy(self.owner, memo), self.use)
        return twin

    def __reduce__(self) -> tuple[Any, ...]:
        return Alias, (self.owner, self.use)


def _of_owner(name: str) -> property:
    def assign(alias: Alias, value: Any) -> None:
        setattr(alias.owner, name, value)

    return property(attrgetter(f"owner.{name}"), assign)


for _name in (
    *Parameter.__slots__,
    "data",
    "is_filled",
    "is_divided",
    "whole_shape",
    "joined",
    "cut",
    "load",
):
    setattr(Alias, _name, _of_owner(_name))

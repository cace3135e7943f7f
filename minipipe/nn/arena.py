"""An arena: the trained parameters of a rank side by side, and their gradients.

::

    values     | weight 0        | bias 0 |gap| weight 1        | bias 1 |
    gradients  | of weight 0     | of b 0 |gap| of weight 1     | of b 1 |

A parameter's ``data`` is a view of the values. A rule that changes each element alone
can then change many parameters by a few calls of NumPy, with the same bits. On small
layers it would spend most of its time between the calls.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Hashable, Iterable
from functools import cache
from math import prod
from operator import attrgetter, gt, is_
from sys import getrefcount
from typing import Any
from weakref import ref

import numpy as np

from minipipe.autograd import Leaf
from minipipe.core.autograd import backend
from minipipe.core.autograd.backend import Array
from minipipe.core.nn.parameter import HalfLeaf, Parameter
from minipipe.nn.shards import ShardedParameter

_DATA = attrgetter("data")
_GRAD = attrgetter("grad")
_ALL = slice(None)
# A parameter begins at a multiple of so many bytes. The rounding of a product may
# depend on it, and allocators promise as much: malloc 16 bytes, CuPy's pool 512.
_HOST_ALIGNMENT = 16
_DEVICE_ALIGNMENT = 512


class Arena:
    """The trained parameters of a rank side by side, and arrays for their gradients.

    Local; no messages. A parameter is moved only if nobody can notice: it has one use,
    its values are in C order and may be written, and nothing else refers to them or to
    their memory. The values of others stay in place, and only their gradients are here.
    A parameter is in one arena at a time: an earlier one is closed.

    In every step the caller

    1. removes the gradients of the last step, as ``Stage.begin`` does;
    2. calls :meth:`is_intact`. If it is False, ``close()`` the arena and make another;
    3. calls :meth:`gradients_are_free`. If it is False, somebody keeps a gradient of an
       earlier step: call :meth:`renew_gradients`, and let all that writes gradients
       write into the new :attr:`gradients`, then call :meth:`count_references` again;
    4. writes into each array of :attr:`gradients` whose parameter gets a gradient in
       this step: all elements, because it has the gradient of an earlier step;
    5. assigns these, ``parameter.node.grad = arena.gradients[i]``, or all at once by
       :meth:`assign_gradients`. A parameter without a gradient keeps None.

    Then optimisers and the finite check find the arrays by themselves. If a parameter
    has another array as its gradient, or none, they go parameter by parameter in that
    step.

    Parameters
    ----------
    parameters : iterable of Parameter
        With values. Of a parameter with several uses each is one, with a gradient of
        its own. Those that are frozen get no gradient here.

    Attributes
    ----------
    parameters : tuple of Parameter
    gradients : list of array or None
        By parameter, an array of its shape in C order, in float32 for halves; None for
        a frozen one. The elements are 0 at first.
    is_open : bool
        Whether no other arena has taken its parameters, and nobody has closed it.

    Raises
    ------
    ParameterError
        Code ``missing``, for a parameter without values.

    Examples
    --------
    >>> from minipipe import nn, optim
    >>> layer = nn.Linear(2, 2).initialise(0)
    >>> arena = Arena(layer.parameters())
    >>> layer.bias.data.base is layer.weight.data.base
    True
    >>> for gradient in arena.gradients:
    ...     gradient[...] = 1.0
    >>> arena.assign_gradients()
    >>> optim.SGD(layer.parameters(), learning_rate=0.5).step()
    >>> layer.bias.data
    array([-0.5, -0.5], dtype=float32)
    """

    def __init__(self, parameters: Iterable[Parameter]) -> None:
        self.parameters = tuple(parameters)
        trained = _trained(self.parameters)
        for each in trained:
            if each.arena is not None and (earlier := each.arena()) is not None:
                earlier.close()
        movable = _movable(self.parameters)
        kinds: dict[tuple[Hashable, bool], list[Parameter]] = {}
        for each in trained:
            kinds.setdefault((_kind(each), id(each) in movable), []).append(each)
        self._blocks = [Block(kinds[kind], is_moved=kind[1]) for kind in kinds]
        self._places: dict[int, tuple[Block, int]] = {}  # by id of a leaf
        for block in self._blocks:
            for position, leaf in enumerate(block.leaves):
                self._places[id(leaf)] = block, position
        self.is_open = True
        self._has_views = all(block.has_views for block in self._blocks)
        self._reference = ref(self)
        self._counted: list[Array] = []  # of which the references are counted
        for each in trained:
            each.arena = self._reference
        self._find_gradients()

    def _find_gradients(self) -> None:
        self.gradients = [self.gradient_of(each.node) for each in self.parameters]
        self.count_references()

    def gradient_of(self, leaf: Leaf) -> Array | None:
        """Return the array for the gradient of a leaf; None if there is none here."""
        place = self._places.get(id(leaf))
        if place is None:
            return None
        block, position = place
        return block.gradient_views[position]

    # -- what has changed since --------------------------------------------------------

    def is_intact(self) -> bool:
        """Return whether every moved parameter has its values here. Local.

        Moving to another device and ``parameter.data = array`` replace them.
        Another use of a parameter (``alias``) closes the arena.
        """
        return self.is_open and all(block.has_values() for block in self._blocks)

    def close(self) -> None:
        """Use the arena no more. Its parameters keep their values. Local."""
        for each in self.parameters:
            if each.arena is self._reference:
                each.arena = None
        self.is_open = False
        self._blocks = []
        self._places = {}
        self.gradients = []
        self._counted = []

    def count_references(self) -> None:
        """Take all references to the gradients that exist now for the caller's own.

        Local. Call it when everything that writes into the gradients refers to them,
        and before a user can: after the arena was made or its gradients were renewed.
        Variables that refer to them are counted too, and hide as many users.
        """
        self._counted = []
        for block in self._blocks:
            # views of a view refer to the first one
            self._counted += [block.gradients, *block.gradient_views]
        self._counts = list(map(getrefcount, self._counted))

    def gradients_are_free(self) -> bool:
        """Return whether nobody has come to refer to a gradient, or to a part of one.

        Local. Call it when the parameters have lost their gradients. A view of a view
        counts too, as does a memoryview.
        """
        if not self._has_views:
            return False
        now = list(map(getrefcount, self._counted))
        if now != self._counts and any(map(gt, now, self._counts)):
            return False
        self._counts = now  # some may have been variables of who has counted
        return True

    def renew_gradients(self) -> None:
        """Make new arrays for the gradients; whoever keeps an old one has it alone."""
        for block in self._blocks:
            block.make_gradients()
        self._find_gradients()

    # -- gradients ---------------------------------------------------------------------

    def assign_gradients(self) -> None:
        """Give every trained parameter its array as its gradient. Local."""
        for block in self._blocks:
            for leaf, view in zip(block.leaves, block.gradient_views):
                leaf.grad = view

    def leaves_outside(self, leaves: Iterable[Leaf]) -> list[Leaf]:
        """Return the leaves whose gradients are not among the joined ones. Local."""
        return [leaf for leaf in leaves if id(leaf) not in self._places]

    def joined_gradients(self) -> list[Array] | None:
        """Return all gradients as a few flat arrays; None unless all are in the arena.

        Local. Between two gradients there may be elements of an earlier step.
        """
        for block in self._blocks:
            if not block.has_gradients():
                return None
        return self.flat_gradients()

    def flat_gradients(self) -> list[Array]:
        """Return all arrays for gradients as a few flat arrays. Local."""
        return [array for block in self._blocks for array in block.joined_gradients]

    def place_of(self, parameter: Parameter) -> tuple[Block, int] | None:
        """Return the block and the position of a moved parameter, or None."""
        place = self._places.get(id(parameter.node))
        if place is None or place[0].values is None:
            return None
        return place


class Block:
    """The parameters of an arena that have one array module and dtype.

    Attributes
    ----------
    parameters : list of Parameter
    places : list of slice
        Their elements, in ``values`` and ``gradients`` alike; there may be gaps.
    leaves : list of Leaf
    values : array of shape (elements,), or None
        None if the parameters were not moved.
    value_views : list of array
    gradients : array of shape (elements,), or None
        None if the array module has no views: each gradient is an array of its own.
    gradient_views : list of array
    has_views : bool
        Whether a slice is a view that refers to the array whose memory it has: then
        references show whether somebody keeps a gradient.
    """

    def __init__(self, parameters: list[Parameter], is_moved: bool) -> None:
        self.parameters = parameters
        self.leaves = [each.node for each in parameters]
        first = parameters[0]
        self._xp = backend.array_module(first.data)
        self._gradient_dtype = first.data.dtype
        if isinstance(first.node, HalfLeaf):
            self._gradient_dtype = self._xp.float32
        self.has_views = _has_views(first.data)
        self.places = _places(parameters, _step(first.data))
        self.size = self.places[-1].stop
        self.values: Array | None = None
        self.value_views: list[Array] = []
        if is_moved:
            self._move(first.data.dtype)
        self.make_gradients()

    def _move(self, dtype: Any) -> None:
        self.values = self._xp.zeros(self.size, dtype=dtype)
        self.value_views = self._views(self.values)
        for each, view in zip(self.parameters, self.value_views):
            view[...] = each.data
            each.data = view  # now, so that not all values are in memory twice

    def make_gradients(self) -> None:
        """Make arrays for the gradients."""
        xp = self._xp
        dtype = self._gradient_dtype
        if self.has_views:
            self.gradients = xp.zeros(self.size, dtype=dtype)
            self.gradient_views = self._views(self.gradients)
            self.joined_gradients = [self.gradients]
        else:
            shapes = [each.shape for each in self.parameters]
            self.gradients = None
            self.gradient_views = [xp.zeros(shape, dtype=dtype) for shape in shapes]
            self.joined_gradients = self.gradient_views

    def _views(self, flat: Array) -> list[Array]:
        parts = zip(self.places, self.parameters)
        return [flat[place].reshape(each.shape) for place, each in parts]

    def has_values(self, part: slice = _ALL) -> bool:
        """Return whether these parameters have their values here, or were not moved."""
        views = self.value_views[part]  # if not, there is nothing to compare
        return all(map(is_, map(_DATA, self.parameters[part]), views))

    def has_all(self, part: slice) -> bool:
        """Return whether these parameters have their values and their gradients here."""
        gradients = self.gradient_views[part]
        values = self.value_views[part]
        return all(map(is_, map(_GRAD, self.leaves[part]), gradients)) and all(
            map(is_, map(_DATA, self.parameters[part]), values)
        )

    def has_gradients(self, part: slice = _ALL) -> bool:
        """Return whether these parameters have their gradients here."""
        views = self.gradient_views[part]
        return all(map(is_, map(_GRAD, self.leaves[part]), views))


# -- which parameters can be moved -----------------------------------------------------


def _trained(parameters: Iterable[Parameter]) -> list[Parameter]:
    """Return the parameters that are trained, each use once."""
    uses = {id(each.node): each for each in parameters if each.requires_grad}
    return list(uses.values())


def _kind(parameter: Parameter) -> Hashable:
    data = parameter.data
    is_half = isinstance(parameter.node, HalfLeaf)
    return backend.array_module(data).__name__, data.dtype, is_half


def _has_views(array: Array) -> bool:
    """Return whether a slice is a view, and refers to the array whose memory it has."""
    return type(array) is np.ndarray or hasattr(array, "__cuda_array_interface__")


def _step(data: Array) -> int:
    """Return the multiple of elements at which a parameter may begin."""
    alignment = _DEVICE_ALIGNMENT
    if isinstance(data, np.ndarray):
        alignment = _HOST_ALIGNMENT
    return max(1, alignment // backend.numpy_dtype(data.dtype).itemsize)


def _places(parameters: Iterable[Parameter], step: int) -> list[slice]:
    places = []
    stop = 0
    for each in parameters:
        start = -(-stop // step) * step
        stop = start + prod(each.shape)
        places.append(slice(start, stop))
    return places


def _movable(parameters: Iterable[Parameter]) -> set[int]:
    """Return which parameters can get other memory without anybody noticing, by id."""
    to_data, to_base = _references_of_one()
    owners = {id(each.owner): each.owner for each in parameters}.values()
    # Of views of a closed arena: all that refers to its memory must be among them.
    num_views = Counter(id(getattr(each.data, "base", None)) for each in owners)

    def is_movable(parameter: Parameter) -> bool:
        if not _is_plain(parameter) or _references(parameter) != to_data:
            return False
        others = num_views[id(parameter.data.base)] - 1
        is_owner = parameter.data.base is None
        return is_owner or _references_to_base(parameter) == to_base + others

    return {id(each) for each in owners if is_movable(each)}


def _is_plain(parameter: Parameter) -> bool:
    """Return whether the values are as an allocation leaves them, or a view of one."""
    data = parameter.data
    if type(parameter) not in (Parameter, ShardedParameter) or not _has_views(data):
        return False
    if len(parameter.leaves) > 1:
        return False  # the sum over its uses would be another array
    owner = data
    if data.base is not None:
        owner = data.base
    if type(owner) is not type(data) or owner.base is not None:
        return False  # memory of something else, such as a file
    if isinstance(data, np.ndarray) and not data.flags.writeable:
        return False
    # Also the strides of an axis of length one, on which bits of a product depend.
    stride = backend.numpy_dtype(data.dtype).itemsize
    strides: list[int] = []
    for length in reversed(data.shape):
        strides.insert(0, stride)
        stride *= max(length, 1)
    has_strides = data.strides == tuple(strides) or data.size == 0
    return data.shape == parameter.shape and has_strides


def _references(parameter: Parameter) -> int:
    return getrefcount(parameter.data)


def _references_to_base(parameter: Parameter) -> int:
    return getrefcount(parameter.data.base)


@cache
def _references_of_one() -> tuple[int, int]:
    """Return how many references a parameter alone has to its data, and to a base."""
    probe = Parameter(np.zeros(2))
    to_data = _references(probe)
    probe.data = np.zeros(4)[:2]
    return to_data, _references_to_base(probe)

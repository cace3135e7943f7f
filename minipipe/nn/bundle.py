"""Layers with several inputs in a sequence: a pytree passes through it, and each layer
takes its entries.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from inspect import signature
from typing import Any

from minipipe.core.nn.module import Module
from minipipe.core.pytree import Bundle
from minipipe.core.specs import Spec
from minipipe.errors import ArgumentError

Entry = str | int


class On(Module):
    """Calls a layer with entries of a pytree, and puts the result in place of the
    first; the others pass unchanged.

    In a sequence each layer takes one value, which may be a pytree: a dict, tuple or
    list of tensors, or of pytrees. A pipeline sends all of it over each stage boundary,
    also whole numbers and truth values such as masks. Stage boundaries lie before and
    after an ``On``, not inside, so use one ``On`` for each layer. Drop entries that no
    later layer needs with :class:`Take`. To recompute a layer in backward, write
    ``Recompute(On(…))``.

    Parameters
    ----------
    entries : str or int, sequence of them, or dict of str to them
        Names in a dict, or positions in a tuple or list. One entry, or several in the
        order of the layer's parameters, or by the names of these: ``{"x": "target",
        "memory": "source"}``.
    layer : Module
        Its parameters are ``layer.…`` here.
    to : str or int, optional
        Where the result goes: by default to the first of the entries. In a dict it may
        be new.

    Raises
    ------
    ArgumentError
        Code ``type`` or ``name``: for entries that the layer does not take; on a call,
        for a value that is not a pytree or has no such entry.

    See Also
    --------
    Take : one entry alone, or some.

    Examples
    --------
    >>> from minipipe import nn
    >>> model = nn.Sequential(
    ...     nn.On("tokens", nn.Embedding(num_embeddings=9, width=4)),
    ...     nn.On(("tokens", "mask"), nn.TransformerBlock(width=4, num_heads=2)),
    ...     nn.Take("tokens"),
    ... )
    >>> model({"tokens": [[5, 3, 0], [7, 0, 0]], "mask": [[1, 1, 0], [1, 0, 0]]}).shape
    (2, 3, 4)
    """

    def __init__(
        self,
        entries: Entry | Sequence[Entry] | Mapping[str, Entry],
        layer: Module,
        to: Entry | None = None,
    ) -> None:
        expected = 'entries and a module, such as On("x", nn.Tanh())'
        Spec(Module, expected=expected).of_class("On", layer)
        self.parameter_names = None
        places: Any = entries
        if isinstance(entries, Mapping):
            self.parameter_names = list(map(str, entries))
            places = list(entries.values())
        self.entries = _listed("On", places)
        self.destination = self.entries[0]
        if to is not None:
            (self.destination,) = _listed("On", [to])
        self.layer = layer
        try:
            self._call(signature(layer.forward).bind, self.entries)
        except TypeError as error:
            taken = ", ".join(signature(layer.forward).parameters)
            raise ArgumentError(
                "name",
                f"On: {type(layer).__name__} is called with ({taken}); the entries "
                f"are {entries!r}: {error}.",
            ) from None

    def forward(self, bundle: Bundle) -> Bundle:
        """Return the pytree, of the same kind, with the result of the layer in it.

        Raises
        ------
        ArgumentError
            Codes ``type`` and ``name``.
        """
        values = [_entry("On", bundle, name) for name in self.entries]
        return _replaced(bundle, self.destination, self._call(self.layer, values))

    def _call(self, function: Callable[..., Any], values: list[Any]) -> Any:
        if self.parameter_names is None:
            return function(*values)
        return function(**dict(zip(self.parameter_names, values)))

    def describe(self) -> str:
        """Name entries, layer and destination."""
        return self._shown(self.layer.brief())

    def _shown(self, layer: str) -> str:
        entries: Any = tuple(self.entries)
        if self.parameter_names is not None:
            entries = dict(zip(self.parameter_names, self.entries))
        elif len(entries) == 1:
            (entries,) = entries
        shown = f"{entries!r}, {layer}"
        if self.destination == self.entries[0]:
            return shown
        return f"{shown}, to={self.destination!r}"

    def __repr__(self) -> str:
        return f"On({self._shown(repr(self.layer))})"


class Take(Module):
    """Returns one entry of a pytree, or some of them as a smaller pytree, and drops the
    others.

    Parameters
    ----------
    entries : str or int, or sequence of them
        Names in a dict, or positions in a tuple or list. A sequence, even of one,
        returns a pytree of the same kind, in this order.

    Raises
    ------
    ArgumentError
        Codes ``type`` and ``name``; on a call, for a value that is not a pytree or has
        no such entry.

    See Also
    --------
    On : calls a layer with entries.

    Examples
    --------
    >>> from minipipe import Tensor, nn
    >>> bundle = {"x": Tensor([1.0]), "mask": Tensor([True]), "skip": Tensor([2.0])}
    >>> nn.Take("x")(bundle)
    Tensor([1.])
    >>> nn.Take(["x", "skip"])(bundle)
    {'x': Tensor([1.]), 'skip': Tensor([2.])}
    """

    def __init__(self, entries: Entry | Sequence[Entry]) -> None:
        self.entries = _listed("Take", entries)
        self.is_alone = isinstance(entries, str | int)

    def forward(self, bundle: Bundle) -> Bundle:
        """Return the entry, or a smaller pytree.

        Raises
        ------
        ArgumentError
            Codes ``type`` and ``name``.
        """
        taken = [_entry("Take", bundle, name) for name in self.entries]
        if self.is_alone:
            return taken[0]
        if isinstance(bundle, dict):
            return {str(name): item for name, item in zip(self.entries, taken)}
        return type(bundle)(taken)

    def describe(self) -> str:
        """Name the entries."""
        if self.is_alone:
            return repr(self.entries[0])
        return repr(self.entries)


def _listed(layer: str, entries: Any) -> list[Entry]:
    """Return entries as a list, after checking that they are names or positions."""
    names: list[Any] = []
    if isinstance(entries, str | int):
        names = [entries]
    elif isinstance(entries, Sequence):
        names = list(entries)
    if not names or not all(type(name) in (str, int) for name in names):
        raise ArgumentError(
            "type",
            f"{layer}: the entries are {entries!r}; expected a name or a position, or "
            "several of them: ('x', 'mask').",
        )
    return names


def _entry(layer: str, bundle: Any, name: Entry) -> Any:
    kind = type(bundle)
    if kind not in (tuple, list) and not isinstance(bundle, dict):
        raise ArgumentError(
            "type",
            f"{layer}: the entry {name!r} is read from a {kind.__name__}; expected a "
            "dict, tuple or list of tensors.",
        )
    try:
        return bundle[name]
    except (KeyError, IndexError, TypeError):  # TypeError: a name instead of a position
        is_named = isinstance(bundle, dict)
        if is_named:
            there = f"names are {', '.join(map(repr, bundle))}"
        else:
            there = f"positions are 0 to {len(bundle) - 1}"
        missing = f"there is no entry {name!r} in the {kind.__name__}"
        message = f"{layer}: {missing}; the {there}."
        raise ArgumentError("name", message) from None


def _replaced(bundle: Any, name: Any, item: Any) -> Any:
    """Return a copy of a pytree with an entry replaced; in a dict it may be new."""
    if isinstance(bundle, dict):
        return {**bundle, name: item}
    _entry("On", bundle, name)
    items = list(bundle)
    items[name] = item
    return type(bundle)(items)

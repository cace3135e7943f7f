"""Statements: lines of a program as templates, with placeholders for names.

Both programs of a stage consist of them: the compiled one, whose names are arrays that
exist already, and the program of ``minipipe export``, whose names are variables.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass
from functools import cached_property

PLACEHOLDER = re.compile(r"(?<!\{)\{([^{}]+)\}(?!\})")
"""A name in a template; braces in strings are doubled."""


@dataclass
class Statement:
    """A statement, perhaps of several lines.

    Attributes
    ----------
    text : str
        With names in braces: ``{v3}`` a variable. ``{layer:3}`` is the number of a
        layer; exported are also ``{w:2.bias}``, a parameter, and ``{d:2.bias}``, the
        name of its gradient.
    makes, changes : tuple of str
        The variables that it assigns, and those that it changes in place.
    layer : int or None
        The layer that has made the call.
    is_view : bool
        Whether it makes a view of one array.
    """

    text: str
    makes: tuple[str, ...] = ()
    changes: tuple[str, ...] = ()
    layer: int | None = None
    is_view: bool = False

    @cached_property
    def names(self) -> list[str]:
        """All names, in their order."""
        return PLACEHOLDER.findall(self.text)

    @cached_property
    def shape(self) -> str:
        """Equal for statements that differ only in their names."""
        return PLACEHOLDER.sub("{}", self.text)

    @property
    def reads(self) -> list[str]:
        """The variables that it reads, each once."""
        variables = dict.fromkeys(name for name in self.names if name[0] in "vxg")
        return [name for name in variables if name not in self.makes]

    @property
    def expression(self) -> str:
        """The right side of an assignment; empty for another statement."""
        return self.text.partition(" = ")[2]


def substituted(text: str, name_of: Callable[[str], str]) -> str:
    """Return a template with a replacement for each name.

    Examples
    --------
    >>> substituted("{v1} = {v0} + 1", str.upper)
    'V1 = V0 + 1'
    """
    return PLACEHOLDER.sub(lambda match: name_of(match[1]), text)


def renamed(text: str, names: Mapping[str, str]) -> str:
    """Return a template with other names.

    Examples
    --------
    >>> renamed("{v1} = {v0} + 1", {"v0": "x0", "v1": "t0"})
    '{t0} = {x0} + 1'
    """
    return substituted(text, lambda name: f"{{{names[name]}}}")


def as_it_is(name: str) -> str:
    """Return a name of a template, or the number of a layer."""
    return name.rpartition(":")[2]


def written(text: str, name_of: Callable[[str], str] = as_it_is) -> str:
    """Return the lines of a template.

    Examples
    --------
    >>> written("{v1} = uniform({v0}, {layer:3})")
    'v1 = uniform(v0, 3)'
    """
    return substituted(text, name_of).replace("{{", "{").replace("}}", "}")


def joined(names: Iterable[str]) -> str:
    """Return the template of names between commas.

    Examples
    --------
    >>> joined(["v0", "v1"])
    '{v0}, {v1}'
    """
    return ", ".join(f"{{{name}}}" for name in names)


def listed(names: Collection[str]) -> str:
    """Return the template of a tuple of names.

    Examples
    --------
    >>> listed(["v0"]), listed(["v0", "v1"])
    ('{v0},', '{v0}, {v1}')
    """
    return joined(names) + "," * (len(names) == 1)

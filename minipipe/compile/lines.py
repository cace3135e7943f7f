"""The lines of a trace, as data."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any, NamedTuple

import numpy as np


class Untraceable(Exception):
    """Raised for an operation that no line can express."""


class Form(NamedTuple):
    """A call in the forms in which a program can write it, with names in braces.

    Attributes
    ----------
    text : str
        The expression, or the statement of a change in place.
    into : str or None
        The call that writes its result into ``{out}``, if NumPy can with equal bits.
    is_exact : bool
        Whether every element of the result depends on the elements at its place alone,
        by functions that have one right result: then ``{out}`` may be an operand.
    """

    text: str
    into: str | None = None
    is_exact: bool = False

    @property
    def constants(self) -> list[str]:
        """The names of constants that it reads."""
        return re.findall(r"\{(c\d+)\}", self.text)


class Line(NamedTuple):
    """A line of a program, and the variables it makes, reads and changes in place.

    Attributes
    ----------
    form : Form
    left : str
        The names of the results, before the form.
    has_effect : bool
        Whether it counts although its results are never read: a check, a message.
    leaf : int or None
        The leaf to whose gradient the line adds the variable that it reads.
    layer : int or None
        In which layer of the outermost sequence it was noted.
    is_on_host : bool
        Whether it computes on the host for arrays elsewhere, before its section.
    """

    form: Form
    left: str
    makes: tuple[str, ...]
    reads: tuple[str, ...]
    changes: tuple[str, ...]
    has_effect: bool = False
    leaf: int | None = None
    layer: int | None = None
    is_on_host: bool = False

    @property
    def makes_one(self) -> bool:
        """Whether the result is an array, and no tuple of some."""
        return len(self.makes) == 1 and not self.left.endswith(", = ")

    def written(self, names: Mapping[str, str]) -> str:
        """Return the line with other names for its variables."""
        return (self.left + self.form.text).format_map(names)


class Variable(NamedTuple):
    """An array: how it lies in memory, and in whose.

    Attributes
    ----------
    root : str
        The variable that owns its memory: itself, unless it is a view.
    shape : tuple of int
    dtype : dtype
    strides : tuple of int
    is_number : bool
        Whether NumPy made a number, which nothing changes in place.
    is_fresh : bool
        Whether NumPy has allocated it, and nothing else is in its memory.
    """

    root: str
    shape: tuple[int, ...]
    dtype: np.dtype
    strides: tuple[int, ...]
    is_number: bool
    is_fresh: bool

    @property
    def layout(self) -> tuple[Any, ...]:
        """Its shape, dtype and strides: how it lies in its memory."""
        return self.shape, self.dtype, self.strides


class _AsNoted(dict[str, str]):
    """Names of variables as a trace has noted them."""

    def __missing__(self, name: str) -> str:
        return name


AS_NOTED: Mapping[str, str] = _AsNoted()

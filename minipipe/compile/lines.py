"""Lines of a trace as data: calls, variables, and how a call writes its result."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from itertools import count
from typing import Any, NamedTuple

import numpy as np

from minipipe.compile.dialect import new_strides


class Untraceable(Exception):
    """Raised for an operation that no line can express."""


class Form(NamedTuple):
    """A call in the forms in which a program can write it, with names in braces.

    Attributes
    ----------
    text : str
        The expression, or the statement of a change in place.
    into : str or None
        The call that writes its result into ``{out}``, if that has equal bits.
    is_exact : bool
        Whether the call is elementwise and rounded correctly: then ``{out}`` may be an
        operand.
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
        The layer of the outermost sequence that has made the call.
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

    @property
    def text(self) -> str:
        """The whole line, with names in braces."""
        return self.left + self.form.text


class Variable(NamedTuple):
    """The layout of an array, and the owner of its memory.

    Attributes
    ----------
    root : str
        The variable that owns its memory: itself, unless it is a view.
    shape : tuple of int
    dtype : dtype
    strides : tuple of int
    is_number : bool
        Whether it is a scalar of NumPy, which nothing changes in place.
    is_fresh : bool
        Whether NumPy has allocated it for this variable alone.
    """

    root: str
    shape: tuple[int, ...]
    dtype: np.dtype
    strides: tuple[int, ...]
    is_number: bool
    is_fresh: bool

    @property
    def layout(self) -> tuple[Any, ...]:
        """Its shape, dtype and strides."""
        return self.shape, self.dtype, self.strides

    @property
    def is_in_c_order(self) -> bool:
        """Whether it has the strides of a new array."""
        return self.strides == new_strides(self.shape, self.dtype.itemsize)


def roots_of(names: Iterable[str], variables: Mapping[str, Variable]) -> set[str]:
    """Return the owners of the memory of those names that are variables."""
    return {variables[name].root for name in names if name in variables}


def add_under(names: dict[str, Any], name: str, value: Any) -> str:
    """Add a value under a name, or a similar one if another value has it.

    Returns
    -------
    str
        The name that the value has now.

    Examples
    --------
    >>> names = {"sum": 1}
    >>> [add_under(names, "sum", value) for value in (2, 1, 2)]
    ['sum_2', 'sum', 'sum_2']
    """
    unique = name
    for number in count(2):
        if names.setdefault(unique, value) == value:
            break
        unique = f"{name}_{number}"
    return unique

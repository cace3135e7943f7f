"""Constants of stand-alone files: arrays that do not depend on a batch."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

import numpy as np

from minipipe.errors import ModelError


class Constants:
    """The constant arrays of a rank, and formulas of simple ones.

    Attributes
    ----------
    arrays : dict of str to array
        By name, the arrays without a formula.
    formulas : dict of str to str
        By name, the formulas of the other arrays.
    """

    def __init__(self) -> None:
        self._names: dict[Any, str] = {}
        self.formulas: dict[str, str] = {}
        self.arrays: dict[str, np.ndarray] = {}

    def name_of(self, value: Any) -> str:
        """Return the name of a constant.

        Raises
        ------
        ModelError
            Code ``unsupported``: anything but an array, a number or a dtype.
        """
        if isinstance(value, np.dtype):
            return f"np.dtype({value.name!r})"
        if isinstance(value, float):
            return f"float({str(value)!r})"
        if not isinstance(value, np.ndarray | np.generic):
            name = type(value).__name__
            message = (
                f"A stage computes with a {name}; a stand-alone file has only NumPy."
            )
            advice = "Export a model without such a layer."
            raise ModelError("unsupported", f"{message} {advice}")
        array = np.asarray(value)
        key = type(value), array.dtype, array.shape, array.strides, array.tobytes()
        if key in self._names:
            return self._names[key]
        base, formula = _formula(value, array)
        number = sum(name.startswith(base) for name in self._names.values())
        name = self._names[key] = f"{base}{number or ''}"
        if formula:
            self.formulas[name] = formula
        else:
            self.arrays[name] = array
        return name

    def lines(self, source: str) -> Iterator[str]:
        """Yield the lines that define the constants of a source."""
        used = {*re.findall(r"(?<![.\w])\w+", source)}
        for name, formula in self.formulas.items():
            if name in used:
                yield f"{name} = {formula}"
        for name in self.arrays:
            yield f'{name} = saved["{name}"]'


def _formula(value: Any, array: np.ndarray) -> tuple[str, str]:
    """Return the prefix of a name, and a formula of equal bits; empty without one."""
    no_formula = "constant", ""
    dtype = array.dtype.name
    if array.dtype.kind not in "fiub" or not array.flags.c_contiguous or not array.size:
        return no_formula
    first = array.flat[0].item()
    if array.dtype.kind == "i" and np.array_equal(array, np.arange(array.size)):
        arguments = str(array.size)
        if dtype != "int64":
            arguments += f', dtype="{dtype}"'
        return "numbers", f"np.arange({arguments})"
    is_uniform = array.tobytes() == np.full(array.shape, first, array.dtype).tobytes()
    if not is_uniform or not np.isfinite(first):
        return no_formula
    if array.ndim == 0 and isinstance(value, np.generic):
        return "number", f"np.{dtype}({first!r})"
    if array.ndim == 0:
        return "number", f'np.array({first!r}, "{dtype}")'
    shape: Any = array.shape
    if array.ndim == 1:
        shape = array.size
    if first in (0, 1) and not np.signbit(first):
        name = ("zeros", "ones")[int(first)]
        return name, f'np.{name}({shape}, "{dtype}")'
    return "filled", f'np.full({shape}, {first!r}, "{dtype}")'

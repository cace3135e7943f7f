"""How a kernel moves over series or images: its windows, what they meet, and what can be wrong with them.

Convolutions and pooling share it. Series have the shape (n, channels, length), images (n, channels, height, width).
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from numbers import Integral
from typing import Any

from minipipe.autograd import backend
from minipipe.autograd.backend import Array, array_module
from minipipe.errors import TensorError

Shape = tuple[int, ...]
AXES = {1: ("length",), 2: ("height", "width")}


def per_axis(name: str, what: str, value: Any, num_axes: int, smallest: int = 1, or_else: str = "") -> Shape:
    """Return a setting for each axis, from one whole number for all of them or a tuple with one for each.

    Raises
    ------
    TensorError
        Code ``range``, which begins with ``name``, the operation or layer; ``or_else`` says what else is allowed.
    """
    values = tuple(value) if isinstance(value, tuple | list) else (value,) * num_axes
    if len(values) != num_axes or not all(isinstance(each, Integral) and int(each) >= smallest for each in values):
        numbers = "a whole number" if num_axes == 1 else f"a whole number or {num_axes} of them"
        raise TensorError("range", f"{name}: {what} is {value!r}; expected {numbers}, at least {smallest}{or_else}.")
    return tuple(map(int, values))


@dataclass(frozen=True)
class Windows:
    """How a kernel moves over an input: all but the numbers in both, so that a vjp may keep it."""

    shape: Shape  # (n, c, *axes) of the input
    kernel: Shape
    strides: Shape
    paddings: tuple[tuple[int, int], ...]  # zeros before and after, along each axis
    dilations: Shape  # from one element of the kernel to the next

    @classmethod
    def checked(cls, name: str, *settings: Any) -> Windows:
        """Return the windows of an operation, once it is clear that the kernel fits.

        Raises
        ------
        TensorError
            Code ``shape``.
        """
        windows = cls(*settings)
        if any(not 1 <= extent <= length for extent, length in zip(windows.extent, windows.padded[2:])):
            dilated = f", {windows.extent} dilated," if set(windows.dilations) != {1} else ""
            raise TensorError(
                "shape",
                f"{name}: a kernel of size {windows.kernel}{dilated} does not fit into the input of shape "
                f"{windows.shape}, whose last axes are {windows.padded[2:]} long with padding. Take a smaller kernel "
                "(at least 1), a larger input or more padding.",
            )
        return windows

    @cached_property
    def extent(self) -> Shape:
        """How many elements the kernel spans along each axis; below 1 for an empty one."""
        return tuple(step * (size - 1) + 1 for size, step in zip(self.kernel, self.dilations))

    @cached_property
    def padded(self) -> Shape:
        """The shape of the input with padding."""
        return *self.shape[:2], *(length + sum(zeros) for length, zeros in zip(self.shape[2:], self.paddings))

    @cached_property
    def number(self) -> Shape:
        """How many windows there are along each axis."""
        each = zip(self.padded[2:], self.extent, self.strides)
        return tuple((length - extent) // stride + 1 for length, extent, stride in each)

    @cached_property
    def inside(self) -> tuple[Any, ...]:
        """The index of the input within the padded one."""
        each = zip(self.shape[2:], self.paddings)
        return ..., *(slice(before, before + length) for length, (before, _) in each)

    def places(self) -> Iterator[tuple[Any, ...]]:
        """Yield, for each element of the kernel, the index of what it meets in all windows at once: (..., *number).

        A kernel has few elements and an image many windows, so a loop over these is as fast as NumPy's
        ``sliding_window_view``, and works with every array module.
        """
        for offsets in itertools.product(*map(range, self.kernel)):
            each = zip(offsets, self.dilations, self.strides, self.number)
            starts = ((offset * step, stride, count) for offset, step, stride, count in each)
            yield ..., *(slice(start, start + stride * (count - 1) + 1, stride) for start, stride, count in starts)

    def columns(self, x: Array) -> Array:
        """Return each window of the input as a column: (c * size of the kernel, n * number of windows)."""
        xp, (n, c, *_), size = array_module(x), self.shape, backend.prod(self.kernel)
        padded = swapped(x)
        if any(map(any, self.paddings)):
            padded = xp.zeros((c, n, *self.padded[2:]), dtype=x.dtype)
            padded[self.inside] = swapped(x)
        result = xp.empty((c, size, n, *self.number), dtype=x.dtype)
        for k, place in enumerate(self.places()):
            result[:, k, ...] = padded[place]
        return backend.reshape(result, (c * size, n * backend.prod(self.number)))

    def add_columns(self, columns: Array) -> Array:
        """Add each column to the window that it came from, and return the sums in the shape of the input."""
        xp, (n, c, *_) = array_module(columns), self.shape
        parts = backend.reshape(columns, (c, backend.prod(self.kernel), n, *self.number))
        padded = xp.zeros((c, n, *self.padded[2:]), dtype=columns.dtype)
        for k, place in enumerate(self.places()):
            padded[place] += parts[:, k, ...]
        return swapped(padded[self.inside])


def swapped(x: Array) -> Array:
    """Return the array with its first two axes exchanged, samples and channels."""
    return array_module(x).permute_dims(x, (1, 0, *range(2, len(x.shape))))

"""Kernels in CUDA C++: the sources of this folder, compiled on demand, and launched."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cache, partial
from pathlib import Path
from typing import Any

import numpy as np

from minipipe.core.autograd import backend
from minipipe.core.autograd.backend import Array, Shape, array_module
from minipipe.errors import TensorError

Launch = Callable[[tuple[int, ...], tuple[int, ...], tuple[Any, ...]], Any]
"""Launches a kernel: takes the blocks of the grid, the threads of a block, and the
arguments: arrays, integers (``long long`` in C++) and floats (``double``)."""
Load = Callable[[str], Callable[[str], Launch]]
"""Compiles a source, and returns its kernels by name."""

Kernel = Any
"""A function of :func:`backend.kernel`."""

WARP = 32
MOST_THREADS = 1024
REALS = {"float32": "float", "float64": "double"}
_INTEGERS = {np.dtype(name) for name in ("bool", "int64", "uint64")}
OPTIONS = ("-std=c++14", "--fmad=false")
"""Without fused multiply-add a kernel rounds as NumPy does."""


def _load_with_cupy(source: str) -> Callable[[str], Launch]:
    import cupy

    return cupy.RawModule(code=source, options=OPTIONS).get_function


LOADERS: dict[str, Load] = {"cupy": _load_with_cupy}
"""By the name of an array module; tests add one that runs kernels on the CPU."""


def source(file: str, real: str) -> str:
    """Return the source of a file, after the part that all have in common, for one type
    of real numbers, ``"float"`` or ``"double"``.
    """
    folder = Path(__file__).parent
    parts = [(folder / f"{name}.cu").read_text() for name in ("common", file)]
    return "\n".join([f"typedef {real} real;", *parts])


@cache
def _functions(module: str, file: str, real: str) -> Callable[[str], Launch]:
    """Compile a source, once per process."""
    return LOADERS[module](source(file, real))


@cache
def _function(module: str, file: str, name: str, real: str) -> Launch:
    return _functions(module, file, real)(name)


@cache
def real_of(dtype: Any) -> str | None:
    """Return the type of real numbers in C++ for a dtype, or None: halves and whole
    numbers have no kernels.
    """
    return REALS.get(backend.numpy_dtype(dtype).name)


def launch(
    kernel: str, like: Array, blocks: int, threads: int, *arguments: Any
) -> None:
    """Launch a kernel on the device of an array.

    Parameters
    ----------
    kernel : str
        The file and the name: ``"activations.gelu_erf"``.
    like : array
        Its module runs the kernel; its dtype is ``real`` in the source.
    blocks, threads : int
        Blocks of the grid, which may be 0, and threads of a block.
    *arguments : array, int or float
        Those of the kernel. Arrays are in C order; real ones have the dtype of ``like``.

    Raises
    ------
    TensorError
        Code ``dtype``, for real numbers that the kernel would read as others.
    """
    real = real_of(like.dtype)
    dtypes = {each.dtype for each in arguments if hasattr(each, "dtype")}
    others = dtypes - _INTEGERS - {like.dtype}
    if real is None or others:
        given = ", ".join(map(str, {like.dtype, *others}))
        expected = "float32 alone, or float64"
        raise TensorError("dtype", f"{kernel} is given {given}; expected {expected}.")
    if blocks == 0:
        return  # CUDA refuses an empty grid
    file, name = kernel.split(".")
    module = array_module(like).__name__
    _function(module, file, name, real)((blocks,), (threads,), arguments)


Grid = Callable[[Array], tuple[int, int, tuple[int, ...]]]
"""From the first argument of a kernel to the blocks, the threads of a block, and the
lengths that are its last arguments."""


def _elements(first: Array, per_thread: int = 1) -> tuple[int, int, tuple[int, ...]]:
    return -(-first.size // (256 * per_thread)), 256, (first.size,)


def _rows(first: Array) -> tuple[int, int, tuple[int, ...]]:
    width = first.shape[-1]
    threads = min(-(-width // WARP) * WARP, MOST_THREADS)
    return first.size // max(width, 1), threads, (width,)


def _columns(first: Array) -> tuple[int, int, tuple[int, ...]]:
    height, width = first.shape[-2:]
    blocks = backend.prod(first.shape[:-2]) * -(-width // WARP)
    threads = min(max(height, 1) * WARP, MOST_THREADS)
    return blocks, threads, (height, width)


def _over(grid: Grid, kernel: str, num_outputs: int, **marks: Any) -> Kernel:
    """Return a function of :func:`backend.kernel` that launches a kernel."""

    def run(first: Array, *others: Any) -> None:
        blocks, threads, lengths = grid(first)
        launch(kernel, first, blocks, threads, first, *others, *lengths)

    run.__name__ = kernel.rpartition(".")[2]  # in the source of a compiled step
    return backend.kernel(run, num_outputs, **marks)


over_elements = partial(_over, _elements)
"""A thread for each element of the first argument."""
over_eights = partial(_over, partial(_elements, per_thread=8))
"""A thread for eight elements."""
over_rows = partial(_over, _rows)
"""A block for each row of the first argument. Its threads depend on the width alone, and
so do the bits of its sums."""
over_columns = partial(_over, _columns)
"""A block for 32 columns of the matrices in the last two axes of the first argument."""


def computed(kernel: Kernel, *given: Any, shapes: Sequence[Shape] = ()) -> Any:
    """Return the output of a kernel, or all of them.

    Parameters
    ----------
    kernel : function
        Of :func:`backend.kernel`.
    *given : array, int or float
        Its inputs, which are made contiguous.
    shapes : sequence of Shape, optional
        The shapes of its outputs, by default the one of the first input, whose dtype
        they have.
    """
    first = given[0]
    empty = array_module(first).empty
    shapes = shapes or [first.shape] * kernel.num_outputs
    outputs = [empty(shape, dtype=first.dtype) for shape in shapes]
    inputs = [backend.contiguous(x) if backend.is_array(x) else x for x in given]
    kernel(*inputs, *outputs)
    return tuple(outputs) if outputs[1:] else outputs[0]

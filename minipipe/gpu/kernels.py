"""Kernels in CUDA C++: the sources of this folder, compiled on demand, and launched."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

from minipipe.core.autograd import backend
from minipipe.core.autograd.backend import Array, array_module

Launch = Callable[[tuple[int, ...], tuple[int, ...], tuple[Any, ...]], Any]
"""Launches a kernel: takes the blocks of the grid, the threads of a block, and the
arguments: arrays, integers (``long long`` in C++) and floats (``double``)."""
Load = Callable[[str], Callable[[str], Launch]]
"""Compiles a source, and returns its kernels by name."""

WARP = 32
MOST_THREADS = 1024
REALS = {"float32": "float", "float64": "double"}
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
        Those of the kernel. Arrays are in C order.
    """
    if blocks == 0:
        return  # CUDA refuses an empty grid
    file, name = kernel.split(".")
    module = array_module(like).__name__
    real = REALS.get(backend.numpy_dtype(like.dtype).name, "float")
    _function(module, file, name, real)((blocks,), (threads,), arguments)


def over_elements(
    kernel: str, num_outputs: int, per_thread: int = 1, **marks: Any
) -> Callable[..., None]:
    """Return a function that launches a kernel with one thread for each element of its
    first argument, or for several, whose number is the kernel's last argument.

    ``marks`` are as in :func:`backend.kernel`.
    """

    def run(first: Array, *others: Any) -> None:
        blocks = -(-first.size // (256 * per_thread))
        launch(kernel, first, blocks, 256, first, *others, first.size)

    return _named(run, kernel, num_outputs, **marks)


def over_rows(kernel: str, num_outputs: int) -> Callable[..., None]:
    """Return a function that launches a kernel with a block for each row.

    The rows belong to the first argument; their width is the kernel's last one. The
    threads of a block depend on the width alone, and so do the bits of its sums.
    """

    def run(first: Array, *others: Any) -> None:
        width = first.shape[-1]
        threads = min(-(-width // WARP) * WARP, MOST_THREADS)
        launch(kernel, first, first.size // width, threads, first, *others, width)

    return _named(run, kernel, num_outputs)


def over_columns(kernel: str, num_outputs: int) -> Callable[..., None]:
    """Return a function that launches a kernel with a block for each 32 columns.

    The first argument has matrices in its last two axes; their height and width are the
    kernel's last arguments.
    """

    def run(first: Array, *others: Any) -> None:
        height, width = first.shape[-2:]
        blocks = backend.prod(first.shape[:-2]) * -(-width // WARP)
        threads = min(max(height, 1) * WARP, MOST_THREADS)
        launch(kernel, first, blocks, threads, first, *others, height, width)

    return _named(run, kernel, num_outputs)


def _named(
    run: Callable[..., None], kernel: str, num_outputs: int, **marks: Any
) -> Callable[..., None]:
    run.__name__ = kernel.rpartition(".")[2]  # in the source of a compiled step
    return backend.kernel(run, num_outputs, **marks)

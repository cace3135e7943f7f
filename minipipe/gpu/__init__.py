"""Kernels in CUDA C++, in place of many calls of an array module, and products; see
README.md.
"""

from threading import Lock
from types import ModuleType

from minipipe.gpu import entries, products
from minipipe.gpu.precision import allow_tf32, allows_tf32
from minipipe.hints import names_of

__all__ = ["allow_tf32", "allows_tf32"]
__getattr__ = names_of(__name__, __all__)

_lock = Lock()  # thread ranks choose their GPUs at the same time


def install(xp: ModuleType) -> None:
    """Let kernels and cuBLAS compute arrays of CuPy from now on."""
    with _lock:
        entries.install(xp)
        products.install(xp)

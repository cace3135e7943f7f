"""The precision of products on a GPU."""

from minipipe.gpu.precision import allow_tf32, allows_tf32
from minipipe.hints import names_of

__all__ = ["allow_tf32", "allows_tf32"]
__getattr__ = names_of(__name__, __all__)

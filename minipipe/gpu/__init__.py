"""What a GPU computes in its own way: kernels in CUDA C++, in place of many calls of an
array module, and products; see README.md.

``install`` gives operations their entries for a module.
"""

from minipipe.gpu.entries import install
from minipipe.gpu.precision import allow_tf32, allows_tf32
from minipipe.hints import names_of

__all__ = ["allow_tf32", "allows_tf32", "install"]
__getattr__ = names_of(__name__, __all__)

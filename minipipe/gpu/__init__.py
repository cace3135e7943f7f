"""Kernels for a GPU, in CUDA C++, in place of many calls; see README.md.

``install`` gives operations their entries for a module.
"""

from minipipe.gpu.entries import install

__all__ = ["install"]

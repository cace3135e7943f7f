"""What this machine computes and talks with, for `minipipe info` and for reports of bugs."""

from __future__ import annotations

import importlib.util
import os
import subprocess
import sys
from importlib.metadata import PackageNotFoundError, version

from threadpoolctl import threadpool_info

__all__ = ["blas_library", "mpi_library", "num_cores", "package_version"]

# In a process of its own: an MPI that is broken, or of another kind than mpi4py's, may end the one that loads it.
_ASK_MPI = """
import mpi4py
mpi4py.rc.initialize = False
from mpi4py import MPI
print(MPI.Get_library_version().splitlines()[0])
"""


def package_version(name: str) -> str | None:
    """Return the version of an installed package, or None."""
    try:
        return version(name)
    except PackageNotFoundError:
        return None


def mpi_library() -> str | None:
    """Return the MPI library that mpi4py loads, what is wrong with it, or None where there is no mpi4py."""
    if importlib.util.find_spec("mpi4py") is None:
        return None
    try:
        asked = subprocess.run(
            [sys.executable, "-c", _ASK_MPI], capture_output=True, text=True, timeout=60, check=False
        )
    except subprocess.TimeoutExpired:
        return "mpi4py does not answer within 60 s"
    if asked.returncode:
        reason = (asked.stderr.strip().splitlines() or ["it says nothing"])[-1]
        return f"mpi4py cannot load an MPI library: {reason}"
    return " ".join(asked.stdout.replace("\t", " ").split())


def blas_library() -> str:
    """Return the BLAS that NumPy loaded, with the number of threads that it would use outside a group."""
    found = [library for library in threadpool_info() if library["user_api"] == "blas"]
    return ", ".join(f"{b['internal_api']} {b['version']}, {b['num_threads']} threads" for b in found) or "unknown"


def num_cores() -> int:
    """Return how many cores this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1

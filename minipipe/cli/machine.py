"""What this machine computes and talks with, for `minipipe info` and for reports of bugs."""

from __future__ import annotations

import importlib.util
import os
import subprocess
import sys
from importlib.metadata import PackageNotFoundError, version

from threadpoolctl import threadpool_info

# In a process of its own: an MPI that is broken, or of another kind than mpi4py's, may end the one that loads it.
_ASK_MPI = """
import mpi4py
mpi4py.rc.initialize = False
from mpi4py import MPI
print(MPI.Get_library_version().splitlines()[0])
"""
_ASK_CUDA = """
from minipipe.comm.mpi import MPI, is_cuda_aware
MPI.Init()
print(is_cuda_aware())
MPI.Finalize()
"""

# What a launcher tells its ranks: a process that is asked is none of them, and waits for nobody.
_LAUNCHER = ("PMI", "MPI_LOCAL", "OMPI_", "PRTE_", "SLURM_")


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
    answer, error = _asked(_ASK_MPI)
    return (
        " ".join(answer.replace("\t", " ").split()) if error is None else f"mpi4py cannot load an MPI library: {error}"
    )


def gpu_messages() -> str:
    """Return which way arrays go from GPU to GPU between MPI ranks; :mod:`minipipe.comm.mpi` chooses it at start."""
    if importlib.util.find_spec("mpi4py") is None:
        return "only within one process: no mpi4py"
    answer, error = _asked(_ASK_CUDA)
    if error is not None:
        return f"unknown: {error}"
    if answer.strip() == "True":
        return "device to device: this MPI is CUDA-aware"
    return "through pinned host memory: this MPI is not CUDA-aware"


def _asked(program: str) -> tuple[str, str | None]:
    """Run a program in a process of its own; return what it printed, and what went wrong."""
    try:
        asked = subprocess.run(
            [sys.executable, "-c", program],
            env={name: value for name, value in os.environ.items() if not name.startswith(_LAUNCHER)},
            capture_output=True,
            text=True,
            timeout=60,
            check=False,
        )
    except subprocess.TimeoutExpired:
        return "", "it does not answer within 60 s"
    if asked.returncode:
        return "", (asked.stderr.strip().splitlines() or ["it says nothing"])[-1]
    return asked.stdout, None


def blas_library() -> str:
    """Return the BLAS that NumPy loaded, with the number of threads that it would use outside a group."""
    found = [library for library in threadpool_info() if library["user_api"] == "blas"]
    return ", ".join(f"{b['internal_api']} {b['version']}, {b['num_threads']} threads" for b in found) or "unknown"


def num_cores() -> int:
    """Return how many cores this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1

"""``minipipe info``: the libraries and devices of this machine."""

from __future__ import annotations

import argparse
import importlib.util
import os
import platform
import subprocess
import sys
from importlib.metadata import PackageNotFoundError, version
from typing import Any

from threadpoolctl import threadpool_info

from minipipe._lazy import __version__
from minipipe.autograd.devices import gpu_description
from minipipe.cli.output import ExitStatus, answer
from minipipe.comm.job.host import num_cores
from minipipe.errors import counted

# Run in a separate process: a broken MPI, or another one than mpi4py was built for, may
# kill the process that loads it.
_ASK_MPI = """
import mpi4py
mpi4py.rc.initialize = False
from mpi4py import MPI
print(" ".join(MPI.Get_library_version().splitlines()[0].split()), flush=True)
from minipipe.core.comm.mpi import is_cuda_aware
MPI.Init()
print(is_cuda_aware())
MPI.Finalize()
"""

# Makes the process end with its caller.
_END_WITH_CALLER = (
    "from minipipe.comm.job.system_calls import end_with\nend_with({caller})\n"
)

# Variables of a launcher: the process that loads MPI here is not a rank, and must not
# wait for others.
_LAUNCHER = ("PMI", "MPI_LOCAL", "OMPI_", "PRTE_", "SLURM_")


def add_options(parser: argparse.ArgumentParser) -> None:
    """Declare the options: there are none."""


def run(options: argparse.Namespace) -> ExitStatus:
    """Print the libraries and devices with which this machine computes and
    communicates.
    """
    library, messages = _about_mpi()
    remedy = "run pip install -e '.[mpi]' in minipipe's folder, or use thread ranks"
    system = f"{platform.system()} {platform.machine()}"
    facts = {
        "minipipe": __version__,
        "python": f"{platform.python_version()} on {system}",
        "numpy": _package_version("numpy"),
        "blas": _blas_library(),
        "cores": num_cores(),
        "mpi4py": _package_version("mpi4py") or f"not installed: {remedy}",
        "mpi": library,
        "gpu": gpu_description(),
        "gpu messages": messages,
    }
    table = "\n".join(f"{name:12} {value}" for name, value in facts.items())
    note = "Each rank computes with one BLAS thread while its process group is open."
    return answer(options, facts, f"{table}\n\n{note}")


def _package_version(name: str) -> str | None:
    """Return the version of an installed package, or None."""
    try:
        return version(name)
    except PackageNotFoundError:
        return None


def _about_mpi() -> tuple[str, str]:
    """Return the MPI library that mpi4py loads, and the path of arrays between GPUs of
    its ranks.

    :mod:`minipipe.core.comm.mpi` chooses the path at start. If MPI fails, the error is
    returned instead of the missing text.
    """
    if importlib.util.find_spec("mpi4py") is None:
        return "not installed", "within one process only: mpi4py is not installed"
    output, error = _output_of(_ASK_MPI)
    failed = f"mpi4py cannot load an MPI library: {error}"
    library, *is_cuda_aware = output.splitlines() or [failed]
    if error is not None:
        return library, f"unknown: {error}"
    if is_cuda_aware == ["True"]:
        return library, "device to device: this MPI is CUDA-aware"
    return library, "through pinned host memory: this MPI is not CUDA-aware"


def _output_of(program: str) -> tuple[str, str | None]:
    """Run a program in a separate process; return its output and its error, if it
    fails.
    """
    command = [
        sys.executable,
        "-c",
        _END_WITH_CALLER.format(caller=os.getpid()) + program,
    ]
    environment = dict(os.environ)
    for name in os.environ:
        if name.startswith(_LAUNCHER):
            del environment[name]
    limits: dict[str, Any] = {"timeout": 60, "check": False}
    try:
        process = subprocess.run(
            command, env=environment, capture_output=True, text=True, **limits
        )
    except subprocess.TimeoutExpired:
        return "", "no answer within 60 s"
    if not process.returncode:
        return process.stdout, None
    message = process.stderr.strip() or "it failed without a message"
    return process.stdout, message.splitlines()[-1]


def _blas_library() -> str:
    """Return the BLAS that NumPy loaded, with its number of threads outside a group."""
    libraries = []
    for library in threadpool_info():
        if library["user_api"] == "blas":
            threads = counted(library["num_threads"], "thread")
            libraries.append(
                f"{library['internal_api']} {library['version']}, {threads}"
            )
    return ", ".join(libraries) or "unknown"

"""``minipipe info``: the libraries and devices of this machine."""

from __future__ import annotations

import argparse
import json
import platform

from minipipe._lazy import __version__
from minipipe.autograd import backend
from minipipe.cli.exit_status import ExitStatus
from minipipe.cli.machine import blas_library, gpu_messages, mpi_library, num_cores, package_version


def add_options(parser: argparse.ArgumentParser) -> None:
    """Declare the options: there are none."""


def run(options: argparse.Namespace) -> ExitStatus:
    """Print the libraries and devices with which this machine computes and communicates."""
    missing = "not installed"
    facts = {
        "minipipe": __version__,
        "python": f"{platform.python_version()} on {platform.system()} {platform.machine()}",
        "numpy": package_version("numpy"),
        "blas": blas_library(),
        "cores": num_cores(),
        "mpi4py": package_version("mpi4py") or f"{missing}: pip install 'minipipe-mpi[mpi]', or thread ranks",
        "mpi": mpi_library() or missing,
        "gpu": backend.gpu_description(),
        "gpu messages": gpu_messages(),
    }
    if options.json:
        print(json.dumps(facts))
    else:
        print("\n".join(f"{name:12} {value}" for name, value in facts.items()))
        print("\nA rank computes with one BLAS thread while its group is open.")
    return ExitStatus.YES

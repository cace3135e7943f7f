"""What launchers tell a process of its job: the names of the variables that mpirun and srun set, in one place.

The witness (``witness.py``) reads those of other processes. It runs as a script and imports nothing, so it has its own
list of the variables of the rank; a test compares them.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Mapping, Sequence
from contextlib import suppress

SIZE = ("PMI_SIZE", "OMPI_COMM_WORLD_SIZE", "SLURM_STEP_NUM_TASKS")
"""How many ranks there are. Not SLURM_NTASKS: a shell inside ``salloc`` carries it, too."""
RANK = ("PMI_RANK", "OMPI_COMM_WORLD_RANK", "PMIX_RANK", "SLURM_PROCID")
"""Which of them this is."""
LOCAL_SIZE = ("MPI_LOCALNRANKS", "OMPI_COMM_WORLD_LOCAL_SIZE")
"""How many ranks this host has."""
LOCAL_RANK = ("OMPI_COMM_WORLD_LOCAL_RANK", "MPI_LOCALRANKID", "MV2_COMM_WORLD_LOCAL_RANK", "SLURM_LOCALID")
"""Which of them this is."""


def told(environment: Mapping[str, str], names: Sequence[str], otherwise: int = 0) -> int:
    """Return the number that the launcher tells under one of these names, the first that is set.

    Examples
    --------
    >>> told({"PMI_RANK": "3"}, RANK), told({}, RANK), told({}, LOCAL_SIZE, otherwise=1)
    (3, 0, 1)
    """
    return next((int(environment[name]) for name in names if environment.get(name, "").isdigit()), otherwise)


def num_ranks(environment: Mapping[str, str]) -> int | None:
    """Return how many ranks the launcher started, 1 when there was none, and None when it does not say.

    Examples
    --------
    >>> num_ranks({"PMI_SIZE": "4", "PMI_RANK": "0"}), num_ranks({})
    (4, 1)
    """
    size = max(told(environment, [name]) for name in SIZE)
    return size if size > 1 else None if "PMIX_RANK" in environment and not size else 1


def descriptor(environment: Mapping[str, str]) -> int | None:
    """Return the number of the socket to the launcher's process of this host, where this process has one.

    MPICH's and Slurm's launchers open one for each rank. A subprocess is told its number, too, and does not have it.
    """
    number = environment.get("PMI_FD", "")
    with suppress(OSError):
        if number.isdigit() and stat.S_ISSOCK(os.fstat(int(number)).st_mode):
            return int(number)
    return None

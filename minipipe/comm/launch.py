"""Starting a group: MPI where a launcher started several ranks, one rank otherwise."""

from __future__ import annotations

import faulthandler
import os
from collections.abc import Mapping

from minipipe.comm.host import keep_freed_memory, limit_blas_threads
from minipipe.comm.one_rank import OneRankGroup
from minipipe.comm.process_group import ProcessGroup
from minipipe.comm.request import DEFAULT_TIMEOUT
from minipipe.errors import LaunchError

# Set by mpirun or srun in each rank. Not SLURM_PROCID: a shell inside `salloc` carries it, too.
_SIZE_VARIABLES = ("PMI_SIZE", "OMPI_COMM_WORLD_SIZE", "SLURM_STEP_NUM_TASKS")


def launched_ranks(environment: Mapping[str, str]) -> int | None:
    """Return how many ranks the launcher started, 1 when there was none, and None when it does not say.

    Examples
    --------
    >>> launched_ranks({"PMI_SIZE": "4", "PMI_RANK": "0"}), launched_ranks({})
    (4, 1)
    """
    sizes = [int(environment[name]) for name in _SIZE_VARIABLES if environment.get(name, "").isdigit()]
    if sizes and max(sizes) > 1:
        return max(sizes)
    return None if "PMIX_RANK" in environment and not sizes else 1


def init_process_group(*, timeout: float = DEFAULT_TIMEOUT, blas_threads: int = 1) -> ProcessGroup:
    """Return this process' rank: of an MPI job when started by mpirun or srun, otherwise the only one.

    Collective. From here until the group closes, matrix products use ``blas_threads`` threads. Use it as a context
    manager, or without: either way an exception or ``sys.exit(n)`` on one rank ends every rank, with n.

    Parameters
    ----------
    timeout : float
        Seconds that a rank waits for another before it gives up and says what it waited for.
    blas_threads : int
        The same on every rank. Runs with another number may differ in the last bits.

    Returns
    -------
    ProcessGroup

    Raises
    ------
    LaunchError
        Code ``no-mpi4py``: several ranks were started, but mpi4py is missing; they would all run alone. Code
        ``wrong-mpi``: mpi4py belongs to another MPI than the launcher.

    Examples
    --------
    >>> with init_process_group() as group:
    ...     print(group.rank, group.size)
    0 1
    """
    started = launched_ranks(os.environ)
    group: ProcessGroup = OneRankGroup(timeout) if started == 1 else _mpi_group(started, timeout)
    keep_freed_memory()
    group._resources.enter_context(limit_blas_threads(blas_threads))
    return group


def _mpi_group(started: int | None, timeout: float) -> ProcessGroup:
    several = f"{started} ranks" if started else "several ranks"
    # Importing MPI starts it. It waits without limit for ranks that died before, and Python cannot interrupt it.
    faulthandler.dump_traceback_later(timeout, exit=True)
    try:
        from minipipe.comm import mpi

        group = mpi.world_group(timeout)
    except ImportError as error:
        raise LaunchError(
            "no-mpi4py",
            f"A launcher started {several}, but mpi4py cannot be imported ({error}), so each would run alone. Install "
            "it from minipipe's folder: pip install -e '.[mpi]' (on a cluster, its MPI loaded: pip install mpi4py).",
        ) from None
    finally:
        faulthandler.cancel_dump_traceback_later()
    if started is not None and group.size != started:
        raise LaunchError(
            "wrong-mpi",
            f"A launcher started {several}, but mpi4py sees {group.size}: it belongs to another MPI than this mpirun. "
            "Use the mpirun of the same environment, or rebuild mpi4py: pip install --no-binary mpi4py mpi4py.",
        )
    return group

"""The specification of a job, and the command that starts it."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from tempfile import NamedTemporaryFile
from typing import NamedTuple

from minipipe.cli.supervision.hosts import Host

RESTART = "MINIPIPE_RESTART"
"""The variable with the number of restarts so far."""
PROBE = ("ssh", "-o", "BatchMode=yes", "-o", "ConnectTimeout=4", "HOST", "true")
"""The default command that probes a host."""


class JobSpec(NamedTuple):
    """The program, ranks and hosts of a job.

    Attributes
    ----------
    program : tuple of str
        A Python script and its arguments.
    ranks : int
        Their number, with all hosts.
    launcher : tuple of str
        ``mpirun``, or a command with the same options ``-n`` and ``--hostfile``.
    hostfile : Path, optional
        None where the launcher chooses the hosts.
    hosts : tuple of Host
        Of the hostfile.
    min_ranks : int
        With fewer the job is not restarted.
    probe : tuple of str
        See :func:`minipipe.cli.supervision.hosts.silent_hosts`.

    Examples
    --------
    >>> job = JobSpec(("train.py",), 4, ("mpirun",), hosts=(Host("a", 2, "a:2"), Host("b", 2, "b:2")))
    >>> job.ranks_without([]), job.ranks_without(["b"])
    (4, 2)
    """

    program: tuple[str, ...]
    ranks: int
    launcher: tuple[str, ...]
    hostfile: Path | None = None
    hosts: tuple[Host, ...] = ()
    min_ranks: int = 1
    probe: tuple[str, ...] = PROBE

    def ranks_without(self, silent: Sequence[str]) -> int:
        """Return the number of ranks on the other hosts, at most ``ranks``."""
        if not silent:
            return self.ranks
        return min(self.ranks, sum(host.slots for host in self.hosts if host.name not in silent))

    @contextmanager
    def command(self, restart: int, silent: Sequence[str] = ()) -> Iterator[list[str]]:
        """Yield the command that starts the job on all hosts but the silent ones; it is valid inside this block."""
        launch = [*self.launcher, "-n", str(self.ranks_without(silent))]
        # By env, since a launcher may not pass variables to other hosts.
        program = ["env", f"{RESTART}={restart}", sys.executable, *self.program]
        if not silent:
            hosts = [] if self.hostfile is None else ["--hostfile", str(self.hostfile)]
            yield [*launch, *hosts, *program]
            return
        with NamedTemporaryFile("w", prefix="minipipe-hosts-") as file:
            file.writelines(f"{host.line}\n" for host in self.hosts if host.name not in silent)
            file.flush()
            yield [*launch, "--hostfile", file.name, *program]

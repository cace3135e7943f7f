"""The hosts of a job, its specification, and the command that starts it."""

from __future__ import annotations

import os
import re
import socket
import subprocess
import sys
import time
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from tempfile import NamedTemporaryFile
from typing import NamedTuple

from minipipe.comm.job.system_calls import end_with
from minipipe.errors import ArgumentError, quoted
from minipipe.io import parse_whole, read_text

RESTART = "MINIPIPE_RESTART"
"""The variable with the number of restarts so far."""
PROBE = ("ssh", "-o", "BatchMode=yes", "-o", "ConnectTimeout=4", "HOST", "true")
"""The default command that probes a host."""
_DEADLINE = 5.0  # seconds for a host to answer
_NAME = re.compile(r"[A-Za-z0-9_][\w.-]*(?=[\s:]|$)")  # never an option of ssh
# The forms of MPICH and of Open MPI; matched whole, so that no number is read from the
# beginning of 0x10 or 1.5.
_SLOTS = re.compile(r"\s*:\s*(\S*)|\s(?:.*\s)?slots\s*=\s*(\S*)")
_HERE = ("localhost", "127.0.0.1")


# -- hosts -----------------------------------------------------------------------------


class Host(NamedTuple):
    """A line of a hostfile.

    Attributes
    ----------
    name : str
    slots : int
        The number of ranks that it may run.
    line : str
        Its text.
    """

    name: str
    slots: int
    line: str


def parse_hosts(text: str, name: str) -> tuple[Host, ...]:
    """Return the hosts in the text of a hostfile, of MPICH, Intel MPI, Open MPI or PBS.

    A line has the name of a host, and optionally its slots, one by default. A host may
    have several lines.

    Parameters
    ----------
    text : str
    name : str
        The name of the file, for messages.

    Raises
    ------
    ArgumentError
        Code ``value``: a line that does not begin with the name of a host, or no host
        at all.

    Examples
    --------
    >>> for host in parse_hosts("# two\\nfirst:4\\nsecond slots=2\\n", "hosts"):
    ...     print(host.name, host.slots)
    first 4
    second 2
    """
    hosts = []
    for number, line in enumerate(text.splitlines(), 1):
        entry = line.partition("#")[0].strip()
        if not entry:
            continue
        where = f"Line {number} of {quoted(name, 200)}"
        match = _NAME.match(entry)
        if not match:
            problem = f"{where} is {quoted(entry)}; expected HOST"
            raise ArgumentError(f"{problem}, HOST:RANKS or HOST slots=RANKS.")
        hosts.append(Host(match[0], _slots(entry, match.end(), where), entry))
    if not hosts:
        problem = f"{quoted(name, 200)} names no host"
        raise ArgumentError(f"{problem}; expected a line for each: HOST:RANKS.")
    return tuple(hosts)


def _slots(entry: str, end_of_name: int, where: str) -> int:
    match = _SLOTS.match(entry, end_of_name)
    if not match:
        return 1
    try:
        return parse_whole(match[match.lastindex or 0])
    except ArgumentError as error:
        problem = f"{where}: {error.message}"
        raise ArgumentError(f"{problem}; expected the number of its ranks.") from None


def read_hosts(path: Path) -> tuple[Host, ...]:
    """Return the hosts in a hostfile; raise as :func:`parse_hosts` and
    :func:`minipipe.io.read_text`.
    """
    return parse_hosts(read_text(path), str(path))


def silent_hosts(names: Iterable[str], probe: Sequence[str]) -> dict[str, str]:
    """Return the hosts that do not answer, each with the reason.

    All are probed at once, and have 5 s. This host is not probed.

    Parameters
    ----------
    names : iterable of str
    probe : sequence of str
        A command that succeeds if the host in place of ``HOST`` answers. Its error
        messages go to stderr.

    Examples
    --------
    >>> silent_hosts(["a", "b", "localhost"], ["test", "HOST", "=", "b"])
    {'a': 'test: exit code 1'}
    """
    others = [name for name in dict.fromkeys(names) if not is_here(name)]
    processes = {name: _probing(name, probe) for name in others}
    end = time.monotonic() + _DEADLINE
    silent = {}
    for name, process in processes.items():
        try:
            code = process.wait(max(0.0, end - time.monotonic()))
            if code:
                silent[name] = f"{probe[0]}: exit code {code}"
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
            silent[name] = f"{probe[0]}: no answer within {_DEADLINE:g} s"
    return silent


def _probing(name: str, probe: Sequence[str]) -> subprocess.Popen:
    command = [word.replace("HOST", name) for word in probe]
    tied = partial(end_with, os.getpid())
    nothing = subprocess.DEVNULL
    return subprocess.Popen(command, stdin=nothing, stdout=nothing, preexec_fn=tied)


def is_here(name: str) -> bool:
    """Tell whether a host is this one, judging by its name alone."""
    here = socket.gethostname()
    return name in (*_HERE, here, here.partition(".")[0])


# -- jobs ------------------------------------------------------------------------------


class JobSpec(NamedTuple):
    """The program, ranks and hosts of a job.

    Attributes
    ----------
    program : tuple of str
        A Python script and its arguments.
    ranks : int
        The number of ranks, with all hosts.
    launcher : tuple of str
        ``mpirun``, or a command with the same options ``-n`` and ``--hostfile``.
    hostfile : Path, optional
        None if the launcher chooses the hosts.
    hosts : tuple of Host
        The hosts of the hostfile.
    min_ranks : int
        The job is not restarted with fewer ranks.
    probe : tuple of str
        See :func:`silent_hosts`.

    Examples
    --------
    >>> job = JobSpec(
    ...     ("train.py",),
    ...     4,
    ...     ("mpirun",),
    ...     hosts=(Host("a", 2, "a:2"), Host("b", 2, "b:2")),
    ... )
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
        return min(self.ranks, sum(host.slots for host in self._hosts_without(silent)))

    def _hosts_without(self, silent: Sequence[str]) -> list[Host]:
        return [host for host in self.hosts if host.name not in silent]

    @contextmanager
    def command(self, restart: int, silent: Sequence[str] = ()) -> Iterator[list[str]]:
        """Yield the command that starts the job on all hosts but the silent ones; it is
        valid inside this block.
        """
        launch = [*self.launcher, "-n", str(self.ranks_without(silent))]
        # Through env, because a launcher may not pass variables to other hosts.
        program = ["env", f"{RESTART}={restart}", sys.executable, *self.program]
        if not silent:
            if self.hostfile is not None:
                launch += ["--hostfile", str(self.hostfile)]
            yield [*launch, *program]
            return
        with NamedTemporaryFile("w", prefix="minipipe-hosts-") as file:
            file.writelines(f"{host.line}\n" for host in self._hosts_without(silent))
            file.flush()
            yield [*launch, "--hostfile", file.name, *program]

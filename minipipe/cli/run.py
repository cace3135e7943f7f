"""``minipipe run``: start an MPI job, and restart it when it fails."""

from __future__ import annotations

import argparse
import json
import os
import shlex
import shutil
import sys

from minipipe.cli.declaring import RANKS, adder, file_path
from minipipe.cli.output import complain, fields
from minipipe.cli.streams import put
from minipipe.cli.supervision.launching import PROBE, Host, JobSpec, is_here, read_hosts
from minipipe.cli.supervision.supervisor import supervise
from minipipe.comm.job.guard import become_supervisor
from minipipe.comm.job.host import find_mpirun
from minipipe.core.specs import COUNT, INDEX
from minipipe.errors import ArgumentError, LaunchError, quoted


def add_options(parser: argparse.ArgumentParser) -> None:
    """Declare the options; arguments after the script are passed to it."""
    add = adder(parser, "run")
    add("-n", spec=RANKS, dest="ranks")
    add("--restarts", spec=INDEX, default=0)
    add("--hostfile", type=file_path)
    add("--min-ranks", spec=COUNT)
    add("--probe", usual=shlex.join(PROBE))
    add("--launcher")
    add("script", nargs="?")
    add("arguments", nargs=argparse.REMAINDER)


def run(options: argparse.Namespace) -> int:
    """Run the job, and return its exit code for the shell."""
    if sys.platform == "win32":
        problem = "minipipe has no MPI on Windows; use minipipe.spawn"
        raise LaunchError("unavailable", f"{problem}, whose ranks are threads.")
    job = _job(options)
    code = become_supervisor()
    if code is not None:  # in the guarding process, after the supervisor has exited
        return code
    result = supervise(job, options.restarts, complain)
    if options.json:
        data = {"exit_code": result.code, **fields(result, "restarts", "ranks")}
        put(json.dumps(data))
    return result.code


def _job(options: argparse.Namespace) -> JobSpec:
    hosts: tuple[Host, ...] = ()
    if options.hostfile is not None:
        hosts = read_hosts(options.hostfile)
    of_hosts = {"--min-ranks": options.min_ranks, "--probe": options.probe}
    for option, value in of_hosts.items():
        if not hosts and value is not None:
            reason = f"{option} needs --hostfile FILE"
            raise ArgumentError(f"{reason}, which lists the hosts.")
    _check_script(options.script)
    ranks = options.ranks
    if ranks is None:
        if not hosts:
            reason = "-n is missing; expected the number of ranks before the script"
            raise ArgumentError(f"{reason}, as in -n 4 train.py.")
        ranks = sum(host.slots for host in hosts)
    min_ranks = options.min_ranks or 1
    # This also limits the number of slots in the hostfile.
    RANKS.check("-n", ranks)
    COUNT._replace(maximum=ranks).check("--min-ranks", min_ranks)
    probe: tuple[str, ...] = PROBE
    if options.probe is not None:
        probe = _split("--probe", options.probe)
    if not any("HOST" in word for word in probe):
        reason = f"--probe is {quoted(options.probe)}"
        how = "expected a command that contains HOST, in place of the host name"
        raise ArgumentError(f"{reason}; {how}.")
    if not all(is_here(host.name) for host in hosts):
        _check_installed(probe[0], "install it, or choose another command with --probe")
    program = (options.script, *options.arguments)
    return JobSpec(
        program,
        ranks,
        _launcher(options.launcher),
        options.hostfile,
        hosts,
        min_ranks,
        probe,
    )


def _check_script(script: str | None) -> None:
    if script is None:
        problem = "Expected a script after the options, as in"
        raise LaunchError("not-found", f"{problem}: minipipe run -n 4 train.py.")
    if not os.path.isfile(script):
        problem = f"There is no script {quoted(script, 200)}"
        raise LaunchError("not-found", f"{problem}; expected a Python file.")


def _split(option: str, command: str) -> tuple[str, ...]:
    try:
        parts = tuple(shlex.split(command))
    except ValueError as error:
        problem = f"{option} is {quoted(command)}"
        raise ArgumentError(f"{problem}; expected a command ({error}).") from None
    if not parts:
        raise ArgumentError(f"{option} is empty; expected a command.")
    return parts


def _launcher(chosen: str | None) -> tuple[str, ...]:
    """Return the launcher's command; ``mpirun`` is the one in this Python's
    environment.
    """
    command: tuple[str, ...] = ("mpirun",)
    if chosen is not None:
        command = _split("--launcher", chosen)
    if command[0] == "mpirun":
        command = (find_mpirun() or "mpirun", *command[1:])
    remedy = "install MPI with pip install -e '.[mpi]' (on a cluster, load its MPI)"
    _check_installed(command[0], f"{remedy}, or choose a command with --launcher")
    return command


def _check_installed(command: str, remedy: str) -> None:
    if shutil.which(command) is None:
        problem = f"There is no command {quoted(command, 200)} here"
        raise LaunchError("unavailable", f"{problem}; {remedy}.")

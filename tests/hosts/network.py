"""Several hosts on one machine: namespaces of the kernel, joined by Ethernet.

A host has a network, a name, process numbers and a /dev/shm of its own. A login host,
on which mpirun runs, starts the ranks of the others as it would with ssh. ::

    login   10.77.0.100 ---+
    node0   10.77.0.1   ---+--- switch: a bridge of the kernel, or relay.py where messages shall take longer
    node1   10.77.0.2   ---+

Nothing of it has a name outside the namespaces, and the kernel removes all, processes
included, when the process that made the hosts ends, however it ends. Needs root, and
``ip`` and ``tc`` of iproute2.
"""

import json
import os
import shutil
import signal
import subprocess
import sys
import time
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import NamedTuple

import pytest

from tests.launch import ROOT, Finished, environment, find_mpirun, needs_mpi

_TOOLS = ("ip", "tc", "nsenter", "unshare", "setpriv")
_MISSING = [tool for tool in _TOOLS if shutil.which(tool) is None]
_IS_ROOT = hasattr(os, "geteuid") and os.geteuid() == 0
# ends a command when the process that started it does
_WITH_US = ("setpriv", "--pdeathsig", "KILL")
# Ignoring CHLD, the first process of a host leaves no zombies.
_SETTLES = (
    "mount -t tmpfs tmpfs /dev/shm && hostname {} && trap '' CHLD && echo && exec "
    "sleep infinity"
)
_SSH = Path(__file__).with_name("ssh.sh")
# UCX prefers shared memory, which namespaces of networks do not divide: nothing would
# reach the wire.
OVER_TCP = {"UCX_TLS": "tcp,self", "UCX_NET_DEVICES": "eth0"}

needs_hosts = [
    needs_mpi,
    pytest.mark.skipif(not _IS_ROOT, reason="needs root, for namespaces of the kernel"),
    pytest.mark.skipif(
        bool(_MISSING),
        reason=f"needs {', '.join(_MISSING)}: apt-get install iproute2 util-linux",
    ),
]


class Process(NamedTuple):
    """A process of a host: its number as seen from here, and its command line."""

    pid: int
    command: str


class Host:
    """One host: a process that keeps its namespaces."""

    def __init__(self, name, address, stack):
        self.name, self.address = name, address
        keep = [
            *_WITH_US,
            "unshare",
            "--net",
            "--uts",
            "--mount",
            "--pid",
            "--mount-proc",
        ]
        keep += ["--fork", "--kill-child", "sh", "-c", _SETTLES.format(name)]
        keeper = stack.enter_context(
            subprocess.Popen(keep, stdout=subprocess.PIPE, cwd=ROOT)
        )
        stack.callback(keeper.kill)
        assert keeper.stdout.readline(), f"{name} did not start"
        self.pid = int(
            Path(f"/proc/{keeper.pid}/task/{keeper.pid}/children").read_text()
        )
        self._keepers = {keeper.pid, self.pid}
        self._network = os.readlink(f"/proc/{self.pid}/ns/net")

    def inside(self, *command, own_processes=True):
        """Return the command that runs ``command`` on this host."""
        spaces = ["--net", "--uts", *(["--pid", "--mount"] if own_processes else [])]
        return ["nsenter", "--target", str(self.pid), *spaces, "--", *map(str, command)]

    def run(self, *command):
        """Run a command on this host; return what it printed."""
        return subprocess.run(
            self.inside(*command), stdout=subprocess.PIPE, text=True, check=True
        ).stdout

    def processes(self, words=""):
        """Return the processes that live on this host and have the words in their
        command line.
        """
        found = []
        for path in Path("/proc").glob("[0-9]*"):
            with suppress(OSError):  # gone meanwhile
                if (
                    int(path.name) not in self._keepers
                    and os.readlink(path / "ns/net") == self._network
                ):
                    command = (
                        (path / "cmdline")
                        .read_bytes()
                        .replace(b"\0", b" ")
                        .decode(errors="replace")
                    )
                    found.append(Process(int(path.name), command))
        return [process for process in found if words in process.command]

    def bytes_sent(self):
        """Return the bytes that left this host over the wire."""
        return json.loads(self.run("ip", "-s", "-j", "link", "show", "eth0"))[0][
            "stats64"
        ]["tx"]["bytes"]

    def send_at(self, bits_per_second):
        """Let no more than this leave the host. What is sent faster waits in a queue,
        and is not lost.
        """
        limit = f"rate {bits_per_second} burst 256kb latency 2000ms".split()
        self.run("tc", "qdisc", "replace", "dev", "eth0", "root", "tbf", *limit)


class Network:
    """Hosts ``node0``, ``node1`` … and the login host, as a context manager.

    Parameters
    ----------
    num_hosts : int
    delay : float
        Seconds from one host to another, in addition to what the kernel takes.
    """

    def __init__(self, num_hosts, delay=0.0):
        self._num_hosts, self._delay = num_hosts, delay

    def __enter__(self):
        with ExitStack() as stack:
            self.hosts = [
                Host(f"node{i}", f"10.77.0.{i + 1}", stack)
                for i in range(self._num_hosts)
            ]
            self.login = Host("login", "10.77.0.100", stack)
            self._switch = Host("switch", None, stack)
            stack.callback(self._end_all)
            (self._relay if self._delay else self._bridge)(stack)
            for host in (*self.hosts, self.login):
                host.run("ip", "address", "add", f"{host.address}/24", "dev", "eth0")
                host.run("sh", "-c", "ip link set lo up && ip link set eth0 up")
            self._stack = stack.pop_all()
        return self

    def __exit__(self, *_):
        self._stack.close()

    def _bridge(self, _):
        self._switch.run(
            "sh", "-c", "ip link add bridge type bridge && ip link set bridge up"
        )
        # by its number here: the switch must see ours
        for host in (*self.hosts, self.login):
            enter = self._switch.inside(own_processes=False)
            pair = f"ip link add {host.name} type veth peer name eth0 netns {host.pid}"
            up = f"ip link set {host.name} master bridge up"
            subprocess.run([*enter, "sh", "-c", f"{pair} && {up}"], check=True)

    def _relay(self, stack):
        names = [host.name for host in (*self.hosts, self.login)]
        enter = self._switch.inside(own_processes=False)
        command = [
            *enter,
            "nice",
            "-n",
            "-20",
            sys.executable,
            "-m",
            "tests.hosts.relay",
            str(self._delay),
            *names,
        ]
        relay = stack.enter_context(
            subprocess.Popen(
                command, stdout=subprocess.PIPE, cwd=ROOT, env=environment()
            )
        )
        stack.callback(relay.kill)
        assert relay.stdout.readline(), "the relay did not start"
        for host in (*self.hosts, self.login):
            # frames as long as Ethernet has them
            move = f"ip link set {host.name} mtu 9000 netns {host.pid} name eth0"
            subprocess.run([*enter, *move.split()], check=True)

    def _end_all(self):
        for process in self.processes():
            with suppress(ProcessLookupError):
                os.kill(process.pid, signal.SIGKILL)

    def processes(self, words=""):
        """Return all processes of all hosts, mpirun included."""
        return [
            process
            for host in (*self.hosts, self.login)
            for process in host.processes(words)
        ]

    def _left(self):
        return [f"{process.pid} {process.command[:60]}" for process in self.processes()]

    def unplug(self, host):
        """Take the host's cable out of the switch. No packet says so to anybody."""
        self._switch.run("ip", "link", "set", host.name, "down")

    def put_in_order(self):
        """End what a failed test has left, put cables back, and forget who could not be
        reached.
        """
        self._end_all()
        for host in self.hosts:
            self._switch.run("ip", "link", "set", host.name, "up")
        for host in (*self.hosts, self.login):
            host.run("ip", "neighbour", "flush", "dev", "eth0")

    def start(self, num_ranks, *command, **changes):
        """Start ``python *command`` on ranks, in blocks of equal size, with mpirun on
        the login host.
        """
        hosts = ",".join(host.address for host in self.hosts)
        launch = [
            *self.launcher,
            "-hosts",
            hosts,
            "-ppn",
            str(num_ranks // self._num_hosts),
            "-n",
            str(num_ranks),
        ]
        return self.start_on_login(*launch, sys.executable, *command, **changes)

    @property
    def launcher(self):
        """The mpirun of the login host, with the options by which it reaches the
        others.
        """
        return [
            find_mpirun(),
            "-localhost",
            self.login.address,
            "-launcher",
            "ssh",
            "-launcher-exec",
            str(_SSH),
        ]

    def start_on_login(self, *command, **changes):
        """Start any command on the login host."""
        keepers = {
            "KEEPERS": " ".join(f"{host.address}={host.pid}" for host in self.hosts)
        }
        return subprocess.Popen(
            [*_WITH_US, *self.login.inside(*command, own_processes=False)],
            cwd=ROOT,
            env=environment(**OVER_TCP, **keepers, **changes),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )

    def finish(self, job, limit):
        """Wait until a job has ended and no process of it is left. One that outlasts
        the limit fails the test.
        """
        start = time.perf_counter()
        try:
            out, err = job.communicate(timeout=limit)
            while self.processes():
                assert time.perf_counter() < start + limit, (
                    f"left after {limit} s: {self._left()}"
                )
                time.sleep(0.01)
        finally:
            self._end_all()
            job.wait()
        return Finished(job.returncode, out, err, time.perf_counter() - start)

    def mpirun(self, num_ranks, *command, limit=60, **changes):
        """Run ``python *command`` on ranks and wait, as ``tests.launch.mpirun`` does on
        one host.
        """
        return self.finish(self.start(num_ranks, *command, **changes), limit)

"""Deeds: what a rank does when it fails, at a place of the training in ``training.py``.

Each deed is called with the rank's group (None before there is one) and the array at
hand: an activation in forward, a gradient in backward. What it returns takes the place
of the array. It writes the time just before it acts.

Nothing of minipipe is imported here: a fault may come before it.
"""

import multiprocessing
import os
import signal
import subprocess
import sys
import threading
import time
from collections import deque
from contextlib import suppress
from itertools import repeat
from pathlib import Path

# variables: marks every process of a job; the file of time stamps
JOB, STAMP = "FAULT_JOB", "FAULT_STAMP"


class Return(BaseException):
    """Makes the training return early, without an error."""


def stamp(peer=""):
    """Write the time of the fault for the bench, and the other rank that it
    concerns.
    """
    with open(os.environ[STAMP], "a") as file:
        file.write(f"{time.monotonic()} {peer}\n")


def processes_of(job):
    """Return the numbers of all processes of a job: of the launcher, of ranks and of
    whatever they started.
    """
    mark, found = f"{JOB}={job}\0".encode(), []
    for path in Path("/proc").glob("[0-9]*/environ"):
        try:
            # of one that has ended, and that nobody has asked for, it is empty
            if mark in path.read_bytes():
                found.append(int(path.parent.name))
        except OSError:  # gone meanwhile, or of another user
            continue
    return found


# -- a rank is killed ------------------------------------------------------------------


def _signal_myself(number):
    stamp()
    os.kill(os.getpid(), number)


def is_killed(group, array):
    _signal_myself(signal.SIGKILL)


def crashes(group, array):
    _signal_myself(signal.SIGSEGV)


def leaves_python(group, array):
    stamp()
    os._exit(3)


def _start_children():
    """Start what a data loader may: processes by fork, in a thread, nested, deaf, in a
    session of their own.
    """

    def fork(*before):
        if os.fork() == 0:
            for act in before:
                act()
            time.sleep(3600)

    fork()
    fork(fork)
    fork(os.setsid, fork)
    fork(lambda: signal.signal(signal.SIGTERM, signal.SIG_IGN))
    fork(lambda: os.kill(os.getpid(), signal.SIGSTOP))
    thread = threading.Thread(target=fork)
    thread.start()
    thread.join()
    for method in ("fork", "forkserver", "spawn"):
        multiprocessing.get_context(method).Process(
            target=time.sleep, args=(3600,), daemon=True
        ).start()
    subprocess.Popen(["sleep", "3600"], start_new_session=True)
    subprocess.Popen(["sleep", "3600"], close_fds=False)


def is_killed_with_children(group, array):
    _start_children()
    is_killed(group, array)


def raises_with_children(group, array):
    _start_children()
    raises(group, array)


def leaves_a_child_behind(group, array):
    stamp()
    if os.fork() == 0:
        time.sleep(3600)


# -- a rank raises or ends -------------------------------------------------------------


def raises(group, array):
    stamp()
    raise ValueError("boom")


def runs_out_of_memory(group, array):
    stamp()
    bytearray(1 << 62)


def is_interrupted(group, array):
    stamp()
    raise KeyboardInterrupt


def exits(group, array):
    stamp()
    sys.exit(7)


def raises_an_exit(group, array):
    stamp()
    raise SystemExit(7)


def aborts(group, array):
    stamp()
    group.abort(9)


def returns_early(group, array):
    stamp()
    raise Return


def forks_and_the_child_exits(group, array):
    stamp()
    child = os.fork()
    if child == 0:
        sys.exit(0)
    os.waitpid(child, 0)


def closes_the_socket_to_the_launcher(group, array):
    stamp()
    os.close(int(os.environ["PMI_FD"]))


def closes_all_files(group, array):
    stamp()
    os.closerange(3, 4096)


def does_nothing(group, array):
    stamp()


# -- a rank stops answering ------------------------------------------------------------


def stops(group, array):
    _signal_myself(signal.SIGSTOP)


def sleeps(group, array):
    stamp()
    time.sleep(3600)


def spins(group, array):
    stamp()
    while True:
        pass


def holds_the_lock(group, array):
    """Loop in C: no other thread of this interpreter runs, and no signal is handled."""
    stamp()
    deque(repeat(None), maxlen=0)


def naps(group, array):
    stamp()
    time.sleep(2.0)


def _outside(command):
    """Run a command of the shell that is no part of the job, and do not wait for it."""
    subprocess.Popen(
        ["sh", "-c", command], env={"PATH": os.environ["PATH"]}, start_new_session=True
    )


def stops_for_a_while(group, array):
    _outside(f"sleep 2; kill -CONT {os.getpid()}")
    _signal_myself(signal.SIGSTOP)


def stands_in_a_debugger(group, array):
    """A user who looks around for longer than the timeout, and continues."""
    import pdb  # it takes as long as everything else here

    stamp()
    keyboard, typed = os.pipe()
    seconds = 2 * float(os.environ["FAULT_TIMEOUT"])
    threading.Timer(seconds, os.write, (typed, b"continue\n")).start()
    with open(keyboard) as stdin, open(os.devnull, "w") as stdout:
        pdb.Pdb(stdin=stdin, stdout=stdout, nosigint=True).set_trace()


def suspends_the_job(group, array):
    """Stop every process of the job, the launcher too, for longer than the timeout: as
    Slurm suspends a job.
    """
    everybody = " ".join(map(str, processes_of(os.environ[JOB])))
    seconds = float(os.environ["FAULT_TIMEOUT"]) + 1.5
    stamp()
    _outside(f"kill -STOP {everybody}; sleep {seconds}; kill -CONT {everybody}")
    time.sleep(0.5)  # be stopped here, not further on


# -- the launcher ----------------------------------------------------------------------


def _parent(process):
    stat = Path(f"/proc/{process}/stat").read_text()
    return int(stat.rpartition(")")[2].split()[1])


def kills_the_proxy(group, array):
    stamp()
    os.kill(os.getppid(), signal.SIGKILL)
    # before, no rank has said that it belongs to a job: each goes on until it does
    if group is not None:
        time.sleep(60)  # the work goes on: nothing comes to its end by itself


def kills_the_launcher(group, array):
    stamp()
    os.kill(_parent(os.getppid()), signal.SIGKILL)
    time.sleep(60)


def sends_the_launcher_sigquit(group, array):
    """As with Ctrl-backslash; the launcher passes it on to every rank."""
    stamp()
    os.kill(_parent(os.getppid()), signal.SIGQUIT)
    time.sleep(60)


def types_control_c(group, array):
    """As from a terminal, to the launcher and its process group, while the others wait
    for this rank.
    """
    time.sleep(0.5)
    stamp()
    os.killpg(os.getpgid(_parent(os.getppid())), signal.SIGINT)
    time.sleep(60)


# -- a message or an array is wrong ----------------------------------------------------


def _instead_of_the_next_message(group, act):
    """Wrap the one function through which every message of this rank passes, for one
    message.
    """
    send = group.isend

    def once(array, destination, tag=0, *, step=0):
        del group.isend
        stamp(destination)
        return act(send, array, destination, tag, step)

    group.isend = once


def loses_a_message(group, array):
    from minipipe.core.comm.message import Done

    _instead_of_the_next_message(group, lambda send, *message: Done())


def mistags_a_message(group, array):
    _instead_of_the_next_message(
        group,
        lambda send, array, destination, tag, step: send(
            array, destination, abs(tag) + 1000, step=step
        ),
    )


def turns_into_nan(group, array):
    stamp()
    return array * float("nan")


def overflows(group, array):
    stamp()
    return array + float("inf")


def widens_the_gradient(group, array):
    stamp()
    return array.astype("float64")


# -- where and when --------------------------------------------------------------------

# A place of the training: a step, a direction ("F", "B", or "end" of the step) and a
# microbatch; or just its name.
PLACES = {
    "first line": "first line",  # of the script, before minipipe is imported
    "before the group": "before the group",
    "construction": "construction",  # before the pipeline is made
    "warm-up": (2, "F", 0),
    "steady": (2, "F", 4),
    "cool-down": (2, "B", 7),
    "between steps": (2, "end", 0),
    "exit": "exit",
}


class Due:
    """The fault of this process: which deed, at which place, on which rank."""

    group = None

    def __init__(self, deed, place, rank):
        self._deed, self._where, self._is_mine = (
            deed,
            PLACES.get(place),
            int(os.environ["PMI_RANK"]) == rank,
        )

    def reach(self, where, array=None):
        """Note that the training has come to a place; return the array that it goes on
        with.
        """
        if not (self._is_mine and where == self._where):
            return array
        changed = self._deed(self.group, array)
        return array if changed is None else changed


# -- streams ---------------------------------------------------------------------------


def _fill_a_pipe_as(number):
    """Let a descriptor lead into a full pipe that nobody reads: whoever writes there
    waits for ever.
    """
    _, end = os.pipe()
    os.set_blocking(end, False)
    with suppress(BlockingIOError):
        while True:
            os.write(end, bytes(4096))
    os.set_blocking(end, True)
    os.dup2(end, number)


def break_stream(name, way):
    """Break ``stdout`` or ``stderr`` as daemons, notebooks, closed terminals and full
    disks do.
    """
    stream, number = getattr(sys, name), {"stdout": 1, "stderr": 2}[name]
    if way == "None":
        setattr(sys, name, None)
    elif way == "closed":
        stream.close()
    else:  # its buffer cannot be emptied
        stream.write("never written")
        if way == "unread":
            _fill_a_pipe_as(number)
        elif way == "full":
            os.dup2(os.open("/dev/full", os.O_WRONLY), number)
        else:
            os.close(number)

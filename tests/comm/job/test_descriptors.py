"""Forked children of a rank end with it, neither earlier nor later, and no other
process does.
"""

import os
import select
import socket
import subprocess
import sys

import pytest

from tests.launch import ROOT, environment, mpirun, needs_mpi, slowly

pytestmark = pytest.mark.skipif(
    sys.platform != "linux", reason="the signal for children needs Linux"
)

# A rank with the launcher's socket. It makes a child, says when what must not end the
# child is over, and is killed.
RANK = """
import os, signal, socket, subprocess, sys, threading, time
from minipipe.comm.job.meeting import Line
from minipipe.comm.job.process import RankProcess
launcher, own = socket.socketpair()
os.environ["PMI_FD"] = str(own.fileno())
process = RankProcess(0, Line())

def child():
    try:
        os.fstat(own.fileno())
    except OSError:
        print("child", os.getpid(), flush=True)
    time.sleep(600)

def fork(act):
    number = os.fork()
    if number == 0:
        act()
        os._exit(0)
    return number

def fork_in_a_thread():
    thread = threading.Thread(target=fork, args=(child,))
    thread.start()
    thread.join()

def fork_twice():
    os.waitpid(fork(lambda: fork(child)), 0)

def fork_and_stop():
    def stop():
        print("child", os.getpid(), flush=True)
        os.kill(os.getpid(), signal.SIGSTOP)

    os.waitpid(fork(stop), os.WUNTRACED)

def run_another_program():
    program = "import os; print('child', os.getpid(), flush=True); input(); print('goes on')"
    subprocess.Popen([sys.executable, "-c", program], preexec_fn=os.getpid)

WHAT()
sys.stdin.readline()
"""


def child_of_a_rank(what):
    """Return a rank that has made a child, and the child's process."""
    rank = subprocess.Popen(
        [sys.executable, "-c", RANK.replace("WHAT", what)],
        cwd=ROOT,
        env=environment(),
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    word, number = rank.stdout.readline().split()
    assert word == "child"
    return rank, int(number)


def test_a_child_of_a_thread_outlives_the_thread_and_not_the_rank():
    """A death signal of the kernel (``PR_SET_PDEATHSIG``) comes when the thread ends
    that forked.
    """
    assert_ends_with_its_rank("fork_in_a_thread")


def test_a_grandchild_outlives_the_child_and_not_the_rank():
    assert_ends_with_its_rank("fork_twice")


def test_a_child_that_is_stopped_ends_with_its_rank():
    assert_ends_with_its_rank("fork_and_stop")


def assert_ends_with_its_rank(what):
    rank, child = child_of_a_rank(what)
    pidfd = os.pidfd_open(child)
    assert not has_ended(pidfd, seconds=0)
    rank.kill()
    rank.wait()
    assert has_ended(pidfd, seconds=10)


def has_ended(pidfd, seconds):
    return bool(select.select([pidfd], [], [], seconds)[0])


def test_another_program_that_a_rank_has_started_is_not_disturbed():
    """Even with a ``preexec_fn``, for which Python runs the same hooks as for a forked
    child.
    """
    rank, _ = child_of_a_rank("run_another_program")
    rank.kill()
    rank.wait()
    rank.stdin.write("\n")
    rank.stdin.close()
    assert rank.stdout.read() == "goes on\n"


def test_the_launcher_s_socket_is_open_as_long_as_the_rank_lives_whatever_its_program_closes():
    """The story: the launcher took the rank for dead and killed all, and an innocent
    rank was named.
    """
    from minipipe.comm.job.descriptors import Descriptors

    launcher, own = socket.socketpair()
    descriptors, number = Descriptors(own.fileno()), own.fileno()
    own.close()
    assert not select.select([launcher], [], [], 0)[0]
    descriptors.restore()
    os.write(number, b"finalize")
    assert launcher.recv(8) == b"finalize"


NO_RANK = """
import multiprocessing, os, subprocess, sys
from minipipe import init_process_group
from minipipe.errors import LaunchError

def joins(*_):
    try:
        init_process_group()
    except LaunchError as error:
        assert error.code == "not-a-rank" and "remove from its environment: " in error.message, error
        print("refused", flush=True)

if __name__ == "__main__":
    with init_process_group(timeout=20) as group:
        if group.rank == 1:
            HOW
        group.barrier()
    print("ended well", flush=True)
"""
RUN = (
    "subprocess.run([sys.executable, '-c', 'import runpy, sys; "
    'runpy.run_path(sys.argv[1])["joins"]()\', __file__]{})'
)


PROCESS = (
    "child = multiprocessing.get_context('{}').Process(target=joins); child.start(); "
    "child.join()"
)


@pytest.mark.slow
@needs_mpi
@pytest.mark.parametrize(
    "how",
    [
        RUN.format(""),
        slowly(RUN.format(", close_fds=False")),
        slowly(PROCESS.format("fork")),
        slowly(PROCESS.format("spawn")),
    ],
    ids=["subprocess", "subprocess with all files", "fork", "spawn"],
)
def test_a_child_of_a_rank_that_wants_to_join_is_refused_and_the_job_goes_on(
    how, tmp_path
):
    """The story: it joined as its rank, and the job ended: "the launcher's process on
    this host has ended".
    """
    script = tmp_path / "joins.py"
    script.write_text(NO_RANK.replace("HOW", how))
    job = mpirun(2, script)
    assert (job.code, sorted(job.out.splitlines())) == (
        0,
        ["ended well", "ended well", "refused"],
    ), job.err

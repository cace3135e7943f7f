"""The watchdog process, with ranks that are plain processes."""

import os
import re
import select
import signal
import subprocess
import sys
import time

import pytest

from minipipe.core.comm import host
from tests.launch import ROOT, environment, mpirun, needs_mpi, slowly

pytestmark = pytest.mark.skipif(
    not (sys.platform.startswith("linux") and hasattr(os, "pidfd_open")),
    reason="the watchdog process needs Linux",
)

# A launcher: it starts N ranks as its children, in the way of mpirun, and prints what
# each wrote and how it ended.
LAUNCHER = """
import os, subprocess, sys
num, program = int(sys.argv[1]), sys.argv[2]
ranks = [
    subprocess.Popen(
        [sys.executable, "-c", program],
        env={**os.environ, "PMI_RANK": str(rank), "PMI_SIZE": str(num), "MPI_LOCALNRANKS": str(num)},
    )
    for rank in range(num)
]
print(*[rank.pid for rank in ranks], flush=True)
print("codes", *[rank.wait() for rank in ranks], flush=True)
"""
# Where a rank sleeps below, that is the fault, or the time in which another one is to
# fail beside it.
RANK = """
import os, signal, sys, time
from minipipe.errors import LaunchError
from minipipe.comm.job.meeting import line_to_watchdog
rank = int(os.environ["PMI_RANK"])
FIRST
line = line_to_watchdog(rank, SIZE, os.environ)
try:
    line.wait_for_all(LIMIT)
except LaunchError as error:
    if line.is_first_to_fail():
        print(error.code, error, file=sys.stderr)
    sys.exit(1)
THEN
line.close()
"""


def launched(first="", then="", num=4, limit=20.0, size=4):
    program = (
        RANK.replace("FIRST", first).replace("THEN", then).replace("LIMIT", str(limit))
    )
    program = program.replace("SIZE", str(size), 1)
    return subprocess.Popen(
        [sys.executable, "-c", LAUNCHER, str(num), program],
        cwd=ROOT,
        env=environment(),
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def outcome(job):
    """Return the exit codes of the ranks and what was said."""
    out, err = job.communicate(timeout=30)
    return [int(code) for code in out.splitlines()[1].split()[1:]], err


def test_ranks_that_all_come_and_end_well_hear_nothing():
    assert outcome(launched()) == ([0, 0, 0, 0], "")


@pytest.mark.slow
@pytest.mark.parametrize("rank", [slowly(0), slowly(1), 2, slowly(3)])
def test_a_rank_that_ends_before_it_comes_is_named_at_once(rank):
    """The story: the others waited for 300 s inside of MPI."""
    codes, said = outcome(launched(first=f"if rank == {rank}: raise SystemExit(3)"))
    assert codes == [3 if r == rank else 1 for r in range(4)]
    assert (
        said.count("rank-lost") == 1
        and f"Rank {rank} exited before init_process_group()" in said
    )


@pytest.mark.parametrize(
    ("end", "words"),
    [
        ("os.kill(os.getpid(), 9)", "killed by SIGKILL"),
        slowly("os.kill(os.getpid(), 11)", "ended by signal 11"),
        slowly("os._exit(5)", "exit code 5, by os._exit or the like"),
    ],
)
def test_a_rank_that_ends_without_a_word_is_named(end, words):
    _, said = outcome(
        launched(then=f"time.sleep(0.2)\nif rank == 2: {end}\ntime.sleep(0.5)")
    )
    assert re.fullmatch(
        r"\[rank 2\] Rank 2 \(process \d+ on \S+\) exited without an error "
        r"message: .*\.\n",
        said,
    ), said
    assert words in said or "killed (kill -9" in said  # where the kernel does not tell


@pytest.mark.slow
@pytest.mark.parametrize(
    ("end", "words"),
    [
        (
            "os.kill(os.getpid(), 11)",
            (
                "crashed: ended by signal 11: Segmentation fault; or a rank of "
                "another host was"
            ),
        ),
        slowly(
            "os.kill(os.getpid(), 9)",
            "exited without an error message: killed by SIGKILL",
        ),
        slowly("os._exit(5)", "exited without an error message: exit code 5"),
    ],
)
def test_a_crash_in_a_job_of_several_hosts_is_not_blamed_on_the_rank_alone(end, words):
    """The story: MPI crashed in a rank because one of another host was killed, and that
    rank was named for it.
    """
    _, said = outcome(
        launched(then=f"time.sleep(0.2)\nif rank == 2: {end}\ntime.sleep(0.5)", size=8)
    )
    assert said.count("\n") == 1 and said.startswith("[rank 2] Rank 2 (process")
    assert words in said or "killed (kill -9" in said  # where the kernel does not tell


@pytest.mark.slow
def test_a_signal_from_outside_is_no_failure_of_the_rank_that_it_ends_first():
    """The story: of ranks that all got SIGQUIT, one was said to have failed: SIGKILL
    had overtaken it on the others.
    """
    # what a shell starts with & ignores it
    quits = "signal.signal(3, signal.SIG_DFL)\n    os.kill(os.getpid(), 3)"
    job = launched(
        then=f"if rank == 2:\n    {quits}\nsys.stdin.read()\nos.kill(os.getpid(), 9)"
    )
    # the launcher lives for as long, or all would be its orphans
    said = os.read(job.stderr.fileno(), 65536).decode()
    said += outcome(job)[1]
    words = (
        r"No rank has failed: rank 2 \(process \d+ on \S+\) was ended by signal 3: "
        r"Quit, as sent by launchers"
    )
    assert (
        re.match(rf"\[rank 2\] ({words}|.* killed \(kill -9)", said)
        and said.count("\n") == 1
    ), said


@pytest.mark.slow
def test_where_others_survive_a_loss_it_is_told_and_the_next_failure_too():
    """The story: the loss would have been the reason why all end, and a rank that
    raised later was silent.
    """
    lost = (
        "line.survive(True)\ntime.sleep(0.2)\nif rank == 2: os.kill(os.getpid(), "
        "9)\ntime.sleep(1.0)\n"
    )
    _, said = outcome(
        launched(then=f"{lost}if rank == 1: assert line.is_first_to_fail()")
    )
    assert said.count("\n") == 1 and "Rank 2 (process" in said
    together = lost.replace("(True)", "(True)\nline.survive(False)")
    _, said = outcome(
        launched(then=f"{together}if rank == 1: assert not line.is_first_to_fail()")
    )
    assert said.count("\n") == 1 and "Rank 2 (process" in said


def test_when_the_launcher_is_killed_its_ranks_end():
    """The story: with the launcher's process gone all ranks lived on, 30 of 30."""
    job = launched(then="print('here', flush=True)\ntime.sleep(60)")
    ranks = [int(pid) for pid in job.stdout.readline().split()]
    assert [job.stdout.readline() for _ in ranks] == ["here\n"] * 4
    ends = [os.pidfd_open(pid) for pid in ranks]
    job.send_signal(signal.SIGKILL)
    job.wait()
    assert all(select.select([end], [], [], 10)[0] for end in ends), "orphans are left"


@pytest.mark.slow
def test_a_rank_that_does_not_come_is_named():
    codes, said = outcome(launched(first="time.sleep(2.0 * (rank == 1))", limit=0.5))
    assert (
        "timeout Rank 1 did not call init_process_group() within 0.5 s." in said
        and 1 in codes
    )


@pytest.mark.slow
def test_a_watchdog_that_is_killed_hinders_nobody():
    kill = (
        "import subprocess\nsubprocess.run(['pkill', '-9', '-P', str(os.getpid()), "
        "'-f', 'comm/job/watchdog.py'])"
    )
    ask = "time.sleep(1.0)\nassert line.is_first_to_fail()"
    assert outcome(launched(then=f"time.sleep(0.5)\n{kill}\n{ask}")) == (
        [0, 0, 0, 0],
        "",
    )


@pytest.mark.slow
def test_only_one_of_several_ranks_that_fail_speaks():
    _, said = outcome(
        launched(
            then="print('SPEAKS', file=sys.stderr) if line.is_first_to_fail() else 0"
        )
    )
    assert said == "SPEAKS\n"


def test_the_watchdog_which_imports_nothing_knows_the_variables_that_the_ranks_know():
    from minipipe.comm.job import watchdog

    assert [*watchdog._RANK_VARIABLES, b"SLURM_PROCID"] == [
        name.encode() for name in host.RANK
    ]


def test_the_names_of_a_launcher_s_variables_stand_in_one_place():
    """The story: four files had lists of their own, each with other launchers."""
    names = {*host.SIZE, *host.RANK, *host.LOCAL_SIZE, *host.LOCAL_RANK}
    lists = re.compile(rf"\(\s*b?\"(?:{'|'.join(names)})\",")
    found = {
        path.name
        for path in (ROOT / "minipipe").rglob("*.py")
        if lists.search(path.read_text())
    }
    assert found == {"host.py", "watchdog.py"}


SHARES = """
import os, signal, sys, time
from minipipe import init_process_group
group = init_process_group()
paths = {line.split()[-1] for line in open("/proc/self/maps") if "/dev/shm/mpich" in line}
if group.rank == 0:
    print(*paths, flush=True)
group.barrier()
if group.rank == 1:
    os.kill(os.getpid(), signal.SIGKILL)
time.sleep(60)
"""


@needs_mpi
@pytest.mark.skipif(not os.path.isdir("/dev/shm"), reason="no files in memory here")
def test_a_killed_job_leaves_no_memory_behind(tmp_path):
    """The story: thousands of killed jobs, 4 MB each, had filled the memory of a
    machine in two days.
    """
    script = tmp_path / "shares.py"
    script.write_text(SHARES)
    job = mpirun(2, script)
    paths = re.findall(r"/dev/shm/mpich\S+", job.out)
    if not paths:
        pytest.skip("this MPI shares memory in another way")
    deadline = time.monotonic() + 10  # the watchdog is the last to go
    while any(map(os.path.exists, paths)) and time.monotonic() < deadline:
        time.sleep(0.05)
    assert job.code != 0 and not any(map(os.path.exists, paths))


@needs_mpi
@pytest.mark.slow
def test_the_watchdog_speaks_for_a_rank_whose_output_nobody_reads():
    """The story: the rank that failed waited for a reader, and the others for the rank,
    and nobody said a word.
    """
    program = (
        "import sys, minipipe\n"
        "from tests.faults.deeds import _fill_a_pipe_as\n"
        "with minipipe.init_process_group() as group:\n"
        "    if group.rank == 1:\n"
        "        _fill_a_pipe_as(1); _fill_a_pipe_as(2)\n"
        "        sys.stdout.write('never written')\n"
        "        raise SystemExit(7)\n"
        "    group.recv(1)\n"
    )
    done = mpirun(3, "-c", program)
    assert done.code == 7 and done.seconds < 30
    assert re.findall(r"^\[rank .*", done.err, re.MULTILINE) == [
        "[rank 1] sys.exit(7) at <string>, line 7, in <module>; ending all ranks."
    ]

"""Whatever ends a verb that has started processes, none of them is left."""

import os
import signal
import sys
import time
from contextlib import suppress
from pathlib import Path

import pytest

from minipipe.cli import main
from tests.cli.supervision.jobs import supervised
from tests.faults.deeds import processes_of
from tests.launch import needs_mpi, slowly

pytestmark = [
    needs_mpi,
    pytest.mark.skipif(sys.platform != "linux", reason="counts processes in /proc"),
]

PROMISED = 4.0  # seconds from the signal to the end of the last process
TRAINS = """
import os, sys, time
from minipipe import init_process_group
with init_process_group() as group:
    group.barrier()
    if group.size > 1 or len(sys.argv) > 1:
        time.sleep(1000)
"""
STARTS = """
import numpy as np
from minipipe import Pipeline, init_process_group, nn
with init_process_group() as group:
    pipeline = Pipeline(nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 4)), group, loss=nn.MSELoss())
    pipeline.step(np.ones((8, 4), np.float32), np.ones((8, 4), np.float32))
"""
MEASURES = """
from minipipe.tuning.stages import messages_of_this_machine
while True:
    messages_of_this_machine(2)
"""
SLEEPS = """
import sys
from minipipe.comm.job.guard import run_job
from minipipe.comm.job.host import find_mpirun
run_job([find_mpirun(), "-n", "2", sys.executable, "-c", "import time; time.sleep(1000)"])
"""
# How each command that starts ranks is started, and how many processes it has when all
# ranks are there.
VERBS = {
    "compare": (
        [
            "-m",
            "minipipe",
            "compare",
            "--ranks=2",
            "--width=32",
            "--heads=2",
            "--rounds=2000",
        ],
        None,
    ),
    "advise": (
        ["-m", "minipipe", "advise", "--ranks=2", "--seconds=1000", "{script}"],
        STARTS,
    ),
    "run": (["-m", "minipipe", "run", "-n", "2", "{script}"], TRAINS),
    "a library call": (["{script}"], MEASURES),
    "a silent job": (["{script}"], SLEEPS),  # it notices no closed pipe
}
SIGNALS = (signal.SIGTERM, signal.SIGHUP, signal.SIGINT, signal.SIGKILL)
QUICK = {("a silent job", signal.SIGKILL), ("compare", signal.SIGINT)}
CASES = [(verb, number) for verb in VERBS for number in SIGNALS]


def ranks_of(mark):
    """Return the ranks of a job: processes whose launcher has told them their
    number.
    """
    found = []
    for process in processes_of(mark):
        try:
            with open(f"/proc/{process}/environ", "rb") as file:
                if b"PMI_RANK=" in file.read():
                    found.append(process)
        except OSError:
            continue
    return found


def parents():
    """Return the parent of each process; the processes of a student have no mark."""
    found = {}
    for path in Path("/proc").glob("[0-9]*/stat"):
        with suppress(OSError):
            state, parent = path.read_text().rpartition(")")[2].split()[:2]
            if state != "Z":
                found[int(path.parent.name)] = int(parent)
    return found


def descendants_of(process):
    """Return the processes that a process has started, and those that they have."""
    now, found = parents(), {process}
    while more := {child for child, parent in now.items() if parent in found} - found:
        found |= more
    return found - {process}


def wait_for(condition, seconds):
    """Return how long a condition took to hold, or None."""
    begun = time.monotonic()
    while time.monotonic() - begun < seconds:
        if condition():
            return time.monotonic() - begun
        time.sleep(0.02)
    return None


@pytest.mark.parametrize(
    ("verb", "number"),
    [case if case in QUICK else slowly(*case) for case in CASES],
    ids=lambda value: str(value),
)
def test_no_process_of_a_job_outlives_the_verb_that_started_it(verb, number, tmp_path):
    """The story: `compare` ended by a signal left its ranks running, which grew until
    memory was full.
    """
    words, text = VERBS[verb]
    script = tmp_path / "script.py"
    script.write_text(text or "")
    with supervised(*(word.format(script=script) for word in words), python=()) as job:
        assert wait_for(lambda: len(ranks_of(job.mark)) >= 2, 60) is not None, (
            job.process.communicate(timeout=1)
        )
        os.kill(job.pid, number)
        seconds = wait_for(lambda: not processes_of(job.mark), 3 * PROMISED)
        out, err = job.process.communicate()
    print(f"{verb}, {number!r}: T = {seconds} s, promised {PROMISED} s")
    assert seconds is not None
    if verb in ("compare", "advise", "run"):
        assert job.process.returncode in (-number, 128 + number)
    if verb in ("compare", "advise"):
        assert "Traceback" not in out + err


LONG = (
    "search",
    "--ranks=6",
    "--microbatches=14",
    "--memory-limit=4",
    "--seconds=1000",
)


@pytest.mark.parametrize(
    "number", [signal.SIGINT, slowly(signal.SIGTERM), slowly(signal.SIGHUP)], ids=str
)
def test_a_verb_that_computes_is_left_by_a_signal_without_a_traceback(number):
    with supervised(*LONG, python=("-m", "minipipe")) as job:
        assert "searching" in job.process.stderr.readline()
        os.kill(job.pid, number)
        done = job.finish()
    assert (done.code, done.out) == (128 + number, "") and "Traceback" not in done.err


@pytest.mark.slow
@pytest.mark.parametrize("number", [signal.SIGTERM, slowly(signal.SIGINT)], ids=str)
def test_a_program_that_advise_runs_in_its_own_process_does_not_catch_the_signal(
    number, tmp_path
):
    script = tmp_path / "script.py"
    waits = (
        "while True:\n    try:\n        time.sleep(1000)\n    except Exception:\n    "
        "    pass\n"
    )
    script.write_text(
        f"import sys, time\nprint('waits', file=sys.stderr, flush=True)\n{waits}"
    )
    with supervised("advise", "--ranks=2", script, python=("-m", "minipipe")) as job:
        while "waits" not in job.process.stderr.readline():
            pass
        os.kill(job.pid, number)
        done = job.finish()
    assert done.code == 128 + number and "Traceback" not in done.err


@pytest.mark.slow
@pytest.mark.parametrize(
    ("number", "names"),
    [
        (signal.SIGTERM, ("mine",)),
        *(slowly(n, ("mine",)) for n in SIGNALS[1:]),
        slowly(signal.SIGINT, ("ada", "bob")),
    ],
    ids=str,
)
def test_graded_programs_end_with_the_command(number, names, tmp_path):
    """The story: the command waited for its threads, and they for the programs of
    students, until the time limit.
    """
    for name in names:
        assert main(["coursework", str(tmp_path / "all" / name)]) == 0
        (tmp_path / "all" / name / "05_bubble.py").write_text(
            "import time\ntime.sleep(1000)\n"
        )
    submission = tmp_path / "all" / "mine" if names == ("mine",) else tmp_path / "all"
    words = ("grade", submission, "--only", "05_bubble", "--time-limit", 500)
    with supervised(*words, python=("-m", "minipipe")) as job:
        assert "grading" in job.process.stderr.readline()
        assert wait_for(lambda: descendants_of(job.pid), 60) is not None
        programs = descendants_of(job.pid)
        os.kill(job.pid, number)
        assert (
            wait_for(lambda: job.process.poll() is not None, 3 * PROMISED) is not None
        )
        assert (
            wait_for(lambda: not programs & parents().keys(), 3 * PROMISED) is not None
        )


@pytest.mark.slow
@pytest.mark.parametrize("number", SIGNALS, ids=str)
def test_the_graders_of_a_class_end_with_the_command(number, tmp_path):
    for name in ("ada", "bob"):
        assert main(["coursework", str(tmp_path / "class" / name)]) == 0
        task = next((tmp_path / "class" / name).glob("05_bubble*.py"))
        task.write_text("import time\ntime.sleep(1000)\n")
    words = (
        "grade",
        tmp_path / "class",
        "--only",
        "05_bubble",
        "--jobs",
        2,
        "--time-limit",
        500,
    )
    with supervised(*words, python=("-m", "minipipe")) as job:
        assert wait_for(lambda: len(processes_of(job.mark)) >= 3, 60) is not None
        os.kill(job.pid, number)
        assert wait_for(lambda: not processes_of(job.mark), 3 * PROMISED) is not None

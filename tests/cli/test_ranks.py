"""Ranks that a verb starts: their answer, or the error of the rank that failed
first.
"""

import pytest

from minipipe.cli.progress import Progress
from minipipe.cli.ranks import answer_of_ranks
from minipipe.comm.job.guard import JobOutput, run_job
from minipipe.comm.job.host import find_mpirun
from minipipe.errors import MinipipeError
from tests.launch import needs_mpi, slowly

ANSWERS = """
import os, signal, sys
from minipipe.cli.ranks import leave_answer, leave_error
from minipipe.comm import init_process_group
from minipipe.errors import ArgumentError, Code, ScheduleError

with init_process_group() as group:
    group.barrier()
    try:
        if group.rank == 1:
            {deed}
    except Exception as error:
        leave_error(group, error)
        sys.exit(1)
    group.barrier()
    if group.rank == 0:
        leave_answer("all is well")
"""
EARLY = (
    "import os\nif os.environ['PMI_RANK'] == '1':\n    import no_such_module\n"
    + ANSWERS
)
FAILURES = {
    "an error of minipipe": (
        ANSWERS,
        'raise ArgumentError("value", "width is 3")',
        "ArgumentError",
        r"width is 3",
    ),
    "of a schedule": (
        ANSWERS,
        'raise ScheduleError.of(Code.MEMORY, "too small")',
        "ScheduleError",
        "too small",
    ),
    "any other": (
        ANSWERS,
        'raise MemoryError("no room")',
        "LaunchError",
        "rank 1: MemoryError: no room",
    ),
    "a killed rank": (
        ANSWERS,
        "os.kill(os.getpid(), signal.SIGKILL)",
        "LaunchError",
        "Rank 1 .* killed by SIGKILL",
    ),
    "a missing module": (
        EARLY,
        "pass",
        "LaunchError",
        "ModuleNotFoundError: No module named 'no_such_module'",
    ),
    "an exit": (ANSWERS, "sys.exit(3)", "LaunchError", "exit"),
}


def asked(tmp_path, monkeypatch, text):
    (tmp_path / "answers.py").write_text(text)
    monkeypatch.setenv("PYTHONPATH", f"{tmp_path}")
    return answer_of_ranks(
        find_mpirun(), 2, ["answers"], {}, "It failed", Progress("asking")
    )


@pytest.mark.slow
@needs_mpi
def test_the_answer_of_rank_0_comes_back(tmp_path, monkeypatch):
    assert asked(tmp_path, monkeypatch, ANSWERS.format(deed="pass")) == "all is well"


@needs_mpi
@pytest.mark.parametrize(
    "name", [name if name == "any other" else slowly(name) for name in FAILURES]
)
def test_the_error_of_a_failed_job_is_that_of_the_rank_that_failed(
    name, tmp_path, monkeypatch
):
    """The story: it was the last line that the launcher printed, `application called
    MPI_Abort`.
    """
    text, deed, kind, words = FAILURES[name]
    with pytest.raises(MinipipeError, match=words) as caught:
        asked(tmp_path, monkeypatch, text.format(deed=deed))
    assert type(caught.value).__name__ == kind
    assert "MPI_Abort" not in str(caught.value) and "BAD TERMINATION" not in str(
        caught.value
    )
    assert kind != "LaunchError" or str(caught.value).startswith(
        "It failed under mpirun -n 2: "
    )


CHAINED = """Traceback (most recent call last):
  File "a.py", line 1, in <module>
KeyError: 'first'

During handling of the above exception, another exception occurred:

Traceback (most recent call last):
  File "a.py", line 3, in <module>
LookupError: second
Abort(1) on node 1 (rank 1 in comm 0): application called MPI_Abort(MPI_COMM_WORLD, 1) - process 1"""


@pytest.mark.parametrize(
    ("err", "out", "cause"),
    [
        (CHAINED, "", "LookupError: second"),
        (
            "\n".join(f"[rank 3] {line}" for line in CHAINED.splitlines()),
            "",
            "rank 3: LookupError: second",
        ),
        (
            "[rank 1] Rank 1 was killed.\n\n=====\nYOUR APPLICATION TERMINATED",
            "",
            "[rank 1] Rank 1 was killed.",
        ),
        ("the launcher's only line\n", "more", "the launcher's only line"),
        ("", "printed, not complained", "printed, not complained"),
        ("", "", "no error message (exit code 7)"),
    ],
)
def test_the_cause_is_found_in_what_was_printed(err, out, cause):
    assert JobOutput(7, out, err).cause == cause


def test_a_command_that_does_not_exist_is_an_error_and_not_a_hang():
    done = run_job(["no-such-launcher", "-n", "2"])
    assert done.code and "no-such-launcher" in done.cause


def test_lines_of_errors_are_heard_at_once_and_output_is_kept():
    heard = []
    done = run_job(
        ["sh", "-c", "echo first >&2; echo out; echo second >&2; exit 3"], heard.append
    )
    assert done == (3, "out\n", "first\nsecond\n") and heard == ["first\n", "second\n"]


def test_an_exception_while_a_job_runs_ends_the_job(tmp_path):
    def interrupt(line):
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        run_job(
            ["sh", "-c", f"echo begun >&2; sleep 1000; touch {tmp_path}/late"],
            interrupt,
        )
    assert not (tmp_path / "late").exists()

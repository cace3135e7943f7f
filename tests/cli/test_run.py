"""``minipipe run``: what is asked for wrongly. Jobs that run are in
tests/supervision.
"""

import json
import sys

import pytest

from minipipe.cli import run
from minipipe.cli.supervision.supervisor import JobResult
from tests.launch import needs_mpi


@pytest.fixture
def here(tmp_path, monkeypatch):
    """A folder with a script and two files of hosts."""
    monkeypatch.chdir(tmp_path)
    for name, text in {
        "train.py": "",
        "hosts": "node0:2\nnode1:2\n",
        "nobody": "# none\n",
    }.items():
        (tmp_path / name).write_text(text)
    return tmp_path


@needs_mpi
@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        ("", "Expected a script after the options, as in: minipipe run -n 4 train.py."),
        (
            "-n 4",
            "Expected a script after the options, as in: minipipe run -n 4 train.py.",
        ),
        ("-n 4 tain.py", "There is no script 'tain.py'; expected a Python file."),
        ("-n 4 .", "There is no script '.'; expected a Python file."),
        (
            "train.py -n 4",
            (
                "-n is missing; expected the number of ranks before the script, as "
                "in -n 4 train.py."
            ),
        ),
        ("-n 0 train.py", "-n is 0; expected a whole number, 1 to 4096."),
        (
            "-n 99999999999999999999 train.py",
            "-n is 99999999999999999999; expected a whole number, 1 to 4096.",
        ),
        (
            "-n 2 --restarts -1 train.py",
            "--restarts is -1; expected a whole number, at least 0.",
        ),
        (
            "-n 2 --min-ranks 1 train.py",
            "--min-ranks needs --hostfile FILE, which lists the hosts.",
        ),
        (
            "-n 2 --probe x train.py",
            "--probe needs --hostfile FILE, which lists the hosts.",
        ),
        (
            "--hostfile hosts --min-ranks 5 train.py",
            "--min-ranks is 5; expected a whole number, 1 to 4.",
        ),
        (
            "--hostfile hosts --min-ranks 0 train.py",
            "--min-ranks is 0; expected a whole number, at least 1.",
        ),
        (
            "--hostfile hosts --probe true train.py",
            (
                "--probe is 'true'; expected a command that contains HOST, in place "
                "of the host name."
            ),
        ),
        (
            "--hostfile nowhere train.py",
            "'nowhere' cannot be read: No such file or directory.",
        ),
        (
            "--hostfile nobody train.py",
            "'nobody' names no host; expected a line for each: HOST:RANKS.",
        ),
        (
            "--hostfile hosts --probe nossh-HOST train.py",
            (
                "There is no command 'nossh-HOST' here; install it, or choose "
                "another command with --probe."
            ),
        ),
        (
            "-n 2 --launcher nompirun train.py",
            "There is no command 'nompirun' here; install MPI with pip install "
            "-e '.[mpi]' (on a cluster, "
            "load its MPI), or choose a command with --launcher.",
        ),
        ("-n 2 --launcher= train.py", "--launcher is empty; expected a command."),
        (
            "-n 2 --launcher=' train.py",
            '--launcher is "\'"; expected a command (No closing quotation).',
        ),
    ],
)
def test_a_job_that_cannot_be_started_exits_2_with_one_line_that_says_what_to_do(
    arguments, sentence, ask, here
):
    assert ask("run", *arguments.split()) == (2, "", f"minipipe: {sentence}\n")


def test_without_mpirun_it_says_how_to_get_one(ask, here, monkeypatch):
    monkeypatch.setattr(sys, "executable", str(here / "python"))
    monkeypatch.setenv("PATH", str(here))
    status, out, err = ask("run", "--json", "-n", "2", "train.py")
    assert status == 2 and json.loads(out)["error"] == "unavailable"
    assert err.startswith(
        "minipipe: There is no command 'mpirun' here; install MPI with pip "
        "install -e '.[mpi]'"
    )


def test_on_windows_it_names_thread_ranks(ask, here, monkeypatch):
    monkeypatch.setattr(sys, "platform", "win32")
    assert "use minipipe.spawn" in ask("run", "-n", "2", "train.py")[2]


@pytest.mark.parametrize(
    "arguments", ["-n 2 --restart 3 train.py", "-n two train.py", "--restarts"]
)
def test_an_option_that_is_none_is_bad_usage(arguments, ask, here, capsys):
    with pytest.raises(SystemExit, match="2"):
        ask("run", *arguments.split())
    assert "minipipe run: error: " in capsys.readouterr().err


@needs_mpi
@pytest.mark.parametrize(
    ("arguments", "ranks", "program"),
    [
        ("-n 3 train.py --restarts 9 -n 5 -- x", 3, "train.py --restarts 9 -n 5 -- x"),
        ("-n 3 -- train.py -- x", 3, "train.py -- x"),
        ("--hostfile hosts --probe=ping-HOST train.py", 4, "train.py"),
        (
            "--hostfile hosts -n 3 --probe ping-HOST train.py --json",
            3,
            "train.py --json",
        ),
    ],
)
def test_what_stands_behind_the_script_is_the_scripts(
    arguments, ranks, program, here, ask, monkeypatch
):
    jobs = []
    monkeypatch.setattr(
        run, "supervise", lambda job, *_: jobs.append(job) or JobResult(5, 0, job.ranks)
    )
    monkeypatch.setattr(run, "become_supervisor", lambda: None)
    monkeypatch.setattr(run, "_check_installed", lambda *_: None)
    assert ask("run", *arguments.split()) == (5, "", "")
    assert (jobs[0].ranks, " ".join(jobs[0].program)) == (ranks, program)

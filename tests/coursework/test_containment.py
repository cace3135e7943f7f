"""A student's file that attacks the one who grades it reaches nothing, and there is a
report.
"""

import os
import resource
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

import pytest

import minipipe
from minipipe.cli import main
from minipipe.coursework import grade, process
from minipipe.coursework.sandbox import (
    EVERYTHING,
    FILES,
    LANDLOCK,
    LIMITS,
    NAMESPACES,
    USER,
    Containment,
)
from tests.coursework import hostile
from tests.coursework.hostile import attacker, running, tries
from tests.coursework.small_course import SOLUTION, double, reasons
from tests.launch import slowly

pytestmark = pytest.mark.skipif(
    sys.platform != "linux", reason="other systems have only limits"
)
ONLY_LANDLOCK = (LANDLOCK, USER)


@pytest.fixture(
    params=[(NAMESPACES, LANDLOCK, USER), slowly(ONLY_LANDLOCK)],
    ids=lambda layers: layers[0],
)
def attacked(request, course, monkeypatch):
    """Return a function that grades an attack under some layers, and returns the report
    of the task.
    """
    monkeypatch.setattr(process, "_LAYERS", request.param)

    def graded(body, time_limit=20.0):
        task = course(attacker(body), time_limit)
        if request.param[0] not in task.containment.layers:
            pytest.skip(f"this system grants no {request.param[0]}")
        return task

    return graded


def at_start(tmp_path, monkeypatch, statement):
    """Run a statement in the processes of a task before all else; Python loads a module
    of this name at its start.
    """
    imports = "from minipipe.coursework import sandbox"
    (tmp_path / "sitecustomize.py").write_text(f"{imports}\n{statement}\n")
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))


# -- what it leaves behind -------------------------------------------------------------


@pytest.mark.parametrize(
    "layers", [(NAMESPACES, LANDLOCK, USER), slowly(ONLY_LANDLOCK), slowly(())], ids=str
)
def test_a_daemon_ends_with_its_task(course, monkeypatch, layers):
    """The story: setsid and a second fork took a process out of the group that was
    killed, and it stayed for ever.
    """
    monkeypatch.setattr(process, "_LAYERS", layers)
    mark = f"{1000 + len(layers)}.{os.getpid()}"
    task = course(attacker(hostile.daemon(mark)))
    assert task.passed and task.output == "did start\n"
    assert not running(mark)


def test_a_daemon_is_seen_where_nobody_ends_it():
    mark = f"999.{os.getpid()}"
    started = subprocess.Popen(["sleep", mark])
    try:
        while not running(mark):
            assert started.poll() is None
    finally:
        started.kill()
        started.wait()


@pytest.mark.slow
@pytest.mark.parametrize("part", ["adopt_orphans", "end_descendants"])
def test_without_a_part_of_the_supervisor_a_daemon_stays(
    course, tmp_path, monkeypatch, part
):
    mark = f"1030.{os.getpid()}"
    monkeypatch.setattr(process, "_LAYERS", ())
    at_start(tmp_path, monkeypatch, f"sandbox.{part} = lambda: None")
    task = course(attacker(hostile.daemon(mark)))
    left = running(mark)
    for number in left:
        os.kill(int(number), signal.SIGKILL)
    assert task.passed and len(left) == 1


@pytest.mark.slow
def test_daemons_end_when_the_time_is_over(attacked):
    mark = f"1010.{os.getpid()}"
    task = attacked(
        hostile.daemon(mark) + "sys.stdout.flush()\nwhile True: pass\n", time_limit=6
    )
    assert (
        reasons(task)[0].startswith("it was stopped after 6 s")
        and task.output == "did start\n"
    )
    assert not running(mark)


# -- limits ----------------------------------------------------------------------------


def test_it_cannot_have_more_than_its_limits(attacked):
    """A file of 65 MiB, 96 MiB in several files, a thousand open files, and then higher
    limits.
    """
    lines = attacked(hostile.FILL).output.splitlines()
    # only memory of its own is limited as a whole
    own_disk = lines.pop(0) if len(lines) == 3 else None
    assert lines == ["did EFBIG", "did EMFILE"]
    if own_disk:
        number, reason = own_disk.split()[1:]
        assert 50 < int(number) <= 64 and reason == "ENOSPC"


@pytest.mark.slow
def test_no_limit_can_be_raised_and_none_is_missing(course):
    names = ("AS", "CPU", "FSIZE", "NOFILE", "CORE", "NPROC")
    body = "import resource as r\n" + "\n".join(
        f"print({n!r}, r.getrlimit(r.RLIMIT_{n})[1])" for n in names
    )
    raised = {
        n: f"import resource as r; r.setrlimit(r.RLIMIT_{n}, (r.RLIM_INFINITY,) * 2)"
        for n in names
    }
    refused = tries(**raised).replace("except OSError", "except (OSError, ValueError)")
    task = course(attacker(f"{body}\n{refused}"), time_limit=20)
    limits = {
        name: int(limit) for name, limit in map(str.split, task.output.splitlines())
    }
    number = limits.pop("NPROC")
    assert limits == {
        "AS": 4 << 30,
        "CPU": limits["CPU"],
        "FSIZE": 64 << 20,
        "NOFILE": 256,
        "CORE": 0,
    }
    assert 18 <= limits["CPU"] <= 21
    is_limited = number not in (-1, resource.getrlimit(resource.RLIMIT_NPROC)[1])
    assert is_limited == ("any number of processes" not in task.containment.exposed)


@pytest.mark.slow
def test_more_processes_than_the_limit_cannot_be_forked(course):
    task = course(attacker(hostile.FORKS))
    if (
        reasons(task)[0]
        == "it called sys.exit('not contained'); return a result instead"
    ):
        pytest.skip("this system does not make it harmless")
    assert task.passed and 100 < int(task.output.split()[-1]) < 128


@pytest.mark.slow
def test_a_fork_bomb_ends_with_its_task(course):
    """The story: a task that another test ran at the same time was counted as what the
    bomb had left behind.
    """
    task = course(attacker(hostile.FORK_BOMB), time_limit=6)
    if "not contained" in reasons(task)[0]:
        pytest.skip("this system does not make it harmless")
    assert reasons(task)[0].startswith(
        "it was stopped after 6 s"
    ) and task.output.startswith("did begin")
    # a bomb never ends by itself, other tasks do
    left, deadline = set(processes_of_tasks()), time.monotonic() + 60
    while left & set(processes_of_tasks()) and time.monotonic() < deadline:
        time.sleep(0.1)
    assert not left & set(processes_of_tasks())


def processes_of_tasks():
    """Yield the number and the time of birth of each process of a task, whoever grades
    it.
    """
    for path in Path("/proc").glob("[0-9]*"):
        try:
            if path.stat().st_uid >= 2_000_000_000:
                yield (
                    path.name,
                    (path / "stat").read_text().rpartition(")")[2].split()[19],
                )
        except OSError:
            pass  # it ended meanwhile


# -- whom it can harm ------------------------------------------------------------------


@pytest.mark.slow
def test_it_cannot_end_the_grader_nor_anything_of_his(attacked):
    victim = subprocess.Popen(["sleep", "100"], start_new_session=True)
    try:
        kills = {
            "parent": "os.kill(os.getppid(), 9)",
            "victim": f"os.kill({victim.pid}, 9)",
            "group": f"os.killpg({victim.pid}, 9)",
            "stop": f"os.kill({victim.pid}, 19)",
            "grader": f"os.kill({os.getpid()}, 0)",
        }
        task = attacked(tries(**kills))
        assert task.passed and victim.poll() is None
        # the first process of a namespace lives through it
        assert task.output in ("", "did parent\n")
    finally:
        victim.kill()
        victim.wait()


@pytest.mark.slow
def test_it_can_kill_everybody_it_sees_and_that_is_itself(course):
    task = course(attacker(hostile.KILL_EVERYBODY))
    if "not contained" in reasons(task)[0]:
        pytest.skip("this system does not make it harmless")
    assert task.output == "did all 9\n" and task.passed


def test_it_can_neither_read_solutions_hidden_tests_or_other_students_nor_write_beside_its_own(
    attacked, tmp_path
):
    (tmp_path / "other").mkdir()
    for name in ("other", "mine"):
        (tmp_path / name / "01_double.py").write_text(SOLUTION)
    clone = Path(minipipe.__file__).parent.parent
    (public,) = (path for path in (clone / "tutorials" / "exercises").glob("05_*.py"))
    secret = [
        tmp_path / "source" / "01_double.py",
        tmp_path / "source" / "checks" / "01_double.py",
    ]
    secret += [
        tmp_path / "other" / "01_double.py",
        tmp_path / "mine" / "01_double.py",
        public,
        clone / ".git",
    ]
    secret += [
        Path("/etc/passwd"),
        Path(f"/proc/{os.getpid()}/environ"),
        Path(f"/proc/{os.getpid()}/root"),
    ]
    assert all(path.exists() for path in secret)
    attempts = {
        f"read {path}": f"(os.listdir if os.path.isdir({str(path)!r}) else open)({str(path)!r})"
        for path in secret
    }
    beside = [
        tmp_path / "new",
        Path(minipipe.__file__),
        Path(os.__file__),
        Path("/usr/bin/new"),
        Path("/new"),
    ]
    attempts |= {f"write {path}": f"open({str(path)!r}, 'a')" for path in beside}
    attempts |= {
        "list students": f"os.listdir({str(tmp_path)!r})",
        "list temporary": "os.listdir('/tmp')",
    }
    allowed = {
        "import": "import statistics",
        "own": "open('new', 'w')",
        "package": f"open({minipipe.__file__!r})",
    }
    task = attacked(tries(**attempts, **allowed))
    # its own is in there
    places = {line for line in task.output.splitlines() if "list temporary" not in line}
    assert places == {"did import", "did own", "did package"}
    assert not (tmp_path / "new").exists() and task.passed


def test_it_has_no_network(attacked, tmp_path):
    path, name = str(tmp_path / "socket"), f"\0{tmp_path}"
    with (
        socket.socket() as tcp,
        socket.socket(socket.AF_UNIX) as unix,
        socket.socket(socket.AF_UNIX) as abstract,
    ):
        for listening, address in (
            (tcp, ("127.0.0.1", 0)),
            (unix, path),
            (abstract, name),
        ):
            listening.bind(address)
            listening.listen()
        port = tcp.getsockname()[1]
        with (
            socket.create_connection(("127.0.0.1", port)),
            socket.socket(socket.AF_UNIX) as other,
        ):
            other.connect(name)  # it can be reached from here
        attempts = {
            "tcp": f"import socket; socket.create_connection(('127.0.0.1', {port}))",
            "unix": f"import socket; socket.socket(socket.AF_UNIX).connect({path!r})",
            "abstract": f"import socket; socket.socket(socket.AF_UNIX).connect({name!r})",
        }
        task = attacked(tries(**attempts))
        seen = set() if NAMESPACES in task.containment.layers else {"did unix"}
        assert set(task.output.splitlines()) <= seen and task.passed
        assert bool(seen) == ("the network beyond TCP" in task.containment.exposed)


# -- what it says to the grader --------------------------------------------------------


@pytest.mark.slow
def test_what_would_steer_a_terminal_or_cannot_be_printed_is_written_out(course):
    task = course(
        double("print('\\x1b[2J')\nraise ValueError('\\x1b]0;points\\a \\ud800')")
    )
    said = str(task)
    assert (
        "it raised ValueError: \\x1b]0;points\\x07 \\ud800" in said
        and "\\x1b[2J" in said
    )
    assert "\x1b" not in said and said.encode()


# -- what is said about it -------------------------------------------------------------


@pytest.mark.slow
def test_the_report_says_what_contained_the_tasks_and_warns_of_limits_alone(
    course, tmp_path, monkeypatch, capsys
):
    mine, source = tmp_path / "mine", tmp_path / "source"
    (mine / "01_double.py").write_text(SOLUTION)
    report = grade(mine, source=source)
    layers, exposed = report.as_json()["containment"].values()
    assert layers[-1] == LIMITS and f"\ncontained by {', '.join(layers)}\n" in str(
        report
    )
    assert ("warning: " in str(report)) == bool(exposed) and not (
        NAMESPACES in layers and FILES in exposed
    )
    monkeypatch.setattr(process, "_LAYERS", ())
    assert main(["grade", str(mine), "--source", str(source)]) == 0
    said = capsys.readouterr().out.splitlines()[-3:]
    assert said[0] == "contained by limits"
    assert said[1].startswith(
        "warning: student code could reach the grader's files, the grader's processes, "
    )
    assert said[1].endswith("; grade in a container or a virtual machine") and said[
        2
    ].startswith("3 of 3 points")


def test_where_no_code_was_run_nothing_is_said_of_it(course, tmp_path):
    (tmp_path / "mine" / "01_double.py").mkdir()
    report = grade(tmp_path / "mine", source=tmp_path / "source")
    assert report.as_json()["containment"] is None and "contained" not in str(report)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("refused", "lost"),
    [
        ("sandbox.WITHOUT_USER = sandbox.WITH_USER = -1", {NAMESPACES}),
        slowly("sandbox.WITHOUT_USER = -1", {USER}),
        slowly("sandbox._MOUNT_SETATTR = -1", {NAMESPACES}),
        slowly("sandbox._CREATE = -1", {LANDLOCK}),
        slowly(
            "sandbox._CREATE = sandbox.WITHOUT_USER = sandbox.WITH_USER = -1",
            {NAMESPACES, LANDLOCK},
        ),
    ],
)
def test_what_the_system_refuses_is_said_to_be_missing_and_the_rest_is_in_force(
    course, tmp_path, monkeypatch, refused, lost
):
    """Numbers that no kernel knows make this one refuse, as other kernels do."""
    granted = course(SOLUTION).containment
    at_start(tmp_path, monkeypatch, refused)
    task = course(SOLUTION)
    assert task.passed and set(granted.layers) - set(
        task.containment.layers
    ) <= lost | {USER}
    assert not set(task.containment.layers) & (lost - {USER})
    assert ("the grader's files" in task.containment.exposed) == (
        {NAMESPACES, LANDLOCK} <= lost
    )


@pytest.mark.slow
def test_other_systems_have_limits_alone_and_grade_all_the_same(
    course, tmp_path, monkeypatch
):
    at_start(
        tmp_path,
        monkeypatch,
        "sandbox.sys = __import__('types').SimpleNamespace(platform='darwin')",
    )
    task = course(
        double("if number == 2: __import__('os')._exit(3)\nreturn 2 * number")
    )
    assert reasons(task) == [
        "it ended the whole process, with exit status 3; return a result instead",
        "",
        "",
    ]
    assert task.containment == Containment((LIMITS,), EVERYTHING)


@pytest.mark.slow
def test_two_tasks_of_a_grader_who_is_root_run_as_two_users(course):
    """The story: numbers taken within a namespace were the same for all, and so one
    task had the limit of two.
    """
    first, second = (course(attacker("print(os.getuid())")) for _ in range(2))
    assert (first.output != second.output) == (USER in first.containment.layers)

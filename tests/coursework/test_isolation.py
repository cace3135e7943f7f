"""Whatever a student's file does to its process, the grader goes on, and leaves nothing
behind.
"""

import os
import threading
from pathlib import Path

import pytest

import minipipe.coursework
from minipipe.coursework.process import _environment
from tests.coursework.hostile import running
from tests.coursework.small_course import SOLUTION, double, reasons
from tests.launch import slowly


@pytest.mark.slow
def test_a_loop_without_end_is_stopped_with_all_it_started(course):
    mark = f"1020.{os.getpid()}"
    forks = f"""
import os, sys
if os.fork() == 0:
    os.execvp("sleep", ["sleep", "{mark}"])
print("forked", flush=True)
while True:
    pass
"""
    task = course(double(forks), time_limit=4)
    assert (
        reasons(task)[0]
        == "it was stopped after 4 s; is there an endless loop, or far too much to try?"
    )
    assert reasons(task)[1:] == ["not reached: an earlier test used up the time"] * 2
    assert task.output == "forked\n" and not running(mark)


@pytest.mark.slow
def test_a_loop_at_import_is_stopped(course):
    task = course("while True: pass", time_limit=2)
    assert task.points == 0 and task.problem == (
        "01_double.py does not load: it was stopped after 2 s; is there an "
        "endless loop, or far too much to try?"
    )


@pytest.mark.parametrize(
    ("body", "reason"),
    [
        slowly(
            "import os; os._exit(0)",
            "it ended the whole process, with exit status 0; return a result instead",
        ),
        (
            "import os, signal; os.kill(os.getpid(), signal.SIGSEGV)",
            "it crashed (Segmentation fault",
        ),
        slowly("return bytes(1 << 36)", "it needed more memory than a task may use"),
    ],
)
def test_what_ends_a_process_costs_one_test_and_leaves_the_others_their_points(
    course, body, reason
):
    task = course(double(f"if number == 2:\n    {body}\nreturn 2 * number"))
    assert reasons(task)[0].startswith(reason) and reasons(task)[1:] == ["", ""]
    assert task.points == 2


@pytest.mark.slow
def test_nobody_is_asked_for_input(course):
    assert (
        reasons(course(double("return input()")))[0]
        == "it raised EOFError: EOF when reading a line"
    )


@pytest.mark.slow
def test_prints_are_kept_and_cut_and_never_block(course):
    task = course(
        double(
            "print('hello', number)\nfor _ in range(10000): print('x' * "
            "1000)\nreturn 2 * number"
        )
    )
    assert (
        task.passed
        and task.output.startswith("hello 2\nxxx")
        and len(task.output) == 2000
    )


@pytest.mark.slow
def test_what_is_printed_is_no_result(course):
    forged = '{"test": "test_two", "outcome": {"passed": true}, "nonce": ""}'
    body = (
        "import os\nfor fd in range(1, 20):\n    try: os.write(fd, "
        f"b'\\n{forged}\\n')\n    except OSError: pass\n"
    )
    task = course(double(f"{body}print('{forged}')\nreturn 7"))
    assert (
        task.points == 0
        and reasons(task)[0] == "its process returned an invalid result"
    )


@pytest.mark.slow
def test_a_channel_that_was_closed_costs_the_points_and_nothing_else(course):
    task = course(double("import os\nos.closerange(3, 64)\nreturn 2 * number"))
    assert task.points == 0 and "it ended the whole process" in reasons(task)[0]


def test_threads_and_processes_that_are_left_running_hold_nobody_up(course):
    before = (
        "import threading, time, subprocess, "
        "sys\nthreading.Thread(target=time.sleep, args=(100,)).start()\n"
    )
    before += (
        "subprocess.Popen([sys.executable, '-c', 'import time; time.sleep(100)'])\n"
    )
    assert course(double("return 2 * number", before), time_limit=15).passed


@pytest.mark.slow
def test_nothing_of_the_student_is_changed_and_nothing_else_is_imported(
    course, tmp_path
):
    text = double(
        "open('left behind', 'w').write('x')\nopen('01_double.py', "
        "'w').write('')\nreturn 2 * number"
    )
    (tmp_path / "mine" / "test_01_double.py").write_text("def test_two(task): pass\n")
    (tmp_path / "mine" / "minipipe.py").write_text("raise SystemExit\n")
    assert course(text).passed
    assert sorted(path.name for path in (tmp_path / "mine").iterdir()) == [
        "01_double.py",
        "minipipe.py",
        "test_01_double.py",
    ]
    assert (tmp_path / "mine" / "01_double.py").read_text() == text


def test_it_does_not_see_the_environment_of_the_one_who_grades(course, monkeypatch):
    monkeypatch.setenv("GRADER_TOKEN", "secret")
    assert (
        "None"
        in course(
            double("import os\nprint(os.environ.get('GRADER_TOKEN'))\nreturn 0")
        ).output
    )


@pytest.mark.slow
def test_many_gradings_leave_nothing_behind(course, tmp_path, monkeypatch):
    """A course has hundreds of students: no process, thread, open file or directory is
    left of any of them.
    """
    temporary = tmp_path / "temporary"
    temporary.mkdir()
    monkeypatch.setattr("tempfile.tempdir", str(temporary))
    course(SOLUTION)
    threads, files = (
        threading.active_count(),
        len(os.listdir("/proc/self/fd")) if os.path.isdir("/proc") else 0,
    )
    for _ in range(4):
        course(
            "import subprocess, sys\nsubprocess.Popen(['sleep', '100'])\n" + SOLUTION
        )
    assert threading.active_count() == threads and not list(temporary.iterdir())
    assert files == (len(os.listdir("/proc/self/fd")) if files else 0)


def test_it_says_what_it_does_not_protect_against():
    text = (
        Path(minipipe.coursework.__file__)
        .with_name("README.md")
        .read_text(encoding="utf-8")
    )
    assert "These risks remain" in text


@pytest.mark.parametrize("name", ["OPENBLAS_CORETYPE", "NPY_DISABLE_CPU_FEATURES"])
def test_a_student_computes_with_the_code_of_the_grader(name, monkeypatch, tmp_path):
    """The story: a test of bits failed for the solution itself where one kernel of
    OpenBLAS was asked for.
    """
    monkeypatch.setenv(name, "Haswell")
    monkeypatch.setenv("SECRET", "x")
    found = _environment(str(tmp_path), tmp_path / "student")
    assert found[name] == "Haswell" and "SECRET" not in found

"""A student's folder holds what its author wishes; it is read with the rights of the
one who grades.
"""

import os
import subprocess
import sys

import pytest

from minipipe.coursework import grade
from tests.coursework.small_course import SOLUTION, double


@pytest.fixture
def folder(course, tmp_path):
    """Return a function that makes 01_double.py of a student, by a function of its
    path, and grades it.
    """

    def graded(make):
        make(tmp_path / "mine" / "01_double.py")
        (task,) = grade(tmp_path / "mine", source=tmp_path / "source").tasks
        return task

    return graded


def large(path):
    """Make a file of 3 GiB that takes no space."""
    with open(path, "wb") as file:
        file.truncate(3 << 30)


@pytest.mark.parametrize(
    ("make", "reason"),
    [
        (os.mkfifo, "it is a pipe; expected a file"),
        (os.mkdir, "it is a directory; expected a file"),
        (lambda path: path.symlink_to("/dev/zero"), "it is a link; expected a file"),
        (lambda path: path.symlink_to("nowhere"), "it is a link; expected a file"),
        (large, "it has 3,221,225,472 bytes; the limit is 1,048,576"),
    ],
    ids=["pipe", "folder", "endless device", "broken link", "sparse file"],
)
def test_what_is_no_file_of_usual_size_is_neither_waited_for_nor_read(
    folder, make, reason
):
    """The story: a pipe, a link to /dev/zero and a sparse file of 3 GiB stopped the
    grader before any time limit was in force, and there was no report of anybody."""
    task = folder(make)
    assert task.points == 0 and task.problem.endswith(
        f"01_double.py' cannot be read: {reason}."
    )


@pytest.mark.parametrize(
    "target", ["source/01_double.py", "other/01_double.py", "secret.txt"]
)
def test_no_link_out_of_the_folder_is_followed(folder, tmp_path, target):
    """The story: a link to the solution, or to another student's file, earned every
    point, and one to a file that the instructor alone may read put a line of it into
    the report."""
    (tmp_path / "other").mkdir()
    (tmp_path / "other" / "01_double.py").write_text(double("return 2 * number"))
    (tmp_path / "secret.txt").write_text("root:$6$secret")
    task = folder(lambda path: path.symlink_to(tmp_path / target))
    assert (
        task.points == 0
        and "it is a link" in task.problem
        and "secret.txt" not in str(task)
    )
    assert "$6$" not in str(task.as_json())


# -- modules in the folder -------------------------------------------------------------

HIJACKED = "import os\nos.write(1, b'hijacked by ' + __name__.encode() + b'\\n')\n"
PYTHONS_OWN = sorted(
    name for name in sys.stdlib_module_names if not name.startswith("_")
)


def in_the_folder(folder, names, *command):
    """Grade a solution among files with names of modules, from within its folder;
    return what was printed.
    """
    (folder / "01_double.py").write_text(SOLUTION)
    for name in names:
        (folder / name).write_text(HIJACKED)
    words = [
        sys.executable,
        *command,
        "grade",
        ".",
        "--source",
        str(folder.parent / "source"),
    ]
    done = subprocess.run(
        words, cwd=folder, capture_output=True, text=True, timeout=60, check=False
    )
    return done.stdout + done.stderr


def loaded_by_dash_m(folder):
    """Return the modules that `python -m` itself imports before it runs any module, so
    before minipipe can prevent it.

    Where the environment's .pth files import `importlib`, none of them comes from the
    current folder; elsewhere all do.
    """
    (folder / "shown.py").write_text("import sys\nprint(*sys.modules)")
    words = [sys.executable, "-S", "-m", "shown"]
    return subprocess.run(
        words, cwd=folder, capture_output=True, text=True, timeout=60, check=True
    ).stdout.split()


def test_no_module_in_the_folder_is_run_by_who_grades_from_within_it(course, tmp_path):
    """The story: `python -m minipipe grade .` looked for every module in the current
    folder first, and so ran the student's json.py outside of all containment."""
    later = {*PYTHONS_OWN} - {*loaded_by_dash_m(tmp_path)}
    assert {"json", "subprocess", "random", "threading"} < later
    names = [
        f"{name}.py"
        for name in [
            *sorted(later),
            "numpy",
            "threadpoolctl",
            "sitecustomize",
            "conftest",
        ]
    ]
    out = in_the_folder(course.directory, names, "-m", "minipipe")
    assert "3 of 3 points" in out and "hijacked" not in out


@pytest.mark.slow
def test_without_the_removal_the_modules_of_the_folder_are_run(course):
    command = (
        "import sys; sys.path.insert(0, ''); from minipipe.cli import main; main()"
    )
    assert "hijacked by json" in in_the_folder(
        course.directory, ["json.py"], "-P", "-c", command
    )


@pytest.mark.slow
def test_a_python_path_into_the_folder_does_not_reach_the_process_of_the_student(
    course, tmp_path
):
    """The story: entries of PYTHONPATH are handed on, so that packages are found; one
    that is the student's folder would bring his files into the process before it is
    contained."""
    (course.directory / "json.py").write_text(HIJACKED)
    (course.directory / "01_double.py").write_text(SOLUTION)
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PYTHONPATH", str(course.directory))
        (task,) = grade(course.directory, source=tmp_path / "source").tasks
    assert task.passed and not task.output

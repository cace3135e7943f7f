"""After `pip install -e` of a clone, a program finds minipipe from any folder, whatever
installer its system has.
"""

import os
import re
import sys

import pytest

from tests.launch import ROOT
from tests.release.installed import called, copy_of_the_project, succeeded

pytestmark = pytest.mark.slow

# What `python3 -m venv` brings; each installs by another way: setup.py develop, a build
# of its own, and what is next.
INSTALLERS = {
    "Debian 12": ("pip==23.0", "setuptools==65.5.0"),
    "Ubuntu 24.04": ("pip==24.0",),
    "the newest": ("pip", "setuptools"),
}
# Folders of the home folder in which a program may lie; the clone has the name of the
# package.
FOLDERS = (".", "minipipe", "minipipe/minipipe", "elsewhere")
# Each in the folder of the program; a notebook imports as `python -c` does, from the
# current folder.
WAYS = {
    "as a file": ("python", "smallest.py"),
    "as a module": ("python", "-m", "smallest"),
    "as in a notebook": ("python", "-c", "exec(open('smallest.py').read())"),
    "on two ranks": ("mpirun", "-n", "2", "python", "smallest.py"),
    "as a test": (
        "pytest",
        "--quiet",
        "-p",
        "no:cacheprovider",
        "--rootdir=.",
        "test_own.py",
    ),
}
README = (ROOT / "README.md").read_text()
(SMALLEST,) = re.findall(
    r"^```python\n(.*?init_process_group.*?)^```$",
    README,
    flags=re.DOTALL | re.MULTILINE,
)
TEST = """
from minipipe import schedules

def test_a_schedule_has_all_its_actions():
    assert [len(actions) for actions in schedules.build("1f1b", 2, 2).actions] == [4, 4]
"""
IMPORT = "import minipipe.nn; print(minipipe.__file__)"


@pytest.fixture(scope="module", params=INSTALLERS)
def home(request, tmp_path_factory):
    """Return a folder with a clone called minipipe, which an environment beside it has
    installed, and own programs.
    """
    wanted = INSTALLERS[request.param]
    if request.param == "Debian 12" and sys.version_info >= (3, 12):
        pytest.skip("needs Python 3.11, the last on which pip 23.0 starts")
    folder = tmp_path_factory.mktemp("home")
    copy_of_the_project(folder / "minipipe")
    for name in FOLDERS:
        (folder / name).mkdir(exist_ok=True)
        (folder / name / "smallest.py").write_text(
            SMALLEST.replace("range(200)", "range(2)")
        )
        (folder / name / "test_own.py").write_text(TEST)
    succeeded([sys.executable, "-m", "venv", folder / "venv"], folder)
    pip = [folder / "venv" / "bin" / "python", "-m", "pip"]
    if called(
        [
            *pip,
            "download",
            "--no-deps",
            "--quiet",
            "--dest",
            folder / "reached",
            wanted[0],
        ],
        folder,
    ).returncode:
        pytest.skip("needs an index of packages")
    succeeded([*pip, "uninstall", "--quiet", "--yes", "setuptools"], folder)
    succeeded([*pip, "install", "--quiet", "--upgrade", *wanted], folder)
    # As the README says it, and with what the tests of a student need.
    succeeded(
        [*pip, "install", "--quiet", "-e", ".[mpi]", "pytest"], folder / "minipipe"
    )
    return folder


def asked(home, folder, command):
    """Run a program of the environment in a folder of the home folder."""
    programs = home / "venv" / "bin"
    return called(
        [programs / command[0], *command[1:]],
        home / folder,
        PATH=f"{programs}:{os.environ['PATH']}",
    )


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("folder", FOLDERS)
def test_a_program_finds_minipipe_from_any_folder(home, folder, way):
    done = asked(home, folder, WAYS[way])
    assert done.returncode == 0, done.stdout + done.stderr
    assert "rank 0 of " in done.stdout or "1 passed" in done.stdout


def test_a_module_that_is_added_to_the_clone_is_found_at_once(home):
    added = home / "minipipe" / "minipipe" / "added.py"
    added.write_text("print('found')")
    assert (
        asked(home, ".", ("python", "-c", "import minipipe.added")).stdout == "found\n"
    )
    added.unlink()


def test_a_folder_of_tests_or_tutorials_beside_a_program_comes_before_those_of_the_clone(
    home,
):
    """The clone's folder is on sys.path, at its end."""
    for name in ("tests", "tutorials"):
        folder = home / "elsewhere" / name
        folder.mkdir()
        (folder / "strategies.py").write_text("print('own')")
        said = asked(home, "elsewhere", ("python", "-c", f"import {name}.strategies"))
        assert said.stdout == "own\n", said.stderr


def test_an_installation_that_is_no_editable_one_takes_its_place_and_leaves_nothing_behind(
    home,
):
    """The last test of this file: it removes minipipe from the environment."""
    pip = ("python", "-m", "pip")
    installing = asked(home, "minipipe", (*pip, "install", "--quiet", "."))
    assert installing.returncode == 0, installing.stderr
    for folder in (".", "elsewhere"):
        assert "site-packages" in asked(home, folder, ("python", "-c", IMPORT)).stdout
    assert (
        asked(
            home, ".", (*pip, "uninstall", "--quiet", "--yes", "minipipe-mpi")
        ).returncode
        == 0
    )
    assert (
        "ModuleNotFoundError"
        in asked(home, "elsewhere", ("python", "-c", IMPORT)).stderr
    )
    assert not [
        path
        for path in (home / "venv").rglob("*")
        if "minipipe" in path.name and path.suffix != ".lock"
    ]

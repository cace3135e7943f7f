"""A release: what is in the two archives, and that all works where there is nothing but
the wheel.
"""

import os
import re
import shutil
import sys
import tarfile
import zipfile
from importlib.util import find_spec

import numpy as np
import pytest

import minipipe
from minipipe.cli.main import VERBS
from tests.launch import ROOT
from tests.release.installed import called, copy_of_the_project, succeeded, tracked
from tests.trace.written import recorded

needs_build = pytest.mark.skipif(
    not all(map(find_spec, ("build", "twine"))),
    reason="needs build and twine: pip install '.[release]'",
)
VERSION = minipipe.__version__
# What each verb is asked in a folder with a program and a student's work, its exit
# status, and what it says.
COMMANDS = {
    "schedules": ("schedules --ranks 2", 0, "1f1b "),
    "sweep": ("sweep --ranks 2 --microbatches 4 -o sweep.csv", 0, "wrote sweep.csv"),
    "show": ("show zb-h1 -o player.html", 0, "wrote player.html"),
    "check": ("check 1f1b", 0, "legal: 1f1b"),
    "simulate": ("simulate v-half --costs latency=0.1", 0, "makespan"),
    "trace": ("trace zb-v.0.json.gz zb-v.1.json.gz", 0, "measured: makespan"),
    "paper": ("paper megatron-table-1 --model 1.7B", 0, "error: mean"),
    "search": ("search --ranks 2 --microbatches 2 --seconds 1", 0, "makespan"),
    "step": ("step 1f1b --at 3", 0, "rank 1 begins 1F0"),
    "edit": ("edit --help", 0, "Edit a schedule in the browser"),
    "advise": ("advise --ranks 2 --seconds 0 train.py", 0, "schedule"),
    "compare": (
        "compare --ranks 2 --width 8 --length 4 --layers 2 --rounds 1",
        0,
        "is the fastest (measured): ",
    ),
    "referee": ("referee run.npz run.npz", 0, "verdict: no difference"),
    "export": (
        "export --ranks 1 --steps 1 -o exported train.py",
        0,
        "wrote rank0.py to exported",
    ),
    "run": ("run -n 2 train.py", 0, "loss 2."),
    "coursework": ("coursework another", 0, "wrote 17 tasks to another"),
    "assignment": ("assignment week-2 --total 50", 0, "wrote 5 tasks with 50 points"),
    "grade": ("grade mine --only 05_bubble", 0, "05_bubble"),
    "info": ("info", 0, f"minipipe     {VERSION}"),
}
PROGRAM = """
from minipipe import Pipeline, data, init_process_group, nn, optim
from minipipe.execution.checks.comparison import digest_of_files, program
from pathlib import Path

x, y = data.load_digits()
model = nn.Sequential(nn.Linear(64, 16), nn.Tanh(), nn.Linear(16, 10))
with init_process_group() as group:
    pipeline = Pipeline(model, group, loss=nn.CrossEntropyLoss(), num_microbatches=4)
    optimiser = optim.SGD(pipeline.parameters(), 1e-6)
    for _ in range(4):  # the third step of a compiled pipeline is the first that can be exported
        loss = pipeline.step(x[:64].reshape(64, -1), y[:64])
        optimiser.step()
    if group.rank == 0:
        assert program()["code of minipipe"] == f"blake2b {digest_of_files(Path(data.__file__).parents[1])}"
        print(f"loss {loss}")
"""

# Pyodide by the Python in it: real ones for what needs no NumPy, where the machine has
# another.
PYODIDE = {"3.12": "0.27.7", "3.14": "314.0.7"}
IN_PYODIDE = """
import { readFileSync } from "fs";
import { loadPyodide } from "./package/pyodide.mjs";
const pyodide = await loadPyodide();
pyodide.unpackArchive(new Uint8Array(readFileSync(process.argv[2])), "whl");
pyodide.runPython(readFileSync("figures.py", { encoding: "utf-8" }));
"""
FIGURES = """
import sys
import warnings

warnings.simplefilter("error")
from minipipe import Costs, render, schedules, simulate, verify
from minipipe.cli import main

for name in schedules.REGISTRY:
    schedule = schedules.build(name, 4, 8)
    verify(schedules.lower(schedule))
    timeline = simulate(schedule, Costs(latency=0.1))
    print(name, timeline.makespan, timeline.bubble_fraction, timeline.peak_activations)
    print(len(render.draw_text(timeline)), len(render.draw_svg(schedule)), len(render.draw_html(timeline)))
for words in ("schedules", "show zb-v", "check gpipe", "simulate v-half", "step 1f1b --at 3"):
    assert main(words.split()) == 0
assert not {"numpy", "mpi4py"} & set(sys.modules)
print(*sys.version_info[:2], sep=".")
"""


def test_each_verb_is_asked_from_the_wheel():
    assert list(COMMANDS) == list(VERBS)


@pytest.fixture(scope="module")
def built(tmp_path_factory):
    """Return the source archive, the wheel made from it, and the wheel made from the
    tree.
    """
    folder = tmp_path_factory.mktemp("release")
    copy_of_the_project(folder / "tree")
    build = [sys.executable, "-m", "build"]
    succeeded([*build, "--outdir", folder / "dist", folder / "tree"], folder)
    succeeded(
        [*build, "--wheel", "--outdir", folder / "direct", folder / "tree"], folder
    )
    (source,), (wheel,) = (
        (folder / "dist").glob("*.tar.gz"),
        (folder / "dist").glob("*.whl"),
    )
    return source, wheel, folder / "direct" / wheel.name


@pytest.fixture(scope="module")
def installed(built, tmp_path_factory):
    """Return the programs of an environment that has the wheel and its dependencies,
    and a folder with a program.
    """
    folder = tmp_path_factory.mktemp("installed")
    succeeded([sys.executable, "-m", "venv", folder / "venv"], folder)
    programs = folder / "venv" / "bin"
    succeeded([programs / "pip", "install", "--quiet", f"{built[1]}[mpi]"], folder)
    home = folder / "empty"
    home.mkdir()
    succeeded([programs / "minipipe", "coursework", "mine"], home)
    shutil.copy(ROOT / "tutorials" / "exercises" / "05_bubble.py", home / "mine")
    (home / "train.py").write_text(PROGRAM)
    for path in recorded("zb-v"):
        shutil.copy(path, home)
    np.savez(home / "run.npz", loss=np.ones(3))
    return programs, home


@needs_build
@pytest.mark.slow
def test_the_source_archive_builds_the_wheel_of_the_tree_and_has_every_file_of_the_project(
    built,
):
    source, wheel, direct = built
    files = [
        {each.filename: each.CRC for each in zipfile.ZipFile(path).infolist()}
        for path in (wheel, direct)
    ]
    assert files[0] == files[1]
    with tarfile.open(source) as archive:
        names = {
            name.partition("/")[2]
            for name in archive.getnames()
            if archive.getmember(name).isfile()
        }
    own = {name for name in names if name == "PKG-INFO" or ".egg-info/" in name}
    assert names - own == tracked()


@needs_build
@pytest.mark.slow
def test_the_wheel_has_the_package_and_the_exercises_and_nothing_else(built):
    names = {
        name
        for name in zipfile.ZipFile(built[1]).namelist()
        if ".dist-info/" not in name
    }
    package = {
        name
        for name in tracked()
        if name.startswith("minipipe/")
        and not name.endswith(("README.md", ".ruff.toml"))
    }
    exercises = {name for name in tracked() if name.startswith("tutorials/exercises/")}
    assert names == package | {
        name.replace("tutorials", "minipipe/coursework") for name in exercises
    }


@needs_build
@pytest.mark.slow
def test_the_metadata_is_accepted_and_the_description_is_rendered(built):
    said = succeeded(
        [sys.executable, "-m", "twine", "check", "--strict", *built[:2]],
        built[0].parent,
    ).stdout
    assert said.count("PASSED") == 2
    name = f"minipipe_mpi-{VERSION}.dist-info/METADATA"
    metadata = zipfile.ZipFile(built[1]).read(name).decode()
    assert (
        f"\nVersion: {VERSION}\n" in metadata
        and "\nLicense-Expression: MIT\n" in metadata
    )


@needs_build
@pytest.mark.slow
@pytest.mark.parametrize("verb", COMMANDS)
def test_a_verb_works_where_there_is_nothing_but_the_wheel(verb, installed):
    programs, home = installed
    words, status, answer = COMMANDS[verb]
    done = called(
        [programs / "minipipe", *words.split()],
        home,
        PATH=f"{programs}:{os.environ['PATH']}",
    )
    assert done.returncode == status and answer in done.stdout, (
        done.stdout + done.stderr
    )
    assert str(ROOT) not in done.stdout + done.stderr


@needs_build
@pytest.mark.slow
@pytest.mark.parametrize("place", ["minipipe/coursework/exercises", "elsewhere"])
def test_a_student_cannot_read_the_solution_in_the_package_but_what_else_is_installed(
    place, installed
):
    programs, home = installed
    (packages,) = (programs.parent / "lib").glob("python3*/site-packages")
    (packages / "elsewhere").mkdir(exist_ok=True)
    shutil.copy(
        ROOT / "tutorials" / "exercises" / "06_warmup.py", packages / "elsewhere"
    )
    reads = f"exec(pathlib.Path(numpy.__file__).parents[1].joinpath('{place}/06_warmup.py').read_text())\n"
    (home / "mine" / "06_warmup.py").write_text(
        f"import pathlib\nimport numpy\n{reads}"
    )
    done = called([programs / "minipipe", "grade", "mine", "--only", "06_warmup"], home)
    assert done.returncode == (0 if place == "elsewhere" else 1), (
        done.stdout + done.stderr
    )


@needs_build
@pytest.mark.slow
def test_ranks_agree_without_a_checkout_and_have_the_loss_of_one_process(installed):
    programs, home = installed
    alone = succeeded([programs / "python", "train.py"], home)
    both = succeeded(
        [programs / "mpirun", "-n", "2", programs / "python", "train.py"], home
    )
    assert alone.stdout == both.stdout and re.fullmatch(r"loss 2\.\d+\n", alone.stdout)


@needs_build
@pytest.mark.skipif(shutil.which("npm") is None, reason="needs npm")
@pytest.mark.slow
@pytest.mark.parametrize("version", PYODIDE)
def test_schedules_have_the_same_figures_and_pictures_in_other_pythons(
    version, built, tmp_path
):
    (tmp_path / "figures.py").write_text(FIGURES)
    (tmp_path / "try.mjs").write_text(IN_PYODIDE)
    succeeded(["npm", "pack", "--silent", f"pyodide@{PYODIDE[version]}"], tmp_path)
    succeeded(["tar", "xzf", *tmp_path.glob("pyodide-*.tgz")], tmp_path)
    printed = succeeded(["node", "try.mjs", built[1]], tmp_path).stdout
    here = succeeded(
        [sys.executable, "figures.py"], tmp_path, PYTHONPATH=str(ROOT)
    ).stdout
    assert printed.splitlines()[:-1] == here.splitlines()[:-1]
    assert printed.splitlines()[-1] == version

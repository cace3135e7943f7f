"""Imports point one way: the table of who may import whom, and what `import minipipe` loads."""

import ast
import subprocess
import sys
from pathlib import Path

import pytest

PACKAGE = Path(__file__).resolve().parent.parent / "minipipe"

# Part of the package -> what it may import: other parts of minipipe, and packages from outside besides the standard
# library. Within a part everything may import everything, except where the files are listed one by one.
TABLE = {
    "errors": set(),
    "version": set(),
    # numerics tower
    "backend": {"numpy", "cupy", "cupyx", "errors"},
    "recording": set(),
    "autograd": {"numpy", "errors", "backend", "recording"},
    "tensor": {"numpy", "errors", "backend", "recording", "autograd"},
    "held": {"numpy", "autograd", "backend", "tensor"},
    "place": {"errors"},
    "bundle": {"errors", "tensor"},
    "functional": {"errors", "backend", "autograd", "tensor", "place"},
    "nn": {"numpy", "errors", "backend", "recording", "autograd", "tensor", "place", "bundle", "functional"},
    "optim": {"numpy", "errors", "backend", "recording", "nn"},
    # schedule tower: standard library only
    "schedules": {"errors"},
    "render": {"schedules"},
    # bridge
    "comm": {"numpy", "errors", "backend", "threadpoolctl"},
    "comm.mpi": {"numpy", "errors", "backend", "comm", "mpi4py"},
    "pipeline": {
        "numpy",
        "errors",
        "backend",
        "recording",
        "autograd",
        "held",
        "tensor",
        "place",
        "bundle",
        "functional",
        "nn",
        "optim",
        "schedules",
        "comm",
        "version",
    },
    "data": {"numpy"},
    "stepper": {"errors", "schedules", "render"},
    "verbs": {"errors", "backend", "schedules", "render", "stepper", "comm", "version"},
    "coursework": {"numpy", "errors", "schedules"},
    "cli": {"errors", "verbs", "coursework", "version"},
    "__main__": {"cli"},
    "testing": {"numpy", "backend", "tensor", "place", "nn", "comm", "pipeline", "schedules"},
}


def part_of(module):
    """Return the row of the table for ``comm.mpi`` or ``functional.shape``: the longest that fits."""
    return module if module in TABLE else module.split(".")[0]


def imports_of(path):
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}: relative import"
            if node.module == "minipipe":
                yield from (f"minipipe.{alias.name}" for alias in node.names)
            else:
                yield node.module


FILES = sorted(path for path in PACKAGE.rglob("*.py") if path.parent != PACKAGE or path.stem != "__init__")


@pytest.mark.parametrize("path", FILES, ids=lambda path: str(path.relative_to(PACKAGE)))
def test_a_file_imports_only_what_stands_in_the_table(path):
    module = ".".join(path.relative_to(PACKAGE).with_suffix("").parts).removesuffix(".__init__")
    own = part_of(module)
    for imported in imports_of(path):
        top, _, rest = imported.partition(".")
        if top in sys.stdlib_module_names:
            continue
        target = part_of(rest) if top == "minipipe" else top
        if target == own or (module == "comm.launch" and target == "comm.mpi"):
            continue
        assert target in TABLE[own], f"{module} imports {imported}; {own} may import {sorted(TABLE[own])}"


def test_the_table_names_no_part_that_is_gone():
    present = {part_of(".".join(p.relative_to(PACKAGE).with_suffix("").parts).removesuffix(".__init__")) for p in FILES}
    assert set(TABLE) == present


def test_import_minipipe_loads_neither_mpi_nor_cupy_nor_matplotlib_and_prints_nothing():
    program = (
        "import sys, threading, minipipe\n"
        "unwanted = {'mpi4py', 'cupy', 'matplotlib', 'pytest', 'hypothesis'} & set(sys.modules)\n"
        "assert not unwanted, unwanted\n"
        "assert threading.active_count() == 1\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, cwd=PACKAGE.parent, check=False
    )
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")


@pytest.mark.parametrize("path", FILES, ids=lambda path: str(path.relative_to(PACKAGE)))
def test_every_public_module_says_what_it_offers(path):
    tree = ast.parse(path.read_text())
    names = {t.id for node in tree.body if isinstance(node, ast.Assign | ast.AnnAssign) for t in _targets(node)}
    assert "__all__" in names or path.stem.startswith("_"), f"{path} has no __all__"
    assert ast.get_docstring(tree), f"{path} has no docstring"


def _targets(node):
    targets = node.targets if isinstance(node, ast.Assign) else [node.target]
    return [target for target in targets if isinstance(target, ast.Name)]

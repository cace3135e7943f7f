"""The rules of the house: who imports whom, and where a truth is stated."""

import ast
import functools
import re
import subprocess
import sys
from pathlib import Path

import pytest

from minipipe import schedules
from tests.code_lines import parsed

PACKAGE = Path(__file__).resolve().parent.parent / "minipipe"

# The rooms from the ground up, those on a line beside each other: a file imports from
# its own room and from lines above.
FLOORS = [
    line.split()
    for line in """
        core.errors core.limits
        core.specs
        errors core.familiar core.texts
        io hints
        _lazy core
        simulation
        core.schedules core.autograd
        core.framing
        core.schedules.analysis core.tensor core.comm schedules autograd
        core.pytree core.joints schedules.analysis passes comm comm.job
        schedules.simulation core.functional parallel
        core.nn functional search data gpu
        core.execution core.sgd nn
        core.objective
        core.batch
        render optim
        render.stepper render.editor execution trace gpu
        core.pipeline
        compile
        tuning
        pipeline
        compile.export
        pipeline.checkpoint
        pipeline.elastic
        referee
        checkpoint elastic testing coursework cli.supervision
        cli
        __main__ __init__
    """.strip().splitlines()
]
FLOOR_OF = {room: floor for floor, rooms in enumerate(FLOORS) for room in rooms}
WITHOUT_NUMPY = {
    *("core", "simulation", "passes", "schedules", "search", "render", "trace"),
    *("errors", "io", "hints", "_lazy", "cli", "comm.job"),
}
WITH_NUMPY = {  # rooms of the half that trains
    *("core.sgd", "core.batch", "core.pipeline", "core.tensor", "core.pytree"),
    *("core.autograd", "core.comm", "core.functional", "core.nn", "core.execution"),
}
ONLY_HERE = {
    "mpi4py": {"core.comm.mpi_process", "cli.info"},
    "threadpoolctl": {"core.comm.host", "cli.info"},
    "cupy": {"autograd.devices", "gpu.kernels"},
    "cupyx": {"core.autograd.backend"},
    "ortools": {"search.exact"},
    "safetensors": {"pipeline.checkpoint.storage"},
    "cairosvg": {"render.files"},
    "argcomplete": {"cli.main"},
}  # what may be missing is imported in one place
# A file that opens one above it when it is called: a schedule or a timeline its
# picture, for a notebook; a group its channels, and the reduction, which is made of
# messages; a table the kinds of passes, and what they change of the core's; a model
# the GPU that it is moved to, with its kernels, and a warning of untrained arrays; an error code its
# earlier names.
DOORS = {
    ("core.schedules.written", "render.notebook"),
    ("core.comm.process_group", "parallel.reduction"),
    ("core.familiar", "hints"),
    ("core.comm.watch", "comm.job.watching"),
    ("core.values", "passes.all_kinds"),
    ("core.errors", "errors"),
    ("core.nn.module", "nn.untrained"),
    ("core.autograd.backend", "autograd.devices"),
    ("autograd.devices", "gpu"),
    ("core.comm.mpi", "comm.persistent"),
    ("core.comm.process_group", "comm.channel"),
}
FIRST_PATH = [
    *(
        "core.schedules.one_f_one_b",
        "core.schedules.action",
        "core.schedules.analysis.dependencies",
        "core.schedules.analysis.lowering",
    ),
    *(
        "core.execution.executor",
        "core.execution.handlers",
        "core.execution.stage",
        "core.functional.linear",
        "core.autograd.graph",
        "core.tensor",
    ),
    *("core.autograd.walk", "core.autograd.split", "core.comm.thread"),
]
FILES = {
    ".".join(path.relative_to(PACKAGE).with_suffix("").parts).removesuffix(
        ".__init__"
    ): path
    for path in sorted(PACKAGE.rglob("*.py"))
}
SOURCES = {module: path.read_text() for module, path in FILES.items()}
TREES = {module: parsed(path) for module, path in FILES.items()}
# {package: {name: its module}} for packages that load their names on demand; in the
# stub each name has a line.
STUBS = {
    ".".join(path.parent.relative_to(PACKAGE.parent).parts): {
        name: home
        for home, name in re.findall(
            r"^from (\S+) import (\w+) as \2$", path.read_text(), re.MULTILINE
        )
    }
    for path in sorted(PACKAGE.rglob("__init__.pyi"))
}


def room_of(module):
    """Return the longest part of a module's name that is a room."""
    parts = module.split(".")
    return next(
        (room for i in (3, 2, 1) if (room := ".".join(parts[:i])) in FLOOR_OF), parts[0]
    )


@functools.cache
def imports_of(module):
    """Return (module of minipipe or package from outside, whether it is imported inside
    a function).
    """
    inside = {
        id(node)
        for function in ast.walk(TREES[module])
        if isinstance(function, ast.FunctionDef | ast.AsyncFunctionDef)
        for node in ast.walk(function)
    }
    for_type_checkers = {
        id(node)
        for block in ast.walk(TREES[module])
        if isinstance(block, ast.If) and ast.unparse(block.test) == "TYPE_CHECKING"
        for node in ast.walk(block)
    }
    found = []
    for node in ast.walk(TREES[module]):
        if id(node) in for_type_checkers:
            continue
        if isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{module}: relative import"
            homes = STUBS.get(node.module, {})
            members = [f"{node.module}.{alias.name}" for alias in node.names]
            names = [
                name
                if name.removeprefix("minipipe.") in FILES
                else homes.get(alias.name, node.module)
                for name, alias in zip(members, node.names)
            ]
        else:
            continue
        for name in names:
            top, _, rest = name.partition(".")
            if top not in sys.stdlib_module_names:
                found.append(((rest if top == "minipipe" else top), id(node) in inside))
    return found


# Modules that a package offers as such; all others are inside.
PUBLIC_MODULES = {
    "errors",
    "core.errors",
    "core.tensor",
    "testing",
    "checkpoint",
    "elastic",
    "schedules.analysis.theory",
    "nn.initialisers",
}


# -- walls -----------------------------------------------------------------------------


def may_import(module, imported):
    """Say whether a file may import another, or a package from outside."""
    room, other = room_of(module), room_of(imported)
    if other in FLOOR_OF:
        return (
            other == room
            or FLOOR_OF[other] < FLOOR_OF[room]
            or (module, imported) in DOORS
        )
    if other == "numpy":
        return room in WITH_NUMPY or not {room, module.split(".")[0]} & WITHOUT_NUMPY
    return module in ONLY_HERE.get(other, {module})


def test_a_file_imports_only_from_its_own_room_and_from_floors_below():
    every = [
        (module, imported) for module in FILES for imported, _ in imports_of(module)
    ]
    assert [
        f"{module} imports {imported}"
        for module, imported in every
        if not may_import(module, imported)
    ] == []


@pytest.mark.parametrize(
    ("module", "imported"),
    [
        ("errors", "core.tensor"),
        ("core.comm.thread", "pipeline.pipeline"),
        ("core.schedules.action", "numpy"),
        ("schedules.simulation.costs", "numpy"),
        ("execution.plan", "mpi4py"),
    ],
)
def test_an_import_against_the_rules_is_found(module, imported):
    assert module in FILES and not may_import(module, imported)


def test_the_floors_name_every_room_and_none_that_is_gone():
    assert set(FLOOR_OF) == {room_of(module) for module in FILES}
    assert {name for name in ONLY_HERE.values() for name in name} <= set(FILES)


def test_files_import_one_way():
    """A package's ``__init__`` opens its room to others; within the room files name
    each other.
    """
    graph = {
        module: {
            other
            for other, is_inside in imports_of(module)
            if other in FILES and not is_inside
        }
        for module in FILES
    }
    assert_no_circle(graph)


def test_every_door_is_used_and_without_the_doors_not_even_inner_imports_make_a_circle():
    inner = {
        (module, imported)
        for module in FILES
        for imported, is_inside in imports_of(module)
        if is_inside
    }
    outer = {
        (module, imported)
        for module in FILES
        for imported, is_inside in imports_of(module)
        if not is_inside
    }
    assert inner | outer >= DOORS
    assert_no_circle(
        {
            module: {
                other
                for other, _ in imports_of(module)
                if other in FILES and (module, other) not in DOORS
            }
            for module in FILES
        }
    )


def test_schedules_need_neither_analysis_nor_simulation():
    modules = [
        f"minipipe.{module}"
        for module in FILES
        if room_of(module) in ("schedules", "core.schedules")
    ]
    program = (
        f"import sys, importlib\nfor name in {modules}: importlib.import_module(name)\n"
        "from minipipe import schedules\n[schedules.build(name, 4, 6) for name "
        "in schedules.REGISTRY]\n"
        "assert not {'minipipe.schedules.analysis', 'minipipe.core.schedules.analysis', "
        "'minipipe.schedules.simulation'} & set(sys.modules)\n"
    )
    subprocess.run([sys.executable, "-c", program], cwd=PACKAGE.parent, check=True)


def assert_no_circle(graph):
    finished, path = set(), []

    def visit(node):
        assert node not in path, " -> ".join([*path[path.index(node) :], node])
        if node not in finished and node in graph:
            path.append(node)
            for other in sorted(graph[node]):
                visit(other)
            path.pop()
            finished.add(node)

    for node in graph:
        visit(node)


@pytest.mark.parametrize(
    "graph",
    [
        {"a": {"b"}, "b": {"a"}},
        {"a": {"a"}},
        {"x": set(), "a": {"b", "x"}, "b": {"c"}, "c": {"x", "b"}},
    ],
)
def test_a_circle_is_found(graph):
    with pytest.raises(AssertionError, match="->"):
        assert_no_circle(graph)


@pytest.mark.parametrize("package", STUBS)
def test_a_stub_has_one_name_on_a_line_and_none_that_a_file_would_hide(package):
    module = package.removeprefix("minipipe.") if "." in package else "__init__"
    stub = FILES[module].with_suffix(".pyi").read_text()
    names = STUBS[package]
    assert len(names) == sum(
        line.startswith(("from ", "import ")) for line in stub.splitlines()
    ), "one on a line"
    hiding = {path.stem for path in FILES[module].parent.glob("*.py")} & {
        n for n, home in names.items() if home != package
    }
    at_once = {
        alias.name
        for n in TREES[module].body
        if isinstance(n, ast.ImportFrom)
        for alias in n.names
    }
    assert hiding <= at_once, "the import of a file would hide the name"


def test_packages_offer_the_names_of_their_stubs():
    """In another process, which has imported nothing else."""
    program = "\n".join(
        f"import {package} as p; names = {sorted(names)}\n"
        "assert p.__all__ == names and all(hasattr(p, n) and n in dir(p) for n "
        "in names), p"
        for package, names in STUBS.items()
    )
    subprocess.run([sys.executable, "-c", program], cwd=PACKAGE.parent, check=True)


# -- one truth, one place --------------------------------------------------------------


def neighbours_in(tree):
    """Yield the expressions ``stage + 1`` and ``stage - 1``, however the stage is
    called.
    """
    for node in ast.walk(tree):
        if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Add | ast.Sub):
            for stage, one in ((node.left, node.right), (node.right, node.left)):
                name = ast.unparse(stage)
                if (
                    isinstance(one, ast.Constant)
                    and one.value == 1
                    and re.search(r"\bs\b|stage\b(?! for)", name)
                ):
                    yield ast.unparse(node)


def test_the_neighbour_of_a_stage_is_computed_where_dependencies_are_declared():
    found = {module: list(neighbours_in(tree)) for module, tree in TREES.items()}
    # The declarations of the core are to replace the other file.
    homes = ["core.values", "core.schedules.analysis.dependencies"]
    computing = [module for module, expressions in found.items() if expressions]
    assert sorted(computing) == sorted(homes), found


@pytest.mark.parametrize(
    "text",
    [
        "stage + 1",
        "1 + stage",
        "action.stage - 1",
        "first_stage - 1",
        "[s + 1]",
        "int(a.stage) + 1",
    ],
)
def test_the_neighbour_of_a_stage_is_found_wherever_it_is_computed(text):
    assert list(neighbours_in(ast.parse(text)))


def test_the_readme_names_the_first_file_of_the_first_path_and_each_file_names_the_next():
    path = [f"{module.replace('.', '/')}.py" for module in FIRST_PATH]
    assert f"begin with `minipipe/{path[0]}`" in " ".join(
        (PACKAGE.parent / "README.md").read_text().split()
    )
    for number, (module, following) in enumerate(zip(FIRST_PATH, [*path[1:], ""]), 1):
        words = " ".join(ast.get_docstring(TREES[module]).split())
        stands = words.partition(
            f"File {number} of {len(FIRST_PATH)} on the first path"
        )[2]
        assert stands and following in stands, module


def test_whatever_needs_pytorch_says_so_by_its_name():
    """``.ci/run`` chooses by the name what it runs again where there is PyTorch."""
    for path in (PACKAGE.parent / "tests" / "numerics").glob("test_*.py"):
        asks = {"importorskip('torch'", "check_against_torch(", "_of_torch("}
        for node in parsed(path).body:
            if "torch" not in path.name and isinstance(
                node, ast.FunctionDef | ast.ClassDef
            ):
                assert "torch" in node.name or not any(
                    words in ast.unparse(node) for words in asks
                ), node.name


# -- doors of the whole house ----------------------------------------------------------


def test_import_minipipe_loads_nothing_else_not_even_from_the_standard_library():
    """``python -m minipipe`` imports the package before ``__main__`` takes the current
    folder out of the path.

    If ``minipipe/__init__.py`` imported ``json``, a student's ``json.py`` in that
    folder would run.
    """
    program = (
        f"import sys; sys.path.insert(0, {str(PACKAGE.parent)!r}); before = "
        f"{{*sys.modules}}; import minipipe\n"
        "assert {*sys.modules} - before == {'minipipe', 'minipipe._lazy'}, "
        "{*sys.modules} - before\n"
    )
    subprocess.run(
        [sys.executable, "-I", "-S", "-c", program], check=True
    )  # -S: as little as possible is loaded before


def test_import_minipipe_loads_neither_mpi_nor_numpy_and_prints_nothing():
    program = (
        "import sys, threading, minipipe, minipipe.comm.job.watchdog\n"
        "unwanted = {'numpy', 'mpi4py', 'cupy', 'matplotlib', 'pytest', "
        "'hypothesis'} & set(sys.modules)\n"
        "assert not unwanted, unwanted\n"
        "assert threading.active_count() == 1\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", program],
        capture_output=True,
        text=True,
        cwd=PACKAGE.parent,
        check=False,
    )
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")


def test_schedules_verifier_simulator_and_pictures_need_neither_numpy_nor_mpi_nor_a_thread():
    """In an interpreter in which NumPy and mpi4py cannot be imported, and in which no
    thread can be started.
    """
    program = """
import builtins, sys, threading
class Refused:
    def find_spec(self, name, path=None, target=None):
        if name.split(".")[0] in ("numpy", "mpi4py", "cupy"):
            raise AssertionError(f"{name} was imported")
sys.meta_path.insert(0, Refused())
def start(self):
    raise AssertionError("a thread was started")
threading.Thread.start = start

from minipipe import Costs, render, schedules, simulate, verify
from minipipe.cli import main
names = list(schedules.REGISTRY)
for name in names:
    schedule = schedules.build(name, 4, 6)
    verify(schedule)
    verify(schedules.lower(schedule))
    timeline = simulate(schedule, Costs(latency=0.5))
    assert schedules.Schedule.from_text(schedule.to_text(), name).actions == schedule.actions
    for drawn in (render.draw_text(timeline), render.draw_svg(schedule, messages=True), render.draw_html(timeline)):
        assert len(drawn) > 100
    for command in (["show", name], ["check", name], ["simulate", name], ["step", name, "--at", "3"]):
        assert main(command) == 0
assert main(["schedules"]) == 0
print(len(names))
"""
    done = subprocess.run(
        [sys.executable, "-c", program],
        capture_output=True,
        text=True,
        cwd=PACKAGE.parent,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines()[-1] == str(len(schedules.REGISTRY))


def test_a_public_module_lists_what_it_offers_and_inside_an_underscore_says_what_it_does_not():
    for module, tree in TREES.items():
        names = {
            t.id
            for node in tree.body
            if isinstance(node, ast.Assign | ast.AnnAssign)
            for t in _targets(node)
        }
        is_public = FILES[module].name == "__init__.py" or module in PUBLIC_MODULES
        assert ("__all__" in names) == is_public, (
            f"{module}: packages and PUBLIC_MODULES have an __all__, others none"
        )
        assert ast.get_docstring(tree), f"{module} has no docstring"


def _targets(node):
    targets = node.targets if isinstance(node, ast.Assign) else [node.target]
    targets = [
        element for target in targets for element in getattr(target, "elts", [target])
    ]
    return [target for target in targets if isinstance(target, ast.Name)]

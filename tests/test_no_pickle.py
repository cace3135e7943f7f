"""No pickle, neither in the source nor on the wire: what is read and what arrives is
data, and never runs.
"""

import ast
from pathlib import Path

import pytest

from tests.code_lines import tree_of
from tests.launch import mpirun, needs_mpi

ROOT = Path(__file__).resolve().parent.parent
SOURCES = {
    str(path.relative_to(ROOT)): path.read_text()
    for folder in ("minipipe", "tutorials")
    for path in sorted((ROOT / folder).rglob("*.py"))
}
MODULES = {
    "pickle",
    "_pickle",
    "cPickle",
    "marshal",
    "shelve",
    "dill",
    "cloudpickle",
    "joblib",
    "yaml",
    "jsonpickle",
}
# Methods of mpi4py that pickle; ours of the same names belong to a ProcessGroup, which
# is never called comm.
PICKLING = {
    *(
        "send",
        "recv",
        "isend",
        "irecv",
        "ssend",
        "bsend",
        "issend",
        "ibsend",
        "sendrecv",
        "mrecv",
        "imrecv",
    ),
    *(
        "bcast",
        "scatter",
        "gather",
        "allgather",
        "alltoall",
        "reduce",
        "allreduce",
        "scan",
        "exscan",
    ),
}
# A graded answer is a program, and runs where a module would be imported. The others
# run a text that they have written.
RUNS_TEXT = {
    *(
        "minipipe/coursework/checking.py",
        "minipipe/compile/sections.py",
        "minipipe/compile/program.py",
    ),
    *(
        "minipipe/core/autograd/calls.py",
        "minipipe/execution/source.py",
        "minipipe/pipeline/repeating.py",
    ),
}


def dangers(source, runs_text=False):
    """Yield each expression in a source that unpickles, or runs a text."""
    for node in ast.walk(tree_of(source)):
        if isinstance(node, ast.Import | ast.ImportFrom):
            names = (
                [node.module or ""]
                if isinstance(node, ast.ImportFrom)
                else [alias.name for alias in node.names]
            )
            if any(name.split(".")[0] in MODULES for name in names):
                yield ast.unparse(node)
        elif isinstance(node, ast.Call) and is_dangerous(node, runs_text):
            yield ast.unparse(node)


def is_dangerous(call, runs_text):
    function, options = (
        call.func,
        {keyword.arg: keyword.value for keyword in call.keywords},
    )
    if isinstance(function, ast.Name):
        return function.id in ("eval", "exec", "__import__") and not runs_text
    if not isinstance(function, ast.Attribute):
        return False
    owner = ast.unparse(function.value).rpartition(".")[2]
    allows = options.get("allow_pickle", ast.Constant(False))
    return (
        (
            owner in ("np", "numpy", "cp", "cupy")
            and not (isinstance(allows, ast.Constant) and allows.value is False)
        )
        or (
            owner in ("np", "numpy")
            and function.attr in ("load", "save")
            and len(call.args) > 2
        )  # by position
        or (
            function.attr in PICKLING
            and (owner.endswith("comm") or owner in ("COMM_WORLD", "COMM_SELF"))
        )
        or (owner == "MPI" and function.attr == "pickle")
        or (function.attr in ("loads", "Unpickler") and owner in MODULES)
    )


def test_no_file_unpickles_or_runs_a_text():
    assert {
        file: found
        for file, source in SOURCES.items()
        if (found := [*dangers(source, file in RUNS_TEXT)])
    } == {}


@pytest.mark.parametrize(
    "source",
    [
        "import pickle",
        "from pickle import loads",
        "import shelve as s",
        "def f():\n    import joblib.numpy_pickle",
        "np.load(path, allow_pickle=True)",
        "numpy.load(path, None, True)",
        "np.load(path, allow_pickle=flag)",
        "eval(text)",
        "exec(compile(text, 'x', 'exec'))",
        "self._comm.bcast(array)",
        "comm.allgather(1)",
        "MPI.COMM_WORLD.send(x, 1)",
        "yaml.load(x); import yaml",
    ],
)
def test_each_danger_is_found(source):
    assert list(dangers(source))


@pytest.mark.parametrize(
    "source",
    [
        "np.load(path, allow_pickle=False)",
        "np.load(p, mmap_mode='r')",
        "comm.Isend(b, 1)",
        "group.send(x, 1)",
    ],
)
def test_what_is_harmless_is_not_found(source):
    assert not list(dangers(source))


@needs_mpi
@pytest.mark.slow
def test_every_message_between_ranks_begins_with_our_header():
    """All that two ranks of a pipeline send each other, with halves, bundles of several
    arrays and collectives.
    """
    done = mpirun(2, "tests/comm/messages_over_mpi.py")
    assert done.code == 0, done.err
    first, second = (int(line.split()[-1]) for line in sorted(done.out.splitlines()))
    assert first > 20 and second > 20

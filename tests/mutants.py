"""Small random faults in the package, one at a time: does a test notice each of them?

    python -m tests.mutants --count 116 --seed 1 [--rooms search comm] [--list]

Each fault is drawn from (seed, number), written into a clone of the last commit, and
met by the tests of its room; if they pass, by the whole suite. What survives is either
the same program in other words, or a hole in the tests.

References
---------- DeMillo, Lipton, Sayward, "Hints on Test Data Selection: Help for the
Practicing Programmer", 1978.
"""

import argparse
import ast
import os
import random
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import NamedTuple

TOP = Path(__file__).resolve().parent.parent
OTHERWISE = {
    **{
        ast.Lt: ast.LtE,
        ast.LtE: ast.Lt,
        ast.Gt: ast.GtE,
        ast.GtE: ast.Gt,
        ast.Eq: ast.NotEq,
        ast.NotEq: ast.Eq,
    },
    **{
        ast.In: ast.NotIn,
        ast.NotIn: ast.In,
        ast.Is: ast.IsNot,
        ast.IsNot: ast.Is,
        ast.And: ast.Or,
        ast.Or: ast.And,
    },
    **{
        ast.Add: ast.Sub,
        ast.Sub: ast.Add,
        ast.Mult: ast.FloorDiv,
        ast.FloorDiv: ast.Mult,
        ast.Div: ast.Mult,
    },
}
OTHER_NAMES = {
    "min": "max",
    "max": "min",
    "any": "all",
    "all": "any",
    "sorted": "list",
    "reversed": "list",
}
# What a tool for types or a reader of documentation would notice, and no test can.
NEVER_RUN = ("TYPE_CHECKING", "__all__", "__slots__")
# for one fault and the whole suite: a fault that hangs is one that was noticed
MOST_SECONDS = 1200


class Fault(NamedTuple):
    """One place of a file and what stands there instead."""

    path: Path
    line: int
    first: int  # where in the file it begins and ends, in bytes
    last: int
    after: str

    def __str__(self):
        text = (TOP / self.path).read_bytes()[self.first : self.last].decode()
        before, after = (" ".join(text.split())[:60] for text in (text, self.after))
        return f"{self.path}:{self.line}: {before}  ->  {after}"

    @property
    def room(self):
        return self.path.relative_to("minipipe").parts[0].removesuffix(".py")

    def apply(self, top):
        source = (top / self.path).read_bytes()
        (top / self.path).write_bytes(
            source[: self.first] + self.after.encode() + source[self.last :]
        )


def faults_in(path):
    """Yield every fault of one file."""
    source = path.read_text()
    starts = [0]
    for line in source.splitlines(keepends=True):
        starts.append(starts[-1] + len(line.encode()))
    for node, after in _changes(ast.parse(source)):
        first, last = (
            starts[node.lineno - 1] + node.col_offset,
            starts[node.end_lineno - 1] + node.end_col_offset,
        )
        yield Fault(path.relative_to(TOP), node.lineno, first, last, after)


def _changes(node):
    """Yield (node, the text in its place) for the node and what is in it."""
    if isinstance(node, ast.JoinedStr | ast.arguments) or _is_never_run(node):
        return
    yield from _expressions(node) if isinstance(node, ast.expr) else _statements(node)
    for name, value in ast.iter_fields(node):
        if name in ("annotation", "returns", "decorator_list"):
            continue
        for child in value if isinstance(value, list) else [value]:
            if isinstance(child, ast.AST):
                yield from _changes(child)


def _is_never_run(node):
    if isinstance(node, ast.If):
        return ast.unparse(node.test) in NEVER_RUN
    if isinstance(node, ast.Assign):
        return ast.unparse(node.targets[0]) in NEVER_RUN
    return isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant)


def _expressions(node):
    swap = lambda operator: OTHERWISE[type(operator)]()
    match node:
        case (
            ast.Compare(ops=[operator])
            | ast.BinOp(op=operator)
            | ast.BoolOp(op=operator)
        ) if type(operator) in OTHERWISE:
            field = (
                {"ops": [swap(operator)]}
                if isinstance(node, ast.Compare)
                else {"op": swap(operator)}
            )
            yield node, _text(node, **field)
        case ast.UnaryOp(op=ast.Not()):
            yield node, f"({ast.unparse(node.operand)})"
        case ast.Constant(value=bool() as value):
            yield node, repr(not value)
        case ast.Constant(value=int() | float() as value):
            yield node, repr(value + 1)
        case ast.IfExp():
            yield node, _text(node, body=node.orelse, orelse=node.body)
        case ast.Name(id=name) if name in OTHER_NAMES:
            yield node, OTHER_NAMES[name]


def _statements(node):
    match node:
        case ast.If(test=test) | ast.While(test=test):
            yield test, f"(not ({ast.unparse(test)}))"
        case ast.Expr() | ast.AugAssign() | ast.Raise() | ast.Delete():
            yield node, "pass"
        case ast.Assign(targets=[ast.Attribute() | ast.Subscript()]):
            yield node, "pass"
        case ast.Return(value=value) if (
            value is not None and ast.unparse(value) != "None"
        ):
            yield node, "return None"
        case ast.Break():
            yield node, "continue"
        case ast.Continue():
            yield node, "break"


def _text(node, **fields):
    kept = {name: getattr(node, name) for name in node._fields}
    return f"({ast.unparse(type(node)(**{**kept, **fields}))})"


def first_failure(fault, processes, is_quick):
    """Return what a run of the tests with the fault printed first of a failure, or
    None; without a fault: the suite.
    """
    with tempfile.TemporaryDirectory() as folder:
        subprocess.run(["git", "clone", "--quiet", str(TOP), folder], check=True)
        if fault:
            fault.apply(Path(folder))
            found = _run(folder, near(fault.path), processes)
            if found or is_quick:
                return found
        return _run(folder, [], processes)


# Folders that test several packages, beside the one of each: what layers and optimisers
# compute, and whole steps.
SHARED = {
    **{
        "execution": ["tests/pipeline"],
        "nn": ["tests/numerics"],
        "optim": ["tests/numerics"],
    },
    **{
        "functional": ["tests/numerics"],
        "tensor": ["tests/numerics"],
        "simulation": ["tests/schedules/simulation"],
    },
}


def near(path):
    """Return the tests of the deepest room of a file that has some, and those that the
    room shares with others.
    """
    parts = path.relative_to("minipipe").with_suffix("").parts
    if parts[0] == "core" and len(parts) > 2:  # tested with the outer package
        parts = parts[1:]
    names = [
        name
        for i in range(len(parts), 0, -1)
        for name in ("/".join(parts[:i]), f"test_{parts[i - 1]}.py")
    ]
    found = [f"tests/{name}" for name in names if (TOP / "tests" / name).exists()]
    return found[:1] + SHARED.get(parts[0], []) or ["tests/numerics", "tests/pipeline"]


def _run(folder, tests, processes):
    path = os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]])
    environment = {
        **os.environ,
        "PATH": path,
        "PYTHONPATH": folder,
        "PYTHONDONTWRITEBYTECODE": "1",
    }
    command = [
        sys.executable,
        "-m",
        "pytest",
        "-x",
        "-q",
        "-n",
        str(processes),
        "-p",
        "no:cacheprovider",
        *tests,
    ]
    options = {
        "cwd": folder,
        "env": environment,
        "capture_output": True,
        "text": True,
        "check": False,
    }
    try:
        done = subprocess.run(command, timeout=MOST_SECONDS, **options)
    except subprocess.TimeoutExpired:
        return "no end"
    if not done.returncode:
        return None
    lines = [
        line
        for line in done.stdout.splitlines()
        if line.startswith(("FAILED", "ERROR"))
    ]
    return lines[0].split(" - ")[0] if lines else f"exit {done.returncode}"


def main():
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--count", type=int, default=116)
    parser.add_argument("--first", type=int, default=0)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument(
        "--rooms",
        nargs="+",
        metavar="ROOM",
        help="folders and files of minipipe/; without: all",
    )
    parser.add_argument("--processes", type=int, default=2)
    parser.add_argument(
        "--quick", action="store_true", help="ask the tests of its room alone"
    )
    parser.add_argument(
        "--list", action="store_true", help="only say what would be tried"
    )
    options = parser.parse_args()
    faults = [
        fault
        for path in sorted((TOP / "minipipe").rglob("*.py"))
        for fault in faults_in(path)
    ]
    faults = [
        fault for fault in faults if not options.rooms or fault.room in options.rooms
    ]
    drawn = [
        (number, random.Random(f"{options.seed} {number}").choice(faults))
        for number in range(options.first, options.first + options.count)
    ]
    if options.list:
        print(*(f"{number} {fault}" for number, fault in drawn), sep="\n")
        return
    if not options.quick and (failed := first_failure(None, options.processes, False)):
        raise SystemExit(f"The tests fail without any fault: {failed}")
    survivors = 0
    for number, fault in drawn:
        print(number, fault, end="  ", flush=True)
        found = first_failure(fault, options.processes, options.quick)
        survivors += found is None
        print(found or "SURVIVES", flush=True)
    print(f"{options.count - survivors} of {options.count} were noticed")


if __name__ == "__main__":
    main()

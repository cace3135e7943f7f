"""How much code there is to read: the whole, the core, the first path, a file, a function, a file of tests."""

import pytest

from tests.code_lines import code_lines, functions
from tests.test_house import FILES, FIRST_PATH, PACKAGE, SOURCES

CORE = [
    *(
        "autograd",
        "tensor",
        "comm.launch",
        "comm.message",
        "comm.mpi",
        "comm.one_rank",
        "comm.process_group",
    ),
    *("comm.switchboard", "comm.thread"),
    *map(
        "execution.".__add__,
        ["plan", "payload", "stage", "batch", "record", "executor"],
    ),
    *map("pipeline.".__add__, ["intake", "parameters", "pipeline"]),
    "execution.checks.calls",
    *map("schedules.analysis.".__add__, ["activations", "dependencies", "lowering", "theory"]),
    *map("schedules.analysis.".__add__, ["verifier", "walk"]),
    *map("functional.".__add__, ["elementwise", "operators", "reduction", "shape", "linear"]),
    *map("schedules.".__add__, ["action", "action_table", "text", "placement", "transforms", "registry"]),
    *map("schedules.".__add__, ["gpipe", "one_f_one_b", "zero_bubble"]),
]
# Lines of code: the rooms, their budget, and by how much they may still exceed it.
BUDGETS = {"core": (CORE, 4000, 639), "first path": (FIRST_PATH, 1000, 0)}
MOST_IN_A_FILE, MOST_IN_A_FUNCTION = 300, 40


def belongs(module, rooms):
    return any(module == room or module.startswith(f"{room}.") for room in rooms)


@pytest.mark.parametrize("name", BUDGETS)
def test_the_code_of_the_core_and_of_the_first_path_keeps_its_budget(name):
    rooms, budget, still_over = BUDGETS[name]
    lines = {module: len(code_lines(SOURCES[module])) for module in FILES if belongs(module, rooms)}
    assert set(rooms) <= {room for room in rooms if any(belongs(module, [room]) for module in lines)}
    total = sum(lines.values())
    print(f"\n{name}: {total} lines of code in {len(lines)} files, the budget is {budget}")
    assert total <= budget + still_over, f"{name} has {total} lines of code: {total - budget} over its budget"
    assert not still_over or total > budget + still_over - 50, (
        f"{name} has shrunk: set what it is over to {total - budget}"
    )


@pytest.mark.parametrize("path", FILES.values(), ids=lambda path: str(path.relative_to(PACKAGE)))
def test_no_file_and_no_function_is_long(path):
    source = path.read_text()
    assert len(code_lines(source)) <= MOST_IN_A_FILE
    long = {function: lines for function, lines in functions(source) if lines > MOST_IN_A_FUNCTION}
    assert not long


TESTS = PACKAGE.parent / "tests"


def test_tests_follow_the_rooms_in_files_of_at_most_400_lines():
    folders = {path.parent.relative_to(TESTS).parts[0] for path in TESTS.glob("*/**/*.py")}
    beside_rooms = {"numerics", "benchmarks", "browser", "faults", "gpu", "hosts", "slow", "tutorials"}
    assert folders - beside_rooms <= {path.name for path in PACKAGE.iterdir() if path.is_dir()}
    long = {str(path): count for path in TESTS.rglob("*.py") if (count := path.read_text().count("\n")) > 400}
    assert not long


def test_lines_of_code_are_neither_docstrings_nor_comments_nor_blank():
    head, body = (
        '"""One.\n\nTwo."""\n\n# three\nx = """four\nfive"""\n',
        '    "six"\n    return (\n        1  # seven\n    )\n',
    )
    source = f"{head}\n\ndef f():\n{body}"
    assert code_lines(source) == {6, 7, 10, 12, 13, 14}
    assert list(functions(source)) == [("f", 4)]

"""The faults that tests/mutants.py draws: each is one change, and still Python."""

import ast
import random
import shutil
from pathlib import Path

import pytest

from tests.launch import slowly
from tests.mutants import TOP, faults_in, near

PLACES = sorted((TOP / "minipipe").rglob("*.py"))


@pytest.mark.parametrize("number", [*range(5), *map(slowly, range(5, 20))])
def test_a_fault_changes_one_place_and_leaves_python(tmp_path, number):
    generator = random.Random(number)
    fault = generator.choice(
        [fault for path in generator.sample(PLACES, 5) for fault in faults_in(path)]
    )
    copy = tmp_path / fault.path
    copy.parent.mkdir(parents=True)
    shutil.copy(TOP / fault.path, copy)
    before = copy.read_bytes()
    fault.apply(tmp_path)
    after = copy.read_bytes()
    assert ast.dump(ast.parse(before)) != ast.dump(ast.parse(after))
    assert after.startswith(before[: fault.first]) and after.endswith(
        before[fault.last :]
    )


def test_every_kind_of_fault_is_drawn(tmp_path, monkeypatch):
    text = (
        "if a < b and not c:\n    d.e = min(1, 2.5) if True else x + y\n    f(a)\n   "
        " raise g\nreturn_ = [0]\n"
    )
    (tmp_path / "module.py").write_text(text)
    monkeypatch.setattr("tests.mutants.TOP", tmp_path)
    drawn = {fault.after for fault in faults_in(tmp_path / "module.py")}
    assert {
        "(a <= b)",
        "(a < b or not c)",
        "(c)",
        "pass",
        "max",
        "2",
        "3.5",
        "False",
        "(x - y)",
        "1",
    } <= drawn
    assert (
        "(not (a < b and (not c)))" in drawn
        and "(x + y if True else min(1, 2.5))" in drawn
    )


def test_a_fault_of_any_file_is_met_by_tests_that_are_there():
    found = {path: near(path.relative_to(TOP)) for path in PLACES}
    assert all(found.values())
    assert {
        name for names in found.values() for name in names if not (TOP / name).exists()
    } == set()


def test_a_fault_is_met_by_the_tests_of_its_package_first():
    assert near(Path("minipipe/execution/timeline.py")) == [
        "tests/execution",
        "tests/pipeline",
    ]
    assert near(Path("minipipe/execution/checks/finite.py")) == [
        "tests/execution/checks",
        "tests/pipeline",
    ]
    assert near(Path("minipipe/core/nn/parameter.py")) == ["tests/nn", "tests/numerics"]
    assert near(Path("minipipe/tuning/race.py")) == ["tests/tuning"]

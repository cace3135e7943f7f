"""CONTRIBUTING.md is short, and its worked examples run as it says."""

import os
import re
import shutil
import subprocess
import sys
from unittest.mock import patch

import pytest

from minipipe.core.values import KINDS, NOUNS
from minipipe.passes.all_kinds import ADDED
from tests.launch import ROOT

TEXT = (ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8")
EXAMPLES = re.findall(
    r"^### ([^\n]+)\n\n```python\n(.+?)^```", TEXT, re.MULTILINE | re.DOTALL
)


def test_it_has_at_most_150_lines_of_88_columns():
    lines = TEXT.splitlines()
    assert len(lines) <= 150 and max(map(len, lines)) <= 88


def test_each_worked_example_passes_its_own_test():
    """In the order of the page: the layer uses the operation."""
    namespace, titles = {}, [title for title, _ in EXAMPLES]
    kind = "A kind of instruction, and the pass that adds it"
    assert titles == ["A schedule", kind, "An operation", "A layer"]
    assert ADDED.keys() <= KINDS.keys()  # they remain
    with patch.dict(KINDS), patch.dict(NOUNS):  # the page declares a kind
        for title, program in EXAMPLES:
            before = set(namespace)
            exec(compile(program, f"CONTRIBUTING.md: {title}", "exec"), namespace)
            tests = [
                name
                for name in namespace
                if name.startswith("test_") and name not in before
            ]
            assert len(tests) == 1, title
            namespace[tests[0]]()


# -- the schedule gets a name ----------------------------------------------------------


def added_lines():
    """Return (file, line) for the lines that the page adds to give its schedule a
    name.
    """
    (block,) = re.findall(r"^```text\n(.+?)^```", TEXT, re.MULTILINE | re.DOTALL)
    return [line.split(maxsplit=1) for line in block.splitlines()]


def insert(path, line):
    """Add an entry above that of GPipe."""
    lines = path.read_text(encoding="utf-8").splitlines(keepends=True)
    (place,) = [
        number for number, each in enumerate(lines) if each.startswith('    "gpipe": ')
    ]
    path.write_text(
        "".join([*lines[:place], f"    {line}\n", *lines[place:]]), encoding="utf-8"
    )


def the_builder_alone():
    """Return the function of the schedule with the imports that it needs."""
    imports, rest = dict(EXAMPLES)["A schedule"].split("\ndef gpipe_in_groups")
    needed = [
        line
        for line in imports.splitlines()
        if re.match(r"from minipipe\.(core\.)?schedules\.", line)
    ]
    return "\n".join([*needed, f"def gpipe_in_groups{rest.split('def test_')[0]}"])


@pytest.fixture
def changed_copy(tmp_path):
    """A copy of the project with the schedule of the page, made as the page says."""
    for name in ("minipipe", "tests"):
        shutil.copytree(
            ROOT / name,
            tmp_path / name,
            ignore=shutil.ignore_patterns("__pycache__", "node_modules"),
        )
    for name in ("setup.cfg", "README.md"):
        shutil.copy(ROOT / name, tmp_path)
    package = tmp_path / "minipipe" / "schedules"
    (package / "gpipe_in_groups.py").write_text(the_builder_alone(), encoding="utf-8")
    for name, line in added_lines():
        insert(next(package.rglob(name)), line)
    return tmp_path


@pytest.mark.slow
def test_the_schedule_gets_its_name_from_the_lines_of_the_page(changed_copy):
    def run(*words):
        environment = {**os.environ, "PYTHONPATH": str(changed_copy)}
        done = subprocess.run(
            [sys.executable, "-m", *words],
            cwd=changed_copy,
            env=environment,
            capture_output=True,
            text=True,
            check=False,
        )
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout

    assert "drains often" in run("minipipe", "schedules")
    assert "0F3" in run("minipipe", "show", "gpipe-in-groups", "--format", "csv")
    run("minipipe", "check", "gpipe-in-groups")
    laws = run(
        "pytest",
        "-q",
        "-p",
        "no:cacheprovider",
        "tests/schedules/analysis/test_every_schedule.py",
    )
    assert "passed" in laws


@pytest.mark.slow
def test_then_only_docstrings_and_all_are_asked_for(changed_copy):
    """Newcomers are told so, and should not have to read other tests that fail."""
    files = (
        "test_house.py",
        "schedules/test_builders.py",
        "schedules/analysis/test_theory.py",
    )
    done = subprocess.run(
        [
            sys.executable,
            "-m",
            "pytest",
            "-q",
            "-p",
            "no:cacheprovider",
            *(f"tests/{file}" for file in files),
        ],
        cwd=changed_copy,
        env={**os.environ, "PYTHONPATH": str(changed_copy)},
        capture_output=True,
        text=True,
        check=False,
    )
    failed = re.findall(r"^FAILED [^:]+::(\w+)", done.stdout, re.MULTILINE)
    assert sorted(failed) == [
        "test_a_public_module_lists_what_it_offers_and_inside_an_underscore_says_what_it_does_not",
        "test_its_documentation_says_where_it_is_from_and_the_registry_what_it_trades",
        "test_the_drawing_in_its_documentation_is_its_tick_grid",
    ], done.stdout[-3000:]

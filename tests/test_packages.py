"""Outer packages can be deleted: what does not import them at module level goes on."""

import functools
import os
import subprocess
import sys

import pytest

from tests.test_budgets import file_of, imports_at_module_level
from tests.test_house import FILES, PACKAGE

OUTER = [
    *("checkpoint", "elastic", "cli", "coursework", "compile", "data", "search"),
    *("simulation", "tuning", "schedules.simulation", "io", "testing"),
    *("pipeline.elastic", "pipeline.checkpoint"),
]
IMPORT_ALL = """
import importlib, os, sys
import minipipe
assert minipipe.__file__.startswith(os.environ["PYTHONPATH"]), minipipe.__file__
failed = {}
for name in sys.stdin.read().split():
    try:
        importlib.import_module(name)
    except Exception as error:
        failed[name] = error
assert not failed, failed
"""


def is_in(module, package):
    return module == package or module.startswith(f"{package}.")


def independent_of(package):
    """Return the modules that load nothing of a package when they are imported."""
    return [
        module
        for module in FILES
        if module != "__main__"
        and not any(is_in(loaded, package) for loaded in loaded_by(module))
    ]


@functools.cache
def loaded_by(module):
    """Return the modules that the import of a module loads, packages included."""
    loaded, coming = set(), [module]
    while coming:
        module = coming.pop()
        if module not in loaded:
            loaded.add(module)
            coming += parents(module)
            for home, name in imports_at_module_level(module):
                coming += filter(None, (home, file_of(home, name)))
    return loaded


def parents(module):
    parts = module.split(".")
    return [".".join(parts[:i]) for i in range(1, len(parts))]


@pytest.mark.slow
@pytest.mark.parametrize("package", ["render", *OUTER])
def test_without_a_package_all_that_does_not_import_it_loads(package, tmp_path):
    for path in PACKAGE.rglob("*"):
        module = ".".join(path.relative_to(PACKAGE).with_suffix("").parts)
        if path.is_dir() or "__pycache__" in path.parts or is_in(module, package):
            continue
        copy = tmp_path / "minipipe" / path.relative_to(PACKAGE)
        copy.parent.mkdir(parents=True, exist_ok=True)
        copy.symlink_to(path)
    names = [f"minipipe.{module}".rstrip(".") for module in independent_of(package)]
    assert len(names) > 150
    done = subprocess.run(
        [sys.executable, "-c", IMPORT_ALL],
        input="\n".join(names),
        cwd=tmp_path,  # which comes first on the path
        env={**os.environ, "PYTHONPATH": str(tmp_path)},
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr[-2000:]

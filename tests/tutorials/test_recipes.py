"""tutorials/recipes/: each runs by python and by mpirun, and its last line is the same on any number of ranks.

A recipe takes ``--small``, so that it ends in seconds. What differs from run to run, such as times, it prints before
the last line.
"""

import re
import sys

import pytest

from tests.launch import ROOT, mpirun, needs_mpi, run, slowly

RECIPES = {path.stem: path for path in sorted((ROOT / "tutorials" / "recipes").glob("*.py"))}


@pytest.fixture(scope="module", params=RECIPES)
def alone(request):
    """Return a recipe and the lines that it prints on one rank."""
    path = RECIPES[request.param]
    done = run([sys.executable, str(path), "--small"])
    assert (done.code, done.err) == (0, "")
    return path, done.out.splitlines()


@needs_mpi
@pytest.mark.parametrize("num_ranks", [2, slowly(4)])
def test_a_recipe_ends_with_the_same_line_on_any_number_of_ranks(alone, num_ranks):
    path, lines = alone
    done = mpirun(num_ranks, path, "--small")
    assert (done.code, done.err) == (0, "")
    assert done.out.splitlines()[-1] == lines[-1]


def test_a_recipe_says_in_its_help_what_its_docstring_says_first(alone):
    path, _ = alone
    done = run([sys.executable, str(path), "--help"])
    first = path.read_text(encoding="utf-8").splitlines()[0].strip('"')
    assert done.code == 0 and " ".join(first.split()) in " ".join(done.out.split())


def test_mixed_precision_ends_with_the_accuracy_of_float32():
    done = run([sys.executable, str(RECIPES["mixed_precision"]), "--small"])
    accuracies = [float(number) for number in re.findall(r"accuracy ([\d.]+) %", done.out.splitlines()[-1])]
    assert len(accuracies) == 2 and min(accuracies) > 85 and abs(accuracies[0] - accuracies[1]) < 2
    left_out = re.findall(r"(\w+): [\d.]+ ms a step, (\d+) of 92 updates left out", done.out)
    assert [name for name, _ in left_out] == ["float32", "float16"]
    assert left_out[0][1] == "0" and int(left_out[1][1]) > 0

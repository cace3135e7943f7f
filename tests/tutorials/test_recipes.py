"""The recipes: each has one result on any number of ranks, and keeps what its docstring
promises.
"""

import ast
import re
import sys

import pytest

from tests.launch import ROOT, mpirun, mpirun_together, needs_mpi, run, slowly

RECIPES = sorted((ROOT / "tutorials" / "recipes").glob("*.py"))
PAGE = (ROOT / "tutorials" / "README.md").read_text()
QUICKLY = ("large_data",)  # in the suite; .ci/run runs all
every_recipe = pytest.mark.parametrize("path", RECIPES, ids=lambda path: path.stem)


def printed(done):
    assert (done.code, done.err) == (0, "")
    return done.out


def numbers(words, text):
    """Return the numbers behind these words, wherever they stand."""
    return [
        float(number)
        for number in re.findall(rf"{re.escape(words)} +([0-9][0-9.e+-]*)", text)
    ]


# -- what each promises, as its output at full size must show it -----------------------


def adversarial(out):
    (plain, fooled), (_, trained_against) = zip(
        *[iter(numbers("accuracy", out)[:4])] * 2
    )
    return plain > 95 and fooled < 50 and trained_against > 65


def autoencoder(out):
    (error,), (of_mean,) = (
        numbers("missing pixels:", out),
        numbers("of the mean image:", out),
    )
    return error < of_mean / 2


def conv_net(out):
    return numbers("test accuracy", out)[0] > 0.97


def encoder_decoder(out):
    return numbers("fraction of sequences right", out)[0] > 0.95


def fine_tuning(out):
    everything, head = re.findall(r"(\d+) gradients sent back", out)
    (untrained, trained), (_, accuracy) = numbers("loss", out), numbers("accuracy", out)
    rows = out.partition("While only the head is trained:")[2]
    vanished = (
        "rank 0: 0F0 0F1 0F2 0F3\nrank 1: 1F0 1F1 1F2 1F3\nrank 2: 2F0 2F1 2F2 "
        "2F3\nrank 3: 3F0 3I0"
    ) in rows
    return (
        trained < untrained
        and accuracy > 0.9
        and (everything, head) == ("12", "0")
        and vanished
    )


def going_on(out):
    whole, parts = (
        numbers("120 steps on 4 ranks:", out),
        numbers("60 steps, and 60 more on 2 ranks:", out),
    )
    kept = "kept: 000002-step-40, 000003-step-60" in out
    return (
        kept
        and whole == parts != []
        and "the same bits: True" in out
        and numbers("without ranks:", out)[0] > 0.9
    )


def large_data(out):
    table = [
        list(map(float, re.findall(r"[\d.]+", line)))
        for line in out.splitlines()
        if " MB" in line
    ]
    reads_what_it_needs = [row[1:3] for row in table] == [
        [204.8, 0],
        [0, 0],
        [0, 0],
        [0, 1.6],
    ]
    return (
        reads_what_it_needs
        and all(row[3] < 8 for row in table)
        and numbers("last tenth", out)[0] < 0.02
    )


def mixed_precision(out):
    whole, half = numbers("accuracy", out)
    skipped = [
        int(number) for number in re.findall(r"(\d+) of \d+ updates skipped", out)
    ]
    return (
        min(whole, half) > 0.95
        and abs(whole - half) < 0.01
        and skipped[0] == 0 < skipped[1]
    )


def mixture_of_experts(out):
    alone, balanced = (
        list(map(float, row.split())) for row in re.findall(r"busy with([\d ]+)%", out)
    )
    return (
        max(alone) > 25
        and min(alone) < 5
        and max(balanced) <= 25
        and numbers("largest fraction", out)[0] < 0.25
    )


def padded_lm(out):
    (loss,), (padded,) = numbers("new lines: loss", out), numbers(", padded", out)
    (tokens,), (with_padding,) = (
        numbers("tokens in training:", out),
        numbers("with padding", out),
    )
    return (
        loss < 2.4 and abs(padded / loss - 1) < 1e-6 and tokens < 2 / 3 * with_padding
    )


PROMISES = (
    adversarial,
    autoencoder,
    conv_net,
    encoder_decoder,
    fine_tuning,
    going_on,
    large_data,
    mixed_precision,
    mixture_of_experts,
    padded_lm,
)


# -- the tests -------------------------------------------------------------------------


@needs_mpi
@pytest.mark.parametrize(
    "path",
    [path if path.stem in QUICKLY else slowly(path) for path in RECIPES],
    ids=lambda path: path.stem,
)
@pytest.mark.slow
def test_a_recipe_has_one_result_on_any_number_of_ranks(path):
    alone = printed(run([sys.executable, path, "--quick"])).splitlines()[-1]
    assert re.search(r"\d\.\d{9}", alone), "no result to the last digit"
    programs = {"eager": (path, "--quick"), "compiled": (path, "--quick", "--compile")}
    (out, compiled) = mpirun_together(3, programs, is_silent=True).values()
    assert out.splitlines()[-1] == compiled.splitlines()[-1] == alone
    (promise,) = (each for each in PROMISES if each.__name__ == path.stem)
    assert not promise(out), "a promise that even the quick size keeps says nothing"


@pytest.mark.slow
@needs_mpi
@pytest.mark.parametrize("promise", PROMISES, ids=lambda promise: promise.__name__)
def test_a_recipe_keeps_what_its_docstring_promises(promise):
    path = f"tutorials/recipes/{promise.__name__}.py"
    if promise in (fine_tuning, going_on, large_data):
        # these print what each of four ranks does
        out = printed(mpirun(4, path, limit=150))
    else:  # the result of any number of ranks
        out = printed(run([sys.executable, path], limit=150))
    assert promise(out), out


def test_every_recipe_promises_something_and_stands_in_the_table():
    names = [path.stem for path in RECIPES]
    assert sorted(promise.__name__ for promise in PROMISES) == names
    assert sorted(re.findall(r"\(recipes/(\w+)\.py\)", PAGE)) == names


@every_recipe
def test_a_recipe_opens_with_its_command_and_its_quick_size(path):
    opening = ast.get_docstring(ast.parse(path.read_text()))
    assert f"mpirun -n 4 python tutorials/recipes/{path.name} " in opening
    assert "(--quick: " in opening and "What to look at:" in opening

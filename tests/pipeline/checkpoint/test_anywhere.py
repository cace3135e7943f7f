"""Row 15 of what must hold when things break: a checkpoint restores on any number of
ranks, with the same bits.
"""

import functools
import json
import tempfile
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from minipipe import spawn
from minipipe.pipeline.checkpoint import restoring, state
from minipipe.pipeline.checkpoint.manifest import Manifest
from tests.launch import mpirun, needs_mpi, slowly
from tests.pipeline.checkpoint.recipes import RECIPES, train
from tests.strategies import examples

SCHEDULES = ("1f1b", "interleaved-1f1b", "zb-h1", "gpipe", "zb-v")


def whole(parts):
    """Return the values of all ranks as one, which must agree where several have the
    same, and the losses of all.
    """
    found = {}
    for values, losses in parts:
        assert losses == parts[0][1]
        for name, value in values.items():
            assert found.setdefault(name, value) == value, name
    return found, parts[0][1]


def run(recipe, num_ranks, schedule, folder, num_steps):
    return whole(
        spawn(
            lambda group: train(group, recipe, schedule, folder, num_steps), num_ranks
        )
    )


@functools.cache
def in_one_run(recipe, num_steps):
    with tempfile.TemporaryDirectory() as folder:
        return run(recipe, 1, "gpipe", folder, num_steps)


def check(recipe, first, then, n, m):
    """Train n steps on one layout and m on another; each layout is a number of ranks
    and a schedule.
    """
    with tempfile.TemporaryDirectory() as folder:
        saved, _ = run(recipe, *first, folder, n)
        restored, _ = run(recipe, *then, folder, n)  # no step
        assert restored == saved == in_one_run(recipe, n)[0]
        values, losses = run(recipe, *then, folder, n + m)
    expected, its = in_one_run(recipe, n + m)
    assert values == expected
    assert losses == its[n:]


LAYOUTS = st.tuples(st.integers(1, 4), st.sampled_from(SCHEDULES))


@given(
    recipe=st.sampled_from(list(RECIPES)),
    first=LAYOUTS,
    then=LAYOUTS,
    n=st.integers(1, 3),
    m=st.integers(1, 2),
)
@examples(6)
def test_steps_through_a_checkpoint_on_another_layout_are_those_of_one_run(
    recipe, first, then, n, m
):
    check(recipe, first, then, n, m)


@pytest.mark.slow
@pytest.mark.parametrize("p", [1, 2, 3, 4])
@pytest.mark.parametrize("q", [1, 2, 3, 4])
def test_every_pair_of_layouts_and_every_training(p, q):
    """Half of the trainings for each pair: every one is saved, and restored, on each
    number of ranks.
    """
    for i, recipe in enumerate(RECIPES, p + q):
        if i % 2 == p // 2 % 2:
            check(recipe, (p, SCHEDULES[i % 5]), (q, SCHEDULES[(2 * i + 1) % 5]), 2, 2)


def test_the_loss_scale_changes_on_the_way():
    """So that restoring it is tested: it overflows at first, and grows later."""
    scales = [in_one_run("float16", n)[0]["scale"] for n in (1, 2, 3, 4)]
    assert len(set(scales)) > 2, scales


def without(what):
    """Return a mutant of what puts a checkpoint in its place, which forgets some of
    it.
    """

    def put(pipeline, optimisers, arrays, found):
        for key, its in found.items():
            if what == "arrays":
                its["states"] = [{} for _ in its["states"]]
            if what == "rates":
                its["groups"] = optimisers[key].state_dict()["groups"]
        state.put(pipeline, optimisers, arrays, found)

    return put


@pytest.mark.parametrize(
    ("recipe", "what"),
    [
        ("momentum", "arrays"),
        slowly("groups", "rates"),
        slowly("SGD", "num_steps"),
        slowly("tied", "num_steps"),
    ],
)
def test_what_is_not_restored_is_found(monkeypatch, recipe, what):
    """Mutants: no momentum, no learning rate of a group, no number of steps, of which
    dropout draws.
    """
    check(recipe, (2, "1f1b"), (3, "1f1b"), 2, 1)
    monkeypatch.setattr(restoring, "put", without(what))
    if what == "num_steps":
        read = Manifest.read
        monkeypatch.setattr(
            Manifest, "read", lambda path: replace(read(path), num_steps=0)
        )
    with pytest.raises(AssertionError):
        check(recipe, (2, "1f1b"), (3, "1f1b"), 2, 1)


SCRIPT = """
import json, sys
from minipipe import init_process_group
from tests.pipeline.checkpoint.recipes import train
recipe, schedule, folder, num_steps = sys.argv[1:]
with init_process_group() as group:
    values, losses = train(group, recipe, schedule, folder, int(num_steps))
    print(json.dumps([group.rank, losses]), flush=True)
"""


@needs_mpi
@pytest.mark.parametrize(
    ("recipe", "first", "then"),
    [
        slowly("tied", (4, "1f1b"), (2, "zb-v")),
        slowly("groups", (2, "interleaved-1f1b"), (3, "zb-h1")),
        slowly("float16", (3, "zb-v"), (4, "interleaved-1f1b")),
    ],
)
def test_processes_go_on_from_the_checkpoint_of_others(tmp_path, recipe, first, then):
    for (num_ranks, schedule), num_steps in ((first, 2), (then, 4)):
        done = mpirun(num_ranks, "-c", SCRIPT, recipe, schedule, tmp_path, num_steps)
        assert done.code == 0, done.err
        assert sorted(json.loads(line)[0] for line in done.out.splitlines()) == list(
            range(num_ranks)
        )
    expected, its = in_one_run(recipe, 4)
    for line in done.out.splitlines():
        assert json.loads(line)[1] == its[2:]
    assert run(recipe, 1, "gpipe", tmp_path, 4)[0] == expected  # restored, and no step

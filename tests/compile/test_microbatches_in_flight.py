"""Kinds of microbatch come and go: a batch of another form has another program."""

import itertools
import subprocess
import sys
from pathlib import Path
from textwrap import dedent

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from minipipe import Microbatches, Pipeline, nn, optim, spawn
from tests.launch import sample_of, slowly
from tests.strategies import build, examples

NUM_MICROBATCHES, WIDTH, CLASSES, IGNORED = 4, 4, 5, -1
SCHEDULES = ["gpipe", "1f1b", "interleaved-1f1b", "zb-h1"]


def layers():
    block = nn.Linear(WIDTH, WIDTH), nn.Dropout(0.3), nn.Tanh()
    return [
        nn.Embedding(CLASSES, WIDTH),
        *block,
        nn.LayerNorm(WIDTH),
        nn.Linear(WIDTH, CLASSES),
    ]


def microbatch(content, shape, dtype, weights):
    """Return inputs and labels of a microbatch: a few of each kind."""
    random = np.random.default_rng(content)
    ids, labels = random.integers(0, CLASSES, (2, *shape)).astype(dtype)
    if weights:
        labels.reshape(-1)[:weights] = IGNORED
    return ids, labels


def trained(group, how, name, batches):
    """Return the losses, gradients and values of a training."""
    loss = nn.CrossEntropyLoss(ignore_index=IGNORED)
    schedule = build(name, group.size, NUM_MICROBATCHES)
    pipeline = Pipeline(
        nn.Sequential(*layers()), group, loss=loss, schedule=schedule, compile=how
    )
    optimiser, found = optim.SGD(pipeline.parameters(), 0.01), []
    for batch in batches:
        inputs, labels = zip(*(microbatch(*each) for each in batch))
        found.append(pipeline.step(Microbatches(inputs), Microbatches(labels)))
        found += [
            None if p.grad is None else p.grad.tobytes() for p in pipeline.parameters()
        ]
        optimiser.step()
    return found + [values.tobytes() for values in pipeline.state_dict().values()]


def check_same(num_ranks, *training):
    compiled, eager = (
        spawn(lambda group, on=on: trained(group, on, *training), num_ranks)
        for on in (True, False)
    )
    assert compiled == eager


ONE = (0, (2,), "int64", 0)
CHANGES = {
    "content": (1, (2,), "int64", 0),
    "shape": (0, (3,), "int64", 0),
    "axes": (0, (2, 3), "int64", 0),
    "dtype": (0, (2,), "int32", 0),
    "weight": (0, (2,), "int64", 1),
}


KINDS = [1, 2], SCHEDULES, ["content", "weight"]
QUICK = {(*cell, 1) for cell in sample_of(*KINDS, strength=1)}
OTHERS = {*sample_of([1, 2], SCHEDULES, CHANGES, range(NUM_MICROBATCHES))} - QUICK


@pytest.mark.parametrize(
    ("num_ranks", "name", "change", "which"),
    [*sorted(QUICK), *itertools.starmap(slowly, sorted(OTHERS))],
)
def test_one_batch_many_times_and_then_one_with_another_microbatch(
    num_ranks, name, change, which
):
    """The story: the second one withdrew the code of the first before its backward."""
    other = [CHANGES[change] if k == which else ONE for k in range(NUM_MICROBATCHES)]
    check_same(
        num_ranks,
        name,
        [*[[ONE] * NUM_MICROBATCHES] * 4, other, [ONE] * NUM_MICROBATCHES, other],
    )


kind_of_microbatch = st.tuples(
    st.integers(0, 2),
    st.sampled_from([(2,), (3,), (2, 3)]),
    st.sampled_from(["int32", "int64"]),
    st.integers(0, 1),
)
few_kinds = st.lists(kind_of_microbatch, min_size=1, max_size=3, unique=True)


@st.composite
def sequences(draw, most_batches):
    """Draw batches of few kinds of microbatch, each of them several times."""
    kinds = draw(few_kinds)
    found = []
    for _ in range(draw(st.integers(2, most_batches))):
        batch = [draw(st.sampled_from(kinds)) for _ in range(NUM_MICROBATCHES)]
        found += [batch] * draw(st.sampled_from([1, 1, 2, 5]))
    return found


@examples(12)
@given(st.sampled_from(SCHEDULES), st.integers(1, 2), sequences(4))
def test_any_sequence_of_batches_has_the_bits_of_eager_steps(name, num_ranks, batches):
    check_same(num_ranks, name, batches)


@pytest.mark.slow
@examples(150)
@given(st.sampled_from(SCHEDULES), st.integers(1, 2), sequences(8))
def test_so_has_a_longer_one(name, num_ranks, batches):
    check_same(num_ranks, name, batches)


def test_no_correct_step_relies_on_assertions():
    """Python drops them with -O."""
    program = """
        import numpy as np
        from minipipe import Pipeline, init_process_group, nn

        assert False, "kept by -O"
        same = np.ones((4, 2), np.float32)
        other = np.array([[1, 1], [1, 1], [1, 2], [3, 4]], np.float32)
        found = []
        for how in (True, False):
            with init_process_group() as group:
                model = nn.Sequential(nn.Linear(2, 2))
                options = {"schedule": "gpipe", "num_microbatches": 2, "compile": how}
                pipeline = Pipeline(model, group, loss=nn.MSELoss(), **options)
                batches = [*[same] * 7, other, same]
                found.append([float(pipeline.step(x, same)) for x in batches])
        print(found[0] == found[1])
    """
    command = [sys.executable, "-O", "-c", dedent(program)]
    done = subprocess.run(
        command,
        capture_output=True,
        text=True,
        cwd=Path(__file__).parents[2],
        check=False,
    )
    assert (done.stdout, done.returncode) == ("True\n", 0), done.stderr

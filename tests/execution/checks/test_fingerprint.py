"""The fingerprint of a batch notices another batch, costs little, and takes whatever a
batch may be.
"""

from math import prod

import array_api_strict
import hypothesis.strategies as st
import numpy as np
import pytest
from hypothesis import given

from minipipe import Microbatches, Replicated, Tensor, nn, optim
from minipipe.execution.checks.comparison import marks_of
from minipipe.execution.checks.updates import Updates, fingerprint, form_of_array

SHAPES = st.lists(st.integers(1, 9), min_size=1, max_size=4).map(tuple)


@given(SHAPES, st.integers(0, 5))
def test_a_batch_drawn_again_has_another_fingerprint_and_a_copy_the_same(shape, seed):
    one, other = (
        np.random.default_rng(seed + k).standard_normal(shape) for k in (0, 1)
    )
    assert (
        fingerprint(one)
        == fingerprint(one.copy())
        == fingerprint(np.asfortranarray(one))
        == fingerprint(Tensor(one))
    )
    assert fingerprint(one) != fingerprint(other)


@given(st.integers(1, 3000), st.integers(1, 300))
def test_every_column_has_its_turn(samples, width):
    """At distances of a row, or a row and one, all elements came from the first
    columns, black in every image.
    """
    batch = np.zeros((samples, width), np.int32)
    batch[:, width // 2 :] = 1
    assert fingerprint(batch) != fingerprint(np.zeros_like(batch))


def test_form_shape_and_dtype_count():
    x = np.arange(8.0).reshape(4, 2)
    same = [
        x,
        x.reshape(2, 4),
        x.astype(np.float32),
        (x,),
        [x],
        {"a": x},
        {"b": x},
        (x, x),
        (x, Replicated(x)),
    ]
    same += [Microbatches([x, x]), array_api_strict.asarray(x)]
    found = [fingerprint(batch) for batch in same]
    assert len(set(found)) == len(found)
    assert fingerprint(x.tolist()) == fingerprint(x)


@pytest.mark.parametrize(
    "nothing",
    [None, np.sum, "unused", object(), np.array([None]), (np.ones(2), "text")],
)
def test_what_is_no_batch_is_not_compared(nothing):
    assert fingerprint(nothing) is None


def test_a_batch_in_a_file_has_the_fingerprint_of_one_in_memory(tmp_path):
    rows = np.lib.format.open_memmap(tmp_path / "x.npy", "w+", np.float32, (500, 100))
    assert fingerprint(rows) == fingerprint(np.zeros((500, 100), np.float32))


@given(SHAPES, st.integers(1, 10**6))
def test_32_elements_are_looked_at_at_most(shape, samples):
    """So many pages of a file are touched; and of a small array every element
    counts.
    """
    _, positions = form_of_array((samples, *shape), np.dtype(np.float32))
    size = samples * prod(shape)
    assert len(positions) == size if size <= 32 else 1 <= len(positions) <= 32


VALUES = (
    st.floats(min_value=0)
    | st.just(float("nan"))
    | st.booleans()
    | st.integers(0, 2**32)
)


@given(VALUES, VALUES)
def test_marks_differ_where_values_do_and_nothing_has_the_mark_of_nothing(one, other):
    marks = [marks_of([value]) for value in (one, other)]
    are_same = one == other or (one != one and other != other)
    assert (marks[0] == marks[1]) == are_same
    assert marks_of([None]) not in marks


def test_of_a_large_array_the_rows_are_even_and_the_columns_multiples_of_the_golden_ratio():
    """Of few columns each has its turn; of many, no column is far from one that is
    looked at.
    """
    _, positions = form_of_array((640, 1000), np.dtype(np.float32))
    ratio = 144 / 89  # Fibonacci numbers: the ratio to four digits
    assert [position // 1000 for position in positions] == [20 * i for i in range(32)]
    assert np.allclose(
        [position % 1000 for position in positions],
        [i * ratio % 1 * 1000 for i in range(32)],
        atol=3,
    )
    _, positions = form_of_array((640, 5), np.dtype(np.float32))
    assert [position % 5 for position in positions] == [i % 5 for i in range(32)]


def test_updates_count_from_nothing_and_note_what_the_last_step_used():
    weight = nn.Parameter([0.0, 0.0])
    updates = Updates([weight])
    assert updates.marks() == {
        **{"number of optimiser steps": 0, "learning rate": None, "optimiser": 0},
        **{"state of the gradients": True, "loaded state": 0},
    }
    assert updates.words() == {"optimiser": "no step yet"}
    optimiser, digests = optim.SGD([weight], learning_rate=0.5), set()
    for step, rate in enumerate((0.5, 0.25, 0.25), 1):
        optimiser.learning_rate, weight.grad = rate, weight.data
        optimiser.step()
        marks = updates.marks()
        assert (
            marks["number of optimiser steps"],
            marks["learning rate"],
            marks["loaded state"],
        ) == (step, rate, 0)
        digests.add(marks["optimiser"])
    assert len(digests) == 3 and 0 not in digests
    assert "its steps before: 2, states loaded: 0" in updates.words()["optimiser"]
    weight.zero_grad()
    assert [updates.marks()["state of the gradients"] for _ in range(2)] == [
        False,
        True,
    ]
    updates.note_state({"weight": np.ones(2)})
    assert updates.marks()["loaded state"] != 0

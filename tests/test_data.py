"""The digits, and how examples are divided."""

import gzip
from pathlib import Path

import numpy as np
import pytest

from minipipe import data
from minipipe.errors import FileError


def test_the_digits_are_those_of_the_original_file():
    images, labels = data.load_digits()
    assert images.shape == (1797, 8, 8) and images.dtype == np.float32
    assert images.min() == 0 and images.max() == 1
    assert np.bincount(labels).tolist() == [
        178,
        182,
        177,
        183,
        181,
        182,
        181,
        179,
        174,
        180,
    ]
    assert (images[0] * 16)[0].tolist() == [0, 0, 5, 13, 9, 1, 0, 0]


def test_no_example_is_both_trained_and_tested_with():
    numbers = np.arange(101)
    (train, train_targets), (test, test_targets) = data.split_examples(
        numbers, -numbers, 0.2, seed=3
    )
    assert len(test) == 20 and sorted([*train, *test]) == list(numbers)
    assert (train == -train_targets).all() and (test == -test_targets).all()
    again = data.split_examples(numbers, -numbers, 0.2, seed=3)
    other = data.split_examples(numbers, -numbers, 0.2, seed=4)
    assert (again[1][0] == test).all() and not (other[1][0] == test).all()


def test_batches_hold_every_example_once_in_an_order_of_their_own_for_each_epoch():
    numbers = np.arange(50)
    orders = []
    for epoch in (0, 1, 0):
        parts = list(data.batches(numbers, -numbers, 16, seed=1, epoch=epoch))
        assert [len(x) for x, _ in parts] == [13, 13, 12, 12] and len(
            parts
        ) == data.num_batches(50, 16)
        assert all((x == -y).all() for x, y in parts)
        orders.append([int(i) for x, _ in parts for i in x])
        assert sorted(orders[-1]) == list(range(50))
    assert orders[0] != orders[1] and orders[0] == orders[2]


def test_batches_of_bundles_keep_their_form_and_samples_together():
    numbers = np.arange(10)
    parts = list(
        data.batches(
            {"x": numbers, "rest": (-numbers, numbers[:, None])},
            [numbers, numbers],
            4,
            seed=1,
        )
    )
    for x, y in parts:
        assert (
            (x["x"] == -x["rest"][0]).all()
            and (x["x"] == x["rest"][1][:, 0]).all()
            and (x["x"] == y[1]).all()
        )
    assert sorted(int(i) for x, _ in parts for i in x["x"]) == list(range(10))


class Untouched:
    """Inputs on a rank that must not read them."""

    def __len__(self):
        return 10

    def __getitem__(self, part):
        raise AssertionError("read")


def test_what_a_rank_does_not_need_is_not_read_and_the_order_is_the_same():
    numbers = np.arange(10)
    whole = list(data.batches(numbers, -numbers, 4, seed=2))
    first = list(data.batches(numbers, Untouched(), 4, seed=2, needs=(True, False)))
    last = list(data.batches(None, -numbers, 4, seed=2, needs=(False, True)))
    neither = list(
        data.batches(None, None, 4, seed=2, needs=(False, False), num_samples=10)
    )
    assert all(
        (x == a).all() and y is None
        for (a, _), (x, y) in zip(whole, first, strict=True)
    )
    assert all(
        (y == b).all() and x is None for (_, b), (x, y) in zip(whole, last, strict=True)
    )
    assert neither == [(None, None)] * len(whole)


def test_of_an_array_in_a_file_only_the_rows_of_a_batch_are_in_memory(tmp_path):
    np.save(tmp_path / "x.npy", np.arange(20).reshape(10, 2))
    x = np.load(tmp_path / "x.npy", mmap_mode="r")
    for rows, _ in data.batches(x, None, 5):
        assert (
            type(rows) is np.ndarray
            and not np.shares_memory(rows, x)
            and rows.shape == (5, 2)
        )


@pytest.mark.parametrize(
    ("inputs", "targets", "num_samples"),
    [
        (np.zeros(3), np.zeros(4), None),
        (np.zeros(0), np.zeros(0), None),
        (np.zeros(3), None, 4),
    ],
)
def test_inputs_and_targets_that_do_not_match_are_refused(inputs, targets, num_samples):
    with pytest.raises(
        ValueError,
        match=(
            r"batches: The inputs and targets have \[.*\] samples, and num_samples "
            r"is"
        ),
    ):
        next(data.batches(inputs, targets, 2, num_samples=num_samples))
    with pytest.raises(
        ValueError, match="neither inputs nor targets here; give num_samples"
    ):
        next(data.batches(None, None, 2))


def test_the_text_is_the_reference_of_python_and_every_character_has_a_number():
    text = data.load_text()
    assert len(text) > 300_000 and 'The "assert" statement' in text
    alphabet = data.Alphabet(text)
    assert 90 <= len(alphabet) <= 200 and alphabet.decode(alphabet.encode(text)) == text
    assert sorted(set(alphabet.encode(text).tolist())) == list(range(len(alphabet)))
    with pytest.raises(ValueError, match="not in this alphabet of 2"):
        data.Alphabet("ab").encode("abc")


def test_windows_are_parts_of_the_text_and_depend_on_their_key_alone():
    numbers = np.arange(500) * 2
    inputs, targets = data.text_windows(numbers, 7, 40, (3, 0, 5))
    assert inputs.shape == targets.shape == (40, 7)
    assert (np.diff(inputs, axis=1) == 2).all() and (targets == inputs + 2).all()
    assert inputs.min() >= 0 and targets.max() <= 998
    assert (data.text_windows(numbers, 7, 40, (3, 0, 5))[0] == inputs).all()
    assert not (data.text_windows(numbers, 7, 40, (3, 0, 6))[0] == inputs).all()
    starts = {int(x) for x in data.text_windows(np.arange(4), 2, 100, (0,))[0][:, 0]}
    assert starts == {0, 1}  # from the first window to the last that has a target


@pytest.mark.parametrize(("context", "windows"), [(0, 1), (5, 1), (9, 1), (2, 0)])
def test_windows_longer_than_the_text_or_none_are_refused(context, windows):
    with pytest.raises(ValueError, match="expected"):
        data.text_windows(np.arange(5), context, windows, (0,))


# -- the file of the digits ------------------------------------------------------------


def test_a_damaged_file_of_digits_is_refused_and_a_bomb_is_not_unpacked():
    """The story: a file cut off was an EOFError, and a small file of zeros would have
    filled the memory.
    """
    whole = (Path(data.__file__).parent / "digits.csv.gz").read_bytes()
    flipped = [
        bytes([*whole[:i], whole[i] ^ 1, *whole[i + 1 :]])
        for i in (0, 3000, len(whole) // 2, len(whole) - 6)
    ]
    others = [
        gzip.compress(text) for text in (b"", b"1,2\n3,4\n", b"\xff", b"0," * 10**7)
    ]
    for content in (b"", whole[:-1], whole[:1000], *others, *flipped):
        with pytest.raises(FileError, match="install minipipe again") as caught:
            data._table(content)
        assert caught.value.code == "damaged"
    assert data._table(whole).shape == (1797, 65)

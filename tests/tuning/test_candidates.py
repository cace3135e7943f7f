"""Amounts of memory, as text and as numbers."""

from contextlib import suppress

import pytest
from hypothesis import given
from hypothesis import strategies as st

from minipipe.errors import ArgumentError
from minipipe.tuning.weighing import memory_size


@pytest.mark.parametrize(
    ("given", "size"),
    [
        ("1", 1),
        ("500 MB", 5e8),
        ("2GiB", 2**31),
        (" .5 kib ", 512),
        ("3 tb", 3e12),
        (7.5, 7.5),
        (10**12, 1e12),
    ],
)
def test_an_amount_in_bytes(given, size):
    assert memory_size(given) == size


@pytest.mark.parametrize(
    "given",
    [
        "",
        "MB",
        "0",
        "0 MB",
        "-1 MB",
        "5 XB",
        "5 M",
        "1e3",
        "nan",
        0,
        -1,
        True,
        None,
        float("inf"),
        [1],
    ],
)
def test_anything_else_is_refused(given):
    with pytest.raises(
        ArgumentError, match="expected an amount above 0, such as '500 MB'"
    ) as caught:
        memory_size(given)
    assert caught.value.code == "value"


@given(st.text())
def test_any_text_is_an_amount_or_refused(text):
    with suppress(ArgumentError):
        assert memory_size(text) > 0

"""The choice of the precision of products on a GPU."""

import pytest

from minipipe import gpu
from minipipe.errors import ArgumentError


def test_products_are_in_float32_unless_tf32_is_allowed():
    assert gpu.allows_tf32() is False
    gpu.allow_tf32()
    try:
        assert gpu.allows_tf32() is True
    finally:
        gpu.allow_tf32(False)
    assert gpu.allows_tf32() is False


@pytest.mark.parametrize("given", ["high", None, 2])
def test_another_choice_is_refused_and_changes_nothing(given):
    with pytest.raises(ArgumentError, match="is_allowed"):
        gpu.allow_tf32(given)
    assert gpu.allows_tf32() is False

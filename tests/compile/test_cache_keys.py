"""The cache key of a microbatch: everything but its numbers on which lines depend."""

import numpy as np
import pytest

from minipipe.compile.recording import cache_key
from minipipe.core.execution.payload import Payload

SQUARE = np.ones((3, 3), np.float32)
OTHERS = {
    "strides": {"array": np.ones((3, 6), np.float32)[:, ::2]},
    "shape": {"array": np.ones((3, 2), np.float32)},
    "dtype": {"array": np.ones((3, 3))},
    "class": {"array": np.ma.ones((3, 3), np.float32)},
    "whatever else its lines depend on": {"how": ("evaluation",)},
    "whether its gradient is required": {"requires_grad": [True]},
    "the structure of a pytree": {"treedef": {"x": 0}},
}


def key(array=SQUARE, how=(), requires_grad=(False,), treedef=None):
    return cache_key(Payload([array], list(requires_grad), treedef), [array], *how)


@pytest.mark.parametrize("case", OTHERS)
def test_a_microbatch_that_differs_in_one_thing_has_another_key(case):
    assert key() == key(SQUARE.copy())
    assert key(**OTHERS[case]) != key()
    assert key(**OTHERS[case]) == key(**OTHERS[case])

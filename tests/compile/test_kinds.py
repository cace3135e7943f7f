"""What makes a microbatch, or a batch, one of another kind with lines of its own."""

import numpy as np
import pytest

from minipipe.compile.recording import kind_of
from minipipe.core.execution.payload import Payload

SQUARE = np.ones((3, 3), np.float32)
OTHERS = {
    "strides": {"array": np.ones((3, 6), np.float32)[:, ::2]},
    "shape": {"array": np.ones((3, 2), np.float32)},
    "dtype": {"array": np.ones((3, 3))},
    "class": {"array": np.ma.ones((3, 3), np.float32)},
    "what its lines depend on besides the arrays": {"how": ("evaluation",)},
    "whether its gradient is wanted": {"wanted": [True]},
    "the form of a pytree": {"form": {"x": 0}},
}


def kind(array=SQUARE, how=(), wanted=(False,), form=None):
    return kind_of(Payload([array], list(wanted), form), [array], *how)


@pytest.mark.parametrize("case", OTHERS)
def test_a_microbatch_that_differs_in_one_thing_is_of_another_kind(case):
    assert kind() == kind(SQUARE.copy())
    assert kind(**OTHERS[case]) != kind()
    assert kind(**OTHERS[case]) == kind(**OTHERS[case])

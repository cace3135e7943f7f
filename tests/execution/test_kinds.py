"""The kinds of microbatch of a stage: how often each came, which goes, and which inputs tell more."""

import numpy as np
import pytest

from minipipe.execution.payload import Payload
from minipipe.execution.replayed import MOST_SCRIPTS, Kinds


def come(kinds, step, length=3, microbatch=0):
    """Let a microbatch of some length come, and return its kind."""
    array = np.ones(length)
    return kinds.of(microbatch, (), Payload([array], [False], None), [array], step)


@pytest.mark.parametrize("first", [1, 2, 7])
def test_a_step_counts_once_however_many_microbatches_come_in_it_and_from_the_first_one_on(first):
    kinds = Kinds()
    for number in range(1, 5):
        for microbatch in range(3):
            assert come(kinds, first + number - 1, microbatch=microbatch).num_steps == number
    assert len(list(kinds)) == 1


def test_the_kind_that_was_not_used_for_longest_makes_room():
    kinds = Kinds()
    found = [come(kinds, step, length) for step, length in enumerate(range(1, MOST_SCRIPTS + 1), 1)]
    come(kinds, MOST_SCRIPTS + 1, length=1)  # the oldest is used again
    new = come(kinds, MOST_SCRIPTS + 2, length=MOST_SCRIPTS + 1)
    assert set(map(id, kinds)) == {id(kind) for kind in [*found, new] if kind is not found[1]}
    assert come(kinds, MOST_SCRIPTS + 3, length=2) is not found[1]


SQUARE = np.ones((3, 3), np.float32)
OTHERS = {
    "strides": {"array": np.ones((3, 6), np.float32)[:, ::2]},
    "shape": {"array": np.ones((3, 2), np.float32)},
    "dtype": {"array": np.ones((3, 3))},
    "what its lines depend on beside the arrays": {"how": ("evaluation",)},
    "whether its gradient is wanted": {"wanted": [True]},
    "the form of a bundle": {"form": {"x": 0}},
}


@pytest.mark.parametrize("case", OTHERS)
def test_a_microbatch_that_differs_in_one_thing_is_of_another_kind_and_the_same_again_of_the_first(case):
    kinds = Kinds()

    def kind_of(array=SQUARE, how=(), wanted=(False,), form=None):
        return kinds.of(0, how, Payload([array], list(wanted), form), [array], 1)

    first = kind_of()
    assert kind_of() is first and kind_of(SQUARE.copy()) is first
    other = kind_of(**OTHERS[case])
    assert other is not first and kind_of(**OTHERS[case]) is other
    assert kind_of() is first

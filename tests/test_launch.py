"""Which cases of a table run when: the sample of the quick suite leaves out no
combination that it promises.
"""

import itertools

import pytest

from tests.launch import covering, sample_of

AXES = ("abcdef", (1, 2, 4), ("plain", "tied", "frozen", "ragged"), (False, True))


def quick(parameters):
    return [each.values for each in parameters if not each.marks]


@pytest.mark.parametrize("strength", [1, 2, 3])
def test_every_combination_of_so_many_values_is_in_the_sample_and_every_cell_in_the_table(
    strength,
):
    parameters = covering(*AXES, strength=strength)
    assert [each.values for each in parameters] == list(itertools.product(*AXES))
    sample = quick(parameters)
    for places in itertools.combinations(range(4), strength):
        found = {tuple(cell[place] for place in places) for cell in sample}
        assert found == set(itertools.product(*(AXES[place] for place in places)))


@pytest.mark.parametrize("strength", [1, 2, 3])
def test_the_sample_alone_is_that_of_the_table(strength):
    sample = quick(covering(*AXES, strength=strength))
    assert sample_of(*AXES, strength=strength) == sample


def test_a_table_that_is_too_large_has_the_samples_of_both_strengths():
    parameters = covering(*AXES, strength=1, at_length=2)
    assert quick(parameters) == sample_of(*AXES, strength=1)
    pairs = set(sample_of(*AXES, strength=2))
    assert {each.values for each in parameters} == pairs.union(quick(parameters))


def test_a_sample_of_pairs_is_small_and_always_the_same():
    assert len(quick(covering(*AXES, strength=1))) <= 10
    # of 144; the two longest axes alone need 24
    assert len(quick(covering(*AXES))) <= 40
    assert quick(covering(*AXES)) == quick(covering(*AXES))

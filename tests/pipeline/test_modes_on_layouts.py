"""Each mode of a step on each layout gives the numbers of a plain step, or an error
that names the two.
"""

from functools import cache
from itertools import combinations, cycle, product

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from minipipe import spawn
from minipipe.errors import MinipipeError
from tests.launch import slowly
from tests.pipeline.modes_and_layouts import (
    LAYOUTS,
    MODES,
    NO_LAYOUTS,
    exclusion,
    trained,
)
from tests.strategies import examples

CLOSE = 1e-11  # float64: values of order 1, which three steps of momentum have changed
ON_ALL_RANKS = (
    "losses",
    "value of",
    "evaluation",
    "prediction",
    "norm",
    "another loss",
    "accuracy",
)
# so dropout has other masks than for whole sequences
DRAWS_BY_SLICE = ("slices", "slices of replicas")


@cache
def numbers(layout, modes):
    """Return the numbers of a training, which all ranks that have them must have
    alike.
    """
    results = spawn(
        lambda group: trained(group, LAYOUTS[layout], modes), LAYOUTS[layout].num_ranks
    )
    found = {}
    for result in results:
        for name, value in result.items():
            if name.startswith(ON_ALL_RANKS):
                assert np.array_equal(value, results[0][name]), (
                    f"{name} differs between ranks"
                )
            found.setdefault(name, value)
    return found


def check(layout, modes):
    """Compare a training with that of the layout without the modes that change no
    number, and with one rank.
    """
    adding = tuple(name for name in modes if MODES[name].adds)
    found, plain = numbers(layout, modes), numbers(layout, adding)
    assert found.keys() == plain.keys()
    for name, value in plain.items():
        if "stacked" in modes:
            np.testing.assert_allclose(
                found[name], value, rtol=CLOSE, atol=CLOSE, err_msg=name
            )
        else:
            np.testing.assert_array_equal(found[name], value, err_msg=name)
    if LAYOUTS[layout].is_asynchronous or layout in DRAWS_BY_SLICE:
        return
    one_rank = numbers("one rank", adding)
    assert found.keys() == one_rank.keys()
    for name, value in one_rank.items():
        np.testing.assert_allclose(
            found[name], value, rtol=CLOSE, atol=CLOSE, err_msg=name
        )


def check_or_refused(layout, modes):
    words = [said for mode in modes if (said := exclusion(layout, mode))]
    if not words:
        check(layout, modes)
        return
    with pytest.raises(MinipipeError, match="|".join(words)):
        numbers(layout, modes)


# Of each kind of layout one is quick, with the modes that look into graphs or hold
# arrays.
QUICK_LAYOUTS = ("zb-h1", "tensor", "fully sharded", "slices", "pipedream")
QUICK_MODES = (
    "watch",
    "measures_memory",
    "recompute",
    "offload",
    "stacked",
    "wait",
    "outputs",
    "accumulate",
)
SAMPLE = {*zip(cycle(QUICK_LAYOUTS), QUICK_MODES)}
CELLS = [cell if cell in SAMPLE else slowly(*cell) for cell in product(LAYOUTS, MODES)]


@pytest.mark.parametrize(("layout", "mode"), CELLS)
def test_a_mode_has_the_numbers_of_a_plain_step_or_names_what_excludes_it(layout, mode):
    check_or_refused(layout, (mode,))


@pytest.mark.parametrize("layout", NO_LAYOUTS)
def test_layouts_that_exclude_each_other_say_so(layout):
    made, words = NO_LAYOUTS[layout]
    with pytest.raises(MinipipeError, match=words):
        spawn(lambda group: trained(group, made, ()), made.num_ranks)


PAIRED = ("zb-h1", "tensor", "fully sharded", "slices", "two-buffered")


def layouts_of(number, pair):
    """Return where a pair trains, one of the layouts that take both modes in turn, and
    every other layout that refuses it, which takes no time.
    """
    refusing = {
        layout for layout in PAIRED if any(exclusion(layout, mode) for mode in pair)
    }
    taking = [layout for layout in PAIRED if layout not in refusing]
    return {taking[number % len(taking)], *sorted(refusing)[number % 2 :: 2]}


PAIRS = [
    (pair, layout)
    for number, pair in enumerate(combinations(MODES, 2))
    for layout in layouts_of(number, pair)
]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("layout", "first"), sorted({(layout, pair[0]) for pair, layout in PAIRS})
)
def test_so_has_any_pair_of_modes(layout, first):
    for pair, taken in PAIRS:
        if pair[0] == first and taken == layout:
            check_or_refused(layout, pair)


some_modes = st.lists(
    st.sampled_from([*MODES]), min_size=2, max_size=5, unique=True
).map(tuple)


@examples(5)
@given(st.sampled_from([*LAYOUTS]), some_modes)
def test_so_have_several_modes_together(layout, modes):
    check_or_refused(layout, modes)


@pytest.mark.slow
@examples(200)
@given(st.sampled_from([*LAYOUTS]), some_modes)
def test_so_have_many_choices_of_several_modes(layout, modes):
    check_or_refused(layout, modes)

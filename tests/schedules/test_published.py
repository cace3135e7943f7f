"""Every figure of a paper that a page of the site shows beside ours is what we have, or
no better than that.
"""

import pytest

from minipipe import schedules
from tests.schedules.published import PUBLISHED

CASES = [
    pytest.param(figures, sizes, row, id=f"{figures.names[0]}-{number}")
    for figures in PUBLISHED
    for number, (sizes, row) in enumerate(figures.rows)
]


@pytest.mark.parametrize(("figures", "sizes", "row"), CASES)
def test_our_figures_are_the_published_ones(figures, sizes, row):
    assert figures.hold(sizes, row), (figures.ours(*sizes), row)


@pytest.mark.parametrize(
    "figures", PUBLISHED, ids=[figures.names[0] for figures in PUBLISHED]
)
def test_a_published_figure_that_is_less_than_ours_is_noticed(figures):
    sizes, row = figures.rows[-1]
    assert not figures.hold(sizes, tuple(value - 1 for value in row))


def test_they_are_of_named_schedules():
    assert {name for figures in PUBLISHED for name in figures.names} <= set(
        schedules.REGISTRY
    )

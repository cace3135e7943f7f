"""Bars: each part has its length, and what does not fit says so."""

import re

import pytest

from minipipe import render
from minipipe.schedules import ActionKind, IdleCause

LOOKS = {"actions": ActionKind.FORWARD, "idle": IdleCause.WAITING}


def bar(actions, idle=0.0, mark=None):
    return render.Bar(
        {"actions": actions, "idle": idle}, f"{actions + idle:g} ms", mark
    )


def widths(picture):
    """Return the widths of the boxes of actions; the last one is that of the legend."""
    boxes = re.findall(r'<rect class="F" fill="#\w+" width="([\d.]+)"', picture)
    return list(map(float, boxes))[:-1]


def test_parts_are_as_long_as_their_amounts():
    one, two, three = widths(
        render.draw_bars(
            list("abc"), {"": [bar(1, 1), bar(2), bar(1.5, mark=3)]}, LOOKS
        )
    )
    assert two == pytest.approx(2 * one, abs=0.02) and three == pytest.approx(
        1.5 * one, abs=0.02
    )


def test_a_bar_that_is_far_longer_is_cut_and_says_its_amount():
    picture = render.draw_bars(list("abc"), {"": [bar(1), bar(1), bar(100)]}, LOOKS)
    one, _, cut = widths(picture)
    assert cut == pytest.approx(3 * one, abs=0.1)
    assert (
        ">100 ms</text>" in picture and "truncated: longer than the column" in picture
    )
    assert "truncated: longer" not in render.draw_bars(
        list("ab"), {"": [bar(1), bar(2)]}, LOOKS
    )


def test_only_what_occurs_is_in_the_legend():
    picture = render.draw_bars(
        ["a"], {"a step": [bar(1)]}, LOOKS, marks="simulated", title="One & two"
    )
    assert (
        ">actions</text>" in picture
        and ">idle</text>" not in picture
        and ">simulated</text>" not in picture
    )
    assert "One &amp; two" in picture and "<desc" in picture
    assert ">simulated</text>" in render.draw_bars(
        ["a"], {"": [bar(1, mark=0.5)]}, LOOKS, marks="simulated"
    )


def test_nothing_at_all_is_drawn_as_nothing():
    assert widths(render.draw_bars(["a", "b"], {"": [bar(0), bar(0)]}, LOOKS)) == []

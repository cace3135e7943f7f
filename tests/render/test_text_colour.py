"""Colours of drawings in a terminal."""

import io
import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from minipipe import schedules
from minipipe.core.schedules.action import ActionKind
from minipipe.render import draw_text, has_colour, terminal
from tests.strategies import examples


@examples(60)
@given(data=st.data(), width=st.integers(40, 160))
def test_colour_changes_no_character(every_schedule, data, width):
    schedule = data.draw(st.sampled_from(every_schedule))
    coloured = draw_text(schedule, width=width, colour=True)
    assert "\x1b[" in coloured
    assert re.sub(r"\x1b\[[\d;]*m", "", coloured) == draw_text(schedule, width=width)


def test_every_kind_and_every_stage_of_a_rank_has_its_own_colour():
    codes = {terminal.ground(kind, chunk) for kind in "FBIW" for chunk in range(4)}
    assert len(codes) == 16
    text = draw_text(schedules.interleaved_1f1b(1, 1, chunks_per_rank=4), colour=True)
    for kind in "FB":
        for chunk in range(4):
            assert f"{terminal.ground(ActionKind(kind), chunk)}m{chunk}{kind}0" in text


def test_labels_read_on_every_ground_and_idle_time_on_black_and_white():
    def contrast(a, b):
        light, dark = sorted(
            (terminal.luminance(a), terminal.luminance(b)), reverse=True
        )
        return (light + 0.05) / (dark + 0.05)

    assert terminal.luminance(16) == 0 and terminal.luminance(231) == pytest.approx(1)
    for kind in ActionKind:
        for chunk in range(6):
            text, shade = map(
                int,
                re.fullmatch(
                    r"38;5;(\d+);48;5;(\d+)", terminal.ground(kind, chunk)
                ).groups(),
            )
            # what the accessibility guidelines ask of text
            assert contrast(text, shade) >= 4.5
    grey = int(terminal.IDLE.split(";")[-1])
    assert contrast(grey, 16) >= 3 and contrast(grey, 231) >= 3


@pytest.mark.parametrize(
    ("is_terminal", "environment", "expected"),
    [
        (True, {}, True),
        (False, {}, False),
        (True, {"TERM": "dumb"}, False),
        (True, {"NO_COLOR": "1"}, False),
        (True, {"NO_COLOR": ""}, True),
        (False, {"FORCE_COLOR": "1", "TERM": "dumb"}, True),
        (True, {"FORCE_COLOR": "0"}, False),
        (True, {"FORCE_COLOR": "1", "NO_COLOR": "1"}, False),
    ],
)
def test_there_is_colour_in_a_terminal_that_is_not_dumb_unless_asked_otherwise(
    is_terminal, environment, expected
):
    class Stream(io.StringIO):
        def isatty(self):
            return is_terminal

    assert has_colour(Stream(), environment) is expected

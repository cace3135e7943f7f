"""The page of the player without a browser: self-contained, escaped, and its data are
the timeline's.
"""

import json
import re
from configparser import ConfigParser
from dataclasses import replace
from fnmatch import fnmatch
from html.parser import HTMLParser
from itertools import pairwise
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from minipipe import Costs, Schedule, schedules, simulate
from minipipe.core.schedules.action import ActionKind
from minipipe.render.descriptions import (
    describe_action,
    describe_message,
    describe_wait,
)
from minipipe.render.html import draw_html, holds_of, player_data
from minipipe.render.panel import Panel
from minipipe.schedules.simulation.span import Span
from tests.strategies import examples, named_schedules

ROOT = Path(__file__).resolve().parents[2]
FOLDER = ROOT / "minipipe" / "render" / "html"
FILES = sorted(
    path for path in FOLDER.iterdir() if path.suffix in (".html", ".css", ".js")
)
SCRIPTS = [path for path in FILES if path.suffix == ".js"]
COSTS = [
    Costs(),
    Costs(2, 1, 0.5, latency=0.25),
    Costs(1, 1, 1, latency=0.5, sends_block=True),
    Costs(weight_activation=3, activation=2),
]


class Parsed(HTMLParser):
    """The elements of a page, each with its attributes and its text."""

    def __init__(self, page):
        super().__init__()
        self.elements = []
        self.feed(page)

    def handle_starttag(self, tag, attributes):
        self.elements.append([tag, dict(attributes), ""])

    def handle_data(self, text):
        if self.elements:
            self.elements[-1][2] += text

    def named(self, tag):
        return [
            (attributes, text)
            for name, attributes, text in self.elements
            if name == tag
        ]


def data_in(page):
    """Return what the script of a page reads."""
    return next(
        json.loads(text)
        for attributes, text in Parsed(page).named("script")
        if attributes
    )


def filled(sentence, **values):
    return sentence.format(**values)


# -- the page --------------------------------------------------------------------------


def test_a_page_needs_nothing_from_outside():
    parsed = Parsed(draw_html(schedules.zb_v(4, 8), schedules.one_f_one_b(4, 8)))
    for tag, attributes, _ in parsed.elements:
        for name in ("src", "href", "srcset", "action", "data", "poster"):
            assert attributes.get(name, "data:,") == "data:,", (tag, name)
        assert not any(name.startswith("on") for name in attributes), tag
        assert tag not in ("iframe", "object", "embed")
    ((_, style),) = parsed.named("style")
    assert "url(" not in style
    assert "@import" not in style
    policy = next(
        attributes["content"]
        for attributes, _ in parsed.named("meta")
        if "http-equiv" in attributes
    )
    assert policy.startswith("default-src 'none'")


@pytest.mark.parametrize("path", SCRIPTS, ids=lambda path: path.name)
def test_a_script_prints_nothing_evaluates_no_text_and_writes_no_markup(path):
    script = path.read_text()
    unwanted = r"\b(console|eval|Function|fetch|innerHTML|outerHTML|insertAdjacentHTML)\b|document\.write|http|window\."
    assert re.findall(unwanted, script) == []


def test_the_script_of_a_page_is_strict_and_leaves_no_name_behind():
    scripts = Parsed(draw_html(schedules.gpipe(1, 1))).named("script")
    (script,) = (text for attributes, text in scripts if not attributes)
    assert script.strip().startswith('(() => {\n"use strict";')
    assert script.strip().endswith("})();")
    for path in SCRIPTS:
        assert path.read_text().strip() in script, path.name


def test_the_files_of_the_player_are_installed():
    configuration = ConfigParser()
    configuration.read(ROOT / "setup.cfg")
    patterns = configuration["options.package_data"]["minipipe.render.html"].split(",")
    for path in FILES:
        assert any(fnmatch(path.name, pattern.strip()) for pattern in patterns), (
            path.name
        )


@pytest.mark.parametrize(
    "name",
    ["</script><script>x()</script>", "<!--", "a & <b>", "\"'", "$title {stage}", "流"],
)
def test_a_name_is_escaped(name):
    page = draw_html(Schedule(name, (0,), 1, (("0F0", "0B0"),)))
    parsed = Parsed(page)
    assert [text for _, text in parsed.named("h1")] == [f"{name}, predicted\n"]
    assert len(parsed.named("script")) == 2
    assert page.count("</script") == 2
    assert data_in(page)["panels"][0]["name"] == name


def test_the_note_of_a_timeline_is_shown():
    timeline = replace(
        simulate(schedules.gpipe(2, 2)), note="taken <twice>", is_measured=True
    )
    page = draw_html(timeline)
    assert "taken &lt;twice&gt;" in page
    assert "gpipe, measured" in page


def test_what_cannot_be_drawn_is_refused():
    with pytest.raises(ValueError, match="Nothing to draw"):
        draw_html()
    with pytest.raises(TypeError, match="'1f1b'; expected a Schedule or a Timeline"):
        draw_html("1f1b")
    seconds = simulate(schedules.gpipe(2, 2), Costs(unit="s"))
    with pytest.raises(ValueError, match="one axis cannot show them together"):
        draw_html(schedules.gpipe(2, 2), seconds)


# -- its data --------------------------------------------------------------------------


def shown(microbatch):
    """Return a microbatch as a page has it: a slice of a sequence as text."""
    return microbatch if isinstance(microbatch, int) else str(microbatch)


@given(
    drawn=named_schedules(max_ranks=4, max_microbatches=6, max_chunks=3),
    costs=st.sampled_from(COSTS),
)
@examples(40)
def test_the_data_in_a_page_are_those_of_the_timeline(drawn, costs):
    timeline = simulate(drawn[1], costs)
    data = data_in(draw_html(timeline))
    (panel,) = data["panels"]
    assert data["duration"] == timeline.makespan
    for rank, row in enumerate(panel["ranks"]):
        actions = [(tuple(parts[:3]), *parts[3:]) for parts in row["actions"]]
        assert actions == [
            ((*action[:2], shown(action.microbatch)), start, end)
            for action, start, end in timeline.spans[rank]
        ]
        assert [tuple(parts[:3]) for parts in row["idle"]] == [
            idle[:3] for idle in timeline.idle[rank]
        ]
    path = [
        (rank, timeline.spans[rank][index]) for rank, index in panel["criticalPath"]
    ]
    assert path == list(timeline.critical_path)
    sent = [
        (str(m.value), str(m.used_by), m.source, m.destination, m.sent, m.arrived)
        for m in timeline.messages
    ]
    assert [tuple(message) for message in panel["messages"]] == sent


@given(
    drawn=named_schedules(max_ranks=4, max_microbatches=6, max_chunks=3),
    costs=st.sampled_from(COSTS),
)
@examples(40)
def test_what_a_rank_holds_reaches_its_peak_and_agrees_after_every_action(drawn, costs):
    timeline = simulate(drawn[1], costs)
    for rank, row in enumerate(timeline.spans):
        holds = holds_of(timeline, rank)
        during = [
            sum(h.start <= start < h.end for h in holds)
            for _, start, end in row
            if end > start
        ]
        assert max(during, default=0) == timeline.peak_activations[rank]
        after = [sum(h.start < span.end < h.end for h in holds) for span in row]
        assert after == list(timeline.held_activations[rank])


@given(
    drawn=named_schedules(max_ranks=4, max_microbatches=6, max_chunks=3),
    costs=st.sampled_from(COSTS),
)
@examples(40)
def test_memory_reaches_its_peak_and_all_is_given_back(drawn, costs):
    timeline = simulate(drawn[1], costs)
    for rank, row in enumerate(player_data([Panel(timeline)])["panels"][0]["ranks"]):
        times, levels, texts = zip(*row["memory"])
        assert max(levels) == timeline.peak_memory[rank]
        assert levels[0] == levels[-1] == 0
        assert all(a <= b for a, b in pairwise(times))
        assert [float(text) for text in texts] == list(levels)


@given(
    drawn=named_schedules(max_ranks=3, max_microbatches=4, max_chunks=2),
    costs=st.sampled_from(COSTS),
)
@examples(25)
def test_its_sentences_filled_are_those_of_every_other_drawing(drawn, costs):
    timeline = simulate(drawn[1], costs)
    sentences = player_data([Panel(timeline)])["sentences"]
    for row in timeline.spans:
        for action, _, _ in row:
            told = filled(
                sentences["actions"][action.kind],
                stage=action.stage,
                microbatch=action.microbatch,
            )
            assert told == describe_action(action)
    for idle in (idle for row in timeline.idle for idle in row):
        if idle.awaited is None:
            assert sentences["waits"][idle.cause] == describe_wait(idle)
        else:
            stage, kind, microbatch = idle.awaited
            gaps = {"stage": stage, "microbatch": microbatch, "source": idle.source}
            assert filled(
                sentences["waits"][f"{idle.cause} {kind}"], **gaps
            ) == describe_wait(idle)
    for message in timeline.messages:
        value, used_by, source, destination = message[:4]
        told = filled(
            sentences["message"],
            value=value,
            usedBy=used_by,
            source=source,
            destination=destination,
        )
        assert told == describe_message(message)


def test_the_legend_names_the_messages_that_there_are():
    alone, predicts, trains = (
        schedules.gpipe(1, 2),
        schedules.build("forward-only", 2, 2),
        schedules.gpipe(2, 2),
    )
    for schedule, expected in (
        (alone, []),
        (predicts, ["activation"]),
        (trains, ["activation", "gradient"]),
    ):
        found = [
            name
            for name in ("activation", "gradient")
            if f"{name} sent" in draw_html(schedule)
        ]
        assert found == expected


def test_messages_come_in_the_order_in_which_they_were_sent():
    timeline = simulate(schedules.one_f_one_b(2, 3), Costs(latency=0.5))
    shuffled = replace(
        timeline, measured_messages=timeline.messages[::-1], is_measured=True
    )
    times = [
        message[4]
        for message in player_data([Panel(shuffled)])["panels"][0]["messages"]
    ]
    assert times == sorted(times)
    assert len(times) == 6


def test_time_begins_with_the_timeline():
    timeline = simulate(schedules.gpipe(2, 2))
    later = tuple(
        tuple(Span(a, start + 100, end + 100) for a, start, end in row)
        for row in timeline.spans
    )
    assert player_data([Panel(replace(timeline, spans=later))]) == player_data(
        [Panel(timeline)]
    )


def test_what_is_never_given_back_is_held_to_the_end():
    row = (
        Span(schedules.Action.parse("0F0"), 0.0, 1.0),
        Span(schedules.Action(0, ActionKind.BACKWARD, 1), 1.0, 2.0),
    )
    assert holds_of(schedules.Timeline("broken", (row,), (1,)), 0)[0].end is None

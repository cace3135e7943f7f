"""Nothing from a file or an argument reaches a page, a picture, a trace or a terminal
as anything but text.
"""

import json
import re
import xml.etree.ElementTree as ElementTree
from html.parser import HTMLParser

import pytest

from minipipe import Costs, Timeline, simulate
from minipipe.render import draw_html, draw_svg, draw_text, perfetto_trace, save
from minipipe.render.notebook import picture_or_text
from minipipe.render.stepper.description import write_snapshots
from minipipe.render.stepper.walkthrough import Walkthrough
from tests.strategies import table

MARK = "pwned"
HOSTILE = [
    f"<script>{MARK}()</script>",
    f"</script><script>{MARK}()</script>",
    f"</title><svg onload={MARK}()>",
    f"\"><img src=x onerror='{MARK}()'>",
    f"' onmouseover='{MARK}()",
    f"</style><script>{MARK}()</script>",
    f"]]><script>{MARK}()</script>",
    f"--><script>{MARK}()</script><!--",
    f"<!--<script>{MARK}",
    f"&lt;script&gt;&#60;{MARK}>&xxe;",
    f"${{{MARK}}} $title $data %s {{0}}",
    f"\\u003cscript>{MARK}\\",
    f'{MARK}","args":{{"x":1}}}},{{"ph":"X',
    f"\x1b[2J\x1b]0;{MARK}\x07",
    f"\x9b31m{MARK}\r\b\x00\x7f",
    f"{MARK}\u202egnp.\u2066\u2028\u2029\ufeff",
    f"half \ud800 \udc80 {MARK} \uffff",
    f"{MARK} " + "x" * 5000,
    f"two\nlines\r\n{MARK}",
]
TAGS = re.compile(
    r"<(script|img|iframe|object|embed|a)\b|on\w+\s*=\s*[\"']?pwned", re.IGNORECASE
)


def drawn_with(text):
    """Return timelines that have a text wherever one may have it."""
    schedule = table(text, (0, 1), 1, [["0F0", "0B0"], ["1F0", "1B0"]])
    unit = text if text.isprintable() else "units"
    predicted = simulate(
        schedule, Costs(unit=unit, memory_unit=unit, activation=[2, 3])
    )
    spans = predicted.spans
    return (
        schedule,
        predicted,
        Timeline(
            text, spans, (1, 1), (1.0, 1.0), text, text, text, memory=((1, 0), (1, 0))
        ),
    )


class Elements(HTMLParser):
    """The elements of a page with their attributes."""

    def __init__(self, page):
        super().__init__()
        self.found = []
        self.feed(page)
        self.close()

    def handle_starttag(self, tag, attributes):
        self.found.append((tag, tuple(name for name, _ in attributes)))


def has_control_characters(text):
    return any(not c.isprintable() and c not in "\n\xa0" for c in text)


@pytest.mark.parametrize("text", HOSTILE)
def test_a_page_has_the_elements_of_one_with_harmless_names(text):
    """The story: a unit reached the table of the figures and the tooltips of the boxes
    as it was.
    """
    for hostile, harmless in zip(drawn_with(text), drawn_with("harmless")):
        page = draw_html(hostile, title=text, notes=[text])
        assert (
            Elements(page).found
            == Elements(draw_html(harmless, title="harmless", notes=["harmless"])).found
        )
        assert page.encode() and not has_control_characters(page)


@pytest.mark.parametrize("text", HOSTILE)
def test_a_picture_is_xml_with_the_elements_of_one_with_harmless_names(text):
    for hostile, harmless in zip(drawn_with(text), drawn_with("harmless")):
        picture = draw_svg(hostile, messages=True, title=text, notes=[text])
        tags = {
            element.tag for element in ElementTree.fromstring(picture.encode()).iter()
        }
        assert tags == {
            element.tag
            for element in ElementTree.fromstring(
                draw_svg(harmless, messages=True)
            ).iter()
        }
        assert not TAGS.search(
            re.sub(r">[^<]*<", "><", picture)
        ) and not has_control_characters(picture)
        assert picture_or_text(hostile).count("<script") == 0


@pytest.mark.parametrize("text", HOSTILE)
def test_a_trace_is_json_with_as_many_events(text):
    for hostile, harmless in zip(drawn_with(text), drawn_with("harmless")):
        trace = perfetto_trace(hostile, title=text, notes=[text])
        events = json.loads(trace)["traceEvents"]
        assert trace.isascii()
        expected = json.loads(perfetto_trace(harmless))["traceEvents"]
        assert [(e["ph"], e["pid"], e["tid"]) for e in events] == [
            (e["ph"], e["pid"], e["tid"]) for e in expected
        ]
        assert not any(has_control_characters(str(e["name"])) for e in events)


@pytest.mark.parametrize("text", HOSTILE)
def test_what_is_printed_is_printable(text, tmp_path):
    schedule, *timelines = drawn_with(text)
    printed = [
        str(schedule),
        repr(schedule),
        schedule.to_text(),
        *map(str, timelines),
        *map(repr, timelines),
    ]
    printed += [draw_text(drawn) for drawn in (schedule, *timelines)]
    printed += [
        draw_text(timelines[0], timelines[0]),
        *write_snapshots(Walkthrough(schedule), range(5), False),
    ]
    printed.append(
        save(tmp_path / "a.txt", *timelines[1:], title=text, notes=[text]).read_text(
            encoding="utf-8"
        )
    )
    assert not any(map(has_control_characters, printed))
    assert all(shown.encode() for shown in printed)


def test_a_line_of_a_name_is_no_line_of_the_text():
    assert len(str(drawn_with("two\nlines\x0band \u2028 more")[0]).splitlines()) == 3


@pytest.mark.parametrize("form", [draw_html, draw_svg, perfetto_trace, draw_text])
def test_the_list_is_hostile(form, monkeypatch):
    """A mutant: without the two functions, every format but JSON lets something
    through.
    """
    for module in ("html", "svg.elements", "svg.style"):
        monkeypatch.setattr(f"minipipe.render.{module}.escaped", str)
    monkeypatch.setattr("minipipe.schedules.simulation.timeline.printable", str)
    monkeypatch.setattr("minipipe.io.printable", str)  # which an error imports late
    hostile = [text for text in HOSTILE if text.isascii()]
    drawn = [form(timeline) for text in hostile for timeline in drawn_with(text)[1:]]
    shows = any(map(has_control_characters, drawn)) or any(
        f"<script>{MARK}" in page for page in drawn
    )
    assert shows or form is perfetto_trace

"""Reads an SVG that draw_svg made, as a person with a ruler would: only what stands in the file is believed.

And draws the timelines to try it on.
"""

import re
import xml.etree.ElementTree as ElementTree
from dataclasses import replace
from typing import NamedTuple

from hypothesis import strategies as st

from minipipe import Costs, simulate
from minipipe.simulation.span import Span
from tests.strategies import named_schedules

NAMESPACE = ' xmlns="http://www.w3.org/2000/svg"'
CAUSES = ("warm-up", "waiting", "sending", "drain", "overhead")


class Rectangle(NamedTuple):
    """Where something is drawn, in pixels of the page; ``what`` is its tooltip."""

    classes: tuple
    left: float
    right: float
    top: float
    bottom: float
    what: str

    @property
    def area(self):
        return (self.right - self.left) * (self.bottom - self.top)

    @property
    def action(self):
        return self.what.partition(":")[0]


class Picture:
    """What an SVG shows: ``lanes`` from top to bottom, each with its boxes, bands, idle slots and strip."""

    def __init__(self, svg):
        assert svg.count(NAMESPACE) == 1
        self.root = ElementTree.fromstring(svg.replace(NAMESPACE, ""))
        groups = [group for group in self.root.iter("g") if group.find("text[@class='rank']") is not None]
        self.lanes = [Lane(group) for group in groups]
        self.texts = [("".join(text.itertext()), text) for text in self.root.iter("text")]
        ticks = [(float(words), float(text.get("x"))) for words, text in self.texts if "tick" in text.get("class")]
        (_, self.left), *rest = ticks
        self.scale = (rest[-1][1] - self.left) / rest[-1][0] if rest else None  # pixels for a unit, or a millisecond
        self.arrows = [Arrow(path) for path in self.root.iter("path") if "arrow" in path.get("class", "") and len(path)]
        self.legend = [words for words, text in self.texts if "key" in text.get("class")]

    def labels(self):
        """Yield every label in a box: its words, the size of its letters, its middle and whether it is turned."""
        for sized in self.root.iterfind("g[@font-size]"):
            for lane in sized.iterfind("g"):
                down = moved_down(lane)
                for text in lane.iterfind("text"):
                    turned = re.fullmatch(r"translate\(([\d.]+) ([\d.]+)\) rotate\(-90\)", text.get("transform", ""))
                    x, y = turned.groups() if turned else (text.get("x"), text.get("y"))
                    yield text.text, float(sized.get("font-size")), float(x), down + float(y), bool(turned)


class Lane:
    """One rank's row."""

    def __init__(self, group):
        self.top = moved_down(group)
        rectangles = [rectangle(rect, self.top) for rect in group.iterfind("rect")]
        self.boxes = [found for found in rectangles if "box" in found.classes]
        self.idle = [found for found in rectangles if found.classes[0] in CAUSES]
        self.bands = [band for path in group.iterfind("path[@class]") for band in bands(path, self.top)]
        self.peak = next((text.text for text in group.iterfind("text") if "peak" in text.get("class")), None)
        held = group.find("g/path[@class='held']")
        self.strip = [] if held is None else corners(held.get("d"))

    def __len__(self):
        return len(self.boxes) + len(self.bands)


class Arrow:
    """A message: where its arrow begins and ends."""

    def __init__(self, path):
        data, self.what, self.classes = path.get("d"), path.findtext("title"), path.get("class").split()
        numbers = [float(number) for number in re.findall(r"-?[\d.]+", data)]
        self.start = tuple(numbers[:2])
        self.end = tuple(numbers[-2:]) if "C" in data else (numbers[0], numbers[2])


def moved_down(group):
    return float(re.fullmatch(r"translate\(0 ([\d.]+)\)", group.get("transform"))[1])


def rectangle(rect, down):
    left = float(rect.get("x"))
    edges = left, left + float(rect.get("width")), down, down + float(rect.get("height"))
    return Rectangle(tuple(rect.get("class").split()), *edges, rect.findtext("title"))


def bands(path, down):
    """Yield the rectangles of a run's path: M x y h width v height H x z, one after the other."""
    for x, y, width, height in re.findall(r"M([\d.]+) ([\d.]+)h([\d.]+)v([\d.]+)H[\d.]+z", path.get("d")):
        left, top = float(x), down + float(y)
        classes = tuple(path.get("class").split())
        yield Rectangle(classes, left, left + float(width), top, top + float(height), path.findtext("title"))


def corners(data):
    """Return the corners of a path of horizontal and vertical lines."""
    found = []
    for letter, x, y in re.findall(r"([MHV])([\d.]+)(?: ([\d.]+))?", data):
        if letter == "M":
            found.append((float(x), float(y)))
        elif letter == "H":
            found.append((float(x), found[-1][1]))
        else:
            found.append((found[-1][0], float(x)))
    return found


@st.composite
def timelines(draw):
    """Draw a timeline: any named schedule, times of all lengths (0 too), latency, sends that block or not."""
    _, schedule = draw(named_schedules(max_ranks=5, max_microbatches=8, max_chunks=3))
    times = st.sampled_from([0, 0.001, 0.5, 1, 1, 2.5])
    costs = Costs(draw(times), draw(times), draw(times), draw(times), sends_block=draw(st.booleans()))
    timeline = simulate(schedule, costs)
    first = draw(st.sampled_from([0.0, 7.0]))  # what was measured need not begin at 0
    rows = tuple(tuple(Span(a, start + first, end + first) for a, start, end in row) for row in timeline.spans)
    sent = {value: (arrival + first, *place) for value, (arrival, *place) in timeline.sent.items()}
    return replace(timeline, spans=rows, sent=sent)

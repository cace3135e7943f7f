"""Reads positions and texts back from an SVG of draw_svg, and draws the timelines to
try it on.
"""

import re
import xml.etree.ElementTree as ElementTree
from dataclasses import replace
from typing import NamedTuple

from hypothesis import strategies as st

from minipipe import Costs, simulate
from minipipe.render.svg.legend import WAYS
from minipipe.schedules.simulation.span import IdleCause, Span
from tests.strategies import named_schedules

NAMESPACE = ' xmlns="http://www.w3.org/2000/svg"'
CAUSES = tuple(map(str, IdleCause))


class Rectangle(NamedTuple):
    """A rectangle in pixels of the page; ``name`` is its class and ``what`` its
    tooltip.
    """

    name: str
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
    """The contents of an SVG: ``lanes`` from top to bottom, each with its boxes, bands,
    idle slots and strip.
    """

    def __init__(self, svg):
        assert svg.count(NAMESPACE) == 1
        self.root = ElementTree.fromstring(svg.replace(NAMESPACE, ""))
        groups = [
            group
            for group in self.root.iter("g")
            if group.find("text[@class='rank']") is not None
        ]
        self.lanes = [Lane(group) for group in groups]
        self.texts = [
            ("".join(text.itertext()), text) for text in self.root.iter("text")
        ]
        ticks = [
            (float(words), float(text.get("x")))
            for words, text in self.texts
            if text.get("class") == "tick"
        ]
        (_, self.left), *rest = ticks
        # pixels for a unit, or a millisecond
        self.scale = (rest[-1][1] - self.left) / rest[-1][0] if rest else None
        self.arrows = [
            Arrow(path, group.get("class"))
            for way in WAYS
            for group, path in drawn_arrows(self.root, way)
        ]
        self.legend = [
            words for words, text in self.texts if text.get("class") == "key"
        ]

    def labels(self):
        """Yield every label in a box: its words, the size of its letters, its middle
        and whether it is turned.
        """
        for sized in self.root.iterfind("g[@font-size]"):
            for lane in sized.iterfind("g"):
                down = moved_down(lane)
                for text in lane.iterfind("g/text"):
                    turned = re.fullmatch(
                        r"translate\(([\d.]+) ([\d.]+)\) rotate\(-90\)",
                        text.get("transform", ""),
                    )
                    x, y = turned.groups() if turned else (text.get("x"), text.get("y"))
                    yield (
                        text.text,
                        float(sized.get("font-size")),
                        float(x),
                        down + float(y),
                        bool(turned),
                    )

    def heads(self, way):
        """Return the tips of the arrowheads of the messages of one way, outside the
        legend.
        """
        paths = self.root.iterfind(f"path[@class='{way}-head']")
        return [corners[-1] for path in paths for corners in triangles(path.get("d"))]


class Lane:
    """The row of one rank."""

    def __init__(self, group):
        self.top = moved_down(group)
        kinds = group.findall("g[@class='box']/g")
        boxes = [
            rectangle(rect, kind.get("class"), self.top)
            for kind in kinds
            for rect in kind.iterfind("rect")
        ]
        self.boxes = sorted(boxes, key=lambda box: box.left)
        self.idle = [
            rectangle(rect, rect.get("class"), self.top)
            for rect in group.iterfind("g[@class='slot']/rect")
        ]
        self.bands = [
            band
            for path in group.iterfind("path[title]")
            for band in bands(path, self.top)
        ]
        self.instants = [
            path.get("class")
            for path in group.iterfind("path")
            if path.get("class") == "U"
        ]
        hatch = group.find("path[@class='hatch']")
        self.hatch = [] if hatch is None else segments(hatch.get("d"), self.top)
        self.peak = next(
            (text.text for text in group.iterfind("text[@class='peak']")), None
        )
        held = group.find("g/path[@class='held']")
        self.strip = [] if held is None else corners(held.get("d"))

    def __len__(self):
        return len(self.boxes) + len(self.bands)


class Arrow:
    """A message: both ends of the shaft of its arrow."""

    def __init__(self, path, way):
        data, self.what, self.way = path.get("d"), path.findtext("title"), way
        numbers = [float(number) for number in re.findall(r"-?[\d.]+", data)]
        self.start = tuple(numbers[:2])
        self.end = tuple(numbers[-2:]) if "C" in data else (numbers[0], numbers[2])


def drawn_arrows(root, way):
    return [
        (group, path) for group in root.iterfind(f"g[@class='{way}']") for path in group
    ]


def triangles(data):
    """Return the corners of the triangles of a path, M x y L x y L x y z, one after the
    other.
    """
    found = re.findall(
        r"M([\d.-]+) ([\d.-]+)L([\d.-]+) ([\d.-]+)L([\d.-]+) ([\d.-]+)z", data
    )
    return [[(float(n[i]), float(n[i + 1])) for i in (0, 2, 4)] for n in found]


def segments(data, down):
    """Return the lines of a path, each as (x, y, x, y): M x y, then H x, V y or L x
    y.
    """
    found = []
    for x, y, letter, first, second in re.findall(
        r"M([\d.]+) ([\d.]+)([HVL])([\d.]+)(?: ([\d.]+))?", data
    ):
        end = {"H": (first, y), "V": (x, first), "L": (first, second)}[letter]
        found.append((float(x), float(y) + down, float(end[0]), float(end[1]) + down))
    return found


def moved_down(group):
    return float(re.fullmatch(r"translate\(0 ([\d.]+)\)", group.get("transform"))[1])


def rectangle(rect, name, down):
    left = float(rect.get("x"))
    edges = (
        left,
        left + float(rect.get("width")),
        down,
        down + float(rect.get("height")),
    )
    return Rectangle(name, *edges, rect.findtext("title"))


def bands(path, down):
    """Yield the rectangles of a run's path: M x y h width v height H x z, one after the
    other.
    """
    for x, y, width, height in re.findall(
        r"M([\d.]+) ([\d.]+)h([\d.]+)v([\d.]+)H[\d.]+z", path.get("d")
    ):
        left, top = float(x), down + float(y)
        edges = left, left + float(width), top, top + float(height)
        yield Rectangle(path.get("class"), *edges, path.findtext("title"))


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
    """Draw a timeline: any named schedule and steps, times of all lengths (0 too),
    latency, sends that block or not.
    """
    _, schedule = draw(named_schedules(max_ranks=5, max_microbatches=8, max_chunks=3))
    times = st.sampled_from([0, 0.001, 0.5, 1, 1, 2.5])
    costs = Costs(
        draw(times),
        draw(times),
        draw(times),
        draw(times),
        update=draw(times),
        sends_block=draw(st.booleans()),
    )
    timeline = simulate(
        schedule, costs, draw(st.sampled_from([1, 1, 1, 2, 3])), draw(st.booleans())
    )
    first = draw(st.sampled_from([0.0, 7.0]))  # what was measured need not begin at 0
    rows = tuple(
        tuple(Span(a, start + first, end + first) for a, start, end in row)
        for row in timeline.spans
    )
    sent = {
        value: (arrival + first, *place)
        for value, (arrival, *place) in timeline.sent.items()
    }
    changes = tuple(
        tuple(c._replace(left=c.left + first, begun=c.begun + first) for c in row)
        for row in timeline.step_changes
    )
    return replace(timeline, spans=rows, sent=sent, step_changes=changes)

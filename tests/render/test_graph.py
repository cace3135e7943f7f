"""A picture of nodes and arrows."""

import re
import xml.etree.ElementTree as ElementTree

import pytest

from minipipe.errors import ArgumentError
from minipipe.render import draw_graph

SVG = "{http://www.w3.org/2000/svg}"
CYCLE = (
    [["a"], ["b"], ["c"]],
    [
        ("a", "b", "1"),
        ("a", "b", "2"),
        ("b", "c", ""),
        ("a", "c", "far"),
        ("c", "a", "back"),
    ],
)


def drawn(columns, arrows):
    """Return the size of a picture, its texts, its curves as points (from, bend, to),
    and its boxes.
    """
    root = ElementTree.fromstring(draw_graph(columns, arrows))
    texts = {each.text for each in root.iter(f"{SVG}text")}
    paths = [each.get("d") for each in root.iter(f"{SVG}path") if "Q" in each.get("d")]
    curves = [
        [float(number) for number in re.findall(r"-?[\d.]+", path)] for path in paths
    ]
    (_, *rects) = root.iter(f"{SVG}rect")  # the first is the ground
    boxes = [
        [float(each.get(side)) for side in ("x", "y", "width", "height")]
        for each in rects
    ]
    return (float(root.get("width")), float(root.get("height"))), texts, curves, boxes


def test_every_node_and_arrow_is_drawn_and_says_what_it_is():
    _, texts, curves, boxes = drawn(*CYCLE)
    assert (
        texts == {"a", "b", "c", "1", "2", "far", "back"}
        and len(curves) == 5
        and len(boxes) == 3
    )


def test_arrows_between_the_same_nodes_are_apart_and_those_back_pass_below_all_nodes():
    (_, height), _, (first, second, _, far, back), boxes = drawn(*CYCLE)
    assert first[:2] == second[:2] and first[3] < second[3]
    upper, lower = boxes[0][1], boxes[0][1] + boxes[0][3]
    assert far[3] < upper and far[4] > far[0] and back[3] > lower and back[4] < back[0]
    assert (back[1] + 2 * back[3] + back[5]) / 4 < height


def test_nothing_is_outside_of_the_picture():
    (width, height), _, curves, boxes = drawn(
        [["one", "two", "three"], ["a long name " * 4]], [("two", "three", "")]
    )
    assert all(
        x >= 0 and x + w <= width and y >= 0 and y + h <= height for x, y, w, h in boxes
    )
    assert all(0 <= x <= width for curve in curves for x in curve[::2])


def test_a_name_may_be_any_text():
    _, texts, _, _ = drawn([["<b> & x"], ["y"]], [("<b> & x", "y", "<i>")])
    assert texts == {"<b> & x", "y", "<i>"}


@pytest.mark.parametrize(
    ("columns", "arrows", "words"),
    [
        ([["a"], ["a"]], [], "There are 2 nodes called 'a'"),
        ([["a"]], [("a", "b", "")], "An arrow is at 'b'"),
    ],
)
def test_a_name_that_means_two_nodes_or_none_is_refused(columns, arrows, words):
    with pytest.raises(ArgumentError, match=words) as caught:
        draw_graph(columns, arrows)
    assert caught.value.code == "value"

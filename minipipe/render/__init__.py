"""Drawings of schedules and timelines, one or several above each other on a common time axis.

Each format is one function of the schedules and timelines to draw. All formats share the data of
:mod:`minipipe.render.panel`, the texts of :mod:`minipipe.render.descriptions` and the colours of
:mod:`minipipe.render.palette`.
"""

from minipipe.render.html import draw_html
from minipipe.render.notebook import show
from minipipe.render.perfetto import perfetto_trace
from minipipe.render.save import check_ending, save
from minipipe.render.svg import draw_svg
from minipipe.render.terminal import has_colour
from minipipe.render.text import draw_text

__all__ = ["check_ending", "draw_html", "draw_svg", "draw_text", "has_colour", "perfetto_trace", "save", "show"]

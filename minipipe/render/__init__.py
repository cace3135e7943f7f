"""Drawings of a Schedule or a Timeline, or of several above each other on one axis of time.

Each drawing is a function of the schedules and timelines to draw; all ask :mod:`minipipe.render.panel` what is there,
:mod:`minipipe.render.descriptions` how to say it and :mod:`minipipe.render.palette` how to colour it.
"""

from minipipe.render.html import draw_html
from minipipe.render.notebook import show
from minipipe.render.perfetto import perfetto_trace
from minipipe.render.save import check_ending, save
from minipipe.render.svg import draw_svg
from minipipe.render.terminal import has_colour
from minipipe.render.text import draw_text

__all__ = ["check_ending", "draw_html", "draw_svg", "draw_text", "has_colour", "perfetto_trace", "save", "show"]

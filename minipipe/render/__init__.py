"""Drawings of schedules and timelines, one or several above each other on a common time axis.

Each format is one function of the schedules and timelines to draw. All formats share the data of
:mod:`minipipe.render.panel`, the texts of :mod:`minipipe.render.descriptions` and the colours of
:mod:`minipipe.render.palette`.
"""

from typing import TYPE_CHECKING

from minipipe.lazy import names_on_demand

if TYPE_CHECKING:  # the same names, for editors and type checkers
    from minipipe.render.files import check_ending, save
    from minipipe.render.html import draw_html
    from minipipe.render.notebook import show
    from minipipe.render.perfetto import perfetto_trace
    from minipipe.render.svg import draw_svg
    from minipipe.render.terminal import has_colour
    from minipipe.render.text import draw_text

# A drawing of text does not wait for the other formats.
__getattr__, __dir__, __all__ = names_on_demand(
    __name__,
    {
        "minipipe.render.html": ["draw_html"],
        "minipipe.render.notebook": ["show"],
        "minipipe.render.perfetto": ["perfetto_trace"],
        "minipipe.render.files": ["check_ending", "save"],
        "minipipe.render.svg": ["draw_svg"],
        "minipipe.render.terminal": ["has_colour"],
        "minipipe.render.text": ["draw_text"],
    },
)

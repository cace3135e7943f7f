"""A player as HTML: one page that steps through a timeline, moment by moment.

``page.py`` fills ``player.html`` with ``data.py``'s data; the scripts beside it show them.
"""

from minipipe.render.html.page import draw_html

__all__ = ["draw_html"]

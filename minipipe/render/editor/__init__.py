"""The editor: the player of ``minipipe.render.html`` with one more mode, in which
schedules are built by hand.

The page shows and asks; every rule, figure and sentence comes from :class:`Editor`. It
speaks one protocol over two transports: to Python in the page itself, in a worker, and
over HTTP to ``minipipe edit``.
"""

from minipipe.render.editor.answering import Editor
from minipipe.render.editor.page import draw_editor

__all__ = ["Editor", "draw_editor"]

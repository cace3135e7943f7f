"""The public names of ``minipipe.render``, for type checkers and for ``minipipe._lazy``, one on a line."""

from minipipe.render.files import check_ending as check_ending
from minipipe.render.files import save as save
from minipipe.render.html import draw_html as draw_html
from minipipe.render.notebook import show as show
from minipipe.render.notebook import show_picture as show_picture
from minipipe.render.perfetto import perfetto_trace as perfetto_trace
from minipipe.render.svg import draw_svg as draw_svg
from minipipe.render.svg.bars import Bar as Bar
from minipipe.render.svg.bars import draw_bars as draw_bars
from minipipe.render.svg.graph import draw_graph as draw_graph
from minipipe.render.svg.tradeoff import draw_tradeoff as draw_tradeoff
from minipipe.render.terminal import has_colour as has_colour
from minipipe.render.text import draw_text as draw_text

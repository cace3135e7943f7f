"""A picture as SVG: for papers, slides and notebooks."""

from minipipe.render.svg.drawing import draw_svg

__all__ = ["draw_svg"]

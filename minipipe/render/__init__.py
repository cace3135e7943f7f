"""Drawings of a Schedule or a Timeline."""

from minipipe.render.text import draw_text

__all__ = ["draw_text"]

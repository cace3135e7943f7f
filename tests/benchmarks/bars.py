"""A picture of ratios as bars, on a logarithmic axis."""

from html import escape
from math import log

__all__ = ["bars"]

WIDTH, LEFT, RIGHT, BAR, GAP = 760, 110, 60, 18, 4
COLOURS = {"floor": "#9aa0a6", "peer": "#b8860b", "torch": "#d55e00"}


def bars(title, groups):
    """Return an SVG.

    Parameters
    ----------
    title : str
    groups : dict of str to dict of str to float
        By heading, by name of a bar, its length: a ratio, above 0.
    """
    lengths = [length for group in groups.values() for length in group.values()]
    low, high = log(min([0.8, *lengths])), log(max([2.0, *lengths]))

    def x(length):
        return LEFT + (log(length) - low) / (high - low) * (WIDTH - LEFT - RIGHT)

    drawn, y = [f'<text x="16" y="26" font-size="15" font-weight="600">{escape(title)}</text>'], 40
    for heading, group in groups.items():
        y += 22
        drawn.append(f'<text x="16" y="{y}" fill="#555">{escape(heading)}</text>')
        y += 8
        top = y - 3
        for name, length in group.items():
            middle, end = y + 0.72 * BAR, x(length)
            start, width = min(x(1), end), max(1.0, abs(end - x(1)))
            colour = COLOURS.get(name, "#3b7dd8")
            drawn.append(f'<text x="{LEFT - 8}" y="{middle:.1f}" text-anchor="end">{escape(name)}</text>')
            drawn.append(f'<rect x="{start:.1f}" y="{y}" width="{width:.1f}" height="{BAR}" rx="2" fill="{colour}"/>')
            drawn.append(f'<text x="{max(end, x(1)) + 6:.1f}" y="{middle:.1f}">{length:.2f}</text>')
            y += BAR + GAP
        drawn.append(f'<path d="M{x(1):.1f} {top}V{y}" stroke="#222" fill="none"/>')
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{WIDTH}" height="{y + 16}" font-family="sans-serif" '
        f'font-size="12"><title>{escape(title)}</title><rect width="100%" height="100%" fill="white"/>'
        f"{''.join(drawn)}</svg>\n"
    )

"""A picture of numbers as bars, for programs here and for the site. It follows the
reader's light or dark scheme.
"""

from html import escape
from math import log

__all__ = ["bars"]

# in pixels; the last is the width of a letter, about
WIDTH, RIGHT, BAR, GAP, LETTER = 760, 60, 18, 4, 6.4
CLASSES = dict.fromkeys(("floor", "peer", "raw"), "other") | dict.fromkeys(
    ("torch", "PyTorch, 1F1B"), "torch"
)
CLASSES["predicted"] = "predicted"
STYLE = """.bars{font:12px sans-serif}.bars text{fill:#1b1b1f}.bars rect{fill:#2f6fd0}.bars .other{fill:#82878f}
.bars .torch{fill:#c05a00}.bars .predicted{fill:#2b8a57}.bars path{stroke:#5a5a66;fill:none}
@media screen and (prefers-color-scheme:dark){.bars text{fill:#e6e6ea}.bars rect{fill:#6ba0f0}.bars .other{fill:#a5a5b3}
.bars .torch{fill:#f09a4a}.bars .predicted{fill:#5dc48d}.bars path{stroke:#a5a5b3}}""".replace(
    "\n", ""
)


def bars(title, groups, logarithmic=True):
    """Return an SVG on one line.

    Parameters
    ----------
    title : str
    groups : dict of str to sequence of (str, float)
        By heading, the name and the length of each bar, above 0.
    logarithmic : bool
        Whether bars are drawn from 1, to the logarithms of their lengths; else from 0.
    """
    all_bars = [bar for group in groups.values() for bar in group]
    left = 24 + LETTER * max(len(name) for name, _ in all_bars)
    scaled = log if logarithmic else float
    lengths = [scaled(length) for _, length in all_bars]
    usual = (log(0.8), log(2.0)) if logarithmic else (0.0,)
    low, high = min([*usual, *lengths]), max([*usual, *lengths])

    def x(length):
        return left + (length - low) / (high - low) * (WIDTH - left - RIGHT)

    base = x(0.0)
    drawn, y = (
        [
            (
                '<text x="16" y="26" font-size="15" '
                f'font-weight="600">{escape(title)}</text>'
            )
        ],
        40,
    )
    for heading, group in groups.items():
        y += 22
        drawn.append(f'<text x="16" y="{y}">{escape(heading)}</text>')
        y += 8
        top = y - 3
        for name, length in group:
            middle, end = y + 0.72 * BAR, x(scaled(length))
            start, width = min(base, end), max(1.0, abs(end - base))
            kind = f' class="{CLASSES[name]}"' if name in CLASSES else ""
            drawn.append(
                f'<text x="{left - 8:.1f}" y="{middle:.1f}" '
                f'text-anchor="end">{escape(name)}</text>'
            )
            drawn.append(
                f'<rect{kind} x="{start:.1f}" y="{y}" width="{width:.1f}" '
                f'height="{BAR}" rx="2"/>'
            )
            drawn.append(
                f'<text x="{max(end, base) + 6:.1f}" '
                f'y="{middle:.1f}">{length:.4g}</text>'
            )
            y += BAR + GAP
        drawn.append(f'<path d="M{base:.1f} {top}V{y}"/>')
    return (
        f'<svg class="bars" xmlns="http://www.w3.org/2000/svg" width="{WIDTH}" '
        f'height="{y + 16}" '
        f'viewBox="0 0 {WIDTH} {y + 16}" '
        f'role="img"><title>{escape(title)}</title><style>{STYLE}</style>'
        f"{''.join(drawn)}</svg>\n"
    )

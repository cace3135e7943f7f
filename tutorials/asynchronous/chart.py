"""Line charts in panels side by side, as SVG, with the fonts and colours of minipipe's
pictures.
"""

from typing import NamedTuple

from minipipe.render.layout import LogAxis, number
from minipipe.render.svg.elements import moved, path, path_data, polyline
from minipipe.render.svg.legend import Entry, Legend
from minipipe.render.svg.style import DEFAULT_SIZE, Letters, Page, paint
from minipipe.render.units import round_step

WIDTH, HEIGHT, LEFT, GAP = 960, 200, 40, 28
DASHES = ' stroke-dasharray="5 3"'
LOSSES = (1, 1.5, 2, 2.5, 3, 4, 5, 6, 8)


class Line(NamedTuple):
    """A line: its name, and its points (x, y), all above 0."""

    name: str
    points: list


class Panel(NamedTuple):
    """Lines on common axes. The y axis is logarithmic; with ``is_log`` so is the x
    axis, in powers of two.
    """

    title: str
    words: str
    lines: list
    is_log: bool = False


class Axis(NamedTuple):
    """A linear axis that begins at 0."""

    most: float
    start: float
    end: float

    def at(self, amount):
        return round(self.start + amount / self.most * (self.end - self.start), 2)

    def marks(self):
        step = round_step(self.most / 5)
        return [i * step for i in range(int(self.most / step) + 1)]


def draw_panels(title, rows, names, looks):
    """Return an SVG of rows of panels. The panels of a row have the same y axis.

    Parameters
    ----------
    title : str
    rows : list of list of Panel
    names : dict of str to str
        The label of each line in the legend.
    looks : dict of str to (str, bool)
        For each line its role in the style sheet, and whether it is dashed.
    """
    page = Page(WIDTH, title, (), Letters(DEFAULT_SIZE))
    parts, y = page.head()
    for panels in rows:
        least = min(
            value
            for panel in panels
            for line in panel.lines
            for _, value in line.points
        )
        highest = max(line.points[0][1] for line in panels[0].lines)
        vertical = LogAxis(least / 1.05, highest * 1.05, HEIGHT, 0)
        width = (WIDTH - 2 * page.margin) / len(panels)
        for i, panel in enumerate(panels):
            left = page.margin + i * width
            parts.append(
                moved(
                    left,
                    y + 18,
                    drawn(panel, vertical, width - GAP, page.letters, looks),
                )
            )
        y += HEIGHT + 66
    legend = Legend(page)
    middle = number(legend.height / 2)
    entries = [
        Entry(line_of(f"M0 {middle}H{legend.width}", *look), names[name])
        for name, look in looks.items()
    ]
    drawn_entries, bottom = legend.draw(entries, page.margin, y)
    ends = (
        f"{panel.title}: "
        + ", ".join(
            f"{names[line.name]} {line.points[-1][1]:.3g}" for line in panel.lines
        )
        for panels in rows
        for panel in panels[1:]
    )
    return page.document([*parts, *drawn_entries], bottom, title, ". ".join(ends))


def drawn(panel, vertical, right, letters, looks):
    """Yield the SVG elements of a panel whose upper left corner is at (0, 0)."""
    xs = [x for line in panel.lines for x, _ in line.points]
    across = (
        LogAxis(min(xs), max(xs), LEFT, right)
        if panel.is_log
        else Axis(max(xs), LEFT, right)
    )
    marks, losses = (
        across.powers_of_two() if panel.is_log else across.marks(),
        vertical.round_amounts(LOSSES),
    )
    grid = [path_data("M", across.at(mark), 0, "V", HEIGHT) for mark in marks]
    grid += [path_data("M", LEFT, vertical.at(loss), "H", right) for loss in losses]
    grid.append(path_data("M", LEFT, 0, "V", HEIGHT, "H", right))
    yield path(paint("grid"), "".join(grid))
    yield letters.draw("name", LEFT, -7, panel.title)
    for mark in marks:
        yield letters.draw("tick", across.at(mark), HEIGHT + 15, f"{mark:,g}")
    for loss in losses:
        yield letters.draw("reading", LEFT - 6, vertical.at(loss) + 4, f"{loss:g}")
    yield letters.draw("tick", (LEFT + right) / 2, HEIGHT + 31, panel.words)
    for line in panel.lines:
        points = [(across.at(x), vertical.at(y)) for x, y in line.points]
        yield line_of(polyline(points), *looks[line.name])


def line_of(data, role, is_dashed):
    return path(f'{paint(role)} stroke-width="1.8"{DASHES if is_dashed else ""}', data)

"""Stacked bars in columns side by side: choices compared by several amounts, each with
its own axis.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from statistics import median
from typing import NamedTuple

from minipipe.io import escaped
from minipipe.render.svg.elements import moved, path, path_data, rect
from minipipe.render.svg.lanes import slot
from minipipe.render.svg.legend import Entry, Legend
from minipipe.render.svg.style import DEFAULT_SIZE, Letters, Page, box_paint, paint
from minipipe.schedules import ActionKind, IdleCause

_HEIGHT, _ROW, _GAP = 16, 26, 22  # pixels: of a bar, from bar to bar, between columns
_CUT = 3  # medians of a column: a bar that is longer is cut there


class Bar(NamedTuple):
    """An amount in parts.

    Attributes
    ----------
    parts : mapping of str to float
        By name, from the left.
    label : str
        The text after the bar.
    mark : float, optional
        Another amount to compare with, drawn as a line across the bar.

    Examples
    --------
    >>> Bar({"actions": 3, "idle": 1}, "4 ms", mark=3.5).total
    4
    """

    parts: Mapping[str, float]
    label: str
    mark: float | None = None

    @property
    def total(self) -> float:
        """The length of the bar."""
        return sum(self.parts.values())


def draw_bars(
    names: Sequence[str],
    columns: Mapping[str, Sequence[Bar]],
    looks: Mapping[str, ActionKind | IdleCause],
    *,
    marks: str = "",
    title: str | None = None,
    notes: Sequence[str] = (),
    width: int = 1080,
) -> str:
    """Draw columns of bars, with a bar for each name, as SVG.

    Parameters
    ----------
    names : sequence of str
        The names of the choices, from top to bottom.
    columns : mapping of str to sequence of Bar
        By the heading of the column.
    looks : mapping of str to ActionKind or IdleCause
        By name of a part, the kind or cause whose colour or hatching it has.
    marks : str
        The meaning of the lines across the bars.
    title, notes, width
        As for :func:`minipipe.render.draw_svg`.

    Examples
    --------
    >>> bars = [
    ...     Bar({"actions": 3, "idle": 1}, "4 ms", mark=3.5),
    ...     Bar({"actions": 3}, "3 ms"),
    ... ]
    >>> looks = {"actions": ActionKind.FORWARD, "idle": IdleCause.WAITING}
    >>> picture = draw_bars(
    ...     ["pipeline 2", "data 2"], {"a step": bars}, looks, marks="simulated"
    ... )
    >>> (
    ...     picture[:4],
    ...     picture.count(
    ...         "<title>pipeline 2: actions 3, idle 1; simulated 3.5</title>"
    ...     ),
    ... )
    ('<svg', 1)
    """
    page = Page(width, title, notes, Letters(DEFAULT_SIZE))
    return _BarsPage(page, names, columns, looks, marks).drawn()


class _BarsPage(NamedTuple):
    """The page: the names on the left, and columns of equal width."""

    page: Page
    names: Sequence[str]
    columns: Mapping[str, Sequence[Bar]]
    looks: Mapping[str, ActionKind | IdleCause]
    marks: str

    def drawn(self) -> str:
        """Return the whole document."""
        page = self.page
        letters = self.page.letters
        parts, y = page.head()
        widest = max(letters.width("rank", name) for name in self.names)
        left = page.margin + widest + 10
        width = (page.right - left) / len(self.columns)
        for i, name in enumerate(self.names):
            baseline = y + 28 + i * _ROW + 0.75 * _HEIGHT
            parts.append(letters.draw("rank", left - 10, baseline, name))
        for i, (head, bars) in enumerate(self.columns.items()):
            column = self._column(head, bars, width - _GAP)
            parts.append(moved(left + i * width, y, column))
        y += 28 + len(self.names) * _ROW + 8
        legend = Legend(page)
        entries, bottom = legend.draw(self._entries(legend), left, y)
        sentences = []
        for head, bars in self.columns.items():
            labels = (f"{name} {bar.label}" for name, bar in zip(self.names, bars))
            sentences.append(f"{head}: {', '.join(labels)}.")
        described = " ".join(sentences)
        return page.document([*parts, *entries], bottom, "Bars", described)

    def _column(self, head: str, bars: Sequence[Bar], width: float) -> Iterator[str]:
        """Yield a column whose upper left corner is at 0, 0."""
        letters = self.page.letters
        labels = max(letters.width("choice", bar.label) for bar in bars) + 8
        most = _most(bars)
        scale = (width - labels) / most
        yield letters.draw("fact", 0, 14, head)
        yield path(paint("grid"), f"M0 22V{28 + len(bars) * _ROW - 4}")
        for i, (name, bar) in enumerate(zip(self.names, bars)):
            yield moved(0, 28 + i * _ROW, self._bar(name, bar, scale, most))

    def _bar(self, name: str, bar: Bar, scale: float, most: float) -> Iterator[str]:
        sizes = bar.parts.items()
        title = f"{name}: "
        title += ", ".join(f"{part} {size:g}" for part, size in sizes if size)
        if bar.mark is not None:
            title += f"; {self.marks} {bar.mark:g}"
        yield f"<title>{escaped(title)}</title>"
        x = 0.0
        for part, size in bar.parts.items():
            length = min(size * scale, most * scale - x)
            if length > 0:
                yield moved(x, 0, [_box(self.looks[part], length, _HEIGHT)])
            x += length
        if bar.total > most:
            yield _slash(x - 12, _HEIGHT)
        if bar.mark is not None and bar.mark <= most:
            line = path_data("M", bar.mark * scale, -3, "V", _HEIGHT + 3)
            yield path(paint("step"), line)
            x = max(x, bar.mark * scale)
        yield self.page.letters.draw("choice", x + 6, 0.75 * _HEIGHT, bar.label)

    def _entries(self, legend: Legend) -> Iterator[Entry]:
        """Yield an entry of the legend for each part that occurs."""
        bars = [bar for column in self.columns.values() for bar in column]
        for part, look in self.looks.items():
            if any(bar.parts.get(part) for bar in bars):
                yield Entry(_box(look, legend.width, legend.height), part)
        columns = self.columns.values()
        if any(max(bar.total for bar in each) > _most(each) for each in columns):
            box = rect(paint("held"), legend.width, legend.height)
            slash = _slash(legend.width / 2 - 3, legend.height)
            yield Entry(box + slash, "truncated: longer than the column")
        if any(bar.mark is not None for bar in bars):
            yield legend.step()._replace(text=self.marks)


def _slash(x: float, height: float) -> str:
    data = path_data("M", x, height, "l", 6, -height)
    return path(f'{paint("box")} stroke-width="3"', data)


def _most(bars: Sequence[Bar]) -> float:
    """Return the length of a column in the unit of its bars."""
    lengths = [max(bar.total, bar.mark or 0) for bar in bars]
    longest = max(lengths)
    return min(longest, _CUT * median(lengths) or longest) or 1.0


def _box(look: ActionKind | IdleCause, width: float, height: float) -> str:
    """Return a part of a bar, or its picture in the legend."""
    if isinstance(look, ActionKind):
        return rect(box_paint(look, 0), width, height)
    if width < 1:
        return rect(paint("slot"), width, height)
    return slot(width, height, look)

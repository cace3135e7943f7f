"""Pictures of measurements, drawn from the tables of ``tests/benchmarks/README.md``."""

import re
from itertools import accumulate
from typing import NamedTuple

from tests.benchmarks.bars import bars


class Picture(NamedTuple):
    """Which columns of the first table under a heading are drawn, and how.

    Attributes
    ----------
    columns : tuple of str
        The headers of the drawn columns, from left to right. Each number in their cells
        is a bar.
    unit : str
    logarithmic : bool
    """

    columns: tuple[str, ...]
    unit: str
    logarithmic: bool = False


PICTURES = {
    "A step through ranks": Picture(
        ("peer", "1f1b", "zb-h1", "gpipe", "PyTorch, 1F1B"),
        "times as long as by hand, on a logarithmic axis",
        True,
    ),
    "Zero bubble": Picture(("measured", "predicted"), "times as fast as GPipe"),
    "Steps that overlap": Picture(
        ("waits for the loss", "predicted", "goes on at once", "predicted"),
        "units of F for a step",
    ),
    "Sums beside computation": Picture(
        ("no sum", "measured", "predicted"), "units of F for a step"
    ),
    "Replicas": Picture(("over by hand",), "times as long as by hand, in two runs"),
    "Stacked weight gradients": Picture(("its W", "stacked"), "ms of all W in a step"),
    "A message": Picture(("raw", "ours"), "µs one way, on a logarithmic axis", True),
}


def rows_of(table: str) -> list[list[str]]:
    """Return the cells of a table in Markdown, the header first."""
    rows = [
        [cell.strip() for cell in line.strip().strip("|").split("|")]
        for line in table.strip().splitlines()
    ]
    return [rows[0], *rows[2:]]


def groups_of(
    table: str, columns: tuple[str, ...]
) -> dict[str, list[tuple[str, float]]]:
    """Return the names and numbers of each row, by its label. A cell ``2.4; 2.2`` has
    two numbers.
    """
    head, *rows = rows_of(table)
    # Two columns may have the same header, so each search starts after the previous
    # column.
    places = list(
        accumulate(columns, lambda at, name: head.index(name, at + 1), initial=0)
    )[1:]
    found, label = {}, ""
    for row in rows:
        label = row[0] or label  # an empty cell repeats the one above
        ranks = f", {row[1]} {head[1]}" if head[1] == "ranks" else ""
        found[label + ranks] = [
            (head[place], float(number))
            for place in places
            for number in re.findall(r"\d+(?:\.\d+)?", row[place])
        ]
    return found


def with_pictures(text: str) -> str:
    """Return the page of the measurements with a picture after the first table under
    each heading of ``PICTURES``.

    Raises
    ------
    ValueError
        If a heading, a table or a column does not exist.
    """
    for title, picture in PICTURES.items():
        section = re.search(
            rf"^## {re.escape(title)}.*?(?=^## |\Z)", text, re.DOTALL | re.MULTILINE
        )
        table = section and re.search(
            r"^\|.*?\n(?=\n|\Z)", section[0], re.DOTALL | re.MULTILINE
        )
        if not table:
            raise ValueError(
                f"tests/benchmarks/README.md has no table under '## {title}', to "
                f"draw {picture.unit}."
            )
        drawn = bars(
            f"{title}: {picture.unit}",
            groups_of(table[0], picture.columns),
            picture.logarithmic,
        )
        end = section.start() + table.end()
        shown = (
            '\n<div class="picture output text_html" '
            f'tabindex="0">{drawn.strip()}</div>\n'
        )
        text = text[:end] + shown + text[end:]
    return text

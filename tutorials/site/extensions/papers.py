"""A page for each paper whose figures are reproduced: its table beside ours, from
``tests/schedules/published.py``.

A test compares the same numbers.
"""

import re
from itertools import groupby
from typing import Any

from catalogue import table
from chapters import write
from numpydoc.docscrape import FunctionDoc
from reference import heading
from sphinx.application import Sphinx

from minipipe import schedules
from tests.schedules.published import PUBLISHED, Figures


def reference(name: str) -> str:
    """Return the reference in the docstring of a schedule's builder."""
    return " ".join(
        " ".join(FunctionDoc(schedules.REGISTRY[name])["References"]).split()
    )


def title(name: str) -> str:
    """Return authors, year and title of the paper of a schedule."""
    return re.match(r'(.+? \d{4}, "[^"]+")', reference(name))[1].replace('"', "")


def cell(value: Any) -> str:
    """Return a value for a table. Bubble rates have four digits, as in papers."""
    if isinstance(value, tuple):
        return ", ".join(map(cell, value))
    return (
        f"{value:.4f}".rstrip("0").rstrip(".")
        if isinstance(value, float)
        else str(value)
    )


def section(figures: Figures) -> str:
    """Return a claim of a paper with its table."""
    head = [*figures.given]
    for column in figures.columns:
        head += [f"{column}: paper", "here"]
    rows = []
    for sizes, published in figures.rows:
        pairs = zip(published, figures.ours(*sizes), strict=True)
        rows.append(
            [*map(cell, sizes), *(cell(value) for pair in pairs for value in pair)]
        )
    names = ", ".join(f":doc:`/schedules/{name}`" for name in figures.names)
    held = (
        "Our figures equal the published ones."
        if figures.holds == "equal"
        else "Our figures are at most as large."
    )
    return f"{figures.claim}\n\n{table(head, rows)}{held} Schedules: {names}.\n\n"


def write_papers(app: Sphinx) -> None:
    """Write the page of each paper and the list of papers."""
    names = []
    for name, several in groupby(PUBLISHED, key=lambda figures: figures.paper):
        tables = list(several)
        first = tables[0].names[0]
        text = (
            heading(title(first))
            + f"{reference(first)}\n\n"
            + "".join(map(section, tables))
        )
        write(app, f"papers/{name}.rst", text)
        names.append(name)
    intro = (
        "Each page compares figures published in a paper with the schedules of "
        "minipipe. A test compares them.\n\n"
    )
    listed = "".join(f"   {name}\n" for name in names)
    write(
        app,
        "papers/index.rst",
        f"{heading('Papers')}{intro}.. toctree::\n   :maxdepth: 1\n\n{listed}",
    )


def setup(app: Sphinx) -> dict[str, bool]:
    """Write the pages before Sphinx reads the sources."""
    app.connect("builder-inited", write_papers, priority=300)
    return {"parallel_read_safe": True, "parallel_write_safe": True}

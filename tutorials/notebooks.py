"""Write the lessons as Jupyter notebooks.

    python tutorials/notebooks.py DIR [LESSON.py …]        all lessons, or these

A lesson is a Python file in percent format: a line ``# %%`` begins a cell. Most cells
end with asserts about their output. In a notebook these asserts are in a separate cell,
which is folded and tagged ``hide-input``. It runs like the others. Programs that make
pages from notebooks can fold or remove cells with this tag.
"""

from __future__ import annotations

import ast
import json
import re
import sys
from pathlib import Path
from typing import Any, NamedTuple

FOLDED = {"tags": ["hide-input"], "jupyter": {"source_hidden": True}}


class Cell(NamedTuple):
    """One cell of a lesson: the number of its first line, its kind, and its text."""

    line: int
    is_markdown: bool
    text: str

    @property
    def content(self) -> str:
        """The text for a notebook: Markdown without comment signs, and no blank lines
        around it.
        """
        text = (
            re.sub(r"^# ?", "", self.text, flags=re.MULTILINE)
            if self.is_markdown
            else self.text
        )
        return text.strip("\n")


def read_cells(source: str) -> list[Cell]:
    """Return the cells of a script in percent format."""
    lines = source.splitlines()
    starts = [i for i, line in enumerate(lines) if line.startswith("# %%")]
    ends = [*starts[1:], len(lines)]
    return [
        Cell(
            start + 1,
            lines[start] == "# %% [markdown]",
            "\n".join(lines[start + 1 : end]),
        )
        for start, end in zip(starts, ends)
    ]


def without_checks(code: str) -> tuple[str, str]:
    """Split a code cell into its code and the checks at its end: asserts, and loops
    that contain only asserts.
    """
    shown = [
        statement.end_lineno or 0
        for statement in ast.parse(code).body
        if not _is_check(statement)
    ]
    lines = code.splitlines()
    end = max(shown, default=0)
    return "\n".join(lines[:end]), "\n".join(lines[end:]).strip("\n")


def _is_check(statement: ast.stmt) -> bool:
    if isinstance(statement, ast.For):
        return all(map(_is_check, statement.body))
    return isinstance(statement, ast.Assert)


def notebook(source: str) -> dict[str, Any]:
    """Return a lesson as a notebook, in Jupyter's format 4.5."""
    cells: list[dict[str, Any]] = []

    def add(kind: str, text: str, **more: Any) -> None:
        if text:
            lines = text.splitlines(keepends=True)
            cells.append(
                {
                    "id": f"cell-{len(cells)}",
                    "cell_type": kind,
                    "metadata": {},
                    "source": lines,
                    **more,
                }
            )

    for cell in read_cells(source):
        if cell.is_markdown:
            add("markdown", cell.content)
        else:
            code, checks = without_checks(cell.content)
            add("code", code, execution_count=None, outputs=[])
            add("code", checks, execution_count=None, outputs=[], metadata=FOLDED)
    kernel = {"name": "python3", "display_name": "Python 3", "language": "python"}
    return {
        "nbformat": 4,
        "nbformat_minor": 5,
        "metadata": {"kernelspec": kernel},
        "cells": cells,
    }


def main(folder: str, *names: str) -> None:
    """Write notebooks into a folder, and create it if it is missing."""
    home = Path(__file__).parent
    lessons = [Path(name) for name in names] or sorted(home.glob("[0-9][0-9]_*.py"))
    Path(folder).mkdir(parents=True, exist_ok=True)
    for lesson in lessons:
        path = Path(folder, f"{lesson.stem}.ipynb")
        text = json.dumps(
            notebook(lesson.read_text(encoding="utf-8")), indent=1, ensure_ascii=False
        )
        path.write_text(f"{text}\n", encoding="utf-8")
        print(f"wrote {path}")


if __name__ == "__main__":
    if len(sys.argv) < 2 or sys.argv[1].startswith("-"):
        sys.exit(__doc__)
    main(*sys.argv[1:])

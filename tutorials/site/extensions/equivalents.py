"""Tables for the two pages "Coming from …", made from ``minipipe/hints.toml``, which
error messages quote.

A line ``<!-- hints: Tensor -->`` becomes the table of that section.
"""

import re
import tomllib

from chapters import ROOT
from sphinx.application import Sphinx

HINTS = tomllib.loads((ROOT / "minipipe" / "hints.toml").read_text(encoding="utf-8"))
TABLE = re.compile(r"^(?=\|.*\n\|-)", re.MULTILINE)
MARK = re.compile(r"^<!-- hints: (.+) -->$", re.MULTILINE)


def table_of(section: str) -> str:
    """Return a section of the file, or of its table ``instead``, as a table in
    Markdown.
    """
    entries = HINTS["instead"].get(section) or HINTS[section]
    rows = ["| there | here |", "|---|---|"]
    for names, text in entries.items():
        there = ", ".join(f"`{name}`" for name in names.split())
        text = text.replace("{name}", "NAME" if " " in names else names)
        # Markdown must be escaped in prose, but would show its backslashes in code.
        parts = re.split(r"(`[^`]*`)", text.replace("|", "\\|"))
        parts[::2] = [
            part.replace("<", "&lt;").replace("*", "\\*").replace("_", "\\_")
            for part in parts[::2]
        ]
        rows.append(f"| {there} | {''.join(parts)} |")
    return "\n".join(rows)


def fill(app: Sphinx, page: str, source: list[str]) -> None:
    """Insert the tables, and let all tables of these pages become lists on a phone."""
    if page.startswith("coming-from-"):
        filled = MARK.sub(lambda mark: table_of(mark[1]), source[0])
        source[0] = TABLE.sub("{.list-on-phone}\n", filled)


def setup(app: Sphinx) -> dict[str, bool]:
    """Insert the tables when a page is read."""
    app.connect("source-read", fill)
    return {"parallel_read_safe": True, "parallel_write_safe": True}

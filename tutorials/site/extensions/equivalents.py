"""Tables of ``minipipe/hints.toml``, which errors quote, for the pages that greet users of other libraries.

A line ``<!-- hints: Tensor -->`` becomes the table of that section.
"""

import re
import tomllib

from chapters import ROOT
from sphinx.application import Sphinx

HINTS = tomllib.loads((ROOT / "minipipe" / "hints.toml").read_text(encoding="utf-8"))
MARK = re.compile(r"^<!-- hints: (.+) -->$", re.MULTILINE)


def table_of(section: str) -> str:
    """Return a section as a table: of ``instead``, or of its own."""
    entries = HINTS["instead"].get(section) or HINTS[section]
    rows = ["| there | here |", "|---|---|"]
    for names, text in entries.items():
        there = ", ".join(f"`{name}`" for name in names.split())
        here = (
            text.replace("{name}", "…").replace("|", "\\|").replace("<", "&lt;").replace("*", "\\*").replace("_", "\\_")
        )
        rows.append(f"| {there} | {here} |")
    return "\n".join(rows)


def fill(app: Sphinx, page: str, source: list[str]) -> None:
    """Put the tables in."""
    if page.startswith("coming-from-"):
        source[0] = MARK.sub(lambda mark: table_of(mark[1]), source[0])


def setup(app: Sphinx) -> dict[str, bool]:
    """Change pages as they are read."""
    app.connect("source-read", fill)
    return {"parallel_read_safe": True, "parallel_write_safe": True}

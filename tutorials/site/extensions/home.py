"""The first page: picture, buttons and install command. Also builds the playground and
adds it to the header.
"""

import importlib.util
import re
from pathlib import Path
from typing import Any

from chapters import PICTURE, ROOT, places
from sphinx.application import Sphinx

PLAYGROUND = ROOT / "tutorials" / "site" / "playground" / "build.py"
# 1F1B above ZB-H1, which README.md shows as well.
DRAWING = ROOT / "tutorials" / "site" / "zero-bubble.svg"
INSTALL = "<!-- install -->"
CARD = re.compile(r"^- .*?playground/.*?(?=^- )", re.DOTALL | re.MULTILINE)


def insert_install_command(app: Sphinx, page: str, source: list[str]) -> None:
    """Insert the first command of README.md, which installs minipipe. Without a
    playground, remove its card.
    """
    if page == "index":
        if not app.config.playground:
            source[0] = CARD.sub("", source[0], count=1)
        readme = (ROOT / "README.md").read_text(encoding="utf-8")
        command = re.search(r"^```sh\n(.+?)^```\n", readme, re.DOTALL | re.MULTILINE)[0]
        source[0] = source[0].replace(INSTALL, command)


def fill(
    app: Sphinx, page: str, template: str, context: dict[str, Any], doctree: Any
) -> None:
    """Insert picture and buttons into the first page, and link to the playground in the
    header of all pages.
    """
    playground = (
        context["pathto"]("playground/index.html", resource=True)
        if app.config.playground
        else ""
    )
    if playground:
        context["playground"] = playground
    if page == "index":
        body = context["body"].replace(
            '<div id="buttons"></div>', buttons(context["pathto"], playground)
        )
        drawing = DRAWING.read_text(encoding="utf-8")
        context["body"] = body.replace(
            '<div id="picture"></div>',
            f"{PICTURE}{drawing[drawing.index('<svg') :]}</div>",
        )


def buttons(pathto: Any, playground: str) -> str:
    """Return the links to the playground and to the first lesson."""
    lesson = min(page for page in places().values() if page.startswith("lessons/0"))
    links = [f'<a href="{playground}">Open the playground</a>'] if playground else []
    links.append(f'<a href="{pathto(lesson)}">Start with lesson 1</a>')
    return f'<p class="buttons">{" ".join(links)}</p>'


def build_playground(app: Sphinx) -> None:
    """Build the playground first, because its build may find that Node.js is
    missing.
    """
    if app.config.playground and app.builder.format == "html":
        spec = importlib.util.spec_from_file_location("playground_build", PLAYGROUND)
        module = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(module)
        module.build(Path(app.outdir) / "playground")


def setup(app: Sphinx) -> dict[str, bool]:
    """Build the playground at the start, and fill the first page before other
    extensions change pages.
    """
    app.add_config_value("playground", True, "html")
    app.connect("builder-inited", build_playground, priority=100)
    app.connect("source-read", insert_install_command)
    app.connect("html-page-context", fill, priority=400)
    return {"parallel_read_safe": True, "parallel_write_safe": True}

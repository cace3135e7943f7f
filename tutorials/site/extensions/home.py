"""The picture of the first page, and the playground, whose static files are made beside the pages."""

import importlib.util
from pathlib import Path
from typing import Any

from chapters import ROOT
from sphinx.application import Sphinx

from minipipe import render, schedules

PLAYGROUND = ROOT / "tutorials" / "site" / "playground" / "build.py"


def fill(app: Sphinx, page: str, template: str, context: dict[str, Any], doctree: Any) -> None:
    """Put 1F1B above ZB-H1 into the first page, and the playground into the navigation of all."""
    if page == "index":
        drawing = render.draw_svg(
            schedules.one_f_one_b(4, 8), schedules.zb_h1(4, 8), title="Zero bubble: I now, W later"
        )
        picture = f'<div class="picture output text_html" tabindex="0">{drawing}</div>'
        context["body"] = context["body"].replace('<div id="first-picture"></div>', picture)
    if PLAYGROUND.exists():
        url = context["pathto"]("playground/index.html", resource=True)
        context["theme_external_links"] = [{"name": "Playground", "url": url}]


def build_playground(app: Sphinx, error: Exception | None) -> None:
    """Let the playground make its files."""
    if error is None and app.builder.format == "html" and PLAYGROUND.exists():
        spec = importlib.util.spec_from_file_location("playground_build", PLAYGROUND)
        module = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(module)
        module.build(Path(app.outdir) / "playground")


def setup(app: Sphinx) -> dict[str, bool]:
    """Fill the first page before the other changes to pages, and build the playground at the end."""
    app.connect("html-page-context", fill, priority=400)
    app.connect("build-finished", build_playground)
    return {"parallel_read_safe": True, "parallel_write_safe": True}

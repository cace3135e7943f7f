"""The picture of the first page, and the playground, whose static files are made beside the pages."""

import importlib.util
from pathlib import Path
from typing import Any

from chapters import ROOT
from sphinx.application import Sphinx

from minipipe import render, schedules

PLAYGROUND = ROOT / "tutorials" / "site" / "playground" / "build.py"


def fill(app: Sphinx, page: str, template: str, context: dict[str, Any], doctree: Any) -> None:
    """Put 1F1B above ZB-H1 into the first page, and the playground into the header of all."""
    if page == "index":
        drawing = render.draw_svg(
            schedules.one_f_one_b(4, 8), schedules.zb_h1(4, 8), title="Zero bubble: I now, W later"
        )
        picture = f'<div class="picture output text_html" tabindex="0">{drawing}</div>'
        context["body"] = context["body"].replace('<div id="first-picture"></div>', picture)
    if app.config.playground:
        context["playground"] = context["pathto"]("playground/index.html", resource=True)


def build_playground(app: Sphinx) -> None:
    """Let the playground make its files: first, since it may find that something is missing."""
    if app.config.playground and app.builder.format == "html":
        spec = importlib.util.spec_from_file_location("playground_build", PLAYGROUND)
        module = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(module)
        module.build(Path(app.outdir) / "playground")


def setup(app: Sphinx) -> dict[str, bool]:
    """Build the playground at the beginning, and fill the first page before the other changes to pages."""
    app.add_config_value("playground", True, "html")
    app.connect("builder-inited", build_playground, priority=100)
    app.connect("html-page-context", fill, priority=400)
    return {"parallel_read_safe": True, "parallel_write_safe": True}

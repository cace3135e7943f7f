"""Pages made from files of the repository: the READMEs, the lessons, and the glossary
of the lessons' README.

Each file is copied into the sources of the site before Sphinx reads them. A relative
link in it leads to a page of the site if the target has one, to source code if it is a
file of the package, and otherwise to the file itself.
"""

import json
import os
import re
from pathlib import Path
from typing import Any

from measurements import with_pictures
from myst_nb.core import render
from myst_nb.core.utils import coalesce_streams
from sphinx.application import Sphinx

from tutorials import notebooks

ROOT = Path(__file__).resolve().parents[3]
LINK = re.compile(r"(?<=\]\()(?!https?:|#)([^)#\s]+)(#[^)]*)?(?=\))")
INTRODUCTIONS = {
    "packages": "Each package of minipipe has one task. Its page shows how to use it, lists "
    "its files in reading "
    "order, and says what to know before you change it.",
    "project": (
        "Installation, the design and its reasons, how to contribute, measurements, "
        "and changes by release."
    ),
}
PICTURE = '<div class="output text_html picture" tabindex="0">'
FOLDERS = ("api", "lessons", "packages", "papers", "project", "schedules")
WRITTEN: set[Path] = set()  # pages of this build
# with a link in its first column
TABLE = re.compile(r"^(?=\|.*\n\|-.*\n\| \[)", re.MULTILINE)
TERM = re.compile(r"^- \*\*(.+?)\*\*: ((?:.+\n)(?:  .+\n)*)", re.MULTILINE)


def places() -> dict[Path, str]:
    """Return the files of the repository that have a page on the site, with the names
    of their pages.
    """
    found = {
        ROOT / "README.md": "project/readme",
        ROOT / "DESIGN.md": "project/design",
        ROOT / "CONTRIBUTING.md": "project/contributing",
        ROOT / "CHANGELOG.md": "project/changelog",
        ROOT / "tests/benchmarks/README.md": "project/benchmarks",
        ROOT / "tutorials/README.md": "lessons/index",
        ROOT / "tutorials/site/README.md": "project/site",
        ROOT / "tutorials/asynchronous/README.md": "lessons/asynchronous",
        ROOT / "tutorials/cluster/README.md": "lessons/cluster",
        ROOT / "tutorials/stepping.md": "lessons/stepping",
        ROOT / "tutorials/exercises/README.md": "lessons/exercises",
    }
    for lesson in sorted((ROOT / "tutorials").glob("[0-9][0-9]_*.py")):
        found[lesson] = f"lessons/{lesson.stem}"
    for readme in sorted((ROOT / "minipipe").rglob("README.md")):
        found[readme] = "packages/" + "-".join(
            readme.parent.relative_to(ROOT / "minipipe").parts
        )
    return found


def with_links(text: str, source: Path, page: str, pages: dict[Path, str]) -> str:
    """Return a text with its relative links changed: from the folder of ``source`` to
    the folder of a page.
    """

    def target(link: re.Match) -> str:
        path = Path(os.path.normpath(source.parent / link[1]))
        name = pages.get(path) or pages.get(path / "README.md")
        if name is not None:
            ending = ".ipynb" if path.suffix == ".py" else ".md"
            return os.path.relpath(f"/{name}", f"/{page}/..") + ending + (link[2] or "")
        return os.path.relpath(path, ROOT / "tutorials/site" / page / "..")

    return LINK.sub(target, text)


def without_glossary(text: str) -> tuple[str, dict[str, str]]:
    """Split the README of the lessons into the text without the glossary, and the
    definitions by their terms.
    """
    head, glossary = text.split("## Glossary\n")
    terms = {term: " ".join(words.split()) for term, words in TERM.findall(glossary)}
    if rest := TERM.sub("", glossary).strip():
        raise ValueError(
            f"The glossary of tutorials/README.md has more than terms: {rest[:200]!r}"
        )
    return head, terms


def glossary_page(terms: dict[str, str]) -> str:
    """Return the page of the glossary. A definition links to another term at its first
    use.
    """
    # Single letters are not linked: "I" is also a word.
    known = sorted((term for term in terms if len(term) > 1), key=len, reverse=True)
    pattern = re.compile(
        rf"(?<![\w`-])({'|'.join(map(re.escape, known))})(s?)(?![\w-])"
    )
    entries = []
    for term, words in terms.items():
        seen = {term}

        def linked(found: re.Match, seen: set[str] = seen) -> str:
            if found[1] in seen:
                return found[0]
            seen.add(found[1])
            return (
                f"{{term}}`{found[0]} <{found[1]}>`"
                if found[2]
                else f"{{term}}`{found[0]}`"
            )

        parts = re.split(r"(`[^`]*`)", words)
        parts[::2] = [pattern.sub(linked, part) for part in parts[::2]]
        entries.append(f"{term}\n  {''.join(parts)}\n")
    return "# Glossary\n\n:::{glossary}\n" + "\n".join(entries) + ":::\n"


def write(app: Sphinx, page: str, text: str) -> None:
    """Write a page into the sources. An unchanged file is left alone, so that Sphinx
    does not read it again.
    """
    path = Path(app.srcdir) / page
    path.parent.mkdir(parents=True, exist_ok=True)
    WRITTEN.add(path)
    if not path.exists() or path.read_text(encoding="utf-8") != text:
        path.write_text(text, encoding="utf-8")


def notebook(source: str, path: Path, page: str, pages: dict[Path, str]) -> str:
    """Return a lesson as a notebook, with its links changed for the site."""
    made = notebooks.notebook(source)
    texts = [cell for cell in made["cells"] if cell["cell_type"] == "markdown"]
    for cell in texts:
        cell["source"] = [
            with_links(line, path, page, pages) for line in cell["source"]
        ]
    with_one_title([cell["source"] for cell in texts])
    return json.dumps(made)


def with_one_title(texts: list[list[str]]) -> None:
    """Move all headings after the title one level down if a lesson has parts, each with
    a title of its own.
    """
    places = [(lines, at) for lines in texts for at in headings_of(lines)]
    if sum(lines[at].startswith("# ") for lines, at in places) > 1:
        for lines, at in places[1:]:
            lines[at] = f"#{lines[at]}"


def headings_of(lines: list[str]) -> list[int]:
    """Return the indices of the headings in a text. In a block of code, ``#`` begins a
    comment.
    """
    found, is_code = [], False
    for at, line in enumerate(lines):
        if line.startswith("```"):
            is_code = not is_code
        elif not is_code and re.match(r"#+ ", line):
            found.append(at)
    return found


def joined(outputs: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Join the parts in which the kernel sends the text of a cell. MyST-NB would begin
    a line with each part.
    """
    found, streams = [], {}
    for output in outputs:
        name = output.get("name")
        if output["output_type"] == "stream" and name in streams:
            streams[name]["text"] += output["text"]
            continue
        if output["output_type"] == "stream":
            streams[name] = output
        found.append(output)
    return found


def toctree(option: str, names: list[str]) -> str:
    """Return the directive that adds pages to the navigation."""
    return f"```{{toctree}}\n:{option}\n\n" + "\n".join(names) + "\n```\n"


def write_chapters(app: Sphinx) -> None:
    """Write the pages that come from files of the repository."""
    pages = places()
    for path, page in pages.items():
        text = path.read_text(encoding="utf-8")
        if path.suffix == ".py":
            write(app, f"{page}.ipynb", notebook(text, path, page, pages))
            continue
        if page == "lessons/index":
            text, terms = without_glossary(text)
            text = TABLE.sub("{.list-on-phone}\n", text)
            write(app, "glossary.md", glossary_page(terms))
            names = sorted(
                name
                for name in pages.values()
                if name.startswith("lessons/") and name != page
            )
            names = [Path(name).name for name in names]
            text += "\n" + toctree("hidden:", names)
        if page == "project/benchmarks":
            text = with_pictures(text)
        text = with_links(text, path, page, pages).replace(
            "(#glossary)", "(../glossary.md)"
        )
        write(app, f"{page}.md", text)
    for folder, title in (("packages", "Packages"), ("project", "The project")):
        names = [
            page.split("/")[1]
            for page in pages.values()
            if page.startswith(f"{folder}/")
        ]
        write(
            app,
            f"{folder}/index.md",
            f"# {title}\n\n{INTRODUCTIONS[folder]}\n\n{toctree('maxdepth: 1', names)}",
        )


def remove_others(app: Sphinx) -> None:
    """Remove pages that an earlier build wrote and this one did not, such as a renamed
    lesson.
    """
    for folder in FOLDERS:
        for path in (Path(app.srcdir) / folder).rglob("*"):
            if path.is_file() and path not in WRITTEN:
                path.unlink()


def finish(
    app: Sphinx, page: str, template: str, context: dict[str, Any], doctree: Any
) -> None:
    """Let pictures follow the theme of the page instead of the system, and scroll on
    narrow pages.
    """
    if "body" in context:  # a screen reader would announce an empty cell as a header
        context["body"] = context["body"].replace(
            '<th class="head"><p></p></th>', "<td></td>"
        )
    if "<svg" in context.get("body", ""):
        body = context["body"].replace(
            "@media screen and (prefers-color-scheme:dark){", 'html[data-theme="dark"]{'
        )
        # The keyboard must reach everything that scrolls.
        context["body"] = re.sub(
            r'<div class="output text_html">(?=\s*<svg)', PICTURE, body
        )


def setup(app: Sphinx) -> dict[str, bool]:
    """Copy the pages before autosummary reads them."""
    render.coalesce_streams = lambda outputs: coalesce_streams(joined(outputs))
    app.connect("builder-inited", write_chapters, priority=300)
    app.connect("builder-inited", remove_others, priority=400)
    app.connect("html-page-context", finish)
    return {"parallel_read_safe": True, "parallel_write_safe": True}

"""The playground's files: complete, those that were tried, and all that the page ever
loads.
"""

import ast
import os
import sys
import zipfile

import pytest

from tests.launch import ROOT, run
from tests.release.test_release import PYODIDE
from tests.site.desk import PATIENCE, Desk
from tests.site.test_pages import loaded

FOLDER = ROOT / "tutorials" / "site" / "playground"
# PNG and PDF, and exact search; the page offers neither
ELSEWHERE = {"cairosvg", "ortools"}


@pytest.fixture(scope="module")
def build():
    pytest.importorskip("sphinx", reason="needs Sphinx (pip install -e '.[docs]')")
    return loaded(FOLDER / "build.py")


def test_what_the_archive_of_the_page_imports_is_in_it_or_in_python(site):
    with zipfile.ZipFile(site / "playground" / "minipipe.zip") as archive:
        names = set(archive.namelist())
        trees = [
            ast.walk(ast.parse(archive.read(name)))
            for name in names
            if name.endswith(".py")
        ]
    imported = set()
    for node in (node for tree in trees for node in tree):
        if isinstance(node, ast.ImportFrom):
            imported.add(node.module)
        elif isinstance(node, ast.Import):
            imported |= {name.name for name in node.names}
    own = {name.replace(".", "/") for name in imported if name.startswith("minipipe")}
    assert [
        name
        for name in sorted(own)
        if not {f"{name}.py", f"{name}/__init__.py"} & names
    ] == []
    others = (
        {name.split(".")[0] for name in imported}
        - {"minipipe"}
        - sys.stdlib_module_names
    )
    assert others == ELSEWHERE


def test_the_page_loads_its_files_and_nothing_else(site, address, open_page):
    page, fetched = open_page("players/gpipe"), []  # a page that loads nothing later
    page.on("request", lambda request: fetched.append(request.url))
    page.goto(f"{address}/playground/index.html")
    Desk(page).wait_until_alive()
    folder = site / "playground"
    there = {
        path.relative_to(folder).as_posix()
        for path in folder.rglob("*")
        if path.is_file()
    }
    assert {url.partition("/playground/")[2] for url in fetched} == there - {
        "pyodide/package.json"
    }
    assert '"license": "MPL-2.0"' in (folder / "pyodide" / "package.json").read_text()


def test_the_same_pyodide_runs_every_schedule_of_the_wheel(build):
    assert build.PYODIDE in PYODIDE.values()


def test_an_archive_other_than_the_one_that_was_tried_is_refused(build, tmp_path):
    (tmp_path / "pyodide.tgz").write_bytes(b"another")
    with pytest.raises(
        build.CannotBuild,
        match=r"pyodide.tgz from npm is sha512-.*; expected sha512-0YvX",
    ):
        build.check_integrity(tmp_path / "pyodide.tgz")


SPHINX = (sys.executable, "-m", "sphinx", "-W", "-q")


def test_a_site_without_npm_says_what_is_missing_at_once(build, tmp_path):
    done = run([*SPHINX, "tutorials/site", tmp_path], PATH="")
    assert done.code != 0
    assert "npm is missing; the playground needs Node.js and its npm" in done.err
    assert "sphinx-build -D playground=0" in done.err


def test_a_site_can_be_built_without_its_playground(build, tmp_path):
    """A small one, with the same extension."""
    (tmp_path / "index.rst").write_text("Title\n=====\n")
    options = (
        "-C",
        "-D",
        "extensions=home",
        "-D",
        "playground=0",
        "-D",
        "html_theme=pydata_sphinx_theme",
    )
    paths = os.pathsep.join(
        map(str, (ROOT / "tutorials" / "site" / "extensions", ROOT))
    )
    done = run(
        [*SPHINX, *options, tmp_path, tmp_path / "html"], PATH="", PYTHONPATH=paths
    )
    assert done.code == 0, done.err
    assert "Playground" not in (tmp_path / "html" / "index.html").read_text()
    assert not (tmp_path / "html" / "playground").exists()


def test_python_starts_anew_where_its_memory_is_missing(chromium, address):
    page, warnings = chromium.new_page(), []
    page.on("console", lambda message: warnings.append(message.text))
    page.route("**/memory.bin", lambda route: route.fulfill(status=404))
    page.goto(f"{address}/playground/index.html")
    Desk(page).wait_until_alive()
    assert any(
        text.startswith("Python starts anew: memory.bin: 404") for text in warnings
    )
    page.close()


@pytest.mark.parametrize("place", ["a file", "a server that lacks a file"])
def test_a_page_whose_python_does_not_start_says_so(site, chromium, address, place):
    """From a file, browsers start no worker."""
    page = chromium.new_page()
    page.route("**/minipipe.zip", lambda route: route.fulfill(status=404))
    page.goto(
        f"{address if place != 'a file' else site.as_uri()}/playground/index.html"
    )
    said = page.locator("#said.refused")
    said.wait_for(timeout=PATIENCE)
    assert (
        said.inner_text().startswith("Python does not answer: ")
        and "python -m http.server" in said.inner_text()
    )
    assert page.locator("#empty").is_disabled()
    page.close()


def test_the_benchmark_of_the_editor_runs(site, chromium):
    options = ("--site", site, "--rounds", "1", "--sizes", "2x2")
    done = run([sys.executable, "tests/benchmarks/editor.py", *options])
    assert done.code == 0, done.err
    assert [line.split(":")[0] for line in done.out.splitlines()[1::2]] == [
        "playground",
        "minipipe edit",
    ]
    assert done.out.count("place") == 2

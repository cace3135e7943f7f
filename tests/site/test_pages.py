"""The site builds without a warning, has a page for everything it must have, and no
link leads nowhere.
"""

import importlib.util
import re

import pytest

from minipipe import schedules
from minipipe.errors import ScheduleError
from minipipe.render.editor.draft import Draft
from minipipe.render.editor.sharing import packed, unpacked
from tests.launch import ROOT
from tests.test_documentation import DEFINED_IN, PUBLIC

LESSONS = sorted((ROOT / "tutorials").glob("[0-9][0-9]_*.py"))
# Offered to other packages, and to nobody outside.
INSIDE = ("cli.main", "render.editor")


def loaded(path):
    """Return a program of the site as a module."""
    spec = importlib.util.spec_from_file_location(path.stem, path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


links = loaded(ROOT / "tutorials" / "site" / "links.py")
megatron = loaded(ROOT / "tutorials" / "site" / "megatron.py")
measurements = loaded(ROOT / "tutorials" / "site" / "extensions" / "measurements.py")


def documented(site):
    """Return (module, name) for each function and class with a page, where it is
    defined.
    """
    from sphinx.util.inventory import InventoryFile

    inventory = InventoryFile.loads((site / "objects.inv").read_bytes(), uri="")
    found = set()
    for kind in ("py:function", "py:class", "py:exception"):
        for path in inventory.data.get(kind, {}):
            module, _, name = path.rpartition(".")
            holder = importlib.import_module("minipipe")
            for part in module.split(".")[1:]:
                holder = getattr(holder, part, None) or importlib.import_module(
                    f"{holder.__name__}.{part}"
                )
            value = getattr(holder, name)
            home = value.__module__.removeprefix("minipipe.")
            found.add((DEFINED_IN.get(home, home), value.__name__))
    return found


def test_it_builds_without_a_warning_and_every_link_leads_somewhere(site):
    assert links.problems(site) == []


def test_every_public_name_has_a_page(site):
    missing = PUBLIC - documented(site)
    assert sorted(name for name in missing if not name[0].startswith(INSIDE)) == []
    # so that a name there is found to be missing
    assert {name[0].startswith(INSIDE) for name in missing} == {True}


@pytest.mark.parametrize("lesson", LESSONS, ids=lambda path: path.stem)
def test_a_lesson_was_run_and_has_its_pictures(site, lesson):
    page = (site / "lessons" / f"{lesson.stem}.html").read_text()
    assert 'class="cell_output' in page
    assert page.count("<details") == page.count("</details>")
    assert "<svg" in page or "render.show(" not in re.sub(
        r"^#.*", "", lesson.read_text(), flags=re.MULTILINE
    )


def test_every_readme_of_a_package_has_a_page(site):
    packages = [
        path.parent.relative_to(ROOT / "minipipe")
        for path in (ROOT / "minipipe").rglob("README.md")
    ]
    pages = {path.stem for path in (site / "packages").glob("*.html")} - {"index"}
    assert pages == {"-".join(package.parts) for package in packages}


def test_a_lesson_with_parts_has_one_title(monkeypatch):
    monkeypatch.syspath_prepend(ROOT / "tutorials" / "site" / "extensions")
    chapters = loaded(ROOT / "tutorials" / "site" / "extensions" / "chapters.py")
    for texts, expected in (
        ([["# a", "text", "## b"], ["## c"]], [["# a", "text", "## b"], ["## c"]]),
        ([["# a", "## b"], ["# c", "# d"]], [["# a", "### b"], ["## c", "## d"]]),
        (
            [["# a", "```sh", "# code", "```", "## b"]],
            [["# a", "```sh", "# code", "```", "## b"]],
        ),
    ):
        chapters.with_one_title(texts)
        assert texts == expected


def test_the_text_of_a_cell_does_not_depend_on_the_parts_in_which_the_kernel_sends_it(
    monkeypatch,
):
    monkeypatch.syspath_prepend(ROOT / "tutorials" / "site" / "extensions")
    chapters = loaded(ROOT / "tutorials" / "site" / "extensions" / "chapters.py")

    def output(name, text):
        return {"output_type": "stream", "name": name, "text": text}

    shown = {"output_type": "display_data", "data": {}}
    parts = [
        output("stdout", "a"),
        output("stderr", "x"),
        output("stdout", "\nb"),
        shown,
        output("stdout", "\n"),
    ]
    assert chapters.joined(parts) == [
        output("stdout", "a\nb\n"),
        output("stderr", "x"),
        shown,
    ]


def test_a_link_to_the_playground_must_have_a_schedule(tmp_path):
    (tmp_path / "playground").mkdir()
    (tmp_path / "playground" / "index.html").write_text('<p id="said"></p>')
    fragment = packed(Draft.of(schedules.gpipe(2, 2)), "", None, 0)
    (tmp_path / "one.html").write_text(
        f'<a href="playground/index.html#{fragment}">a</a>'
    )
    assert links.problems(tmp_path) == []
    (tmp_path / "one.html").write_text(
        f'<a href="playground/index.html#{fragment[:-8]}">a</a>'
    )
    assert len(links.problems(tmp_path)) == 1


def test_a_link_that_leads_nowhere_is_found(tmp_path):
    (tmp_path / "one.html").write_text(
        '<h1 id="here"></h1> <a href="two.html#there">a</a> <img src="https://a.b/c">'
    )
    (tmp_path / "two.html").write_text(
        '<p id="there"></p> <a href="one.html#here">b</a> <a href="#there">c</a>'
    )
    assert links.problems(tmp_path) == []
    assert links.others(tmp_path) == ["https://a.b/c"]
    for old, new in (
        ("two.html#there", "two.html#gone"),
        ("two.html#there", "three.html"),
        ("two.html", "../two.html"),
    ):
        text = '<a href="two.html#there">a</a>'.replace(old, new)
        (tmp_path / "one.html").write_text(f'<h1 id="here"></h1>{text}')
        (problem,) = links.problems(tmp_path)
        assert "one.html: " in problem and new.split("#")[-1] in problem


@pytest.mark.parametrize("name", schedules.REGISTRY)
def test_a_schedule_has_a_page_with_its_picture_figures_and_player(site, name):
    page = (site / "schedules" / f"{name}.html").read_text()
    (row,) = [row for row in schedules.table(4, 8) if row["schedule"] == name]
    cells = re.findall(r"<td><p>(.*?)</p></td>", page)
    (at,) = [at for at in range(0, len(cells), 7) if cells[at : at + 2] == ["4", "8"]]
    assert float(cells[at + 2]) == pytest.approx(row["makespan"], rel=0.01)
    assert cells[at + 4] == f"{100 * row['bubble_fraction']:.3g} %"
    assert cells[at + 3] in ("\N{EN DASH}", cells[at + 2])
    assert page.count("<svg") >= 1 and f'src="../players/{name}.html"' in page
    assert (
        f'href="../api/minipipe.schedules/minipipe.schedules.{schedules.REGISTRY[name].__name__}.html'
        in page
    )
    try:
        drafts = [Draft.of(schedules.build(name, 4, 8))]
    except ScheduleError:  # it cannot be placed by hand
        drafts = []
    assert [
        unpacked(place)[0]
        for place in re.findall(r'href="../playground/index.html#(.*?)"', page)
    ] == drafts


def test_the_program_for_users_of_pytorch_runs():
    (program,) = re.findall(
        r"```python\n(.+?)```",
        (ROOT / "tutorials/site/coming-from-pytorch.md").read_text(),
        flags=re.DOTALL,
    )
    exec(compile(program, "coming-from-pytorch.md", "exec"), {})


def test_options_of_megatron_are_compared_by_name_and_default(tmp_path):
    """They are declared by calls and by dataclasses, with and without a name of their
    own.
    """
    page = (
        "| `--a-size` A | 1 | x |\n| `--b`, `--c` | None | x |\n| `--scale` | "
        "2\\*\\*32 | x |\n| `--on` | False | x |\n"
    )
    declared = {
        "core/model_parallel_config.py": (
            "class C:\n    a_size: int = 1\n    b_: int = field(metadata={'n': "
            "'--b'})\n"
        ),
        "core/transformer/transformer_config.py": "class D:\n    other: int = 5\n    def f(self, x: int = 2): pass\n",
        "training/arguments.py": "g.add_argument('--c', '-c', type=int)\ng.add_argument('--scale', "
        "default=2**32)\n"
        "g.add_argument('--on', action='store_true')\n",
    }
    for name, text in declared.items():
        path = tmp_path / "megatron" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    assert megatron.problems(page, tmp_path) == []
    wrong = page.replace("a-size", "b-size").replace("| None", "| 7")
    assert megatron.problems(wrong, tmp_path) == [
        "--b-size is no option of Megatron-LM",
        "--b is said to be 7 by default; there it is None",
        "--c is said to be 7 by default; there it is None",
    ]
    listed = megatron.listed(megatron.PAGE.read_text())
    assert len(listed) >= 20 and all(default for default in listed.values())


def test_pictures_of_measurements_have_the_numbers_of_the_tables_and_no_others():
    text = (ROOT / "tests" / "benchmarks" / "README.md").read_text()
    page = measurements.with_pictures(text)
    drawn = dict(zip(measurements.PICTURES, re.findall(r"<svg.*</svg>", page)))
    assert (
        len(drawn) == len(measurements.PICTURES)
        and re.sub(r"\n<div.*</div>\n", "", page) == text
    )
    shown = {
        title: re.findall(r'<text x="[\d.]+" y="[\d.]+">([^<]+)</text>', svg)
        for title, svg in drawn.items()
    }
    assert shown["Replicas"] == [
        "4 x 1",
        "2.4",
        "2.2",
        "2 x 2",
        "2.2",
        "2.5",
        "1 x 4",
        "2.4",
        "2.3",
    ]
    assert shown["Zero bubble"][:6] == ["gpipe", "1", "1", "1f1b", "0.99", "1"]
    assert shown["A step through ranks"][6:9] == [
        "d=32, batch 64 in 4, L=2, 4 ranks",
        "1.06",
        "5.7",
    ]
    assert [float(n) for n in shown["Steps that overlap"][16:20]] == [
        27.69,
        27,
        24.99,
        24.3,
    ]


@pytest.mark.parametrize(
    ("old", "new"),
    [("| zb-h1 | gpipe | P", "| zb-h1 | P"), ("## Zero bubble", "## Bubbles")],
)
def test_a_picture_whose_table_or_column_is_gone_is_missed(old, new):
    text = (ROOT / "tests" / "benchmarks" / "README.md").read_text()
    assert old in text
    with pytest.raises(ValueError, match="gpipe|no table under '## Zero bubble'"):
        measurements.with_pictures(text.replace(old, new))


def test_the_page_of_the_measurements_shows_a_picture_for_each(site):
    page = (site / "project" / "benchmarks.html").read_text()
    assert page.count('<svg class="bars"') == len(measurements.PICTURES)
    assert (
        'html[data-theme="dark"]' in page
        and "prefers-color-scheme" not in page.partition('class="bars"')[2]
    )

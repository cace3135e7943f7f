"""What pages say is true: the first page, the table of schedules, bases of classes,
colours of code.
"""

import contextlib
import io
import re
from html import unescape

import pytest

from minipipe import schedules, simulate
from minipipe.cli.output import help_text
from minipipe.schedules.registry import TRADES
from tests.launch import ROOT

INDEX = (ROOT / "tutorials" / "site" / "index.md").read_text()
CODE = re.compile(r'<div class="highlight-(\w+) .*?<pre>(.*?)</pre>', re.DOTALL)


def text_of(html):
    """Return the text of a piece of a page."""
    return unescape(re.sub(r"<.*?>", "", html))


# -- the first page --------------------------------------------------------------------


def test_the_first_page_has_the_install_command_of_the_readme(site):
    command = re.search(
        r"^```sh\n(.+?)\n```",
        (ROOT / "README.md").read_text(),
        re.DOTALL | re.MULTILINE,
    )[1]
    (shown,) = [
        text_of(code)
        for language, code in CODE.findall((site / "index.html").read_text())
        if language == "sh"
    ]
    assert shown.strip() == command and "pip install" in command


def test_the_first_page_leads_to_the_playground_first_and_then_to_the_lessons(site):
    page = (site / "index.html").read_text().partition("<article")[2]
    links = re.findall(r'href="([\w/-]+\.html)"', page)
    assert links[:4] == [
        "playground/index.html",
        "lessons/01_tape.html",
        "playground/index.html",
        "lessons/index.html",
    ]


def test_the_first_page_has_the_moving_picture_of_the_readme(site):
    """Inside the page, not as an image, so that it has the theme of the page."""
    drawing = (ROOT / "tutorials" / "site" / "zero-bubble.svg").read_text()
    page = (site / "index.html").read_text()
    assert page.count(re.search(r'<svg[^>]* id="minipipe-\w+"', drawing)[0]) == 1


def test_the_program_of_the_first_page_prints_what_it_says():
    (program,) = re.findall(r"```python\n(.+?)```", INDEX, flags=re.DOTALL)
    (output,) = re.findall(r"```text\n(.+?)```", INDEX, flags=re.DOTALL)
    printed = io.StringIO()
    with contextlib.redirect_stdout(printed):
        exec(compile(program, "index.md", "exec"), {})
    one, two = (eval(text) for text in (printed.getvalue(), output))
    # other kernels have other last bits
    assert len(set(one)) == 1 and one == pytest.approx(two, rel=1e-3)


@pytest.mark.parametrize("ranks", [1, 2, 5])
def test_the_loss_of_that_program_is_the_same_on_other_ranks_and_with_other_schedules(
    ranks,
):
    (program,) = re.findall(r"```python\n(.+?)```", INDEX, flags=re.DOTALL)
    names = ["zb-h1", "gpipe", "1f1b"]
    # all with one copy of each stage, except for slices of sequences and without an
    # update per step
    if ranks == 2:
        others = (
            "seq1f1b",
            "pipedream",
            "vertical-sync",
            "2bw",
            "paci",
            "forward-only",
        )
        names = [
            name
            for name, what in TRADES.items()
            if "2x weights" not in what and name not in others
        ]
    losses = set()
    for name in names:
        changed = program.replace("num_ranks=3", f"num_ranks={ranks}").replace(
            '"zb-h1"', repr(name)
        )
        printed = io.StringIO()
        with contextlib.redirect_stdout(printed):
            exec(compile(changed, "index.md", "exec"), {})
        losses |= set(eval(printed.getvalue()))
    assert "On 1 to 5 ranks" in INDEX and len(losses) == 1


def test_the_figures_below_the_picture_are_those_of_the_schedules():
    caption = " ".join(INDEX.split())
    one, two = (
        simulate(build(4, 8)) for build in (schedules.one_f_one_b, schedules.zb_h1)
    )
    assert f"takes {two.makespan:g} time units instead of {one.makespan:g}" in caption
    assert max(one.peak_activations) == max(two.peak_activations)


# -- schedules -------------------------------------------------------------------------


def test_the_table_of_schedules_has_the_rows_of_the_command_line_each_with_its_page(
    site,
):
    page = (site / "schedules" / "index.html").read_text()
    table = page.partition("<tbody>")[2].partition("</tbody>")[0]
    rows = [
        re.findall(r"<td>(.*?)</td>", row, re.DOTALL)
        for row in re.findall(r"<tr.*?</tr>", table, re.DOTALL)
    ]
    assert [text_of(row[0]).strip() for row in rows] == list(schedules.REGISTRY)
    for row, expected in zip(rows, schedules.table(4, 8), strict=True):
        assert f'href="{expected["schedule"]}.html"' in row[0]
        cells = [text_of(cell).strip() for cell in row]
        assert (
            cells[2] == f"{expected['makespan']:.3g}"
            and cells[5] == f"{expected['peak']:.3g}"
        )
        assert cells[6] == expected["trades"]


def test_the_page_of_the_schedules_explains_the_terms_that_the_command_explains(site):
    page = (site / "schedules" / "index.html").read_text()
    notes = page.partition("In the last column:")[2].partition("</ul>")[0]
    terms = [
        line.split("  ")[0]
        for line in help_text("table_of_schedules").strip().splitlines()
        if not line.startswith(" ")
    ]
    assert (
        re.findall(r"<li><p><em>(.*?)</em>:? ", notes)
        == terms[terms.index("peak") + 1 :]
    )


@pytest.mark.parametrize(
    "page",
    [
        "schedules/zb-h1",
        "schedules/1f1b",
        "api/minipipe.schedules/minipipe.schedules.zb_v",
    ],
)
def test_a_schedule_as_text_has_no_colours_of_python(site, page):
    blocks = [
        (language, code)
        for language, code in CODE.findall((site / f"{page}.html").read_text())
    ]
    drawn = [
        (language, code)
        for language, code in blocks
        if re.match(r"\s*rank 0:", text_of(code))
    ]
    assert drawn or "api" in page
    assert [
        (language, code)
        for language, code in drawn
        if language != "text" or "<span class=" in code
    ] == []


# -- reference -------------------------------------------------------------------------


def test_no_page_names_an_inner_class_as_a_base(site):
    shown = {}
    for path in sorted((site / "api").rglob("*.html")):
        for line in re.findall(r"<p>Bases: (.*?)</p>", path.read_text(), re.DOTALL):
            for name in re.findall(r"[\w.]+", text_of(line)):
                shown.setdefault(name.rpartition(".")[2], path.stem)
    assert {"Module", "MinipipeError"} <= set(shown)
    assert [
        name
        for name in shown
        if name.startswith("_") or name in ("object", "Familiar", "FamiliarPipeline")
    ] == []


def test_inherited_members_of_inner_classes_are_shown(site):
    page = (site / "api" / "minipipe" / "minipipe.Schedule.html").read_text()
    assert (
        'id="minipipe.Schedule.num_ranks"' in page
        and 'id="minipipe.Schedule.to_csv"' in page
    )

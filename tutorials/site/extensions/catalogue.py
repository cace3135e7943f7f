"""A page for each named schedule: idea, picture, figures, player and papers, all from the package.

The idea and the papers are the builder's docstring; verifier, simulator, closed forms and renderer do the rest.
"""

from pathlib import Path
from typing import Any

from chapters import write
from numpydoc.docscrape import FunctionDoc
from reference import heading
from sphinx.application import Sphinx

from minipipe import Costs, Timeline, render, schedules, simulate, verify
from minipipe.errors import ScheduleError
from minipipe.render.editor.draft import Draft
from minipipe.render.editor.sharing import packed
from minipipe.render.svg.tradeoff import draw_tradeoff
from minipipe.schedules import theory
from minipipe.schedules.simulation.comparison import tradeoff
from tests.schedules.published import PUBLISHED

SIZES = [(2, 4), (4, 8), (4, 32), (8, 32)]  # ranks and microbatches of the tables
DRAWN = (4, 8)  # and of the picture and the player
PICTURE = '.. raw:: html\n\n   <div class="output text_html picture" tabindex="0">{}</div>\n\n'


def drawn(name: str) -> Timeline:
    """Return the step that is drawn, of a schedule that is proved legal; a rank's work is that of every schedule."""
    schedule = schedules.build(name, *DRAWN)
    verify(schedule)
    return simulate(schedule, Costs().cut(schedule.num_stages // schedule.num_ranks))


def formula(name: str, ranks: int, microbatches: int) -> float | None:
    """Return the makespan by the closed form, where there is one for these sizes."""
    try:
        return theory.makespan(name, ranks, microbatches)
    except ScheduleError:
        return None


def shown(value: float | None, factor: float = 1) -> str:
    """Return a number for a table; a dash where there is none."""
    return "\N{EN DASH}" if value is None else f"{factor * value:.3g}"


def table(head: list[str], rows: list[list[str]]) -> str:
    """Return a table in reStructuredText."""
    lines = [f"   * - {row[0]}\n" + "".join(f"     - {cell}\n" for cell in row[1:]) for row in [head, *rows]]
    return ".. list-table::\n   :header-rows: 1\n\n" + "".join(lines) + "\n"


def figures(name: str, rows: dict[tuple[int, int], dict[str, Any]]) -> str:
    """Return the table of a schedule's figures over some sizes."""
    lines = []
    for (ranks, microbatches), row in rows.items():
        if row["error"] is None:
            lines.append(
                [
                    *(str(ranks), str(microbatches), shown(row["makespan"]), shown(formula(name, ranks, microbatches))),
                    *(shown(row["bubble_fraction"], 100), shown(row["gap"], 100), shown(row["peak"])),
                ]
            )
    return table(["ranks", "microbatches", "time", "by formula", "bubble, %", "gap, %", "peak"], lines)


def to_playground(name: str) -> str:
    """Return a link to the playground that opens a schedule there; nothing for one that cannot be placed by hand."""
    try:
        draft = Draft.of(schedules.build(name, *DRAWN))
    except ScheduleError:
        return ""
    work = len(draft.rows) / len(draft.placement)  # of a stage, as in the picture
    costs = ",".join(f"{kind}={work:g}" for kind in "FIW")
    return f', or <a href="../playground/index.html#{packed(draft, costs, None, 0)}">change it in the playground</a>'


def page_of(name: str, rows: dict[tuple[int, int], dict[str, Any]], link: str) -> str:
    """Return the page of a schedule, with a link behind that to its player."""
    builder = schedules.REGISTRY[name]
    doc = FunctionDoc(builder)
    path = f"minipipe.schedules.{builder.__name__}"
    ranks, microbatches = DRAWN
    references = "\n".join(doc["References"])
    notes = "\n".join(doc["Notes"])
    first, *others = doc["Summary"]
    idea = first.removeprefix("Return ")
    reproduced = sorted({figures.paper for figures in PUBLISHED if name in figures.names})
    parts = [
        heading(name),
        ".. currentmodule:: minipipe.schedules\n\n",
        f"*{schedules.TRADES[name]}.* Built by :func:`{path}`, and in a shell by ``minipipe show {name}``.\n\n",
        "\n".join([idea[0].upper() + idea[1:], *others, "", *doc["Extended Summary"]]) + "\n\n",
        f"{notes}\n\n" if notes else "",
        "Picture\n-------\n\n",
        f"{ranks} ranks, {microbatches} microbatches; F, I and W of a rank take a unit each.\n\n",
        PICTURE.format(render.draw_svg(drawn(name)).replace("\n", "\n   ")),
        "Player\n------\n\n.. raw:: html\n\n",
        f'   <iframe class="player" src="../players/{name}.html" title="A player of {name}" loading="lazy"></iframe>\n',
        f'   <p><a href="../players/{name}.html">The player on a page of its own</a>{link}</p>\n\n',
        "Figures\n-------\n\n",
        "Time is that of a step, and peak the most microbatches that a rank holds, each for all its layers. The gap ",
        "says how far time is, at most, above the best for the same stages and memory.\n\n",
        figures(name, rows),
        f"Paper\n-----\n\n{references}\n\n" if references else "",
        "".join(f"Its figures beside ours: :doc:`/papers/{paper}`.\n" for paper in reproduced),
    ]
    return "".join(parts)


def index(rows: list[dict[str, Any]]) -> str:
    """Return the page with the table of all schedules, and their trade-off as a picture."""
    ranks, microbatches = DRAWN
    lines = [
        [
            *(f":doc:`{row['schedule']}`", str(row["chunks_per_rank"]), shown(row["makespan"])),
            *(shown(row["bubble_fraction"], 100), shown(row["gap"], 100), shown(row["peak"]), row["trades"]),
        ]
        for row in rows
    ]
    picture = draw_tradeoff(tradeoff(ranks, microbatches), tradeoff(ranks, 4 * microbatches)).replace("\n", "\n   ")
    return "".join(
        [
            heading("Schedules"),
            f"{ranks} ranks, {microbatches} microbatches, F, I and W one unit each, as in ``minipipe schedules``.\n\n",
            table(["schedule", "v", "time", "bubble, %", "gap, %", "peak", "what it trades"], lines),
            "Bubble over peak memory, with the bounds that no schedule can beat:\n\n",
            PICTURE.format(picture),
            ".. toctree::\n   :hidden:\n\n" + "".join(f"   {row['schedule']}\n" for row in rows),
        ]
    )


def write_catalogue(app: Sphinx) -> None:
    """Write the pages of all schedules."""
    by_size = {size: {row["schedule"]: row for row in schedules.table(*size)} for size in SIZES}
    write(app, "schedules/index.rst", index(list(by_size[DRAWN].values())))
    for name in schedules.REGISTRY:
        link = to_playground(name) if app.config.playground else ""
        write(app, f"schedules/{name}.rst", page_of(name, {size: rows[name] for size, rows in by_size.items()}, link))


def write_players(app: Sphinx, error: Exception | None) -> None:
    """Write the players beside the pages that embed them."""
    if error is None and app.builder.format == "html":
        folder = Path(app.outdir) / "players"
        folder.mkdir(exist_ok=True)
        for name in schedules.REGISTRY:
            (folder / f"{name}.html").write_text(render.draw_html(drawn(name)), encoding="utf-8")


def setup(app: Sphinx) -> dict[str, bool]:
    """Write the pages with the others, and the players at the end."""
    app.connect("builder-inited", write_catalogue, priority=300)
    app.connect("build-finished", write_players)
    return {"parallel_read_safe": True, "parallel_write_safe": True}

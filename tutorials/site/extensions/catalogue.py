"""The table of all schedules, and a page for each: description, player, figures and
paper.

The description and the paper come from the docstring of the builder, everything else
from the verifier, the simulator, the closed forms and the renderer.
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
DRAWN = (4, 8)  # ranks and microbatches of the player
PICTURE = (
    '.. raw:: html\n\n   <div class="output text_html picture" '
    'tabindex="0">{}</div>\n\n'
)
COLUMNS = """\
stages
    Pipeline stages on each rank. The work of a rank is divided evenly among them.

time
    The makespan: time units from the first action of a step to the last.

bubble
    The part of the time in which ranks are idle, averaged over all ranks.

gap
    How far the time is above a proven lower bound for the same stages and memory. A schedule with gap 0 is optimal. A
    dash means that no bound is known.

peak
    The largest number of microbatches whose activations a rank holds at once, each counted for all layers of the rank.

"""
NOTES = """\
In the last column:

- *chunk*: one of several stages of a rank.
- *no pauses*: a rank is idle only before its first action and after its last, if there are at least 2p - 1
  microbatches for p ranks.
- *splits B*: the backward B runs in two halves, I (gradients of the inputs) and W (gradients of the weights).
- *plus 1*: plus one microbatch. v-half and v-min need less memory than 1F1B from 3 ranks on.
- *V*: the stages go down the ranks and back up, so that rank 0 has the first stage and the last.
- *2x weights*: each stage is on two ranks.
- *no flush*: the weights are updated without draining the pipeline, so that a long run has no bubble.
- *stale*: gradients belong to weights that were updated meanwhile.
- *version*: a copy of the weights. If it *drifts*, the backward uses newer weights than the forward.

"""


def drawn(name: str) -> Timeline:
    """Return a verified and simulated schedule. The total work of a rank is the same
    for all schedules.
    """
    schedule = schedules.build(name, *DRAWN)
    verify(schedule)
    return simulate(schedule, Costs().cut(schedule.num_stages // schedule.num_ranks))


def formula(name: str, ranks: int, microbatches: int) -> float | None:
    """Return the makespan by the closed form, or None if none holds for these sizes."""
    try:
        return theory.makespan(name, ranks, microbatches)
    except ScheduleError:
        return None


def shown(value: float | None) -> str:
    """Return a number for a table, or a dash if it is missing."""
    return "\N{EN DASH}" if value is None else f"{value:.3g}"


def percent(value: float | None) -> str:
    """Return a fraction for a table, in percent."""
    return "\N{EN DASH}" if value is None else f"{100 * value:.3g} %"


def table(head: list[str], rows: list[list[str]], style: str = "") -> str:
    """Return a table in reStructuredText, with a class of the style sheet."""
    lines = [
        f"   * - {row[0]}\n" + "".join(f"     - {cell}\n" for cell in row[1:])
        for row in [head, *rows]
    ]
    style = f"   :class: {style}\n" if style else ""
    return f".. list-table::\n   :header-rows: 1\n{style}\n" + "".join(lines) + "\n"


def figures(name: str, rows: dict[tuple[int, int], dict[str, Any]]) -> str:
    """Return the table of a schedule's figures for several sizes."""
    lines = []
    for (ranks, microbatches), row in rows.items():
        if row["error"] is None:
            lines.append(
                [
                    *(
                        str(ranks),
                        str(microbatches),
                        shown(row["makespan"]),
                        shown(formula(name, ranks, microbatches)),
                    ),
                    *(
                        percent(row["bubble_fraction"]),
                        percent(row["gap"]),
                        shown(row["peak"]),
                    ),
                ]
            )
    return table(
        ["ranks", "microbatches", "time", "by formula", "bubble", "gap", "peak"], lines
    )


def to_playground(name: str) -> str:
    """Return a link that opens a schedule in the playground, or nothing if it cannot be
    edited by hand.
    """
    try:
        draft = Draft.of(schedules.build(name, *DRAWN))
    except ScheduleError:
        return ""
    work = len(draft.rows) / len(draft.placement)  # of a stage, as in the picture
    costs = ",".join(f"{kind}={work:g}" for kind in "FIW")
    return (
        f' · <a href="../playground/index.html#{packed(draft, costs, None, 0)}">Edit '
        "it in the playground</a>"
    )


def page_of(name: str, rows: dict[tuple[int, int], dict[str, Any]], link: str) -> str:
    """Return the page of a schedule; ``link`` follows the link to its player."""
    builder = schedules.REGISTRY[name]
    doc = FunctionDoc(builder)
    references = "\n".join(doc["References"])
    notes = "\n".join(doc["Notes"])
    first, *others = doc["Summary"]
    idea = first.removeprefix("Return ")
    reproduced = sorted(
        {figures.paper for figures in PUBLISHED if name in figures.names}
    )
    parts = [
        heading(name),
        ".. currentmodule:: minipipe.schedules\n\n",
        (
            f"*{schedules.TRADES[name]}.* In Python, "
            f":func:`minipipe.schedules.{builder.__name__}` builds it. In a shell, "
        ),
        f"``minipipe show {name}`` draws it.\n\n",
        "\n".join([idea[0].upper() + idea[1:], *others, "", *doc["Extended Summary"]])
        + "\n\n",
        f"{notes}\n\n" if notes else "",
        player(name, link),
        "Figures\n-------\n\n",
        (
            "The :doc:`table of all schedules <index>` explains time, bubble, gap "
            "and peak. *By formula* is the time by "
        ),
        "the closed form of :mod:`minipipe.schedules.theory`.\n\n",
        figures(name, rows),
        f"Paper\n-----\n\n{references}\n\n" if references else "",
        "".join(
            f"Published figures compared with ours: :doc:`/papers/{paper}`.\n"
            for paper in reproduced
        ),
    ]
    return "".join(parts)


def player(name: str, link: str) -> str:
    """Return the section with the player, or with the picture if a browser has no
    JavaScript.
    """
    ranks, microbatches = DRAWN
    html = [
        (
            f'<iframe class="player" name="embedded" src="../players/{name}.html" '
            f'title="A player of {name}"'
        ),
        f' loading="lazy"></iframe>\n<noscript>{render.draw_svg(drawn(name))}</noscript>\n',
        (
            f'<p><a href="../players/{name}.html">Open the player on its own '
            f"page</a>{link}</p>"
        ),
    ]
    parts = [
        "Player\n------\n\n",
        (
            f"{ranks} ranks, {microbatches} microbatches. Each of F, I and W takes "
            "one time unit on a rank, and B is I "
        ),
        (
            "then W. Each row is a rank, each box an action on one microbatch, and a "
            "hatched area is idle time.\n\n"
        ),
        ".. raw:: html\n\n   " + "".join(html).replace("\n", "\n   ") + "\n\n",
    ]
    return "".join(parts)


def index(rows: list[dict[str, Any]]) -> str:
    """Return the page with the table of all schedules and the picture of their
    trade-off.
    """
    ranks, microbatches = DRAWN
    lines = [
        [
            *(
                f":doc:`{row['schedule']}`",
                str(row["chunks_per_rank"]),
                shown(row["makespan"]),
            ),
            *(
                percent(row["bubble_fraction"]),
                percent(row["gap"]),
                shown(row["peak"]),
                row["trades"],
            ),
        ]
        for row in rows
    ]
    picture = draw_tradeoff(
        tradeoff(ranks, microbatches), tradeoff(ranks, 4 * microbatches)
    ).replace("\n", "\n   ")
    return "".join(
        [
            heading("Schedules"),
            "A schedule decides which rank runs which action of which "
            f"microbatch, and when. The {len(rows)} schedules "
            f"below are compared for {ranks} ranks and {microbatches} "
            "microbatches, with one time unit for each of F, "
            "I and W. ``minipipe schedules`` prints the same table, also for "
            "other sizes. Each name leads to a page "
            "with a player and the paper.\n\n",
            table(
                [
                    "schedule",
                    "stages",
                    "time",
                    "bubble",
                    "gap",
                    "peak",
                    "what it trades",
                ],
                lines,
                "list-on-phone one-line",
            ),
            "Columns\n-------\n\n" + COLUMNS + NOTES,
            "Bubble and memory\n-----------------\n\n",
            "Each mark is a schedule. Lower is less idle time, and further left "
            "is less memory. No schedule can be "
            "below the dashed and dotted bounds.\n\n",
            PICTURE.format(picture),
            ".. toctree::\n   :hidden:\n\n"
            + "".join(f"   {row['schedule']}\n" for row in rows),
        ]
    )


def write_catalogue(app: Sphinx) -> None:
    """Write the pages of all schedules."""
    by_size = {
        size: {row["schedule"]: row for row in schedules.table(*size)} for size in SIZES
    }
    write(app, "schedules/index.rst", index(list(by_size[DRAWN].values())))
    for name in schedules.REGISTRY:
        link = to_playground(name) if app.config.playground else ""
        write(
            app,
            f"schedules/{name}.rst",
            page_of(name, {size: rows[name] for size, rows in by_size.items()}, link),
        )


def write_players(app: Sphinx, error: Exception | None) -> None:
    """Write the players that the pages of the schedules embed."""
    if error is None and app.builder.format == "html":
        folder = Path(app.outdir) / "players"
        folder.mkdir(exist_ok=True)
        for name in schedules.REGISTRY:
            (folder / f"{name}.html").write_text(
                render.draw_html(drawn(name)), encoding="utf-8"
            )


def setup(app: Sphinx) -> dict[str, bool]:
    """Write the pages before Sphinx reads the sources, and the players after the
    build.
    """
    app.connect("builder-inited", write_catalogue, priority=300)
    app.connect("build-finished", write_players)
    return {"parallel_read_safe": True, "parallel_write_safe": True}

"""Timelines as a player: a page of HTML that steps through them.

The script of the player computes no schedule and composes no sentence; it looks both up
in the data of the page. Times are relative to the start of their timeline.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from itertools import product, starmap
from operator import attrgetter
from string import Template
from typing import Any, NamedTuple, cast

from minipipe.core.flow import Flow
from minipipe.core.memory import pairs_of
from minipipe.core.schedules.action import Action, ActionKind
from minipipe.core.schedules.action_table import ActionTable
from minipipe.io import escaped, note_lines, package_text
from minipipe.passes.kinds import KINDS
from minipipe.render.descriptions import (
    OVERLAPPED,
    box_entries,
    describe_action,
    describe_message,
    describe_wait,
    format_memory,
    held_label,
    message_entries,
    origin,
)
from minipipe.render.descriptions import title as title_of
from minipipe.render.palette import DARK, HATCH, LIGHT, Fill, Theme, fill_of, shade
from minipipe.render.panel import NARROW, TOGETHER, Panel, copies_of, panels_of
from minipipe.render.units import scale_of
from minipipe.schedules.analysis.held import lifetimes
from minipipe.schedules.simulation.ran import Ran
from minipipe.schedules.simulation.span import Idle, IdleCause, Message, with_copies
from minipipe.schedules.simulation.timeline import Timeline, by_rank

__all__ = ["draw_html"]

_GAPS = ("{stage}", "{microbatch}", "{source}", "{value}", "{usedBy}", "{destination}")


class Hold(NamedTuple):
    """The interval in which a rank holds the activations of one microbatch on one
    stage.

    It begins with the start of F. It ends with the end of B, or of W if the backward is
    split; in a forward-only schedule with the end of F. An O ends it, and an L begins
    another one. ``end`` is None for activations that are never released.
    """

    stage: int
    microbatch: int
    start: float
    end: float | None


def holds_of(timeline: Timeline, rank: int) -> tuple[Hold, ...]:
    """Return the holds of a rank, ordered by their start.

    Examples
    --------
    >>> from minipipe import schedules, simulate
    >>> holds_of(simulate(schedules.gpipe(1, 2)), rank=0)
    (Hold(stage=0, microbatch=0, start=0.0, end=4.0), Hold(stage=0, microbatch=1, start=1.0, end=6.0))
    """
    copies = copies_of(timeline, rank)
    row = with_copies(timeline.spans[rank], copies)
    at = {span.action: span for span in (*timeline.spans[rank], *copies)}
    changes = pairs_of(Flow(Ran([row], timeline.num_slices)))
    holds = []
    for stage, k, first, last in lifetimes(changes, 0):
        end: float | None = None
        if last is not None:
            end = at[row[last]].end
        holds.append(Hold(stage, k, at[row[first]].start, end))
    return tuple(holds)


def player_data(panels: Sequence[Panel]) -> dict[str, Any]:
    """Return the data of the player as lists, numbers and texts for JSON.

    Parameters
    ----------
    panels : sequence of Panel
        At least one; their timelines share a unit.
    """
    timelines = [panel.timeline for panel in panels]
    return {
        "unit": timelines[0].unit,
        "duration": max(timeline.makespan for timeline in timelines),
        "themes": {"light": LIGHT._asdict(), "dark": DARK._asdict()},
        "colours": _colours(panels),
        "hatches": {cause: list(hatch) for cause, hatch in HATCH.items()},
        "sentences": _sentences(),
        "panels": list(map(_panel, panels)),
    }


def _panel(panel: Panel) -> dict[str, Any]:
    timeline = panel.timeline
    places = [{span: index for index, span in enumerate(row)} for row in timeline.spans]
    messages = sorted(timeline.messages, key=attrgetter("sent"))
    return {
        "name": timeline.name,
        "memoryUnit": timeline.memory_unit,
        "pairs": panel.pairs or 1,
        "lanes": panel.kinds_beside(),
        "ranks": [_rank(panel, rank) for rank in range(timeline.num_ranks)],
        "messages": [_message(timeline, message) for message in messages],
        "criticalPath": [
            [rank, places[rank][span]] for rank, span in timeline.critical_path
        ],
    }


def _rank(panel: Panel, rank: int) -> dict[str, Any]:
    timeline = panel.timeline
    begin = panel.timeline.start
    return {
        "stages": list(panel.stages[rank]),
        "namesStage": panel.names_stage(rank),
        "actions": [
            [*_parts(timeline, action), start - begin, end - begin]
            for action, start, end in timeline.spans[rank]
        ],
        "idle": [_idle(timeline, idle) for idle in timeline.idle[rank]],
        "beside": [
            [action.kind, action.stage, start - begin, end - begin]
            for action, start, end, _ in panel.beside(rank)
        ],
        "holds": [_hold(timeline, hold) for hold in holds_of(timeline, rank)],
        "memory": _memory_steps(timeline, rank),
    }


def _hold(timeline: Timeline, hold: Hold) -> list:
    end = hold.end
    if end is not None:
        end -= timeline.start
    microbatch = _written(timeline, hold.microbatch)
    return [hold.stage, microbatch, hold.start - timeline.start, end]


def _parts(timeline: Timeline, action: Action) -> tuple[int | str, str, int | str]:
    if action.kind.is_of_rank:
        return "", action.kind, ""
    return action.stage, action.kind, _written(timeline, action.microbatch)


def _written(timeline: Timeline, microbatch: Any) -> int | str:
    """Return a microbatch as a number for JSON, or a slice as text."""
    if timeline.num_slices == 1:
        return microbatch
    return str(microbatch)


def _idle(timeline: Timeline, idle: Idle) -> list:
    """Return start, end and cause; if the awaited action is known, also its stage,
    kind, microbatch and rank.
    """
    times = (idle.start - timeline.start, idle.end - timeline.start)
    if idle.awaited is None:
        return [*times, idle.cause]
    return [*times, idle.cause, *_parts(timeline, idle.awaited), idle.source]


def _message(timeline: Timeline, message: Message) -> list:
    times = message.sent - timeline.start, message.arrived - timeline.start
    actions = str(message.value), str(message.used_by)
    return [*actions, message.source, message.destination, *times]


def _memory_steps(timeline: Timeline, rank: int) -> list[list[Any]] | None:
    """Return [time, memory, memory as text] at the start and at each change, if it is
    known.
    """
    if timeline.memory is None:
        return None
    unit = timeline.memory_unit
    held = 0.0
    steps: list[list[Any]] = [[0.0, held, format_memory(held, unit)]]
    for time, level in timeline.memory_over_time(rank):
        if level != held:
            steps.append([time - timeline.start, level, format_memory(level, unit)])
            held = level
    return steps


def _colours(panels: Sequence[Panel]) -> dict[str, list[Fill]]:
    """Return the fills of each kind of action, by chunk."""
    counts = (len(stages) for panel in panels for stages in panel.stages)
    chunks = range(max(counts, default=1))
    colours: dict[str, list[Fill]] = {}
    for kind in map(ActionKind, KINDS):
        colours[kind] = [shade(fill_of(kind), chunk) for chunk in chunks]
    return colours


def _sentences() -> dict[str, Any]:
    """Return the sentences of :mod:`minipipe.render.descriptions` with names in braces
    instead of numbers.
    """
    stage, microbatch, source, value, used_by, destination = cast(Any, _GAPS)
    actions = {kind: Action(stage, kind, microbatch) for kind in map(ActionKind, KINDS)}
    waits = {
        f"{cause} {kind}": describe_wait(Idle(0, 0, cause, source, action))
        for cause, (kind, action) in product(IdleCause, actions.items())
    }
    waits |= {cause: describe_wait(Idle(0, 0, cause)) for cause in IdleCause}
    message = Message(value, used_by, source, destination, 0.0, 0.0)
    return {
        "actions": {kind: describe_action(action) for kind, action in actions.items()},
        "waits": waits,
        "message": describe_message(message),
    }


# The arrows of the legend, by way.
_ARROWS = {
    "forward": '<i class="line message"></i>',
    "backward": '<i class="line gradient"></i>',
    "": "",
}
_CONSTANTS = f"const NARROW = {NARROW}, TOGETHER = {TOGETHER};"
# The files of the script, in the order of their dependencies.
_SCRIPTS = (
    *("search", "timeline", "sentences", "view", "look", "labels", "chart"),
    *("arrows", "page", "details", "player", "controls", "main"),
)


def draw_html(
    *drawn: ActionTable | Timeline, title: str | None = None, notes: Sequence[str] = ()
) -> str:
    """Draw schedules (F, I and W one unit each) or timelines as a page that plays them,
    above each other.

    Parameters
    ----------
    *drawn : Schedule or Timeline
        One, or several in one unit of time; they share the axis and the moment.
    title : str, optional
        The heading of the page; by default the names of the timelines.
    notes : sequence of str
        Lines under the heading, such as the machine and the date of a measurement.

    Returns
    -------
    str
        A self-contained page of HTML that fetches nothing. It plays, steps and zooms;
        at each moment it tells the action or the wait of each rank, the activations
        that it holds, and the messages under way.

    Raises
    ------
    ArgumentError
        Code ``type``: for anything else, and for ``notes`` that are one string.
        Code ``value``: when there is nothing to draw, or units differ.

    Examples
    --------
    >>> from minipipe import schedules
    >>> page = draw_html(schedules.one_f_one_b(4, 8))
    >>> page.splitlines()[0], "27.3 %" in page
    ('<!doctype html>', True)
    """
    panels = _shown(panels_of(drawn))
    tables = "".join(table for panel in panels for table in _tables(panel))
    summary = "<summary>All actions as tables</summary>"
    below = f'<details class="all">{summary}{tables}</details>'
    title = title or _title(panels)
    return page_of(panels, player_data(panels), title, notes, More(below=below))


class More(NamedTuple):
    """The parts of a page beside the player.

    Attributes
    ----------
    above, beside, below : str
        HTML above the player, behind its chart, and below it.
    style : str
    scripts : tuple of str
        They run after those of the player, and see what these declare.
    policy : str
        More permissions of the page.
    """

    above: str = ""
    beside: str = ""
    below: str = ""
    style: str = ""
    scripts: tuple[str, ...] = ()
    policy: str = ""


def page_of(
    panels: Sequence[Panel],
    data: dict[str, Any],
    title: str,
    notes: Sequence[str],
    more: More,
) -> str:
    """Return the page of the player for some panels with their data, and with more
    around it.
    """
    player = [file_text(f"html/{name}.js") for name in _SCRIPTS]
    scripts = [_CONSTANTS, *player, *more.scripts]
    headings = [""] * len(panels)
    if len(panels) > 1:
        headings = list(map(_heading, panels))
    return Template(file_text("html/player.html")).substitute(
        title=escaped(title),
        notes="".join(f"<li>{escaped(note)}</li>" for note in note_lines(notes)),
        style="\n".join((_themes(), file_text("html/player.css"), more.style)),
        legend=legend(panels),
        charts="".join(map(_chart, panels, headings)),
        moments="".join(map(_moment, panels, headings)),
        data=as_json(data),
        script="\n".join(["(() => {", '"use strict";', *scripts, "})();"]),
        above=more.above,
        beside=more.beside,
        below=more.below,
        policy=more.policy,
    )


def _shown(panels: tuple[Panel, ...]) -> tuple[Panel, ...]:
    """Leave memory out if it only repeats the number of activations."""
    if any(panel.tells_memory for panel in panels):
        return panels
    return tuple(
        Panel(replace(panel.timeline, memory=None, peak_memory=None), panel.pairs)
        for panel in panels
    )


def file_text(name: str) -> str:
    """Return the text of a file in the folder of drawings."""
    return package_text(f"render/{name}").strip()


def as_json(data: object) -> str:
    """Return data as JSON that cannot end its ``<script>`` element."""
    text = json.dumps(data, separators=(",", ":"), allow_nan=False)
    return text.replace("<", "\\u003c")


def _title(panels: Sequence[Panel]) -> str:
    if len(panels) < 3:
        return " above ".join(title_of(panel.timeline) for panel in panels)
    return f"{len(panels)} timelines above each other"


# -- colours ---------------------------------------------------------------------------


def _themes() -> str:
    """Return the colours as CSS: light, or dark on screens with that preference. A
    theme of the page comes before the preference.
    """
    hatches = "\n".join(_hatch(cause, *hatch) for cause, hatch in HATCH.items())
    light, dark = map(_variables, (LIGHT, DARK))
    by_page = f':root[data-theme="dark"] {{ {dark} }}'
    by_system = f':root:not([data-theme="light"]) {{ {dark} }}'
    by_system = f"@media (prefers-color-scheme: dark) {{ {by_system} }}"
    return f":root {{ {light} }}\n@media screen {{ {by_page} {by_system} }}\n{hatches}"


def _variables(theme: Theme) -> str:
    colours = theme._asdict().items()
    return " ".join(f"--{name.replace('_', '-')}: {it};" for name, it in colours)


def _hatch(cause: IdleCause, angle: int, gap: int) -> str:
    lines = f"var(--hatch) 0 1px, var(--slot) 1px {gap}px"
    image = f"repeating-linear-gradient({angle}deg, {lines})"
    return f'.swatch[data-idle="{cause}"] {{ background: {image}; }}'


def legend(panels: Sequence[Panel]) -> str:
    """Return the entries of the legend."""
    return "".join(_legend(panels))


def _legend(panels: Sequence[Panel]) -> Iterator[str]:
    """Yield an entry for each kind of action, cause of idle time and kind of line that
    occurs.
    """
    boxes = set()
    causes = set()
    for panel in panels:
        for rank, row in enumerate(panel.timeline.spans):
            drawn = [span.action for span in row if span.end > span.start]
            drawn += [each.action for each in panel.beside(rank)]
            boxes |= {(it.kind, panel.chunk_of(rank, it)) for it in drawn}
            causes |= {idle.cause for idle in panel.timeline.idle[rank]}
    for shades, text in box_entries(boxes, panels):
        yield _entry("".join(starmap(_swatch, shades)), text)
    if any(panel.overlapped for panel in panels):
        yield _entry('<i class="swatch joined"></i>', OVERLAPPED)
    for cause in (cause for cause in HATCH if cause in causes):
        yield _entry(f'<i class="swatch" data-idle="{cause}"></i>', f"idle, {cause}")
    yield _entry('<i class="swatch level"></i>', held_label(_is_memory(panels), panels))
    for way, text in message_entries(panels):
        yield _entry(_ARROWS[way], text)
    if any(panel.timeline.messages for panel in panels):
        yield _entry('<i class="line wait"></i>', "dependency of a waiting rank")


def _is_memory(panels: Sequence[Panel]) -> bool:
    """Return whether strips show memory: all timelines know it, in one unit."""
    has_one_unit = len({panel.timeline.memory_unit for panel in panels}) == 1
    return has_one_unit and all(panel.timeline.memory is not None for panel in panels)


def _swatch(kind: ActionKind, chunk: int) -> str:
    colour = shade(fill_of(kind), chunk).box
    return f'<i class="swatch" style="--fill: {colour}"></i>'


def _entry(picture: str, text: str) -> str:
    if picture:
        picture = f"<span>{picture}</span>"
    return f"<li>{picture}{text}</li>"


# -- parts of the page -----------------------------------------------------------------


def _chart(panel: Panel, heading: str) -> str:
    facts = ""
    for name, value in _facts(panel):
        facts += f"<div><dt>{name}</dt><dd>{escaped(value)}</dd></div>"
    note = ""
    if panel.timeline.note:
        note = f'<p class="notice">{escaped(panel.timeline.note)}</p>'
    name = escaped(title_of(panel.timeline))
    return (
        f"<figure><figcaption>{heading}<dl class='facts'>{facts}</dl>{note}"
        "</figcaption><div "
        f'class="chart" role="img" aria-label="Chart of {name}; the table below says '
        'the same"><canvas></canvas><canvas></canvas></div></figure>'
    )


def _heading(panel: Panel) -> str:
    where = f'<span class="origin">{origin(panel.timeline)}</span>'
    return f"<h2>{escaped(panel.timeline.name)} {where}</h2>"


def _facts(panel: Panel) -> Iterable[tuple[str, str]]:
    yield from panel.figures
    timeline = panel.timeline
    if timeline.peak_memory is not None:
        unit = timeline.memory_unit
        peaks = by_rank(timeline.peak_memory, lambda peak: format_memory(peak, unit))
        if unit != "bytes":
            peaks += f" {unit}"
        yield "peak memory by rank", peaks


def _moment(panel: Panel, heading: str) -> str:
    heads = ["rank", "now", "activations held"]
    if panel.timeline.memory is not None:
        memory = "memory"
        if panel.timeline.memory_unit != "bytes":
            memory += f" ({panel.timeline.memory_unit})"
        heads.append(memory)
    # One level below the heading of the timeline, or of the page.
    level = "h3" if heading else "h2"
    head = f'<{level} class="list">Messages under way</{level}>'
    messages = f'<div>{head}<ul class="messages"></ul></div>'
    label = f"{escaped(title_of(panel.timeline))}: the moment"
    parts = f"{heading}{_table(heads)}{messages}"
    return f'<section class="moment" aria-label="{label}">{parts}</section>'


def _tables(panel: Panel) -> Iterable[str]:
    """Yield an empty table for each rank; the script fills it when it is opened."""
    _, unit = scale_of(panel.timeline.unit)
    table = _table(["action", f"start ({unit})", f"end ({unit})"])
    for rank in range(panel.timeline.num_ranks):
        summary = f"<summary>{escaped(title_of(panel.timeline))}: rank {rank}</summary>"
        yield f"<details>{summary}{table}</details>"


def _table(heads: Iterable[str]) -> str:
    """Return a table without rows; the script fills it."""
    cells = "".join(f'<th scope="col">{escaped(head)}</th>' for head in heads)
    return f"<table><thead><tr>{cells}</tr></thead><tbody></tbody></table>"

"""The captions of an animated SVG, for readers who see schedules for the first time."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from itertools import chain

from minipipe.core.schedules.action import ActionKind, B, F, I, W
from minipipe.errors import counted
from minipipe.render.descriptions import title
from minipipe.render.panel import Panel
from minipipe.schedules.simulation.timeline import format_time

# Names as papers write them; other schedules keep the names of the registry.
_TITLES = {
    "gpipe": "GPipe",
    "1f1b": "1F1B",
    "zb-h1": "ZB-H1 (zero bubble)",
    "zb-h2": "ZB-H2 (zero bubble)",
    "zb-v": "ZB-V (zero bubble)",
}
_SPLIT = (
    "B is split into I and W: the stage before waits for I only, and W fills idle time."
)
_WHOLE = "the stage before waits until all of it is done."


def heading(panels: Sequence[Panel]) -> str | None:
    """Return a title for panels of one training step of one size, and for others None.

    Examples
    --------
    >>> from minipipe import schedules
    >>> from minipipe.render.panel import panels_of
    >>> heading(panels_of([schedules.one_f_one_b(4, 8), schedules.zb_h1(4, 8)]))
    'One training step: 8 microbatches on 4 ranks'
    """
    sizes = {
        (_num_microbatches(panel), panel.timeline.num_ranks, panel.timeline.num_steps)
        for panel in panels
    }
    microbatches, ranks, steps = sizes.pop()
    if sizes or steps != 1:
        return None
    batch = counted(microbatches, "microbatch")
    return f"One training step: {batch} on {counted(ranks, 'rank')}"


def panel_title(panel: Panel) -> str:
    """Return the name of a schedule as papers write it; with times in seconds, also
    whether they were measured.

    Examples
    --------
    >>> from minipipe import schedules
    >>> from minipipe.render.panel import panels_of
    >>> list(
    ...     map(
    ...         panel_title,
    ...         panels_of([schedules.one_f_one_b(4, 8), schedules.zb_h1(4, 8)]),
    ...     )
    ... )
    ['1F1B', 'ZB-H1 (zero bubble)']
    """
    timeline = panel.timeline
    if timeline.unit == "units":
        return _TITLES.get(timeline.name, timeline.name)
    return title(timeline)


def cause(panel: Panel) -> str:
    """Return what a stage waits for in the backward pass; of timelines without one,
    nothing.

    Examples
    --------
    >>> from minipipe import schedules
    >>> from minipipe.render.panel import panels_of
    >>> cause(*panels_of([schedules.gpipe(4, 8)]))
    'B is one block of 2 units: the stage before waits until all of it is done.'
    """
    times = _durations([panel])
    if I in times:
        return _SPLIT
    if B not in times:
        return ""
    length = ""
    if len(times[B]) == 1:
        length = f" of {time_of(min(times[B]), panel.timeline.unit)}"
    return f"B is one block{length}: {_WHOLE}"


def unit_note(panels: Sequence[Panel]) -> str:
    """Return how long actions take, if all of a kind take the same time in abstract
    units.

    Examples
    --------
    >>> from minipipe import schedules
    >>> from minipipe.render.panel import panels_of
    >>> unit_note(panels_of([schedules.one_f_one_b(4, 8), schedules.zb_h1(4, 8)]))
    'F takes 1 unit of time, B 2, I 1, W 1'
    """
    times = _durations(panels)
    are_equal = all(len(each) == 1 for each in times.values())
    if panels[0].timeline.unit != "units" or F not in times or not are_equal:
        return ""
    (forward,) = times.pop(F)
    parts = [f"F takes {time_of(forward, 'units')} of time"]
    parts += (f"{kind} {min(each):g}" for kind, each in times.items())
    return ", ".join(parts)


def time_of(time: float, unit: str) -> str:
    """Return a time with its unit; one unit is singular.

    Examples
    --------
    >>> time_of(1, "units"), time_of(2, "units"), time_of(0.001, "s")
    ('1 unit', '2 units', '1 ms')
    """
    text = format_time(time, unit)
    return "1 unit" if text == "1 units" else text


def _num_microbatches(panel: Panel) -> int:
    return len({span.action.microbatch for span in chain(*panel.timeline.spans)})


def _durations(panels: Sequence[Panel]) -> dict[ActionKind, set[float]]:
    """Return the different durations of F, B, I and W."""
    durations: defaultdict[ActionKind, set[float]] = defaultdict(set)
    for panel in panels:
        for action, start, end in chain(*panel.timeline.spans):
            durations[action.kind].add(round(end - start, 9))
    return {kind: durations[kind] for kind in (F, B, I, W) if kind in durations}

"""How much a rank holds, over time: the one rule by which every drawing reads a timeline."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from minipipe.schedules.timeline import Timeline

__all__ = ["levels"]


def levels(timeline: Timeline, rank: int, held: Sequence[float]) -> Iterator[tuple[float, float]]:
    """Yield (time, level) at the start and at the end of each span of a rank.

    What F adds is there from its start; what a backward gives back, until its end. Where nothing is kept for a
    backward, what an action holds is given back when it ends.

    Parameters
    ----------
    timeline : Timeline
    rank : int
    held : sequence of float
        What the rank holds after each of its spans: its row of ``timeline.memory`` or ``timeline.held_activations``.

    Examples
    --------
    >>> from minipipe import schedules, simulate
    >>> timeline = simulate(schedules.gpipe(1, 1))
    >>> list(levels(timeline, 0, timeline.held_activations[0]))
    [(0.0, 1), (1.0, 1), (1.0, 1), (3.0, 0)]
    """
    is_kept, level = not timeline.is_forward_only, 0.0
    for (_, start, end), after in zip(timeline.spans[rank], held):
        during = max(level, after) if is_kept else after
        level = after if is_kept else 0.0
        yield start, during
        yield end, level

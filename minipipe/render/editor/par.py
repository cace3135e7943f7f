"""The draft beside par: named schedules, the best schedule that a search has found, and
the lower bound, for the same stages, microbatches, costs and memory.
"""

from __future__ import annotations

from contextlib import suppress
from functools import lru_cache
from math import inf
from operator import itemgetter
from typing import Any, NamedTuple

from minipipe.core.schedules.action_table import Schedule
from minipipe.errors import ScheduleError
from minipipe.render.editor.draft import Draft
from minipipe.render.editor.drawing import Sight
from minipipe.schedules.analysis.workload import ROUNDING, fits
from minipipe.schedules.registry import REGISTRY, build
from minipipe.schedules.simulation.simulator import simulate
from minipipe.schedules.simulation.timeline import by_rank, format_time
from minipipe.search.clock import schedule_of
from minipipe.search.gallery import GALLERY
from minipipe.search.heuristic import SearchState

_MOST_ACTIONS = 2400  # as many as 8 ranks and 100 microbatches have


class Entry(NamedTuple):
    """A schedule of the comparison, and why it is not comparable, if it is not."""

    name: str
    makespan: float
    bubble: float
    peak: str
    note: str = ""


@lru_cache(maxsize=1)
def named_drafts(placement: tuple[int, ...], num_microbatches: int) -> dict[str, Draft]:
    """Return, by name, the named schedules with these stages, unless there are so many
    actions that building all takes long.
    """
    drafts: dict[str, Draft] = {}
    if 3 * len(placement) * num_microbatches > _MOST_ACTIONS:
        return drafts
    ranks = max(placement) + 1
    chunks: int | None = None
    if len(placement) > ranks:
        chunks = len(placement) // ranks
    for name in REGISTRY:
        with suppress(ScheduleError):
            like = Draft.of(build(name, ranks, num_microbatches, chunks))
            if like.placement == placement:
                drafts[name] = like
    return drafts


class Par:
    """A draft, and the named schedules with its stages and microbatches.

    Parameters
    ----------
    sight : Sight
        The draft under its costs and limit.
    """

    def __init__(self, sight: Sight) -> None:
        self.sight = sight
        self.limit = max(sight.workload.memory_limit)
        named = named_drafts(sight.draft.placement, sight.draft.num_microbatches)
        every = [self._entry(name, draft.whole) for name, draft in named.items()]
        self.named = sorted(every, key=lambda it: (bool(it.note), it.makespan))

    def _entry(self, name: str, schedule: Schedule) -> Entry:
        timeline = simulate(schedule, self.sight.costs)
        peaks = timeline.peak_activations
        note = "over the memory" * (not fits(max(peaks), self.limit))
        makespan = timeline.makespan
        return Entry(name, makespan, timeline.bubble_fraction, by_rank(peaks), note)

    def compared(self, state: SearchState, is_puzzle: bool) -> dict[str, Any]:
        """Return the table, a sentence about it, and whether a schedule in it reaches
        the bound. The bound of a puzzle, or of the gallery, can be reached in any case.
        """
        sight = self.sight
        found = schedule_of(state.run.orders, sight.workload, "found")
        note = "incomplete" * (not sight.is_finished)
        yours = Entry("yours", sight.end, sight.idle, by_rank(sight.peaks), note)
        lines = [yours, self._bound(), self._entry("best found", found), *self.named]
        best = min((it for it in lines if not it.note), key=itemgetter(1))
        is_done = best.makespan <= sight.bound.value * (1 + ROUNDING)
        unit = sight.timeline.unit
        table = []
        for name, makespan, bubble, *rest in lines:
            bubble_text = f"{100 * bubble:.1f} %"
            table.append([name, format_time(makespan, unit), bubble_text, *rest])
        is_par = is_done or is_puzzle or sight.bound.name == GALLERY
        return {"table": table, "isDone": is_done, "said": self._said(best, is_par)}

    def _bound(self) -> Entry:
        sight = self.sight
        ranks = range(len(sight.ends))
        time = len(ranks) * sight.bound.value
        idle = max(0.0, 1 - sum(map(sight.workload.work, ranks)) / (time or inf))
        peak = f"at most {self.limit:g}".replace("at most inf", "any")
        return Entry("lower bound", sight.bound.value, idle, peak, sight.bound.name)

    def _said(self, best: Entry, is_par: bool) -> str:
        bound = self.sight.bound
        unit = self.sight.timeline.unit
        least = format_time(bound.value, unit)
        par = bound.value
        said = f"Par is {least}, which is proved."
        if not is_par:
            par = best.makespan
            known = f"The best known is {format_time(par, unit)} ({best.name})"
            said = f"{known}. It is not proved: the bound is {least}."
        if not self.sight.is_finished:
            return said
        over = self.sight.end - par
        if over <= ROUNDING * par:
            return f"{said} Yours reaches it."
        return f"{said} Yours takes {format_time(over, unit)} more."

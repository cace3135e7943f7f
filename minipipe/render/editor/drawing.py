"""The view of a draft on the page: data of the player for the placed actions, choices
and figures.
"""

from __future__ import annotations

from dataclasses import replace
from functools import cached_property
from math import inf
from typing import Any

from minipipe.core.schedules.action import Action, B, F, I
from minipipe.core.specs import Spec
from minipipe.errors import ArgumentError, counted, misuse
from minipipe.render.editor.draft import Choice, Draft
from minipipe.render.html import legend, player_data
from minipipe.render.panel import Panel
from minipipe.render.svg import draw_svg
from minipipe.schedules.analysis.bounds import Bound
from minipipe.schedules.analysis.workload import Objective, fits
from minipipe.schedules.simulation.comparison import workload_of
from minipipe.schedules.simulation.costs import Costs
from minipipe.schedules.simulation.simulator import TIMES_TOO_LARGE, simulate
from minipipe.schedules.simulation.timeline import by_rank, format_time
from minipipe.search.gallery import known_bound


class Sight:
    """A draft under some costs.

    Parameters
    ----------
    draft : Draft
        Legal so far.
    costs : Costs
    limit : float or None
        The most (stage, microbatch) pairs on each rank.
    halves : bool
        Whether I and W are offered instead of whole backwards.
    """

    def __init__(
        self, draft: Draft, costs: Costs, limit: float | None, halves: bool
    ) -> None:
        self.given = draft, costs, limit, halves
        self.draft, self.costs, self.limit, self.halves = self.given
        self.timeline = simulate(draft.whole, costs)
        self.is_finished = not draft.missing
        spans = zip(self.timeline.spans, draft.rows)
        self.ends = [row[len(own) - 1].end if own else 0.0 for row, own in spans]
        self.end = max(self.ends)

    @property
    def panel(self) -> Panel:
        """The timeline of the whole schedule, for drawing, without memory, which would
        repeat the pairs held.
        """
        return Panel(replace(self.timeline, memory=None, peak_memory=None))

    @cached_property
    def choices(self) -> list[list[Choice]]:
        """The actions that each rank may run next."""
        limit = inf if self.limit is None else self.limit
        room = [fits(self.held(rank) + 1, limit) for rank in range(len(self.ends))]
        unwanted = B if self.halves else I
        return [
            [choice for choice in row if choice.action.kind is not unwanted]
            for row in self.draft.choices(room)
        ]

    def held(self, rank: int) -> int:
        """Return how many pairs a rank holds after its placed actions."""
        placed = len(self.draft.rows[rank])
        return self.timeline.held_activations[rank][placed - 1] if placed else 0

    @cached_property
    def bound(self) -> Bound:
        """A lower bound on the makespan: within the limit or, without a limit, the peak
        of a finished draft.
        """
        limit = self.limit
        if limit is None:
            limit = max(self.timeline.peak_activations) if self.is_finished else inf
        workload = workload_of(self.draft.whole, self.costs, limit)
        found = known_bound(workload, Objective.MAKESPAN)
        if not found.value < inf:
            raise misuse(TIMES_TOO_LARGE)
        return found

    @cached_property
    def figures(self) -> list[tuple[str, str]]:
        """Figures with their names."""
        unit = self.timeline.unit
        busy = 0.0
        peaks = []
        every = self.timeline.held_activations
        for spans, held, own in zip(self.timeline.spans, every, self.draft.rows):
            busy += sum(span.end - span.start for span in spans[: len(own)])
            peaks.append(max(held[: len(own)], default=0))
        # The limit counts pairs; on ranks with one stage these are microbatches.
        if self.timeline.pairs_per_microbatch == 1:
            of = ""
        else:
            of = " (stage, microbatch) pairs"
        idle = 1 - busy / (len(self.ends) * self.end) if self.end else 0.0
        placed = sum(map(len, self.draft.rows))
        missing = len(self.draft.missing)
        found = [
            ("makespan" if self.is_finished else "so far", format_time(self.end, unit)),
            ("bubble", f"{100 * max(0.0, idle):.1f} %"),
            ("peak activations by rank", f"{by_rank(peaks)}{of}"),
            ("bound", f"{format_time(self.bound.value, unit)} ({self.bound.name})"),
        ]
        if self.is_finished:
            gap = max(0.0, self.end / self.bound.value - 1) if self.bound.value else 0.0
            distance = "none: optimal" if gap < 1e-9 else f"{100 * gap:.1f} %"
            return [*found, ("gap", distance)]
        actions = counted(placed + missing, "action")
        return [*found, ("placed", f"{placed} of {actions}")]

    def data(self) -> dict[str, Any]:
        """Return the data of the player, its legend, figures and choices."""
        panels = (self.panel,)
        choices = []
        for row in self.choices:
            choices.append([[str(action), is_ready] for action, is_ready in row])
        return {
            "player": self._pruned(player_data(panels)),
            "legend": legend(panels),
            "figures": self.figures,
            "choices": choices,
            "bound": self.bound.reason,
        }

    def _pruned(self, data: dict[str, Any]) -> dict[str, Any]:
        """Return the data without the actions that are not placed."""
        (panel,) = data["panels"]
        panel["name"] = self.draft.name
        there = self.draft.there
        data["duration"] = max(self.end, self.bound.value)
        if self.is_finished:
            return data
        data["sentences"]["finished"] = "has nothing placed from here on"
        panel["criticalPath"] = []
        messages = sorted(self.timeline.messages, key=lambda message: message.sent)
        pairs = zip(panel["messages"], messages)
        panel["messages"] = [row for row, sent in pairs if sent.value in there]
        for rank, end, own in zip(panel["ranks"], self.ends, self.draft.rows):
            rank["actions"] = rank["actions"][: len(own)]
            rank["idle"] = [idle for idle in rank["idle"] if idle[0] < end]
            holds = []
            for stage, k, begun, released in rank["holds"]:
                if released is not None and released > end:
                    released = None
                if Action(stage, F, k) in there:
                    holds.append([stage, k, begun, released])
            rank["holds"] = holds
        return data

    def export(self, form: str) -> str:
        """Return the content of a file: ``csv`` or ``txt`` of the placed actions, or
        ``svg`` of a finished draft.
        """
        if form == "svg" and self.is_finished:
            return draw_svg(self.timeline)
        if form == "svg":
            missing = counted(len(self.draft.missing), "action")
            message = f"A picture shows a finished schedule; missing: {missing}."
            raise ArgumentError(message)
        Spec(str, choices=("csv", "txt", "svg")).check("The format", form)
        table = self.draft.whole.with_rows(type(self.draft.whole), self.draft.rows)
        return table.to_csv() if form == "csv" else table.to_text()

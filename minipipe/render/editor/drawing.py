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
from minipipe.schedules.analysis.workload import Objective, Workload, fits
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

    Attributes
    ----------
    timeline, placed : Timeline
        Of the whole schedule, and of the placed actions alone.
    """

    def __init__(
        self, draft: Draft, costs: Costs, limit: float | None, halves: bool
    ) -> None:
        self.inputs = draft, costs, limit, halves
        self.draft, self.costs, self.limit, self.halves = self.inputs
        self.timeline = simulate(draft.whole, costs)
        self.is_finished = not draft.missing
        pairs = zip(self.timeline.spans, draft.rows)
        spans = tuple(spans[: len(row)] for spans, row in pairs)
        self.placed = replace(self.timeline, spans=spans)
        self.ends = [max((span.end for span in row), default=0.0) for row in spans]
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
        limit = self.limit or inf
        has_room = [fits(self.held(rank) + 1, limit) for rank in range(len(self.ends))]
        hidden = B if self.halves else I
        return [
            [choice for choice in row if choice.action.kind is not hidden]
            for row in self.draft.choices(has_room)
        ]

    def held(self, rank: int) -> int:
        """Return how many pairs a rank holds after its placed actions."""
        placed = len(self.draft.rows[rank])
        if not placed:
            return 0
        return self.timeline.held_activations[rank][placed - 1]

    @cached_property
    def workload(self) -> Workload:
        """The work within the limit or, without a limit, the peak of a finished
        draft.
        """
        limit = self.limit or inf
        if self.limit is None and self.is_finished:
            limit = max(self.timeline.peak_activations)
        return workload_of(self.draft.whole, self.costs, limit)

    @cached_property
    def bound(self) -> Bound:
        """A lower bound on the makespan of the workload."""
        bound = known_bound(self.workload, Objective.MAKESPAN)
        if not bound.value < inf:
            raise misuse(TIMES_TOO_LARGE)
        return bound

    @property
    def peaks(self) -> list[int]:
        """The most pairs that each rank holds during its placed actions."""
        every = zip(self.timeline.held_activations, self.draft.rows)
        return [max(held[: len(row)], default=0) for held, row in every]

    @property
    def idle(self) -> float:
        """The fraction of the time until the last end that ranks are idle."""
        return max(0.0, self.placed.bubble_fraction)

    @cached_property
    def figures(self) -> list[tuple[str, str]]:
        """Figures with their names."""
        unit = self.timeline.unit
        peak = by_rank(self.peaks)
        # The limit counts pairs; on ranks with one stage these are microbatches.
        if self.timeline.pairs_per_microbatch != 1:
            peak += " (stage, microbatch) pairs"
        end = format_time(self.end, unit)
        figures = [
            ("bubble", f"{100 * self.idle:.1f} %"),
            ("peak activations by rank", peak),
            ("bound", f"{format_time(self.bound.value, unit)} ({self.bound.name})"),
        ]
        if self.is_finished:
            return [("makespan", end), *figures, ("gap", self._gap())]
        placed = sum(map(len, self.draft.rows))
        actions = counted(placed + len(self.draft.missing), "action")
        return [("so far", end), *figures, ("placed", f"{placed} of {actions}")]

    def _gap(self) -> str:
        """Return the distance of the makespan from its bound, as text."""
        gap = 0.0
        if self.bound.value:
            gap = self.end / self.bound.value - 1
        if gap < 1e-9:
            return "none: optimal"
        return f"{100 * gap:.1f} %"

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
        placed = self.draft.actions
        data["duration"] = max(self.end, self.bound.value)
        if self.is_finished:
            return data
        data["sentences"]["finished"] = "has nothing placed from here on"
        panel["criticalPath"] = []
        pairs = zip(panel["messages"], self.timeline.messages)
        panel["messages"] = [row for row, sent in pairs if sent.value in placed]
        for rank, end, row in zip(panel["ranks"], self.ends, self.draft.rows):
            rank["actions"] = rank["actions"][: len(row)]
            rank["idle"] = [idle for idle in rank["idle"] if idle[0] < end]
            holds = []
            for stage, k, begun, released in rank["holds"]:
                if released is not None and released > end:
                    released = None
                if Action(stage, F, k) in placed:
                    holds.append([stage, k, begun, released])
            rank["holds"] = holds
        return data

    def export(self, form: str) -> str:
        """Return the content of a file: ``csv`` or ``txt`` of the placed actions, or
        ``svg`` of a finished draft.
        """
        Spec(str, choices=("csv", "txt", "svg")).check("The format", form)
        if form == "svg":
            if self.is_finished:
                return draw_svg(self.timeline)
            missing = counted(len(self.draft.missing), "action")
            message = f"A picture shows a finished schedule; missing: {missing}."
            raise ArgumentError(message)
        table = self.draft.whole.with_rows(type(self.draft.whole), self.draft.rows)
        if form == "csv":
            return table.to_csv()
        return table.to_text()

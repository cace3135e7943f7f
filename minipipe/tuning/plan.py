"""The plan that measurements chose."""

from __future__ import annotations

from html import escape
from typing import Any

from minipipe.execution.plan import Plan
from minipipe.tuning.report import Report


class ChosenPlan(Plan):
    """A plan that ``schedule="auto"`` chose; printed, it says so.

    Parameters
    ----------
    advice : Report
        What was weighed.
    *plan, **options
        Of :class:`minipipe.Plan`.
    """

    advice: Report

    def __init__(self, advice: Report, *plan: Any, **options: Any) -> None:
        super().__init__(*plan, **options)
        vars(self).update(advice=advice)

    @property
    def told(self) -> str:
        """The choice in a sentence."""
        return f'schedule="auto" chose {self.advice.data["summary"]}'

    def __str__(self) -> str:
        return f"{super().__str__()}\n\n{self.told}"

    def _repr_html_(self) -> str:
        return f"{super()._repr_html_()}<p>{escape(self.told)}</p>"

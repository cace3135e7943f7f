"""The plan that measurements chose."""

from __future__ import annotations

from html import escape
from typing import Any

from minipipe.execution.plan import Plan
from minipipe.tuning.report import Advice


class ChosenPlan(Plan):
    """A plan that ``schedule="auto"`` chose; printed, it says so.

    Parameters
    ----------
    advice : Advice or None
        What was weighed, on rank 0.
    told : str
        The choice in a sentence, on every rank.
    *plan, **options
        Of :class:`minipipe.Plan`.
    """

    def __init__(self, advice: Advice | None, told: str, *plan: Any, **options: Any) -> None:
        super().__init__(*plan, **options)
        vars(self).update(advice=advice, told=told)

    def __str__(self) -> str:
        return f"{super().__str__()}\n\n{vars(self)['told']}"

    def _repr_html_(self) -> str:
        return f"{super()._repr_html_()}<p>{escape(vars(self)['told'])}</p>"

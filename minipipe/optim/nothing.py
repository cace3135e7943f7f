"""Steps of optimisers over no parameters, which no parameter has counted."""

from contextvars import ContextVar

steps_over_nothing: ContextVar[int] = ContextVar("steps_over_nothing", default=0)
"""How many steps optimisers over no parameters have taken on this rank."""

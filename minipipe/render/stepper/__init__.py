"""``minipipe step``: a walk through a schedule in the terminal, action by action."""

__all__: list[str] = []

"""Schedules as data: actions, tables, their text, and four builders. No NumPy."""

__all__: list[str] = []

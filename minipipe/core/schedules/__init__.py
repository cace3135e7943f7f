"""Schedules as data: actions, tables, their text, and the builders of GPipe, 1F1B,
interleaved and zero-bubble schedules. No NumPy.
"""

__all__: list[str] = []

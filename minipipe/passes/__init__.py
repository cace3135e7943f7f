"""Passes: functions from a program to a program, which add what a rank does besides.

`kinds.py` declares the kinds of instruction that they add. No NumPy.
"""

__all__: list[str] = []

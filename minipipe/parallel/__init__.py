"""Sums over ranks: the messages of the one reduction, and its order of addition.

`reduction.py` has the messages, and `pairwise.py` the order, on which the bits of every
sum over ranks depend.
"""

__all__: list[str] = []

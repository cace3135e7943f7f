"""Times of instructions on ranks that share cores and links. No NumPy.

`core/times.py` has the times on ranks that share nothing. `shared.py` runs the same
plan of instructions if they share the cores of a host, or messages share its links;
`hosts.py` has these cores and links.
"""

__all__: list[str] = []

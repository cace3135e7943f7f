"""The inner core: kinds of instruction and the values that connect them.

Everything here works without NumPy, and imports nothing of minipipe outside this
package. `values.py` declares the kinds, `flow.py` applies the declarations to a
table, and the other files derive from that whether the table is legal, in which order
its instructions can run, which messages it needs, when each one starts and ends, and
what its ranks hold meanwhile.
"""

__all__: list[str] = []

"""The inner core: kinds of instruction and the values that connect them.

Everything here works without NumPy, and imports nothing of minipipe outside this
package. `values.py` declares the kinds, `flow.py` applies the declarations to a
table, `order.py` and `times.py` derive from that when each instruction runs.
"""

__all__: list[str] = []

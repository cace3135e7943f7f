"""The inner core: a complete framework, which imports nothing of minipipe outside this
package when it is loaded (README.md).

Tensors and their graph, operations, modules, groups of ranks, schedules with verifier
and simulator, and the pipeline that runs them. What concerns schedules works without
NumPy. ``values.py`` declares the kinds of instruction; whether a table is legal, in
which order its instructions can run, which messages it needs, when each one starts and
ends, and what its ranks hold meanwhile, is derived from these declarations.
"""

__all__: list[str] = []

"""A rank's step as a program: traced once, printed, and run from then on.

``trace.py`` and ``noting.py`` note the NumPy calls of a stage, ``places.py`` decides in
which memory each array lies, and ``sections.py`` prints the functions of the stage.
"""

__all__: list[str] = []

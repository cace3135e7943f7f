"""A rank's step as one printed program, recorded from an eager step.

``trace.py`` and ``noting.py`` note the NumPy calls of a stage, ``places.py`` decides in
which memory each array lies, and ``sections.py`` has the functions of the stage.
"""

from minipipe.hints import refuse_calls

refuse_calls(__name__, "Pipeline(model, group, …, compile=True)")

__all__: list[str] = []

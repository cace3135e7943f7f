"""Stand-alone programs of ranks, which ``minipipe export`` writes.

Reading order: `following.py` records steps of a program; `rank_file.py` writes the file
of a rank, with `row.py` for its ``step``, `stage_source.py` for the functions of its
stages, `expressions.py` and `units.py` for their lines, and `texts.py` for the rest.
"""

from minipipe.compile.export.following import files_of

__all__ = ["files_of"]

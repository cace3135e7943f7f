"""The command line, a file for each verb. ``minipipe …`` and ``python -m minipipe …``
call :func:`main`.
"""

from minipipe.cli.main import main

__all__ = ["main"]

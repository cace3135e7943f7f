"""``python -m minipipe …`` is ``minipipe …``."""

import sys

if not sys.flags.safe_path:
    # `python -m` looks for modules in the current folder first. In a student's folder a
    # file json.py would run here, with the grader's rights. All modules imported until
    # now were loaded by the start of Python.
    del sys.path[0]

from minipipe.cli import main

if __name__ == "__main__":
    sys.exit(main())

"""``python -m minipipe …`` is ``minipipe …``."""

import sys

from minipipe.cli import main

__all__: list[str] = []

if __name__ == "__main__":
    sys.exit(main())

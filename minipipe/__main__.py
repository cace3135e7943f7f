"""``python -m minipipe …`` is ``minipipe …``."""

import sys

from minipipe.cli import main

if __name__ == "__main__":
    sys.exit(main())

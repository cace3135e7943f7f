"""The verbs of the command line: each reads its options, prints its answer last, and returns the exit status."""

__all__: list[str] = []

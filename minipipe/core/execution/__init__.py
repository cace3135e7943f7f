"""One rank's part of a step: stages, handlers, and the loop over its row."""

__all__: list[str] = []

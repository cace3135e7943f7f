"""Where a value that is infinite or not a number was made: a step is run once more, and every layer is watched."""

__all__: list[str] = []  # nothing for users: a pipeline opens this room when a step was not finite

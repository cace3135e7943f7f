"""Parameters, modules, and the layers and losses of the core."""

__all__: list[str] = []

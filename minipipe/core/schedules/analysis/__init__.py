"""Facts about a table: dependencies, legality, rounds, messages. No NumPy."""

__all__: list[str] = []

"""Search: the best schedule for a workload, with a proof of how good it is."""

__all__: list[str] = []

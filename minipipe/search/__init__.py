"""Search: the best schedule for a workload, with a proof of how good it is."""

"""A supervisor for MPI jobs: it starts a job, and restarts it when it fails, without lost hosts."""

__all__: list[str] = []

"""A supervisor for MPI jobs: it starts a job, and restarts it when it fails, without the hosts that are lost."""

__all__: list[str] = []

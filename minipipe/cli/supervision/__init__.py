"""A supervisor for MPI jobs: it starts a job, and restarts it when it fails, without
hosts that do not answer.
"""

__all__: list[str] = []

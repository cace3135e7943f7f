"""A supervisor for MPI jobs: it starts a job, and starts it again when it fails, without the hosts that are gone.

``launching`` has the job and its command, ``hostfile`` its hosts. ``attempt`` runs it once, and leaves no process.
``supervisor`` decides whether, when and on how many ranks it starts again. ``guard`` is a process above it all, for the
case that one is killed. Nothing here knows what the job computes.
"""

__all__: list[str] = []

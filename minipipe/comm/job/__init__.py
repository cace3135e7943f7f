"""The processes of a job: how they start, watch each other and end, together and with one message that says why.

``launcher`` is what mpirun or srun tells a process, ``host`` sets this process up for a rank. ``witness`` is a small
process on each host that outlives its ranks; through ``meeting`` they talk to it. ``descriptors`` is what a rank keeps
open, and how forked children end with it. ``mpi_job`` is this process as one of
an MPI job: it answers the questions of other ranks, asks them when a wait grows too long, and ends all. ``activity`` is
what a rank tells of itself, ``verdict`` what follows from the answers of all, ``patience`` a limit on waiting,
``ending`` an exit code and the last words.
"""

__all__: list[str] = []

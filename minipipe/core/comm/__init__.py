"""Ranks and messages: one rank, threads of this process, or MPI."""

__all__: list[str] = []

"""Ranks and messages: one rank, threads of this process, or MPI."""

from minipipe.comm.launch import init_process_group
from minipipe.comm.point_to_point import DEFAULT_TIMEOUT, Request
from minipipe.comm.process_group import OneRankGroup, ProcessGroup
from minipipe.comm.thread import ThreadGroup, spawn

__all__ = [
    "DEFAULT_TIMEOUT",
    "OneRankGroup",
    "ProcessGroup",
    "Request",
    "ThreadGroup",
    "init_process_group",
    "spawn",
]

"""Ranks and messages: one rank, threads of this process, or MPI."""

from minipipe.comm.launch import init_process_group
from minipipe.comm.one_rank import OneRankGroup
from minipipe.comm.process_group import ProcessGroup
from minipipe.comm.request import DEFAULT_TIMEOUT, Request
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

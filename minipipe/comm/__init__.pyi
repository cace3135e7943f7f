"""The public names of ``minipipe.comm``, for type checkers and for ``minipipe._lazy``, one on a line."""

from minipipe.comm.grid import Grid as Grid
from minipipe.core.comm.launch import OneRankGroup as OneRankGroup
from minipipe.core.comm.launch import init_process_group as init_process_group
from minipipe.core.comm.launch import spawn as spawn
from minipipe.core.comm.message import DEFAULT_TIMEOUT as DEFAULT_TIMEOUT
from minipipe.core.comm.message import Request as Request
from minipipe.core.comm.process_group import ProcessGroup as ProcessGroup
from minipipe.core.comm.thread import ThreadGroup as ThreadGroup

"""One tree of errors, each with a code for programs and a sentence for people: the
public names of ``core/errors.py``, and the parts of messages that all packages use.
"""

from minipipe.core.errors import ArgumentError as ArgumentError
from minipipe.core.errors import CheckpointError as CheckpointError
from minipipe.core.errors import Code as Code
from minipipe.core.errors import CourseworkError as CourseworkError
from minipipe.core.errors import FileError as FileError
from minipipe.core.errors import LaunchError as LaunchError
from minipipe.core.errors import MessageError as MessageError
from minipipe.core.errors import MicrobatchError as MicrobatchError
from minipipe.core.errors import MinipipeError as MinipipeError
from minipipe.core.errors import ModelError as ModelError
from minipipe.core.errors import NotFiniteError as NotFiniteError
from minipipe.core.errors import ParameterError as ParameterError
from minipipe.core.errors import PartitionError as PartitionError
from minipipe.core.errors import Problem as Problem
from minipipe.core.errors import RankError as RankError
from minipipe.core.errors import RankLostError as RankLostError
from minipipe.core.errors import ScheduleError as ScheduleError
from minipipe.core.errors import TensorError as TensorError
from minipipe.core.errors import __getattr__ as __getattr__
from minipipe.core.errors import counted as counted
from minipipe.core.errors import misuse as misuse
from minipipe.core.errors import not_copyable as not_copyable
from minipipe.core.errors import quoted as quoted
from minipipe.core.errors import shape_error as shape_error
from minipipe.core.errors import warn_caller as warn_caller

__all__ = [
    "ArgumentError",
    "CheckpointError",
    "Code",
    "CourseworkError",
    "FileError",
    "LaunchError",
    "MessageError",
    "MicrobatchError",
    "MinipipeError",
    "ModelError",
    "NotFiniteError",
    "ParameterError",
    "PartitionError",
    "Problem",
    "RankError",
    "RankLostError",
    "ScheduleError",
    "TensorError",
]

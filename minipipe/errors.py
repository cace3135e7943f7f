"""One tree of errors, each with a code for programs and a sentence for people: the
public names of ``core/errors.py``, the parts of messages that all packages use, and the
codes of earlier versions.
"""

from warnings import warn

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

OLD_CODES = {
    Code.VALUE: "costs invalid-cost no-weight not-a-partition parameters zero-stages",
    Code.TYPE: "not-a-schedule not-a-sequence not-a-tensor",
    Code.NAME: "unknown unknown-task",
    Code.SHAPE: "not-scalar",
    Code.OUT_OF_RANGE: "range",
    Code.WRONG_NUMBER: "several-tensors unequal-lengths",
    Code.TOO_FEW: "too-few-layers too-few-samples",
    Code.MISSING: "no-gradient no-partner no-random-key no-sum skipped uninitialised "
    "unpaired",
    Code.UNEXPECTED: "mixed-backward",
    Code.DUPLICATE: "tag-collision",
    Code.UNSUPPORTED: "beside-layers forward-only kinds no-formula planned recompute "
    "replicas slices updates version",
    Code.NO_GRAPH: "backward-twice",
    Code.LOSS: "loss-with-parameters",
    Code.DISAGREEMENT: "not-all-ranks step",
    Code.TIMEOUT: "time-limit",
    Code.DEADLOCK: "overlap-deadlock",
    Code.RANK_LOST: "peer-left values",
    Code.NOT_A_RANK: "two-threads",
    Code.UNAVAILABLE: "no-fault-tolerance no-gpu no-launcher no-mpi4py wrong-mpi",
    Code.NOT_FOUND: "no-script no-source not-written wrong-directory",
    Code.UNREADABLE: "file not-a-file not-text",
    Code.UNWRITABLE: "not-empty",
    Code.DAMAGED: "header markers",
    Code.MISMATCH: "certificate",
    Code.SYNTAX: "empty",
    Code.PLACEMENT: "mixed-cut other-replica wrong-rank",
    Code.ORDER: "early-sum early-update slice-order",
    Code.STALENESS: "versions",
}
"""Codes of earlier versions, separated by blanks, by the code that now has the meaning.

Examples
--------
>>> Code("early-update"), Code.EARLY_UPDATE is Code.ORDER, sorted(Code.ORDER.old)
(<Code.ORDER: 'order'>, True, ['early-sum', 'early-update', 'slice-order'])
"""

for _code in Code:
    _code.old = frozenset(OLD_CODES.get(_code, "").split())
    for _old in _code.old:
        setattr(Code, _old.replace("-", "_").upper(), _code)


def __getattr__(name: str) -> type[Code]:
    """Return :class:`Code` for the enum that a class of errors had, such as
    ``ScheduleCode``.
    """
    if f"{name.removesuffix('Code')}Error" not in __all__:
        raise AttributeError(f"module 'minipipe.errors' has no attribute {name!r}")
    warn(
        f"minipipe.errors.{name} is now minipipe.errors.Code.",
        DeprecationWarning,
        stacklevel=2,
    )
    return Code

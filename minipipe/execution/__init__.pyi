"""The public names of ``minipipe.execution``, for type checkers and for ``minipipe._lazy``, one on a line."""

from minipipe.core.dividing import split_microbatches as split_microbatches
from minipipe.execution.objective import BatchLoss as BatchLoss
from minipipe.execution.objective import PendingLoss as PendingLoss
from minipipe.execution.samples import Microbatches as Microbatches
from minipipe.execution.samples import Replicated as Replicated

"""Is my loss difference a bug? Two runs are compared, and each difference is put down
to the order of summation, to the rounding of a precision, or to a bug.
"""

from minipipe.referee.comparing import OPTIMISERS, Variation, referee
from minipipe.referee.files import KINDS
from minipipe.referee.formats import FORMATS
from minipipe.referee.report import Difference, Report, Verdict

__all__ = [
    "FORMATS",
    "KINDS",
    "OPTIMISERS",
    "Difference",
    "Report",
    "Variation",
    "Verdict",
    "referee",
]

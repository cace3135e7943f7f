"""Do all ranks run the same program? What changes its numbers, as text and as digests, and the comparison of these."""

from minipipe.agreement.calls import Calls, part_of
from minipipe.agreement.comparison import check_agreement, check_first_values
from minipipe.agreement.description import description, digest
from minipipe.agreement.fingerprint import batch_marks, fingerprint
from minipipe.agreement.program import check_program, program
from minipipe.agreement.updates import Updates

__all__ = [
    "Calls",
    "Updates",
    "batch_marks",
    "check_agreement",
    "check_first_values",
    "check_program",
    "description",
    "digest",
    "fingerprint",
    "part_of",
    "program",
]

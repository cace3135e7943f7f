"""What is checked beside a step: do all ranks run the same program, and is every value finite?"""

from minipipe.execution.checks.calls import Calls, part_of
from minipipe.execution.checks.comparison import check_agreement, check_first_values, check_program, program
from minipipe.execution.checks.description import description, digest
from minipipe.execution.checks.updates import Updates, batch_marks, fingerprint

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

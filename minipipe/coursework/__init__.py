"""Exercises as coursework: from one source the student's copy, and its grading.

``write_coursework`` and ``grade`` are ``minipipe coursework DIR`` and ``minipipe grade DIR``; the ``expect_…`` and
``remote`` are what the tests of exercises ask with. How an exercise is written stands in
:mod:`minipipe.coursework.exercise`, what grading protects against in :mod:`minipipe.coursework.grading`, what it prints
in :mod:`minipipe.coursework.report`.
"""

from minipipe.coursework.expectations import (
    Unexpected,
    expect_at_most,
    expect_bits,
    expect_close,
    expect_equal,
    expect_legal,
    expect_sequence,
    expect_that,
    expect_type,
)
from minipipe.coursework.grading import grade
from minipipe.coursework.report import Report, TaskReport
from minipipe.coursework.student_copy import write_coursework
from minipipe.coursework.task import Task, local_task, remote

__all__ = [
    "Report",
    "Task",
    "TaskReport",
    "Unexpected",
    "expect_at_most",
    "expect_bits",
    "expect_close",
    "expect_equal",
    "expect_legal",
    "expect_sequence",
    "expect_that",
    "expect_type",
    "grade",
    "local_task",
    "remote",
    "write_coursework",
]

"""Exercises as coursework: the student's copy and its grading. README.md says how they work."""

from minipipe.coursework.checking import Task, local_task, remote
from minipipe.coursework.exercise import write_coursework
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
from minipipe.coursework.grading import Report, TaskReport, grade

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

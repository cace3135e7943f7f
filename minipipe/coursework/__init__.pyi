"""The public names of ``minipipe.coursework``, for type checkers and for ``minipipe._lazy``, one on a line."""

from minipipe.coursework.checking import Task as Task
from minipipe.coursework.checking import local_task as local_task
from minipipe.coursework.checking import remote as remote
from minipipe.coursework.expectations import Unexpected as Unexpected
from minipipe.coursework.expectations import expect_at_most as expect_at_most
from minipipe.coursework.expectations import expect_bits as expect_bits
from minipipe.coursework.expectations import expect_close as expect_close
from minipipe.coursework.expectations import expect_equal as expect_equal
from minipipe.coursework.expectations import expect_legal as expect_legal
from minipipe.coursework.expectations import expect_sequence as expect_sequence
from minipipe.coursework.expectations import expect_that as expect_that
from minipipe.coursework.expectations import expect_type as expect_type
from minipipe.coursework.grading import Report as Report
from minipipe.coursework.grading import TaskReport as TaskReport
from minipipe.coursework.grading import grade as grade
from minipipe.coursework.leaderboard import Level as Level
from minipipe.coursework.student_copy import write_coursework as write_coursework

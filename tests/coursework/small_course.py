"""A small course of its own: what the tests of grading test is not the exercises."""

import json

from minipipe.coursework import Task
from minipipe.coursework.checking import load, packed, reply_of, value_of

# A small course of its own: what is tested here is not the exercises.
SOLUTION = '''"""01 double: twice a number.

Lesson 01. Example: double(2) is 4.
"""


def double(number):
    """Return twice the number."""
    # SOLUTION
    return 2 * number
    # STUB
    # raise NotImplementedError("twice the number")
    # END
'''


CHECKS = '''"""Tests of 01_double."""

from minipipe.coursework import expect_equal


def test_two(task):
    """Twice two is four.

    Hint: multiply by 2.
    """
    expect_equal(task.double(2), 4, "double(2)")


def test_nothing(task):
    """Twice nothing is nothing."""
    expect_equal(task.double(0), 0, "double(0)")


# HIDDEN
def test_a_negative_number(task):
    """Twice minus three is minus six."""
    expect_equal(task.double(-3), -6, "double(-3)")


WRONG_ANSWERS = []
'''


def reasons(task):
    return [outcome.reason for _, outcome in task.outcomes]


def double(body, before=""):
    """Return a student's file whose function has this body."""
    indented = "\n".join(f"    {line}" for line in body.splitlines())
    return f"{before}\ndef double(number):\n{indented}\n"


def asked_here(name, text):
    """Return the task of a student's text in this process: where nothing can happen to
    it, that is quicker.
    """
    module = load(name, text, f"{name}.py")

    def ask(function, given):
        return value_of(
            json.loads(json.dumps(reply_of(module, function, packed(given), text)))
        )

    return Task(ask)

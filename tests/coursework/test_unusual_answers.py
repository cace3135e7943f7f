"""Right answers that nobody thought of when the tests were written get every point;
what only looks right does not.
"""

import pytest

from minipipe.coursework.checking import load, run_test
from minipipe.coursework.exercise import exercises_in, find_source, named
from tests.coursework.small_course import asked_here

EXERCISES = exercises_in(find_source())

RUNNING_SUM = '''
def all_reduce(group, array):
    """Pass the running sum to the last rank, which has it whole, and then the whole sum around."""
    rank, last = group.rank, group.size - 1
    if last == 0:
        return array.copy()
    if rank == 0:
        group.send(array, 1)
    else:
        total = group.recv(rank - 1) + array
        group.send(total, (rank + 1) % group.size)
    if rank < last:
        total = group.recv((rank - 1) % group.size)
    if rank + 1 < last:
        group.send(total, rank + 1)
    return total
'''
UNCUT = """
from minipipe import nn

def train_step(stages, batch, targets, loss):
    result = loss(nn.Sequential(*stages)(batch), targets)
    result.backward()
    return result.numpy()[()]
"""
EXACT = """
from fractions import Fraction

def bubble_fraction(p, m):
    return Fraction(p - 1, m + p - 1)

def microbatches_for(p, bubble):
    m = 1
    while bubble_fraction(p, m) > bubble:
        m += 1
    return m
"""
GENERATED_ROWS = """
def rows(p, m):
    for rank in range(p):
        yield row(p, m, rank)

def row(p, m, rank):
    forwards = backwards = 0
    while backwards < m:
        if forwards < m and forwards - backwards < p - rank:
            yield f"{rank}F{forwards}"
            forwards += 1
        else:
            yield f"{rank}B{backwards}"
            backwards += 1
"""
ARRAY_OF_PEAKS = """
import numpy as np

def peaks(schedule):
    steps = {"F": 1, "B": -1, "W": -1, "I": 0}
    return np.array([np.cumsum([steps[action.kind.value] for action in row]).max() for row in schedule.actions])

def memory_ratio(p, m, rank):
    return np.float64(min(p - rank, m)) / m
"""
SIZES_OF_NUMPY = """
import numpy as np
from functools import lru_cache

def partition(costs, num_stages):
    before = np.concatenate([[0.0], np.cumsum(costs)])
    costs.clear()  # the list was ours to use

    @lru_cache(None)
    def best(n, k):
        if k == 1:
            return before[n], (n,)
        return min((max(best(i, k - 1)[0], before[n] - before[i]), (*best(i, k - 1)[1], n)) for i in range(k - 1, n))

    return list(np.diff(best(len(before) - 1, num_stages)[1], prepend=0))
"""
RIGHT = [
    ("03_all_reduce", RUNNING_SUM),
    ("04_stage_gradient", UNCUT),
    ("05_bubble", EXACT),
    ("05_bubble", EXACT.replace("Fraction(p - 1, m + p - 1)", "1 - m / (m + p - 1)")),
    ("06_warmup", GENERATED_ROWS),
    ("12_memory_peak", ARRAY_OF_PEAKS),
    ("13_partition", SIZES_OF_NUMPY),
]


def failed_tests(name, text):
    exercise = named(EXERCISES, name)
    checks, task = load(f"checks of {name}", exercise.checks), asked_here(name, text)
    outcomes = {
        test.name: run_test(getattr(checks, test.name), task) for test in exercise.tests
    }
    return {
        test: outcome.reason for test, outcome in outcomes.items() if not outcome.passed
    }


@pytest.mark.parametrize(("name", "text"), RIGHT)
def test_what_is_right_gets_every_point_however_it_is_written(name, text):
    assert failed_tests(name, text) == {}


def test_a_lazy_sequence_is_as_good_as_a_list():
    functions = {
        "08_lowering": "add_messages",
        "09_verifier_rule": "stuck",
        "10_interleaved_order": "order",
    }
    for name, function in functions.items():
        lazy = (
            f"eager = {function}\ndef {function}(*given):\n    yield from "
            "eager(*given)\n"
        )
        assert failed_tests(name, named(EXERCISES, name).solution + lazy) == {}


def test_a_schedule_without_any_message_is_not_lowered():
    """It is legal, as one that has not been lowered yet; so it once had six points of
    seven.
    """
    text = (
        "def add_messages(schedule):\n    return [list(row) for row in "
        "schedule.actions]\n"
    )
    assert len(failed_tests("08_lowering", text)) == len(
        named(EXERCISES, "08_lowering").tests
    )


def test_who_makes_the_layers_cheap_has_not_divided_them():
    """What a student does to the list of costs is not what the stages are measured
    by.
    """
    text = (
        "def partition(costs, n):\n    costs[:] = [0] * len(costs)\n    return [1] * "
        "(n - 1) + [len(costs) - n + 1]\n"
    )
    assert "test_random_costs_against_all_partitions" in failed_tests(
        "13_partition", text
    )


def test_a_ring_of_senders_is_told_that_its_sends_wait():
    """The story: it was told of a receive with tag 1, which the student had never
    written.
    """
    text = named(EXERCISES, "03_all_reduce").solution.replace(
        "if rank % 2 == 0:", "if True:"
    )
    reason = failed_tests("03_all_reduce", text)[
        "test_nobody_waits_for_ever_although_sends_block"
    ]
    assert "rank 0 waits for its send to be received" in str(
        reason
    ) and "tag 1" not in str(reason)

"""A limit on waiting counts the time in which the process ran."""

from hypothesis import given
from hypothesis import strategies as st

from minipipe.comm.job import reports
from minipipe.comm.job.reports import LONGEST_GAP, Patience


@given(st.lists(st.floats(0, 1e6), min_size=1, max_size=50))
def test_a_gap_between_looks_counts_half_a_second_at_most(gaps):
    """The story: a job that Slurm suspended for longer than the timeout failed when it
    went on, 6 of 6.
    """
    clock = 0.0
    real, reports.perf_counter = reports.perf_counter, lambda: clock
    try:
        waiting = Patience(limit=1e9)
        for gap in gaps:
            clock += gap
            assert not waiting.look()
    finally:
        reports.perf_counter = real
    assert waiting.spent <= sum(gaps) + 1e-6
    assert waiting.spent <= LONGEST_GAP * len(gaps)


def test_it_is_over_once_the_limit_is_passed_and_can_begin_again():
    waiting = Patience(limit=0.0)
    assert waiting.look() and waiting.left == 0.0
    waiting.limit = 100.0
    waiting.renew()
    assert not waiting.look() and 99.0 < waiting.left <= 100.0

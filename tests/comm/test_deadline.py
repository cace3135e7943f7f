"""A limit on waiting counts the time in which the process ran."""

from hypothesis import given
from hypothesis import strategies as st

from minipipe.core.comm import watch
from minipipe.core.comm.watch import LONGEST_GAP, Deadline


@given(st.lists(st.floats(0, 1e6), min_size=1, max_size=50))
def test_a_gap_between_polls_counts_half_a_second_at_most(gaps):
    """The story: a job that Slurm suspended for longer than the timeout failed when it
    went on, 6 of 6.
    """
    clock = 0.0
    real, watch.perf_counter = watch.perf_counter, lambda: clock
    try:
        waiting = Deadline(limit=1e9)
        for gap in gaps:
            clock += gap
            assert not waiting.poll()
    finally:
        watch.perf_counter = real
    assert waiting.spent <= sum(gaps) + 1e-6
    assert waiting.spent <= LONGEST_GAP * len(gaps)


def test_it_is_over_once_the_limit_is_passed_and_can_begin_again():
    waiting = Deadline(limit=0.0)
    assert waiting.poll() and waiting.left == 0.0
    waiting.limit = 100.0
    waiting.renew()
    assert not waiting.poll() and 99.0 < waiting.left <= 100.0

"""The pause of the garbage collector: it ends, whoever pauses and however they
leave.
"""

import gc
import threading

import pytest

from minipipe import schedules, simulate
from minipipe.core.schedules.action_table import collector_paused
from minipipe.errors import ScheduleError


@pytest.fixture(autouse=True)
def collector():
    was_enabled = gc.isenabled()
    yield
    (gc.enable if was_enabled else gc.disable)()


def test_the_collector_is_off_inside_and_on_again_afterwards_also_after_an_error():
    with pytest.raises(ZeroDivisionError), collector_paused():
        assert not gc.isenabled()
        _ = 1 / 0
    assert gc.isenabled()


def test_whoever_has_turned_the_collector_off_finds_it_off():
    gc.disable()
    simulate(schedules.build("zb-v", 3))
    assert not gc.isenabled()


def test_an_illegal_schedule_leaves_the_collector_on():
    with pytest.raises(ScheduleError):
        schedules.build("zb-v", 0)
    assert gc.isenabled()
    with pytest.raises(ScheduleError):
        schedules.lower(schedules.Schedule.from_text("0B0 0F0"))
    assert gc.isenabled()


@pytest.mark.parametrize("first_to_leave", [0, 1])
def test_pauses_of_two_threads_may_overlap_in_any_way(first_to_leave):
    """Each thread comes in while the other is inside; then one leaves, and then the
    other.
    """
    inside, leave = (
        [threading.Event() for _ in range(2)],
        [threading.Event() for _ in range(2)],
    )

    def pause(i):
        with collector_paused():
            inside[i].set()
            leave[i].wait()

    threads = [threading.Thread(target=pause, args=(i,)) for i in range(2)]
    for i, thread in enumerate(threads):
        thread.start()
        inside[i].wait()
    for i in (first_to_leave, 1 - first_to_leave):
        leave[i].set()
        threads[i].join()
    assert gc.isenabled()

"""The processes and threads of a grader end with an exception, whatever the main thread
is doing.
"""

import signal
import threading

import pytest

from minipipe.coursework.running import Running


class Stopped(Exception):
    """Raised by the handler of a signal."""


@pytest.fixture
def raising():
    """Let a signal raise ``Stopped`` in the main thread."""

    def stop(number, frame):
        raise Stopped

    before = signal.signal(signal.SIGUSR1, stop)
    yield
    signal.signal(signal.SIGUSR1, before)


@pytest.mark.skipif(not hasattr(signal, "SIGUSR1"), reason="needs signals of POSIX")
def test_a_signal_that_does_not_wake_the_main_thread_ends_all_processes(raising):
    """The story: a class was graded on after SIGHUP, which had come just before the
    main thread waited. Here another thread receives it.
    """
    ended = {number: threading.Event() for number in range(3)}

    def grade(number, running):
        running.add(number)
        if number == 1:
            signal.raise_signal(signal.SIGUSR1)
        assert ended[number].wait(60)
        running.remove(number)

    running = Running(lambda number: ended[number].set(), workers=2)
    with pytest.raises(Stopped), running:
        running.map(lambda number: grade(number, running), range(3))
    assert ended[0].is_set() and ended[1].is_set()
    assert not ended[2].is_set()  # it had not begun


def test_results_have_the_order_of_the_items_and_an_exception_is_raised():
    with Running(print, workers=2) as running:
        assert running.map(divmod, range(5), range(1, 6)) == [
            divmod(a, a + 1) for a in range(5)
        ]
    with pytest.raises(ZeroDivisionError), Running(print) as running:
        running.map(divmod, [1, 1, 1], [1, 0, 1])


def test_no_worker_is_not_taken_for_the_usual_number():
    with pytest.raises(ValueError, match="greater than 0"):
        Running(print, workers=0)

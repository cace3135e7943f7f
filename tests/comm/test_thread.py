"""Ranks that are threads."""

import gc
import re
import sys
import threading

import numpy as np
import pytest
from threadpoolctl import threadpool_info

from minipipe import Tensor, init_process_group, no_grad, spawn
from minipipe.core.comm.switchboard import Switchboard
from minipipe.errors import MessageError, RankError


def test_results_come_in_rank_order():
    assert spawn(lambda group: (group.rank, group.size), 4) == [
        (0, 4),
        (1, 4),
        (2, 4),
        (3, 4),
    ]


@pytest.mark.parametrize("take_turns", [False, True])
def test_an_exception_ends_all_ranks_and_names_its_own(take_turns):
    def fail_on_2(group):
        if group.rank == 2:
            raise KeyError("lost")
        group.recv(2)

    with pytest.raises(KeyError, match="lost") as caught:
        spawn(fail_on_2, 4, take_turns=take_turns)
    assert caught.value.__notes__ == ["raised on rank 2 of 4 (a thread)"]


def test_sys_exit_is_not_swallowed_by_its_thread():
    def leave(group):
        if group.rank == 1:
            sys.exit(5)
        group.barrier()

    with pytest.raises(SystemExit) as caught:
        spawn(leave, 3)
    assert caught.value.code == 5


def test_except_exception_does_not_keep_a_cancelled_rank_alive():
    ended = []

    def stubborn(group):
        if group.rank == 0:
            raise ValueError("first")
        while True:
            try:
                group.recv(0)
            except Exception:
                ended.append("swallowed")

    with pytest.raises(ValueError, match="first"):
        spawn(stubborn, 2)
    assert ended == []


def test_a_sender_is_cancelled_too():
    def send_for_ever(group):
        if group.rank == 0:
            raise ValueError("first")
        while True:
            group.isend(np.zeros(1), 0)

    with pytest.raises(ValueError, match="first"):
        spawn(send_for_ever, 2)
    assert not [
        thread for thread in threading.enumerate() if thread.name.startswith("rank")
    ]


@pytest.mark.parametrize("take_turns", [False, True])
def test_a_deadlock_is_noticed_at_once_and_says_who_waits_for_whom(take_turns):
    with pytest.raises(MessageError) as caught:
        spawn(
            lambda group: group.recv((group.rank + 1) % 3, tag=8),
            3,
            timeout=100,
            take_turns=take_turns,
        )
    assert caught.value.code == "deadlock"
    for rank in range(3):
        assert (
            f"rank {rank} waits for a message with tag 8 from rank {(rank + 1) % 3}"
            in str(caught.value)
        )


def test_waiting_for_a_rank_that_has_returned_is_a_deadlock():
    with pytest.raises(MessageError, match="rank 1 has returned") as caught:
        spawn(lambda group: group.recv(1) if group.rank == 0 else None, 2, timeout=100)
    assert caught.value.code == "deadlock"


def test_a_wait_ends_after_its_timeout_and_names_what_was_awaited():
    error = error_of_a_rank_that_waits_for_a_busy_one()
    assert error.code == "timeout"
    words = (
        r"Rank 0 has waited 0\.05 s, since \d\d:\d\d:\d\d, for the gradient from rank 1"
    )
    assert re.search(words, str(error))


def error_of_a_rank_that_waits_for_a_busy_one():
    has_waited = threading.Event()

    def wait(group):
        if group.rank == 1:
            has_waited.wait(10)  # busy with something else
            return
        try:
            group.irecv(1, tag=4, what="the gradient").wait(timeout=0.05)
        finally:
            has_waited.set()

    with pytest.raises(MessageError) as caught:
        spawn(wait, 2)
    return caught.value


def test_ranks_do_not_inherit_context_variables():
    def recorded_and_raised(group):
        with np.errstate(divide="ignore"):  # its own setting works
            np.float64(1) / np.float64(0)
        return (Tensor([1.0], requires_grad=True) * 2).requires_grad, np.geterr()[
            "over"
        ]

    with no_grad(), np.errstate(over="raise"):
        assert spawn(recorded_and_raised, 2) == [(True, "warn")] * 2


def test_blas_threads_are_limited_while_it_runs_and_restored_afterwards():
    def limits(group):
        return [
            pool["num_threads"]
            for pool in threadpool_info()
            if pool["user_api"] == "blas"
        ]

    before = limits(None)
    assert before, "this NumPy has no BLAS that threadpoolctl knows"
    for inside in spawn(limits, 2):
        assert set(inside) == {1}
    assert limits(None) == before
    with pytest.raises(ValueError, match="blas_threads is 0"):
        spawn(limits, 2, blas_threads=0)


def test_taking_turns_makes_every_run_take_the_same_course():
    def course(order, group):
        for number in range(3):
            order.append((group.rank, number))
            group.isend(np.array(number), (group.rank + 1) % group.size)
            group.recv((group.rank - 1) % group.size)

    courses = []
    for _ in range(5):
        order = []
        spawn(lambda group, order=order: course(order, group), 4, take_turns=True)
        courses.append(order)
    assert all(order == courses[0] for order in courses)
    # Rank 0 waits for rank 3; rank 1 has its message already and goes on until it waits
    # for the next.
    assert courses[0][:4] == [(0, 0), (1, 0), (1, 1), (2, 0)]


def test_abort_ends_all_ranks_with_its_code():
    def give_up(group):
        if group.rank == 1:
            group.abort(4)
        group.barrier()

    with pytest.raises(SystemExit) as caught:
        spawn(give_up, 3)
    assert caught.value.code == 4


def test_two_groups_may_overlap_in_any_way_and_leave_the_blas_as_it_was():
    """The story: closed in another order than opened, two groups left the process with
    one BLAS thread for ever.
    """

    def threads():
        return {
            pool["num_threads"]
            for pool in threadpool_info()
            if pool["user_api"] == "blas"
        }

    before = threads()
    first, second = init_process_group(), init_process_group(blas_threads=2)
    assert threads() == {2}
    second.close()
    assert threads() == {1}
    third = init_process_group()
    first.close()
    assert threads() == {1}
    third.close()
    assert threads() == before


def test_no_ranks_are_refused():
    with pytest.raises(RankError) as caught:
        spawn(lambda group: None, 0)
    assert caught.value.code == "wrong-number"


def test_a_thread_rank_that_keeps_the_others_waiting_is_named_with_its_line(
    monkeypatch,
):
    """The story: each rank knew its neighbour only, and blamed it."""
    one_has_failed, fail = threading.Event(), Switchboard.fail

    def fail_and_tell(switchboard, rank, error):
        fail(switchboard, rank, error)
        one_has_failed.set()

    def chain(group):
        if group.rank == 2:
            one_has_failed.wait(10)  # the culprit
        else:
            group.recv(group.rank + 1)

    monkeypatch.setattr(Switchboard, "fail", fail_and_tell)
    with pytest.raises(MessageError) as caught:
        # 0.3 is shorter than a busy machine takes to start a thread
        spawn(chain, num_ranks=3, timeout=1.0)
    last = str(caught.value).splitlines()[-1]
    assert last.startswith("Rank 2 is busy in its own code: test_thread.py, line ")
    assert last.endswith("one_has_failed.wait(10)  # the culprit")


def test_a_rank_that_has_given_up_is_not_called_busy(monkeypatch):
    """The story: of two ranks that gave up together, the second blamed the first, which
    waited for a lock to say so.
    """
    second_has_failed, fail = threading.Event(), Switchboard.fail

    def fail_slowly(switchboard, rank, error):
        if rank == 0:
            second_has_failed.wait(10)
        fail(switchboard, rank, error)
        second_has_failed.set()

    def chain(group):
        if group.rank == 2:
            second_has_failed.wait(10)  # the culprit
        else:
            group.recv(group.rank + 1, timeout=0.1 + 0.4 * group.rank)

    monkeypatch.setattr(Switchboard, "fail", fail_slowly)
    with pytest.raises(MessageError) as caught:
        spawn(chain, num_ranks=3)
    assert str(caught.value).startswith("Rank 1 has waited 0.5 s")
    assert (
        str(caught.value)
        .splitlines()[-1]
        .startswith("Rank 2 is busy in its own code: test_thread.py, line ")
    )


def test_no_garbage_is_collected_while_the_frames_of_all_threads_are_read(monkeypatch):
    """The story: a rank's first wait hung for ever in a test run, inside of CPython
    3.11.7 (python/cpython#106883).
    """
    found, frames = [], sys._current_frames
    monkeypatch.setattr(
        sys, "_current_frames", lambda: found.append(gc.isenabled()) or frames()
    )
    spawn(lambda group: group.barrier(), 2)
    assert found == []  # nor are they read by a rank that keeps to its thread
    assert "has waited" in str(error_of_a_rank_that_waits_for_a_busy_one())
    assert found and not any(found) and gc.isenabled()

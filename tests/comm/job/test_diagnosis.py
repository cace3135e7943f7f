"""Who is blamed: never a rank that waits for another, unless all of them wait."""

import os
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from minipipe.comm.job.diagnosis import diagnosis, is_debugged, state_of
from minipipe.comm.job.reports import RankReport, report_of
from minipipe.core.comm.watch import Deadline, RankActivity


def waiting(rank, peer, seconds):
    return RankReport(
        rank,
        100 + rank,
        "here",
        f"{rank}F0, step 1",
        f"a message from rank {peer}",
        peer,
        seconds,
    )


def last_line(reports, **roles):
    return diagnosis(
        reports, {int(rank[1:]): role for rank, role in roles.items()}
    ).splitlines()[-1]


@st.composite
def waits(draw, least=2, most=20):
    """Ranks that all wait for another one."""
    n = draw(st.integers(least, most))
    peers = [
        draw(st.integers(0, n - 1).filter(lambda peer, rank=rank: peer != rank))
        for rank in range(n)
    ]
    seconds = draw(st.permutations([10.0 + rank for rank in range(n)]))
    return [waiting(rank, peers[rank], seconds[rank]) for rank in range(n)]


@given(waits(), st.data())
def test_whoever_does_not_answer_is_blamed_alone(reports, data):
    """The story: with rank 2 or 3 silent, 48 of 48 runs blamed rank 1, the neighbour of
    the lowest rank that waited.
    """
    silent = data.draw(
        st.sets(st.sampled_from(range(len(reports))), min_size=1, max_size=3)
    )
    reports = [
        replace(r, is_silent=True, place="stopped by a signal")
        if r.rank in silent
        else r
        for r in reports
    ]
    ranks = ", ".join(map(str, sorted(silent)))
    several = len(silent) > 1
    expected = (
        f"Rank{'s' * several} {ranks} {'do' if several else 'does'} not answer: "
        "stopped by a signal."
    )
    assert last_line(reports) == expected


@given(waits(), st.data())
def test_a_rank_that_is_busy_is_blamed_with_its_line(reports, data):
    busy = data.draw(st.integers(0, len(reports) - 1))
    reports[busy] = RankReport(busy, 1, "here", "", place="train.py, line 7, in load")
    *_, hint, last = diagnosis(reports, {}).splitlines()
    assert last == f"Rank {busy} is busy in its own code: train.py, line 7, in load"
    assert "timeout= or MINIPIPE_TIMEOUT" in hint


def test_both_ranks_are_called_as_the_program_calls_them_and_the_first_round_of_a_sum_is_blamed():
    ahead = replace(waiting(0, 1, 9.0), round=2)
    words = last_line(
        [ahead, replace(waiting(1, 0, 8.0), round=1)],
        _0="replica 0, stage 0",
        _1="replica 1, stage 0",
    )
    assert words.startswith(
        "Rank 1 (replica 1, stage 0) has waited longest, for a message from rank "
        "0 (replica 0, "
    )


@pytest.mark.parametrize(
    ("place", "works"),
    [
        ("stopped by a signal", False),
        (state_of(os.getpid()), True),
        ("", False),
    ],
)
def test_more_time_is_offered_to_a_rank_that_works_and_to_no_other(place, works):
    """The story: a rank that read a large file was ended, and nothing said how to allow
    for that.
    """
    silent = RankReport(2, 72, "here", place=place, is_silent=True)
    assert (
        "MINIPIPE_TIMEOUT"
        in diagnosis([waiting(0, 2, 9.0), waiting(1, 0, 8.0), silent], {})
    ) == works
    assert "MINIPIPE_TIMEOUT" not in diagnosis(
        [waiting(0, 1, 9.0), waiting(1, 0, 8.0)], {}
    )


@given(waits())
def test_where_all_wait_the_longest_wait_of_a_circle_is_blamed(reports):
    """A message is lost between two ranks of a circle; ranks outside of it wait for its
    members only.
    """
    named = int(last_line(reports).split()[1])
    rank, circle = reports[named].peer, {named}
    while rank != named:  # ends: a rank that is named lies on a circle
        assert rank not in circle
        circle.add(rank)
        rank = reports[rank].peer
    assert reports[named].seconds == max(reports[r].seconds for r in circle)
    assert f"for a message from rank {reports[named].peer}" in last_line(reports)


@given(waits(), st.data())
def test_a_message_is_missing_that_its_sender_has_passed_however_short_the_wait(
    reports, data
):
    """The story: in a circle the longest wait was often for a rank that waited itself
    for the lost message.
    """
    victim = data.draw(st.sampled_from(reports))
    for report in reports:
        report.step, report.position, report.sent_at = (
            3,
            data.draw(st.integers(0, 9)),
            9,
        )
    victim.sent_at = data.draw(st.integers(0, 8))
    reports[victim.peer].position = data.draw(st.integers(victim.sent_at + 1, 9))
    expected = (
        f"Rank {victim.rank} is blocked on a message from rank {victim.peer}, which "
        "was never sent"
    )
    assert last_line(reports).startswith(expected)
    reports[victim.peer].program = "another pipeline's, whose steps are counted apart"
    assert "is blocked on" not in last_line(reports)


@given(waits(17, 40), st.data())
def test_a_table_of_many_ranks_fits_a_screen_and_shows_the_culprit(reports, data):
    silent = data.draw(st.integers(0, len(reports) - 1))
    reports[silent] = replace(reports[silent], is_silent=True)
    lines = diagnosis(reports, {}).splitlines()
    assert len(lines) <= 19
    assert any(
        line.split()[0] == str(silent) and line.endswith("does not answer")
        for line in lines
    )
    assert f"and {len(reports) - 16} more ranks" in lines[-2]


def test_a_message_with_another_tag_is_shown():
    reports = [
        replace(waiting(0, 1, 9.0), unread=["a message with tag 5 from rank 1"]),
        waiting(1, 0, 8.0),
    ]
    assert last_line(reports).endswith(
        "Received instead: a message with tag 5 from rank 1."
    )


def test_a_debugger_is_noticed_whether_it_answers_or_not():
    assert not is_debugged(
        [
            waiting(0, 1, 1.0),
            RankReport(1, 1, "here", is_silent=True, place="stopped by a signal"),
        ]
    )
    assert is_debugged([waiting(0, 1, 1.0), RankReport(1, 1, "here", is_debugged=True)])
    assert is_debugged(
        [
            waiting(0, 1, 1.0),
            RankReport(1, 1, "here", is_silent=True, place="stopped by a debugger"),
        ]
    )


def test_a_report_travels_as_it_is_and_tells_where_the_program_is():
    activity = RankActivity()
    activity.begin("1 of 0-3", ["2F0", "2B0"], step=4, sent_at={"2B0": 7}.get)
    activity.position += 1
    with activity.waiting(Deadline(9.0), 3, lambda: "the gradient"):
        report = report_of(activity, rank=2)
    assert RankReport.from_bytes(report.to_bytes()) == report
    assert (report.action, report.awaited, report.peer) == (
        "2B0, step 4",
        "the gradient",
        3,
    )
    assert (report.step, report.position, report.sent_at) == (4, 1, 7)
    assert (
        "test_diagnosis.py" in report.place
        and "report = report_of(activity, rank=2)" in report.place
    )
    activity.position += 1
    assert (
        report_of(activity, rank=2).action == "after step 4"
        and not report_of(activity, rank=2).awaited
    )

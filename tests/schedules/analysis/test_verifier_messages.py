"""What the verifier says: the cause first, the cell marked, and every rank of a
cycle.
"""

import pytest

from minipipe import Schedule, schedules
from minipipe.core.schedules.action import Action
from minipipe.core.schedules.analysis.lowering import lower
from minipipe.core.schedules.analysis.verifier import verify
from minipipe.errors import ScheduleError
from minipipe.schedules import schedule_of_text
from minipipe.schedules.simulation.simulator import simulate
from tests.refusals import code_of
from tests.schedules.analysis.verdicts import B, F, changed, refusal
from tests.strategies import table


def test_a_deadlock_names_the_cycle_of_ranks_and_the_grid_marks_the_step():
    # Rank 0 wants the gradient of microbatch 0 before it sends microbatch 1; rank 1
    # wants 1 before 0.
    error = refusal(schedule_of_text("0F0 0B0 0F1 0B1\n1F1 1B1 1F0 1B0"))
    (problem,) = error.problems
    assert (problem.code, problem.rank, problem.step) == ("deadlock", 0, 1)
    assert problem.message == (
        "These ranks wait for each other in a cycle: "
        "rank 0 cannot run 0B0 (position 1) before 1B0, which rank 1 runs later; "
        "rank 1 cannot run 1F1 (position 0) before 0F1, which rank 0 runs later."
    )
    assert str(error) == (
        f"[deadlock] {problem.message}\n\nrank 0:  0F0  >0B0<  0F1   0B1\nrank "
        "1: >1F1<  1B1   1F0   1B0"
    )


def test_a_deadlock_is_blamed_on_the_cycle_and_not_on_a_rank_that_only_waits_for_it():
    # Rank 0 waits too, for 1B0; but it is ranks 1 and 2 that wait for each other.
    error = refusal(
        schedule_of_text("0F0 0F1 0B0 0B1\n1F0 1B0 1F1 1B1\n2F1 2B1 2F0 2B0")
    )
    (problem,) = error.problems
    assert (problem.code, problem.rank, problem.step) == ("deadlock", 1, 1)
    assert (
        "rank 1 cannot run 1B0" in problem.message
        and "rank 2 cannot run 2F1" in problem.message
    )
    assert "rank 0" not in problem.message


def test_a_rank_that_waits_for_itself_is_named_although_another_waits_for_it():
    error = refusal(schedule_of_text("0F0 0B0\n1B0 1F0"))
    (problem,) = error.problems
    assert (problem.code, problem.rank, problem.step) == ("order", 1, 0)
    assert (
        problem.message
        == "Rank 1, position 0: 1B0 comes before 1F0 (position 1), which it needs."
    )
    assert "rank 1: >1B0<  1F0" in str(error)


def test_a_wait_for_a_split_backward_names_i():
    # What rank 0 lacks is the gradient that 1I0 sends; there is no 1B0 in this
    # schedule.
    error = refusal(
        schedule_of_text("0F0 0I0 0F1 0I1 0W0 0W1\n1F1 1I1 1F0 1I0 1W0 1W1")
    )
    assert (
        "rank 0 cannot run 0I0 (position 1) before 1I0, which rank 1 runs later"
        in str(error)
    )


def test_all_problems_are_listed_and_the_message_counts_them():
    error = refusal(schedule_of_text("0F0 0F0 0B0 0B0 0B0"))
    assert [(p.code, p.rank, p.step) for p in error.problems] == [
        ("duplicate", 0, 1),
        ("duplicate", 0, 3),
        ("duplicate", 0, 4),
    ]
    assert "(2 more problems in .problems)" in str(error).splitlines()[0]
    assert refusal(schedule_of_text("0F0 0F0 0B0")).code == "duplicate"
    assert "more problem" not in str(refusal(schedule_of_text("0F0 0F0 0B0")))


def test_the_grid_of_a_long_schedule_shows_the_neighbourhood_of_the_marked_step():
    error = refusal(
        changed(
            schedules.gpipe(2, 8),
            lambda programs: programs[0].insert(12, Action(0, B, 0)),
        )
    )
    assert str(error).splitlines()[2:] == [
        "rank 0: …  0F7   0B0   0B1   0B2   0B3  >0B0<  0B4   0B5   0B6   0B7",
        "rank 1: …  1F7   1B0   1B1   1B2   1B3   1B4   1B5   1B6   1B7",
    ]
    error = refusal(
        changed(
            schedules.gpipe(2, 8),
            lambda programs: programs[0].insert(1, Action(0, F, 0)),
        )
    )
    assert str(error).splitlines()[2:] == [
        "rank 0:  0F0  >0F0<  0F1   0F2   0F3   0F4   0F5  …",
        "rank 1:  1F0   1F1   1F2   1F3   1F4   1F5   1F6  …",
    ]


def test_the_grid_leaves_out_nothing_without_saying_so():
    def grid(text):
        return str(refusal(schedule_of_text(text))).splitlines()[2]

    assert (
        grid("0F0 0F0 0F1 0F2 0B0 0B1 0B2")
        == "rank 0:  0F0  >0F0<  0F1   0F2   0B0   0B1   0B2"
    )
    assert (
        grid("0F0 0F0 0F1 0F2 0B0 0B1 0B2 0F3 0B3")
        == "rank 0:  0F0  >0F0<  0F1   0F2   0B0   0B1   0B2  …"
    )
    assert (
        grid("0F0 0F1 0F2 0B0 0B1 0B2 0F0")
        == "rank 0: …  0F1   0F2   0B0   0B1   0B2  >0F0<"
    )
    assert (
        grid("0F0 0F1 0F2 0B0 0B1 0F0 0B2")
        == "rank 0:  0F0   0F1   0F2   0B0   0B1  >0F0<  0B2"
    )


def test_what_is_missing_stands_nowhere_so_its_row_is_shown_unmarked():
    error = refusal(schedule_of_text("0F0 0F1 0B0"))
    (problem,) = error.problems
    assert (problem.code, problem.rank, problem.step) == ("missing", 0, None)
    assert (
        str(error) == "[missing] 0B1 is missing on rank 0.\n\nrank 0:  0F0   0F1   0B0"
    )


@pytest.mark.parametrize(
    ("table", "code", "message"),
    [
        (
            Schedule(
                "mine", ((0, 1),), 3, [["0F0", "0B0", "0F1"], ["0F2", "0B2", "0B1"]]
            ),
            "placement",
            (
                "Rank 1, position 2: 0B1 is on another replica than its forward; 0F1 "
                "is on rank 0."
            ),
        ),
        (
            Schedule.from_text("0F0.1 0F0.0 0B0.1 0B0.0"),
            "order",
            "Rank 0, position 0: 0F0.1 comes before 0F0.0 (position 1); forwards "
            "of a sequence run from its first "
            "slice to its last, each of which needs the keys and values before it.",
        ),
        (
            Schedule("mine", (0,), 1, [["0F0", "0B0"]], overlaps=["0F0"]),
            "overlap",
            "Rank 0, position 0: 0F0 is overlapped with 0B0, which needs it; "
            "expected a B or I of another microbatch "
            "after it.",
        ),
        (
            Schedule.from_text("0F0 0F1 0B0 0U1 0B1"),
            "order",
            (
                "Rank 0, position 3: 0U1 comes before 0B1 (position 4), whose "
                "gradient it applies."
            ),
        ),
        (
            Schedule.from_text("0F0 0B0 0R0"),
            "order",
            "Rank 0, position 1: 0B0 comes before 0R0 (position 2), which it needs.",
        ),
        (
            Schedule.from_text("0B0 0F0 0O0 0L0"),
            "order",
            "Rank 0, position 0: 0B0 comes before 0F0 (position 1), which it needs.",
        ),
        (
            Schedule.from_text("0F0 0O0 0B0"),
            "missing",
            "Rank 0, position 1: 0O0 comes without 0L0; expected both, or neither.",
        ),
        (
            Schedule.from_text("0F0 0B0 0W0"),
            "unexpected",
            "Rank 0, position 2: 0W0 comes in addition to 0B0, which includes I "
            "and W. Zero-bubble papers write B for "
            "the half that minipipe calls I.",
        ),
    ],
)
def test_the_first_problem_of_a_mistake_in_a_row(table, code, message):
    problem = refusal(table).problems[0]
    assert (problem.code, problem.message) == (code, message)


def test_all_that_an_action_comes_before_is_listed():
    problems = refusal(Schedule.from_text("0B0 0F0 0O0 0L0")).problems
    assert [
        problem.message.partition("comes before ")[2][:3] for problem in problems
    ] == ["0F0", "0O0", "0L0"]


def test_a_text_that_names_many_stages_and_microbatches_but_few_of_their_pairs_is_refused_soon():
    """26 kB of text took 40 s and 1.3 GB: one problem for each of four million
    pairs.
    """
    n = 2000
    text = " ".join([*(f"{i}F0" for i in range(n)), *(f"0F{i}" for i in range(1, n))])
    with pytest.raises(ScheduleError) as caught:
        verify(schedule_of_text(text))
    assert caught.value.code == "missing" and len(caught.value.problems) == 1000
    assert "1F1 is missing on rank 0." in str(caught.value)
    for text in (
        "0F0 0B0 " * n,
        " ".join([*["0F0 0B0"] * n, "\n1F0 1B0"]),
        "0F0 0B0 0W0 " * n,
    ):
        # five million equal actions were five million problems
        with pytest.raises(ScheduleError) as caught:
            verify(schedule_of_text(text))
        assert 1000 <= len(caught.value.problems) <= 3000
    absurd = table("absurd", (0,), 10**12, [["0F0"]])
    assert (
        code_of(verify, absurd)
        == code_of(simulate, absurd)
        == code_of(lower, absurd)
        == "missing"
    )


def test_what_is_missing_is_told_by_microbatch_and_a_repetition_by_its_first_place():
    error = refusal(table("s", (0, 1), 2, [["0F0", "0B0"], ["1F1", "1B1"]]))
    assert [problem.message[:3] for problem in error.problems] == [
        "1F0",
        "1B0",
        "0F1",
        "0B1",
    ]
    error = refusal(schedule_of_text("0F0 0F0 0F0 0B0"))
    assert [
        "duplicate of position 0" in problem.message for problem in error.problems
    ] == [True, True]


def test_an_order_that_cannot_be_is_told_before_the_memory_it_takes():
    assert refusal(schedule_of_text("0F0 0F1 0F2 0W0 0I0 0B1 0B2"), 1).code == "order"

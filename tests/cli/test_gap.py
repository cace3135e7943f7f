"""How good a schedule is, as commands tell it."""

import json

import pytest


def test_simulate_says_how_far_from_the_best_a_schedule_is_and_why(ask):
    lines = ask("simulate", "1f1b")[1].splitlines()
    assert lines[-4:] == [
        (
            "longest span of a rank: at most 22.2 % above the best possible for this "
            "memory"
        ),
        "makespan: at most 22.2 % above the best possible for this memory",
        "with memory 4 per rank, whether backwards are split or not, no makespan "
        "is below 27: "
        "Rank 3 gets its first input at 3 and computes for 24.",
        "makespan 33 units",
    ]
    lines = ask("simulate", "v-half")[1].splitlines()
    assert lines[-4:-2] == [
        "longest span of a rank: proved to be the best possible for this memory",
        "makespan: proved to be the best possible for this memory",
    ]
    assert "with memory 6 per rank no makespan is below 53" in lines[-2]


def test_a_limit_of_the_costs_is_the_memory_that_is_meant(ask):
    costs = "activation=10,weight_activation=5"
    data = json.loads(ask("simulate", "zb-h1", "--json", "--costs", costs)[1])
    assert (data["bound"], data["gap"], data["bound_by"]) == (27, 0, "work")
    assert (data["span_bound"], data["span_gap"]) == (27, 0)
    assert (
        data["bound_reason"] == "Rank 3 gets its first input at 3 and computes for 24."
    )


@pytest.mark.parametrize(
    "options", [["forward-only"], ["zb-h1", "--steps", 2], ["zb-h1", "--freeze", "0"]]
)
def test_simulate_says_nothing_where_there_is_no_bound(ask, options):
    assert "best possible" not in ask("simulate", *options)[1]
    data = json.loads(ask("simulate", *options, "--json")[1])
    assert {
        data[key]
        for key in (
            "bound",
            "gap",
            "bound_by",
            "bound_reason",
            "span_bound",
            "span_gap",
        )
    } == {None}


def test_schedules_has_the_gap_of_each(ask):
    rows = {row["schedule"]: row for row in json.loads(ask("schedules", "--json")[1])}
    assert [rows[name]["gap"] for name in ("zb-h1", "v-min", "v-half", "zb-v")] == [
        0,
        0,
        0,
        0,
    ]
    assert (rows["1f1b"]["bound"], rows["sequential"]["bound"]) == (27, 72)
    assert rows["forward-only"]["bound"] is rows["forward-only"]["gap"] is None
    assert "zb-h1             1    27    11.1   0.0     4  " in ask("schedules")[1]

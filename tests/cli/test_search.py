"""``minipipe search``."""

import json

import pytest

from minipipe.search.finding import find_schedule

QUESTION = ["search", "--ranks", 4, "--microbatches", 8, "--seconds", 0.3]


def test_the_last_line_of_json_has_the_figures(ask):
    status, printed, _ = ask(*QUESTION, "--memory-limit", 5, "--json")
    found = json.loads(printed.splitlines()[-1])
    assert status == 0
    assert (
        found["makespan"] >= found["bound"]
        and found["gap"] >= 0
        and max(found["peak_memory"]) <= 5
    )
    assert {"span_bubble_rate", "seconds", "bound_by", "found_by"} <= set(found)
    assert found["schedule"].startswith("0F0,")


@pytest.mark.parametrize("placement, stages", [("straight", 4), ("v", 8)])
@pytest.mark.parametrize("ending", ["csv", "txt"])
def test_the_schedule_it_writes_is_legal(ask, tmp_path, placement, stages, ending):
    file = tmp_path / f"mine.{ending}"
    status, printed, _ = ask(*QUESTION, "--placement", placement, "-o", file)
    assert status == 0 and f"written to {file}" in printed
    status, printed, _ = ask("check", file)
    assert status == 0 and f"{stages} stages" in printed


def test_the_certificate_it_writes_is_found_right(ask, tmp_path):
    file = tmp_path / "found.json"
    assert ask(*QUESTION, "--memory-limit", 7, "-o", file)[0] == 0
    status, printed, _ = ask("check", "--certificate", file)
    assert status == 0 and "proved here by" in printed


def test_it_says_whether_what_it_found_is_optimal(ask):
    _, printed, _ = ask(*QUESTION, "--memory-limit", 7)
    assert "longest span of a rank 24 units" in printed
    assert printed.endswith("optimal: equal to the bound\n")


@pytest.mark.parametrize(
    "options, complaint",
    [
        (
            ["--memory-limit", 0.5],
            "memory_limit is 0.5 on rank 0, but one microbatch alone takes 1 there",
        ),
        (["--seconds", 0], "--seconds is 0.0; expected seconds, above 0"),
        (["-o", "mine.svg"], "'mine.svg' ends in .svg; expected .csv, .txt or .json"),
        (["--costs", "F=1:2"], "forward has 2 values for 4 stages"),
    ],
)
def test_a_wrong_question_is_refused(ask, options, complaint):
    others = QUESTION[:-2] if "--seconds" in options else QUESTION
    status, _, complained = ask(*others, *options)
    assert status == 2 and complaint in complained


def test_simulate_quotes_the_gallery_where_no_formula_reaches_the_optimum(
    ask, tmp_path
):
    """With memory for three microbatches the formulas prove 30; the optimum is 31."""
    file = tmp_path / "found.csv"
    ask(*QUESTION, "--memory-limit", 3, "--objective", "makespan", "-o", file)
    _, printed, _ = ask("simulate", file, "--json")
    found = json.loads(printed)
    assert (found["bound"], found["bound_by"]) == (31, "gallery")
    assert (
        "Recorded in the gallery, where exact search proved it"
        in ask("simulate", file)[1]
    )


@pytest.mark.parametrize(
    "options, limits",
    [
        ([], (60, 104166)),  # 10 million actions of 96 each
        (["--seconds", 5], (5, None)),
        (["--evaluations", 70], (None, 70)),
        (["--evaluations", 70, "--seconds", 5], (5, 70)),
    ],
)
def test_without_a_limit_a_clock_ends_a_counted_search(
    ask, monkeypatch, options, limits
):
    """On a loaded machine it took minutes; a search that is told how much to try, or
    how long, does just that.
    """
    asked = []

    def find(workload, objective, seconds, seed, exact, evaluations, watch):
        asked.append((seconds, evaluations))
        return find_schedule(workload, objective, evaluations=1)

    monkeypatch.setattr("minipipe.cli.search.find_schedule", find)
    assert ask("search", *QUESTION[1:5], *options)[0] == 0
    assert asked == [limits]


def test_where_the_clock_ended_a_search_it_says_so(ask):
    _, printed, _ = ask(
        "search",
        "--ranks",
        4,
        "--microbatches",
        64,
        "--memory-limit",
        3,
        "--seconds",
        1e-9,
    )
    assert "evaluation 1 (the clock ended the search after 1), in" in printed


PUZZLE = ["search", "--placement", "0,1,2,0,1,2", "--microbatches", 4]
PUZZLE += ["--costs", "F=1,I=1,W=0", "--memory-limit", 6, "--objective", "makespan"]


@pytest.mark.slow
def test_the_open_puzzle_is_solved_within_its_bound(ask, tmp_path):
    """Its par is 22, and "a hand-crafted 21 exists"; 20 is the bound."""
    file = tmp_path / "found.json"
    status, printed, _ = ask(*PUZZLE, "--seconds", 120, "-o", file)
    assert status == 0 and printed.startswith("found, 3 ranks, 6 stages")
    assert "makespan 20 units" in printed and "optimal: equal to" in printed
    assert "peak memory by rank 6, 6" in printed
    assert ask("check", "--certificate", file)[0] == 0


@pytest.mark.parametrize(
    ("options", "complaint"),
    [
        (["--placement", "w"], "'w'; expected straight, v, looped or any, or a rank"),
        (["--placement", "0,x"], "'0,x'; expected straight"),
        (["--placement", "0,2"], "'0,2'; expected ranks from 0 on, each with a"),
        (["--placement", "0,-1"], "expected ranks from 0 on"),
        (["--placement", "0,1", "--ranks", 3], "--ranks is 3, but --placement has 2"),
        (["--placement", "any"], "--placement any also weighs the layers of stages"),
        (["--offload"], "--offload also weighs the layers"),
        (["--recompute", "any"], "--recompute also weighs the layers"),
        (["--weight-copies", 2], "--weight-copies also weighs the layers"),
        (["--layers", 8, "--weight-copies", -1], "--weight-copies is -1.0; expected"),
        (["--layers", 8, "--exact"], "--exact has no model of --layers"),
        (["--layers", 5, "--costs", "F=1:2:1"], "3 values for 5 layers; expected one"),
        (["--layers", 3], "The placement has 4 stages, and there are 3 layers"),
        (["--layers", 3, "--placement", "any"], "there are 3 layers"),
        (["--layers", 4, "--offload"], "offload needs a memory_limit"),
        # not after the search, whose result would be lost
        (["--layers", 4, "--offload", "-o", "x.csv"], ".csv has no O and L"),
        (["--layers", 4, "--offload", "-o", "x.json"], ".json has no O and L"),
    ],
)
def test_a_placement_that_is_none_is_refused(ask, options, complaint):
    status, _, complained = ask("search", "--evaluations", 3, *options)
    assert status == 2 and complaint in complained


def test_layers_placement_and_offload_are_weighed_together(ask, tmp_path):
    question = ["search", "--ranks", 2, "--microbatches", 4, "--layers", 5]
    question += ["--costs", "F=1:1:1:1:2,copy_bandwidth=4", "--memory-limit", 5]
    question += ["--placement", "any", "--evaluations", 300]
    status, printed, _ = ask(*question, "--json")
    found = json.loads(printed.splitlines()[-1])
    assert status == 0 and sum(found["sizes"]) == 5
    # 4 for two stages; 4 each for the four stages of a V and of the looped placement
    assert found["choices"] == 12 and found["is_complete"]
    assert found["bound"] <= found["span_bubble_rate"] + found["value"]
    file = tmp_path / "found.txt"
    status, printed, _ = ask(*question, "--offload", "-o", file)
    assert status == 0 and "layers by stage" in printed and "24 choices" in printed
    assert ask("check", file)[0] == 0


def test_recomputation_of_some_stages_and_the_memory_of_weights_are_weighed(ask):
    question = ["search", "--microbatches", 8, "--layers", 12, "--memory-limit", 40]
    question += ["--costs", "activation=4,message_size=0.5,weights=1"]
    question += ["--evaluations", 500]
    values = {}
    for stages in ("none", "uniform", "any"):
        status, printed, _ = ask(*question, "--recompute", stages, "--json")
        found = json.loads(printed.splitlines()[-1])
        values[stages] = found["value"]
        pairs = zip(found["peak_memory"], found["weight_memory"])
        assert status == 0 and max(map(sum, pairs)) <= 40
    assert values["any"] < values["uniform"] <= values["none"]
    assert found["recomputed"] == [True, True, False, False] and found["gap"] == 0
    more = [*question, "--recompute", "any", "--weight-copies", 1]
    status, printed, _ = ask(*more)
    assert status == 0 and "weights by rank 3, 3, 3, 3, besides" in printed

"""Copies side by side, and how old the weights of schedules without flushes may be,
from the command line.
"""

import json

import pytest

from minipipe import Schedule, schedules


def test_copies_are_those_of_data_parallel(ask):
    for name, copies in (("1f1b", 3), ("chimera", 1), ("pipedream", 2)):
        status, out, _ = ask("show", name, "--replicas", copies, "--format", "rows")
        assert status == 0
        assert (
            Schedule.from_text(out).actions
            == schedules.data_parallel(schedules.build(name, 4, 8), copies).actions
        )


def test_the_sums_of_copies_take_the_time_of_their_costs(ask):
    costs = ["--costs", "gradient_size=6,bandwidth=1"]
    for name, copies, makespan in (
        ("1f1b", 2, 39),
        ("zb-h1", 2, 33),
        ("gpipe", 1, 33),
        ("chimera", 1, 36),
    ):
        status, out, _ = ask("simulate", name, "--replicas", copies, *costs)
        assert status == 0 and out.endswith(f"makespan {makespan} units\n"), name


def test_a_file_has_copies_too_and_sizes_are_those_of_one(ask, tmp_path):
    path = tmp_path / "mine.txt"
    path.write_text("rank 0: 0F0 0F1 0B0 0B1 \n rank 1: 1F0 1F1 1B0 1B1\n")
    status, out, _ = ask(
        "check", path, "--replicas", 2, "--ranks", 2, "--microbatches", 2
    )
    assert status == 0 and "4 ranks, 2 stages, 4 microbatches" in out
    status, out, _ = ask("show", path, "gpipe", "--replicas", 2)
    assert (
        status == 0 and out.count("makespan 9 units") == 2 and out.count("rank 3 ") == 2
    )


def test_copies_drawn_above_each_other_share_the_scale_of_a_ranks_work(ask):
    """The story: two copies of zb-v were drawn with 31 units below the 21 of two copies
    of 1f1b.
    """
    _, out, _ = ask(
        "show",
        "1f1b",
        "zb-v",
        "--replicas",
        2,
        "--ranks",
        2,
        "--microbatches",
        4,
        "--width",
        80,
    )
    assert "1f1b, 2 replicas, predicted: makespan 15 units" in out
    assert "zb-v, 2 replicas, predicted: makespan 12.5 units" in out


@pytest.mark.parametrize(
    ("name", "versions", "drift", "staleness"),
    [
        ("pipedream", [4, 3, 2, 1], 3, 3),
        ("2bw", [2, 2, 2, 1], 1, 1),
        ("paci", [3, 2, 2, 1], 2, 2),
    ],
)
def test_check_says_how_old_weights_are_without_flushes(
    name, versions, drift, staleness, ask
):
    question = ["check", name, "--microbatches", 16]
    told = (
        "versions of weights by rank {}, {}, {}, {} (without copies: drift {}); "
        "staleness {}\n"
    )
    assert ask(*question)[1].endswith(told.format(*versions, drift, staleness))
    found = json.loads(ask(*question, "--json")[1])
    assert (found["versions"], found["drift"], found["staleness"]) == (
        versions,
        drift,
        staleness,
    )
    assert (
        ask(*question, "--max-versions", versions[0], "--max-staleness", staleness)[0]
        == 0
    )
    for name, limit in (("versions", versions[0]), ("staleness", staleness)):
        status, _, err = ask(*question, f"--max-{name}", limit - 1)
        assert status == 1 and "[staleness] Rank 0, position" in err


def test_check_is_silent_about_the_age_of_weights_with_flushes(ask):
    assert (
        "versions"
        not in ask("check", "1f1b", "--max-versions", 1, "--max-staleness", 0)[1]
    )


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (
            ["check", "1f1b", "--replicas", 0],
            "--replicas is 0; expected a whole number, at least 1",
        ),
        (
            ["simulate", "forward-only", "--replicas", 2],
            "has no backward, and so no gradients to sum",
        ),
        (["show", "1f1b", "--replicas", 10**8], "the limits are 4096 stages"),
        (
            ["check", "2bw", "--max-versions", 0],
            "--max-versions is 0; expected a whole number, at least 1",
        ),
        (
            ["check", "2bw", "--max-staleness", -1],
            "--max-staleness is -1; expected a whole number, at least 0",
        ),
    ],
)
def test_wrong_numbers_of_copies_or_limits_are_refused_as_usage(arguments, words, ask):
    status, out, err = ask(*arguments)
    assert (status, out) == (2, "") and words in err


def test_a_program_has_no_copies(ask, tmp_path):
    path = tmp_path / "program.csv"
    assert ask("show", "1f1b", "--messages", "--format", "rows", "-o", path)[0] == 0
    status, _, err = ask("check", path, "--replicas", 2)
    assert (
        status == 2
        and (
            "--replicas needs a schedule without messages; remove SEND and RECV "
            f"from {path}"
        )
        in err
    )


@pytest.mark.parametrize(
    ("name", "costs", "peak"),
    [
        ("pipedream", "weights=2", 10),
        ("seq1f1b", "activation=2,keys_values=4", 7),
        ("seq1f1b", "keys_values=4", 4.5),
    ],
)
def test_a_limit_of_memory_is_the_peak_of_the_simulator_for_check_and_step(
    ask, name, costs, peak
):
    """The story: step forgot copies of weights, and both forgot keys and values."""
    _, out, _ = ask("simulate", name, "--costs", costs, "--json")
    assert max(json.loads(out)["peak_memory"]) == peak
    for verb in (["check"], ["step", "--at", "-1"]):
        for limit, expected in ((peak, 0), (peak - 0.1, 1)):
            status, *_ = ask(*verb, name, "--costs", costs, "--memory-limit", limit)
            assert status == expected, (verb, limit)

"""``minipipe paper``: its table, what it leaves out, and costs for other verbs."""

import json

import pytest

from minipipe import Costs
from minipipe.schedules.simulation.paper_scale import Run, costs_of, published_runs

HEAD = ",".join(Run._fields)


def test_it_prints_each_row_with_its_error(ask):
    status, out, err = ask("paper", "megatron-table-1", "--model", "39.1B")
    assert (status, err) == (0, "")
    (row,) = [line.split() for line in out.splitlines() if line.startswith("39.1B")]
    assert row == [
        "39.1B",
        "512",
        "8",
        "2",
        "32",
        "12",
        "1",
        "full",
        "14.61",
        "14.45",
        "136.6",
        "138.0",
        "+1.1",
        "%",
    ]
    assert "error: mean 1.1 %, median 1.1 %, largest 1.1 %" in out
    assert max(map(len, out.splitlines())) <= 100


def test_it_leaves_terms_out(ask):
    options = (
        "paper",
        "megatron-table-1",
        "--model",
        "39.1B",
        "--without",
        "attention",
        "--without",
        "head",
    )
    status, out, _ = ask(*options)
    assert status == 0 and "error without attention, head: mean" in out
    found = json.loads(ask(*options, "--json")[1])
    assert (
        found["without"] == ["attention", "head"]
        and found["error"]["mean"] == -found["rows"][0]["error"] > 0.1
    )


def test_rates_of_other_gpus_take_the_place_of_those_of_an_a100(ask):
    rates = "products=520e12,memory=3.0585e12,node-latency=4e-5,network-latency=0"
    options = ("paper", "megatron-table-1", "--model", "39.1B")
    plain, faster = (
        json.loads(ask(*options, *more, "--json")[1])
        for more in ((), ("--rates", rates))
    )
    assert (
        plain["rates"]["products"] == 260e12 and faster["rates"]["products"] == 520e12
    )
    assert 0.5 < faster["rows"][0]["seconds"] / plain["rows"][0]["seconds"] < 0.6
    same = ",".join(f"{name}={rate!r}" for name, rate in plain["rates"].items())
    assert json.loads(ask(*options, "--rates", same, "--json")[1]) == plain
    out = ask(*options, "--rates", rates)[1]
    assert "error:" not in out and out.split()[-1] == "-" and faster["error"] == {}


def test_its_costs_serve_other_verbs(ask, tmp_path):
    path = tmp_path / "mine.json"
    status, out, _ = ask("paper", "megatron-table-1", "--model", "39.1B", "-o", path)
    assert (status, out) == (0, f"wrote {path}: 2 ranks, 12 microbatches, 2 stages\n")
    expected = costs_of(published_runs("megatron-table-1")[4])
    assert list(Costs.load(path).backward_weight) == expected.backward_weight
    assert (
        ask(
            "simulate", "1f1b", "--ranks", "2", "--microbatches", "12", "--costs", path
        )[0]
        == 0
    )


def test_rows_of_a_file_need_no_published_time(ask, tmp_path):
    path = tmp_path / "mine.csv"
    path.write_text(f"{HEAD}\nmine,small,8,1024,12,2,3,2,12,24,2,full,nothing,\n")
    status, out, _ = ask("paper", path)
    (row,) = [line.split() for line in out.splitlines() if line.startswith("small")]
    assert status == 0 and row[-1] == "-" and "error:" not in out.split("\n\n")[0]


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (
            ["megatron"],
            (
                "There is no table 'megatron'; expected megatron-table-1, "
                "megatron-table-2, korthikanti"
            ),
        ),
        (["no.csv"], "'no.csv' cannot be read: No such file"),
        (
            ["megatron-table-1", "--without", "heat"],
            "--without is 'heat'; expected 'recomputation', 'memory'",
        ),
        (
            ["megatron-table-1", "--rates", "heat=3"],
            "--rates has 'heat=3'; expected a number above 0 for any of",
        ),
        (["megatron-table-1", "--rates", "memory=fast"], "--rates has 'memory=fast'"),
        (["megatron-table-1", "--rates", "memory=0"], "--rates has 'memory=0'"),
        (
            ["megatron-table-1", "--model", "2B"],
            "No row of 'megatron-table-1' has the model '2B'; it has 1.7B, 3.6B",
        ),
        (
            ["megatron-table-1", "-o", "x.csv"],
            "'x.csv' is not a file of costs: its name does not end in .json",
        ),
    ],
)
def test_what_is_wrong_exits_2_and_says_what_would_be_right(arguments, words, ask):
    status, out, err = ask("paper", *arguments)
    assert (status, out) == (2, "") and words in err


def test_a_file_of_another_form_is_named(ask, tmp_path):
    path = tmp_path / "mine.csv"
    path.write_text("a,b\n")
    status, _, err = ask("paper", path)
    assert status == 2 and "mine.csv': The first line is 'a,b'" in err


def test_vocabularies_are_predicted_from_shapes_within_two_percent(ask):
    status, out, err = ask("paper", "vocabulary")
    assert (status, err) == (0, "")
    assert "error of 18 ratios: mean 0.7 %, median 0.6 %, largest 1.9 %" in out
    assert "read second hand" in out and max(map(len, out.splitlines())) <= 80
    last = [line.split() for line in out.splitlines() if line.startswith("32 ")][-1]
    assert last[4:] == ["262144", "21.63", "%", "0.495", "0.497", "+0.4", "%"]


def test_one_model_of_vocabularies_is_shown_and_its_costs_serve_simulate(ask, tmp_path):
    options = ("paper", "vocabulary", "--model", "8/3072/32")
    rows = json.loads(ask(*options, "--json")[1])["rows"]
    assert [row["error"] is None for row in rows] == [True, False, False, False] * 2
    path = tmp_path / "wide.json"
    status, out, _ = ask(*options, "-o", path)
    assert (status, out) == (
        0,
        f"wrote {path}: 8 ranks, 128 microbatches, V=32768\n",
    )
    assert Costs.load(path).forward[-1] == pytest.approx(1 + 6 * 32768 / 4 / 245760)


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (["--without", "head"], "--without does not apply to vocabulary"),
        (["--rates", "memory=1e12"], "--rates does not apply to vocabulary"),
        (["--model", "8B"], "it has 8/3072/32, 16/4096/48, 32/5120/64."),
    ],
)
def test_what_does_not_apply_to_vocabularies_is_refused(options, words, ask):
    status, out, err = ask("paper", "vocabulary", *options)
    assert (status, out) == (2, "") and words in err

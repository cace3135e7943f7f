"""``minipipe sweep``: what it writes is what Python returns, as CSV and as JSON."""

import csv
import io
import json

import pytest

from minipipe import Costs, schedules

ASKED = (
    "--ranks",
    "2,4",
    "--microbatches",
    "4,8",
    "--schedules",
    "1f1b,v-half",
    "--costs",
    "latency=0",
    "F=1:2",
)
ROWS = schedules.sweep(
    [2, 4],
    [4, 8],
    ["1f1b", "v-half"],
    costs={text: Costs.parse(text) for text in ("latency=0", "F=1:2")},
)


def as_text(row):
    return {key: "" if value is None else str(value) for key, value in row.items()}


def test_it_prints_csv(ask):
    status, out, err = ask("sweep", *ASKED)
    assert (status, err) == (0, "") and len(ROWS) == 16
    assert list(csv.DictReader(io.StringIO(out))) == list(map(as_text, ROWS))


def test_by_default_it_has_the_rows_of_the_table(ask):
    assert json.loads(ask("sweep", "--json")[1]) == [
        {"costs": "", **row} for row in schedules.table(4, 8)
    ]


@pytest.mark.parametrize("ending", ["csv", "json"])
def test_the_ending_of_a_file_selects_the_format(ending, ask, tmp_path):
    path = tmp_path / f"sweep.{ending.upper()}"
    assert ask("sweep", *ASKED, "-o", path) == (
        0,
        f"wrote {path}: 16 rows, 4 with an error\n",
        "",
    )
    text = path.read_text()
    assert text == ask("sweep", *ASKED, *(["--json"] if ending == "json" else []))[1]
    answer = json.loads(ask("sweep", *ASKED, "-o", path, "--json")[1])
    assert answer == {"wrote": str(path), "rows": 16, "errors": 4}


def test_a_list_in_a_cell_of_csv_is_json(ask):
    (row,) = csv.DictReader(io.StringIO(ask("sweep", "--schedules", "1f1b")[1]))
    assert json.loads(row["peak_activations"]) == [4, 3, 2, 1]


def test_chunks_and_blocking_sends_reach_the_simulator(ask):
    (row,) = json.loads(
        ask(
            "sweep",
            "--schedules",
            "1f1b",
            "--chunks",
            2,
            "--costs",
            "latency=1",
            "--sends-block",
            "--json",
        )[1]
    )
    expected = schedules.sweep(
        [4], [8], ["1f1b"], [2], {"latency=1": Costs(latency=1, sends_block=True)}
    )
    assert [row] == expected and row["chunks_per_rank"] == 2
    assert (
        expected[0]["makespan"]
        > schedules.sweep([4], [8], ["1f1b"], [2], {"": Costs(latency=1)})[0][
            "makespan"
        ]
    )


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--schedules", "1f2b"], "did you mean 1f1b?"),
        (["--ranks", "0"], "num_ranks is 0; expected a whole number, at least 1"),
        (["-o", "sweep.txt"], "'sweep.txt' ends in .txt; expected .csv or .json"),
        (["-o", "sweep"], "'sweep' has no ending; expected .csv or .json"),
        (
            ["-o", "no/such/folder.csv"],
            "'no/such/folder.csv' cannot be written: No such file",
        ),
        (["--costs", "speed=9"], "'speed=9' is not a cost"),
    ],
)
def test_a_sweep_that_is_wrong_exits_2_and_says_what_would_be_right(
    arguments, words, ask
):
    status, out, err = ask("sweep", *arguments)
    assert (status, out) == (2, "") and words in err


def test_counts_that_are_none_are_a_matter_of_usage(ask, capsys):
    with pytest.raises(SystemExit):
        ask("sweep", "--ranks", "2,x")
    assert (
        "'2,x' is not a list of whole numbers; expected a list such as 4 or 2,4,8"
        in capsys.readouterr().err
    )

"""The first step of a program, found without a word changed in it; and the command."""

import json
import sys

import numpy as np
import pytest

from minipipe import Pipeline, nn, optim
from minipipe.cli.advise_program import program_report, question_about
from minipipe.cli.main import main
from minipipe.errors import ArgumentError, LaunchError
from minipipe.tuning.memory import state_bytes
from tests.launch import ROOT, needs_mpi

PROGRAM = """
import sys
import numpy as np
from minipipe import Pipeline, init_process_group, nn, optim
from beside import WIDTH

assert __name__ == "__main__"
model = nn.Sequential(*(nn.Linear(WIDTH, WIDTH) for _ in range(4)))
x = np.ones((int(sys.argv[1]), WIDTH), np.float32)
with init_process_group() as group:
    pipeline = Pipeline(model, group, loss=nn.MSELoss(), schedule="gpipe", num_microbatches=4, seed=3)
    optimiser = optim.AdamW(pipeline.parameters(), learning_rate=0.1, betas=(0.9, 0.99))
    print("before")
    try:
        for _ in range(100):
            pipeline.step(x, 2 * x)
            optimiser.step()
    except Exception:
        print("not here")
    print("after")
"""


@pytest.fixture(autouse=True)
def searches_are_short(monkeypatch):
    monkeypatch.setattr("minipipe.tuning.advising.SECONDS", 0.1)
    monkeypatch.setattr("minipipe.tuning.race.RACE_SECONDS", 0.2)


@pytest.fixture
def program(tmp_path):
    (tmp_path / "beside.py").write_text("WIDTH = 6\n")
    (tmp_path / "program.py").write_text(PROGRAM)
    yield str(tmp_path / "program.py")
    sys.modules.pop("beside", None)


@pytest.mark.slow
def test_it_is_what_the_program_gave_to_it(program, capsys):
    path, argv = list(sys.path), sys.argv
    found = question_about(program, ["8"])
    assert [layer.brief() for layer in found.model] == ["Linear(6, 6)"] * 4
    assert np.array_equal(found.targets, 2 * found.inputs) and found.inputs.shape == (
        8,
        6,
    )
    assert isinstance(found.options["loss"], nn.MSELoss)
    assert (
        found.own == {"schedule": "gpipe", "num_microbatches": 4}
        and found.options["seed"] == 3
    )
    parameters = list(found.model.parameters())
    assert (
        state_bytes(found.optimiser, parameters)
        == state_bytes(optim.AdamW, parameters)
        > 0
    )
    out, err = capsys.readouterr()
    # it was left there, and its own `except` has not seen it
    assert (out, err) == ("", "before\n")
    assert Pipeline.watcher is None
    assert (sys.path, sys.argv) == (path, argv)


@pytest.mark.slow
def test_a_program_for_several_ranks_is_left_before_it_would_need_them(tmp_path):
    """Its schedule and its partition are for 4 ranks, while it runs on one."""
    given = "schedules.zb_h1(4, 4), partition=[range(i, i + 1) for i in range(4)]"
    text = PROGRAM.replace('"gpipe", num_microbatches=4', given).replace(
        "nn, optim", "nn, optim, schedules"
    )
    (tmp_path / "four.py").write_text(
        text.replace("from beside import WIDTH", "WIDTH = 2")
    )
    assert (
        question_about(str(tmp_path / "four.py"), ["8"]).own["schedule"].name == "zb-h1"
    )


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("", r"ended without a training step; expected a call of Pipeline\.step"),
        (
            "raise SystemExit(3)",
            (
                r"exited with 3 before its first training step\. Write options of "
                r"minipipe before"
            ),
        ),
        (
            "import sys; sys.exit()",
            "exited with exit code 0 before its first training step",
        ),
        (
            "1 / 0",
            (
                "failed before its first training step, with ZeroDivisionError: "
                "division by zero"
            ),
        ),
        (
            "import numpy; from nowhere import x",
            "failed before its first training step, with ModuleNotFoundError",
        ),
        (
            "from minipipe import Pipeline, nn, spawn\n"
            "model = nn.Sequential(nn.Linear(1, 1), nn.Linear(1, 1))\n"
            "spawn(lambda group: Pipeline(model, group, "
            "loss=nn.MSELoss()).step([[1]] * 8, [[1]] * 8), 2)",
            (
                r"starts 2 ranks itself; expected a program that calls "
                r"init_process_group\(\)"
            ),
        ),
    ],
)
def test_a_program_that_does_not_step_is_refused(text, words, tmp_path):
    (tmp_path / "program.py").write_text(text)
    with pytest.raises(ArgumentError, match=words) as caught:
        question_about(str(tmp_path / "program.py"))
    assert caught.value.code == "value"


def test_a_program_that_is_not_there_is_refused():
    with pytest.raises(
        LaunchError, match=r"There is no program 'nope\.py'; expected a Python file"
    ) as caught:
        question_about("nope.py")
    assert caught.value.code == "not-found"


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ([], "Expected a training program after the options"),
        (["--ranks", "0", "x.py"], "--ranks is 0; expected a whole number, 1 to 4096."),
        (
            ["--memory-limit", "much", "x.py"],
            "memory_limit is 'much'; expected an amount above 0",
        ),
        (
            ["--seconds", "-1", "x.py"],
            "--seconds is -1.0; expected 0 to 604800, a week.",
        ),
        (
            ["--seconds", "inf", "x.py"],
            "--seconds is inf; expected 0 to 604800, a week.",
        ),
        (["nope.py"], "There is no program 'nope.py'"),
    ],
)
def test_the_command_refuses_what_it_cannot_carry_out(words, said, capsys):
    assert main(["advise", *words]) == 2
    assert said in capsys.readouterr().err


def test_the_command_prints_a_verdict_then_its_table_and_the_reason_last(
    program, capsys, monkeypatch
):
    monkeypatch.setenv("COLUMNS", "1000")
    # thread ranks start faster
    monkeypatch.setattr("minipipe.cli.advise_program.launcher_of_ranks", lambda: None)
    assert main(["advise", "--ranks", "2", "--microbatches", "4", program, "8"]) == 0
    verdict, table, told = capsys.readouterr().out.split("\n\n")
    assert verdict.startswith("Recommended: ")
    rows = table.splitlines()
    assert (
        rows[0].startswith("schedule")
        and rows[-1].startswith("yours: gpipe")
        and "parameters" in rows[-1]
    )
    *_, about_messages, best, yours = told.splitlines()
    assert (
        about_messages.startswith("A message takes ")
        and "thread ranks" in about_messages
    )
    assert best.startswith("the best: predicted ") and yours.startswith(
        "yours: predicted "
    )


@pytest.mark.slow
def test_a_limit_that_nothing_keeps_is_the_answer_no(program, capsys, monkeypatch):
    monkeypatch.setattr("minipipe.cli.advise_program.launcher_of_ranks", lambda: None)
    words = [
        "--ranks",
        "2",
        "--microbatches",
        "4",
        "--memory-limit",
        "1 kB",
        "--json",
        program,
        "8",
    ]
    assert main(["advise", *words]) == 1
    said = json.loads(capsys.readouterr().out.splitlines()[-1])
    assert said["error"] == "memory" and "The least is" in said["message"]


@needs_mpi
@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "arguments"),
    [
        ("train.py", ["--hidden", "16"]),
        ("train_lm.py", ["--width", "8", "--heads", "2", "--context", "8"]),
    ],
)
def test_a_training_program_is_advised_and_run_and_a_terminal_is_told_meanwhile(
    name, arguments, capsys, monkeypatch
):
    monkeypatch.setattr(sys.stderr, "isatty", lambda: True)
    program = str(ROOT / "tutorials" / name)
    words = ["--ranks", "2", "--memory-limit", "100 MB", "--seconds", "1", "--json"]
    assert main(["advise", *words, program, *arguments]) == 0
    out, err = capsys.readouterr()
    for words in ("measuring messages between", "running the best"):  # beside a bar
        assert words in err, words
    found = json.loads(out.splitlines()[-1])
    assert found["best"] == found["choices"][0] and found["own"]["schedule"] == "1f1b"
    assert found["measured"] == {
        "the best": found["best"]["measured"],
        "yours": found["own"]["measured"],
    }
    assert all(time > 0 for time in found["measured"].values())


@needs_mpi
@pytest.mark.slow
def test_the_answer_no_comes_back_from_ranks_of_mpirun(program, capsys):
    words = ["--ranks", "2", "--microbatches", "4", "--memory-limit", "1 kB", "--json"]
    assert main(["advise", *words, program, "8"]) == 1
    said = json.loads(capsys.readouterr().out.splitlines()[-1])
    assert said["error"] == "memory" and "The least is" in said["message"]


@needs_mpi
@pytest.mark.slow
def test_a_program_that_fails_under_mpirun_is_reported(tmp_path):
    """On one rank it comes to its step; on two it stops before."""
    text = PROGRAM.replace(
        '    print("before")', "    assert group.size == 1, 'not for two'"
    )
    (tmp_path / "alone.py").write_text(
        text.replace("from beside import WIDTH", "WIDTH = 2")
    )
    with pytest.raises(
        LaunchError, match="failed before its first step under mpirun -n 2"
    ) as caught:
        program_report(str(tmp_path / "alone.py"), ["8"], 2)
    assert caught.value.code == "unavailable"

"""The options and the tables of tests/benchmarks/gpu.py, which needs no GPU for these."""

import json
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

BENCHMARKS = Path(__file__).resolve().parent.parent / "benchmarks"


@pytest.fixture
def benchmark(monkeypatch):
    """Return the program as a module."""
    monkeypatch.syspath_prepend(str(BENCHMARKS))
    import gpu

    yield gpu
    for name in ("gpu", "gpu_models"):
        sys.modules.pop(name, None)


@pytest.mark.parametrize(
    ("given", "names", "rounds"),
    [
        ("", "GPT small|GPT mid|GPT-2|MLP d=128|MLP d=1024|MLP d=4096", 11),
        ("--quick", "GPT small|MLP d=128", 3),
        ("--quick --case MLP", "MLP d=128|MLP d=1024|MLP d=4096", 3),
        ("--case GPT-2 --case 4096 --rounds 5", "GPT-2|MLP d=4096", 5),
        ("--device cpu", "tiny GPT|tiny MLP", 11),
        ("--device cpu --quick --rounds 1", "tiny GPT|tiny MLP", 1),
    ],
)
def test_options_choose_cases_and_rounds(given, names, rounds, benchmark):
    options = benchmark.parsed(given.split())
    assert "|".join(case.name for case in options.cases) == names
    assert options.rounds == rounds


@pytest.mark.parametrize("given", ["--case LSTM", "--rounds -1", "--steps 3"])
def test_other_options_are_refused(given, benchmark, capsys):
    with pytest.raises(SystemExit) as caught:
        benchmark.parsed(given.split())
    assert caught.value.code == 2
    assert "error:" in capsys.readouterr().err


def test_each_aim_of_the_issue_is_in_the_table(benchmark):
    rows = {
        case.name: [benchmark.aim_of(case, name) for name in benchmark.CONTENDERS]
        for case in benchmark.CASES
    }
    none = [None, None]
    for name, compiled, tf32 in (
        ("GPT small", 0.85, 0.97),
        ("GPT mid", 0.95, 0.97),
        ("GPT-2", 0.98, 0.97),
        ("MLP d=128", 0.8, None),
        ("MLP d=1024", 0.85, None),
        ("MLP d=4096", 1.0, None),
    ):
        assert rows[name] == [*none, 1.5, compiled, *none, 1.5, tf32]


def test_ratios_are_medians_round_by_round(benchmark, capsys):
    case = benchmark.CASES[0]
    times = {
        "torch, graph": [1.0, 2.0, 4.0],
        "minipipe, compiled": [0.5, 1.8, 8.0],
        "minipipe, eager": [1.0, 1.0, 1.0],  # what it is compared with has failed
    }
    rows = {n: {**benchmark.figures_of(case, n, times), "note": ""} for n in times}
    assert rows["minipipe, compiled"]["ratio"] == 0.9
    assert "ratio" not in rows["minipipe, eager"]
    rows["torch, eager"] = "no answer within 120 s"
    rows["minipipe, compiled"]["note"] = "step: stage 0 runs eagerly: it reads a value"
    benchmark.show(case, rows)
    out = capsys.readouterr().out
    assert "0.90   0.85 not met" in out and "no answer within 120 s" in out
    assert "stage 0 runs eagerly" in out


def test_contenders_with_other_losses_have_no_times(benchmark):
    losses = {"torch, eager": [1.0, 0.5], "minipipe, eager": [1.0005, 0.5]}
    losses["minipipe, compiled, tf32"] = [1.01, 0.5]
    assert benchmark.others_than_the_first(losses) == {}
    losses["minipipe, eager"] = [1.01, 0.5]
    (message,) = benchmark.others_than_the_first(losses).values()
    assert message.startswith("has the losses [1.01, 0.5], and others have [1.0, 0.5]")


def test_each_part_is_a_line_at_once_even_if_it_fails(benchmark, capsys):
    report = benchmark.Report(benchmark.parsed(["--json", "--seconds", "9"]))
    report.part("a", lambda limit: {"ms": limit.of_part().left() < 9}, None)
    assert json.loads(capsys.readouterr().out) == {"part": "a", "row": {"ms": True}}
    report.part("b", lambda limit: 1 / 0, None)
    row = json.loads(capsys.readouterr().out)["row"]
    assert row == "ZeroDivisionError: division by zero"
    report = benchmark.Report(benchmark.parsed(["--seconds", "0"]))
    report.part("c", lambda limit: 1 / 0, None)
    assert capsys.readouterr().out == "c: left out: no time is left\n"


def test_a_process_that_has_ended_is_a_row_and_the_others_go_on(benchmark):
    process = benchmark.Process("minipipe, eager", "cpu")
    process._process.kill()
    process._process.join()
    process.ask("begin", benchmark.CASES[0])
    assert process.answer(5) == (False, "its process ended, with -9")
    process.end()


def test_what_a_contender_cannot_do_is_a_row_of_the_table(benchmark, monkeypatch):
    class Failing:
        def __init__(self, fails_at):
            self.fails_at = fails_at

        def ask(self, method, given):
            self.asked = method

        def answer(self, seconds):
            if self.asked == self.fails_at:
                return False, f"{self.asked} fails"
            return True, ([1.0], "") if self.asked == "begin" else 0.5

    parts = {
        "torch, graph": None,
        "minipipe, compiled": "round",
        "torch, eager": "begin",
    }
    processes = {name: Failing(at) for name, at in parts.items()}
    limit = benchmark.Limit(60)
    rows = benchmark.compared(benchmark.CASES[0], processes, 2, limit)
    assert list(rows) == list(parts)
    assert rows["torch, eager"] == "begin fails"
    assert rows["minipipe, compiled"] == "round fails"
    assert rows["torch, graph"]["ms"] == 500


def test_where_there_is_no_gpu_a_sentence_says_so():
    done = subprocess.run(
        [sys.executable, str(BENCHMARKS / "gpu.py"), "--quick"],
        env={**os.environ, "CUDA_VISIBLE_DEVICES": ""},
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith("There is no GPU to use: ")
    assert done.stdout.count("\n") == 1


def test_batches_are_equal_in_each_process_and_of_the_right_form(benchmark):
    import gpu_models

    for case in gpu_models.TINY:
        (x, y), again = gpu_models.batch_of(case), gpu_models.batch_of(case)
        assert len(x) == len(y) == case.batch
        assert all(np.array_equal(a, b) for a, b in zip((x, y), again))
        if case.is_text:
            assert (x[:, 1:] == y[:, :-1]).all()  # each token predicts the next

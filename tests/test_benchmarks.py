"""The benchmarks run and print their tables. How fast anything is, is no matter for a
test.
"""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.launch import mpirun_together, needs_mpi, slowly

BENCHMARKS = Path(__file__).resolve().parent / "benchmarks"

RUNS = [
    (
        "engine.py",
        ["--case", "d=32, 4 layers, 16x4", "--steps", "2", "--repeats", "1"],
        ["autograd / floor", "split"],
    ),
    (
        "engine.py",
        ["--case", "block 4x16", "--steps", "2", "--repeats", "1", "--json"],
        ['"name": "split / fused"'],
    ),
    (
        "compiled.py",
        ["--case", "d=32", "--rounds", "1", "--steps", "1", "--json"],
        ['"1f1b, compiled"'],
    ),
    (
        "step_time.py",
        ["--width", "8", "--layers", "2", "--steps", "2"],
        ["pipeline, 1 rank"],
    ),
    (
        "prediction.py",
        ["--width", "8", "--layers", "4", "--steps", "1", "--rounds", "1"],
        ["zb-v", "median error"],
    ),
    ("stacking.py", ["--rounds", "1", "--widest", "32"], ["divided", "stacked"]),
    (
        "search.py",
        ["--rows", "1", "--part", "0.01"],
        ["published", "warm-up and drain"],
    ),
    (
        "sums.py",
        ["--unit", "0.001", "--steps", "1", "--schedule", "chimera"],
        ["predicted", "chimera"],
    ),
    ("startup.py", ["--rounds", "1", "--ranks"], ["times numpy"]),
    ("schedule_scale.py", ["--sizes", "1", "--repeats", "1"], ["1f1b", "growth"]),
    (
        "schedule_scale.py",
        ["--varied", "--sizes", "4", "--repeats", "1"],
        ["recomputed", "sliced", "growth"],
    ),
]
BY_RANKS = [
    (
        "compiled_text.py",
        ["--width", "8", "--layers", "1", "--rounds", "1", "--steps", "1"],
        ["compiled / eager"],
    ),
    (
        "pipelining.py",
        ["--case", "d=32", "--steps", "2", "--rounds", "1"],
        ["floor", "peer", "zb-h1", "compiled", "ms a step"],
    ),
    (
        "pipelining.py",
        ["--case", "d=32", "--steps", "1", "--rounds", "1", "--json"],
        ['"ranks": 2'],
    ),
    (
        "zero_bubble.py",
        ["--width", "8", "--steps", "1", "--rounds", "1", "--schedules", "zb-h2"],
        ["over GPipe", "zb-h2"],
    ),
    (
        "growth.py",
        [
            "--microbatches",
            "2",
            "--layers",
            "1",
            "--rounds",
            "1",
            "--schedules",
            "zb-h1",
        ],
        ["peak KiB", "zb-h1"],
    ),
    (
        "overlap.py",
        [
            "--unit",
            "0.001",
            "--steps",
            "2",
            "--microbatches",
            "2",
            "--schedule",
            "zb-h2",
        ],
        ["overlap", "zb-h2"],
    ),
    (
        "memory.py",
        [
            "--width",
            "8",
            "--length",
            "4",
            "--blocks",
            "2",
            "--vocabulary",
            "16",
            "--schedule",
            "zb-v",
        ],
        ["predicted", "traced", "rank 1"],
    ),
    (
        "memory.py",
        [
            "--width",
            "8",
            "--length",
            "4",
            "--blocks",
            "2",
            "--vocabulary",
            "16",
            "--json",
        ],
        ['"traced"'],
    ),
    (
        "advice.py",
        ["--case", "one slow layer", "--rounds", "1", "--most", "2", "--seconds", "1"],
        ["one slow layer: 2 choices", "chosen over fastest"],
    ),
    (
        "replicas.py",
        [
            "--width",
            "8",
            "--layers",
            "2",
            "--batch-size",
            "4",
            "--microbatches",
            "4",
            "--rounds",
            "1",
            "--steps",
            "1",
        ],
        ["by hand", "1 x 2"],
    ),
    (
        "finite.py",
        ["--width", "8", "--layers", "1", "--rounds", "1", "--steps", "1"],
        ["d=8", "stop / off"],
    ),
    (
        "checkpoints.py",
        ["--width", "8", "--linears", "2", "--rounds", "1", "--steps", "1"],
        ["safetensors save", "restore", "stall of a background save"],
    ),
    (
        "transport.py",
        ["--rounds", "1", "--largest", "65536"],
        ["minipipe", "channel", "65536"],
    ),
    (
        "compiled.py",
        ["--case", "d=32", "--rounds", "1", "--steps", "1"],
        ["persistent", "zb-h1, compiled", "calls"],
    ),
    (
        "prediction.py",
        ["--width", "8", "--layers", "4", "--steps", "1", "--rounds", "1"],
        ["zb-v", "median error"],
    ),
]


@pytest.mark.parametrize("script, options, expected", [slowly(*row) for row in RUNS])
def test_a_benchmark_ends_well_and_prints_its_table(script, options, expected):
    check([sys.executable, str(BENCHMARKS / script), *options], expected)


@needs_mpi
@pytest.mark.slow
def test_benchmarks_of_ranks_end_well_and_print_their_tables():
    programs = {
        number: (BENCHMARKS / script, *options)
        for number, (script, options, _) in enumerate(BY_RANKS)
    }
    printed = mpirun_together(2, programs, limit=300)
    for number, (script, _, expected) in enumerate(BY_RANKS):
        assert [text for text in expected if text not in printed[number]] == [], script


def check(command, expected):
    environment = {**os.environ, "PYTHONPATH": str(BENCHMARKS.parent.parent)}
    done = subprocess.run(
        command, capture_output=True, text=True, env=environment, check=False
    )
    assert done.returncode == 0, done.stderr
    for text in expected:
        assert text in done.stdout

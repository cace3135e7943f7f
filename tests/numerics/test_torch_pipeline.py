"""PyTorch's own pipeline, over gloo, takes the steps that ours takes: the benchmark
compares their weights.
"""

import pytest

from tests.launch import ROOT, mpirun, needs_mpi

torch = pytest.importorskip("torch", reason="needs PyTorch: pip install '.[oracle]'")


@needs_mpi
def test_the_weights_of_both_agree_after_some_steps(tmp_path):
    script = ROOT / "tests" / "benchmarks" / "pipelining.py"
    picture = tmp_path / "steps.svg"
    options = [
        "--case",
        "d=32",
        "--steps",
        "1",
        "--rounds",
        "1",
        "--schedule",
        "1f1b",
        "--torch",
        "--picture",
        picture,
    ]
    done = mpirun(2, script, *options, limit=120)
    assert done.code == 0, done.err
    assert "torch" in done.out
    # floor, peer, 1f1b, compiled and torch
    assert picture.read_text().count("<rect") == 5

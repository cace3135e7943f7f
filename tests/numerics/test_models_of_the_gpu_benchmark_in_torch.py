"""The models that tests/benchmarks/gpu.py compares are the same in minipipe and PyTorch."""

import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from minipipe import spawn

pytest.importorskip("torch", reason="needs PyTorch: pip install '.[oracle]'")
BENCHMARKS = Path(__file__).resolve().parent.parent / "benchmarks"


@pytest.mark.parametrize("number", [0, 1], ids=["GPT", "MLP"])
@pytest.mark.parametrize("num_ranks", [1, 2])
def test_losses_of_steps_are_those_of_torch(number, num_ranks, monkeypatch):
    """Also after updates, so gradients and optimisers agree as well."""
    monkeypatch.syspath_prepend(str(BENCHMARKS))
    import gpu_in_torch
    import gpu_models

    case = gpu_models.TINY[number]
    theirs = gpu_in_torch.eager_step(case, "cpu", np.float64)

    def ours(group):
        step, _ = gpu_models.step_of(case, group, "cpu", True, np.float64)
        return [step() for _ in range(6)]

    expected = [theirs() for _ in range(6)]
    assert len(set(expected)) == 6
    for found in spawn(ours, num_ranks=num_ranks):
        np.testing.assert_allclose(found, expected, rtol=1e-11)
    for name in ("gpu_in_torch", "gpu_models"):
        del sys.modules[name]


@pytest.mark.slow
def test_the_program_compares_with_torch_on_a_cpu():
    command = [sys.executable, str(BENCHMARKS / "gpu.py"), "--device", "cpu"]
    done = subprocess.run(
        [*command, "--case", "tiny MLP", "--rounds", "1"],
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert done.returncode == 0, done.stderr
    for words in ("torch, eager", "minipipe, compiled", "ranks that share"):
        assert words in done.stdout
    assert "the same losses" in done.stdout or "there is no mpirun" in done.stdout

"""The tests of a GPU, where there is none."""

import re
import sys

import pytest

from tests.gpu.emulated import needs_compiler
from tests.launch import run

# These make arrays by CuPy's constructor, or start processes that need CuPy.
NEED_CUPY = "all_layouts", "language_model"


@needs_compiler
@pytest.mark.slow
def test_the_tests_of_a_gpu_hold_on_the_stand_in():
    command = [sys.executable, "-m", "pytest", "-q", "-p", "tests.gpu.on_stand_in"]
    chosen = " and ".join(f"not {name}" for name in NEED_CUPY)
    done = run([*command, "-m", "gpu", "-k", chosen, "tests/gpu/test_gpu.py"], 300)
    assert done.code == 0, done.out[-4000:]
    assert int(re.search(r"(\d+) passed", done.out)[1]) > 80

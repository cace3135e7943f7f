"""The halves that are there to test with: float16 always, bfloat16 where ml_dtypes is
installed.
"""

import numpy as np
import pytest

try:
    from ml_dtypes import bfloat16
except ImportError:
    bfloat16 = None

needs_bfloat16 = pytest.mark.skipif(
    bfloat16 is None, reason="needs ml_dtypes: pip install '.[bfloat16]'"
)
HALVES = [np.float16, pytest.param(bfloat16, marks=needs_bfloat16)]
every_half = pytest.mark.parametrize("half", HALVES, ids=["float16", "bfloat16"])


def epsilon(half):
    """Return the distance from 1 to the next larger number."""
    return 2.0**-10 if half is np.float16 else 2.0**-7


def named(name):
    """Return a half by its name."""
    return {"float16": np.float16, "bfloat16": bfloat16}[name]

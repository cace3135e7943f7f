"""For all tests: what hypothesis draws, and what keeps the suite quick without making a test weaker.

The profile ``quick``, the default, draws a quarter of the examples that a test names; ``.ci/run`` draws all of them,
with ``--hypothesis-profile=thorough``. Both repeat themselves, and measure no time.
"""

import gc
import os
import shutil
import tempfile

from hypothesis import HealthCheck, settings

COMMON = {"derandomize": True, "deadline": None, "suppress_health_check": [HealthCheck.too_slow]}
settings.register_profile("quick", max_examples=25, **COMMON)
settings.register_profile("thorough", max_examples=100, **COMMON)
settings.load_profile("quick")


def pytest_configure(config):
    """Where Python must leave no bytecode beside the sources, keep it elsewhere for the processes that tests start.

    There are hundreds of them, and most of the time of each would go into compiling minipipe once more.
    """
    config.bytecode = None
    if os.environ.pop("PYTHONDONTWRITEBYTECODE", None):
        config.bytecode = os.environ["PYTHONPYCACHEPREFIX"] = tempfile.mkdtemp(prefix="minipipe-bytecode-")


def pytest_unconfigure(config):
    if config.bytecode:
        shutil.rmtree(config.bytecode, ignore_errors=True)


def pytest_collection_finish():
    """Let no collection of garbage look at what stays until the end: thousands of tests, and their parameters."""
    gc.collect()
    gc.freeze()

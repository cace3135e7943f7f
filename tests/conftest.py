"""For all tests: what hypothesis draws, and what keeps the suite quick without making a
test weaker.

The profile ``quick``, the default, draws few of the examples that a test names, and
the same each time. ``.ci/run`` draws half of them, ``--hypothesis-profile=thorough``,
and other ones each week, so that a rare case is found some day. Neither measures time.
"""

import contextlib
import datetime
import gc
import importlib
import os
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings

from minipipe import schedules, watch_everything
from tests.strategies import takes

# No test depends on the width of the terminal in which it is run; workers of
# pytest-xdist have 80 columns.
os.environ["COLUMNS"] = "100"
collect_ignore = ["numerics/make_edges.py"]  # a script that imports PyTorch
COMMON = {"deadline": None, "suppress_health_check": [HealthCheck.too_slow]}
settings.register_profile("quick", max_examples=6, derandomize=True, **COMMON)
settings.register_profile(
    "thorough", max_examples=50, derandomize=False, database=None, **COMMON
)
settings.load_profile("quick")
HERE = Path(__file__).parent


@pytest.hookimpl(tryfirst=True)  # before hypothesis reads its options
def pytest_configure(config):
    _keep_bytecode(config)
    options = config.option  # workers have them from here
    if options.hypothesis_profile == "thorough" and options.hypothesis_seed is None:
        year, week, _ = datetime.datetime.now(datetime.UTC).isocalendar()
        options.hypothesis_seed = f"{year}{week:02}"


def pytest_terminal_summary(terminalreporter, config):
    if (seed := config.option.hypothesis_seed) is not None:
        terminalreporter.write_line(f"examples of --hypothesis-seed={seed}")


def _keep_bytecode(config):
    """Where Python must leave no bytecode beside the sources, keep it in pytest's cache
    for the processes of tests.

    There are hundreds of them, and most of the time of each would go into compiling
    minipipe once more. Kept for the next run it saves, too, half of the time in which
    each worker collects: the rewriting of assertions.
    """
    if "PYTHONDONTWRITEBYTECODE" in os.environ and hasattr(config, "cache"):
        # where nothing may be written at all, everything is compiled each time
        with contextlib.suppress(OSError):
            os.environ["PYTHONPYCACHEPREFIX"] = str(config.cache.mkdir("bytecode"))
            del os.environ["PYTHONDONTWRITEBYTECODE"]


@pytest.hookimpl(wrapper=True)
def pytest_collect_file():
    """Look for examples in the package and the README alone: in tests there are none,
    and each worker would import every helper of theirs.
    """
    found = yield
    return [each for each in found if type(each) is pytest.Module]


def pytest_collectstart(collector):
    """Let the second worker begin at the other end.

    In a new clone most of the time goes into the rewriting of assertions, which is kept
    beside the files: so each worker does half of it.
    """
    # nothing of what is collected is garbage, and looking for some is a quarter of the
    # time
    gc.disable()
    if collector.path == HERE and os.environ.get("PYTEST_XDIST_WORKER") == "gw1":
        for path in sorted(HERE.rglob("test_*.py"), reverse=True):
            name = ".".join(path.relative_to(HERE.parent).with_suffix("").parts)
            with contextlib.suppress(Exception, pytest.skip.Exception):
                importlib.import_module(name)  # what fails does so when it is collected


def pytest_collection_finish():
    """Let no collection of garbage look at what stays until the end: thousands of
    tests, and their parameters.
    """
    gc.freeze()
    gc.enable()


@pytest.fixture(autouse=True)
def watching():
    """Notice arrays that are changed in place between forward and backward."""
    with watch_everything():
        yield


@pytest.fixture(scope="session")
def every_schedule():
    """Every schedule of the registry for p 1..5, some m up to 6 and those of v 1..3
    that it takes; the smallest first.

    Laws over larger sizes are in tests/schedules/analysis/test_every_schedule.py.
    """
    found = []
    for num_ranks in range(1, 6):
        for num_microbatches in (1, 2, 3, 4, 6):
            for name in schedules.REGISTRY:
                for chunks in [
                    v for v in (1, 2, 3) if takes(name, num_ranks, chunks=v)
                ] or [None]:
                    if takes(name, num_ranks):
                        found.append(
                            schedules.build(name, num_ranks, num_microbatches, chunks)
                        )
    return found


@pytest.fixture
def file(tmp_path):
    """Return a function that writes a file of text, by default ``mine.csv``, and
    returns its path.
    """

    def written(content, name="mine.csv"):
        path = tmp_path / name
        path.write_text(content)
        return path

    return written

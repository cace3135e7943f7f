"""How long a rank waits, and how messages name ranks."""

import re

import numpy as np
import pytest

from minipipe import Pipeline, init_process_group, nn, spawn
from minipipe.core.comm.message import DEFAULT_TIMEOUT, chosen_timeout
from minipipe.errors import ArgumentError, MessageError
from tests.launch import mpirun, needs_mpi, slowly


def test_ranks_of_a_subgroup_are_named_by_their_number_in_the_world():
    """The story: ranks 2 and 3 of four were called 0 and 1, and the wrong processes
    were looked at.
    """

    def wait_in_a_subgroup(group):
        half = group.split(group.rank // 2)
        if group.rank == 3:
            half.recv(0, tag=5)

    with pytest.raises(
        MessageError, match="rank 3 waits for a message with tag 5 from rank 2"
    ):
        spawn(wait_in_a_subgroup, num_ranks=4)

    def disagree_in_a_subgroup(group):
        half = group.split(group.rank // 2)
        half.all_reduce(np.zeros(group.rank))

    with pytest.raises(
        MessageError, match=r"Rank [0123] sent float64 \(\d,\) to rank [0123]"
    ) as caught:
        spawn(disagree_in_a_subgroup, num_ranks=4)
    pair = sorted(
        int(number) for number in re.findall(r"[Rr]ank (\d)", str(caught.value))[:2]
    )
    assert pair in ([0, 1], [2, 3])


def test_a_subgroup_of_a_subgroup_keeps_the_names():
    def ranks(group):
        half = group.split(group.rank // 2, key=-group.rank)
        return list(half.world_ranks), list(half.split(half.rank).world_ranks)

    assert spawn(ranks, num_ranks=4) == [
        ([1, 0], [0]),
        ([1, 0], [1]),
        ([3, 2], [2]),
        ([3, 2], [3]),
    ]


def test_the_timeout_is_the_argument_or_the_variable_or_300_seconds(monkeypatch):
    monkeypatch.delenv("MINIPIPE_TIMEOUT", raising=False)
    assert chosen_timeout(None) == DEFAULT_TIMEOUT == 300
    monkeypatch.setenv("MINIPIPE_TIMEOUT", "12.5")
    assert chosen_timeout(None) == 12.5 and chosen_timeout(7) == 7
    assert spawn(lambda group: group.timeout, 2) == [12.5, 12.5]
    with init_process_group() as group:
        assert group.timeout == 12.5
    for nonsense in ("0", "-3", "soon", "nan"):
        monkeypatch.setenv("MINIPIPE_TIMEOUT", nonsense)
        with pytest.raises(
            ArgumentError,
            match=f"MINIPIPE_TIMEOUT is {nonsense!r}; expected seconds, more than 0",
        ):
            init_process_group()


@pytest.mark.slow
@needs_mpi
def test_a_timeout_may_be_infinite():
    """The story: faulthandler's limit overflowed, under mpirun only."""
    program = (
        "import minipipe\nwith minipipe.init_process_group(timeout=float('inf')) as "
        "g: g.barrier()"
    )
    done = mpirun(2, "-c", program)
    assert (done.code, done.err) == (0, "")
    assert spawn(
        lambda group: group.all_reduce(np.ones(1))[0], 2, timeout=float("inf")
    ) == [2, 2]


def test_a_line_for_each_action_is_written_on_request(monkeypatch, capfd):
    def step(group):
        model = nn.Sequential(nn.Linear(2, 2), nn.Linear(2, 2))
        pipeline = Pipeline(model, group, loss=nn.MSELoss(), num_microbatches=2)
        pipeline.step(np.ones((4, 2)), np.ones((4, 2)))
        return [str(action) for action in pipeline.plan.program.actions[group.rank]]

    expected = spawn(step, num_ranks=2)
    assert capfd.readouterr().err == ""
    monkeypatch.setenv("MINIPIPE_DEBUG", "1")
    spawn(step, num_ranks=2)
    lines = capfd.readouterr().err.splitlines()
    for rank in range(2):
        own = [line for line in lines if line.startswith(f"[rank {rank}] ")]
        assert all(
            re.fullmatch(r"\[rank \d\] \d\d:\d\d:\d\d\.\d{6} \S+, step 1", line)
            for line in own
        ), own
        assert [line.split()[3].rstrip(",") for line in own] == expected[rank]


@pytest.mark.slow
@needs_mpi
def test_a_message_that_comes_while_others_are_asked_is_taken():
    """The story: asked once more after it had come, MPI's Test gave an empty status: "0
    bytes arrived".

    The sleep is a person at the debugger, who takes longer than the timeout.
    """
    program = (
        "import time, numpy as np, minipipe\n"
        "with minipipe.init_process_group(timeout=0.3) as group:\n"
        "    if group.rank == 0:\n"
        "        import pdb, io\n"
        "        class Person(io.StringIO):\n"
        "            def readline(self, *_): time.sleep(1.5); return 'c\\n'\n"
        "        pdb.Pdb(stdin=Person(), stdout=io.StringIO()).set_trace()\n"
        "        group.send(np.arange(3), 1)\n"
        "    else:\n"
        "        print(group.recv(0).tolist())\n"
    )
    done = mpirun(2, "-c", program)
    told = (
        "[rank 1] Rank 0 is in a debugger, so all ranks wait. (mpirun connects the "
        "keyboard to rank 0 only.)\n"
    )
    assert (done.code, done.out, done.err) == (0, "[0, 1, 2]\n", told)


@needs_mpi
@pytest.mark.parametrize(
    ("call", "words"),
    [
        (
            "group.barrier()",
            (
                "The ranks are in different calls: rank 0 in a barrier; rank 1, 2 in "
                "pipeline.step()"
            ),
        ),
        slowly(
            "group.all_reduce(np.ones(1))",
            "rank 0 in an all-reduce; rank 1, 2 in pipeline.step()",
        ),
        slowly(
            "group.broadcast(np.ones(1), 0)",
            "but rank 0 in a broadcast that no other rank takes part in",
        ),
    ],
)
def test_a_collective_call_that_one_rank_makes_alone_is_named(call, words):
    """The story: a healthy rank was named, with an error inside of minipipe, or as one
    whose message was lost.
    """
    program = (
        "import numpy as np, minipipe\n"
        "from minipipe import Pipeline, nn\n"
        "with minipipe.init_process_group(timeout=1.0) as group:\n"
        "    layers = [nn.Linear(2, 2) for _ in range(3)]\n"
        "    pipeline = Pipeline(nn.Sequential(*layers), group, "
        "loss=nn.MSELoss(), num_microbatches=3)\n"
        "    for step in range(3):\n"
        "        pipeline.step(np.ones((6, 2)), np.ones((6, 2)))\n"
        f"        if step == 1 and group.rank == 0: {call}\n"
    )
    done = mpirun(3, "-c", program, limit=20)
    # The launcher may say that it ended the job, or be ended before it does.
    assert done.code == 1 and any(
        words in line for line in done.err.splitlines()[-2:]
    ), done.err


@pytest.mark.slow
@needs_mpi
def test_a_program_may_have_one_group_after_another():
    """The story: the second one waited to meet ranks that had met, and ended the job
    after the timeout.
    """
    program = (
        "import minipipe\n"
        "for _ in range(3):\n"
        "    with minipipe.init_process_group(timeout=5) as group: group.barrier()\n"
    )
    done = mpirun(2, "-c", program, limit=20)
    assert (done.code, done.err) == (0, "") and done.seconds < 8


@needs_mpi
@pytest.mark.parametrize(
    ("program", "words"),
    [
        slowly(
            "if group.rank == 0: time.sleep(2.5)\n"
            "elif group.rank == 1: subprocess.Popen(['sh', '-c', f'sleep 1.5; "
            "kill -STOP {os.getpid()}'])\n",
            "All ranks have finished, but MPI did not finalise",
            id="a rank is stopped after its shutdown handshake",
        ),
        slowly(
            "gathered = group.all_gather\n"
            "if group.rank == 1: group.all_gather = lambda *given: "
            "(gathered(*given), time.sleep(60))[0]\n"
            "group.split(0)\n",
            "Rank 1 is busy in its own code",
            id="a rank does not come to a division of the group",
        ),
    ],
)
def test_what_blocks_inside_of_mpi_has_a_limit(program, words):
    """The story: MPI_Finalize and MPI_Comm_split waited for ever for a rank that
    sleeps, or is stopped.
    """
    start = (
        "import os, subprocess, time, minipipe\ngroup = "
        "minipipe.init_process_group(timeout=1.0)\n"
    )
    done = mpirun(3, "-c", start + program, limit=20)
    assert done.code != 0 and words in done.err and done.seconds < 12, done


@needs_mpi
@pytest.mark.slow
@pytest.mark.parametrize(
    "alone",
    ["time.sleep(5)", "ctypes.PyDLL(None).sleep(5)"],
    ids=["Python", "compiled code"],
)
def test_a_rank_that_works_alone_after_the_group_has_closed_is_left_alone(alone):
    """The story: one look of a second decided, and ended it while it was in compiled
    code.
    """
    program = (
        "import ctypes, time, minipipe\n"
        "with minipipe.init_process_group(timeout=1.0) as group: rank = group.rank\n"
        f"if rank == 1: {alone}; print('done')\n"
    )
    done = mpirun(3, "-c", program, limit=30)
    assert (done.code, done.out, done.err) == (0, "done\n", "")


@needs_mpi
@pytest.mark.slow
def test_of_a_rank_that_cannot_answer_while_it_works_nothing_worse_is_said():
    """Where MPI has no place for a second thread. The sleep is a rank that works for
    longer than the timeout.
    """
    program = (
        "import mpi4py; mpi4py.rc.thread_level = 'funneled'\n"
        "import time, minipipe\n"
        "with minipipe.init_process_group(timeout=0.5) as group:\n"
        "    time.sleep(20) if group.rank == 1 else group.recv(1)\n"
    )
    done = mpirun(2, "-c", program, limit=20)
    words = (
        "[rank 0] Rank 1 does not answer: perhaps busy: with this MPI a rank answers "
        "only while it waits."
    )
    assert done.code != 0 and words in done.err.splitlines()


@needs_mpi
def test_a_forked_child_cannot_use_the_group():
    program = (
        "import os, warnings, minipipe, numpy as np\n"
        "warnings.simplefilter('ignore', DeprecationWarning)  # from Python 3.12 "
        "on: forking with threads is none\n"
        "with minipipe.init_process_group(timeout=5) as group:\n"
        "    under_way = group.ibroadcast(np.ones(1) if group.rank == 0 else None)\n"
        "    if group.rank == 1 and os.fork() == 0:\n"
        "        for call in (lambda: group.send(np.ones(1), 0), under_way.wait):\n"
        "            try: call()\n"
        "            except minipipe.errors.LaunchError as error: "
        "print(error.code, flush=True)\n"
        "        os._exit(0)\n"
        "    group.barrier()\n"
    )
    done = mpirun(2, "-c", program, limit=20)
    assert (done.code, done.out, done.err) == (0, "closed\nclosed\n", "")

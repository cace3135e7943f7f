"""What ends a program inside a layer says where it was; a thread rank that leaves with
0 has returned.
"""

import sys

import numpy as np
import pytest

from minipipe import Pipeline, nn, spawn
from minipipe.comm import OneRankGroup
from minipipe.errors import MessageError
from tests.launch import mpirun, needs_mpi


class Leaves(nn.Module):
    def __init__(self, error):
        self.error = error

    def forward(self, x):
        raise self.error


@pytest.mark.parametrize(
    "error",
    [KeyboardInterrupt(), SystemExit(7), MemoryError("no room"), ValueError("boom")],
)
def test_whatever_leaves_a_layer_has_a_note_of_the_place_and_leaves_no_gradient(error):
    """The stories: only an Exception had one, so an interrupted loop did not say where
    it was; and only an error of minipipe named the layer."""
    layers = nn.Sequential(nn.Linear(2, 2), Leaves(error))
    pipeline = Pipeline(layers, OneRankGroup(), loss=nn.MSELoss(), num_microbatches=2)
    with pytest.raises(type(error)) as caught:
        pipeline.step(np.ones((4, 2)), np.ones((4, 2)))
    layer, note = caught.value.__notes__
    assert layer == "in layer 1, Leaves()"
    assert note.startswith(
        "on rank 0, stage 0, microbatch 0, action 0F0 of 1f1b, step 1"
    )
    assert all(parameter.grad is None for parameter in pipeline.parameters())
    assert pipeline._trainer.graphs == {0: {}}


@pytest.mark.parametrize("code", [0, None])
def test_a_thread_rank_that_exits_with_0_has_returned_none(code):
    """The story: spawn ended every rank, and raised SystemExit(0), so the program ended
    without its results.
    """

    def leave(group):
        group.barrier()
        if group.rank == 1:
            sys.exit(code)
        return group.rank

    assert spawn(leave, 3) == [0, None, 2]


def test_a_rank_that_waits_for_one_that_exited_with_0_is_told_and_another_code_ends_all():
    def wait(group):
        if group.rank == 1:
            sys.exit(0)
        group.recv(source=1)

    with pytest.raises(MessageError, match="rank 1 has returned"):
        spawn(wait, 2)
    for code in (3, "no data"):
        with pytest.raises(SystemExit) as caught:
            spawn(lambda group, code=code: sys.exit(code), 2)
        assert caught.value.code == code


OUT_OF_MEMORY = """
import resource
import numpy as np
from minipipe import Pipeline, init_process_group, nn

class Greedy(nn.Module):
    def forward(self, x):
        np.ones(1 << 33, np.uint8)
        return x

with init_process_group(timeout=20) as group:
    layers = nn.Sequential(nn.Linear(2, 2), nn.Linear(2, 2), Greedy(), nn.Linear(2, 2), nn.Linear(2, 2))
    parts = [range(1), range(1, 3), range(3, 4), range(4, 5)]
    pipeline = Pipeline(layers, group, loss=nn.MSELoss(), num_microbatches=4, partition=parts)
    if group.rank == 1:
        resource.setrlimit(resource.RLIMIT_AS, (3 << 30, 3 << 30))
    else:
        Greedy.forward = lambda self, x: x
    pipeline.step(np.ones((8, 2)), np.ones((8, 2)))
"""


@needs_mpi
@pytest.mark.slow
def test_a_rank_without_memory_is_named_with_the_place_and_all_end(tmp_path):
    (tmp_path / "greedy.py").write_text(OUT_OF_MEMORY)
    done = mpirun(4, tmp_path / "greedy.py", limit=5 + 3 * 3)
    print(f"ended after {done.seconds:.2f} s, start included; promised 3 s")
    assert done.code == 1
    said = [line for line in done.err.splitlines() if line.startswith("[rank")]
    assert {line[:8] for line in said} == {"[rank 1]"}
    assert said[0] == "[rank 1] in layer 2, Greedy()"
    assert (
        said[1]
        == "[rank 1] on rank 1, stage 1, microbatch 0, action 1F0 of 1f1b, step 1"
    )
    assert "MemoryError: Unable to allocate 8.00 GiB" in said[-1]

"""The page for users of PyTorch names what PyTorch has, and schedules go both ways as
CSV.
"""

import importlib
import inspect
import re

import pytest

from minipipe import schedules, verify
from tests.launch import ROOT

torch = pytest.importorskip("torch", reason="needs PyTorch: pip install '.[oracle]'")
pipelining = importlib.import_module("torch.distributed.pipelining.schedules")

PAGE = (ROOT / "tutorials" / "site" / "coming-from-pytorch.md").read_text(
    encoding="utf-8"
)
MODULES = {
    name: importlib.import_module(name)
    for name in (
        "torch",
        "torch.amp",
        "torch.distributed.checkpoint",
        "torch.distributed.device_mesh",
        "torch.distributed.fsdp",
        "torch.distributed.optim",
        "torch.distributed.pipelining",
        "torch.distributed.pipelining.microbatch",
        "torch.distributed.pipelining.schedules",
        "torch.distributed.tensor.experimental",
        "torch.distributed.tensor.parallel",
        "torch.nn.parallel",
        "torch.utils.checkpoint",
    )
}

# -- names -----------------------------------------------------------------------------


def names_on_the_left():
    """Return the code in the first cells of the page's tables, and in their
    headings.
    """
    cells = [line.split("|")[1] for line in PAGE.splitlines() if line.startswith("| ")]
    return [name for cell in cells for name in re.findall(r"`([^`]+)`", cell)]


def is_in_torch(name):
    """Return whether PyTorch has a module, a name in one of them, a method, or, as
    ``name=``, a parameter.
    """
    if name.endswith("="):
        return name[:-1] in inspect.signature(pipelining.ScheduleGPipe).parameters
    home, _, last = name.rpartition(".")
    if home in MODULES:
        return hasattr(MODULES[home], last)
    owner, *attributes = name.split(".")
    owners = [
        vars(module)[owner] for module in MODULES.values() if owner in vars(module)
    ]
    return name in MODULES or any(
        all(hasattr(each, a) for a in attributes) for each in owners
    )


def test_every_name_of_the_page_exists_in_torch():
    names = names_on_the_left()
    assert len(names) > 30
    assert [name for name in names if not is_in_torch(name)] == []


def test_a_name_that_torch_does_not_have_is_noticed():
    assert not any(
        map(
            is_in_torch,
            [
                "ScheduleZeroBubble",
                "Schedule1F1B.run",
                "micro_batches=",
                "torch.amp.Scaler",
            ],
        )
    )


# -- schedules as CSV ------------------------------------------------------------------


class Stage:
    """As much of PyTorch's stage as a schedule asks when it is made: it needs no
    process group.
    """

    group = submod = None
    has_backward = False

    def __init__(self, index, num_stages, group_size=2):
        self.stage_index, self.num_stages, self.group_size, self.group_rank = (
            index,
            num_stages,
            group_size,
            0,
        )
        self.is_first, self.is_last = index == 0, index == num_stages - 1


SCHEDULES = {  # PyTorch's class: the stages of rank 0, and the name here
    "ScheduleInterleaved1F1B": ((0, 2), "interleaved-1f1b"),
    "ScheduleInterleavedZeroBubble": ((0, 2), "interleaved-zb"),
    "ScheduleLoopedBFS": ((0, 2), "looped-bfs"),
    "ScheduleZBVZeroBubble": ((0, 3), "zb-v"),
    "ScheduleDualPipeV": ((0, 3), "dualpipe-v"),
}
each_schedule = pytest.mark.parametrize("kind", SCHEDULES)


def of_torch(kind, num_microbatches=8):
    stages, _ = SCHEDULES[kind]
    return getattr(pipelining, kind)(
        [Stage(index, 4) for index in stages], num_microbatches
    )


@each_schedule
@pytest.mark.parametrize("form", ["compute_only", "compute_comms"])
def test_a_schedule_that_torch_writes_is_read_and_legal_here(kind, form, tmp_path):
    path = tmp_path / "theirs.csv"
    of_torch(kind)._dump_csv(str(path), format=form)
    verify(schedules.read_schedule(path, ignore_sharding=True))


@each_schedule
def test_a_schedule_that_is_written_here_is_read_by_torch(kind, tmp_path):
    stages, name = SCHEDULES[kind]
    schedule, path = schedules.build(name, 2, 8), tmp_path / "mine.csv"
    path.write_text(schedule.to_csv())
    runtime = pipelining._PipelineScheduleRuntime(
        [Stage(index, 4) for index in stages], 8
    )
    runtime._load_csv(str(path))
    assert [
        [str(action) for action in row] for row in runtime.pipeline_order.values()
    ] == [line.split(",") for line in path.read_text().splitlines()]
    assert runtime.stage_index_to_group_rank == dict(enumerate(schedule.placement))

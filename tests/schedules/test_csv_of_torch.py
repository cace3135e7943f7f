"""CSV that PyTorch's own schedules write, with and without messages, as torchtitan's
option ``pipeline_parallel_schedule_csv`` takes it; and ours, which PyTorch loads.
"""

from unittest.mock import MagicMock

import pytest

from minipipe import Schedule, schedules, verify
from minipipe.schedules import lower, read_schedule

torch = pytest.importorskip("torch", reason="needs PyTorch: pip install '.[oracle]'")
RANKS = 4
NAMED = {
    "ScheduleInterleaved1F1B": (0, 4),
    "ScheduleLoopedBFS": (0, 4),
    "ScheduleInterleavedZeroBubble": (0, 4),
    "ScheduleZBVZeroBubble": (0, 7),
    "ScheduleDualPipeV": (0, 7),
}


@pytest.fixture(scope="module")
def make():
    """Return a function from the name of a class and the stages of rank 0 to a schedule
    of PyTorch for 8 microbatches on 4 ranks, of which only this process exists.
    """
    from torch import distributed
    from torch.distributed.pipelining import schedules as of_torch
    from torch.testing._internal.distributed.fake_pg import FakeStore

    distributed.init_process_group("fake", rank=0, world_size=4, store=FakeStore())

    def made(name, stages):
        parts = []
        for index in stages:
            sizes = {"group_size": RANKS, "num_stages": 2 * RANKS}
            group = distributed.group.WORLD
            part = MagicMock(**sizes, group_rank=0, stage_index=index, group=group)
            part.submod = torch.nn.Linear(1, 1)
            parts.append(part)
        return getattr(of_torch, name)(parts, 8, loss_fn=lambda *_: None)

    yield made
    distributed.destroy_process_group()


@pytest.mark.parametrize("name", NAMED)
def test_a_dump_with_messages_has_the_computations_of_the_dump_without(
    make, tmp_path, name
):
    schedule = make(name, NAMED[name])
    paths = {
        form: tmp_path / f"{form}.csv" for form in ("compute_only", "compute_comms")
    }
    for form, path in paths.items():
        schedule._dump_csv(path, format=form)
    alone = read_schedule(paths["compute_only"])
    program = read_schedule(paths["compute_comms"], ignore_sharding=True)
    assert type(alone) is Schedule and program.schedule.actions == alone.actions
    for table in (alone, program):
        verify(table)


@pytest.mark.parametrize(
    "schedule",
    [schedules.interleaved_1f1b(4, 8, 2), schedules.zb_v(4, 8)],
    ids=lambda schedule: schedule.name,
)
def test_pytorch_loads_our_csv_and_sends_what_we_send(make, tmp_path, schedule):
    path = tmp_path / "ours.csv"
    path.write_text(schedule.to_csv())
    loaded = make("_PipelineScheduleRuntime", (0, 4))
    loaded._load_csv(path)
    loaded._dump_csv(path, format="compute_comms")
    program = read_schedule(path, ignore_sharding=True)
    verify(program)
    assert program.schedule.actions == schedule.actions
    expected = lower(schedule)
    assert sorted(map(sorted, program.actions)) == sorted(map(sorted, expected.actions))

"""The names of PyTorch that lessons mention exist, where PyTorch is installed."""

import importlib
import re

import pytest

from tests.launch import ROOT

LESSONS = "\n".join(
    path.read_text() for path in sorted((ROOT / "tutorials").glob("[0-9][0-9]_*.py"))
)

# By name, the module that has it.
NAMES = {
    "DistributedDataParallel": "torch.nn.parallel",
    "PipelineStage": "torch.distributed.pipelining",
    "ScheduleDualPipeV": "torch.distributed.pipelining",
    "ZeroRedundancyOptimizer": "torch.distributed.optim",
    "_PipelineScheduleRuntime": "torch.distributed.pipelining.schedules",
    "fully_shard": "torch.distributed.fsdp",
    "get_schedule_class": "torch.distributed.pipelining.schedules",
    "init_device_mesh": "torch.distributed.device_mesh",
    "parallelize_module": "torch.distributed.tensor.parallel",
}


@pytest.mark.slow  # importing PyTorch takes seconds
@pytest.mark.parametrize(("name", "module"), NAMES.items(), ids=NAMES)
def test_a_name_of_pytorch_in_a_lesson_exists(name, module):
    pytest.importorskip("torch", reason="needs PyTorch: pip install '.[oracle]'")
    assert re.search(rf"\b{name}\b", LESSONS)
    assert hasattr(importlib.import_module(module), name)


@pytest.mark.slow
def test_pytorch_has_the_arguments_and_methods_that_lessons_name():
    pytest.importorskip("torch", reason="needs PyTorch: pip install '.[oracle]'")
    from inspect import signature

    from torch.distributed.fsdp import fully_shard
    from torch.distributed.pipelining import (
        PipelineStage,
        Schedule1F1B,
        ScheduleDualPipeV,
    )
    from torch.distributed.pipelining.schedules import (
        _PipelineScheduleRuntime,
        get_schedule_class,
    )

    assert get_schedule_class("DualPipeV") is ScheduleDualPipeV
    assert "scale_grads" in signature(Schedule1F1B).parameters
    assert {"mesh", "reshard_after_forward"} <= signature(fully_shard).parameters.keys()
    assert "group" in signature(PipelineStage).parameters
    assert (
        signature(_PipelineScheduleRuntime._load_csv).parameters["format"].default
        == "compute_only"
    )

"""The name of a device, and the array module that it stands for."""

import sys
from types import ModuleType, SimpleNamespace

import numpy as np
import pytest

from minipipe import nn
from minipipe.core.autograd import backend
from minipipe.errors import LaunchError


@pytest.fixture
def two_gpus(monkeypatch):
    """Return the numbers of the GPUs that were chosen, on a machine that seems to have
    two.
    """
    chosen, cupy = [], ModuleType("cupy")
    runtime = SimpleNamespace(getDeviceCount=lambda: 2)
    cupy.cuda = SimpleNamespace(
        runtime=runtime,
        Device=lambda number: SimpleNamespace(use=lambda: chosen.append(number)),
    )
    monkeypatch.setitem(sys.modules, "cupy", cupy)
    return chosen


@pytest.mark.parametrize(
    ("device", "numbers"),
    [
        ("gpu", [0, 1, 0]),
        ("cuda", [0, 1, 0]),
        ("cuda:0", [0, 0, 0]),
        ("gpu:1", [1, 1, 1]),
        ("cuda:1", [1, 1, 1]),
    ],
)
def test_a_gpu_has_its_name_here_and_in_pytorch_and_with_a_number_it_is_that_one_on_every_rank(
    device, numbers, two_gpus
):
    assert {backend.module_for(device, local_rank) for local_rank in range(3)} == {
        sys.modules["cupy"]
    }
    assert two_gpus == numbers


@pytest.mark.parametrize("device", ["cuda:2", "gpu:17"])
def test_a_gpu_that_is_not_there_is_refused(device, two_gpus):
    with pytest.raises(
        LaunchError,
        match=f"device is '{device}', but there are 2 GPUs, from 'gpu:0' on",
    ) as caught:
        backend.module_for(device)
    assert caught.value.code == "unavailable" and two_gpus == []


@pytest.mark.parametrize(
    "device",
    [
        "mps",
        "CUDA",
        "gpu:",
        "cuda:-1",
        "cuda:1:2",
        "cuda:99999",
        "",
        0,
        None,
        np.float16,
    ],
)
def test_another_device_is_refused_with_the_names_of_those_that_are_taken(
    device, two_gpus
):
    with pytest.raises(
        LaunchError, match="expected 'cpu', 'gpu' or 'gpu:NUMBER'"
    ) as caught:
        nn.Linear(2, 2).to(device)
    assert caught.value.code == "unavailable" and ("dtype=" in str(caught.value)) == (
        device is np.float16
    )


@pytest.mark.parametrize("device", ["cpu", "cpu:0", np])
def test_the_processor_is_numpy(device):
    assert backend.module_for(device) is np

"""The name of a device, and the array module that it stands for."""

import configparser
import ctypes
import sys
from types import ModuleType, SimpleNamespace

import array_api_strict
import numpy as np
import pytest

from minipipe import Tensor, functional, nn
from minipipe.autograd import devices
from minipipe.core.autograd import backend
from minipipe.errors import LaunchError
from tests.test_house import PACKAGE


class OfCupy:
    """An array of CuPy, as far as a tensor asks."""

    shape, dtype, size = (2,), np.dtype("float32"), 2

    def __array_namespace__(self):
        return sys.modules["cupy"]


@pytest.fixture
def two_gpus(monkeypatch):
    """Return the numbers of the GPUs that were chosen, on a machine that seems to have
    two.
    """
    chosen, cupy = [], ModuleType("cupy")
    cupy.ndarray = OfCupy
    runtime = SimpleNamespace(getDeviceCount=lambda: 2)
    cupy.cuda = SimpleNamespace(
        runtime=runtime,
        Device=lambda number: SimpleNamespace(use=lambda: chosen.append(number)),
    )
    monkeypatch.setitem(sys.modules, "cupy", cupy)
    monkeypatch.setattr("minipipe.gpu.install", lambda xp: None)  # it has no kernels
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


WAYS = {
    "by name": lambda cupy: backend.module_for("gpu"),
    "by a number": lambda cupy: backend.module_for("cuda:1"),
    "as a module": backend.module_for,
    "in a tensor": lambda cupy: Tensor(OfCupy()),
    "in an operation": lambda cupy: functional.reshape(OfCupy(), (2,)),
}


@pytest.mark.parametrize("way", WAYS)
def test_every_way_to_name_a_gpu_installs_kernels(way, two_gpus, monkeypatch):
    installed = []
    monkeypatch.setattr("minipipe.gpu.install", installed.append)
    cupy = sys.modules["cupy"]
    for _ in range(2):
        WAYS[way](cupy)
    assert set(installed) == {cupy}


def test_other_modules_and_arrays_of_numpy_install_nothing(two_gpus, monkeypatch):
    installed = []
    monkeypatch.setattr("minipipe.gpu.install", installed.append)
    backend.module_for(array_api_strict)
    Tensor(array_api_strict.ones(2))
    functional.gelu(np.ones(2))
    nn.Linear(2, 2).to(np)
    assert installed == []


@pytest.mark.parametrize("device", ["cpu", "cpu:0", np])
def test_the_processor_is_numpy(device):
    assert backend.module_for(device) is np


# -- what is missing, in one sentence --------------------------------------------------


def cupy_with(driver, built_for, count=None, compiles=True):
    """Return a CuPy for some CUDA, on a machine with a driver and some GPUs."""
    cupy = ModuleType("cupy")
    cupy.__version__ = "14.2.0"

    class CUDARuntimeError(RuntimeError):
        pass

    def num_devices():
        if count is None:
            raise CUDARuntimeError("the driver refuses")
        return count

    def compiler():
        if not compiles:
            raise RuntimeError("no libnvrtc.so.13\nin any of many places")
        return 13, 0

    runtime = SimpleNamespace(
        runtimeGetVersion=lambda: built_for,
        driverGetVersion=lambda: driver,
        getDeviceCount=num_devices,
        getDeviceProperties=lambda i: {"name": b"NVIDIA H200"},
        CUDARuntimeError=CUDARuntimeError,
    )
    nvrtc = SimpleNamespace(getVersion=compiler)
    cupy.cuda = SimpleNamespace(runtime=runtime, nvrtc=nvrtc)
    return cupy


UNINSTALL = "no GPU: pip uninstall cupy-cuda13x, and then the driver supports CUDA"


@pytest.mark.parametrize(
    ("cupy", "words"),
    [
        (cupy_with(13000, 13000, 1), "CuPy 14.2.0 for CUDA 13.0, NVIDIA H200"),
        # a driver runs what was built for an older CUDA
        (cupy_with(13020, 12090, 1), "CuPy 14.2.0 for CUDA 12.9, NVIDIA H200"),
        (cupy_with(12040, 12090, 1), "CuPy 14.2.0 for CUDA 12.9, NVIDIA H200"),
        (cupy_with(13000, 13000, 0), "CuPy 14.2.0 for CUDA 13.0, no GPU"),
        (
            cupy_with(12040, 13000),
            f"CuPy 14.2.0 for CUDA 13.0, but {UNINSTALL} 12.4; pip install -e '.[gpu]'",
        ),
        (
            cupy_with(11080, 13000),
            f"but {UNINSTALL} 11.8; expected 12.0 or later, so update the driver",
        ),
        (cupy_with(0, 12090), "for CUDA 12.9, but no GPU: there is no NVIDIA driver"),
        (cupy_with(13000, 12090), "for CUDA 12.9, but no GPU: the driver refuses"),
        (
            cupy_with(13000, 13000, 1, compiles=False),
            "CUDA's compiler is missing: pip install 'cupy-cuda13x[ctk]' "
            "(no libnvrtc.so.13)",
        ),
    ],
)
def test_what_fits_and_what_does_not_is_said(cupy, words, monkeypatch):
    monkeypatch.setitem(sys.modules, "cupy", cupy)
    assert words in devices.gpu_description()


@pytest.mark.parametrize(
    ("driver", "words"),
    [
        (0, "'.[gpu]' in minipipe's folder for CUDA 12, or '.[gpu13]' for CUDA 13"),
        (11080, "CUDA 11.8; expected 12.0 or later, so update the driver"),
        (12000, "CUDA 12.0; pip install -e '.[gpu]'"),
        (12090, "CUDA 12.9; pip install -e '.[gpu]'"),
        (13000, "CUDA 13.0; pip install -e '.[gpu13]'"),
        (14010, "CUDA 14.1; pip install -e '.[gpu13]'"),
    ],
)
def test_without_cupy_the_driver_says_which_one_to_install(driver, words, monkeypatch):
    monkeypatch.setitem(sys.modules, "cupy", None)
    monkeypatch.setattr(devices, "_driver", lambda: driver)
    found = devices.gpu_description()
    assert found.startswith("no CuPy: ") and words in found


def test_the_version_of_a_driver_is_read_without_cupy(monkeypatch):
    class Library:
        def cuDriverGetVersion(self, found):
            found._obj.value = 12040
            return 0

    def loading(name):
        assert name == "libcuda.so.1"
        return Library()

    monkeypatch.setattr(ctypes, "CDLL", loading)
    assert devices._driver() == 12040

    def missing(name):
        raise OSError("no such file")

    monkeypatch.setattr(ctypes, "CDLL", missing)
    assert devices._driver() == 0


def test_each_version_of_cuda_has_its_extra():
    extras = configparser.ConfigParser()
    extras.read(PACKAGE.parent / "setup.cfg")
    for version, command in devices._INSTALL.items():
        extra = command.partition("[")[2].partition("]")[0]
        given = extras["options.extras_require"][extra].split()
        assert given == [f"cupy-cuda{version}x>=14"]

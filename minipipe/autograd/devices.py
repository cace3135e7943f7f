"""The GPUs of this host, which CuPy computes on."""

from __future__ import annotations

import ctypes
import re
from types import ModuleType

import numpy as np

from minipipe.errors import LaunchError, quoted


def gpu_module(device: object, local_rank: int) -> ModuleType:
    """Return the module of a device that is not ``"cpu"``; parameters and errors are as
    in ``module_for`` of ``core/autograd/backend.py``.
    """
    xp = device
    if not isinstance(xp, ModuleType):
        xp = _chosen(device, local_rank)
    if xp.__name__ == "cupy":
        import cupy  # it may be traced here

        # on demand: it imports the operations
        from minipipe.gpu import install

        install(cupy)
    return xp


def _chosen(device: object, local_rank: int) -> ModuleType:
    """Return CuPy, and let this thread use a GPU from now on."""
    parts = None
    if isinstance(device, str):
        parts = re.fullmatch(r"(?:gpu|cuda)(?::(\d{1,4}))?", device)
    if parts is None:
        is_dtype = isinstance(device, type | np.dtype)
        advice = ""
        if is_dtype:
            advice = " A layer gets its dtype when it is made: nn.Linear(…, dtype=…)."
        message = (
            f"device is {quoted(device)}; expected 'cpu', 'gpu' or 'gpu:NUMBER' "
            f"('cuda' is 'gpu').{advice}"
        )
        raise LaunchError("unavailable", message)
    try:
        import cupy

        count = cupy.cuda.runtime.getDeviceCount()
    # a driver that is missing, too old or busy raises many things
    except Exception as error:
        raise LaunchError(
            "unavailable",
            f"There is no GPU to use: {gpu_description()} ({error}). Use device='cpu'.",
        ) from None
    number = local_rank % count if parts[1] is None else int(parts[1])
    if number >= count:
        message = f"device is {device!r}, but there are {count} GPUs, from 'gpu:0' on."
        raise LaunchError("unavailable", message)
    cupy.cuda.Device(number).use()
    return cupy


def gpu_description() -> str:
    """Return the GPUs that CuPy sees; or why it sees none, and what to install."""
    try:
        import cupy
    except ImportError:
        return f"no CuPy: {_advice(_driver())}"
    runtime = cupy.cuda.runtime
    built_for = runtime.runtimeGetVersion()
    name = f"CuPy {cupy.__version__} for CUDA {_dotted(built_for)}"
    try:
        count = runtime.getDeviceCount()
        properties = runtime.getDeviceProperties
        names = [properties(i)["name"].decode() for i in range(count)]
    except runtime.CUDARuntimeError as error:
        driver = runtime.driverGetVersion()
        if 0 < driver < built_for // _MAJOR * _MAJOR:
            wrong = f"pip uninstall cupy-cuda{built_for // _MAJOR}x, and then"
            return f"{name}, but no GPU: {wrong} {_advice(driver)}"
        if not driver:
            return f"{name}, but no GPU: there is no NVIDIA driver"
        return f"{name}, but no GPU: {error}"
    found = f"{name}, {', '.join(names) or 'no GPU'}"
    try:
        cupy.cuda.nvrtc.getVersion()
    except Exception as error:  # of the loader, or of the library
        first = str(error).partition("\n")[0]
        advice = f"{_COMPILERS[built_for // _MAJOR]} ({first})"
        return f"{found}; but CUDA's compiler is missing: {advice}"
    return found


_MAJOR = 1000
_INSTALL = {  # by CUDA's version
    12: "pip install -e '.[gpu]' in minipipe's folder",
    13: "pip install -e '.[gpu13]' in minipipe's folder",
}
_COMPILERS = {
    12: "pip install 'cupy-cuda12x[ctk]'",
    13: "pip install 'cupy-cuda13x[ctk]'",
}


def _dotted(version: int) -> str:
    return f"{version // _MAJOR}.{version % _MAJOR // 10}"


def _driver() -> int:
    """Return the latest version of CUDA that the driver supports, 12040 for 12.4; 0
    without a driver.
    """
    version = ctypes.c_int(0)
    try:
        ctypes.CDLL("libcuda.so.1").cuDriverGetVersion(ctypes.byref(version))
    except (OSError, AttributeError):
        return 0
    return version.value


def _advice(driver: int) -> str:
    """Return what to install for a driver."""
    if not driver:
        return f"{_INSTALL[12]} for CUDA 12, or '.[gpu13]' for CUDA 13"
    words = f"the driver supports CUDA {_dotted(driver)}"
    if driver // _MAJOR < min(_INSTALL):
        return f"{words}; expected 12.0 or later, so update the driver"
    return f"{words}; {_INSTALL[min(driver // _MAJOR, max(_INSTALL))]}"

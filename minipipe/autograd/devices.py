"""The GPUs of this host, which CuPy computes on."""

from __future__ import annotations

import re
from types import ModuleType

import numpy as np

from minipipe.errors import LaunchError, quoted


def gpu_module(device: object, local_rank: int) -> ModuleType:
    """Return CuPy, and let this thread use a GPU from now on; parameters and errors are
    as in ``module_for`` of ``core/autograd/backend.py``.
    """
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
    # on demand: it imports the operations
    from minipipe.gpu import install

    install(cupy)
    return cupy


def gpu_description() -> str:
    """Return the GPUs that CuPy sees, or why it sees none."""
    try:
        import cupy
    except ImportError:
        return "no CuPy: pip install -e '.[gpu]' in minipipe's folder"
    try:
        count = cupy.cuda.runtime.getDeviceCount()
        properties = cupy.cuda.runtime.getDeviceProperties
        names = [properties(i)["name"].decode() for i in range(count)]
    except cupy.cuda.runtime.CUDARuntimeError as error:
        return f"CuPy {cupy.__version__}, but no GPU: {error}"
    return f"CuPy {cupy.__version__}, {', '.join(names) or 'no GPU'}"

"""Kernels of ``minipipe/gpu`` on the CPU: g++ compiles their sources, with the threads
of a block as fibers (``emulation.hpp``), for arrays of the stand-in module.
"""

import ctypes
import re
import shutil
import subprocess
import tempfile
from contextlib import contextmanager
from functools import cache
from pathlib import Path

import pytest

from minipipe.gpu import entries, kernels
from minipipe.gpu.versions import set_forward
from tests.compile import device

NAME = device.__name__
needs_compiler = pytest.mark.skipif(
    shutil.which("g++") is None, reason="needs g++: apt-get install g++"
)
_ERRORS = {
    1: "takes other arguments",
    2: "has a grid or a block that a GPU refuses",
    3: "waits for threads that will never arrive",
}
_KERNEL = re.compile(r'(?:KERNEL|extern "C" __global__ void)\s+(?!__)(\w+)\(')
_WRAPPER = """
extern "C" int launch_{name}(
    const unsigned* dims, void** arguments, const char* kinds) {{
    return launch({name}, dims, arguments, kinds);
}}
"""


@cache
def load(source):
    """Compile a source, and return its kernels by name."""
    wrappers = (_WRAPPER.format(name=name) for name in _KERNEL.findall(source))
    header = f'#include "{Path(__file__).with_name("emulation.hpp")}"\n'
    with tempfile.TemporaryDirectory() as folder:
        file, library = Path(folder, "kernels.cpp"), Path(folder, "kernels.so")
        file.write_text(header + source + "".join(wrappers))
        options = [
            f"-DIS_SINGLE={int('typedef float real;' in source)}",
            "-std=c++17",
            "-O1",
            "-ffp-contract=off",
            "-shared",
            "-fPIC",
            "-w",
            "-o",
        ]
        subprocess.run(["g++", *options, library, file], check=True)
        loaded = ctypes.PyDLL(str(library))  # one launch at a time, of all thread ranks
    return lambda name: Kernel(getattr(loaded, f"launch_{name}"), name)


class Kernel:
    """A kernel, launched as by CuPy; captured, it waits for its graph."""

    num_launches = 0
    is_reversed = False  # whether the last warp of a block comes first

    def __init__(self, function, name):
        self._function, self._name = function, name

    def __call__(self, blocks, threads, arguments):
        Kernel.num_launches += 1
        dims = [*blocks, *[1] * (3 - len(blocks)), *threads, *[1] * (3 - len(threads))]
        kinds, values = zip(*map(_argument, arguments))
        dims = (ctypes.c_uint * 7)(*dims, Kernel.is_reversed)
        pointers = (ctypes.c_void_p * len(values))(*map(ctypes.addressof, values))

        memory = [getattr(each, "_data", each) for each in arguments]

        def run(_kept=(values, memory)):
            code = self._function(dims, pointers, "".join(kinds).encode())
            assert code == 0, f"{self._name} {_ERRORS[code]}"

        device._do(run)


def _argument(value):
    """Return the kind of an argument, and the value in memory."""
    if isinstance(value, device.Array):
        assert value.flags.c_contiguous
        return "p", ctypes.c_void_p(value._data.ctypes.data)
    if type(value) is int:
        return "i", ctypes.c_longlong(value)
    assert type(value) is float, f"{value!r} is no argument of a kernel"
    return "d", ctypes.c_double(value)


@contextmanager
def installed():
    """Let operations on arrays of the stand-in compute by kernels inside this block."""
    before = []
    for function in entries.ENTRIES:
        operation = function.operation
        tables = dict(operation.steps), dict(operation.shared)
        before.append((function, operation.forward, *tables))
    kernels.LOADERS[NAME] = load
    entries.install(device)
    try:
        yield
    finally:
        entries._installed.discard(NAME)
        for table, _ in entries.TABLES:
            del table[NAME]
        for function, forward, steps, shared in before:
            set_forward(function, forward)
            function.operation.steps = steps
            function.operation.shared = shared
            function.operation.plans.clear()

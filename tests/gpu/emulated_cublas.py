"""The functions of cuBLAS that minipipe calls, on the CPU: g++ compiles `cublas.cpp`."""

import functools
import shutil
import subprocess
import tempfile
from pathlib import Path

import pytest

from tests.compile.device_streams import current

needs_compiler = pytest.mark.skipif(
    shutil.which("g++") is None, reason="needs g++: apt-get install g++"
)


def compiled(folder, name, text, *options):
    """Compile a source to a library, and return its path."""
    source, library = Path(folder, f"{name}.cpp"), Path(folder, f"lib{name}.so")
    source.write_text(text)
    flags = ["-std=c++17", "-O1", "-shared", "-fPIC", "-w", "-o"]
    subprocess.run(["g++", *flags, library, source, *options], check=True)
    return library


@functools.cache
def folder():
    """Return a folder that lives as long as Python does."""
    return tempfile.TemporaryDirectory()


@functools.cache
def library():
    """Return the path of the library."""
    text = Path(__file__).with_name("cublas.cpp").read_text()
    return compiled(folder().name, "cublas", text)


class Recorded:
    """The functions of the library; in a capture, products wait for their graph.

    As on a GPU, no handle is made in a capture, and one has a stream.
    """

    def __init__(self, loaded):
        self._loaded, self._streams = loaded, {}

    def __getattr__(self, name):
        function = Recorder(getattr(self._loaded, name), self._streams)
        setattr(self, name, function)
        return function


class Recorder:
    """A function of the library."""

    def __init__(self, function, streams):
        self._function, self._streams = function, streams
        self._is_product = "Gemm" in function.__name__

    def __call__(self, *given):
        if not self._is_product:
            current().forbid(f"{self._function.__name__} is called")
            if self._function.__name__ == "cublasSetStream_v2":
                self._streams[given[0].value] = given[1].value
            return self._function(*given)
        assert self._streams[given[0].value] == current().ptr

        statuses = []
        current().do(lambda: statuses.append(self._function(*given)))
        return statuses[0] if statuses else 0

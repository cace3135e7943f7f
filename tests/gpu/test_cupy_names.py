"""What the engine asks of an array module, CuPy has. Needs CuPy, but no GPU."""

import ast
from importlib.util import find_spec
from pathlib import Path

import numpy as np
import pytest

import minipipe
from minipipe.compile.dialect import dialect_of
from minipipe.compile.graphs import can_capture

cupy = pytest.importorskip("cupy", reason="needs CuPy: pip install '.[gpu]'")
PACKAGE = Path(minipipe.__file__).parent
FILES = [
    *PACKAGE.glob("functional/*.py"),
    *PACKAGE.glob("optim/*.py"),
    *PACKAGE.glob("nn/*.py"),
    PACKAGE / "core/tensor.py",
]
FILES.append(PACKAGE / "core/autograd/backend.py")


def names_asked_of_array_modules(path):
    """Yield NAME of every ``xp.NAME`` and ``array_module(…).NAME``."""
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Attribute):
            owner = node.value
            is_call = (
                isinstance(owner, ast.Call)
                and getattr(owner.func, "id", "") == "array_module"
            )
            if is_call or getattr(owner, "id", "") == "xp":
                yield node.attr


def test_cupy_has_every_function_that_is_called():
    asked = {name for path in FILES for name in names_asked_of_array_modules(path)} - {
        "__name__"
    }
    assert len(asked) > 30
    assert not sorted(name for name in asked if not hasattr(cupy, name))


def test_compiled_sections_write_into_arrays_of_cupy_that_exist():
    dialect = dialect_of(cupy)
    assert dialect.has_out and not dialect.is_numpy
    assert dialect.ufunc(np.add) is cupy.add
    assert dialect.ufunc(np.matmul) is cupy.matmul
    called = {"broadcast_to", "copyto", "empty", "full", "where"}
    assert not sorted(name for name in called if not hasattr(cupy, name))


def test_cupy_has_what_carries_arrays_to_the_host():
    assert (
        cupy.cuda.alloc_pinned_memory
        and cupy.ndarray.get
        and cupy.cuda.Stream.synchronize
        and cupy.cuda.Device.use
    )
    assert cupy.ndarray.set and cupy.cuda.Event.synchronize
    assert cupy.cuda.get_current_stream and cupy.cuda.runtime.getDeviceCount


def test_sections_can_be_captured_as_graphs():
    assert can_capture(cupy)
    assert cupy.cuda.Stream.begin_capture.__doc__.count("streamCaptureModeRelaxed")
    for name in ("record", "wait_event", "end_capture", "__enter__", "__exit__"):
        assert hasattr(cupy.cuda.Stream, name)
    assert cupy.cuda.Graph.launch and cupy.cuda.MemoryPool.malloc
    assert cupy.cuda.using_allocator and cupy.cuda.runtime.getDevice


def test_products_find_cublas_through_the_module_that_calls_it():
    """CuPy's wrapper was linked to cuBLAS, and the loader finds its functions there."""
    wrapper = find_spec("cupy_backends.cuda.libs.cublas").origin
    assert b"libcublas.so." in Path(wrapper).read_bytes()
    assert cupy.cuda.Memory and cupy.ndarray.data and cupy.ndarray.flags

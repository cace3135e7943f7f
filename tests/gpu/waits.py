"""Counts of how often the host waits for the stand-in of a device, or copies to it."""

from collections import Counter
from contextlib import contextmanager
from time import perf_counter
from types import SimpleNamespace

import numpy as np
import pytest

from tests.compile import device

# Functions whose result has a shape that depends on values.
_SHAPED_BY_VALUES = ("flatnonzero", "nonzero", "unique_values", "argwhere")


class Event:
    """A point in the work of the device, which runs at once."""

    def __init__(self):
        self.time = None

    def record(self, stream=None):
        _counts["event"] += 1
        self.time = perf_counter()

    def synchronize(self):
        assert self.time is not None
        _counts["wait"] += 1


def get_elapsed_time(begin, end):
    """Return milliseconds, in single precision, as CUDA does."""
    return float(np.float32((end.time - begin.time) * 1000))


_counts = Counter()


@contextmanager
def counted():
    """Count inside this block: a "read" of values by the host, a "wait", a "copy" from
    the host, an "event".
    """
    get, take, asarray = device.Array.get, device.Array.__getitem__, device.asarray

    def counting_get(array, *given, **options):
        _counts["read"] += 1
        return get(array, *given, **options)

    def counting_take(array, key):
        parts = key if isinstance(key, tuple) else (key,)
        masks = [p for p in parts if isinstance(p, device.Array) and p.dtype == bool]
        _counts["read"] += len(masks)
        return take(array, key)

    def counting_asarray(value, *given, **options):
        _counts["copy"] += not isinstance(value, device.Array)
        return asarray(value, *given, **options)

    def counting(function):
        def call(*given):
            _counts["read"] += 1
            return function(*given)

        return call

    own = vars(getattr(device, "cuda", SimpleNamespace()))
    cuda = SimpleNamespace(**{**own, "Event": Event})
    cuda.get_elapsed_time = get_elapsed_time
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(device.Array, "get", counting_get)
        patch.setattr(device.Array, "__getitem__", counting_take)
        patch.setattr(device, "asarray", counting_asarray)
        patch.setattr(device, "cuda", cuda, raising=False)
        for name in _SHAPED_BY_VALUES:
            function = counting(getattr(device, name))
            patch.setattr(device, name, function, raising=False)
        _counts.clear()
        yield _counts

"""The clock of a device, which runs behind the host."""

from __future__ import annotations

from time import perf_counter
from types import ModuleType
from typing import Any

_LONGEST = 1.0  # seconds: a clock drifts, and a device counts time in single precision


class DeviceClock:
    """Notes times at which a device comes to the work that follows. A call waits for
    nothing; ``float()`` of its result does, and is in seconds of ``time.perf_counter``.

    Parameters
    ----------
    xp : module
        Its attribute ``cuda`` has events, as in CuPy.
    """

    def __init__(self, xp: ModuleType) -> None:
        self._event = xp.cuda.Event
        self._elapsed = xp.cuda.get_elapsed_time
        self._last: tuple[Any, float] | None = None

    def __call__(self) -> DeviceTime:
        event = self._event()
        event.record()
        return DeviceTime(self, event)

    def seconds(self, event: Any) -> float:
        """Return when an event was, by one whose time on both clocks is known."""
        event.synchronize()
        if self._last is None or perf_counter() - self._last[1] > _LONGEST:
            now = self._event()
            now.record()
            now.synchronize()
            self._last = now, perf_counter()
        return self._last[1] + self._elapsed(self._last[0], event) / 1000


class DeviceTime:
    """A time that a :class:`DeviceClock` has noted."""

    __slots__ = ("_clock", "_event")

    def __init__(self, clock: DeviceClock, event: Any) -> None:
        self._clock = clock
        self._event = event

    def __float__(self) -> float:
        return self._clock.seconds(self._event)

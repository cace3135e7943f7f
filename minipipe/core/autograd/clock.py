"""The clock of a device, which runs behind the host."""

from __future__ import annotations

from dataclasses import dataclass
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
        self._cuda: Any = xp.cuda
        self._last: tuple[Any, float] = None, -_LONGEST

    def __call__(self) -> DeviceTime:
        event = self._cuda.Event()
        event.record()
        return DeviceTime(self, event)

    def seconds(self, event: Any) -> float:
        """Return when an event was, by one whose time on both clocks is known."""
        event.synchronize()
        if perf_counter() - self._last[1] > _LONGEST:
            now = self().event
            now.synchronize()
            self._last = now, perf_counter()
        return self._last[1] + self._cuda.get_elapsed_time(self._last[0], event) / 1000


@dataclass(eq=False)
class DeviceTime:
    """A time that a :class:`DeviceClock` has noted."""

    clock: DeviceClock
    event: Any

    def __float__(self) -> float:
        return self.clock.seconds(self.event)

"""Results of one run of a program on a rank: gradients of the inputs, times, and memory
held.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from minipipe.core.execution.payload import Payload
    from minipipe.core.schedules.action import Action
    from minipipe.core.schedules.analysis.dependencies import Transfer


class Receipt(NamedTuple):
    """A received message: since when it was awaited, when it arrived, and its bytes."""

    awaited_from: float
    arrived: float
    size: int


@dataclass
class Record:
    """Results of one run on this rank. Times come from ``time.perf_counter``.

    Attributes
    ----------
    input_gradients : dict of int to Payload
        By microbatch, on the rank of the first stage.
    ran : list of (float, float, int)
        Start and end of every computation of this rank's row, and the microbatches that
        its stage held after it. Of a device ``float()`` reads the times.
    memory : list of (int, int)
        The bytes that all stages held after each computation, and at most while it ran,
        if a ``MemoryMeter`` observed.
    sent : dict of Transfer to float
        When each SEND began.
    received : dict of Transfer to Receipt
    sums : dict of Action to list of float
        By REDUCE_GRAD, when this rank came to it, when the sum was there, and the bytes
        of the gradients.
    begun, left : float
        When the program called the step, and had it back.
    """

    input_gradients: dict[int, Payload] = field(default_factory=dict)
    ran: list[tuple[float, float, int]] = field(default_factory=list)
    memory: list[tuple[int, int]] = field(default_factory=list)
    sent: dict[Transfer, float] = field(default_factory=dict)
    received: dict[Transfer, Receipt] = field(default_factory=dict)
    sums: dict[Action, list[float]] = field(default_factory=dict)
    begun: float = 0.0
    left: float = 0.0

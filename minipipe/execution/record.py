"""What one run of a program leaves behind on a rank: times, what was held, and the timeline of all ranks."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import NamedTuple

import numpy as np

from minipipe.comm import ProcessGroup
from minipipe.execution.checks import part_of
from minipipe.execution.payload import Payload
from minipipe.schedules.action import Action, ActionKind
from minipipe.schedules.action_table import Program
from minipipe.schedules.analysis.dependencies import Value
from minipipe.schedules.simulation.measured import Recorded, measured_timeline
from minipipe.schedules.simulation.timeline import Timeline

_RECEIVES = (ActionKind.RECV_F, ActionKind.RECV_B)


class Receipt(NamedTuple):
    """How a message came: since when it was awaited, when it was there, and its bytes."""

    awaited_from: float
    arrived: float
    size: int


@dataclass
class Record:
    """What one run left behind on this rank. Times are those of ``time.perf_counter``.

    Attributes
    ----------
    input_gradients : dict of int to Payload
        By microbatch, on the rank of the first stage.
    ran : list of (float, float, int)
        Start and end of every computation of this rank's row, and the microbatches that its stage held after it.
    held_bytes : list of (Action, int, int)
        The bytes that the stage of an action held after it, and at most while it computed something again (0 where it
        did not), if it was measured.
    memory : list of (int, int)
        The bytes that all stages held after each action, and at most while it ran, if it was measured. An array that
        two stages on this rank hold counts for both.
    sent : dict of Value to float
        When each SEND began.
    received : dict of Value to Receipt
    begun, left : float
        When the program called the step, and had it back.
    """

    input_gradients: dict[int, Payload] = field(default_factory=dict)
    ran: list[tuple[float, float, int]] = field(default_factory=list)
    held_bytes: list[tuple[Action, int, int]] = field(default_factory=list)
    memory: list[tuple[int, int]] = field(default_factory=list)
    sent: dict[Value, float] = field(default_factory=dict)
    received: dict[Value, Receipt] = field(default_factory=dict)
    begun: float = 0.0
    left: float = 0.0

    def share_time_of_last(self, count: int) -> None:
        """Give the last computations, of which the very last did the work of all, equal parts of their time."""
        together = self.ran[-count:]
        start, end = together[0][0], together[-1][1]
        times = [start + (end - start) * i / count for i in range(count + 1)]
        self.ran[-count:] = [(*part, held) for part, (_, _, held) in zip(pairwise(times), together)]


def gather_timeline(group: ProcessGroup, records: Sequence[Record], program: Program) -> Timeline:
    """Return the measured timeline of all ranks and some steps, in seconds from the beginning. Collective."""
    received = [Value.carried_by(action) for action in program.actions[group.rank] if action.kind in _RECEIVES]
    own = Recorded(
        ran=[item for record in records for item in record.ran],
        memory=[item for record in records for item in record.memory],
        changes=[(before.left, after.begun) for before, after in pairwise(records)],
        sent=[time for record in records for time in record.sent.values()],
        received=[record.received[value] for record in records for value in received],
    )
    gathered = []
    for items, columns, times in zip(own, (3, 2, 2, 1, 3), (2, 0, 2, 1, 2)):  # the first columns are times
        array = np.array(items, np.float64).reshape(-1, columns)
        array[:, :times] += group.clock_offset
        gathered.append(group.all_gather(array if columns > 1 else array[:, 0], what=part_of("timeline")))
    return measured_timeline(program, [Recorded(*(part.tolist() for part in of)) for of in zip(*gathered)], group.note)

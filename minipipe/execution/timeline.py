"""The measured timeline of all ranks, from the records of each. Apart from ``record.py``, which executors import."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

import numpy as np

from minipipe.comm import ProcessGroup
from minipipe.execution.checks.calls import part_of
from minipipe.execution.record import Record
from minipipe.schedules.action import ActionKind
from minipipe.schedules.action_table import Program
from minipipe.schedules.analysis.dependencies import Value
from minipipe.schedules.simulation.measured import Recorded, measured_timeline
from minipipe.schedules.simulation.timeline import Timeline

_RECEIVES = (ActionKind.RECV_F, ActionKind.RECV_B)


def gather_timeline(group: ProcessGroup, records: Sequence[Record], program: Program) -> Timeline:
    """Return the measured timeline of all ranks and some steps, in seconds from the beginning. Collective."""
    received = [Value.carried_by(action) for action in program.actions[group.rank] if action.kind in _RECEIVES]
    own = Recorded(
        ran=[item for record in records for item in record.ran],
        memory=[item for record in records for item in record.memory],
        changes=[(before.left, after.begun) for before, after in pairwise(records)],
        sent=[time for record in records for time in record.sent.values()],
        received=[record.received[value] for record in records for value in received],
        sums=[times for record in records for times in record.sums.values()],
    )
    gathered = []
    for items, columns, times in zip(own, (3, 2, 2, 1, 3, 3), (2, 0, 2, 1, 2, 2)):  # the first columns are times
        array = np.array(items, np.float64).reshape(-1, columns)
        array[:, :times] += group.clock_offset
        gathered.append(group.all_gather(array if columns > 1 else array[:, 0], what=part_of("timeline")))
    return measured_timeline(program, [Recorded(*(part.tolist() for part in of)) for of in zip(*gathered)], group.note)

"""Several training steps, one after another, as one schedule."""

from __future__ import annotations

from minipipe.errors import ScheduleCode, ScheduleError
from minipipe.printable import quoted
from minipipe.schedules.action import Action
from minipipe.schedules.action_table import T, check_table
from minipipe.schedules.placement import check_size


def repeat(table: T, num_steps: int) -> T:
    """Return the schedule of several training steps without a barrier between them.

    Microbatch k of step s is number ``s * num_microbatches + k``. A rank begins its next step as soon as its own part
    of the last one is over, as with ``Pipeline.step(…, wait=False)``. With a barrier, n steps take n times the makespan
    of one.

    Parameters
    ----------
    table : Schedule or Program
    num_steps : int
        At least 1.

    Returns
    -------
    Schedule or Program
        As given. It is for simulation and drawings: a pipeline would take the steps for one.

    Raises
    ------
    ScheduleError
        Codes ``parameters`` and ``too-large``.

    References
    ----------
    Qi et al. 2023, "Zero bubble pipeline parallelism", section 4: without a synchronisation before the optimiser's
    step, the bubbles of ZB-H2 between two steps overlap.

    Examples
    --------
    >>> from minipipe import schedules, simulate
    >>> one, two, three = (simulate(repeat(schedules.zb_h2(4, 8), n)).makespan for n in (1, 2, 3))
    >>> one, two - one, three - two
    (27.0, 24.0, 24.0)
    """
    check_table(table)
    if not isinstance(num_steps, int) or isinstance(num_steps, bool) or num_steps < 1:
        message = f"num_steps is {quoted(num_steps)}; expected a whole number, at least 1."
        raise ScheduleError.of(ScheduleCode.PARAMETERS, message)
    if num_steps == 1:
        return table
    m = table.num_microbatches
    check_size(table.num_stages, num_steps * m)
    rows = [[Action(s, kind, n * m + k) for n in range(num_steps) for s, kind, k in row] for row in table.actions]
    name = f"{table.name}, {num_steps} steps"
    return type(table)(name, table.placement, num_steps * m, tuple(map(tuple, rows)), table.frozen)

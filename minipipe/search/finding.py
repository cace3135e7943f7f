"""Find a schedule for a workload, and certify how good it is."""

from __future__ import annotations

from numbers import Real
from time import perf_counter

from minipipe.analysis.bounds import lower_bound
from minipipe.analysis.workload import Objective, Workload
from minipipe.errors import ScheduleCode, ScheduleError
from minipipe.printable import quoted
from minipipe.search.certificate import Certificate
from minipipe.search.exact import solve, solver_module
from minipipe.search.heuristic import Search
from minipipe.search.list_scheduling import schedule_of
from minipipe.simulation.evaluation import evaluate


def find_schedule(
    workload: Workload,
    objective: Objective = Objective.SPAN,
    seconds: float = 20.0,
    seed: int = 0,
    exact: bool = False,
) -> Certificate:
    """Return the best schedule that a heuristic search finds, with a lower bound.

    It ends as soon as its schedule reaches the bound, which proves that none is better. Local; no messages, one core.

    Parameters
    ----------
    workload : Workload
        Of any placement; :meth:`minipipe.Costs.workload` makes one.
    objective : Objective
        What is made small.
    seconds : float
        How long it may search. The first schedules are made even if that takes longer.
    seed : int
        Of its random numbers. Two runs of the same seconds may still differ: a slower machine tries less.
    exact : bool
        Whether CP-SAT takes the second half of the time, with what the first has found: to prove it, or find a better
        one. It needs OR-tools: ``pip install 'minipipe-mpi[search]'``.

    Returns
    -------
    Certificate

    Raises
    ------
    ScheduleError
        Code ``parameters``, if there is no such objective, the time is not above 0, or a limit of memory is too small
        for one microbatch.
    ArgumentError
        Code ``value``, if ``exact`` is wanted and OR-tools are not installed.

    Examples
    --------
    >>> from minipipe import Costs
    >>> found = find_schedule(Costs().workload((0, 1, 2, 3), 8, memory_limit=7), seconds=5)
    >>> found.value, found.gap
    (24.0, 0.0)
    """
    begun = perf_counter()
    if not isinstance(seconds, Real) or not seconds > 0:
        message = f"seconds is {quoted(seconds)}; expected a time above 0."
        raise ScheduleError.of(ScheduleCode.PARAMETERS, message)
    if objective not in list(Objective):
        message = f"objective is {quoted(objective)}; expected {' or '.join(repr(str(known)) for known in Objective)}."
        raise ScheduleError.of(ScheduleCode.PARAMETERS, message)
    objective = Objective(objective)
    if exact:
        solver_module()  # which refuses at once, not after half of the time
    bound = lower_bound(workload, objective)
    best = Search(workload, objective, bound.value, seconds / 2 if exact else seconds, seed).run()
    schedule = schedule_of(best.run.words, workload, "found")
    value = evaluate(schedule, workload, objective)
    found = Certificate(
        schedule, workload, objective, value, bound.value, bound.name, best.found_by, perf_counter() - begun
    )
    if not exact or not found.gap:
        return found
    proved = solve(workload, objective, max(seconds - found.seconds, 1.0), schedule)
    proved = proved._replace(seconds=perf_counter() - begun)
    return proved if proved.value < value else proved._replace(schedule=schedule, value=value, found_by=found.found_by)

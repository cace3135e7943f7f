"""Find a schedule for a workload, and certify how good it is."""

from __future__ import annotations

from math import inf
from numbers import Real
from time import perf_counter

from minipipe.errors import ScheduleCode, ScheduleError, unfit, whole_number
from minipipe.schedules.analysis.workload import Objective, Workload
from minipipe.schedules.search.certificate import Certificate
from minipipe.schedules.search.exact import solve, solver_module
from minipipe.schedules.search.gallery import known_bound
from minipipe.schedules.search.heuristic import Search
from minipipe.schedules.search.list_scheduling import schedule_of
from minipipe.schedules.simulation.evaluation import evaluate

_ACTIONS = 10**7  # of all schedules together that a search tries if it is not told
_SECONDS = 20.0  # of the exact search, likewise


def find_schedule(
    workload: Workload,
    objective: Objective = Objective.SPAN,
    seconds: float | None = None,
    seed: int = 0,
    exact: bool = False,
    evaluations: int | None = None,
) -> Certificate:
    """Return the best schedule that a heuristic search finds, with a lower bound.

    It ends as soon as its schedule reaches the bound, which proves that none is better. Local; no messages, one core.

    Parameters
    ----------
    workload : Workload
        Of any placement; :meth:`minipipe.Costs.workload` makes one.
    objective : Objective
        What is made small.
    seconds : float, optional
        The most that it may take. A slow machine evaluates less in this time, and may find less; where the clock ended
        the search, ``found_by`` of the certificate says so.
    seed : int
        Of its random numbers. Evaluations and seed decide what is found, on any machine.
    exact : bool
        Whether CP-SAT goes on from what was found, to prove it, or find a better one: in the second half of the time,
        or for 20 seconds. It needs OR-tools: ``pip install -e '.[search]'``.
    evaluations : int, optional
        The most schedules that it tries. Where neither this nor ``seconds`` is given, so many that all of them have
        10 million actions, which takes up to a minute or so.

    Returns
    -------
    Certificate

    Raises
    ------
    ScheduleError
        Code ``parameters``, if there is no such objective, the time or the evaluations are not above 0, or a limit of
        memory is too small for one microbatch.
    ArgumentError
        Code ``value``, if ``exact`` is wanted and OR-tools are not installed.

    Examples
    --------
    >>> from minipipe import Costs
    >>> found = find_schedule(Costs().workload((0, 1, 2, 3), 8, memory_limit=7))
    >>> found.value, found.gap
    (24.0, 0.0)
    """
    begun, objective = perf_counter(), _checked(objective, seconds, evaluations)
    if exact:
        solver_module()  # which refuses at once, not after half of the time
    bound = known_bound(workload, objective)
    search = Search(workload, objective, bound.value, seed)
    usual = usual_evaluations(workload) if seconds is None else inf
    best = search.run(
        usual if evaluations is None else evaluations, inf if seconds is None else seconds / 2 if exact else seconds
    )
    schedule = schedule_of(best.run.words, workload, "found")
    value = evaluate(schedule, workload, objective)
    found_by = f"{best.found_by}, evaluation {search.progress[-1][0]}"
    found_by += f" (the clock ended the search after {search.evaluations})" if search.is_late else ""
    found = Certificate(schedule, workload, objective, value, bound.value, bound.name, found_by, perf_counter() - begun)
    if not exact or not found.gap:
        return found
    left = _SECONDS if seconds is None else max(seconds - found.seconds, 1.0)
    proved = solve(workload, objective, left, schedule)._replace(seconds=perf_counter() - begun)
    if proved.bound < found.bound:
        proved = proved._replace(bound=found.bound, bound_by=found.bound_by)
    return proved if proved.value < value else proved._replace(schedule=schedule, value=value, found_by=found_by)


def usual_evaluations(workload: Workload) -> int:
    """Return how many schedules a search tries that is told neither a number nor a time."""
    return max(_ACTIONS // (3 * workload.num_stages * workload.num_microbatches), 1)


def _checked(objective: Objective, seconds: float | None, evaluations: int | None) -> Objective:
    """Return the objective; refuse an unknown one, and limits that leave no search."""
    if seconds is not None and (not isinstance(seconds, Real) or not seconds > 0):
        raise unfit("seconds", seconds, "a time above 0")
    if evaluations is not None:
        whole_number("evaluations", evaluations, error=ScheduleError.of, code=ScheduleCode.PARAMETERS)
    if objective not in list(Objective):
        raise unfit("objective", objective, " or ".join(repr(str(known)) for known in Objective))
    return Objective(objective)

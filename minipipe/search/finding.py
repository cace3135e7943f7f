"""Find a schedule for a workload, and certify how good it is."""

from __future__ import annotations

from collections.abc import Callable
from math import inf
from time import perf_counter

from minipipe.core.schedules.action_table import describe_sizes
from minipipe.core.specs import SCHEDULE_AMOUNT, SCHEDULE_COUNT, Spec
from minipipe.errors import ScheduleError, misuse
from minipipe.schedules.analysis.workload import Objective, Workload
from minipipe.schedules.simulation.evaluation import evaluate
from minipipe.search.certificate import Certificate
from minipipe.search.clock import schedule_of
from minipipe.search.exact import solve, solver_module
from minipipe.search.gallery import known_bound
from minipipe.search.heuristic import Search

_TIME = SCHEDULE_AMOUNT._replace(expected="a time above 0")
_OBJECTIVE = Spec(str, choices=tuple(map(str, Objective)), error=ScheduleError.of)
_ACTIONS = 10**7  # of all schedules together that a search tries by default
# Actions of one schedule: to build it, to time it and to print it takes half a minute.
_MOST_ACTIONS = 10**6
_SECONDS = 20.0  # of the exact search, likewise


def find_schedule(
    workload: Workload,
    objective: Objective = Objective.SPAN,
    seconds: float | None = None,
    seed: int = 0,
    exact: bool = False,
    evaluations: int | None = None,
    watch: Callable[[Callable[[], str]], object] = lambda describe: None,
) -> Certificate:
    """Return the best schedule that a heuristic search finds, with a lower bound.

    It ends as soon as its schedule reaches the bound, which proves that none is better.
    Local; no messages, one core.

    Parameters
    ----------
    workload : Workload
        A workload with any placement; :meth:`minipipe.Costs.workload` makes one.
    objective : Objective
        The quantity to minimise.
    seconds : float, optional
        The time limit. A slow machine evaluates fewer schedules in this time, and may
        find a worse one; if the clock ended the search, ``found_by`` of the certificate
        says so.
    seed : int
        The seed of the random numbers. Evaluations and seed determine the result on any
        machine.
    exact : bool
        Whether CP-SAT continues from the result, to prove it or to find a better
        schedule: in the second half of the time, or for 20 seconds. It needs OR-tools:
        ``pip install -e '.[search]'``.
    evaluations : int, optional
        The most schedules that it tries. If neither this nor ``seconds`` is given, the
        schedules have 10 million actions together, which takes up to about a minute.
    watch : function
        Called at the beginning of each phase with a function that returns a progress
        message.

    Returns
    -------
    Certificate

    Raises
    ------
    ScheduleError
        Code ``value``, if there is no such objective, the time or the evaluations
        are not above 0, or a limit of memory is too small for one microbatch.
    ArgumentError
        Code ``value``, if ``exact`` is true and OR-tools are not installed.

    Examples
    --------
    >>> from minipipe import Costs
    >>> found = find_schedule(Costs().workload((0, 1, 2, 3), 8, memory_limit=7))
    >>> found.value, found.gap
    (24.0, 0.0)
    """
    begun = perf_counter()
    objective = checked(objective, seconds, evaluations)
    _check_size(workload)
    if exact:
        solver_module()  # raises now, not after half of the time
    bound = known_bound(workload, objective)
    search = Search(workload, objective, bound.value, seed)
    most: float = inf
    limit = inf
    if evaluations is not None:
        most = evaluations
    elif seconds is None:
        most = usual_evaluations(workload)
    if seconds is not None:
        limit = seconds / 2 if exact else seconds
    watch(lambda: search.describe(most))
    best = search.run(most, limit)
    schedule = schedule_of(best.run.orders, workload, "found")
    value = evaluate(schedule, workload, objective)
    found_by = f"{best.found_by}, evaluation {search.progress[-1][0]}"
    if search.is_late:
        found_by += f" (the clock ended the search after {search.evaluations})"
    spent = perf_counter() - begun
    figures = value, bound.value, bound.name, found_by, spent
    certificate = Certificate(schedule, workload, objective, *figures)
    if not exact or not certificate.gap:
        return certificate
    left = _SECONDS if seconds is None else max(seconds - spent, 1.0)
    watch(lambda: f"CP-SAT continues from {value:g}, for {left:.0f} s at most")
    proved = _continued(certificate, left)
    return proved._replace(seconds=perf_counter() - begun)


def _continued(first: Certificate, seconds: float) -> Certificate:
    """Let CP-SAT prove a schedule, or find a better one."""
    proved = solve(first.workload, first.objective, seconds, first.schedule)
    if proved.bound < first.bound:
        proved = proved._replace(bound=first.bound, bound_by=first.bound_by)
    if proved.value < first.value:
        return proved
    found_by = first.found_by
    return proved._replace(
        schedule=first.schedule, value=first.value, found_by=found_by
    )


def usual_evaluations(workload: Workload) -> int:
    """Return how many schedules a search tries without a number and a time."""
    return max(_ACTIONS // (3 * workload.num_stages * workload.num_microbatches), 1)


def _check_size(workload: Workload) -> None:
    """Refuse a workload for which even one schedule takes long to build."""
    actions = 3 * workload.num_stages * workload.num_microbatches
    if actions > _MOST_ACTIONS:
        numbers = workload.num_ranks, workload.num_stages, workload.num_microbatches
        sizes = describe_sizes(*numbers)
        why = f"A schedule of {sizes} has {actions:,} actions, and a search builds many"
        remedy = "use a named schedule, or search a smaller one"
        raise misuse(f"{why}; expected at most {_MOST_ACTIONS:,} actions: {remedy}.")


def checked(
    objective: Objective, seconds: float | None, evaluations: int | None
) -> Objective:
    """Return the objective; refuse an unknown one, and limits that leave no search."""
    if seconds is not None:
        _TIME.check("seconds", seconds)
    if evaluations is not None:
        SCHEDULE_COUNT.check("evaluations", evaluations)
    return Objective(_OBJECTIVE.check("objective", objective))

"""The bound of the joint search is below the optimum of all choices: each is solved by
an enumeration that shares nothing with it. Mutants of the bound are noticed.
"""

import functools
from itertools import combinations, pairwise, product
from math import inf
from random import Random
from typing import NamedTuple

import pytest

from minipipe import Costs, simulate
from minipipe.core.schedules.action import Action, F, I, L, O, W
from minipipe.core.schedules.action_table import Schedule
from minipipe.errors import ScheduleError
from minipipe.schedules.analysis import bounds
from minipipe.schedules.analysis.activations import Footprint
from minipipe.schedules.analysis.workload import ROUNDING, Objective, Workload
from minipipe.schedules.simulation.evaluation import evaluate, value_of
from minipipe.search import choices, joint
from tests.schedules.search.enumeration import optimum

TIMES = ("forward", "backward_input", "backward_weight")
HELD = ("activation", "weight_activation", "transient_activation", "weights")
DECISIONS = {
    "none": lambda stages: [(False,) * stages],
    "uniform": lambda stages: [(False,) * stages, (True,) * stages],
    "any": lambda stages: list(product((False, True), repeat=stages)),
}


class Problem(NamedTuple):
    layers: dict
    num_layers: int
    placements: list
    num_microbatches: int
    limit: float
    objective: Objective
    recompute: str
    copies: float


def problem_of(seed):
    """Return a random problem, of which most fit the memory only in part."""
    random = Random(seed)
    n = random.choice([2, 3, 4])
    layers = {name: random.choices([1, 2, 0.5, 3], k=n) for name in TIMES}
    layers["activation"] = random.choices([2, 3, 4], k=n)
    layers["weight_activation"] = random.choices([0, 0.5, 1], k=n)
    layers["transient_activation"] = random.choices([0, 0, 1], k=n)
    layers["weights"] = random.choices([0, 0.5, 1], k=n)
    layers["message_size"] = random.choices([0, 0.5, 0.5], k=n)
    placements = [(0, 1)]
    if n > 2 and random.random() < 0.4:
        placements.append(random.choice([(0, 1, 0), (0, 0, 1), (0, 1, 1)]))
    return Problem(
        layers,
        n,
        placements,
        random.choice([2, 3]) if len(placements) == 1 else 2,
        random.choice([4, 5, 6, 7, 8, 10, 12]),
        random.choice(list(Objective)),
        random.choice(["none", "uniform", "any", "any"]),
        random.choice([0, 1, 2]),
    )


def workload_of(problem, placement, sizes, recomputed):
    """Return a choice's workload, from the layers."""
    ends = [sum(sizes[: i + 1]) for i in range(len(sizes))]
    parts = [range(end - size, end) for end, size in zip(ends, sizes)]
    layers = problem.layers
    messages = [layers["message_size"][part[-1]] for part in parts]
    forward, inputs, weights, whole, rest, held = (
        [sum(layers[name][i] for i in part) for part in parts]
        for name in (*TIMES, *HELD[:2], HELD[3])
    )
    transient = [max(layers["transient_activation"][i] for i in part) for part in parts]
    for stage, again in enumerate(recomputed):
        if again:
            kept = min(whole[stage], messages[stage - 1] if stage else 0)
            transient[stage] += whole[stage] - kept
            whole[stage] = kept
            inputs[stage] += forward[stage]
    limits = []
    for rank in range(1 + max(placement)):
        mine = [size for size, owner in zip(held, placement) if owner == rank]
        limits.append(problem.limit - problem.copies * sum(mine))
    edges = pairwise(placement)
    flights = [size * (a != b) for size, (a, b) in zip(messages, edges)] + [0.0]
    return Workload(
        tuple(placement),
        problem.num_microbatches,
        *(tuple(map(float, each)) for each in (forward, inputs, weights, flights)),
        Footprint(*(tuple(map(float, each)) for each in (whole, rest, transient))),
        tuple(map(float, limits)),
    )


def cases_of(problem):
    for placement in problem.placements:
        n = len(placement)
        for inner in combinations(range(1, problem.num_layers), n - 1):
            sizes = tuple(b - a for a, b in pairwise((0, *inner, problem.num_layers)))
            for recomputed in DECISIONS[problem.recompute](n):
                yield placement, sizes, recomputed


@functools.cache
def best_of(seed):
    """Return the least value of all schedules of all choices, and their number."""
    problem = problem_of(seed)
    cases = list(cases_of(problem))
    values = [optimum(workload_of(problem, *case), problem.objective) for case in cases]
    return min(values), len(cases)


def found_for(seed):
    """Return what the search finds; None, if no choice fits the memory."""
    problem = problem_of(seed)
    costs = Costs(**problem.layers, bandwidth=1.0)
    try:
        return joint.find_joint(
            costs,
            problem.num_layers,
            problem.placements,
            problem.num_microbatches,
            problem.limit,
            problem.objective,
            evaluations=1000,
            recompute=problem.recompute,
            weight_copies=problem.copies,
        )
    except ScheduleError:
        return None


SEEDS = range(36)


def wrong_bounds(seeds=SEEDS):
    """Yield the problems whose bound is above the optimum, or that lose all choices."""
    for seed in seeds:
        best, _ = best_of(seed)
        found = found_for(seed)
        bound = inf if found is None else found.best.bound
        if bound > best * (1 + ROUNDING):
            yield seed


@pytest.mark.slow
def test_no_choice_has_a_schedule_below_the_bound():
    assert list(wrong_bounds()) == []


@pytest.mark.slow
def test_nor_in_many_more_problems():
    assert list(wrong_bounds(range(36, 300))) == []


def test_the_best_choice_is_what_it_says_and_most_are_proved():
    closed = recomputing = 0
    for seed in SEEDS:
        problem = problem_of(seed)
        found = found_for(seed)
        if found is None:
            continue
        best, number = best_of(seed)
        assert found.choices == number and found.best.value >= best * (1 - ROUNDING)
        case = (found.best.workload.placement, found.sizes, found.recomputed)
        workload = workload_of(problem, *case)
        assert found.best.workload == workload
        value = evaluate(found.best.schedule, workload, problem.objective)
        assert value == pytest.approx(found.best.value)
        peaks = simulate(found.best.schedule, found.costs).peak_memory
        for peak, held in zip(peaks, found.weight_memory):
            assert peak + held <= problem.limit * (1 + ROUNDING)
        closed += found.best.value <= best * (1 + ROUNDING)
        recomputing += any(found.recomputed)
    assert closed > 18 and recomputing > 6


# -- offload ---------------------------------------------------------------------------


def orders_of_a_rank(m, done=(0, 0)):
    """Yield orders of F and I of one stage, by (kind, microbatch)."""
    if done == (m, m):
        yield ()
    forwards, inputs = done
    if forwards < m:
        for rest in orders_of_a_rank(m, (forwards + 1, inputs)):
            yield ((F, forwards), *rest)
    if inputs < forwards:
        for rest in orders_of_a_rank(m, (forwards, inputs + 1)):
            yield ((I, inputs), *rest)


def with_weights(order, are_early):
    """Return an order with each W right behind its I, or all at the end."""
    row = []
    for kind, k in order:
        row.append((kind, k))
        if kind is I and are_early:
            row.append((W, k))
    if not are_early:
        row += [(W, k) for kind, k in order if kind is I]
    return row


def with_copies_of(order, m):
    """Yield rows of stage 0 with each set of pairs offloaded; an L comes right before
    its I, or one or two actions earlier.
    """
    for ahead in product((None, 0, 1, 2), repeat=m):
        row = list(order)
        for k in range(m):
            if ahead[k] is not None:
                row.insert(1 + row.index((F, k)), (O, k))
        is_legal = True
        for k in range(m):
            if ahead[k] is not None:
                at = row.index((I, k)) - ahead[k]
                is_legal &= at > row.index((O, k))
                row.insert(at, (L, k))
        if is_legal:
            yield tuple(Action(0, kind, k) for kind, k in row)


LIMITS = {2: [1, 1.25, 1.5, 2], 3: [2, 2.5]}
OTHER = "1F0 1I0 1W0 1F1 1I1 1W1 1F2 1I2 1W2"


def copying_of(seed, m):
    """Return costs of two stages, a memory limit and an objective."""
    random = Random(seed)
    costs = Costs(
        forward=random.choices([1, 2, 0.5], k=2),
        backward_input=random.choices([1, 2, 0.5], k=2),
        backward_weight=random.choices([1, 0.5, 0], k=2),
        latency=random.choice([2, 5, 8]),
        activation=1,
        weight_activation=random.choices([0, 0.25, 0.5], k=2),
        transient_activation=random.choices([0, 0, 0.25], k=2),
        copy_bandwidth=random.choice([2, 0.7, 0.4, 0.2]),
    )
    return costs, random.choice(LIMITS[m]), random.choice(list(Objective))


@functools.cache
def best_with_copies(seed, m):
    """Return the least value of schedules of two ranks whose first one offloads."""
    costs, limit, objective = copying_of(seed, m)
    other = tuple(map(Action.parse, OTHER.split()[: 3 * m]))
    best = inf
    for order in orders_of_a_rank(m):
        for are_early in (True, False):
            for row in with_copies_of(with_weights(order, are_early), m):
                if not may_fit(row, costs, limit):
                    continue
                schedule = Schedule("with copies", (0, 1), m, (row, other))
                timeline = simulate(schedule, costs)
                if max(timeline.peak_memory) <= limit * (1 + ROUNDING):
                    best = min(best, value_of(timeline, objective))
    return best


def may_fit(row, costs, limit):
    """Return whether a row fits if copies take no time."""
    held = 0.0
    rest = costs.weight_activation[0]
    change = {F: 1, L: 1, O: -1, I: rest - 1, W: -rest}
    for _, kind, _ in row:
        held += change[kind]
        if held > limit:
            return False
    return True


def bound_of_copies(seed, m):
    costs, limit, objective = copying_of(seed, m)
    workload = costs.workload((0, 1), m, limit)
    return bounds.with_copies(workload, costs.copy_times(2), objective).value


COPYING = [(seed, 3) for seed in (5, 12, 24, 31)]
COPYING += [(seed, 2) for seed in (24, 32, 44, 52, 55, 57)]


@pytest.mark.slow
def test_no_schedule_that_offloads_is_below_the_bound():
    for seed, m in COPYING:
        costs, limit, objective = copying_of(seed, m)
        best = best_with_copies(seed, m)
        problem = (costs, 2, [(0, 1)], m, limit, objective)
        found = joint.find_joint(*problem, offload=True, evaluations=200)
        assert bound_of_copies(seed, m) <= best * (1 + ROUNDING), seed
        assert found.best.bound <= best * (1 + ROUNDING), seed


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(60))
@pytest.mark.parametrize("m", [2, 3])
def test_nor_in_more_problems(seed, m):
    best = best_with_copies(seed, m)
    if best < inf:  # otherwise there may be no memory, and no bound
        assert bound_of_copies(seed, m) <= best * (1 + ROUNDING)


# -- mutants ---------------------------------------------------------------------------


def undecided_as(again):
    """Return a mutant of `recomputing`, which takes one case for both."""

    def recomputing(costs, recomputed):
        known = (again if each is None else each for each in recomputed)
        return original(costs, tuple(known))

    original = choices.recomputing
    return recomputing


def twice(costs, workload, copies):
    return original_weights(costs, workload, 2 * copies)


original_weights = choices.weight_memory
MUTANTS = {
    "an undecided stage takes the time of F": (choices, "recomputing", True),
    "an undecided stage holds its activations": (choices, "recomputing", False),
    "weights count twice": (choices, "weight_memory", twice),
}


@pytest.mark.parametrize("name", MUTANTS)
def test_a_bound_that_is_too_large_is_noticed(name, monkeypatch):
    module, function, mutant = MUTANTS[name]
    if isinstance(mutant, bool):
        mutant = undecided_as(mutant)
    monkeypatch.setattr(module, function, mutant)
    assert any(wrong_bounds())


def doubled(bound):
    return lambda rank, stage, time, known: bound(rank, stage, 2 * time, known)


MUTANTS_OF_COPIES = {
    "activations are never away": ("with_free_copies", lambda workload: workload),
    "no copy hides in the warm-up": (
        "_warm_up_with_copies",
        lambda rank, time: bounds._warm_up(rank),
    ),
    "no copy hides in the drain": (
        "_drain_with_copies",
        lambda rank, time: bounds._drain(rank),
    ),
    "copies take twice as long in trips": (
        "_trips_with_copies",
        doubled(bounds._trips_with_copies),
    ),
}


@pytest.mark.parametrize("name", MUTANTS_OF_COPIES)
def test_a_bound_with_copies_that_is_too_large_is_noticed(name, monkeypatch):
    monkeypatch.setattr(bounds, *MUTANTS_OF_COPIES[name])
    assert any(bound_of_copies(*each) > best_with_copies(*each) for each in COPYING)

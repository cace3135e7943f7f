"""The shortest schedule of a small workload, by trying all. It knows the rules of a
schedule and nothing of bounds.

States with the same actions done are compared by times alone: one whose times are all
later can be forgotten.
"""

from itertools import product
from math import inf

from minipipe.schedules.analysis.workload import Objective, fits

AFTER = {"I": "F", "W": "I"}  # on the same stage


def optimum(workload, objective, latest_start=0, in_order=True):
    """Return the least value of the objective over all schedules, for times that are
    whole numbers.

    For own spans a rank may begin up to ``latest_start`` later than it could: that
    shortens its span. ``in_order`` says that microbatches keep their order on each
    stage.
    """
    begin = (
        frozenset(),
        {("free", rank): -workload.overhead for rank in range(workload.num_ranks)},
    )
    level, delays = (
        {begin[0]: [begin[1]]},
        latest_start if objective is Objective.SPAN else 0,
    )
    for _ in range(3 * workload.num_stages * workload.num_microbatches):
        following = {}
        for done, states in level.items():
            for action in _ready(workload, done, in_order):
                after = done | {action}
                kept = following.setdefault(after, [])
                for state in states:
                    for new in _ran(workload, done, after, state, action, delays):
                        _keep(kept, new)
        level = {done: states for done, states in following.items() if states}
    finals = [state for states in level.values() for state in states]
    return min((_value(workload, objective, state) for state in finals), default=inf)


def _ready(workload, done, in_order):
    last = workload.num_stages - 1
    for stage, kind in product(range(last + 1), "FIW"):
        for k in range(workload.num_microbatches):
            if (stage, kind, k) in done:
                continue
            neighbour = {"F": (stage - 1, "F", k), "I": (stage + 1, "I", k)}.get(
                kind, (-1, "", 0)
            )
            is_fed = not 0 <= neighbour[0] <= last or neighbour in done
            if (
                is_fed
                and (kind == "F" or (stage, AFTER[kind], k) in done)
                and _has_room(workload, done, stage, kind)
            ):
                yield stage, kind, k
            if in_order:
                break


def _has_room(workload, done, stage, kind):
    """Tell whether an action keeps the limit while it runs and after it."""
    activation, weight_activation, transient = workload.footprint
    rank = workload.placement[stage]

    def held(actions):
        amounts = {
            "F": activation,
            "I": [w - a for a, w in zip(activation, weight_activation)],
        }
        return sum(
            (-weight_activation[s] if letter == "W" else amounts[letter][s])
            for s, letter, _ in actions
            if workload.placement[s] == rank
        )

    during = held(done) + (transient[stage] if kind == "I" else 0)
    return fits(
        max(during, held([*done, (stage, kind, 0)])), workload.memory_limit[rank]
    )


def _ran(workload, done, after, state, action, delays):
    """Yield the states after an action: it starts as soon as it can, the first one of a
    rank perhaps later.
    """
    stage, kind, k = action
    rank = workload.placement[stage]
    start = max(state["free", rank] + workload.overhead, 0)
    if kind == "F" and stage:
        start = max(start, state[stage - 1, "F", k] + workload.message[stage - 1])
    if kind == "I" and stage + 1 < workload.num_stages:
        start = max(start, state[stage + 1, "I", k] + workload.message[stage])
    times = {
        "F": workload.forward,
        "I": workload.backward_input,
        "W": workload.backward_weight,
    }
    is_first = all(workload.placement[s] != rank for s, _, _ in done)
    for delay in range(delays + 1 if is_first else 1):
        end = start + delay + times[kind][stage]
        new = {**state, ("free", rank): end, action: end}
        if is_first:
            new["begun", rank] = -start - delay
        needless = [
            key
            for key in new
            if isinstance(key[0], int) and not _is_awaited(workload, key, after)
        ]
        yield {key: time for key, time in new.items() if key not in needless}


def _is_awaited(workload, action, done):
    stage, kind, k = action
    consumer = {"F": (stage + 1, "F", k), "I": (stage - 1, "I", k)}.get(
        kind, (-1, "", 0)
    )
    return 0 <= consumer[0] < workload.num_stages and consumer not in done


def _keep(kept, new):
    """Add a state to those that are not later in all times than another one."""
    if any(all(old[key] <= new[key] for key in new) for old in kept):
        return
    kept[:] = [old for old in kept if not all(new[key] <= old[key] for key in new)] + [
        new
    ]


def _value(workload, objective, state):
    begun = {
        rank: state["begun", rank] if objective is Objective.SPAN else 0
        for rank in set(workload.placement)
    }
    return max(state["free", rank] + since for rank, since in begun.items())

"""The optimum of a small workload by an enumeration that prunes nothing: all orders of
all ranks are walked through.
"""

from math import inf

from minipipe.schedules.analysis.workload import ROUNDING, Objective


def optimum(workload, objective):
    """Return the least value of all schedules, each action as early as its order
    allows.

    A state is what is done of each (stage, kind), when each rank began and is free, and
    the arrivals that F and I of each stage have not used yet. Two orders that lead to
    the same state have the same future; nothing else is left out.
    """
    stages, last, all_done = (
        range(workload.num_stages),
        workload.num_stages - 1,
        workload.num_microbatches,
    )
    arrivals = [[()] * workload.num_stages for _ in "FI"]
    arrivals[0][0] = (0.0,) * all_done
    idle = (None,) * workload.num_ranks
    stack, seen, best = (
        [((0,) * 3 * len(stages), idle, idle, *map(tuple, arrivals))],
        set(),
        inf,
    )
    while stack:
        state = stack.pop()
        if state in seen:
            continue
        seen.add(state)
        done, first, free, *_ = state
        if set(done) == {all_done}:
            is_span = objective is Objective.SPAN
            spans = [
                end - begin * is_span
                for begin, end in zip(first, free)
                if begin is not None
            ]
            best = min(best, max(spans))
        stack += [
            after
            for s in stages
            for kind in range(3)
            if (after := _after(state, workload, s, kind, last))
        ]
    return best


def _after(state, workload, s, kind, last):
    """Return the state after the next F, I or W (kind 0, 1, 2) of a stage; None where
    it cannot be next.
    """
    done, first, free, *arrivals = map(list, state)
    rank, k = workload.placement[s], done[3 * s + kind]
    if k == workload.num_microbatches or (kind and done[3 * s + kind - 1] == k):
        return None
    if _held(done, workload, s, kind) > workload.memory_limit[rank] * (1 + ROUNDING):
        return None
    start = 0.0 if free[rank] is None else free[rank] + workload.overhead
    if kind == 0 or (kind == 1 and s != last):
        if not arrivals[kind][s]:
            return None
        start = max(start, arrivals[kind][s][0])
        arrivals[kind][s] = arrivals[kind][s][1:]
    end = (
        start
        + (workload.forward, workload.backward_input, workload.backward_weight)[kind][s]
    )
    if kind == 0 and s != last:
        arrivals[0][s + 1] += (end + workload.message[s],)
    if kind == 1 and s:
        arrivals[1][s - 1] += (end + workload.message[s - 1],)
    done[3 * s + kind], free[rank] = k + 1, end
    first[rank] = start if first[rank] is None else first[rank]
    return tuple(map(tuple, (done, first, free, *arrivals)))


def _held(done, workload, s, kind):
    """Return the most that the rank of a stage holds while this action runs."""
    activation, weight_activation, transient = workload.footprint
    held = sum(
        (done[3 * q] - done[3 * q + 1]) * activation[q]
        + (done[3 * q + 1] - done[3 * q + 2]) * weight_activation[q]
        for q, rank in enumerate(workload.placement)
        if rank == workload.placement[s]
    )
    more = max(transient[s], weight_activation[s] - activation[s])
    return held + (activation[s], more, 0)[kind]

"""The simulated time of a device mesh with ranks on several hosts: transfers between
hosts have slower links.

A host has consecutive ranks, so that tensor-parallel ranks are on one host if they fit.
Simultaneous transfers of a host to other hosts share its link, and nothing else is
slower than measured::

    rank 0 --- rank 1 === rank 2 --- rank 3      two hosts: the message from 1 to 2 takes
    '--- host 0 ---'      '--- host 1 ---'       latency + bytes / bandwidth
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from itertools import pairwise, permutations
from typing import Any

from minipipe.execution.choosing import replicated
from minipipe.schedules.simulation.costs import Costs
from minipipe.schedules.simulation.paper_scale import Link
from minipipe.schedules.simulation.simulator import simulate
from minipipe.schedules.simulation.timeline import Timeline
from minipipe.tuning.traffic import Sizes


def time_between_hosts(
    transfers: Iterable[tuple[int, int, float]], ranks_of_host: int, link: Link
) -> float:
    """Return the seconds of transfers that begin at once; 0 if none leaves its host.

    Parameters
    ----------
    transfers : iterable of (int, int, float)
        Source, destination, bytes.
    ranks_of_host : int
    link : Link
        The link of each host to all others.

    Examples
    --------
    >>> time_between_hosts(
    ...     [(0, 1, 8), (1, 2, 8), (0, 2, 8)], ranks_of_host=2, link=Link(0.5, 4)
    ... )
    4.5
    >>> time_between_hosts([(0, 1, 8)], ranks_of_host=2, link=Link(0.5, 4))
    0.0
    """
    leaving: dict[int, float] = {}
    for source, destination, size in transfers:
        if source // ranks_of_host != destination // ranks_of_host:
            leaving[source // ranks_of_host] = (
                leaving.get(source // ranks_of_host, 0.0) + size
            )
    return link.latency + max(leaving.values()) / link.bandwidth if leaving else 0.0


def on_hosts(
    row: Mapping[str, Any], num_microbatches: int, ranks_of_host: int, link: Link
) -> Timeline:
    """Return the simulated timeline of a device mesh on hosts connected by a link.

    Parameters
    ----------
    row : mapping
        A row of :func:`minipipe.tuning.grids.compare_on_ranks`.
    num_microbatches : int
        The microbatches of all replicas.
    ranks_of_host : int
    link : Link
    """
    p = row["pipeline"]
    d = row["data"]
    t = row["tensor"]
    costs = Costs(**row["costs"])
    sizes = Sizes(*row["sizes"].values())
    schedule = replicated("1f1b", p * d, num_microbatches // d, None, d)
    at = {
        tuple(rank["coordinates"]): number for number, rank in enumerate(row["ranks"])
    }

    def time(
        pairs: Iterable[tuple[tuple[int, ...], tuple[int, ...]]], size: float
    ) -> float:
        return time_between_hosts(
            [(at[a], at[b], size) for a, b in pairs], ranks_of_host, link
        )

    def parts(stage: int) -> list[tuple[tuple[int, ...], tuple[int, ...]]]:
        pairs = permutations(range(t), 2)
        return [((stage, r, a), (stage, r, b)) for a, b in pairs for r in range(d)]

    def replicas(stage: int) -> list[tuple[tuple[int, ...], tuple[int, ...]]]:
        pairs = permutations(range(d), 2)
        return [((stage, a, k), (stage, b, k)) for a, b in pairs for k in range(t)]

    def within(stage: int, sums: Sequence[tuple[int, int]], gathers: int) -> float:
        """Return the additional time of an action for tensor-parallel all-reduces and
        gathers of sharded layers.
        """
        shares = sum(time(replicas(stage), max(layer)) for layer in sizes.shares[stage])
        # Two rounds of messages with 1 / t of the array; between two ranks, one round
        # with all of it.
        rounds, fraction = (2, 1 / t) if t > 2 else (1, 1.0)
        added = (rounds * time(parts(stage), n * size * fraction) for n, size in sums)
        return sum(added) + gathers * shares

    messages = list(costs.message_times(schedule))
    totals = [total for _, total in costs.sum_times(schedule)]
    for stage, following in pairwise(range(p)):
        over_cut = [
            ((stage, r, k), (following, r, k)) for r in range(d) for k in range(t)
        ]
        messages[stage] = time(over_cut, sizes.messages[stage]) or messages[stage]
    for stage, gradients in enumerate(sizes.gradients):
        part = sum(n * size for n, size in gradients) / d
        totals[stage] = (2 * time(replicas(stage), part) if part else 0.0) or totals[
            stage
        ]
    forward, backward = (
        costs.by_stage(name, p) for name in ("forward", "backward_input")
    )
    for stage in range(p):
        forward[stage] += within(stage, sizes.forward_sums[stage], 1)
        backward[stage] += within(stage, sizes.backward_sums[stage], 2)
    timed = replace(
        costs,
        forward=forward,
        backward_input=backward,
        latency=0.0,
        bandwidth=1.0,  # the size of a message is its time
        message_size=messages,
        gradient_size=[total * d / (2 * d - 2) if d > 1 else 0.0 for total in totals],
    )
    return simulate(schedule, timed)

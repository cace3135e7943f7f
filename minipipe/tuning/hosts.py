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
from itertools import pairwise, permutations, product
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
        host = source // ranks_of_host
        if host != destination // ranks_of_host:
            leaving[host] = leaving.get(host, 0.0) + size
    if not leaving:
        return 0.0
    return link.latency + max(leaving.values()) / link.bandwidth


Place = tuple[int, ...]  # the stage, the replica and the part of each layer of a rank


class _Mesh:
    """The ranks of a device mesh on hosts, by their places."""

    def __init__(self, row: Mapping[str, Any], ranks_of_host: int, link: Link) -> None:
        places = (tuple(rank["coordinates"]) for rank in row["ranks"])
        self._ranks = {place: rank for rank, place in enumerate(places)}
        self._replicas = range(row["data"])
        self._parts = range(row["tensor"])
        self._ranks_of_host = ranks_of_host
        self._link = link

    def between_stages(self, stage: int, following: int, size: float) -> float:
        """Return the time of a message from each rank of a stage to the next one."""
        rest = product(self._replicas, self._parts)
        pairs = [((stage, *place), (following, *place)) for place in rest]
        return self._time(pairs, size)

    def among_replicas(self, stage: int, size: float) -> float:
        """Return the time of one round of messages between all replicas."""
        rest = product(permutations(self._replicas, 2), self._parts)
        pairs = [((stage, a, part), (stage, b, part)) for (a, b), part in rest]
        return self._time(pairs, size)

    def among_parts(self, stage: int, size: float) -> float:
        """Return the time of a tensor-parallel all-reduce of an array."""
        rest = product(permutations(self._parts, 2), self._replicas)
        pairs = [((stage, k, a), (stage, k, b)) for (a, b), k in rest]
        num_parts = len(self._parts)
        # Two rounds of messages with 1 / n of the array; between two ranks, one round
        # with all of it.
        if num_parts > 2:
            return 2 * self._time(pairs, size * (1 / num_parts))
        return self._time(pairs, size)

    def sums(self, stage: int, sizes: Iterable[tuple[int, int]]) -> float:
        """Return the time of the tensor-parallel all-reduces of an action."""
        return sum(self.among_parts(stage, n * size) for n, size in sizes)

    def gathers(self, stage: int, layers: Iterable[Sequence[int]]) -> float:
        """Return the time in which an action gathers its sharded layers once."""
        return sum(self.among_replicas(stage, max(layer)) for layer in layers)

    def _time(self, pairs: Iterable[tuple[Place, Place]], size: float) -> float:
        transfers = [(self._ranks[a], self._ranks[b], size) for a, b in pairs]
        return time_between_hosts(transfers, self._ranks_of_host, self._link)


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
    num_stages = row["pipeline"]
    d = row["data"]
    costs = Costs(**row["costs"])
    sizes = Sizes(*row["sizes"].values())
    mesh = _Mesh(row, ranks_of_host, link)
    schedule = replicated("1f1b", num_stages * d, num_microbatches // d, None, d)

    messages = list(costs.message_times(schedule))
    for stage, following in pairwise(range(num_stages)):
        time = mesh.between_stages(stage, following, sizes.messages[stage])
        messages[stage] = time or messages[stage]
    totals = [total for _, total in costs.sum_times(schedule)]
    for stage, gradients in enumerate(sizes.gradients):
        part = sum(n * size for n, size in gradients) / d
        if part:
            totals[stage] = 2 * mesh.among_replicas(stage, part) or totals[stage]
    forward = costs.by_stage("forward", num_stages)
    backward = costs.by_stage("backward_input", num_stages)
    for stage in range(num_stages):
        shares = mesh.gathers(stage, sizes.shares[stage])
        forward[stage] += mesh.sums(stage, sizes.forward_sums[stage]) + shares
        backward[stage] += mesh.sums(stage, sizes.backward_sums[stage]) + 2 * shares
    gradient_sizes = [0.0] * num_stages
    if d > 1:
        gradient_sizes = [total * d / (2 * d - 2) for total in totals]
    timed = replace(
        costs,
        forward=forward,
        backward_input=backward,
        latency=0.0,
        bandwidth=1.0,  # the size of a message is its time
        message_size=messages,
        gradient_size=gradient_sizes,
    )
    return simulate(schedule, timed)

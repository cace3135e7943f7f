"""Hosts: which ranks share cores and links, and at which rates messages pass links that they share."""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Mapping, Sequence
from math import inf
from numbers import Real
from sys import float_info
from typing import Any, NamedTuple, TypeVar

from minipipe.errors import ScheduleCode, ScheduleError, quoted

M = TypeVar("M", bound=Hashable)
Link = tuple[str, int]  # "out" of a host or "into" it, and its number


class Hosts(NamedTuple):
    """The hosts of a simulation.

    Attributes
    ----------
    of_rank : tuple of int
        By rank, its host.
    cores : tuple of float
        By host; infinite where each of its ranks has a core of its own.
    """

    of_rank: tuple[int, ...]
    cores: tuple[float, ...]

    def are_shared(self, times_on_links: Iterable[float]) -> bool:
        """Tell whether a host has more ranks than cores, or messages that take such times may share a link.

        Examples
        --------
        >>> Hosts((0, 0), (2.0,)).are_shared([0.5]), Hosts((0, 0), (1.0,)).are_shared([])
        (False, True)
        >>> Hosts((0, 1), (inf, inf)).are_shared([0.0]), Hosts((0, 1), (inf, inf)).are_shared([0.5])
        (False, True)
        """
        share_cores = any(self.of_rank.count(host) > cores for host, cores in enumerate(self.cores))
        return share_cores or (len(self.cores) > 1 and any(times_on_links))

    def links_between(self, source: int, destination: int) -> tuple[Link, Link] | None:
        """Return what a message passes from one rank to another: out of a host, and into one; None within a host.

        Examples
        --------
        >>> Hosts((0, 0, 1), (2.0, 1.0)).links_between(1, 2)
        (('out', 0), ('into', 1))
        """
        out, into = self.of_rank[source], self.of_rank[destination]
        return None if out == into else (("out", out), ("into", into))


def hosts_of(cores: object, hosts: object, num_ranks: int) -> Hosts:
    """Return the hosts of some ranks, from the two attributes of :class:`minipipe.Costs`.

    Raises
    ------
    ScheduleError
        Code ``costs``.

    Examples
    --------
    >>> hosts_of(2, None, num_ranks=4)
    Hosts(of_rank=(0, 0, 0, 0), cores=(2.0,))
    >>> hosts_of([2, 1], [0, 0, 1], num_ranks=3).cores
    (2.0, 1.0)
    """
    of_rank = (0,) * num_ranks if hosts is None else _host_numbers(hosts, num_ranks)
    counts = _numbers(inf if cores is None else cores, 1 + max(of_rank))
    if not all(isinstance(count, Real) and _is_above_0(count) for count in counts):
        message = f"cores is {quoted(cores)}; expected a number above 0, such as 2, or one for each host."
        raise ScheduleError.of(ScheduleCode.COSTS, message)
    if len(counts) != 1 + max(of_rank):
        message = f"cores has {len(counts)} values, and there are {1 + max(of_rank)} hosts; expected one for each."
        raise ScheduleError.of(ScheduleCode.COSTS, message)
    return Hosts(of_rank, tuple(map(float, counts)))


def _is_above_0(count: Any) -> bool:
    return count == inf or 0 < count <= float_info.max


def _host_numbers(hosts: object, num_ranks: int) -> tuple[int, ...]:
    given = _numbers(hosts, 1)
    if not all(isinstance(host, Real) and host in range(num_ranks) for host in given):
        message = f"hosts is {quoted(hosts)}; expected the host of each rank, counted from 0, such as (0, 0, 1, 1)."
        raise ScheduleError.of(ScheduleCode.COSTS, message)
    if len(given) != num_ranks:
        message = f"hosts has {len(given)} values, and there are {num_ranks} ranks; expected one for each."
        raise ScheduleError.of(ScheduleCode.COSTS, message)
    return tuple(map(int, given))


def _numbers(given: Any, count: int) -> list[Any]:
    """Return the items of a sequence; of anything else, as many of it as are wanted."""
    return list(given) if isinstance(given, Sequence) and not isinstance(given, str | bytes) else [given] * count


def fair_rates(links_of: Mapping[M, Sequence[Link]]) -> dict[M, float]:
    """Return the max-min fair rate of each message: none can get more without taking from one that has no more.

    Link by link, the one that leaves its messages the least is filled: they share evenly what is left of it.

    Parameters
    ----------
    links_of : mapping of message to sequence of Link
        What each message passes.

    Returns
    -------
    dict of message to float
        Parts of the bandwidth of a link.

    References
    ----------
    Bertsekas and Gallager 1992, "Data networks", section 6.5.2, max-min flow control.

    Examples
    --------
    Two messages leave host 0, and one of them meets three more at host 1.

    >>> a, b = ("out", 0), ("into", 1)
    >>> fair_rates({"x": [a], "y": [a, b], "z": [b], "w": [b], "v": [b]})
    {'y': 0.25, 'z': 0.25, 'w': 0.25, 'v': 0.25, 'x': 0.75}
    """
    room = {link: 1.0 for links in links_of.values() for link in links}
    users = {link: [message for message, links in links_of.items() if link in links] for link in room}
    rates: dict[M, float] = {}
    while users:
        tightest = min(users, key=lambda link: room[link] / len(users[link]))
        share = room[tightest] / len(users[tightest])
        for message in users[tightest]:
            rates[message] = share
            for link in links_of[message]:
                room[link] -= share
        users = {link: left for link in users if (left := [m for m in users[link] if m not in rates])}
    return rates

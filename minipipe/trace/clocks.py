r"""The clocks of ranks, aligned by messages in both directions.

A message from a to b, by the clocks of both, takes its latency plus the difference of
the clocks; a message back takes its latency minus the difference::

    a  --x--------------------x------->          arrived - sent = latency + difference
          \                  /
    b  ----x----------------x--------->          arrived - sent = latency - difference

So the difference lies between minus the shortest message back and the shortest message
there, as in the Network Time Protocol (Mills 1991, "Internet time synchronization").
"""

from __future__ import annotations

from collections.abc import Iterable
from math import inf

Times = tuple[int, int, float]  # source, destination, and arrived - sent


def clock_offsets(num_ranks: int, messages: Iterable[Times]) -> list[float]:
    """Return, by rank, the seconds to add to its times, so that no message arrives
    before it is sent.

    The clock of rank 0 stays. Clocks that agree as far as messages can tell, such as
    the clocks of one host, stay too. Otherwise the difference of two ranks is in the middle
    of its bounds, with an error of at most half the time of a message there and back.
    Ranks are aligned one after another, by the pair with the closest bounds.

    Parameters
    ----------
    num_ranks : int
    messages : iterable of (int, int, float)
        Source, destination, and the time of arrival minus the time of the send, in
        seconds, by two clocks.

    Examples
    --------
    The clock of rank 1 is 5 s ahead, and a message takes 1 s.

    >>> clock_offsets(2, [(0, 1, 6.0), (1, 0, -4.0)])
    [0.0, -5.0]
    >>> clock_offsets(2, [(0, 1, 1.5), (1, 0, 0.5)])
    [0.0, 0.0]
    """
    shortest: dict[tuple[int, int], float] = {}
    for source, destination, time in messages:
        pair = source, destination
        shortest[pair] = min(time, shortest.get(pair, inf))
    offsets: dict[int, float] = {0: 0.0}
    while pairs := _to_the_next(shortest, offsets):
        _, rank, offset = min(pairs)
        offsets[rank] = offset
    return [offsets.get(rank, 0.0) for rank in range(num_ranks)]


def _to_the_next(
    shortest: dict[tuple[int, int], float], offsets: dict[int, float]
) -> list[tuple[float, int, float]]:
    """Return, for each pair of an aligned rank and another one, the width of the bounds,
    the other rank, and its offset.
    """
    choices = []
    for a, b in {*shortest, *((b, a) for a, b in shortest)}:
        if a not in offsets or b in offsets:
            continue
        # offset[b] >= offset[a] - there, and offset[b] <= offset[a] + back
        least = offsets[a] - shortest.get((a, b), inf)
        most = offsets[a] + shortest.get((b, a), inf)
        choices.append((most - least, b, _between(least, most)))
    return choices


def _between(least: float, most: float) -> float:
    """Return 0 if it is within the bounds, or else their middle or the only bound."""
    if least <= 0 <= most:
        return 0.0
    if most == inf:
        return least
    if least == -inf:
        return most
    return (least + most) / 2

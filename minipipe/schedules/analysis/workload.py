"""A workload: the actions of a batch with their times and memory, before a schedule
orders them.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from enum import StrEnum
from math import inf
from sys import float_info
from typing import Any, NamedTuple

from minipipe.core.specs import SCHEDULE_AMOUNT, SCHEDULE_NUMBER, Spec
from minipipe.errors import Code, ScheduleError, counted
from minipipe.schedules.analysis.activations import Footprint

# relative difference of floating-point sums that add the same terms in another order
ROUNDING = 1e-9


class Objective(StrEnum):
    """The time that a good schedule minimises.

    Examples
    --------
    >>> Objective("span") is Objective.SPAN
    True
    """

    MAKESPAN = "makespan"  # from the first start to the last end, all ranks together
    # the longest time of any rank from its own first start to its own last end
    SPAN = "span"


class Workload(NamedTuple):
    """Stages on ranks, microbatches, the times and the memory of their actions, and
    limits: a scheduling problem.

    Every backward is split into I and W. :meth:`minipipe.Costs.workload` makes one.

    Attributes
    ----------
    placement : tuple of int
        The rank of each stage.
    num_microbatches : int
    forward, backward_input, backward_weight : tuple of float
        By stage, the times of F, I and W.
    message : tuple of float
        By stage, the time in flight between it and the next one, either way; 0 on one
        rank, and after the last.
    footprint : Footprint
        By stage, the memory of one microbatch.
    memory_limit : tuple of float
        By rank, the most that it may hold while an action runs; infinite if there is no
        limit.
    overhead : float
        The time of a rank between two actions.
    """

    placement: tuple[int, ...]
    num_microbatches: int
    forward: tuple[float, ...]
    backward_input: tuple[float, ...]
    backward_weight: tuple[float, ...]
    message: tuple[float, ...]
    footprint: Footprint
    memory_limit: tuple[float, ...]
    overhead: float = 0.0

    @property
    def num_ranks(self) -> int:
        """The number of ranks."""
        return len(self.memory_limit)

    @property
    def num_stages(self) -> int:
        """The number of stages."""
        return len(self.placement)

    @property
    def durations(self) -> dict[str, Sequence[float]]:
        """The times of F, I, W and B: a list by stage for each."""
        inputs = self.backward_input
        weights = self.backward_weight
        whole = [sum(both) for both in zip(inputs, weights)]
        return {"F": self.forward, "I": inputs, "W": weights, "B": whole}

    def work(self, rank: int) -> float:
        """Return the time for which a rank computes.

        Examples
        --------
        >>> from minipipe import Costs
        >>> Costs(forward=[1, 3]).workload((0, 1), num_microbatches=4).work(1)
        20.0
        """
        times = zip(self.forward, self.backward_input, self.backward_weight)
        by_stage = zip(self.placement, (f + i + w for f, i, w in times))
        of_rank = sum(time for owner, time in by_stage if owner == rank)
        return self.num_microbatches * of_rank

    def least_memory(self, rank: int) -> float:
        """Return the least memory with which a rank can finish one microbatch: all its
        F, then each I and W.

        Examples
        --------
        >>> from minipipe import Costs
        >>> Costs(weight_activation=2).workload((0, 1, 1, 0), 4).least_memory(0)
        3.0
        """
        activation, weight_activation, transient = self.footprint
        held = 0.0
        least = 0.0
        for s in (stage for stage, owner in enumerate(self.placement) if owner == rank):
            least = max(
                least, held + weight_activation[s], held + activation[s] + transient[s]
            )
            held += activation[s]
        return least


def fits(amount: float, limit: float) -> bool:
    """Whether an amount of memory is within a limit, up to rounding.

    Examples
    --------
    >>> fits(0.1 + 0.2, 0.3), fits(0.31, 0.3)
    (True, False)
    """
    return amount <= limit or amount <= limit * (1 + ROUNDING)


def check_memory(workload: Workload) -> None:
    """Refuse memory that is too small for one microbatch alone, with code ``value``.

    Examples
    --------
    >>> from minipipe import Costs
    >>> check_memory(Costs().workload((0, 1), num_microbatches=4, memory_limit=1))
    """
    for rank, limit in enumerate(workload.memory_limit):
        needed = workload.least_memory(rank)
        if not fits(needed, limit):
            given = f"memory_limit is {limit:g} on rank {rank}"
            takes = f"one microbatch alone takes {needed:g} there"
            message = f"{given}, but {takes}; expected at least that."
            raise ScheduleError.of(Code.VALUE, message, rank)


def check_footprint(memory: Footprint, num_stages: int) -> None:
    """Refuse a footprint without an amount for each stage.

    Examples
    --------
    >>> check_footprint(Footprint([1, 1], [0.5, 0.5], [0, 0]), num_stages=2)
    """
    expected = f"a Footprint, such as Costs(activation=2).memory({num_stages})"
    Spec(Footprint, expected=expected, error=ScheduleError.of).check("memory", memory)
    for name, amounts in memory._asdict().items():
        check_amounts(f"{name} of memory", amounts, num_stages)


def check_amounts(
    name: str, amounts: Sequence[float] | Mapping[int, float], num_stages: int
) -> None:
    """Refuse anything but an amount for each stage.

    Examples
    --------
    >>> check_amounts("weights", [1, 0.5], num_stages=2)
    """
    by_stage = amounts if isinstance(amounts, Mapping) else dict(enumerate(amounts))
    expected = f"an amount, at least 0, for each of {counted(num_stages, 'stage')}"
    spec = SCHEDULE_NUMBER._replace(maximum=inf, expected=expected)
    if set(by_stage) != set(range(num_stages)):
        raise spec.refusal(name, amounts)
    spec.check_items(name, amounts, by_stage.values())


def amount_per_rank(
    amount: float | Sequence[float], num_ranks: int
) -> tuple[float, ...]:
    """Return a memory limit for each rank: the one amount for all, or the amount of
    each.

    Examples
    --------
    >>> amount_per_rank(2.5, num_ranks=3)
    (2.5, 2.5, 2.5)
    """
    amounts: Sequence[Any] = (amount,) * num_ranks
    if isinstance(amount, Sequence):
        amounts = amount
    expected = f"an amount above 0, or one for each of {counted(num_ranks, 'rank')}"
    spec = SCHEDULE_AMOUNT._replace(expected=expected)
    if len(amounts) != num_ranks:
        raise spec.refusal("memory_limit", amount)
    spec.check_items("memory_limit", amount, amounts)
    return tuple(map(_limit, amounts))


def _limit(amount: Any) -> float:
    """Return a limit as a float; infinite, if it is too large for one."""
    return float(amount) if amount < float_info.max else inf

"""Which parameters are trained: ranks that have the same ones must agree, or their
gradients do not add up.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence

import numpy as np

from minipipe.comm import Grid, ProcessGroup
from minipipe.core.comm.process_group import OwnTag
from minipipe.errors import RankError
from minipipe.execution.plan import Plan
from minipipe.nn import Parameter


class Trained:
    """Compares ``requires_grad`` among ranks with the same parameter: replicas, tied
    layers, tensor-parallel ranks.

    A rank may freeze a parameter that no other rank has: ``named_parameters`` names
    only this rank's parameters.

    Parameters
    ----------
    plan : Plan
    group : ProcessGroup
    own : mapping of str to Parameter
        The parameters of this rank, by their names in the whole model.
    grid : Grid, optional
        The device mesh to which the group, a pipeline, belongs.

    Attributes
    ----------
    is_alone : bool
        Whether this rank has no parameter in common with others.
    """

    def __init__(
        self,
        plan: Plan,
        group: ProcessGroup,
        own: Mapping[str, Parameter],
        grid: Grid | None,
    ) -> None:
        # by the ranks that have these parameters
        names = dict[tuple[int, ...], list[str]]()
        for name, ranks in _ranks_of(plan).items():
            if group.rank in ranks and len(ranks) > 1:
                names.setdefault(tuple(sorted(ranks)), []).append(name)
        # In one order on all ranks, so that no two wait for each other.
        self._sets = [(group, ranks, names[ranks]) for ranks in sorted(names)]
        if grid is not None and grid.tensor.size > 1:
            self._sets.append((grid.tensor, tuple(range(grid.tensor.size)), list(own)))
        self._own = own
        self.is_alone = not self._sets

    def check(self) -> None:
        """Compare ``requires_grad``. Collective among the ranks that have a parameter
        in common.

        Raises
        ------
        RankError
            Code ``disagreement``, on all ranks that have the parameter.
        """
        found = self._first_difference(lambda one: one.requires_grad)
        if found is not None:
            name, frozen_on, trained_on = found
            raise RankError(
                "disagreement",
                f"The requires_grad of {name} on rank {frozen_on} (False) differs from "
                f"that on rank {trained_on} (True). Ranks that have one parameter "
                "train it together: freeze it on all of them, by its name in "
                "named_parameters().",
            )

    def check_given(self, parameters: Iterable[Parameter]) -> None:
        """Compare the parameters of an optimiser that works on several ranks together.
        Collective as above.

        Raises
        ------
        RankError
            Code ``disagreement``, on all ranks that have the parameter.
        """
        given = {id(one.owner) for one in parameters}
        found = self._first_difference(lambda one: id(one.owner) in given)
        if found is not None:
            name, without, having = found
            raise RankError(
                "disagreement",
                f"The optimiser of rank {without} lacks {name}, which the optimiser of "
                f"rank {having} has. Pass it the same parameters on all ranks that "
                "have them.",
            )

    def _first_difference(
        self, is_so: Callable[[Parameter], bool]
    ) -> tuple[str, int, int] | None:
        """Return the first parameter for which ranks differ, one for which it is not
        so, and one for which it is.
        """
        for group, ranks, names in self._sets:
            nobody = group.size
            # first rank that does not train each, and that does
            first = np.full((2, len(names)), nobody, np.int32)
            for i, name in enumerate(names):
                first[int(is_so(self._own[name])), i] = group.rank
            without, having = _least_of_all(group, ranks, first)
            for name, one, other in zip(names, without.tolist(), having.tolist()):
                if nobody not in (one, other):
                    return name, group.name(one), group.name(other)
        return None


def _ranks_of(plan: Plan) -> dict[str, set[int]]:
    """Return the ranks that have each parameter."""
    return {
        name: {
            rank for stage in stages.values() for rank in plan.program.ranks_of(stage)
        }
        for name, stages in plan.uses.items()
    }


def _least_of_all(
    group: ProcessGroup, ranks: Sequence[int], numbers: np.ndarray
) -> np.ndarray:
    """Return the elementwise least numbers of some ranks. Collective among them.

    In round k each rank sends what it knows to the one 2^k further on, as in a barrier.
    """
    place = ranks.index(group.rank)
    distance = 1
    while distance < len(ranks):
        ahead, behind = (
            ranks[(place + step) % len(ranks)] for step in (distance, -distance)
        )
        sending = group.isend(numbers, ahead, OwnTag.TRAINED)
        came = group.irecv(
            behind, OwnTag.TRAINED, what="which parameters it trains"
        ).wait()
        sending.wait()
        numbers = np.minimum(numbers, came)
        distance *= 2
    return numbers

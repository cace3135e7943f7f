"""The parameters of all ranks: their collective operations between two steps."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import numpy as np

from minipipe.comm import Grid, ProcessGroup
from minipipe.comm.agreement import digest
from minipipe.core.autograd import backend
from minipipe.core.execution.stage import Stage
from minipipe.core.nn.module import check_state, load_state
from minipipe.errors import ArgumentError, RankError
from minipipe.execution.checks.calls import Calls, check_backward, part_of
from minipipe.execution.checks.comparison import check_first_values
from minipipe.execution.checks.description import description
from minipipe.execution.checks.trained import Trained
from minipipe.execution.checks.updates import Updates
from minipipe.execution.plan import Plan
from minipipe.nn.untrained import warn_of_untrained

if TYPE_CHECKING:
    from minipipe.optim import LossScale
    from minipipe.pipeline.sharding import ShardedOptimiser
    from minipipe.pipeline.tied import SharedParameters


class AllParameters:
    """The parameters of a pipeline. Making it is collective.

    The methods are as in :class:`minipipe.Pipeline`.

    Parameters
    ----------
    plan : Plan
    group : ProcessGroup
    calls : Calls
    stages : mapping of int to Stage
        Of this rank.
    compares : bool
        Whether to compare the first values, and the optimisers from then on.
    grid : Grid, optional
        The device mesh to which the group, a pipeline, belongs.

    Attributes
    ----------
    own : dict of str to Parameter
        The parameters of this rank, by their names in the whole model.
    shared : SharedParameters or None
        The parameters that several ranks share.
    """

    def __init__(
        self,
        plan: Plan,
        group: ProcessGroup,
        calls: Calls,
        stages: Mapping[int, Stage],
        compares: bool,
        grid: Grid | None,
    ) -> None:
        self._plan = plan
        self._group = group
        self._calls = calls
        every = grid.group if grid else group
        if every.rank == 0:
            warn_of_untrained(plan.model.modules())
        self.own = {
            name: p for stage in stages.values() for name, p in stage.parameters.items()
        }
        updates = Updates(self.own.values()) if compares or group.size > 1 else None
        if compares:
            alike = {**dict(plan.model.named_parameters()), **self.own}
            check_first_values(
                group, {name: one for name, one in alike.items() if not one.is_summed}
            )
            if grid is not None:
                check_first_values(
                    grid.tensor,
                    {name: p for name, p in self.own.items() if not p.is_divided},
                )
            calls.updates = updates
        self._trained = calls.trained = Trained(plan, group, self.own, grid)
        self.shared: SharedParameters | None = None
        if users := plan.shared:
            from minipipe.pipeline.tied import SharedParameters

            self.shared = SharedParameters(users, group, self.own)
            self.shared.take_first_values()

    def state_dict(self) -> dict[str, np.ndarray]:
        """Return the whole model's values on every rank. Collective."""
        self._calls.begin("state_dict")
        state = {}
        for name, owner in self._plan.owners.items():
            own = self.own.get(name)
            is_owner = owner == self._group.rank
            mine = None
            if own is not None and (is_owner or own.is_divided):
                mine = own.joined(own.data)
            mine = backend.to_numpy(mine) if is_owner else None
            state[name] = self._group.broadcast(mine, owner, what=part_of("state_dict"))
        return state

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Take this rank's part of the whole model's values. Every rank gives the
        same.
        """
        check_state(dict(self._plan.model.named_parameters()), state)
        if self._calls.updates:
            self._calls.updates.note_state(state)
        load_state(self.own, state)

    def clip_grad_norm(self, max_norm: float) -> float:
        """Limit the norm of the gradients of all ranks, and return the norm before.
        Collective.
        """
        from minipipe.optim.scaling import clip_gradients, squared_norms, total_norm

        check_backward(self._plan.schedule, "clip_grad_norm")
        self._calls.begin("clip_grad_norm", {"max_norm": float(max_norm)})
        owned = [
            self.own[name]
            for name, owner in self._plan.owners.items()
            if owner == self._group.rank
        ]
        mine = squared_norms([one for one in owned if not one.is_summed])
        # collective among replicas
        summed = squared_norms([one for one in self.own.values() if one.is_summed])
        mine += summed if any(one.is_summed for one in owned) else []
        squares = self._group.all_gather(np.array(mine), what=part_of("clip_grad_norm"))
        norm = total_norm(np.concatenate(squares).tolist())
        clip_gradients(self.own.values(), norm, max_norm)
        return norm

    def sharded(
        self, rule: Any, parameters: Any, numbers: Mapping[str, Any]
    ) -> ShardedOptimiser:
        """Return an optimiser whose state is divided among the ranks that have the same
        parameters. Collective.
        """
        from minipipe.pipeline.sharding import (
            ShardedOptimiser,
            check_elementwise,
            sharings_of,
        )

        asked = description((rule, sorted(numbers.items())), "optimiser")
        self._calls.begin(
            "sharded", {"sharded optimiser": digest(asked) >> 16}
        )  # as many bits as one number of a fingerprint keeps
        if any(one.is_summed for one in self.own.values()):
            raise ArgumentError(
                "On this grid parameters are sharded, and so is the state of the "
                "optimiser: write optim.Adam(pipeline.parameters()), without sharded.",
            )
        rule = check_elementwise(rule)
        trained = list(self.own.values() if parameters is None else parameters)
        whole = rule(trained, **numbers)
        self._trained.check_given(whole.parameters)
        sharings = sharings_of(self._plan, self.own, whole)
        return ShardedOptimiser(list(sharings), self._group, rule, trained, numbers)

    def unscale_gradients(self, scale: LossScale) -> bool:
        """Divide the gradients of all ranks by a loss scale, unless one of them is not
        finite. Collective.
        """
        from minipipe.optim.scaling import parts_are_finite

        check_backward(self._plan.schedule, "unscale_gradients")
        self._calls.begin("unscale_gradients")
        mine = np.array([parts_are_finite(self.own.values()), scale.value])
        gathered = self._group.all_gather(mine, what=part_of("unscale_gradients"))
        finite, values = zip(*(row.tolist() for row in gathered))
        if len(set(values)) > 1:
            raise RankError(
                "disagreement",
                f"The loss scales of the ranks are {list(values)}; expected the same "
                "on all. Create it in the same way on every rank, and use it in the "
                "same steps.",
            )
        return scale.unscale(self.own.values(), all(finite))

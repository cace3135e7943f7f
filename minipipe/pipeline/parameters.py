"""The parameters of all ranks, of which each has its own: what the ranks do with them together, between two steps."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from minipipe.autograd import backend
from minipipe.comm import ProcessGroup
from minipipe.errors import RankError
from minipipe.execution.checks import Calls, Updates, check_first_values, part_of
from minipipe.execution.plan import Plan
from minipipe.execution.stage import Stage
from minipipe.nn.module import check_state
from minipipe.optim import LossScale, clip_gradients, gradients_are_finite, squared_norms, total_norm
from minipipe.pipeline.shared import SharedParameters


class AllParameters:
    """The parameters of a pipeline. Making it is collective.

    The methods are those of :class:`minipipe.Pipeline`.

    Parameters
    ----------
    plan : Plan
    group : ProcessGroup
    calls : Calls
    stages : mapping of int to Stage
        Of this rank.
    compares : bool
        Whether to compare the first values, and the optimisers from then on.

    Attributes
    ----------
    own : dict of str to Parameter
        Those of this rank, by their names in the whole model.
    shared : SharedParameters
        Those that several ranks share.
    """

    def __init__(
        self, plan: Plan, group: ProcessGroup, calls: Calls, stages: Mapping[int, Stage], compares: bool
    ) -> None:
        self._plan, self._group, self._calls = plan, group, calls
        self.own = {name: p for stage in stages.values() for name, p in stage.parameters.items()}
        updates = Updates(self.own.values()) if group.size > 1 else None
        if compares:
            check_first_values(group, {**dict(plan.model.named_parameters()), **self.own})
            calls.updates = updates
        self.shared = SharedParameters(plan.shared, group, self.own)
        self.shared.take_first_values()

    def state_dict(self) -> dict[str, np.ndarray]:
        """Return the whole model's values on every rank. Collective."""
        self._calls.begin("state_dict")
        state = {}
        for name, owner in self._plan.owners.items():
            mine = backend.to_numpy(self.own[name].data) if owner == self._group.rank else None
            state[name] = np.array(self._group.broadcast(mine, owner, what=part_of("state_dict")))
        return state

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Take this rank's part of the whole model's values. Every rank gives the same."""
        check_state(dict(self._plan.model.named_parameters()), state)
        if self._calls.updates:
            self._calls.updates.note_state(state)
        for name, parameter in self.own.items():
            parameter.load(backend.as_array(state[name]), name)

    def clip_grad_norm(self, max_norm: float) -> float:
        """Limit the norm of the gradients of all ranks, and return the norm before. Collective."""
        self._calls.begin("clip_grad_norm", {"max_norm": float(max_norm)})
        owned = [self.own[name] for name, owner in self._plan.owners.items() if owner == self._group.rank]
        squares = self._group.all_gather(np.array(squared_norms(owned)), what=part_of("clip_grad_norm"))
        norm = total_norm(np.concatenate(squares).tolist())
        clip_gradients(self.own.values(), norm, max_norm)
        return norm

    def unscale_gradients(self, scale: LossScale) -> bool:
        """Divide the gradients of all ranks by a loss scale, unless one of them is not finite. Collective."""
        self._calls.begin("unscale_gradients")
        mine = np.array([gradients_are_finite(self.own.values()), scale.value])
        gathered = self._group.all_gather(mine, what=part_of("unscale_gradients"))
        finite, values = zip(*(row.tolist() for row in gathered))
        if len(set(values)) > 1:
            message = f"The loss scales of the ranks are {list(values)}; expected the same on all."
            raise RankError("disagreement", f"{message} Make it alike on every rank, and use it in the same steps.")
        return scale.unscale(self.own.values(), all(finite))

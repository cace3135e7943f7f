"""What all ranks do with their gradients together, between the backward and the update."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from minipipe.comm import ProcessGroup
from minipipe.errors import RankError
from minipipe.nn import Parameter
from minipipe.optim import LossScale, clip_gradients, gradients_are_finite, squared_norms, total_norm
from minipipe.pipeline.consistency import part_of


def clip_everywhere(
    group: ProcessGroup, owners: Mapping[str, int], parameters: Mapping[str, Parameter], max_norm: float
) -> float:
    """Limit the norm of the gradients of all ranks, and return the norm before. Collective.

    Parameters
    ----------
    group : ProcessGroup
    owners : mapping of str to int
        By name of a parameter, the rank that counts it: ``Plan.owners``.
    parameters : mapping of str to Parameter
        Of this rank, by their names in the whole model.
    max_norm : float
        Above 0.
    """
    owned = [parameters[name] for name, owner in owners.items() if owner == group.rank]
    squares = group.all_gather(np.array(squared_norms(owned)), what=part_of("clip_grad_norm"))
    norm = total_norm(np.concatenate(squares).tolist())
    clip_gradients(parameters.values(), norm, max_norm)
    return norm


def unscale_everywhere(group: ProcessGroup, parameters: Mapping[str, Parameter], scale: LossScale) -> bool:
    """Divide the gradients of all ranks by a loss scale, unless one of them is not finite. Collective.

    Parameters
    ----------
    group : ProcessGroup
    parameters : mapping of str to Parameter
        Of this rank.
    scale : LossScale
        Of this rank; all have the same value.

    Raises
    ------
    RankError
        Code ``disagreement``, when their values differ.
    """
    mine = np.array([gradients_are_finite(parameters.values()), scale.value])
    finite, values = zip(*(row.tolist() for row in group.all_gather(mine, what=part_of("unscale_gradients"))))
    if len(set(values)) > 1:
        message = f"The loss scales of the ranks are {list(values)}; expected the same on all."
        raise RankError("disagreement", f"{message} Make it alike on every rank, and use it in the same steps.")
    return scale.unscale(parameters.values(), all(finite))

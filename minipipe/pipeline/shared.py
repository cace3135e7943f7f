"""Parameters that stages on several ranks share, such as the embedding of a language model's first and last layer.

Each rank has a copy, with the values of the first. After a step the copies exchange their gradients and add them up
layer by layer, in the order of layers: the same sum, to the bit, as in one process, where a parameter adds up its
gradients so, too. Then every optimiser changes its copy alike.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from minipipe import backend
from minipipe.backend import Array
from minipipe.comm import ProcessGroup
from minipipe.nn import Parameter, Sequential
from minipipe.nn.sequential import shared_parameters

__all__ = ["SharedParameters"]

_NOTHING = np.zeros(0)  # travels in place of a gradient that is None


class SharedParameters:
    """The exchange among the ranks that share a parameter: of values once, and of gradients after every step.

    Parameters
    ----------
    model : Sequential
    partition : sequence of range
        The layers of each stage.
    placement : sequence of int
        The rank of each stage.
    """

    def __init__(self, model: Sequential, partition: Sequence[range], placement: Sequence[int]) -> None:
        names = {id(parameter): name for name, parameter in model.named_parameters()}
        rank_of = {layer: placement[stage] for stage, layers in enumerate(partition) for layer in layers}
        users: dict[str, dict[int, int]] = {}  # by name: the layers that use it, each with its rank
        for layer, parameters in shared_parameters(model.layers).items():
            for parameter in parameters:
                users.setdefault(names[id(parameter)], {})[layer] = rank_of[layer]
        self._users = {name: ranks for name, ranks in users.items() if len(set(ranks.values())) > 1}

    def take_first_values(
        self, group: ProcessGroup, parameters: Mapping[str, Parameter], timeout: float | None
    ) -> None:
        """Give every copy the values of the first one.

        Collective among the ranks that share a parameter. First values drawn from the seed are equal already; values
        that a program computed before may not be.

        Parameters
        ----------
        group : ProcessGroup
        parameters : mapping of str to Parameter
            Of this rank, by their names in the whole model.
        timeout : float or None
            Seconds that a wait may last.
        """
        sends = []
        for tag, (name, ranks) in enumerate(self._users.items()):
            first, *others = dict.fromkeys(ranks.values())
            if group.rank == first:
                values = backend.to_numpy(parameters[name].data)
                sends += [group.isend(values, other, tag) for other in others]
            elif group.rank in others:
                received = group.irecv(first, tag, what=f"the first values of {name}").wait(timeout)
                assert received is not None
                parameters[name].load(received, name)
        for send in sends:
            send.wait(timeout)

    def exchange_gradients(
        self, group: ProcessGroup, parameters: Mapping[str, Parameter], step: int, first_tag: int, timeout: float | None
    ) -> None:
        """Give every copy the sum over all of them.

        Collective among the ranks that share a parameter; each sends to each, all at once.

        Parameters
        ----------
        group : ProcessGroup
        parameters : mapping of str to Parameter
            Of this rank, by their names in the whole model.
        step : int
            Travels with every message.
        first_tag : int
            The first of the tags that this may use.
        timeout : float or None
            Seconds that a wait may last.
        """
        mine = {name: ranks for name, ranks in self._users.items() if name in parameters}
        uses = [(name, layer) for name, ranks in self._users.items() for layer in ranks]
        tags = {use: first_tag + i for i, use in enumerate(uses)}
        sends = []
        for name, ranks in mine.items():
            for layer, rank in ranks.items():
                if rank == group.rank:
                    array = _message(parameters[name].grad_of_layer(layer))
                    others = sorted(set(ranks.values()) - {rank})
                    sends += [group.isend(array, other, tags[name, layer], step=step) for other in others]
        for name, ranks in mine.items():
            parameter, total = parameters[name], None
            for layer, rank in ranks.items():
                share: Array | None = parameter.grad_of_layer(layer)
                if rank != group.rank:
                    words = f"the gradient of {name} from layer {layer}"
                    received = group.irecv(rank, tags[name, layer], step=step, what=words).wait(timeout)
                    share = None if received is None or not received.size else backend.moved(received, parameter.xp)
                if share is not None:
                    total = share if total is None else total + share
            parameter.grad = total
        for send in sends:
            send.wait(timeout)


def _message(gradient: Array | None) -> np.ndarray:
    return _NOTHING if gradient is None else backend.to_numpy(gradient)

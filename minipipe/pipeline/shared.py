"""Parameters that stages on several ranks share, such as the embedding of a language model's first and last layer.

Each rank has a copy, with the values of the first. After a step the copies exchange their gradients and add them up
use by use, in the order in which they were declared: the same sum, to the bit, as in one process. Then every optimiser
changes its copy alike.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from minipipe.autograd import backend
from minipipe.autograd.backend import Array
from minipipe.comm import ProcessGroup
from minipipe.nn import Parameter
from minipipe.nn.parameter import sum_of_gradients

_NOTHING = np.zeros(0)  # travels in place of a gradient that is None


class SharedParameters:
    """The exchange among the ranks that share a parameter: of values once, and of gradients after every step.

    Parameters
    ----------
    users : mapping
        By name of a parameter, its uses, each with its rank: ``Plan.shared``.
    group : ProcessGroup
    parameters : mapping of str to Parameter
        Of this rank, by their names in the whole model.
    """

    def __init__(
        self, users: Mapping[str, Mapping[int, int]], group: ProcessGroup, parameters: Mapping[str, Parameter]
    ) -> None:
        self._users, self._group, self._parameters = users, group, parameters

    def take_first_values(self) -> None:
        """Give every copy the values of the first one.

        Collective among the ranks that share a parameter. First values drawn from the seed are equal already; values
        that a program computed before may not be.
        """
        group, parameters, sends = self._group, self._parameters, []
        for tag, (name, ranks) in enumerate(self._users.items()):
            first, *others = dict.fromkeys(ranks.values())
            if group.rank == first:
                values = backend.to_numpy(parameters[name].data)
                sends += [group.isend(values, other, tag) for other in others]
            elif group.rank in others:
                received = group.irecv(first, tag, what=f"the first values of {name}").wait()
                assert received is not None
                parameters[name].load(received, name)
        for send in sends:
            send.wait()

    def take_gradients(self) -> dict[str, Array | None]:
        """Return the gradients of these parameters, which are gone then. Local."""
        return {name: self._parameters[name].take_grad() for name in self._users if name in self._parameters}

    def exchange_gradients(self, step: int, first_tag: int, before: Mapping[str, Array | None]) -> None:
        """Give every copy the sum over all of them.

        Collective among the ranks that share a parameter; each sends to each, all at once.

        Parameters
        ----------
        step : int
            Travels with every message.
        first_tag : int
            The first of the tags that this may use.
        before : mapping of str to array
            The gradients of earlier steps, to which those of this one are added.
        """
        group, parameters = self._group, self._parameters
        mine = {name: ranks for name, ranks in self._users.items() if name in parameters}
        uses = [(name, use) for name, ranks in self._users.items() for use in ranks]
        tags = {key: first_tag + i for i, key in enumerate(uses)}
        sends = []
        for name, ranks in mine.items():
            for use, rank in ranks.items():
                if rank == group.rank:
                    array = _message(parameters[name].grad_of_use(use))
                    others = sorted(set(ranks.values()) - {rank})
                    sends += [group.isend(array, other, tags[name, use], step=step) for other in others]
        for name, ranks in mine.items():
            parameter, shares = parameters[name], []
            for use, rank in ranks.items():
                share: Array | None = parameter.grad_of_use(use)
                if rank != group.rank:
                    words = f"the gradient of use {use} of {name}"
                    received = group.irecv(rank, tags[name, use], step=step, what=words).wait()
                    share = None if received is None or not received.size else backend.moved(received, parameter.xp)
                shares.append(share)
            parameter.grad = sum_of_gradients([before.get(name), sum_of_gradients(shares)])
        for send in sends:
            send.wait()


def _message(gradient: Array | None) -> np.ndarray:
    return _NOTHING if gradient is None else backend.to_numpy(gradient)

"""Parameters that several ranks share: values once, and gradients after every step.

With ``accumulate=True`` such a parameter adds its sum over the uses of each batch.
Keeping the uses apart, in the order of one process, would lose changes of gradients
between two batches, such as clipping.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import ModuleType
from typing import TYPE_CHECKING

import numpy as np

from minipipe.core.autograd import backend
from minipipe.core.autograd.backend import Array, sum_of_gradients
from minipipe.core.comm.message import finish
from minipipe.parallel.reduction import Channel, Exchange

if TYPE_CHECKING:
    from minipipe.comm import ProcessGroup
    from minipipe.nn import Parameter

_NOTHING = np.zeros(0)  # travels in place of a gradient that is None


class SharedParameters:
    """The exchange among the ranks that share a parameter: of values once, and of
    gradients after every step.

    Parameters
    ----------
    users : mapping
        By name of a parameter and use, for each rank that has the parameter, the rank
        from which it gets the gradient of the use: ``Plan.shared``.
    group : ProcessGroup
    parameters : mapping of str to Parameter
        The parameters of this rank, by their names in the whole model.
    """

    def __init__(
        self,
        users: Mapping[str, Mapping[int, Mapping[int, int]]],
        group: ProcessGroup,
        parameters: Mapping[str, Parameter],
    ) -> None:
        self._users = users
        self._group = group
        self._parameters = parameters

    def take_first_values(self) -> None:
        """Give every copy the values of the first one.

        Collective among the ranks that share a parameter. First values drawn from the
        seed are equal already; values that a program computed before may not be.
        """
        group = self._group
        parameters = self._parameters
        sends = []
        for tag, (name, users) in enumerate(self._users.items()):
            first, *others = dict.fromkeys(
                source for sources in users.values() for source in sources.values()
            )
            if group.rank == first:
                values = backend.to_numpy(parameters[name].data)
                sends += [group.isend(values, other, tag) for other in others]
            elif group.rank in others:
                received = group.irecv(
                    first, tag, what=f"the first values of {name}"
                ).wait()
                assert received is not None
                parameters[name].load(received, name)
        finish(sends)

    def take_gradients(self) -> dict[str, Array | None]:
        """Return the gradients of these parameters, which are gone then. Local."""
        return {
            name: self._parameters[name].take_grad()
            for name in self._users
            if name in self._parameters
        }

    def exchange_gradients(
        self, step: int, first_tag: int, before: Mapping[str, Array | None]
    ) -> None:
        """Give every copy the sum over all of them, in the order of uses.

        Collective among the ranks that share a parameter; each sends to each, all at
        once.

        Parameters
        ----------
        step : int
            Its number, which every message carries.
        first_tag : int
            The first of the tags that this may use.
        before : mapping of str to array
            The gradients of earlier steps, to which the gradients of this step are
            added.
        """
        rank = self._group.rank
        coming = dict[str, list[tuple[Array | None, int, Exchange]]]()
        uses = [
            (name, use, sources)
            for name, users in self._users.items()
            for use, sources in users.items()
        ]
        for tag, (name, use, sources) in enumerate(uses, first_tag):
            if name in self._parameters:
                own = self._parameters[name].grad_of_use(use)
                source = sources[rank]
                others = [other for other in sources if other != rank == sources[other]]
                outgoing = [(_message(own), others)] if others else []
                awaited = (
                    {source: f"the gradient of use {use} of {name}"}
                    if source != rank
                    else {}
                )
                exchange = Exchange(Channel(self._group, tag, step), outgoing, awaited)
                coming.setdefault(name, []).append((own, source, exchange))
        for name, of_uses in coming.items():
            parameter = self._parameters[name]
            gradients = [
                own
                if source == rank
                else _gradient(exchange.wait()[source], parameter.xp)
                for own, source, exchange in of_uses
            ]
            parameter.grad = sum_of_gradients(
                [before.get(name), sum_of_gradients(gradients)]
            )
        finish(
            send
            for of_uses in coming.values()
            for *_, exchange in of_uses
            for send in exchange.sends
        )


def _message(gradient: Array | None) -> np.ndarray:
    return _NOTHING if gradient is None else backend.to_numpy(gradient)


def _gradient(message: np.ndarray, xp: ModuleType) -> Array | None:
    return backend.moved(message, xp) if message.size else None

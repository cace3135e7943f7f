"""How much memory an optimiser will take, before there are values."""

from __future__ import annotations

from collections.abc import Callable, Iterable

import numpy as np

from minipipe.autograd import backend
from minipipe.errors import ArgumentError
from minipipe.nn.parameter import Parameter
from minipipe.optim.optimiser import Optimiser

MakeOptimiser = Callable[[list[Parameter]], Optimiser]


def state_bytes(make_optimiser: MakeOptimiser | None, parameters: Iterable[Parameter]) -> int:
    """Return how many bytes an optimiser will keep for parameters, which need no values yet.

    It takes one step with stand-ins of one element each; what it keeps for them is scaled up. Frozen parameters get
    nothing.

    Parameters
    ----------
    make_optimiser : function, or None
        ``parameters -> Optimiser``. None keeps nothing.
    parameters : iterable of Parameter

    Raises
    ------
    ArgumentError
        Code ``type``: when no optimiser is made.

    Examples
    --------
    >>> from minipipe import nn, optim
    >>> layer = nn.Linear(1000, 1000, bias=False)
    >>> state_bytes(optim.Adam, layer.parameters())
    8000000
    >>> state_bytes(lambda parameters: optim.SGD(parameters, learning_rate=0.1), layer.parameters())
    0
    """
    trained = [parameter for parameter in parameters if parameter.requires_grad]
    if make_optimiser is None or not trained:
        return 0
    standins = [Parameter(np.zeros((1,) * len(p.shape), backend.numpy_dtype(p.dtype))) for p in trained]
    optimiser = make_optimiser(list(standins)) if callable(make_optimiser) else make_optimiser
    if not isinstance(optimiser, Optimiser):
        raise ArgumentError(
            "type",
            f"optimiser is {make_optimiser!r:.60}; expected a function that makes one of parameters, such as "
            "optim.Adam or lambda parameters: optim.SGD(parameters, learning_rate=0.1).",
        )
    for standin in standins:
        standin.grad = np.zeros_like(standin.data)
    optimiser.step()
    states, masters = optimiser._states, optimiser._masters
    kept = [[*states.get(id(standin), {}).values(), masters.get(id(standin))] for standin in standins]
    return sum(
        backend.num_bytes(array) * parameter.size
        for parameter, arrays in zip(trained, kept)
        for array in arrays
        if backend.is_array(array)
    )


def gradient_bytes(parameters: Iterable[Parameter]) -> int:
    """Return the bytes of the gradients of parameters that are trained; those of halves are float32.

    Examples
    --------
    >>> from minipipe import nn
    >>> gradient_bytes([nn.Parameter(np.ones(10, np.float32)), nn.Parameter(np.ones(10, np.float16))])
    80
    """
    return sum(p.size * max(4, p.nbytes // max(1, p.size)) for p in parameters if p.requires_grad)

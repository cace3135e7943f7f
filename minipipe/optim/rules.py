"""The rules: SGD, Adam and AdamW. Each changes one array in place, in pieces that fit
the cache.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from math import inf, sqrt
from typing import Any, ClassVar

from minipipe.core.autograd.backend import Array, array_module
from minipipe.core.nn.parameter import Parameter
from minipipe.core.sgd import blocks as blocks
from minipipe.core.sgd import sgd
from minipipe.optim.launches import Launch
from minipipe.optim.optimiser import Optimiser, ParameterGroup


class SGD(Optimiser):
    """Stochastic gradient descent with momentum and weight decay.

    Local; no messages. Roughly: ``v = momentum * v + gradient + weight_decay * p; p -=
    learning_rate * v``, which is PyTorch's form. There may be no parameters: a rank may
    hold only layers without any.

    Parameters
    ----------
    parameters : iterable of Parameter, or of dict
        A dict is a group with its own hyper-parameters: ``{"parameters": [...],
        "learning_rate": 0.1}``.
    learning_rate : float
        At least 0; may be changed between steps.
    momentum : float
        At least 0, below 1. At 0 no velocity is kept.
    weight_decay : float
        At least 0.
    nesterov : bool
        Whether the parameter is the point to which the velocity would carry it next, so
        that gradients are of that point: ``p -= learning_rate * (gradient + momentum *
        v)``.

    Raises
    ------
    ArgumentError
        Code ``value``: when a number is out of its range, or the groups are not well
        formed (see :class:`Optimiser`). Code ``type``: when an object is not a
        parameter.

    Notes
    -----
    *Delayed Nesterov*, for gradients that come some updates late, multiplies each by
    ``1 - momentum``, so that with a momentum near 1 the look-ahead predicts the weights
    at the time of the update. To use it, set ``learning_rate=rate * (1 - momentum),
    nesterov=True`` in a run of :func:`minipipe.schedules.pipedream`. :class:`Adam` has
    that factor already.

    References
    ----------
    Sutskever, Martens, Dahl, Hinton 2013, "On the importance of initialization and
    momentum in deep learning". Ajanthan, Ramasinghe, Zuo, Avraham, Long 2025, "Nesterov
    method for asynchronous pipeline parallel optimization", equation 10.

    Examples
    --------
    >>> import numpy as np
    >>> from minipipe import nn, optim
    >>> weight = nn.Parameter(np.array([1.0, 2.0]))
    >>> weight.grad = np.array([1.0, -4.0])
    >>> optim.SGD([weight], learning_rate=0.5).step()
    >>> weight.data
    array([0.5, 4. ])
    """

    __slots__ = ()
    kept: ClassVar[Mapping[str, float]] = {"velocity": -inf}
    is_elementwise: ClassVar[bool] = True
    launches: ClassVar[dict[str, Launch]] = {}

    def __init__(
        self,
        parameters: Iterable[Parameter] | Iterable[Mapping[str, Any]],
        learning_rate: float,
        momentum: float = 0.0,
        weight_decay: float = 0.0,
        nesterov: bool = False,
    ) -> None:
        super().__init__(
            parameters,
            learning_rate=learning_rate,
            momentum=momentum,
            weight_decay=weight_decay,
            nesterov=nesterov,
        )

    def _update(
        self, data: Array, gradient: Array, state: dict[str, Any], group: ParameterGroup
    ) -> None:
        sgd(data, gradient, state, group)


class Adam(Optimiser):
    """Adam: the running mean of the gradient, over the root of the running mean of its
    square.

    Local; no messages. Roughly: ``m += (1 - beta1) * (gradient - m); v += (1 - beta2) *
    (gradient**2 - v); p -= learning_rate * corrected(m) / (sqrt(corrected(v)) +
    epsilon)``, which is PyTorch's form. There may be no parameters: a rank may hold
    only layers without any.

    Parameters
    ----------
    parameters : iterable of Parameter, or of dict
        A dict is a group with its own hyper-parameters: ``{"parameters": [...],
        "learning_rate": 0.1}``.
    learning_rate : float
        At least 0; may be changed between steps.
    betas : pair of float
        How much of the running means of the gradient and of its square is kept at each
        step; at least 0, below 1.
    epsilon : float
        Above 0; an element whose gradients have all been 0 is divided by this.
    weight_decay : float
        At least 0. Adam adds ``weight_decay * p`` to the gradient, so that it is scaled
        like the gradient; see :class:`AdamW`.
    nesterov : bool
        Whether to look ahead, as :class:`SGD` does: ``corrected(m)`` is then ``beta1 *
        m / (1 - beta1**(t + 1)) + (1 - beta1) * gradient / (1 - beta1**t)``. This is
        NAdam, with the same beta1 at all steps.

    Raises
    ------
    ArgumentError
        Code ``value``: when a number is out of its range, or the groups are not well
        formed (see :class:`Optimiser`). Code ``type``: when an object is not a
        parameter.

    Notes
    -----
    The running means start at 0, and after t steps their weights sum to 1 - beta**t
    instead of 1; dividing by that corrects them. Each parameter counts its own t, the
    steps at which it had a gradient. Both corrections are folded into the two numbers
    ``rate`` and ``epsilon``, which saves two passes over the arrays.

    References
    ----------
    Kingma & Ba 2015, "Adam: a method for stochastic optimization", algorithm 1; the
    folded form ends section 2. Dozat 2016, "Incorporating Nesterov momentum into Adam",
    algorithm 2.

    Examples
    --------
    The first step is the learning rate, whatever the size of the gradient.

    >>> import numpy as np
    >>> from minipipe import nn, optim
    >>> weight = nn.Parameter(np.array([1.0, 2.0]))
    >>> weight.grad = np.array([1e-3, -4e3])
    >>> optim.Adam([weight], learning_rate=0.5).step()
    >>> weight.data.round(3)
    array([0.5, 2.5])
    """

    __slots__ = ()
    kept: ClassVar[Mapping[str, float]] = {
        "num_steps": 1,
        "mean": -inf,
        "mean_square": 0.0,
    }
    is_elementwise: ClassVar[bool] = True
    launches: ClassVar[dict[str, Launch]] = {}

    def __init__(
        self,
        parameters: Iterable[Parameter] | Iterable[Mapping[str, Any]],
        learning_rate: float = 1e-3,
        betas: tuple[float, float] = (0.9, 0.999),
        epsilon: float = 1e-8,
        weight_decay: float = 0.0,
        nesterov: bool = False,
    ) -> None:
        numbers = {
            "betas": betas,
            "epsilon": epsilon,
            "weight_decay": weight_decay,
            "nesterov": nesterov,
        }
        super().__init__(parameters, learning_rate=learning_rate, **numbers)

    def _update(
        self, data: Array, gradient: Array, state: dict[str, Any], group: ParameterGroup
    ) -> None:
        xp = array_module(data)
        beta1, beta2 = group.betas
        rate, epsilon, ahead = next_rates(data, state, group)
        for p, g, m, v in blocks(data, gradient, state["mean"], state["mean_square"]):
            g = self._decay(p, g, group)
            m *= beta1
            m += (1 - beta1) * g
            v *= beta2
            v += (1 - beta2) * (g * g)
            if self._looks_ahead(group):
                step = ahead * m + rate * (1 - beta1) * g
            else:
                step = rate * m
            p -= step / (xp.sqrt(v) + epsilon)

    def _looks_ahead(self, group: ParameterGroup) -> bool:
        return bool(group.nesterov)

    def _decay(self, data: Array, gradient: Array, group: ParameterGroup) -> Array:
        """Apply the weight decay; return the gradient for the update."""
        if not group.weight_decay:
            return gradient
        return gradient + group.weight_decay * data


def next_rates(
    data: Array, state: dict[str, Any], group: ParameterGroup
) -> tuple[float, float, float]:
    """Begin a state of Adam, or count its next step; return the corrected rate, epsilon
    and the rate of the look-ahead.
    """
    if not state:
        xp = array_module(data)
        state.update(num_steps=0, mean=xp.zeros_like(data))
        state["mean_square"] = xp.zeros_like(data)
    num_steps = state["num_steps"] = state["num_steps"] + 1
    beta1, beta2 = group.betas
    root = sqrt(1 - beta2**num_steps)
    rate = group.learning_rate * root / (1 - beta1**num_steps)
    ahead = group.learning_rate * root * beta1 / (1 - beta1 ** (num_steps + 1))
    return rate, group.epsilon * root, ahead


class AdamW(Adam):
    """Adam with decoupled weight decay: every value shrinks by the same fraction,
    whatever its gradients were.

    Local; no messages. Roughly: ``p -= learning_rate * weight_decay * p``, and then the
    step of :class:`Adam` without weight decay. It has the parameters of Adam, but
    weight_decay is 0.01 by default, as in PyTorch.

    References
    ----------
    Loshchilov & Hutter 2019, "Decoupled weight decay regularization", algorithm 2. As
    in PyTorch, the decay is multiplied by the learning rate, and so follows its
    schedule.

    Examples
    --------
    >>> import numpy as np
    >>> from minipipe import nn, optim
    >>> weight = nn.Parameter(np.array([1.0, 2.0]))
    >>> weight.grad = np.zeros(2)
    >>> optim.AdamW([weight], learning_rate=0.5, weight_decay=0.1).step()
    >>> weight.data
    array([0.95, 1.9 ])
    """

    __slots__ = ()
    is_elementwise: ClassVar[bool] = True
    launches: ClassVar[dict[str, Launch]] = {}

    def __init__(
        self,
        parameters: Iterable[Parameter] | Iterable[Mapping[str, Any]],
        learning_rate: float = 1e-3,
        betas: tuple[float, float] = (0.9, 0.999),
        epsilon: float = 1e-8,
        weight_decay: float = 1e-2,
        nesterov: bool = False,
    ) -> None:
        numbers = (learning_rate, betas, epsilon, weight_decay, nesterov)
        super().__init__(parameters, *numbers)

    def _decay(self, data: Array, gradient: Array, group: ParameterGroup) -> Array:
        if group.weight_decay:
            data *= 1 - group.learning_rate * group.weight_decay
        return gradient

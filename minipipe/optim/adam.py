"""Adam and AdamW: steps of about the learning rate for every element, however large or small its gradient."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from math import inf, sqrt
from typing import Any, ClassVar

from minipipe.autograd.backend import Array, array_module
from minipipe.nn.parameter import Parameter
from minipipe.optim.blocks import blocks
from minipipe.optim.optimiser import Optimiser
from minipipe.optim.parameter_group import ParameterGroup
from minipipe.optim.sgd import with_decay


class Adam(Optimiser):
    """Adam: the running mean of the gradient, over the root of the running mean of its square.

    Local; no messages. Roughly: ``m += (1 - beta1) * (gradient - m); v += (1 - beta2) * (gradient**2 - v);
    p -= learning_rate * corrected(m) / (sqrt(corrected(v)) + epsilon)``, which is PyTorch's form. No parameters at all
    are fine: a rank may hold only layers without any.

    Parameters
    ----------
    parameters : iterable of Parameter, or of dict
        A dict is a group with numbers of its own: ``{"parameters": [...], "learning_rate": 0.1}``.
    learning_rate : float
        At least 0; may be changed between steps.
    betas : pair of float
        How much of the running means of the gradient and of its square is kept at each step; at least 0, below 1.
    epsilon : float
        Above 0; an element whose gradients have all been 0 is divided by this.
    weight_decay : float
        At least 0. Adam adds ``weight_decay * p`` to the gradient, so that it is scaled like the gradient; see
        :class:`AdamW`.

    Raises
    ------
    ArgumentError
        Code ``value``: when a number is out of its range, or the groups are not well formed (see :class:`Optimiser`).
        Code ``type``: when something is no parameter.

    Notes
    -----
    The running means start at 0, and after t steps their weights sum to 1 - beta**t instead of 1; dividing by that
    corrects them. Each parameter counts its own t, the steps at which it had a gradient. Both corrections are folded
    into the two numbers ``rate`` and ``epsilon``, which saves two passes over the arrays.

    References
    ----------
    Kingma & Ba 2015, "Adam: a method for stochastic optimization", algorithm 1; the folded form ends section 2.

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
    kept: ClassVar[Mapping[str, float]] = {"num_steps": 1, "mean": -inf, "mean_square": 0.0}

    def __init__(
        self,
        parameters: Iterable[Parameter] | Iterable[Mapping[str, Any]],
        learning_rate: float = 1e-3,
        betas: tuple[float, float] = (0.9, 0.999),
        epsilon: float = 1e-8,
        weight_decay: float = 0.0,
    ) -> None:
        super().__init__(
            parameters, learning_rate=learning_rate, betas=betas, epsilon=epsilon, weight_decay=weight_decay
        )

    def _update(self, data: Array, gradient: Array, state: dict[str, Any], group: ParameterGroup) -> None:
        xp = array_module(data)
        if not state:
            state.update(num_steps=0, mean=xp.zeros_like(data), mean_square=xp.zeros_like(data))
        state["num_steps"] += 1
        beta1, beta2 = group.betas
        root = sqrt(1 - beta2 ** state["num_steps"])
        rate = group.learning_rate * root / (1 - beta1 ** state["num_steps"])
        epsilon = group.epsilon * root
        for p, g, m, v in blocks(data, gradient, state["mean"], state["mean_square"]):
            g = self._decay(p, g, group)
            m *= beta1
            m += (1 - beta1) * g
            v *= beta2
            v += (1 - beta2) * (g * g)
            p -= rate * m / (xp.sqrt(v) + epsilon)

    def _decay(self, data: Array, gradient: Array, group: ParameterGroup) -> Array:
        """Apply the weight decay; return the gradient to go on with."""
        return with_decay(gradient, data, group.weight_decay)


class AdamW(Adam):
    """Adam with decoupled weight decay: every value shrinks by the same share, whatever its gradients were.

    Local; no messages. Roughly: ``p -= learning_rate * weight_decay * p``, and then the step of :class:`Adam` without
    weight decay. Its parameters are those of Adam, but weight_decay is 0.01 unless it is given, as in PyTorch.

    References
    ----------
    Loshchilov & Hutter 2019, "Decoupled weight decay regularization", algorithm 2. As in PyTorch, the decay is
    multiplied by the learning rate, and so follows its schedule.

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

    def __init__(
        self,
        parameters: Iterable[Parameter] | Iterable[Mapping[str, Any]],
        learning_rate: float = 1e-3,
        betas: tuple[float, float] = (0.9, 0.999),
        epsilon: float = 1e-8,
        weight_decay: float = 1e-2,
    ) -> None:
        super().__init__(parameters, learning_rate, betas, epsilon, weight_decay)

    def _decay(self, data: Array, gradient: Array, group: ParameterGroup) -> Array:
        if group.weight_decay:
            data *= 1 - group.learning_rate * group.weight_decay
        return gradient

"""A layer that passes its input on and adds a loss, computed from it, to the loss of
the model.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from minipipe.core.autograd import backend
from minipipe.core.functional.operands import in_full
from minipipe.core.nn.module import Module
from minipipe.core.specs import Spec
from minipipe.core.tensor import Tensor, record
from minipipe.errors import TensorError
from minipipe.functional.shape import reshape
from minipipe.nn.collected_losses import losses_here
from minipipe.nn.function import text_of


class AuxiliaryLoss(Module):
    """Adds a function of its input to the loss while training, and returns the input.

    Examples: load balancing in a mixture of experts, a penalty that keeps activations
    small. In a pipeline it may be in any layer; ``step`` returns the whole loss on
    every rank. It is weighted by its microbatch's weight in the batch, so it should be
    a mean if the loss is a mean, and a sum if the loss is a sum. It does nothing in
    evaluation.

    Parameters
    ----------
    function : function
        ``x -> Tensor`` with one element, or a module. A function has no parameters; see
        :class:`minipipe.nn.Function`.
    weight : float
        The factor of the function's result. With 0 there is neither loss nor gradient,
        even of an infinite result.

    Raises
    ------
    TensorError
        Code ``shape``, on a call, when the function returns anything else.

    References
    ----------
    Shazeer et al. 2017, "Outrageously large neural networks: the sparsely-gated
    mixture-of-experts layer", section 4.

    Examples
    --------
    >>> from minipipe import Tensor, nn
    >>> model = nn.Sequential(
    ...     nn.AuxiliaryLoss(lambda x: (x * x).mean(), weight=0.1), nn.Linear(2, 1)
    ... )
    >>> with nn.auxiliary_losses() as found:
    ...     outputs = model(Tensor([[1.0, 3.0]]))
    >>> found
    [Tensor(0.5)]
    """

    adds_losses = True  # a pipeline passes them from stage to stage

    def __init__(self, function: Callable[[Any], Tensor], weight: float = 1.0) -> None:
        spec = Spec(Callable, expected="a function of its input")
        spec.of_class("AuxiliaryLoss", function)
        self.function = function
        self.weight = weight
        if isinstance(function, Module):
            self._described = function.brief()
        else:
            self._described = text_of(function)

    def forward(self, x: Any) -> Any:
        """Return the argument itself, a tensor or a pytree."""
        losses = losses_here.get()
        if self.is_training and losses is not None:
            value = self.function(x)
            if not isinstance(value, Tensor) or value.size != 1:
                found = type(value).__name__
                if isinstance(value, Tensor):
                    found = f"a tensor of shape {value.shape}"
                expected = "An AuxiliaryLoss must be a tensor with one element"
                raise TensorError("shape", f"{expected}; it is {found}.")
            value = reshape(in_full(value), ())
            # 0 times an infinite value would be NaN, and so would be the gradient.
            if self.weight:
                losses.append(value * self.weight)
            else:
                losses.append(record(backend.filled((), 0.0, value.data)))
        return x

    def describe(self) -> str:
        """Name the function, and the weight as it is now: one may change it during
        training.
        """
        return f"{self._described}, weight={self.weight}"

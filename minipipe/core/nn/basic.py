"""The layers of a multilayer perceptron."""

from __future__ import annotations

from typing import Any

from minipipe.core.functional.elementwise import relu, tanh
from minipipe.core.functional.linear import linear
from minipipe.core.nn.initialisers import Initialiser, constant, he_uniform
from minipipe.core.nn.module import Module, check_lengths
from minipipe.core.nn.parameter import Parameter
from minipipe.core.tensor import Tensor


class Linear(Module):
    """x @ weight + bias over the last axis of x.

    Parameters
    ----------
    in_features, out_features : int
        Lengths of the last axis before and after.
    bias : bool
        Whether there is a bias.
    initialiser : function, optional
        First values of the weight; by default
        :func:`~minipipe.nn.initialisers.he_uniform`. The bias begins at 0.
    dtype : dtype, optional
        float32 by default.

    Attributes
    ----------
    weight : Parameter of shape (in_features, out_features)
        PyTorch stores the transpose.
    bias : Parameter of shape (out_features,), or None

    Examples
    --------
    >>> import numpy as np
    >>> from minipipe import Tensor, nn
    >>> layer = nn.Linear(4, 3)
    >>> layer(Tensor(np.ones((2, 5, 4), np.float32))).shape, layer.num_parameters
    ((2, 5, 3), 15)
    """

    def __init__(
        self,
        in_features: int,
        out_features: int,
        bias: bool = True,
        initialiser: Initialiser | None = None,
        dtype: Any = None,
    ) -> None:
        check_lengths("Linear", in_features=in_features, out_features=out_features)
        initialiser = initialiser or he_uniform(in_features)
        self.weight = Parameter((in_features, out_features), initialiser, dtype)
        self.bias: Parameter | None = None
        if bias:
            self.bias = Parameter((out_features,), constant(0.0), dtype)

    def forward(self, x: Tensor) -> Tensor:
        """Map a tensor of shape (..., in_features) to (..., out_features)."""
        return linear(x, self.weight, self.bias)

    def describe(self) -> str:
        """Name both lengths."""
        lengths = ", ".join(map(str, self.weight.shape))
        if self.bias is None:
            lengths += ", bias=False"
        return lengths


class Identity(Module):
    """Returns its input.

    Examples
    --------
    >>> from minipipe import Tensor, nn
    >>> nn.Identity()(Tensor([1.0, 2.0]))
    Tensor([1., 2.])
    """

    def forward(self, x: Tensor) -> Tensor:
        """Return the same tensor."""
        return x


class ReLU(Module):
    """max(x, 0), element by element.

    Examples
    --------
    >>> from minipipe import Tensor, nn
    >>> nn.ReLU()(Tensor([-1.0, 2.0]))
    Tensor([0., 2.])
    """

    def forward(self, x: Tensor) -> Tensor:
        """Keep the shape."""
        return relu(x)


class Tanh(Module):
    """The hyperbolic tangent of each element.

    Examples
    --------
    >>> from minipipe import Tensor, nn
    >>> nn.Tanh()(Tensor([0.0, 100.0]))
    Tensor([0., 1.])
    """

    def forward(self, x: Tensor) -> Tensor:
        """Keep the shape."""
        return tanh(x)

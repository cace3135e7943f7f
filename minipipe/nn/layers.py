"""Layers."""

from __future__ import annotations

from typing import Any

from minipipe import functional
from minipipe.errors import ArgumentError
from minipipe.nn.initialisers import Initialiser, constant, he_uniform
from minipipe.nn.module import Module, check_lengths
from minipipe.nn.parameter import Parameter
from minipipe.tensor import Tensor


class Linear(Module):
    """x @ weight + bias over the last axis of x.

    Parameters
    ----------
    in_features, out_features : int
        Lengths of the last axis before and after.
    bias : bool
        Whether there is a bias.
    initialiser : function, optional
        First values of the weight; by default :func:`~minipipe.nn.initialisers.he_uniform`. The bias begins at 0.
    dtype : dtype, optional
        float32 by default.

    Attributes
    ----------
    weight : Parameter of shape (in_features, out_features)
        In PyTorch it is the transpose; here it multiplies as it stands.
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
        self.weight = Parameter((in_features, out_features), initialiser or he_uniform(in_features), dtype)
        self.bias = Parameter((out_features,), constant(0.0), dtype) if bias else None

    def forward(self, x: Tensor) -> Tensor:
        """Map a tensor of shape (..., in_features) to (..., out_features)."""
        return functional.linear(x, self.weight, self.bias)

    def describe(self) -> str:
        """Name both lengths."""
        return ", ".join(map(str, self.weight.shape)) + ("" if self.bias is not None else ", bias=False")


class Identity(Module):
    """Returns its input.

    Examples
    --------
    >>> from minipipe import Tensor, nn
    >>> nn.Identity()(Tensor([1.0, 2.0]))
    Tensor([1., 2.])
    """

    def forward(self, x: Tensor) -> Tensor:
        """Return the very same tensor."""
        return x


class Flatten(Module):
    """All axes but the first made one.

    Examples
    --------
    >>> import numpy as np
    >>> from minipipe import Tensor, nn
    >>> nn.Flatten()(Tensor(np.ones((4, 3, 8, 8)))).shape
    (4, 192)
    """

    def forward(self, x: Tensor) -> Tensor:
        """Map a tensor of shape (n, ...) to (n, k)."""
        return functional.reshape(x, (len(x), -1))


class Dropout(Module):
    """Sets each element to 0 with a probability while training, and scales the others; changes nothing in evaluation.

    The mask depends on (seed, layer, step, microbatch) and on nothing else: not on the schedule, the partition, or
    whether it is computed a second time.

    Parameters
    ----------
    probability : float
        At least 0, less than 1.

    Examples
    --------
    >>> import numpy as np
    >>> from minipipe import Tensor, nn, random_key
    >>> layer, x = nn.Dropout(0.5), Tensor(np.ones(100))
    >>> with random_key(seed=0):
    ...     sorted(set(layer(x).numpy().tolist()))
    [0.0, 2.0]
    >>> layer.eval()(x) is x
    True
    """

    def __init__(self, probability: float) -> None:
        check_probability("Dropout", probability=probability)
        self.probability = probability

    def forward(self, x: Tensor) -> Tensor:
        """Keep the shape."""
        return functional.dropout(x, self.probability) if self.is_training else x

    def describe(self) -> str:
        """Name the probability."""
        return str(self.probability)


def check_probability(layer: str, **probabilities: float) -> None:
    """Check that the probabilities given to a layer for its dropout are at least 0 and less than 1.

    Examples
    --------
    >>> check_probability("Dropout", probability=1)
    Traceback (most recent call last):
        ...
    minipipe.errors.ArgumentError: Dropout: probability is 1; expected at least 0 and less than 1.
    """
    for name, value in probabilities.items():
        if not 0 <= value < 1:
            raise ArgumentError("value", f"{layer}: {name} is {value}; expected at least 0 and less than 1.")

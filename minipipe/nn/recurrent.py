"""The recurrent layer."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from minipipe import functional
from minipipe.nn.initialisers import Initialiser, uniform
from minipipe.nn.module import Module, check_lengths
from minipipe.nn.parameter import Parameter
from minipipe.tensor import Tensor


class LSTM(Module):
    """A long short-term memory: reads a sequence from its beginning, and returns its hidden state at all times.

    One layer, one direction. A deep one is a sequence of them, which a pipeline may cut; its time runs within a layer,
    so a pipeline is no faster for long sequences. See :func:`minipipe.functional.lstm`, also for the order of gates.

    Parameters
    ----------
    in_features : int
        Length of the last axis before.
    hidden : int
        Length of the last axis after.
    bias : bool
        Whether there is a bias.
    initialiser : function, optional
        First values of both weights; by default uniform from ±1/sqrt(hidden), as in PyTorch. The bias begins at 0, but
        for that of the forget gate, which begins at 1: what is remembered shall stay until there is a reason to forget.
    dtype : dtype, optional
        float32 by default.

    Attributes
    ----------
    input_weight : Parameter of shape (in_features, 4 * hidden)
    hidden_weight : Parameter of shape (hidden, 4 * hidden)
    bias : Parameter of shape (4 * hidden,), or None

    References
    ----------
    Hochreiter, Schmidhuber 1997, "Long short-term memory". The bias of the forget gate: Jozefowicz, Zaremba, Sutskever
    2015, "An empirical exploration of recurrent network architectures", section 2.2.

    Examples
    --------
    The last state of a sequence says what a classifier needs.

    >>> import numpy as np
    >>> from minipipe import Tensor, nn
    >>> model = nn.Sequential(nn.LSTM(8, 16), nn.LSTM(16, 16), nn.Linear(16, 2))
    >>> scores = model(Tensor(np.ones((4, 10, 8), np.float32)))
    >>> scores.shape, scores[:, -1].shape
    ((4, 10, 2), (4, 2))
    """

    def __init__(
        self,
        in_features: int,
        hidden: int,
        bias: bool = True,
        initialiser: Initialiser | None = None,
        dtype: Any = None,
    ) -> None:
        check_lengths("LSTM", in_features=in_features, hidden=hidden)
        bound = 1 / math.sqrt(max(1, hidden))
        initialiser = initialiser or uniform(-bound, bound)
        self.input_weight = Parameter((in_features, 4 * hidden), initialiser, dtype)
        self.hidden_weight = Parameter((hidden, 4 * hidden), initialiser, dtype)
        self.bias = Parameter((4 * hidden,), _remember, dtype) if bias else None

    def forward(self, x: Tensor) -> Tensor:
        """Map a tensor of shape (n, t, in_features) to (n, t, hidden)."""
        return functional.lstm(x, self.input_weight, self.hidden_weight, self.bias)

    def describe(self) -> str:
        """Name both lengths."""
        lengths = f"{self.input_weight.shape[0]}, {self.hidden_weight.shape[0]}"
        return lengths + ("" if self.bias is not None else ", bias=False")


def _remember(generator: np.random.Generator, shape: tuple[int, ...]) -> np.ndarray:
    """Return 1 for the forget gate, the second of four, and 0 for the others."""
    return np.repeat([0.0, 1.0, 0.0, 0.0], shape[0] // 4)

"""Layers that map vectors: products, activations, norms, lookups, recurrence; and the
residual connection.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from minipipe import functional
from minipipe.core.nn.basic import Identity as Identity
from minipipe.core.nn.basic import Linear as Linear
from minipipe.core.nn.basic import ReLU as ReLU
from minipipe.core.nn.basic import Tanh as Tanh
from minipipe.core.nn.initialisers import Initialiser, constant, uniform
from minipipe.core.nn.module import Module, check_lengths
from minipipe.core.nn.parameter import Parameter
from minipipe.core.nn.sequential import Sequential
from minipipe.core.specs import Spec, divisor
from minipipe.core.tensor import Operand, Tensor, as_tensor
from minipipe.errors import TensorError, counted, shape_error
from minipipe.nn.initialisers import normal
from minipipe.nn.slices import current_slice


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
    """Sets each element to 0 with a probability while training, and scales the others;
    changes nothing in evaluation.

    The mask depends only on (seed, layer, step, microbatch), not on the schedule, the
    partition or recomputation.

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
        if not self.is_training:
            return x
        return functional.dropout(x, self.probability)

    def describe(self) -> str:
        """Name the probability."""
        return str(self.probability)


def check_probability(layer: str, **probabilities: float) -> None:
    """Check that the dropout probabilities of a layer are at least 0 and less than 1.

    Examples
    --------
    >>> check_probability("Dropout", probability=1)
    Traceback (most recent call last):
        ...
    minipipe.errors.ArgumentError: Dropout: probability is 1; expected a number in [0, 1).
    """
    for name, value in probabilities.items():
        Spec(float, minimum=0, below=1).check(f"{layer}: {name}", value)


class Sigmoid(Module):
    """1 / (1 + e^-x) of each element.

    Examples
    --------
    >>> from minipipe import Tensor, nn
    >>> nn.Sigmoid()(Tensor([0.0, 100.0]))
    Tensor([0.5, 1. ])
    """

    def forward(self, x: Tensor) -> Tensor:
        """Keep the shape."""
        return functional.sigmoid(x)


class SiLU(Module):
    """x times the sigmoid of x; see :func:`minipipe.functional.silu`.

    Examples
    --------
    >>> from minipipe import Tensor, nn
    >>> nn.SiLU()(Tensor([0.0, 100.0]))
    Tensor([  0., 100.])
    """

    def forward(self, x: Tensor) -> Tensor:
        """Keep the shape."""
        return functional.silu(x)


class GELU(Module):
    """x times the probability that a normal number is smaller; see
    :func:`minipipe.functional.gelu`.

    Parameters
    ----------
    approximate : bool
        Whether to take the faster form with tanh.

    Examples
    --------
    The two forms differ in the fourth digit.

    >>> from minipipe import Tensor, nn
    >>> x = Tensor(1.0)
    >>> round(nn.GELU()(x).item(), 4), round(nn.GELU(approximate=True)(x).item(), 4)
    (0.8413, 0.8412)
    """

    def __init__(self, approximate: bool = False) -> None:
        self.approximate = approximate

    def forward(self, x: Tensor) -> Tensor:
        """Keep the shape."""
        return functional.gelu(x, approximate=self.approximate)

    def describe(self) -> str:
        """Say whether it approximates."""
        return "approximate=True" if self.approximate else ""


# There is no BatchNorm: it normalises over a batch, and a pipeline computes one
# microbatch at a time. The loss and every gradient would depend on the division into
# microbatches, and no number of microbatches could reproduce the result of another
# number, or of the whole batch. The norms below stay within one sample.


class LayerNorm(Module):
    """Mean 0 and variance 1 over the last axis, then * weight + bias; see
    :func:`minipipe.functional.layer_norm`.

    Parameters
    ----------
    width : int
        Length of the last axis.
    epsilon : float
        Added to the variance.
    dtype : dtype, optional
        float32 by default.

    Attributes
    ----------
    weight : Parameter of shape (width,)
        Begins at 1.
    bias : Parameter of shape (width,)
        Begins at 0.

    Examples
    --------
    >>> from minipipe import Tensor, nn
    >>> nn.LayerNorm(2)(Tensor([[1.0, 3.0], [5.0, 105.0]])).numpy().round(3)
    array([[-1.,  1.],
           [-1.,  1.]], dtype=float32)
    """

    def __init__(self, width: int, epsilon: float = 1e-5, dtype: Any = None) -> None:
        check_lengths("LayerNorm", width=width)
        self._described = str(width)
        self.epsilon = epsilon
        self.weight = Parameter((width,), constant(1.0), dtype)
        self.bias = Parameter((width,), constant(0.0), dtype)

    def forward(self, x: Tensor) -> Tensor:
        """Keep the shape, (..., width)."""
        return functional.layer_norm(x, self.weight, self.bias, epsilon=self.epsilon)


class GroupNorm(Module):
    """Mean 0 and variance 1 over each group of channels, then * weight + bias.

    It replaces BatchNorm in convolutional networks; with as many groups as channels it
    is instance normalisation. See :func:`minipipe.functional.group_norm`.

    Parameters
    ----------
    num_groups : int
        Divides num_channels.
    num_channels : int
        Length of the second axis.
    epsilon : float
        Added to the variance.
    dtype : dtype, optional
        float32 by default.

    Attributes
    ----------
    weight : Parameter of shape (num_channels,)
        Begins at 1.
    bias : Parameter of shape (num_channels,)
        Begins at 0.

    Raises
    ------
    ArgumentError
        Code ``value``.

    References
    ----------
    Wu, He 2018, "Group normalization".

    Examples
    --------
    >>> import numpy as np
    >>> from minipipe import Tensor, nn
    >>> layer = nn.GroupNorm(num_groups=2, num_channels=6)
    >>> layer(Tensor(np.ones((4, 6, 8, 8), np.float32))).shape
    (4, 6, 8, 8)
    """

    def __init__(
        self,
        num_groups: int,
        num_channels: int,
        epsilon: float = 1e-5,
        dtype: Any = None,
    ) -> None:
        check_lengths("GroupNorm", num_groups=num_groups, num_channels=num_channels)
        of = f"the {counted(num_channels, 'channel')}"
        divisor("GroupNorm: num_groups", num_groups, num_channels, of=of)
        self._described = f"{num_groups}, {num_channels}"
        self.num_groups = num_groups
        self.epsilon = epsilon
        self.weight = Parameter((num_channels,), constant(1.0), dtype)
        self.bias = Parameter((num_channels,), constant(0.0), dtype)

    def forward(self, x: Tensor) -> Tensor:
        """Keep the shape, ``(n, num_channels, *spatial)``."""
        return functional.group_norm(
            x, self.num_groups, self.weight, self.bias, self.epsilon
        )


class RMSNorm(Module):
    """Mean square 1 over the last axis, then * weight; see
    :func:`minipipe.functional.rms_norm`.

    Parameters
    ----------
    width : int
        Length of the last axis.
    epsilon : float
        Added to the mean square.
    dtype : dtype, optional
        float32 by default.

    Attributes
    ----------
    weight : Parameter of shape (width,)
        Begins at 1.

    Examples
    --------
    >>> from minipipe import Tensor, nn
    >>> nn.RMSNorm(2)(Tensor([[1.0, 7.0]])).numpy().round(3)
    array([[0.2, 1.4]], dtype=float32)
    """

    def __init__(self, width: int, epsilon: float = 1e-5, dtype: Any = None) -> None:
        check_lengths("RMSNorm", width=width)
        self._described = str(width)
        self.epsilon = epsilon
        self.weight = Parameter((width,), constant(1.0), dtype)

    def forward(self, x: Tensor) -> Tensor:
        """Keep the shape, (..., width)."""
        return functional.rms_norm(x, self.weight, epsilon=self.epsilon)


class Embedding(Module):
    """A learned vector for each of a number of symbols; see
    :func:`minipipe.functional.embedding`.

    Parameters
    ----------
    num_embeddings : int
        The number of symbols.
    width : int
        Length of each vector.
    initialiser : function, optional
        First values; by default ``normal(0.02)``.
    dtype : dtype, optional
        float32 by default.

    Attributes
    ----------
    weight : Parameter of shape (num_embeddings, width)

    References
    ----------
    Radford et al. 2018, "Improving language understanding by generative pre-training",
    section 4.1, draws N(0, 0.02); GPT-2 (Radford et al. 2019) does the same. (PyTorch's
    Embedding draws N(0, 1).)

    Examples
    --------
    >>> from minipipe import nn
    >>> nn.Embedding(num_embeddings=100, width=8)([[5, 0, 99], [1, 2, 3]]).shape
    (2, 3, 8)
    """

    def __init__(
        self,
        num_embeddings: int,
        width: int,
        initialiser: Initialiser | None = None,
        dtype: Any = None,
    ) -> None:
        check_lengths("Embedding", num_embeddings=num_embeddings, width=width)
        self._described = f"{num_embeddings}, {width}"
        initialiser = initialiser or normal(0.02)
        self.weight = Parameter((num_embeddings, width), initialiser, dtype)

    def forward(self, ids: Operand) -> Tensor:
        """Map whole numbers of shape (...) to vectors, (..., width)."""
        return functional.embedding(self.weight, ids)


class PositionalEmbedding(Module):
    """Adds to each vector of a sequence a learned one for its position.

    Parameters
    ----------
    length : int
        The longest sequence.
    width : int
        Length of each vector.
    initialiser : function, optional
        First values; by default ``normal(0.02)``, as in :class:`Embedding`.
    dtype : dtype, optional
        float32 by default.

    Attributes
    ----------
    weight : Parameter of shape (length, width)

    Examples
    --------
    >>> import numpy as np
    >>> from minipipe import Tensor, nn
    >>> nn.PositionalEmbedding(length=64, width=8)(
    ...     Tensor(np.ones((2, 3, 8), np.float32))
    ... ).shape
    (2, 3, 8)
    """

    def __init__(
        self,
        length: int,
        width: int,
        initialiser: Initialiser | None = None,
        dtype: Any = None,
    ) -> None:
        check_lengths("PositionalEmbedding", length=length, width=width)
        self._described = f"{length}, {width}"
        self.weight = Parameter((length, width), initialiser or normal(0.02), dtype)

    def forward(self, x: Tensor) -> Tensor:
        """Keep the shape, (n, t, width), where t is at most ``length``.

        Raises
        ------
        TensorError
            Codes ``shape`` and ``out-of-range``.
        """
        length, width = self.weight.shape
        if x.ndim != 3 or x.shape[2] != width:
            raise shape_error("PositionalEmbedding", f"(n, t, {width})", input=x.shape)
        part = current_slice()
        first = 0
        if part is not None:
            first = part.first
        if first + x.shape[1] > length:
            raise TensorError(
                "out-of-range",
                f"PositionalEmbedding: the sequence has {first + x.shape[1]} "
                f"positions; expected at most {length}. Cut the sequence, or make the "
                "layer longer.",
            )
        places = slice(first, first + x.shape[1])
        return functional.add(x, functional.index(self.weight, (places, ...)))


class Unembedding(Module):
    """Scores of every symbol: the product with the vectors of an :class:`Embedding`,
    which it shares.

    If a pipeline places the two on different ranks, these exchange their gradients
    after each step.

    Parameters
    ----------
    embedding : Embedding

    References
    ----------
    Press, Wolf 2017, "Using the output embedding to improve language models", section
    3.

    Examples
    --------
    >>> from minipipe import nn
    >>> embedding = nn.Embedding(num_embeddings=5, width=3)
    >>> scores = nn.Unembedding(embedding)(embedding([[1, 4]]))
    >>> scores.shape
    (1, 2, 5)
    """

    def __init__(self, embedding: Embedding) -> None:
        spec = Spec(Embedding, expected="the nn.Embedding to share")
        spec.of_class("Unembedding", embedding)
        self.weight = embedding.weight

    def forward(self, x: Tensor) -> Tensor:
        """Map a tensor of shape (..., width) to (..., num_embeddings)."""
        return functional.linear(x, functional.transpose(self.weight))

    def describe(self) -> str:
        """Name both lengths."""
        return ", ".join(map(str, reversed(self.weight.shape)))


class LSTM(Module):
    """A long short-term memory: reads a sequence from its beginning and returns the
    hidden state of every step.

    One layer, one direction. Stack layers in a sequence, which a pipeline may divide.
    Time steps run within a layer, so a pipeline does not speed up long sequences. See
    :func:`minipipe.functional.lstm`, also for the order of gates.

    Parameters
    ----------
    in_features : int
        Length of the last axis before.
    hidden : int
        Length of the last axis after.
    bias : bool
        Whether there is a bias.
    initialiser : function, optional
        First values of both weights; by default uniform from ±1/sqrt(hidden), as in
        PyTorch. The bias begins at 0, except for the forget gate, whose bias begins at
        1: the cell keeps its state until it learns to forget.
    dtype : dtype, optional
        float32 by default.

    Attributes
    ----------
    input_weight : Parameter of shape (in_features, 4 * hidden)
    hidden_weight : Parameter of shape (hidden, 4 * hidden)
    bias : Parameter of shape (4 * hidden,), or None

    References
    ----------
    Hochreiter, Schmidhuber 1997, "Long short-term memory". The bias of the forget gate:
    Jozefowicz, Zaremba, Sutskever 2015, "An empirical exploration of recurrent network
    architectures", section 2.2.

    Examples
    --------
    A classifier reads the last hidden state of a sequence.

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
        self.bias: Parameter | None = None
        if bias:
            self.bias = Parameter((4 * hidden,), _remember, dtype)

    def forward(self, x: Tensor) -> Tensor:
        """Map a tensor of shape (n, t, in_features) to (n, t, hidden)."""
        return functional.lstm(x, self.input_weight, self.hidden_weight, self.bias)

    def describe(self) -> str:
        """Name both lengths."""
        lengths = f"{self.input_weight.shape[0]}, {self.hidden_weight.shape[0]}"
        if self.bias is None:
            lengths += ", bias=False"
        return lengths


def _remember(generator: np.random.Generator, shape: tuple[int, ...]) -> np.ndarray:
    """Return 1 for the forget gate, the second of four, and 0 for the others."""
    return np.repeat([0.0, 1.0, 0.0, 0.0], shape[0] // 4)


class Residual(Module):
    """x + layers(x): the result of the layers is added to their input.

    A stage boundary of a pipeline lies before or after it, not inside; a deep network
    is a sequence of many.

    Parameters
    ----------
    *layers : Module
        Applied one after another; the last must return the shape of the first one's
        input.

    Raises
    ------
    TensorError
        Code ``shape``, on a call, when the layers change the shape.

    References
    ----------
    He et al. 2015, "Deep residual learning for image recognition", figure 2.

    Examples
    --------
    >>> from minipipe import nn
    >>> Residual(nn.Linear(8, 8), nn.Tanh())
    Residual(
      layers: Sequential(
        0: Linear(8, 8)
        1: Tanh()
      )
    )
    >>> import numpy as np
    >>> from minipipe import Tensor
    >>> Residual(nn.Linear(8, 8), nn.Tanh())(Tensor(np.ones((4, 8), np.float32))).shape
    (4, 8)
    """

    def __init__(self, *layers: Module) -> None:
        self.layers = Sequential(*layers)

    def forward(self, x: Tensor) -> Tensor:
        """Keep the shape."""
        x = as_tensor(x)
        change = self.layers(x)
        # the sum would broadcast some shapes without an error
        if change.shape != x.shape:
            kept = (
                "layers that keep the shape (as many features or channels out as in, "
                "padding = kernel_size // 2)"
            )
            raise shape_error("Residual", kept, input=x.shape, result=change.shape)
        return x + change

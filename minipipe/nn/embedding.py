"""Layers that learn a vector for each symbol and for each position, and the way back from vectors to symbols."""

from __future__ import annotations

from typing import Any

from minipipe import functional
from minipipe.errors import ArgumentError, TensorError
from minipipe.nn.initialisers import Initialiser, normal
from minipipe.nn.module import Module, check_lengths
from minipipe.nn.parameter import Parameter
from minipipe.tensor import Operand, Tensor


class Embedding(Module):
    """A learned vector for each of a number of symbols; see :func:`minipipe.functional.embedding`.

    Parameters
    ----------
    num_embeddings : int
        How many symbols there are.
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
    Radford et al. 2018, "Improving language understanding by generative pre-training", section 4.1, draws N(0, 0.02);
    GPT-2 (Radford et al. 2019) does the same. (PyTorch's Embedding draws N(0, 1).)

    Examples
    --------
    >>> from minipipe import nn
    >>> nn.Embedding(num_embeddings=100, width=8)([[5, 0, 99], [1, 2, 3]]).shape
    (2, 3, 8)
    """

    def __init__(
        self, num_embeddings: int, width: int, initialiser: Initialiser | None = None, dtype: Any = None
    ) -> None:
        check_lengths("Embedding", num_embeddings=num_embeddings, width=width)
        self.weight = Parameter((num_embeddings, width), initialiser or normal(0.02), dtype)

    def forward(self, ids: Operand) -> Tensor:
        """Map whole numbers of shape (...) to vectors, (..., width)."""
        return functional.embedding(self.weight, ids)

    def describe(self) -> str:
        """Name both lengths."""
        return ", ".join(map(str, self.weight.shape))


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
    >>> nn.PositionalEmbedding(length=64, width=8)(Tensor(np.ones((2, 3, 8), np.float32))).shape
    (2, 3, 8)
    """

    def __init__(self, length: int, width: int, initialiser: Initialiser | None = None, dtype: Any = None) -> None:
        check_lengths("PositionalEmbedding", length=length, width=width)
        self.weight = Parameter((length, width), initialiser or normal(0.02), dtype)

    def forward(self, x: Tensor) -> Tensor:
        """Keep the shape, (n, t, width), where t is at most ``length``.

        Raises
        ------
        TensorError
            Codes ``shape`` and ``range``.
        """
        length, width = self.weight.shape
        if x.ndim != 3 or x.shape[2] != width:
            raise TensorError("shape", f"PositionalEmbedding: the input has shape {x.shape}; expected (n, t, {width}).")
        if x.shape[1] > length:
            raise TensorError(
                "range",
                f"PositionalEmbedding: the sequence has {x.shape[1]} positions, and there are vectors for {length}. "
                "Cut the sequence, or make the layer longer.",
            )
        return functional.add(x, functional.index(self.weight, (slice(0, x.shape[1]), ...)))

    def describe(self) -> str:
        """Name both lengths."""
        return ", ".join(map(str, self.weight.shape))


class Unembedding(Module):
    """Scores of every symbol: the product with the very vectors of an :class:`Embedding`, which it shares.

    Where a pipeline has both on different ranks, they exchange their gradients after each step.

    Parameters
    ----------
    embedding : Embedding

    References
    ----------
    Press, Wolf 2017, "Using the output embedding to improve language models", section 3.

    Examples
    --------
    >>> from minipipe import nn
    >>> embedding = nn.Embedding(num_embeddings=5, width=3)
    >>> scores = nn.Unembedding(embedding)(embedding([[1, 4]]))
    >>> scores.shape
    (1, 2, 5)
    """

    def __init__(self, embedding: Embedding) -> None:
        if not isinstance(embedding, Embedding):
            raise ArgumentError(
                "type", f"Unembedding takes the nn.Embedding to share; this is {type(embedding).__name__}."
            )
        self.weight = embedding.weight

    def forward(self, x: Tensor) -> Tensor:
        """Map a tensor of shape (..., width) to (..., num_embeddings)."""
        return functional.linear(x, functional.transpose(self.weight))

    def describe(self) -> str:
        """Name both lengths."""
        return ", ".join(map(str, reversed(self.weight.shape)))

"""Attention and the transformer block."""

from __future__ import annotations

from typing import Any

from minipipe import functional
from minipipe.errors import ArgumentError, TensorError
from minipipe.nn.activations import GELU
from minipipe.nn.embedding import Embedding
from minipipe.nn.initialisers import glorot_uniform
from minipipe.nn.layers import Dropout, Linear
from minipipe.nn.module import Module, check_lengths
from minipipe.nn.normalisation import LayerNorm
from minipipe.nn.residual import Residual
from minipipe.tensor import Tensor


class MultiHeadAttention(Module):
    """Each position of a sequence gathers from all (or, causally, from itself and those before it).

    Queries, keys and values are projections of the same input, computed in one product.

    Parameters
    ----------
    width : int
        Of the input and the result; a multiple of num_heads.
    num_heads : int
    is_causal : bool
        Whether position i sees positions 0 to i only, as a language model must.
    dtype : dtype, optional
        float32 by default.

    Attributes
    ----------
    projections : Linear of shape (width, 3 * width)
        To queries, keys and values, in this order.
    output : Linear of shape (width, width)

    References
    ----------
    Vaswani et al. 2017, "Attention is all you need", section 3.2. First values: Glorot, Bengio 2010, as in PyTorch.

    Examples
    --------
    >>> import numpy as np
    >>> from minipipe import Tensor, nn
    >>> layer = nn.MultiHeadAttention(width=8, num_heads=2, is_causal=True)
    >>> layer(Tensor(np.ones((4, 10, 8), np.float32))).shape
    (4, 10, 8)
    """

    def __init__(self, width: int, num_heads: int, is_causal: bool = False, dtype: Any = None) -> None:
        check_lengths("MultiHeadAttention", width=width, num_heads=num_heads)
        if num_heads < 1 or width % num_heads:
            raise ArgumentError(
                "value",
                f"MultiHeadAttention: width {width} cannot be divided among {num_heads} heads; expected a multiple.",
            )
        self.projections = Linear(width, 3 * width, initialiser=glorot_uniform(width, width), dtype=dtype)
        self.output = Linear(width, width, initialiser=glorot_uniform(width, width), dtype=dtype)
        self.num_heads = num_heads
        self.is_causal = is_causal

    def forward(self, x: Tensor) -> Tensor:
        """Keep the shape, (n, t, width).

        Raises
        ------
        TensorError
            Code ``shape``.
        """
        width = self.output.weight.shape[0]
        if len(x.shape) != 3 or x.shape[2] != width:
            raise TensorError("shape", f"MultiHeadAttention: the input has shape {x.shape}; expected (n, t, {width}).")
        return self.output(functional.self_attention(self.projections(x), self.num_heads, self.is_causal))

    def describe(self) -> str:
        """Name width, heads and mask."""
        return f"{self.output.weight.shape[0]}, num_heads={self.num_heads}" + ", is_causal=True" * self.is_causal


class TransformerBlock(Module):
    """x + attention(norm(x)), and then x + network(norm(x)): one layer of a transformer.

    The norms come first ("pre-norm"), so that deep stacks train without a long warm-up. A pipeline cuts between blocks.

    Parameters
    ----------
    width : int
        Of the input and the result.
    num_heads : int
        Divides width.
    is_causal : bool
        Whether position i sees positions 0 to i only.
    hidden : int, optional
        Width inside the network; 4 * width by default.
    dropout : float
        Probability, for the result of the attention and of the network.
    approximate_gelu : bool
        Whether the network's GELU is the form with tanh, as in GPT-2, or the exact one.
    dtype : dtype, optional
        float32 by default.

    References
    ----------
    Vaswani et al. 2017, figure 1; Radford et al. 2019 (GPT-2), section 2.3; Xiong et al. 2020, "On layer normalization
    in the transformer architecture", figure 1b.

    Examples
    --------
    >>> import numpy as np
    >>> from minipipe import Tensor, nn
    >>> block = nn.TransformerBlock(width=8, num_heads=2, is_causal=True)
    >>> block(Tensor(np.ones((4, 10, 8), np.float32))).shape, block.num_parameters
    ((4, 10, 8), 872)
    """

    def __init__(
        self,
        width: int,
        num_heads: int,
        is_causal: bool = False,
        hidden: int | None = None,
        dropout: float = 0.0,
        approximate_gelu: bool = True,
        dtype: Any = None,
    ) -> None:
        hidden = 4 * width if hidden is None else hidden
        after = [Dropout(dropout)] if dropout else []
        attention = MultiHeadAttention(width, num_heads, is_causal, dtype)
        self._described = attention.describe() + (f", dropout={dropout}" if dropout else "")
        self.attention = Residual(LayerNorm(width, dtype=dtype), attention, *after)
        self.network = Residual(
            LayerNorm(width, dtype=dtype),
            Linear(width, hidden, dtype=dtype),
            GELU(approximate_gelu),
            Linear(hidden, width, initialiser=glorot_uniform(hidden, width), dtype=dtype),
            *after,
        )

    def forward(self, x: Tensor) -> Tensor:
        """Keep the shape, (n, t, width)."""
        return self.network(self.attention(x))

    def describe(self) -> str:
        """Name width, heads, mask and dropout."""
        return self._described


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

"""The blocks that transformers are stacked from."""

from __future__ import annotations

from typing import Any

from minipipe.nn.activations import GELU
from minipipe.nn.attention import MultiHeadAttention
from minipipe.nn.initialisers import glorot_uniform
from minipipe.nn.layers import Dropout, Linear
from minipipe.nn.module import Module
from minipipe.nn.normalisation import LayerNorm
from minipipe.nn.residual import Residual
from minipipe.tensor import Tensor


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

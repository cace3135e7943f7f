"""The blocks that transformers are stacked from."""

from __future__ import annotations

from typing import Any

from minipipe.nn.activations import GELU
from minipipe.nn.attention import MultiHeadAttention, described
from minipipe.nn.initialisers import glorot_uniform
from minipipe.nn.layers import Dropout, Linear
from minipipe.nn.module import Module
from minipipe.nn.normalisation import LayerNorm
from minipipe.nn.residual import Residual
from minipipe.tensor import Operand, Tensor


class ResidualAttention(Residual):
    """x + dropout(attention(norm(x), …)): the residual connection around an attention that takes more than x.

    Parameters
    ----------
    norm : Module
    attention : Module
        Takes ``(x, *memory, mask=None)``.
    *after : Module
        Applied to its result.

    Examples
    --------
    >>> import numpy as np
    >>> from minipipe import Tensor, nn
    >>> layer = ResidualAttention(nn.LayerNorm(8), nn.MultiHeadAttention(8, num_heads=2))
    >>> layer(Tensor(np.ones((1, 3, 8), np.float32)), mask=[[1, 1, 0]]).shape
    (1, 3, 8)
    """

    def __init__(self, norm: Module, attention: Module, *after: Module) -> None:
        super().__init__(norm, attention, *after)

    def forward(self, x: Tensor, *memory: Tensor, mask: Operand | None = None) -> Tensor:
        """Keep the shape, (n, t, width)."""
        if not memory and mask is None:
            return super().forward(x)
        norm, attention, *after = self.layers
        change = attention(norm(x), *memory, mask=mask)
        for layer in after:
            change = layer(change)
        return x + change


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
    attention_dropout : float
        Probability, for the weights of the attention.
    num_key_value_heads : int, optional
        Heads of keys and values, a divisor of num_heads; by default as many. See :class:`MultiHeadAttention`.
    rotary_base : float, optional
        Turns queries and keys by their positions, with this base; see there. It takes the place of a
        :class:`PositionalEmbedding`.

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
        *,
        attention_dropout: float = 0.0,
        num_key_value_heads: int | None = None,
        rotary_base: float | None = None,
    ) -> None:
        hidden = 4 * width if hidden is None else hidden
        after = [Dropout(dropout)] if dropout else []
        shared: dict[str, Any] = {"num_key_value_heads": num_key_value_heads, "rotary_base": rotary_base}
        attention = MultiHeadAttention(width, num_heads, is_causal, dtype, dropout=attention_dropout, **shared)
        options = {"is_causal": is_causal, "dropout": dropout, "attention_dropout": attention_dropout, **shared}
        self._described = f"{width}, num_heads={num_heads}" + described(options)
        self.attention = ResidualAttention(LayerNorm(width, dtype=dtype), attention, *after)
        self.network = Residual(
            LayerNorm(width, dtype=dtype),
            Linear(width, hidden, dtype=dtype),
            GELU(approximate_gelu),
            Linear(hidden, width, initialiser=glorot_uniform(hidden, width), dtype=dtype),
            *after,
        )

    def forward(self, x: Tensor, mask: Operand | None = None) -> Tensor:
        """Keep the shape, (n, t, width).

        Parameters
        ----------
        x : Tensor of shape (n, t, width)
        mask : array or Tensor of shape (n, t) or (n, t, t), optional
            True or 1 where a position is seen; see :class:`MultiHeadAttention`.
        """
        return self.network(self.attention(x, mask=mask))

    def describe(self) -> str:
        """Name width, heads and options."""
        return self._described

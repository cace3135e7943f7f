"""The blocks that transformers are stacked from."""

from __future__ import annotations

from typing import Any

from minipipe.nn.activations import GELU
from minipipe.nn.attention import CrossAttention, MultiHeadAttention, described
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
        after: list[Module] = [Dropout(dropout)] if dropout else []
        shared: dict[str, Any] = {"num_key_value_heads": num_key_value_heads, "rotary_base": rotary_base}
        attention = MultiHeadAttention(width, num_heads, is_causal, dtype, dropout=attention_dropout, **shared)
        options = {"is_causal": is_causal, "dropout": dropout, "attention_dropout": attention_dropout, **shared}
        self._described = f"{width}, num_heads={num_heads}" + described(options)
        self.attention = ResidualAttention(LayerNorm(width, dtype=dtype), attention, *after)
        self.network = _network(width, hidden, approximate_gelu, dtype, after)

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


class DecoderBlock(Module):
    """A block that also attends to a memory: one layer of the decoder in an encoder-decoder transformer.

    x + attention(norm(x)), then x + cross_attention(norm(x), memory), then x + network(norm(x)). A position sees itself
    and those before it, and the whole memory. Where a pipeline carries the memory from block to block, see
    :class:`On`.

    Parameters
    ----------
    width : int
        Of the input and the result.
    num_heads : int
        Divides width.
    hidden : int, optional
        Width inside the network; 4 * width by default.
    dropout : float
        Probability, for the result of each attention and of the network.
    approximate_gelu : bool
        Whether the network's GELU is the form with tanh, as in GPT-2, or the exact one.
    dtype : dtype, optional
        float32 by default.
    memory_width : int, optional
        Of the memory; by default that of the input.
    attention_dropout : float
        Probability, for the weights of both attentions.
    num_key_value_heads : int, optional
        Heads of keys and values of both, a divisor of num_heads; by default as many.
    rotary_base : float, optional
        Turns queries and keys of the first attention by their positions; see :class:`MultiHeadAttention`.

    References
    ----------
    Vaswani et al. 2017, figure 1, on the right; the norms first, as in :class:`TransformerBlock`.

    Examples
    --------
    >>> import numpy as np
    >>> from minipipe import Tensor, nn
    >>> block = nn.DecoderBlock(width=8, num_heads=2)
    >>> block(Tensor(np.ones((4, 10, 8), np.float32)), Tensor(np.ones((4, 7, 8), np.float32))).shape
    (4, 10, 8)
    """

    def __init__(
        self,
        width: int,
        num_heads: int,
        hidden: int | None = None,
        dropout: float = 0.0,
        approximate_gelu: bool = True,
        dtype: Any = None,
        *,
        memory_width: int | None = None,
        attention_dropout: float = 0.0,
        num_key_value_heads: int | None = None,
        rotary_base: float | None = None,
    ) -> None:
        after: list[Module] = [Dropout(dropout)] if dropout else []
        shared: dict[str, Any] = {"dropout": attention_dropout, "num_key_value_heads": num_key_value_heads}
        attention = MultiHeadAttention(width, num_heads, True, dtype, rotary_base=rotary_base, **shared)
        of_memory = CrossAttention(width, num_heads, memory_width, dtype, **shared)
        options = {"memory_width": memory_width, "dropout": dropout, "attention_dropout": attention_dropout}
        options |= {"num_key_value_heads": num_key_value_heads, "rotary_base": rotary_base}
        self._described = f"{width}, num_heads={num_heads}" + described(options)
        self.attention = ResidualAttention(LayerNorm(width, dtype=dtype), attention, *after)
        self.cross_attention = ResidualAttention(LayerNorm(width, dtype=dtype), of_memory, *after)
        self.network = _network(width, hidden, approximate_gelu, dtype, after)

    def forward(
        self, x: Tensor, memory: Tensor, mask: Operand | None = None, memory_mask: Operand | None = None
    ) -> Tensor:
        """Keep the shape, (n, t, width).

        Parameters
        ----------
        x : Tensor of shape (n, t, width)
        memory : Tensor of shape (n, s, memory_width)
        mask : array or Tensor of shape (n, t) or (n, t, t), optional
            True or 1 where a position of x is seen.
        memory_mask : array or Tensor of shape (n, s) or (n, t, s), optional
            True or 1 where a position of the memory is seen.
        """
        x = self.attention(x, mask=mask)
        return self.network(self.cross_attention(x, memory, mask=memory_mask))

    def describe(self) -> str:
        """Name width, heads and options."""
        return self._described


def _network(width: int, hidden: int | None, approximate_gelu: bool, dtype: Any, after: list[Module]) -> Residual:
    """Return x + network(norm(x)), position by position."""
    hidden = 4 * width if hidden is None else hidden
    return Residual(
        LayerNorm(width, dtype=dtype),
        Linear(width, hidden, dtype=dtype),
        GELU(approximate_gelu),
        Linear(hidden, width, initialiser=glorot_uniform(hidden, width), dtype=dtype),
        *after,
    )

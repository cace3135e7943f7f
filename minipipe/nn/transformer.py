"""Attention, of a sequence to itself and to another one, and the blocks that
transformers are stacked from.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from minipipe import functional
from minipipe.core.autograd import backend
from minipipe.core.nn.module import Module, check_lengths
from minipipe.core.specs import Spec, divisor
from minipipe.core.tensor import Operand, Tensor
from minipipe.errors import ArgumentError, ModelError, counted, shape_error
from minipipe.nn.initialisers import glorot_uniform
from minipipe.nn.layers import (
    GELU,
    Dropout,
    LayerNorm,
    Linear,
    Residual,
    check_probability,
)
from minipipe.nn.slices import SequenceSlice, current_slice


class MultiHeadAttention(Module):
    """Each position of a sequence attends to all positions, or with is_causal to itself
    and those before it.

    Queries, keys and values are projections of the same input, computed in one product.

    Parameters
    ----------
    width : int
        The number of features of the input and the result; a multiple of num_heads.
    num_heads : int
    is_causal : bool
        Whether position i sees positions 0 to i only, as a language model must.
    dtype : dtype, optional
        float32 by default.
    dropout : float
        Probability with which a weight of the attention is set to 0 while training, by
        the key of :class:`Dropout`.
    num_key_value_heads : int, optional
        Heads of keys and values, a divisor of num_heads, by default num_heads. Fewer
        take less memory and time ("grouped-query attention"; with one, "multi-query"):
        neighbouring heads of queries share one.
    rotary_base : float, optional
        Rotates queries and keys by their positions ("rotary position embedding"), with
        this base, often 10000. No rotation by default. See
        :func:`minipipe.functional.rotary`.

    Attributes
    ----------
    projections : Linear of shape (width, 3 * width)
        To queries, keys and values, in this order; keys and values are narrower with
        fewer heads.
    output : Linear of shape (width, width)

    References
    ----------
    Vaswani et al. 2017, "Attention is all you need", section 3.2; Ainslie et al. 2023,
    "GQA", figure 2; Su et al. 2021, "RoFormer". First values: Glorot, Bengio 2010, as
    in PyTorch.

    Examples
    --------
    >>> import numpy as np
    >>> from minipipe import Tensor, nn
    >>> layer = nn.MultiHeadAttention(width=8, num_heads=2, is_causal=True)
    >>> layer(Tensor(np.ones((4, 10, 8), np.float32))).shape
    (4, 10, 8)
    """

    def __init__(
        self,
        width: int,
        num_heads: int,
        is_causal: bool = False,
        dtype: Any = None,
        *,
        dropout: float = 0.0,
        num_key_value_heads: int | None = None,
        rotary_base: float | None = None,
    ) -> None:
        check_probability("MultiHeadAttention", dropout=dropout)
        of_keys = _width_of_keys(
            "MultiHeadAttention", width, num_heads, num_key_value_heads
        )
        _check_rotary("MultiHeadAttention", width // num_heads, rotary_base)
        glorot = glorot_uniform(width, width)
        outputs = width + 2 * of_keys
        self.projections = Linear(width, outputs, initialiser=glorot, dtype=dtype)
        self.output = Linear(width, width, initialiser=glorot, dtype=dtype)
        self.num_heads = num_heads
        self.is_causal = is_causal
        self.dropout = dropout
        self.num_key_value_heads = num_key_value_heads
        self.rotary_base = rotary_base

    def forward(self, x: Tensor, mask: Operand | None = None) -> Tensor:
        """Keep the shape, (n, t, width).

        Parameters
        ----------
        x : Tensor of shape (n, t, width)
        mask : array or Tensor of shape (n, t) or (n, t, t), optional
            True or 1 at visible positions, for instance everywhere except padding; see
            :func:`minipipe.functional.attention`. A position that sees none gets the
            bias of ``output``.

        Raises
        ------
        TensorError
            Codes ``shape``, ``dtype`` and ``out-of-range``.
        """
        width = self.output.weight.shape[1]
        if len(x.shape) != 3 or x.shape[2] != width:
            raise shape_error("MultiHeadAttention", f"(n, t, {width})", input=x.shape)
        dropout = self.dropout if self.is_training else 0.0
        part = current_slice()
        if part is not None:
            return self.output(self._attended(part, x, mask, dropout))
        attended = functional.self_attention(
            self.projections(x),
            num_heads=self.num_heads,
            is_causal=self.is_causal,
            mask=mask,
            dropout=dropout,
            num_key_value_heads=self.num_key_value_heads,
            rotary_base=self.rotary_base,
            part=self._part,
        )
        return self.output(attended)

    def _attended(
        self, part: SequenceSlice, x: Tensor, mask: Operand | None, dropout: float
    ) -> Tensor:
        """Return the values that the positions of a slice gather from earlier slices
        and their own slice.
        """
        if not self.is_causal or mask is not None:
            message = "A mask is given"
            if mask is None:
                message = f"{self.brief()} sees later positions, or takes a mask"
            raise ModelError(
                "unsupported",
                f"{message}; slices of a sequence need is_causal=True and no mask.",
            )
        shared = self.num_key_value_heads or self.num_heads
        t = x.shape[1]
        heads = _by_head(self.projections(x), self.num_heads + 2 * shared)
        sizes = [self.num_heads, shared, shared]
        query, key, value = functional.split(heads, sizes, axis=1)
        if self.rotary_base is not None:
            positions = np.arange(part.first, part.first + t)
            query = functional.rotary(query, positions, self.rotary_base)
            key = functional.rotary(key, positions, self.rotary_base)
        keys, values = part.carried(key, value)
        key = functional.concatenate(keys, axis=2)
        value = functional.concatenate(values, axis=2)
        seen = np.tri(t, part.first + t, part.first, dtype=bool)[None]
        seen = backend.moved(seen, backend.array_module(x.data))
        gathered = functional.attention(
            query, key, value, mask=seen, dropout=dropout, part=self._part
        )
        return _side_by_side(gathered)

    @property
    def _part(self) -> tuple[int, int]:
        """Which of how many equal parts of all heads these are."""
        return 0, 1

    def describe(self) -> str:
        """Name width, heads and options."""
        names = ("is_causal", "dropout", "num_key_value_heads", "rotary_base")
        options = {name: getattr(self, name) for name in names}
        return described(self.output.weight.shape[1], self.num_heads, **options)


class CrossAttention(Module):
    """Each position of a sequence attends to another sequence, the memory: in
    translation, the source.

    Parameters
    ----------
    width : int
        The number of features of the sequence and the result; a multiple of
        num_heads.
    num_heads : int
    memory_width : int, optional
        The number of features of the memory; by default ``width``.
    dtype : dtype, optional
        float32 by default.
    dropout : float
        Probability with which a weight of the attention is set to 0 while training, by
        the key of :class:`Dropout`.
    num_key_value_heads : int, optional
        Heads of keys and values, as in :class:`MultiHeadAttention`.

    Attributes
    ----------
    queries : Linear of shape (width, width)
    projections : Linear of shape (memory_width, 2 * width)
        To keys and values, in this order; narrower with fewer heads of them.
    output : Linear of shape (width, width)

    References
    ----------
    Vaswani et al. 2017, "Attention is all you need", section 3.2.3. First values as in
    :class:`MultiHeadAttention`.

    Examples
    --------
    >>> import numpy as np
    >>> from minipipe import Tensor, nn
    >>> layer = nn.CrossAttention(width=8, num_heads=2)
    >>> layer(
    ...     Tensor(np.ones((4, 10, 8), np.float32)),
    ...     Tensor(np.ones((4, 7, 8), np.float32)),
    ... ).shape
    (4, 10, 8)
    """

    def __init__(
        self,
        width: int,
        num_heads: int,
        memory_width: int | None = None,
        dtype: Any = None,
        *,
        dropout: float = 0.0,
        num_key_value_heads: int | None = None,
    ) -> None:
        if memory_width is None:
            memory_width = width
        check_lengths("CrossAttention", memory_width=memory_width)
        check_probability("CrossAttention", dropout=dropout)
        of_keys = _width_of_keys(
            "CrossAttention", width, num_heads, num_key_value_heads
        )
        glorot = glorot_uniform(width, width)
        self.queries = Linear(width, width, initialiser=glorot, dtype=dtype)
        glorot_of_memory = glorot_uniform(memory_width, width)
        self.projections = Linear(
            memory_width, 2 * of_keys, initialiser=glorot_of_memory, dtype=dtype
        )
        self.output = Linear(width, width, initialiser=glorot, dtype=dtype)
        self.num_heads = num_heads
        self.dropout = dropout
        self.num_key_value_heads = num_key_value_heads

    def forward(self, x: Tensor, memory: Tensor, mask: Operand | None = None) -> Tensor:
        """Keep the shape, (n, t, width).

        Parameters
        ----------
        x : Tensor of shape (n, t, width)
        memory : Tensor of shape (n, s, memory_width)
        mask : array or Tensor of shape (n, s) or (n, t, s), optional
            True or 1 at visible positions of the memory; see
            :func:`minipipe.functional.attention`.

        Raises
        ------
        TensorError
            Codes ``shape``, ``dtype`` and ``out-of-range``.
        """
        width = self.output.weight.shape[0]
        memory_width = self.projections.weight.shape[0]
        fits = x.ndim == memory.ndim == 3 and x.shape[2] == width
        fits = fits and memory.shape[::2] == (x.shape[0], memory_width)
        if not fits or 0 in memory.shape[1:]:
            expected = f"(n, t, {width}) and (n, s, {memory_width}), s at least 1"
            shapes = {"input": x.shape, "memory": memory.shape}
            raise shape_error("CrossAttention", expected, **shapes)
        shared = self.num_key_value_heads or self.num_heads
        of_memory = _by_head(self.projections(memory), 2 * shared)
        key, value = functional.split(of_memory, 2, axis=1)
        query = _by_head(self.queries(x), self.num_heads)
        dropout = self.dropout if self.is_training else 0.0
        gathered = functional.attention(query, key, value, mask=mask, dropout=dropout)
        return self.output(_side_by_side(gathered))

    def describe(self) -> str:
        """Name width, heads and options."""
        width = self.output.weight.shape[0]
        memory_width = self.projections.weight.shape[0]
        names = ("dropout", "num_key_value_heads")
        options = {name: getattr(self, name) for name in names}
        if memory_width != width:
            options = {"memory_width": memory_width, **options}
        return described(width, self.num_heads, **options)


def _by_head(x: Tensor, num_heads: int) -> Tensor:
    """Return a tensor of shape (n, t, num_heads * d) as (n, num_heads, t, d)."""
    n, t, width = x.shape
    by_position = functional.reshape(x, (n, t, num_heads, width // num_heads))
    return functional.transpose(by_position, (0, 2, 1, 3))


def _side_by_side(heads: Tensor) -> Tensor:
    """Return a tensor of shape (n, num_heads, t, d) as (n, t, num_heads * d)."""
    n, num_heads, t, width = heads.shape
    by_position = functional.transpose(heads, (0, 2, 1, 3))
    return functional.reshape(by_position, (n, t, num_heads * width))


def _width_of_keys(
    layer: str, width: int, num_heads: int, num_key_value_heads: int | None
) -> int:
    """Return the width of all keys together, after checking that the heads divide the
    width, and each other.
    """
    check_lengths(layer, width=width, num_heads=num_heads)
    divisor(f"{layer}: num_heads", num_heads, width, of=f"the width, {width}")
    shared = num_key_value_heads
    if shared is None:
        shared = num_heads
    of = f"the {counted(num_heads, 'head')} of queries"
    shared = divisor(f"{layer}: num_key_value_heads", shared, num_heads, of=of)
    return width // num_heads * shared


def _check_rotary(layer: str, width_of_head: int, rotary_base: float | None) -> None:
    if rotary_base is None:
        return
    spec = Spec(float, above=0, advice="It is often 10000.")
    spec.check(f"{layer}: rotary_base", rotary_base)
    if width_of_head % 2:
        raise ArgumentError(
            f"{layer}: heads {width_of_head} wide cannot be turned, two by two; "
            "expected an even width."
        )


def described(width: int, num_heads: int, **options: Any) -> str:
    """Return the arguments of a repr; options that are off are left out.

    Examples
    --------
    >>> described(4, 2, is_causal=True, dropout=0.0, hidden=8)
    '4, num_heads=2, is_causal=True, hidden=8'
    """
    chosen = [f"{name}={value!r}" for name, value in options.items() if value]
    return ", ".join([str(width), f"num_heads={num_heads}", *chosen])


class ResidualAttention(Residual):
    """x + dropout(attention(norm(x), …)): the residual connection around an attention
    that takes more than x.

    Its layers are the norm, the attention, which takes ``(x, *memory, mask=None)``, and
    a layer for its result.

    Examples
    --------
    >>> import numpy as np
    >>> from minipipe import Tensor, nn
    >>> layer = ResidualAttention(
    ...     nn.LayerNorm(8), nn.MultiHeadAttention(8, num_heads=2)
    ... )
    >>> layer(Tensor(np.ones((1, 3, 8), np.float32)), mask=[[1, 1, 0]]).shape
    (1, 3, 8)
    """

    def forward(
        self, x: Tensor, *memory: Tensor, mask: Operand | None = None
    ) -> Tensor:
        """Keep the shape, (n, t, width)."""
        if not memory and mask is None:
            return super().forward(x)
        norm, attention, *after = self.layers
        change = attention(norm(x), *memory, mask=mask)
        for layer in after:
            change = layer(change)
        return x + change


class TransformerBlock(Module):
    """x + attention(norm(x)), and then x + network(norm(x)): one layer of a
    transformer.

    The norms come first ("pre-norm"), so that deep stacks train without a long warm-up.
    Stage boundaries lie between blocks.

    Parameters
    ----------
    width : int
        The number of features of the input and the result.
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
        Heads of keys and values, a divisor of num_heads; by default as many. See
        :class:`MultiHeadAttention`.
    rotary_base : float, optional
        Turns queries and keys by their positions, with this base; see there. It takes
        the place of a :class:`PositionalEmbedding`.

    References
    ----------
    Vaswani et al. 2017, figure 1; Radford et al. 2019 (GPT-2), section 2.3; Xiong et
    al. 2020, "On layer normalization in the transformer architecture", figure 1b.

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
        shared: dict[str, Any] = {
            "num_key_value_heads": num_key_value_heads,
            "rotary_base": rotary_base,
        }
        attention = MultiHeadAttention(
            width, num_heads, is_causal, dtype, dropout=attention_dropout, **shared
        )
        options = {"dropout": dropout, "attention_dropout": attention_dropout, **shared}
        self._described = described(width, num_heads, is_causal=is_causal, **options)
        norm = LayerNorm(width, dtype=dtype)
        self.attention = ResidualAttention(norm, attention, *after)
        self.network = _network(width, hidden, approximate_gelu, dtype, after)

    def forward(self, x: Tensor, mask: Operand | None = None) -> Tensor:
        """Keep the shape, (n, t, width).

        Parameters
        ----------
        x : Tensor of shape (n, t, width)
        mask : array or Tensor of shape (n, t) or (n, t, t), optional
            True or 1 at visible positions; see :class:`MultiHeadAttention`.
        """
        return self.network(self.attention(x, mask=mask))


class DecoderBlock(Module):
    """A block that also attends to a memory: one layer of the decoder in an
    encoder-decoder transformer.

    x + attention(norm(x)), then x + cross_attention(norm(x), memory), then x +
    network(norm(x)). A position sees itself and those before it, and the whole memory.
    Where a pipeline carries the memory from block to block, see :class:`On`.

    Parameters
    ----------
    width : int
        The number of features of the input and the result.
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
        Width of the memory; by default the width of the input.
    attention_dropout : float
        Probability, for the weights of both attentions.
    num_key_value_heads : int, optional
        Heads of keys and values of both, a divisor of num_heads; by default as many.
    rotary_base : float, optional
        Turns queries and keys of the first attention by their positions; see
        :class:`MultiHeadAttention`.

    References
    ----------
    Vaswani et al. 2017, figure 1, on the right; the norms first, as in
    :class:`TransformerBlock`.

    Examples
    --------
    >>> import numpy as np
    >>> from minipipe import Tensor, nn
    >>> block = nn.DecoderBlock(width=8, num_heads=2)
    >>> block(
    ...     Tensor(np.ones((4, 10, 8), np.float32)),
    ...     Tensor(np.ones((4, 7, 8), np.float32)),
    ... ).shape
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
        shared: dict[str, Any] = {
            "dropout": attention_dropout,
            "num_key_value_heads": num_key_value_heads,
        }
        attention = MultiHeadAttention(
            width, num_heads, True, dtype, rotary_base=rotary_base, **shared
        )
        of_memory = CrossAttention(width, num_heads, memory_width, dtype, **shared)
        self._described = described(
            width,
            num_heads,
            memory_width=memory_width,
            dropout=dropout,
            attention_dropout=attention_dropout,
            num_key_value_heads=num_key_value_heads,
            rotary_base=rotary_base,
        )
        norm = LayerNorm(width, dtype=dtype)
        self.attention = ResidualAttention(norm, attention, *after)
        norm = LayerNorm(width, dtype=dtype)
        self.cross_attention = ResidualAttention(norm, of_memory, *after)
        self.network = _network(width, hidden, approximate_gelu, dtype, after)

    def forward(
        self,
        x: Tensor,
        memory: Tensor,
        mask: Operand | None = None,
        memory_mask: Operand | None = None,
    ) -> Tensor:
        """Keep the shape, (n, t, width).

        Parameters
        ----------
        x : Tensor of shape (n, t, width)
        memory : Tensor of shape (n, s, memory_width)
        mask : array or Tensor of shape (n, t) or (n, t, t), optional
            True or 1 at visible positions of x.
        memory_mask : array or Tensor of shape (n, s) or (n, t, s), optional
            True or 1 at visible positions of the memory.
        """
        x = self.attention(x, mask=mask)
        return self.network(self.cross_attention(x, memory, mask=memory_mask))


def _network(
    width: int,
    hidden: int | None,
    approximate_gelu: bool,
    dtype: Any,
    after: list[Module],
) -> Residual:
    """Return x + network(norm(x)), position by position."""
    if hidden is None:
        hidden = 4 * width
    return Residual(
        LayerNorm(width, dtype=dtype),
        Linear(width, hidden, dtype=dtype),
        GELU(approximate_gelu),
        Linear(hidden, width, initialiser=glorot_uniform(hidden, width), dtype=dtype),
        *after,
    )

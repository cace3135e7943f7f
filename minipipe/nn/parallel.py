"""Layers whose parameters are divided among the ranks of a group: tensor parallelism.

:func:`minipipe.nn.parallelise` makes them of plain layers. Each rank keeps its part of
a parameter, drawn from the whole, and parameters keep the names of the plain model.
They also keep its values, as :meth:`Module.state_dict` returns them; that call is
collective here. A block computes two all-reduces of activations forward and two
backward; all ranks of the group must call it in one order.

Results agree with the plain layers within rounding, not bit for bit: an all-reduce
rounds at other places.

References
----------
Shoeybi et al. 2019, "Megatron-LM: training multi-billion parameter language models
using model parallelism", section 3.
"""

from __future__ import annotations

from typing import Any

from minipipe import functional
from minipipe.core.autograd import backend
from minipipe.core.autograd.backend import Array, array_module
from minipipe.core.comm.process_group import ProcessGroup
from minipipe.core.nn.losses import CrossEntropyLoss
from minipipe.core.nn.module import Module, is_exactly
from minipipe.core.nn.parameter import Parameter
from minipipe.core.specs import Spec, divisor
from minipipe.core.tensor import Operand, Tensor, as_tensor
from minipipe.errors import ArgumentError
from minipipe.functional.distributed import marked
from minipipe.functional.parallel import (
    copy_to,
    gather_from,
    parallel_cross_entropy,
    reduce_from,
)
from minipipe.nn.layers import Embedding, Linear, Unembedding
from minipipe.nn.shards import Shard, ShardedParameter
from minipipe.nn.transformer import MultiHeadAttention


def _check_plain(taker: str, layer: Any, kind: type[Module]) -> None:
    """Refuse a layer with custom code, also inside, that the divided layer would not
    run.
    """
    Spec(kind, expected=f"an nn.{kind.__name__}").of_class(taker, layer)
    if not is_exactly(layer, kind):
        raise ArgumentError(
            "type",
            f"{taker} computes what nn.{kind.__name__} does, and this "
            f"{type(layer).__name__} has code of its own; leave it whole, or divide "
            "the layers inside it.",
        )


def _take_over(divided: Module, whole: Module) -> None:
    """Give a divided layer every other attribute of the layer that it replaces, such as
    its mode, in that order.
    """
    own = dict(vars(divided))
    vars(divided).clear()
    vars(divided).update(vars(whole) | own)


def _divided(
    parameter: Parameter,
    group: ProcessGroup,
    axis: int,
    blocks: tuple[int, ...] | None = None,
    kind: type[Shard] = Shard,
) -> ShardedParameter:
    """Return this rank's part of a parameter, with its first values or those that it
    has.
    """
    owner = type(getattr(parameter, "owner", parameter))
    if owner is not Parameter:
        name = owner.__name__
        message = f"A {name} cannot be divided; expected a whole nn.Parameter."
        raise ArgumentError("type", message)
    if parameter.num_uses > 1:
        message = "A parameter that several layers share cannot be divided; untie them."
        raise ArgumentError(message)
    shard = kind(group, parameter.shape, axis, blocks or (parameter.shape[axis],))
    for length in shard.blocks:
        of = f"the {length} features or heads that its ranks share"
        divisor("The size of the group", group.size, length, of=of)
    return ShardedParameter.of(parameter, shard)


class ColumnParallelLinear(Module):
    """A linear layer of which each rank of a group computes some of the outputs.

    Parameters
    ----------
    linear : Linear
        The whole layer, of which it keeps the names of parameters and the values, if
        there are any.
    group : ProcessGroup
        Its size divides the outputs.
    gather : bool
        Whether every rank gets all outputs; otherwise only its part, for a
        :class:`RowParallelLinear`.
    blocks : tuple of int, optional
        Lengths of the groups of outputs of which each rank takes an equal part; by
        default all outputs are one group.

    Examples
    --------
    >>> import numpy as np
    >>> from minipipe import Tensor, nn, spawn
    >>> def shape(group):
    ...     return nn.ColumnParallelLinear(nn.Linear(4, 6), group)(
    ...         Tensor(np.ones((2, 4), np.float32))
    ...     ).shape
    >>> spawn(shape, num_ranks=2)
    [(2, 3), (2, 3)]
    """

    def __init__(
        self,
        linear: Linear,
        group: ProcessGroup,
        *,
        gather: bool = False,
        blocks: tuple[int, ...] | None = None,
    ) -> None:
        _check_plain("ColumnParallelLinear", linear, Linear)
        self._described = f"{linear.describe()}, ranks={group.size}"
        self.weight = _divided(linear.weight, group, 1, blocks)
        self.shard: Any = self.weight.shard
        self.bias: ShardedParameter | None = None
        if linear.bias is not None:
            self.bias = _divided(linear.bias, group, 0, blocks)
        self.gather = gather
        _take_over(self, linear)

    def forward(self, x: Tensor) -> Tensor:
        """Map a tensor of shape (..., in_features) to (..., out_features), or to this
        rank's part of it.
        """
        group = self.shard.group
        result = functional.linear(copy_to(x, group=group), self.weight, self.bias)
        if self.gather:
            return gather_from(result, group)
        return marked(result, group, is_whole=False)


class RowParallelLinear(Module):
    """A linear layer of which each rank of a group has some of the inputs; the ranks
    add up their results.

    Parameters
    ----------
    linear : Linear
        The whole layer. Every rank keeps its bias, which is added once.
    group : ProcessGroup
        Its size divides the inputs.

    Examples
    --------
    >>> from minipipe import nn, spawn
    >>> spawn(
    ...     lambda group: nn.RowParallelLinear(nn.Linear(4, 6), group).weight.shape,
    ...     num_ranks=2,
    ... )
    [(2, 6), (2, 6)]
    """

    def __init__(self, linear: Linear, group: ProcessGroup) -> None:
        _check_plain("RowParallelLinear", linear, Linear)
        self._described = f"{linear.describe()}, ranks={group.size}"
        self.weight = _divided(linear.weight, group, 0)
        self.bias = linear.bias
        self.shard: Any = self.weight.shard
        _take_over(self, linear)

    def forward(self, x: Tensor) -> Tensor:
        """Map this rank's part of (..., in_features) to (..., out_features), on every
        rank.
        """
        result = reduce_from(functional.linear(x, self.weight), group=self.shard.group)
        if self.bias is None:
            return result
        return result + self.bias


class ParallelAttention(MultiHeadAttention):
    """An attention of which each rank of a group has some of the heads.

    Parameters
    ----------
    attention : MultiHeadAttention
    group : ProcessGroup
        Its size divides the numbers of heads of queries and of keys and values.

    Examples
    --------
    >>> from minipipe import nn, spawn
    >>> spawn(
    ...     lambda group: (
    ...         nn.ParallelAttention(nn.MultiHeadAttention(8, 4), group).num_heads
    ...     ),
    ...     num_ranks=2,
    ... )
    [2, 2]
    """

    def __init__(self, attention: MultiHeadAttention, group: ProcessGroup) -> None:
        _check_plain("ParallelAttention", attention, MultiHeadAttention)
        heads = attention.num_heads
        shared = attention.num_key_value_heads or attention.num_heads
        of = f"{heads} heads, {shared} of keys and values"
        divisor("The size of the group", group.size, heads, shared, of=of)
        width = attention.output.weight.shape[0]
        keys = width // heads * shared
        whole = attention.projections
        blocks = (width, keys, keys)
        self.projections: Any = ColumnParallelLinear(whole, group, blocks=blocks)
        self.output: Any = RowParallelLinear(attention.output, group)
        self.num_heads = heads // group.size
        self.num_key_value_heads = shared // group.size
        _take_over(self, attention)

    @property
    def _part(self) -> tuple[int, int]:
        group = self.projections.shard.group
        return group.rank, group.size


class ParallelEmbedding(Module):
    """An embedding of which each rank of a group has the vectors of some symbols.

    Parameters
    ----------
    embedding : Embedding
    group : ProcessGroup
        Its size divides the number of symbols.

    Examples
    --------
    >>> from minipipe import nn, spawn
    >>> def lengths(group):
    ...     layer = nn.ParallelEmbedding(nn.Embedding(100, 8), group)
    ...     return len(layer.weight), layer([[5, 99]]).shape
    >>> spawn(lengths, num_ranks=2)
    [(50, (1, 2, 8)), (50, (1, 2, 8))]
    """

    def __init__(self, embedding: Embedding, group: ProcessGroup) -> None:
        _check_plain("ParallelEmbedding", embedding, Embedding)
        self._described = f"{embedding.describe()}, ranks={group.size}"
        self.weight = _divided(embedding.weight, group, 0)
        self.shard: Any = self.weight.shard
        _take_over(self, embedding)

    def forward(self, ids: Operand) -> Tensor:
        """Map whole numbers of shape (...) to vectors, (..., width), on every rank."""
        group = self.shard.group
        count = self.weight.shape[0]
        given = as_tensor(ids)
        first = group.rank * count
        total = group.size * count
        rows, is_own = _own_rows(given.data, first, count, total)
        vectors = functional.embedding(self.weight, rows)
        own = functional.where(is_own[..., None], vectors, 0.0)
        return reduce_from(own, group=group)


@backend.one_line
def _own_rows(ids: Array, first: int, count: int, total: int) -> tuple[Array, Array]:
    """Return the rows of this rank's part of a table that ids name, and which do; row 0
    for the others.

    A number that no rank has stays, and is refused by all of them.
    """
    xp = array_module(ids)
    own = ids - first
    is_own = (own >= 0) & (own < count)
    is_known = bool(xp.all((ids >= 0) & (ids < total)))
    if is_known:
        return own * xp.astype(is_own, own.dtype), is_own
    return xp.asarray(ids, copy=True), is_own


class ParallelUnembedding(Module):
    """Scores of every symbol; each rank of a group computes the scores of its part of
    the shared vectors.

    Every rank gets all scores.

    Parameters
    ----------
    embedding : ParallelEmbedding
    unembedding : Unembedding, optional
        The whole layer, whose other attributes it keeps.

    Examples
    --------
    >>> from minipipe import nn, spawn
    >>> def shape(group):
    ...     embedding = nn.ParallelEmbedding(nn.Embedding(100, 8), group)
    ...     return nn.ParallelUnembedding(embedding)(embedding([[5, 99]])).shape
    >>> spawn(shape, num_ranks=2)
    [(1, 2, 100), (1, 2, 100)]
    """

    def __init__(
        self, embedding: ParallelEmbedding, unembedding: Unembedding | None = None
    ) -> None:
        self._described = embedding.describe()
        self.weight = embedding.weight
        self.shard = embedding.shard
        if unembedding is not None:
            _check_plain("ParallelUnembedding", unembedding, Unembedding)
            _take_over(self, unembedding)

    def forward(self, x: Tensor) -> Tensor:
        """Map a tensor of shape (..., width) to (..., number of symbols), on every
        rank.
        """
        group = self.shard.group
        vectors = functional.transpose(self.weight)
        scores = functional.linear(copy_to(x, group=group), vectors)
        return gather_from(scores, group)


class ParallelCrossEntropyLoss(CrossEntropyLoss):
    """The cross-entropy of scores whose classes are divided among the ranks of a group.

    The scores come from a :class:`ColumnParallelLinear` without gather. A pipeline
    refuses a model whose last layer returns whole scores, and gathers the scores for
    metrics and outputs.

    Parameters
    ----------
    group : ProcessGroup
    ignore_index : int, optional
    reduction : {"mean", "sum"}

    Raises
    ------
    TensorError
        Code ``divided``, on a call, for scores that were gathered.

    Examples
    --------
    >>> import numpy as np
    >>> from minipipe import Tensor, nn, spawn
    >>> scores = Tensor(np.zeros((1, 2)))
    >>> spawn(
    ...     lambda group: round(
    ...         nn.ParallelCrossEntropyLoss(group)(scores, [3]).item(), 4
    ...     ),
    ...     num_ranks=2,
    ... )
    [1.3863, 1.3863]
    """

    def __init__(
        self,
        group: ProcessGroup,
        ignore_index: int | None = None,
        reduction: str = "mean",
    ) -> None:
        super().__init__(ignore_index, reduction=reduction)
        self.group = group

    def forward(self, scores: Tensor, labels: Operand) -> Tensor:
        """Map this rank's part of scores of shape (..., k) and labels of shape (...) to
        a loss of shape ().
        """
        return parallel_cross_entropy(
            scores, labels, self.group, self.ignore_index, self.reduction
        )


_WITH_SUMS = (ColumnParallelLinear, RowParallelLinear, ParallelEmbedding)


def sums_in(module: Module) -> tuple[list[tuple[int, int]], list[tuple[int, int]]]:
    """Return the elements of each tensor-parallel all-reduce in a module, and the bytes
    of an element. Local.

    First those in a forward, then in a backward, for one position, such as a token. A
    block has two each way.

    Examples
    --------
    >>> from minipipe import nn, spawn
    >>> block = nn.TransformerBlock(width=8, num_heads=2)
    >>> spawn(lambda group: sums_in(nn.parallelise(block, group)), num_ranks=2)[0]
    ([(8, 4), (8, 4)], [(8, 4), (8, 4)])
    """
    forward = []
    backward = []
    for part in module.modules():
        if not isinstance(part, _WITH_SUMS):
            continue
        itemsize = backend.numpy_dtype(part.weight.dtype).itemsize
        if isinstance(part, ColumnParallelLinear):  # copy_to(its inputs)
            backward.append((part.weight.shape[0], itemsize))
        else:  # reduce_from(its outputs)
            forward.append((part.weight.shape[1], itemsize))
    return forward, backward

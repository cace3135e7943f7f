"""An output layer of which each rank of a pipeline has the weights of some words.

Its parameters keep the names of the plain layer, and the values of the whole one in a
``state_dict`` or a checkpoint (:mod:`minipipe.nn.shards`).
"""

from __future__ import annotations

from minipipe import functional
from minipipe.core.comm.process_group import ProcessGroup
from minipipe.core.nn.module import Module
from minipipe.core.specs import divisor
from minipipe.core.tensor import Tensor
from minipipe.errors import ModelError
from minipipe.nn.layers import Linear
from minipipe.nn.parallel import _check_plain, _divided, _take_over
from minipipe.nn.shards import Shard


class WordShard(Shard):
    """The words of a rank. Their gradients are complete: nothing adds them up over
    ranks.
    """

    is_summed = True


class VocabularyLinear(Module):
    """A linear layer whose outputs, the scores of words, are divided among the ranks of
    a pipeline.

    In training :mod:`minipipe.execution.vocabulary` computes it beside the stages. As
    the last layer of a stage it then passes on its inputs.

    Parameters
    ----------
    linear : Linear
        The whole layer, of which it keeps the names of parameters and the values.
    group : ProcessGroup
        The ranks of the pipeline; their number divides the number of words.

    Attributes
    ----------
    passes_on : bool
        Whether a call returns its argument.
    is_whole : bool
        Whether this rank computes all scores; it then has gathered all weights.

    Raises
    ------
    ArgumentError
        Code ``type``, for a layer with code of its own; ``value``, for a number of
        words that the ranks do not divide, or a parameter that other layers share.

    Examples
    --------
    >>> from minipipe import nn, spawn
    >>> from minipipe.nn.vocabulary import VocabularyLinear
    >>> def shape(group):
    ...     return VocabularyLinear(nn.Linear(4, 6), group).weight.shape
    >>> spawn(shape, num_ranks=2)
    [(4, 3), (4, 3)]
    """

    def __init__(self, linear: Linear, group: ProcessGroup) -> None:
        _check_plain('partition="vocabulary"', linear, Linear)
        words = linear.weight.shape[1]
        padded = words + -words % group.size
        of = f"the {words} words of the output layer: pad them to {padded}"
        divisor("The number of ranks", group.size, words, of=of)
        self._described = f"{linear.describe()}, ranks={group.size}"
        self.weight = _divided(linear.weight, group, 1, kind=WordShard)
        self.bias = None
        if linear.bias is not None:
            self.bias = _divided(linear.bias, group, 0, kind=WordShard)
        self.is_whole = False
        self.passes_on = False
        self._gathered: list[Tensor] = []
        _take_over(self, linear)

    @property
    def first_word(self) -> int:
        """The number of the first word of this rank."""
        return self.weight.shape[1] * self.weight.shard.group.rank

    def gather(self, is_user: bool) -> None:
        """Gather all weights on the ranks that use them. Collective.

        Parameters
        ----------
        is_user : bool
            Whether this rank computes all scores until :meth:`release`.
        """
        parameters = [one for one in (self.weight, self.bias) if one is not None]
        wholes = [Tensor(one.joined(one.data)) for one in parameters]
        self.is_whole = is_user
        self.passes_on = not is_user
        if is_user:
            self._gathered = wholes

    def release(self) -> None:
        """Keep the words of this rank only. Local."""
        self.is_whole = self.passes_on = False
        self._gathered = []

    def forward(self, x: Tensor) -> Tensor:
        """Return the scores of all words, (..., words), of hidden states of shape (...,
        features) on a rank that has gathered them; otherwise the hidden states.

        Raises
        ------
        ModelError
            Code ``unsupported``, outside of a call that knows its words to be divided.
        """
        if self.passes_on:
            return x
        if not self.is_whole:
            raise ModelError(
                "unsupported",
                'With partition="vocabulary" each rank has some words of the output '
                "layer, so only step(), evaluate() and predict() compute it.",
            )
        return functional.linear(x, *self._gathered)

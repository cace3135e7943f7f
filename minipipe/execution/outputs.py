"""Whether a tensor-parallel rank has all of a model's outputs, and which losses are
legal for them.

A head that is divided among ranks leaves each of them a part of the scores, which looks
like whole scores of fewer classes. A loss for the other kind computes a wrong number
without an error. The last layers determine the kind; if custom code comes last, the
values on the ranks determine it.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from enum import Enum
from typing import Any

import numpy as np

from minipipe.comm import Grid, ProcessGroup
from minipipe.core.autograd import backend
from minipipe.core.autograd.backend import Array
from minipipe.core.nn.module import is_exactly
from minipipe.core.pytree import Bundle, tensors_in
from minipipe.core.tensor import Tensor
from minipipe.errors import ModelError, TensorError
from minipipe.functional.distributed import (
    DistributedTensor,
    are_same,
    check_same,
    check_scores,
    marked,
)
from minipipe.functional.parallel import gathered
from minipipe.nn import (
    AuxiliaryLoss,
    ColumnParallelLinear,
    CrossEntropyLoss,
    Dropout,
    FullySharded,
    Identity,
    Module,
    MSELoss,
    On,
    ParallelCrossEntropyLoss,
    Parameter,
    Recompute,
    RowParallelLinear,
    Sequential,
    Take,
)
from minipipe.nn.dividing import ELEMENTWISE
from minipipe.nn.shards import Shard, ShardedParameter

_TO_GATHER = "Give the last layer gather=True, or take ParallelCrossEntropyLoss."


class Division(Enum):
    """Which part of a value a rank has."""

    WHOLE = "whole"
    PART = "part"
    UNKNOWN = "unknown"


@dataclass(frozen=True)
class OutputDivision:
    """The division of a model's outputs among tensor-parallel ranks.

    Attributes
    ----------
    group : ProcessGroup
        These ranks, at least two.
    division : Division
        The part of the outputs that each of them has.
    taken : Division
        The division that the loss expects. A custom function may expect either.
    """

    group: ProcessGroup
    division: Division
    taken: Division

    @property
    def are_parts(self) -> bool:
        """Whether metrics and outputs need the parts of the other ranks."""
        return Division.PART in (self.division, self.taken)

    @property
    def is_certain(self) -> bool:
        """Whether each rank is known to have all, and no values are compared."""
        return self.division is Division.WHOLE

    def marked(self, outputs: Bundle) -> Bundle:
        """Return the outputs of a microbatch as its loss takes them: a loss of the
        other kind refuses the mark.
        """
        if not isinstance(outputs, Tensor) or self.division is Division.UNKNOWN:
            return outputs
        return marked(outputs, self.group, is_whole=self.division is Division.WHOLE)

    def check_whole(self, outputs: Bundle) -> None:
        """Refuse outputs that differ from rank to rank, for a loss of whole ones.
        Collective, unless they are known.

        A loss of parts checks them itself.

        Raises
        ------
        TensorError
            Code ``divided``.
        """
        if self.division is not Division.UNKNOWN or self.taken is not Division.WHOLE:
            return
        message = (
            f"The outputs differ on the {self.group.size} tensor-parallel ranks, but "
            "the loss takes"
        )
        for tensor in tensors_in(outputs):
            check_same(tensor.data, self.group, f"{message} whole ones. {_TO_GATHER}")

    def check_loss(self, array: Array) -> None:
        """Refuse losses of a microbatch that differ from rank to rank, which a custom
        function computed of parts.

        Collective, unless outputs or loss are known.

        Raises
        ------
        TensorError
            Code ``divided``.
        """
        if self.is_certain or self.taken is not Division.UNKNOWN:
            return
        loss = backend.to_numpy(array).item()
        if not are_same(np.array([loss]), self.group):
            raise TensorError(
                "divided",
                f"The tensor-parallel ranks have other losses than {loss} for a "
                f"microbatch; expected one loss. {_TO_GATHER}",
            )

    def check_given_gradient(self) -> None:
        """Refuse to take the gradient of outputs of which each rank has a part. Local.

        Raises
        ------
        ModelError
            Code ``loss``.
        """
        if self.are_parts:
            message = (
                "forward_backward() takes the gradient of whole outputs, and after the "
                "last layer each rank has a part"
            )
            raise ModelError("loss", f"{message}; give that layer gather=True.")

    def whole(self, outputs: Bundle) -> list[Array]:
        """Return the arrays of outputs, concatenated from all ranks. Collective, unless
        they are known as whole.

        Raises
        ------
        TensorError
            Code ``divided``, if this rank may have parts of some outputs but it is
            unknown of which; and if it has whole outputs, and the loss is for parts.
        """
        arrays = [tensor.data for tensor in tensors_in(outputs)]
        is_part = isinstance(outputs, DistributedTensor) and not outputs.is_whole
        if isinstance(outputs, Tensor) and (self.are_parts or is_part):
            # Custom code may have gathered them already; concatenated again, each class
            # would occur twice.
            if self.division is Division.UNKNOWN:
                check_scores("ParallelCrossEntropyLoss", outputs, self.group)
            return [gathered(arrays[0], self.group)[0]]
        if not self.is_certain and not all(
            are_same(array, self.group) for array in arrays
        ):
            raise TensorError(
                "divided",
                "The tensor-parallel ranks have different outputs, but metrics take "
                f"whole ones. {_TO_GATHER}",
            )
        return arrays


def output_division(
    model: Sequential, loss: Any, grid: Grid | None
) -> OutputDivision | None:
    """Return how the outputs of a model are divided; None without tensor-parallel
    ranks. Local.

    Raises
    ------
    ModelError
        Code ``loss``: the loss is for whole outputs and the last layer leaves each rank
        a part; or the reverse.

    Examples
    --------
    >>> from minipipe import nn
    >>> output_division(nn.Sequential(nn.Linear(2, 2)), nn.MSELoss(), None)
    """
    takes_parts = isinstance(loss, ParallelCrossEntropyLoss) and loss.group.size > 1
    division, head = _after(model.flat_layers, Division.WHOLE, None)
    sharing = [head]
    if grid:
        sharing.append(grid.tensor)
    sharing += [group for each in model.parameters() for group in _sharing(each)]
    if takes_parts:
        sharing.append(loss.group)
    group = next((each for each in sharing if each and each.size > 1), None)
    if group is None:
        return None
    takes_whole = is_exactly(loss, CrossEntropyLoss, MSELoss)
    taken = Division.UNKNOWN
    if takes_parts or takes_whole:
        taken = Division.PART if takes_parts else Division.WHOLE
    for reason in _against_loss(loss, taken, group, division, model):
        raise ModelError("loss", reason)
    return OutputDivision(group, division, taken)


def _against_loss(
    loss: Any,
    taken: Division,
    group: ProcessGroup,
    division: Division,
    model: Sequential,
) -> Iterator[str]:
    """Yield the reasons why a loss does not fit the outputs of the last layer."""
    name = type(loss).__name__
    own = getattr(loss, "group", group)
    ranks = list(group.world_ranks)
    if taken is Division.PART and list(own.world_ranks) != ranks:
        yield (
            f"{name} has the ranks {list(own.world_ranks)}, but the layers are divided "
            f"among {ranks}; give it the group of the layers, grid.tensor."
        )
    if taken is Division.PART and division is Division.WHOLE:
        yield (
            f"{name} takes a part of the scores from each of {own.size} ranks, and "
            f"after {model.flat_layers[-1].brief()} every rank of the group has all of "
            "them. Take CrossEntropyLoss, or nn.ColumnParallelLinear(nn.Linear(…), "
            "grid.tensor) as last layer."
        )
    if taken is Division.WHOLE and division is Division.PART:
        yield (
            f"{name} takes whole outputs, and after {model.flat_layers[-1].brief()} "
            f"each of {group.size} ranks has a part of them. Take "
            "ParallelCrossEntropyLoss(grid.tensor), or give the last layer gather=True."
        )


def _sharing(parameter: Parameter) -> list[ProcessGroup]:
    """Return the group whose ranks have a part of a parameter each, along an axis;
    replicas do not count.
    """
    owner = parameter.owner
    if not isinstance(owner, ShardedParameter):
        return []
    shard: Any = owner.shard
    if not isinstance(shard, Shard):
        shard = shard.inner
    return [] if shard is None else [shard.group]


def _after(
    layers: Iterable[Module], division: Division, group: ProcessGroup | None
) -> tuple[Division, ProcessGroup | None]:
    """Return which part a rank has after some layers, from the part before them and the
    group that divided it.
    """
    for layer in layers:
        if is_exactly(layer, Sequential):
            division, group = _after(layer.flat_layers, division, group)
        elif is_exactly(layer, Recompute):
            division, group = _after([layer.module], division, group)
        elif is_exactly(layer, FullySharded):
            division, group = _after([layer.layer], division, group)
        elif is_exactly(layer, ColumnParallelLinear):
            group = layer.shard.group
            division = Division.PART
            if layer.gather or group.size == 1:
                division = Division.WHOLE
        elif is_exactly(layer, RowParallelLinear):
            division = Division.WHOLE
        elif not is_exactly(
            layer, Identity, Dropout, AuxiliaryLoss, Take, *ELEMENTWISE
        ):
            keeps = division is Division.WHOLE and _returns_whole(layer)
            division = Division.WHOLE if keeps else Division.UNKNOWN
    return division, group


def _returns_whole(layer: Module) -> bool:
    """Return whether a layer turns whole values into whole values: layers with whole
    parameters, and minipipe's.
    """
    if is_exactly(layer, On):
        return _after([layer.layer], Division.WHOLE, None)[0] is Division.WHOLE
    is_known = type(layer).__module__.partition(".")[0] == "minipipe" and is_exactly(
        layer, type(layer)
    )
    return is_known or not any(map(_sharing, layer.parameters()))

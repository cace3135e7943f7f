"""The grid: ranks by three coordinates, for pipeline, data and tensor parallelism."""

from __future__ import annotations

from typing import cast

from minipipe.comm.process_group import ProcessGroup
from minipipe.errors import RankError, whole_number


class Grid:
    """The ranks of a group by three coordinates, and the groups along them. Making one is collective.

    The ranks that share a layer are neighbours, then come replicas, then the ranks of a pipeline: rank
    ``(stage * data + replica) * tensor + part``. So hosts that take ranks one after another, with a multiple of
    ``tensor`` ranks each, have the ranks that talk most on one host.

    Parameters
    ----------
    group : ProcessGroup
        All ranks.
    pipeline, data, tensor : int
        Ranks of a pipeline, replicas of it, and ranks that share each layer. Their product is the size of the group.

    Attributes
    ----------
    group : ProcessGroup
        All ranks.
    pipeline : ProcessGroup
        The ranks of all replicas with the same part of each layer, on which ``Pipeline(model, grid)`` runs.
    data : ProcessGroup
        The replicas of this rank: those at the same place of their pipelines, with the same part of each layer.
    tensor : ProcessGroup
        The ranks that share each layer: the group of :func:`minipipe.nn.parallelise`.
    replicas : int
        The number of replicas.
    coordinates : tuple of int
        Of this rank: in the pipeline, the replica, and the part of a layer.

    Raises
    ------
    RankError
        Code ``wrong-number``, where the product is not the size of the group.

    References
    ----------
    Narayanan et al. 2021, "Efficient large-scale language model training on GPU clusters using Megatron-LM", section 3.

    Examples
    --------
    >>> from minipipe import Grid, spawn
    >>> spawn(lambda group: Grid(group, pipeline=2, tensor=2).coordinates, num_ranks=4)
    [(0, 0, 0), (0, 0, 1), (1, 0, 0), (1, 0, 1)]
    """

    def __init__(self, group: ProcessGroup, *, pipeline: int = 1, data: int = 1, tensor: int = 1) -> None:
        sizes = {"pipeline": pipeline, "data": data, "tensor": tensor}
        for name, size in sizes.items():
            whole_number(name, size)
        if pipeline * data * tensor != group.size:
            given = " x ".join(f"{name} {size}" for name, size in sizes.items())
            message = f"{given} are {pipeline * data * tensor} ranks, but there are {group.size}"
            raise RankError("wrong-number", f"{message}; expected a product of {group.size}.")
        rest, part = divmod(group.rank, tensor)
        stage, replica = divmod(rest, data)
        self.group, self.replicas, self.coordinates = group, data, (stage, replica, part)
        # A pipeline has the ranks of its first replica first.
        self.pipeline = cast(ProcessGroup, group.split(part, key=replica * pipeline + stage))
        self.data = cast(ProcessGroup, group.split(stage * tensor + part))
        self.tensor = cast(ProcessGroup, group.split(rest))

    def __repr__(self) -> str:
        stage, replica, part = self.coordinates
        sizes = f"pipeline={self.pipeline.size // self.replicas}, data={self.replicas}, tensor={self.tensor.size}"
        return f"Grid({sizes}; this is rank {stage} of the pipeline, replica {replica}, part {part})"

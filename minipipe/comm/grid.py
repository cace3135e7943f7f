"""The device mesh: ranks by three coordinates, for pipeline, data and tensor
parallelism.
"""

from __future__ import annotations

import socket
import warnings
from typing import Literal, cast

from minipipe.comm.agreement import compare_arguments
from minipipe.comm.objects import gather
from minipipe.core.comm.process_group import ProcessGroup
from minipipe.core.specs import COUNT, Spec
from minipipe.errors import RankError, counted


class Grid:
    """A device mesh: the ranks of a group by three coordinates, and the groups along
    them. Making one is collective.

    Tensor-parallel ranks are neighbours, then come replicas, then the ranks of a
    pipeline: rank ``(stage * data + replica) * tensor + part`` of ``group``, which has
    the ranks of a host side by side, whatever the launcher did. So the ranks that
    communicate most are on one host if each host has a multiple of ``tensor`` ranks;
    otherwise there is a warning on rank 0.

    Parameters
    ----------
    group : ProcessGroup
        All ranks.
    pipeline, data, tensor : int
        Ranks of a pipeline, its replicas, and tensor-parallel ranks. Their product is
        the size of the group.
    fully_sharded : bool or "stages"
        Whether each replica keeps only a shard of the parameters, see
        :func:`minipipe.nn.fully_shard`. Also an attribute. ``"stages"`` gathers each
        stage once for a training step, instead of each layer for every F and B: fewer
        messages, and whole parameters as long as a stage computes.

    Attributes
    ----------
    group : ProcessGroup
        All ranks, host by host in the order of their first ranks; the argument itself,
        if it has that order.
    pipeline : ProcessGroup
        The ranks of all replicas with the same part of each layer, on which
        ``Pipeline(model, grid)`` runs.
    data : ProcessGroup
        The replicas of this rank: those at the same place of their pipelines, with the
        same part of each layer.
    tensor : ProcessGroup
        The tensor-parallel ranks of this rank: the group of
        :func:`minipipe.nn.parallelise`.
    replicas : int
        The number of replicas.
    coordinates : tuple of int
        Of this rank: in the pipeline, the replica, and the part of a layer.

    Raises
    ------
    RankError
        Code ``wrong-number``, if the product is not the size of the group. Code
        ``disagreement``, on every rank, if the ranks pass different numbers or a
        different ``fully_sharded``.

    References
    ----------
    Narayanan et al. 2021, "Efficient large-scale language model training on GPU
    clusters using Megatron-LM", section 3.

    Examples
    --------
    >>> from minipipe import Grid, spawn
    >>> spawn(lambda group: Grid(group, pipeline=2, tensor=2).coordinates, num_ranks=4)
    [(0, 0, 0), (0, 0, 1), (1, 0, 0), (1, 0, 1)]
    """

    def __init__(
        self,
        group: ProcessGroup,
        *,
        pipeline: int = 1,
        data: int = 1,
        tensor: int = 1,
        fully_sharded: bool | Literal["stages"] = False,
    ) -> None:
        Spec(ProcessGroup, expected="the group of all ranks").of_class("Grid", group)
        sizes = {"pipeline": pipeline, "data": data, "tensor": tensor}
        hosts = gather(group, socket.gethostname(), "Grid()")
        compare_arguments(group, "Grid()", {**sizes, "fully_sharded": fully_sharded})
        is_known = isinstance(fully_sharded, bool) or fully_sharded == "stages"
        if not is_known:
            how = Spec(code="type", expected='True, False or "stages"')
            raise how.refusal("fully_sharded", fully_sharded)
        for name, size in sizes.items():
            COUNT.check(name, size)
        if pipeline * data * tensor != group.size:
            given = " x ".join(f"{name} {size}" for name, size in sizes.items())
            raise RankError(
                "wrong-number",
                f"{given} are {counted(pipeline * data * tensor, 'rank')}, but there "
                f"are {group.size}; expected a product of {group.size}.",
            )
        group = _by_host(group, hosts, tensor)
        self.group = group
        self.replicas = data
        self._sizes = (pipeline, data, tensor)
        self.fully_sharded = fully_sharded
        self.coordinates = stage, replica, part = self.coordinates_of(group.rank)
        # A pipeline has the ranks of its first replica first.
        place = replica * pipeline + stage
        self.pipeline = cast(ProcessGroup, group.split(part, key=place))
        self.data = cast(ProcessGroup, group.split(stage * tensor + part))
        self.tensor = cast(ProcessGroup, group.split(stage * data + replica))
        self.pipeline.note = ". ".join(filter(None, [self.legend, group.note]))

    def coordinates_of(self, rank: int) -> tuple[int, int, int]:
        """Return the place in the pipeline, the replica, and the part of a layer of a
        rank of ``group``. Local.
        """
        _, data, tensor = self._sizes
        rest, part = divmod(rank, tensor)
        return (*divmod(rest, data), part)

    @property
    def roles(self) -> dict[int, str]:
        """The coordinates of each rank as a text, by its number in the world."""
        words = "pipeline rank {}, replica {}, part {}"
        ranks = enumerate(self.group.world_ranks)
        return {name: words.format(*self.coordinates_of(rank)) for rank, name in ranks}

    @property
    def legend(self) -> str:
        """The coordinates of the ranks of ``pipeline``, whose numbers timelines and
        tables have.
        """
        pipeline, _, tensor = self._sizes
        return (
            f"rank r is pipeline rank r % {pipeline} of replica r // {pipeline}, with "
            f"part {self.coordinates[2]} of {tensor} of each layer"
        )

    def __repr__(self) -> str:
        pairs = zip(("pipeline", "data", "tensor"), self._sizes)
        sizes = ", ".join(f"{name}={size}" for name, size in pairs)
        return f"Grid({sizes}; this is {self.roles[self.group.name()]})"


def _by_host(group: ProcessGroup, hosts: list[str], tensor: int) -> ProcessGroup:
    """Return a group with the ranks of each host side by side; warn if tensor-parallel
    ranks span a network.
    """
    places = [hosts.index(host) for host in hosts]
    if sorted(places) != places:
        group = cast(ProcessGroup, group.split(0, key=places[group.rank]))
    in_order = [hosts[place] for place in sorted(places)]
    starts = range(0, len(hosts), tensor)
    over = next(
        (start for start in starts if len(set(in_order[start : start + tensor])) > 1),
        None,
    )
    if over is not None and group.rank == 0:
        odd = next(host for host in in_order if hosts.count(host) % tensor)
        names = ", ".join(str(group.name(rank)) for rank in range(over, over + tensor))
        message = (
            f"tensor {tensor} does not divide the {hosts.count(odd)} ranks on host "
            f"{odd}, so ranks {names}, which"
        )
        message += (
            " share each layer, are on several hosts, and every sum in a layer crosses "
            "the network. Start a"
        )
        message += (
            f" multiple of {tensor} ranks on each host, or take a smaller tensor= and "
            "a larger pipeline=."
        )
        warnings.warn(message, stacklevel=3)
    return group

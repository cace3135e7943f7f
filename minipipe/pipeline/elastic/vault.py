"""The in-memory checkpoint of a rank: copies of parameters and optimiser state, its own
and other ranks'.
"""

from __future__ import annotations

import socket
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from minipipe.comm.objects import gather, pack, unpack
from minipipe.core.comm.message import finish
from minipipe.core.comm.process_group import OwnTag, ProcessGroup
from minipipe.errors import ArgumentError, RankLostError
from minipipe.optim import Optimiser
from minipipe.pipeline import Pipeline, Plan
from minipipe.pipeline.checkpoint.state import OptimiserState, names_of, put


class Generation(NamedTuple):
    """The copies that a rank has of one generation.

    Attributes
    ----------
    step : int
        The step before which the copies were made.
    messages : list of array
        Its own copy first, then the copies from other ranks; each as :func:`pack` makes
        them.
    plan : Plan
    world_ranks : tuple of int
        The ranks of the group, by their numbers in the world.
    copies : int
        How many other ranks must have each state.
    """

    step: int
    messages: list[np.ndarray]
    plan: Plan
    world_ranks: tuple[int, ...]
    copies: int = 1

    @property
    def age(self) -> tuple[int, int]:
        """A sort key, less for older ones and equal on all ranks: later groups are
        smaller, and steps increase.
        """
        return -len(self.world_ranks), self.step


class Vault:
    """The copies that a rank keeps; ``training.py`` explains the tags.

    Parameters
    ----------
    copies : int
        How many other ranks are to have this rank's state.
    """

    def __init__(self, copies: int) -> None:
        self.copies = copies
        self._generations: list[Generation] = []
        self._hosts: dict[tuple[int, ...], list[str]] = {}  # by group

    def keep(self, group: ProcessGroup, made: Made, step: int) -> None:
        """Copy the current state here and to other ranks; receive the copies of others.
        Collective.
        """
        plan = made.pipeline.plan
        world_ranks = tuple(group.world_ranks)
        what = "a copy of its parameters and state"
        if world_ranks not in self._hosts:
            self._hosts = {
                world_ranks: gather(group, socket.gethostname(), "elastic.train()")
            }
        takers = takers_of_copies(plan, self._hosts[world_ranks], self.copies)
        mine = pack(made.state())
        givers = [rank for rank, own in enumerate(takers) if group.rank in own]
        sends = [group.isend(mine, taker, OwnTag.COPY) for taker in takers[group.rank]]
        theirs = [group.irecv(giver, OwnTag.COPY, what=what).wait() for giver in givers]
        finish(sends)
        self._generations.append(
            Generation(step, [mine, *theirs], plan, world_ranks, self.copies)
        )
        group.barrier()  # [1]
        del self._generations[:-1]  # [2]

    def newest_of_all(self, group: ProcessGroup) -> Generation | None:
        """Return the newest generation that all ranks have, and drop all others. None
        before the first. Collective.
        """
        ages = gather(
            group,
            [generation.age for generation in self._generations],
            "elastic.train()",
        )
        common = set.intersection(*(set(map(tuple, own)) for own in ages))  # [3]
        self._generations = [
            one for one in self._generations if common and one.age == max(common)
        ]
        return self._generations[0] if common else None


def takers_of_copies(plan: Plan, hosts: Sequence[str], copies: int) -> list[list[int]]:
    """Return for each rank the ranks that it sends copies to, so that ``copies`` other
    ranks have its state.

    Ranks with the same stages, such as replicas, have the same state anyway; the first
    of them sends the missing copies. The next ranks receive them, cyclically, but ranks
    of hosts without a copy come first: one copy is on another host, if there is one.

    Parameters
    ----------
    plan : Plan
    hosts : sequence of str
        By rank.
    copies : int

    Examples
    --------
    >>> from minipipe import nn
    >>> model = nn.Sequential(*[nn.Linear(2, 2) for _ in range(4)])
    >>> four, two = Plan(model, num_ranks=4), Plan(model, num_ranks=4, replicas=2)
    >>> (
    ...     takers_of_copies(four, ["a"] * 4, 1),
    ...     takers_of_copies(four, ["a", "a", "b", "b"], 1),
    ... )
    ([[1], [2], [3], [0]], [[2], [2], [0], [0]])
    >>> (
    ...     takers_of_copies(two, ["a"] * 4, 1),
    ...     takers_of_copies(two, ["a", "a", "b", "b"], 1),
    ... )
    ([[], [], [], []], [[], [], [], []])
    >>> (
    ...     takers_of_copies(two, ["a"] * 4, 2),
    ...     takers_of_copies(two, ["a", "b", "a", "b"], 1),
    ... )
    ([[1], [2], [], []], [[1], [2], [], []])
    """
    stages = [plan.schedule.stages_of(rank) for rank in range(len(hosts))]
    found: list[list[int]] = []
    for rank, own in enumerate(stages):
        having = [other for other, its in enumerate(stages) if set(its) == set(own)]
        others = [*range(rank + 1, len(hosts)), *range(rank)]
        takers = list[int]()
        while rank == having[0] and copies:
            known = {hosts[other] for other in (*having, *takers)}
            left = [other for other in others if other not in (*having, *takers)]
            if not left or (
                len(having) + len(takers) > copies
                and (len(known) > 1 or known == set(hosts))
            ):
                break
            takers.append(min(left, key=lambda other: hosts[other] in known))
        found.append(takers)
    return found


def state_for(
    group: ProcessGroup, pipeline: Pipeline, generation: Generation
) -> dict[str, Any]:
    """Return the state of a generation, with the pieces that this rank's stages need
    now. Collective.

    Raises
    ------
    RankLostError
        Code ``rank-lost``, on every rank, when a piece is on none of them.
    """
    copies = [unpack(message) for message in generation.messages]
    values = {name: value for copy in copies for name, value in copy["values"].items()}
    parts = [OptimiserState.from_dict(copy["optimiser"]) for copy in copies]
    lacking = [name for name, _ in pipeline.named_parameters() if name not in values]
    answers = gather(group, [list(values), lacking], "elastic.train()")
    giver = {
        name: rank for rank in reversed(range(group.size)) for name in answers[rank][0]
    }
    if lost := pipeline.plan.owners.keys() - giver.keys():
        raise _lost(generation, lost, group)

    def given(source: int, taker: int) -> list[str]:
        return [name for name in answers[taker][1] if giver[name] == source]

    own = OptimiserState.merged(parts)
    sends = []
    others = [rank for rank in range(group.size) if rank != group.rank]
    for taker in others:
        if names := given(group.rank, taker):
            part = {
                "values": {name: values[name] for name in names},
                "optimiser": own.part(names).to_dict(),
            }
            sends.append(group.isend(pack(part), taker, OwnTag.COPY))
    for source in others:
        if given(source, group.rank):
            # [5]
            part = unpack(
                group.irecv(source, OwnTag.COPY, what="its part of the copies").wait()
            )
            values |= part["values"]
            parts.append(OptimiserState.from_dict(part["optimiser"]))
    finish(sends)
    return {
        **copies[0],
        "values": values,
        "optimiser": OptimiserState.merged(parts).to_dict(),
    }


def _lost(
    generation: Generation, names: set[str], group: ProcessGroup
) -> RankLostError:
    plan = generation.plan
    name_of = {
        id(parameter.owner): name for name, parameter in plan.model.named_parameters()
    }
    stages = [
        stage
        for stage in range(plan.schedule.num_stages)
        if names
        & {name_of[id(parameter.owner)] for parameter in plan.part(stage).parameters()}
    ]
    had = {
        generation.world_ranks[rank]
        for stage in stages
        for rank in plan.program.ranks_of(stage)
    }
    gone = set(generation.world_ranks) - set(group.world_ranks)
    copies = generation.copies
    return RankLostError(
        "rank-lost",
        f"Lost: {ranks(gone)}. No copy of the state of {ranks(had)} survived: the "
        f"parameters of {_words('stage', stages)}, such as {min(names)}, before step "
        f"{generation.step}. Start again from a checkpoint. elastic.train(…, "
        f"copies={copies + 1}) survives the loss of {copies + 1} ranks at once.",
    )


def changed_bits(before: Plan, now: Plan) -> str:
    """Warn that gradients under two plans of a model differ in the last bits; return
    nothing if they are the same.
    """
    numbers = {
        "microbatches": (
            before.schedule.num_microbatches,
            now.schedule.num_microbatches,
        ),
        "gradient_blocks": (before.gradient_blocks, now.gradient_blocks),
    }
    changed = [
        f"{old} {what} before and {new} now"
        for what, (old, new) in numbers.items()
        if old != new
    ]
    if not changed:
        return ""
    return (
        f" With {', '.join(changed)}, gradients differ in the last bits from here on."
    )


def ranks(numbers: Iterable[int]) -> str:
    """Name some ranks.

    Examples
    --------
    >>> ranks([3]), ranks({2, 1, 0})
    ('rank 3', 'ranks 0, 1 and 2')
    """
    return _words("rank", numbers)


def _words(noun: str, numbers: Iterable[int]) -> str:
    *first, last = map(str, sorted(numbers))
    if not first:
        return f"{noun} {last}"
    return f"{noun}s {', '.join(first)} and {last}"


# -- the state that training changes ---------------------------------------------------


class Made(NamedTuple):
    """The objects that the user's function made for a group.

    Attributes
    ----------
    pipeline : Pipeline
    optimiser : Optimiser
    others : tuple
        All other objects that training changes, in the same way on all ranks: with
        ``state_dict()`` and ``load_state_dict()``.
    """

    pipeline: Pipeline
    optimiser: Optimiser
    others: tuple[Any, ...] = ()

    @classmethod
    def checked(cls, made: Any) -> Made:
        """Return the result of ``make``, after checking it.

        Raises
        ------
        ArgumentError
            Code ``type``: it is not the expected result of ``make``. Code ``value``:
            the optimiser changes other parameters, or the pipeline runs on a device
            mesh.
        """
        is_row = isinstance(made, Sequence) and len(made) >= 2
        if not (
            is_row and isinstance(made[0], Pipeline) and isinstance(made[1], Optimiser)
        ):
            message = (
                f"make(group) returned {made!r:.60}; expected a pipeline and its "
                "optimiser, as a tuple."
            )
            raise ArgumentError("type", message)
        if made[0].grid is not None:
            raise ArgumentError(
                "make(group) returned a pipeline on a Grid, which does not survive the "
                "loss of a rank; expected Pipeline(model, group, …). With a grid, use "
                "checkpoints."
            )
        for other in made[2:]:
            if not (hasattr(other, "state_dict") and hasattr(other, "load_state_dict")):
                raise ArgumentError(
                    "type",
                    f"make(group) also returned {type(other).__name__}, which has no "
                    "state_dict() and load_state_dict(). They reset it after a loss. "
                    "Objects that training does not change belong outside make.",
                )
        found = cls(made[0], made[1], tuple(made[2:]))
        names_of(found.pipeline, found.optimiser.parameters)
        return found

    def state(self) -> dict[str, Any]:
        """Return the whole state: values and the optimiser's state by name, and the
        data that all ranks share. Local.

        The values are not copied.
        """
        return {
            "values": {
                name: parameter.data
                for name, parameter in self.pipeline.named_parameters()
            },
            "optimiser": OptimiserState.of(self.pipeline, self.optimiser).to_dict(),
            "num_steps": self.pipeline.num_steps,
            "others": [other.state_dict() for other in self.others],
        }

    def load(self, state: Mapping[str, Any]) -> None:
        """Load a copy of the result of :meth:`state`, perhaps from ranks with other
        stages. Local.
        """
        saved = OptimiserState.from_dict(state["optimiser"]).state_dict(
            self.pipeline, self.optimiser
        )
        put(
            self.pipeline,
            {"optimiser": self.optimiser},
            state["values"],
            {"optimiser": saved},
        )
        self.pipeline.num_steps = state["num_steps"]
        for other, kept in zip(self.others, state["others"]):
            other.load_state_dict(kept)

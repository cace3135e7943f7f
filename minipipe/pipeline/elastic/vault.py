"""The copies of parameters and optimiser state that a rank keeps: its own, and those of other ranks."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from minipipe.comm import ProcessGroup
from minipipe.comm.objects import pack, unpack
from minipipe.errors import ArgumentError, RankLostError
from minipipe.optim import Optimiser
from minipipe.pipeline import Pipeline, Plan
from minipipe.pipeline.checkpoint.state import named

_COPY = -6  # a tag; those below zero are the library's own


class Generation(NamedTuple):
    """The copies that a rank has of one moment.

    Attributes
    ----------
    step : int
        Before which the copies were made.
    messages : list of array
        Its own copy first, then those of the ranks before it; each as :func:`pack` makes them.
    plan : Plan
    world_ranks : tuple of int
        Of the group, by their numbers in the world.
    """

    step: int
    messages: list[np.ndarray]
    plan: Plan
    world_ranks: tuple[int, ...]

    @property
    def age(self) -> tuple[int, int]:
        """What is less for older ones, and the same on all ranks: later groups are smaller, and steps go up."""
        return -len(self.world_ranks), self.step


class Vault:
    """What a rank keeps; the tags are those of ``training.py``.

    Parameters
    ----------
    copies : int
        How many other ranks keep a copy of this rank's state.
    """

    def __init__(self, copies: int) -> None:
        self.copies = copies
        self._generations: list[Generation] = []

    def keep(self, group: ProcessGroup, made: Made, step: int) -> None:
        """Copy the current state here and to the next ranks; receive that of the ranks before. Collective."""
        mine = pack(made.state())
        distances = range(1, min(self.copies, group.size - 1) + 1)
        sends = [group._isend(mine, (group.rank + distance) % group.size, _COPY) for distance in distances]
        words = "a copy of its parameters and optimiser state"
        sources = [(group.rank - distance) % group.size for distance in distances]
        theirs = [group._irecv(source, _COPY, what=words).wait() for source in sources]
        for send in sends:
            send.wait()
        plan, world_ranks = made.pipeline.plan, tuple(group.world_ranks)
        self._generations.append(Generation(step, [mine, *theirs], plan, world_ranks))
        group.barrier()  # [1]
        del self._generations[:-1]  # [2]

    def newest_of_all(self, group: ProcessGroup) -> Generation | None:
        """Return the newest generation that all ranks have, and drop all others. None before the first. Collective."""
        own = np.array([generation.age for generation in self._generations]).reshape(-1, 2)
        gathered = group.all_gather(own, what="which copies it has")
        common = set.intersection(*({tuple(age) for age in ages.tolist()} for ages in gathered))  # [3]
        self._generations = [one for one in self._generations if common and one.age == max(common)]
        return self._generations[0] if common else None


def state_for(group: ProcessGroup, pipeline: Pipeline, generation: Generation) -> dict[str, Any]:
    """Return the state of a generation, with the pieces that this rank's stages need now. Collective.

    Raises
    ------
    RankLostError
        Code ``values``, on every rank, when a piece is on none of them.
    """
    states = [unpack(message) for message in generation.messages]
    held: dict[str, Piece] = {name: piece for state in states for name, piece in state["pieces"].items()}
    names, wanted = list(pipeline.plan.owners), {name for name, _ in pipeline.named_parameters()}
    mine = np.array([[name in held, name in wanted] for name in names], bool).reshape(-1, 2)
    has, wants = np.moveaxis(np.array(group.all_gather(mine, what="which values it has")), 2, 0)  # by rank and name
    if not has.any(axis=0).all():
        raise _lost(generation, {name for name, is_there in zip(names, has.any(axis=0)) if not is_there}, group)
    giver = has.argmax(axis=0)

    def given(source: int, taker: int) -> list[str]:
        flags = wants[taker] & ~has[taker] & (giver == source)
        return [name for name, is_given in zip(names, flags) if is_given]

    others = [rank for rank in range(group.size) if rank != group.rank]
    parts = {taker: {name: held[name] for name in given(group.rank, taker)} for taker in others}
    sends = [group._isend(pack(part), taker, _COPY) for taker, part in parts.items() if part]
    for source in others:
        if given(source, group.rank):
            held.update(unpack(group._irecv(source, _COPY, what="its part of the copies").wait()))  # [5]
    for send in sends:
        send.wait()
    return {**states[0], "pieces": held}


def _lost(generation: Generation, names: set[str], group: ProcessGroup) -> RankLostError:
    plan = generation.plan
    name_of = {id(parameter.owner): name for name, parameter in plan.model.named_parameters()}
    stages = [
        stage
        for stage in range(plan.schedule.num_stages)
        if names & {name_of[id(parameter.owner)] for parameter in plan.part(stage).parameters()}
    ]
    had = {generation.world_ranks[plan.placement[stage]] for stage in stages}
    gone = set(generation.world_ranks) - set(group.world_ranks)
    copies = len(generation.messages) - 1
    return RankLostError(
        "values",
        f"Lost: {ranks(gone)}. With them every copy of the state of {ranks(had)} is lost: the parameters "
        f"of {_words('stage', stages)}, such as {min(names)}, before step {generation.step}. Start again from a "
        f"checkpoint. elastic.train(…, copies={copies + 1}) survives that {copies + 1} neighbours are lost at once.",
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
    return f"{noun}s {', '.join(first)} and {last}" if first else f"{noun} {last}"


# -- what training has changed ----------------------------------------------------------------------------------------


Piece = dict[str, Any]
"""Of one parameter: its values, its group's hyper-parameters, now and at first, and what the optimiser keeps."""


class Made(NamedTuple):
    """What the user's function has made for a group.

    Attributes
    ----------
    pipeline : Pipeline
    optimiser : Optimiser
    others : tuple
        Whatever else training changes, alike on all ranks: with ``state_dict()`` and ``load_state_dict()``.
    """

    pipeline: Pipeline
    optimiser: Optimiser
    others: tuple[Any, ...] = ()

    @classmethod
    def checked(cls, made: Any) -> Made:
        """Return what was made, once it is looked at.

        Raises
        ------
        ArgumentError
            Code ``type``: it is not what ``make`` has to return. Code ``value``: the optimiser changes other
            parameters.
        """
        is_row = isinstance(made, Sequence) and len(made) >= 2
        if not (is_row and isinstance(made[0], Pipeline) and isinstance(made[1], Optimiser)):
            message = f"make(group) returned {made!r:.60}; expected a pipeline and its optimiser, as a tuple."
            raise ArgumentError("type", message)
        for other in made[2:]:
            if not (hasattr(other, "state_dict") and hasattr(other, "load_state_dict")):
                raise ArgumentError(
                    "type",
                    f"make(group) also returned {type(other).__name__}, which has no state_dict() and "
                    "load_state_dict(): what training changes must be set back after a loss. What it does not change "
                    "belongs outside make.",
                )
        found = cls(made[0], made[1], tuple(made[2:]))
        list(found._of_optimiser())
        return found

    def _of_optimiser(self) -> Iterator[tuple[str, int]]:
        """Yield the name and the group of each parameter, in the optimiser's order."""
        own = dict(self.pipeline.named_parameters())
        for i, group in enumerate(self.optimiser.groups):
            for name, _ in named(own, group, group.parameters):
                yield name, i

    def state(self) -> dict[str, Any]:
        """Return all of it: pieces by name, and what is alike on all ranks. The arrays are no copies. Local."""
        state = self.optimiser.state_dict()
        groups, first, states = state["groups"], state["first"] or state["groups"], state["states"]
        pieces: dict[str, Piece] = {name: {"value": p.data} for name, p in self.pipeline.named_parameters()}
        for (name, i), kept in zip(self._of_optimiser(), states):
            pieces[name].update(group=groups[i], first=first[i], kept=kept)
        others = [other.state_dict() for other in self.others]
        steps = {"num_steps": self.pipeline.num_steps, "num_updates": state["num_steps"]}
        return {"pieces": pieces, **steps, "others": others}

    def load(self, state: Mapping[str, Any]) -> None:
        """Take a copy of what :meth:`state` returned, from ranks with other stages, perhaps. Local."""
        pieces, groups = state["pieces"], self.optimiser.state_dict()["groups"]
        first = list(groups)
        for name, parameter in self.pipeline.named_parameters():
            parameter.load(pieces[name]["value"], name)
        placed = list(self._of_optimiser())
        for name, i in placed:
            groups[i], first[i] = pieces[name]["group"], pieces[name]["first"]
        kept = [pieces[name]["kept"] for name, _ in placed]
        found = {"num_steps": state["num_updates"], "groups": groups, "first": first, "states": kept}
        self.optimiser.load_state_dict(found)
        self.pipeline.num_steps = state["num_steps"]
        for other, kept in zip(self.others, state["others"]):
            other.load_state_dict(kept)

"""Choices on the ranks at hand: what their actions cost there, and which is the fastest.

A pipeline is made for each turn and dropped after it: at any time a rank has the memory of one. The choices race: each
has some turns of a few steps; then the faster half has twice as many, its faster half four times, until two are left.
Turns are short and alternate, for the steps of one turn are alike: where ranks share cores, the medians of two turns of
one choice differed by a fifth, as the system had placed the ranks, and steps within a turn by less than half as much.
"""

from __future__ import annotations

import gc
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import replace
from random import Random
from statistics import median
from time import perf_counter
from typing import Any, NamedTuple
from weakref import ref

import numpy as np

from minipipe.comm import ProcessGroup
from minipipe.errors import ArgumentError
from minipipe.execution.payload import Payload
from minipipe.execution.samples import Microbatches, Pieces, Replicated, Samples, samples
from minipipe.nn import Parameter
from minipipe.schedules.simulation.costs import Costs
from minipipe.tuning.candidates import Question
from minipipe.tuning.progress import silent, unwarned

_STEPS = 2  # of a turn, after one that is not measured: it finds no parameters in the caches
_LAST_TURNS = 16  # of the last two, at least
_FIRST_TURNS = 0.2  # of the time of a race: about as long take those of each half, quarter, …
_COST_STEPS, _COST_TURNS = 8, 2
_WHAT = "the batch that choices are tried with"
_END = -1

MakePipeline = Callable[..., Any]  # (model, group, **options) -> Pipeline


class Run(NamedTuple):
    """What a choice took.

    Attributes
    ----------
    measured : float
        The median step, in seconds: forward and backward, from the first start to the last end on any rank.
    num_steps : int
        Of which it is the median: the more, the longer the choice stayed in the race.
    spread : float
        By what part of the median the middle half of these steps differed.

    Examples
    --------
    >>> Run.of([2.0, 9.0, 2.25, 1.75, 2.0])
    Run(measured=2.0, num_steps=5, spread=0.125)
    """

    measured: float
    num_steps: int
    spread: float

    @classmethod
    def of(cls, times: Sequence[float]) -> Run:
        """Return what some steps took together."""
        ordered, middle = sorted(times), median(times)
        spread = (ordered[3 * len(times) // 4] - ordered[len(times) // 4]) / middle
        return cls(middle, len(times), spread)


class Trial:
    """Pipelines of one model, run on the ranks of a group with one batch.

    Collective.

    Parameters
    ----------
    question : Question
        The batch is that of the lowest rank that has one, inputs and targets alike.
    group : ProcessGroup
    make : function
        Makes a pipeline: ``(model, group, **options)``.

    Raises
    ------
    ArgumentError
        Code ``value``, on every rank: no rank has inputs.
    TensorError, MicrobatchError
        For a batch that is none, on the rank that has it.
    """

    def __init__(self, question: Question, group: ProcessGroup, make: MakePipeline) -> None:
        inputs, targets = (_shared(group, given) for given in (question.inputs, question.targets))
        if inputs is None:
            message = 'schedule="auto" needs a batch to measure: sample=(inputs, targets), on one rank at least.'
            raise ArgumentError("value", message)
        self.question, self.group = replace(question, inputs=inputs, targets=targets), group
        self._make, self._last_parameters = make, list[ref[Parameter]]()

    @property
    def trains(self) -> bool:
        """Whether pipelines can take steps: with a loss."""
        return self.question.options.get("loss") is not None

    def costs(self, choice: Mapping[str, Any]) -> Costs:
        """Return what the actions of a choice cost on the ranks at work, and its messages. Collective.

        Parameters
        ----------
        choice : mapping
            Options of a pipeline.
        """
        with unwarned(self.group):
            return self._pipeline(choice).measure_costs(self.question.inputs, self.question.targets, _COST_STEPS)

    def probes(self, choices: Sequence[Mapping[str, Any]], seconds: float) -> list[tuple[int, Costs]]:
        """Return the costs of choices, with their numbers: of each, and then again, but not for long. Collective.

        Parameters
        ----------
        choices : sequence of mapping
        seconds : float
            After which no other is measured, on rank 0; the first one is.
        """
        found: list[tuple[int, Costs]] = []
        begun = perf_counter()
        for number in _COST_TURNS * list(range(len(choices))):
            own = np.array(not found or perf_counter() - begun < seconds) if self.group.rank == 0 else None
            if not self.group.broadcast(own, what="whether to measure another choice"):
                break
            found.append((number, self.costs(choices[number])))
        return found

    def turn(self, choice: Mapping[str, Any]) -> list[float]:
        """Return the seconds of some steps: from the first start to the last end on any rank. Collective.

        Parameters
        ----------
        choice : mapping
            Options of a pipeline, which is made for these steps. Two pipelines of one choice lie elsewhere in memory,
            and one may be some percent faster, always.
        """
        pipeline, found = self._pipeline(choice), []
        for _ in range(1 + _STEPS):
            self.group.barrier()
            pipeline.step(self.question.inputs, self.question.targets)
            found.append(pipeline.timeline().makespan)
        return found[1:]

    def race(
        self,
        choices: Sequence[Mapping[str, Any]],
        seconds: float,
        kept: Collection[int] = (),
        tell: Callable[[str], None] = silent,
        names: Sequence[str] = (),
    ) -> dict[int, Run]:
        """Let choices run in turns; return those that ran, by their number. The winner has the most steps. Collective.

        Parameters
        ----------
        choices : sequence of mapping
            The most promising first: the last ones do not run where there is no time.
        seconds : float
            About how long, on rank 0.
        kept : collection of int
            Numbers of choices that run to the end.
        tell : function
            Takes a sentence, after 8, 16, 32 and so on turns.
        names : sequence of str
            Of the choices, for that sentence.
        """
        times: dict[int, list[float]] = {}
        coming = turns(len(choices), seconds, times, kept)
        while True:
            own = np.array(next(coming, _END)) if self.group.rank == 0 else None
            number = int(self.group.broadcast(own, what="whose turn it is in the race of choices"))
            if number == _END:
                return {number: Run.of(found) for number, found in times.items()}
            times.setdefault(number, []).extend(self.turn(choices[number]))
            num_turns = sum(map(len, times.values())) // _STEPS
            if names and num_turns >= 8 and num_turns & (num_turns - 1) == 0:
                lead = max(times, key=lambda each: (len(times[each]), -median(times[each])))
                tell(f"after {num_turns} turns {names[lead]} leads, measured {1e3 * median(times[lead]):.3f} ms a step")

    def _pipeline(self, choice: Mapping[str, Any]) -> Any:
        """Make a pipeline of a choice, where the last one is no more."""
        if any(parameter() is not None for parameter in self._last_parameters):
            gc.collect()  # a layer of the user's knows itself
        given = {**self.question.options, **choice, "check_agreement": False, "check_finite": "off"}
        pipeline = self._make(self.question.model, self.group, **given)
        self._last_parameters = list(map(ref, pipeline.parameters()))
        return pipeline


def turns(
    number: int, seconds: float, times: Mapping[int, Sequence[float]], kept: Collection[int] = ()
) -> Iterator[int]:
    """Yield which of some choices runs next.

    First each has a turn, or several; then, again and again, the faster half has twice as many as before. Their order
    changes: what ran before leaves its mark on caches and memory.

    Parameters
    ----------
    number : int
        Of choices.
    seconds : float
        After which the race ends. A fifth of them is for the first turns: choices that had none by then are out.
    times : mapping of int to sequence of float
        What the choices took so far, as it stands whenever the next one is asked for.
    kept : collection of int
        These have as many turns as the fastest.

    Examples
    --------
    >>> from itertools import islice
    >>> list(islice(turns(3, seconds=60, times={}, kept=[2]), 3))
    [2, 0, 1]
    """
    begun, rivals, chance = perf_counter(), list[int](), Random(0)

    def shuffled(choices: list[int]) -> list[int]:
        return chance.sample(choices, len(choices))

    for choice in [*kept, *(each for each in range(number) if each not in kept)]:
        if rivals and perf_counter() - begun > _FIRST_TURNS * seconds:
            break
        yield choice
        rivals += [choice] if choice not in kept else []
    num_turns = 1
    while perf_counter() - begun < _FIRST_TURNS * seconds:
        num_turns += 1
        yield from shuffled([*kept, *rivals])
    while len(rivals) > 2 or num_turns < _LAST_TURNS:
        num_turns *= 2
        rivals = sorted(rivals, key=lambda choice: median(times[choice]))[: max(2, -(-len(rivals) // 2))]
        for _ in range(num_turns):
            if perf_counter() - begun > seconds:
                return
            yield from shuffled([*kept, *rivals])


def _shared(group: ProcessGroup, given: Any) -> Any:
    """Return, on every rank, what the lowest rank has that has some. Collective."""
    has_some = [bool(flag) for flag in group.all_gather(np.array(given is not None), what=_WHAT)]
    if True not in has_some:
        return None
    root = has_some.index(True)
    own = samples(given, "sample") if group.rank == root else None
    parts = own.parts if isinstance(own, Pieces) else [own]
    size = group.broadcast(np.array([len(parts), isinstance(own, Pieces)]) if own is not None else None, root)
    found = [_shared_part(group, root, parts[i] if own is not None else None) for i in range(int(size[0]))]
    return Microbatches(found) if size[1] else found[0]


def _shared_part(group: ProcessGroup, root: int, own: Samples | None) -> Any:
    message = replicated = None
    if own is not None:
        message = Payload(own.arrays, [True] * len(own.arrays), own.form).to_message()
        replicated = np.array([i in own.replicated for i in range(len(own.arrays))])
    payload = Payload.from_message(group.broadcast(message, root, what=_WHAT))
    replicated = group.broadcast(replicated, root, what=_WHAT)
    return payload.rebuilt([Replicated(a) if alone else a for a, alone in zip(payload.arrays, replicated)])

"""Orders as a search sees them: is one possible, how long does it take, and what is its critical path?"""

from __future__ import annotations

from collections.abc import Sequence
from random import Random

from minipipe.schedules.action import Action, ActionKind
from minipipe.schedules.analysis.activations import held_memory
from minipipe.schedules.analysis.workload import fits
from minipipe.schedules.search.list_scheduling import Facts, Word

F, I, W = ActionKind.FORWARD, ActionKind.BACKWARD_INPUT, ActionKind.BACKWARD_WEIGHT
_REACH = 6  # places by which an action is moved, at most


def moved(word: Word, position: int, target: int) -> Word:
    """Return a word with the action of one position at another.

    Examples
    --------
    >>> moved([(F, 0), (F, 1), (F, 2)], 2, 0)[0]
    (<ActionKind.FORWARD: 'F'>, 2)
    """
    others = [*word[:position], *word[position + 1 :]]
    others.insert(min(max(target, 0), len(others)), word[position])
    return others


def with_any_move(word: Word, random: Random) -> Word:
    """Return a word with one action moved by a few places."""
    position = random.randrange(len(word))
    return moved(word, position, position + random.choice((-1, 1)) * random.randint(1, _REACH))


def without_delay(word: Word, position: int, random: Random) -> Word:
    """Return a word in which an action comes before the one that delays it.

    It moves forward by a few places, or a W that delays it moves back, which may be far: memory alone urges a W.
    """
    if word[position - 1][0] is W and random.random() < 0.7:
        return moved(word, position - 1, random.randint(position, len(word) - 1))
    return moved(word, position, position - random.randint(1, _REACH // 2))


def is_possible(word: Word, rank: int, facts: Facts) -> bool:
    """Tell whether a rank's word keeps F before I before W, and its limit of memory."""
    done = dict.fromkeys(facts.before, 0)
    for cell in word:
        done[cell] += 1
        before = facts.before[cell]
        if before is not None and done[cell] > done[before]:
            return False
    limit = facts.workload.memory_limit[rank]
    levels = held_memory([Action(stage, kind, 0) for kind, stage in word], facts.workload.footprint)
    return all(fits(during, limit) for during, _ in levels)


class TimedOrder:
    """The times of an order in which every action starts as early as it can, as the simulator has them.

    A search times thousands of orders, and asks for nothing but ends and the critical path; that takes a fraction of
    the time of a whole timeline. The tests compare both, and what is found is simulated.

    Attributes
    ----------
    words : list of Word
    begins, ends : list of float
        By rank.
    is_complete : bool
        Whether all actions ran; otherwise the ranks deadlock.
    """

    def __init__(self, words: Sequence[Word], facts: Facts) -> None:
        self.words, self._facts = list(words), facts
        num_stages, num_ranks = len(facts.rank_of), len(words)
        self._available: dict[ActionKind, list[list[float]]] = {k: [[] for _ in range(num_stages)] for k in (F, I)}
        self._available[F][0] = [0.0] * facts.num_microbatches
        self._sources: dict[ActionKind, list[list[tuple[int, int]]]] = {
            k: [[] for _ in range(num_stages)] for k in (F, I)
        }  # beside each time at which a value is available, the (rank, position) of its producer
        self._taken = {kind: [0] * num_stages for kind in (F, I)}
        self._awaited: list[list[tuple[int, int] | None]] = [[] for _ in words]  # by position: for whom it waited
        self.begins, self.ends, self._free = ([0.0] * num_ranks for _ in range(3))
        ready = [*range(num_ranks)]
        while ready:
            ready += self._run(ready.pop())
        self.is_complete = all(len(done) == len(word) for done, word in zip(self._awaited, words))

    def _run(self, rank: int) -> set[int]:
        """Run a rank as far as it can; return the ranks to which it has sent something. The hot loop."""
        word, facts, overhead = self.words[rank], self._facts, self._facts.workload.overhead
        available, sources, awaited, taken = self._available, self._sources, self._awaited[rank], self._taken
        free, reached = self._free[rank], set()
        for position in range(len(awaited), len(word)):
            kind, stage = word[position]
            start, source = free, None
            if kind is not W:
                there, k = available[kind][stage], taken[kind][stage]
                if k == len(there):
                    break
                taken[kind][stage] = k + 1
                if there[k] > start:
                    start, source = there[k], sources[kind][stage][k]
            awaited.append(source)
            end = start + facts.times[kind][stage]
            if (kind, stage) in facts.consumer:
                receiver, in_flight = facts.consumer[kind, stage]
                available[kind][receiver].append(end + in_flight)
                sources[kind][receiver].append((rank, position))
                reached.add(facts.rank_of[receiver])
            elif kind is F:
                available[I][stage].append(end)
                sources[I][stage].append((rank, position))
            if not position:
                self.begins[rank] = start
            self.ends[rank], free = end, end + overhead
        self._free[rank] = free
        return reached - {rank}

    def delays(self, rank: int) -> list[tuple[int, int]]:
        """Return the (rank, position) of critical actions that waited for the action before them on their rank.

        The critical path leads from the last action of a rank to what it waited for, and so on. To shorten it, one of
        these actions has to come earlier, or the one before it later.
        """
        found, position = [], len(self.words[rank]) - 1
        while position >= 0:
            source = self._awaited[rank][position]
            if source is not None:
                rank, position = source
                continue
            if position and self.words[rank][position] != self.words[rank][position - 1]:
                found.append((rank, position))
            position -= 1
        return found

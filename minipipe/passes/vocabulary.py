"""The output layer of a large vocabulary, divided by its words over all ranks of a
pipeline: vocabulary parallelism.

The layer that maps hidden states to the scores of V words, and its cross-entropy, would
make the last stage slower than the others. Here each rank has V/p words, and two
instructions for each microbatch: S computes its scores, their maximum and the sum of
their exponentials, T the gradients that need the sums of all ranks::

    rank 0             ARRIVE S SUM_S       T SUM_T
    rank 1   F SPREAD         S SUM_S       T SUM_T        B
                              '- barrier    '- barrier     needs the gradient of F's result

======  ======================================================================
SPREAD  the last stage sends a hidden state and its labels to all ranks
ARRIVE  another rank gets them
S       scores of its words, their maximum and the sum of exponentials
SUM_S   all ranks exchange these: the first barrier
T       gradients of its weights, and its part of the hidden state's gradient
SUM_T   the last stage adds up these parts: the second barrier
======  ======================================================================

No rank waits at a barrier; the instruction that takes its result does. With one barrier
S also computes two parts of the hidden state's gradient, before the sums are known;
SUM_S scales and adds them, and there is no SUM_T. A microbatch passes each barrier while
its ranks compute others, so each barrier makes each rank hold one microbatch more.

A timeline knows no barriers: it counts the time for which a rank waits at one as
overhead. The embedding stays on the first rank, unlike in the paper.

References
----------
Yeung et al. (2024), "Balancing pipeline parallelism with vocabulary parallelism",
arXiv 2411.05288: section 4, algorithm 1 (two barriers) and algorithm 2 (one).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from functools import partial

from minipipe.core.framing import OF_GRADIENTS, OF_RESULTS, given, stays
from minipipe.core.schedules.action import Action, ActionKind, B, F, I, W
from minipipe.core.schedules.action_table import Schedule, check_table
from minipipe.core.specs import Spec
from minipipe.core.values import (
    KINDS,
    NOUNS,
    Kind,
    Meeting,
    Noun,
    Site,
    Uses,
    Value,
)
from minipipe.errors import ScheduleError, misuse

_BARRIERS = Spec(int, minimum=1, maximum=2, error=ScheduleError.of)
_TIMES = {F: 1.0, B: 2.0, I: 1.0, W: 1.0, "S": 1.0, "T": 1.0}
"""The times by which the order of a row is chosen."""

# -- values ----------------------------------------------------------------------------

_NOUNS = {
    "hidden sent": Noun("message with a hidden state", travels=True),
    "hidden": Noun("hidden state"),
    "scores": Noun("scores of its words"),
    "statistics": Noun("maximum and sum of its scores"),
    "totals": Noun("maxima and sums of all scores"),
    "part": Noun("part of the gradient of a hidden state"),
    "words dw": Noun("gradients of its words", may_stay=stays),
    "scored": Noun("loss of a microbatch", may_stay=stays),
}


def _is_last(site: Site) -> bool:
    return site.stage == site.setting.num_stages - 1


def _spread(site: Site) -> Uses | None:
    if not _is_last(site):
        return None
    sent = tuple(site.value("hidden sent", stage) for stage in range(site.stage))
    return Uses((site.value("result"),), (*sent, site.value("hidden")))


def _arrive(site: Site) -> Uses | None:
    if _is_last(site):
        return None
    return Uses((site.value("hidden sent"),), (site.value("hidden"),))


def _scores(site: Site) -> Uses:
    gives = (site.value("scores"), site.value("statistics"))
    return Uses((site.value("hidden"),), gives)


def _sum_scores(site: Site) -> Uses:
    gives = [site.value("totals")]
    if _is_last(site) and "SUM_T" not in site.setting.kinds:
        gives.append(site.value("g"))
    return Uses((site.value("statistics"),), tuple(gives))


def _gradients(site: Site) -> Uses:
    gives = [site.value("words dw")]
    if "SUM_T" in site.setting.kinds:
        gives.append(site.value("part"))
    if _is_last(site):
        gives.append(site.value("scored"))
    return Uses((site.value("scores"), site.value("totals")), tuple(gives))


def _sum_gradients(site: Site) -> Uses:
    gives: tuple[Value, ...] = ()
    if _is_last(site):
        gives = (site.value("g"),)
    return Uses((site.value("part"),), gives)


def _all_ranks(name: str, site: Site) -> Meeting:
    return Meeting((name, site.microbatch), site.setting.num_ranks)


_beside = partial(Kind, lane="")
_KINDS = (
    _beside("SPREAD", _spread, "send of a hidden state to all ranks"),
    _beside("ARRIVE", _arrive, "receive of a hidden state"),
    Kind("S", _scores, "scores of the words of a rank", time="S"),
    _beside(
        "SUM_S",
        _sum_scores,
        "exchange of maxima and sums of scores",
        time="latency",
        meets=partial(_all_ranks, "SUM_S"),
    ),
    Kind("T", _gradients, "gradients of the words of a rank", time="T"),
    _beside(
        "SUM_T",
        _sum_gradients,
        "sum of the gradients of a hidden state",
        time="latency",
        meets=partial(_all_ranks, "SUM_T"),
    ),
)
OF_VOCABULARY = {kind.name: kind for kind in _KINDS}
"""The kinds of vocabulary parallelism, by name."""


def _gradients_of_words(site: Site) -> tuple[Value, ...]:
    """Return the values that show that gradients of the words of a rank are complete."""
    values: list[Value] = []
    for stage in site.setting.local_stages(site.rank):
        values += given(site, stage, "words dw", ("T",))
    return tuple(values)


def _scored(site: Site) -> tuple[Value, ...] | None:
    """Return the losses that the delivery takes instead of results of the last stage."""
    if "S" not in site.setting.kinds:
        return None
    return given(site, site.setting.num_stages - 1, "scored", ("T",))


def _backward(declare: Callable[[Site], Uses | None], site: Site) -> Uses | None:
    """Declare a B or I: also the last stage takes the gradient of its result."""
    uses = declare(site)
    if uses is None or "SUM_S" not in site.setting.kinds or not _is_last(site):
        return uses
    state, *others = uses.takes
    return uses._replace(takes=(state, site.value("g"), *others))


KINDS.update(OF_VOCABULARY)
for _name in (B, I):
    _kind = KINDS[_name]
    KINDS[_name] = _kind._replace(uses=partial(_backward, _kind.uses))
NOUNS.update(_NOUNS)
OF_GRADIENTS.append(_gradients_of_words)
OF_RESULTS.append(_scored)

# -- the pass --------------------------------------------------------------------------


def vocabulary(schedule: Schedule, num_barriers: int = 2) -> Schedule:
    """Return a schedule whose output layer is divided over all ranks.

    Local; no messages. Each backward comes as many forwards later in its row as there
    are barriers. Then S and T are inserted as early as their rank can run them.

    Parameters
    ----------
    schedule : Schedule
        With one stage on each rank, and F, B, I and W only, such as 1F1B.
    num_barriers : int
        1 or 2.

    Raises
    ------
    ScheduleError
        Code ``value``, for another number of barriers or a schedule that does not fit.

    Examples
    --------
    >>> from minipipe import schedules
    >>> print(vocabulary(schedules.one_f_one_b(2, 2), num_barriers=1))
    # 1f1b-vocabulary: 2 ranks, 2 stages, 2 microbatches
    rank 0: 0F0 0F1 0ARRIVE0 0S0 0SUM_S0 0T0 0ARRIVE1 0S1 0SUM_S1 0T1 0B0 0B1
    rank 1: 1F0 1SPREAD0 1S0 1SUM_S0 1T0 1F1 1SPREAD1 1S1 1SUM_S1 1T1 1B0 1B1
    """
    check_table(schedule, Schedule)
    _BARRIERS.check("num_barriers", num_barriers)
    is_plain = schedule.kinds <= {F, B, I, W} and schedule.num_slices == 1
    places = tuple(range(schedule.num_ranks))
    if tuple(schedule.placement) != places or not is_plain or schedule.overlaps:
        raise misuse(
            f"{schedule.title} does not divide an output layer: expected stage i on rank "
            "i alone, and F, B, I and W of whole microbatches, as in '1f1b' or 'zb-h1'."
        )
    if schedule.frozen or schedule.is_forward_only:
        raise misuse(f"{schedule.title} has stages without a backward or without W.")
    rows = [_delayed(row, num_barriers) for row in schedule.actions]
    placed = _Placing(rows, num_barriers, schedule.num_microbatches).rows()
    named = replace(schedule, name=f"{schedule.name}-vocabulary")
    return named.with_rows(Schedule, placed)


def _delayed(row: Sequence[Action], delay: int) -> list[Action]:
    """Return a row in which backwards come some forwards later."""
    forwards = [action for action in row if action.kind is F]
    found: list[Action] = []
    num_before = num_placed = 0
    for action in row:
        if action.kind is F:
            num_before += 1
            continue
        due = min(len(forwards), num_before + delay)
        found += forwards[num_placed:due]
        num_placed = max(num_placed, due)
        found.append(action)
    return found


class _Placing:
    """Places S and T in rows: it runs all ranks, each of which prefers T to S, and S to
    the next action of its row.

    Another rank never waits then for what a rank has placed behind its S or T: a rank
    that is free comes to a barrier at once.
    """

    def __init__(
        self,
        rows: Sequence[Sequence[Action]],
        num_barriers: int,
        num_microbatches: int,
    ) -> None:
        self.given = rows
        self.num_microbatches = num_microbatches
        self.last = len(rows) - 1
        self.sums = ["SUM_S"]
        if num_barriers == 2:
            self.sums.append("SUM_T")
        self.barrier = self.sums[-1][-1]  # the kind before the last barrier
        self.free = [0.0] * len(rows)
        self.ends: dict[tuple[int, str, int], float] = {}
        self.next = [{"row": 0, "S": 0, "T": 0} for _ in rows]

    def rows(self) -> list[list[Action]]:
        """Return the rows with S and T, and the messages around them."""
        rows: list[list[Action]] = [[] for _ in self.given]
        of_words = 2 * len(rows) * self.num_microbatches
        for _ in range(sum(map(len, self.given)) + of_words):
            found = min(self._candidates(), default=None)
            if found is None:
                raise misuse("The rows wait for each other once backwards come later.")
            start, rank, _, queue, (kind, k) = found
            end = start + _TIMES[kind]
            self.free[rank] = self.ends[rank, kind, k] = end
            self.next[rank][queue] += 1
            rows[rank] += self._with_messages(rank, kind, k)
        return rows

    def _candidates(self) -> Iterator[tuple[float, int, int, str, tuple[str, int]]]:
        """Yield, for each rank, what it can run next and when."""
        for rank, row in enumerate(self.given):
            heads = self.next[rank]
            queues = [("T", heads["T"]), ("S", heads["S"])]
            runs = [(k, name) for name, k in queues if k < self.num_microbatches]
            options = [(name, (name, k)) for k, name in runs]
            if heads["row"] < len(row):
                action = row[heads["row"]]
                options.append(("row", (str(action.kind), int(action.microbatch))))
            for priority, (queue, (kind, k)) in enumerate(options):
                ready = self._ready(rank, kind, k)
                if ready is not None:
                    start = max(self.free[rank], ready)
                    yield start, rank, priority, queue, (kind, k)

    def _ready(self, rank: int, kind: str, k: int) -> float | None:
        """Return when an instruction can start; None if that is not known yet."""
        needs: list[tuple[int, str, int]] = []
        everyone = range(len(self.given))
        if kind == F and rank > 0:
            needs = [(rank - 1, F, k)]
        elif kind == "S":
            needs = [(self.last, F, k)]
        elif kind == "T":
            needs = [(other, "S", k) for other in everyone]
        elif kind in (B, I) and rank == self.last:
            needs = [(other, self.barrier, k) for other in everyone]
        elif kind in (B, I):
            needs = [(rank + 1, kind, k)]
        if any(need not in self.ends for need in needs):
            return None
        return max((self.ends[need] for need in needs), default=0.0)

    def _with_messages(self, rank: int, kind: str, k: int) -> Iterator[Action]:
        """Yield an instruction with the messages before and behind it."""
        if kind == "S" and rank != self.last:
            yield Action(rank, ActionKind("ARRIVE"), k)
        yield Action(rank, ActionKind(kind), k)
        if kind == F and rank == self.last:
            yield Action(rank, ActionKind("SPREAD"), k)
        if f"SUM_{kind}" in self.sums:
            yield Action(rank, ActionKind(f"SUM_{kind}"), k)

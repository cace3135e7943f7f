"""Timelines: the start and the end of every action on every rank, predicted or
measured.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from itertools import chain
from typing import TYPE_CHECKING, Any

from minipipe.core.flow import Flow
from minipipe.core.memory import Level, pairs_of
from minipipe.core.schedules.action import U, number_of
from minipipe.core.schedules.analysis.dependencies import Transfer
from minipipe.core.schedules.written import ShownInNotebooks
from minipipe.io import printable
from minipipe.schedules.analysis.activations import held_over_time, without_copies
from minipipe.schedules.analysis.copies import copies_held
from minipipe.schedules.simulation.ran import Ran
from minipipe.schedules.simulation.span import (
    GradientSum,
    Idle,
    IdleCause,
    Message,
    Span,
    StepChange,
    in_groups,
)

if TYPE_CHECKING:
    from minipipe.schedules.simulation.explanation import Explanation

_MOST = 1e15  # of any unit: from here on a power of ten is clearer than all digits


def format_time(time: float, unit: str) -> str:
    """Write a time in the unit of a timeline; seconds as milliseconds.

    Parameters
    ----------
    time : float
    unit : str
        ``"s"``, or any other, which is written after the number.

    Examples
    --------
    >>> format_time(0.0125, "s"), format_time(33.0, "units")
    ('12.5 ms', '33 units')

    No digit before the point is hidden in a power of ten.

    >>> format_time(22.8041, "s")
    '22804 ms'
    """
    number = format_number(time, unit)
    if unit == "s":
        return f"{number} ms"
    return f"{number} {unit}"


def format_number(time: float, unit: str) -> str:
    """Write a time as :func:`format_time` does, without the unit.

    Examples
    --------
    >>> format_number(0.0125, "s"), format_number(33.0, "units")
    ('12.5', '33')
    """
    digits = 6
    if unit == "s":
        time *= 1000
        digits = 4
    if 10**digits - 0.5 <= time < _MOST:
        return f"{time:.0f}"
    return f"{time:.{digits}g}"


_MOST_LISTED = 8  # ranks: for more, only the largest and the smallest amount are shown
ONE_UNIT = "microbatches over all stages of a rank"
"""The unit in which drawings and tables count activations: the (stage, microbatch)
pairs of all stages of a rank.
"""


_FIGURES = (
    *("num_ranks", "unit", "num_steps", "makespan", "time_of_further_step"),
    *("bubble_fraction", "bubble_over_ideal", "span_bubble_rate"),
)


@dataclass(frozen=True, repr=False)
class Timeline(ShownInNotebooks):
    """The start and the end of every action on every rank, predicted or measured.

    Attributes
    ----------
    name : str
        The schedule's name.
    spans : tuple of tuple of Span
        ``spans[rank]``, in order of execution. Two overlapped actions have the same
        times. SEND and RECV have spans only if sends block.
    peak_activations : tuple of int
        By rank: the largest number of (stage, microbatch) pairs whose activations were
        held at once.
    peak_memory : tuple of float or None
        By rank: the peak memory of the activations held, if known.
    unit, memory_unit : str
        ``"s"`` for seconds, ``"bytes"`` for bytes, ``"units"`` for the units of the
        costs.
    note : str
        A remark on the interpretation of the times.
    message_times : tuple of float
        By stage: the time in flight of a message to the next stage, and of the gradient
        back. Empty if unknown.
    sent : dict of Transfer to (float, int, int)
        For values with a SEND of their own: the arrival time, the sending rank, and the
        index of that rank's last span before the SEND.
    arrived : dict of Transfer to float
        When messages arrived in a simulation in which ranks share cores or links; empty
        otherwise.
    memory : tuple of tuple of float or None
        ``memory[rank][i]`` is the memory of the activations held after span ``i`` of
        the rank, if known.
    memory_during : tuple of tuple of float or None
        ``memory_during[rank][i]`` is the most memory that the rank held while its span
        ``i`` ran, known where ``memory`` is. A backward that recomputes may hold more
        than before and after it.
    measured_messages : tuple of Message
        The messages of a measured timeline.
    is_measured : bool
        Whether the timeline is measured; otherwise it is predicted.
    step_changes : tuple of tuple of StepChange
        By rank, its changes from one training step to the next; empty for one step.
        Microbatch k of step s has the number ``s * num_microbatches + k``.
    sums : tuple of GradientSum
        The gradient all-reduces over replicas, in the order of their microbatches. They
        have no spans, because a rank continues meanwhile.
    copies : tuple of tuple of Span
        By rank, its O and L: copies concurrent with its computations. Empty if there
        are none.
    num_slices : int
        The number of slices of a sequence; 1 if microbatches are whole.

    Examples
    --------
    >>> from minipipe import schedules, simulate
    >>> timeline = simulate(schedules.one_f_one_b(2, 4))
    >>> print(timeline)
    1f1b: makespan 15 units, bubble 20.0 %, peak activations by rank 2, 1
    >>> [timeline.busy(rank) for rank in range(2)], timeline.own_span(1)
    ([12.0, 12.0], 12.0)
    """

    name: str
    spans: tuple[tuple[Span, ...], ...]
    peak_activations: tuple[int, ...]
    peak_memory: tuple[float, ...] | None = None
    unit: str = "units"
    memory_unit: str = "bytes"
    note: str = ""
    message_times: tuple[float, ...] = ()
    sent: dict[Transfer, tuple[float, int, int]] = field(
        default_factory=dict, compare=False
    )
    memory: tuple[tuple[float, ...], ...] | None = None
    memory_during: tuple[tuple[float, ...], ...] | None = None
    measured_messages: tuple[Message, ...] = ()
    is_measured: bool = False
    step_changes: tuple[tuple[StepChange, ...], ...] = ()
    arrived: dict[Transfer, float] = field(default_factory=dict, compare=False)
    sums: tuple[GradientSum, ...] = ()
    copies: tuple[tuple[Span, ...], ...] = ()
    num_slices: int = 1

    def __post_init__(self) -> None:
        # the name may come from a file
        for text in ("name", "unit", "memory_unit", "note"):
            object.__setattr__(self, text, printable(getattr(self, text)))

    @property
    def num_ranks(self) -> int:
        """The number of ranks."""
        return len(self.spans)

    @property
    def num_steps(self) -> int:
        """The number of training steps."""
        if not self.step_changes:
            return 1
        return 1 + len(self.step_changes[0])

    @property
    def time_of_further_step(self) -> float:
        """The mean time of a step after the first one, from end to end; with a single
        step, its time.

        Examples
        --------
        >>> from minipipe import schedules, simulate
        >>> [
        ...     simulate(schedules.zb_h2(4, 8), num_steps=n).time_of_further_step
        ...     for n in (1, 2, 5)
        ... ]
        [27.0, 24.0, 24.0]
        """
        first_step = [row[: len(row) // self.num_steps] for row in self.spans]
        ends = [each.end for each in self.sums[: len(self.sums) // self.num_steps]]
        spans = chain.from_iterable(first_step)
        end = max(chain((span.end for span in spans), ends), default=0.0)
        if self.num_steps == 1:
            return self.makespan
        return (self.end - end) / (self.num_steps - 1)

    @cached_property
    def start(self) -> float:
        """The earliest start on any rank."""
        return min((span.start for row in self.spans for span in row), default=0.0)

    @cached_property
    def end(self) -> float:
        """The latest end on any rank, including all-reduces and copies."""
        spans = (span.end for row in (*self.spans, *self.copies) for span in row)
        return max(chain(spans, (each.end for each in self.sums)), default=0.0)

    @property
    def makespan(self) -> float:
        """The time from the earliest start to the latest end."""
        return self.end - self.start

    def busy(self, rank: int) -> float:
        """Return the computing time of a rank. Two overlapped actions count once."""
        groups = in_groups(self._computed(rank))
        return sum(group[-1].end - group[0].start for group in groups)

    def own_span(self, rank: int) -> float:
        """Return the time between the first start and the last end of a rank's own
        computations.
        """
        row = self._computed(rank)
        if not row:
            return 0.0
        return row[-1].end - row[0].start

    def _computed(self, rank: int) -> list[Span]:
        spans = self.spans[rank]
        return [span for span in spans if not span.action.kind.is_communication]

    @property
    def _work(self) -> float:
        return sum(map(self.busy, range(self.num_ranks)))

    def idle_within_span(self, rank: int) -> float:
        """Return the idle time between the first start and the last end of a rank's own
        computations.
        """
        return self.own_span(rank) - self.busy(rank)

    @property
    def bubble_fraction(self) -> float:
        """The idle fraction of the total time, idle / (num_ranks * makespan):
        (p-1)/(m+p-1) for GPipe and 1F1B.
        """
        available = self.num_ranks * self.makespan
        if not available:
            return 0.0
        return 1 - self._work / available

    @property
    def bubble_over_ideal(self) -> float:
        """Idle time over work, Megatron's convention: (p-1)/m for GPipe and 1F1B,
        (p-1)/(m v) interleaved.
        """
        work = self._work
        if not work:
            return 0.0
        return self.num_ranks * self.makespan / work - 1

    @property
    def cost(self) -> float:
        """The longest own span of any rank, the cost in the zero-bubble papers."""
        return max(map(self.own_span, range(self.num_ranks)), default=0.0)

    @property
    def span_bubble_rate(self) -> float:
        """The bubble rate of the zero-bubble papers: (span - work) / span of the rank
        with the longest own span.
        """
        spans = list(map(self.own_span, range(self.num_ranks)))
        longest = max(spans, default=0.0)
        if not longest:
            return 0.0
        return self.idle_within_span(spans.index(longest)) / longest

    # -- waits and messages ------------------------------------------------------------

    @cached_property
    def _explanation(self) -> Explanation:
        # on demand: a drawing as text needs none
        from minipipe.schedules.simulation.explanation import explain

        return explain(self)

    @property
    def idle(self) -> tuple[tuple[Idle, ...], ...]:
        """By rank, its idle times in chronological order, each with its cause."""
        return self._explanation.idle

    @cached_property
    def idle_by_cause(self) -> tuple[dict[str, float], ...]:
        """By rank, its idle time by each :class:`~minipipe.schedules.IdleCause`.

        Examples
        --------
        >>> from minipipe import schedules, simulate
        >>> simulate(schedules.gpipe(2, 1)).idle_by_cause[1]["warm-up"]
        1.0
        """
        by_rank = []
        for slots in self.idle:
            times: dict[str, float] = {cause.value: 0 for cause in IdleCause}
            for slot in slots:
                times[slot.cause.value] += slot.end - slot.start
            by_rank.append(times)
        return tuple(by_rank)

    @property
    def critical_path(self) -> tuple[tuple[int, Span], ...]:
        """The critical path: a chain of (rank, span) up to the latest end, each
        dependent on the one before it.

        The makespan shrinks only if one of these spans, or a message between two of
        them, gets shorter.
        """
        return self._explanation.critical_path

    @property
    def messages(self) -> tuple[Message, ...]:
        """The messages between ranks, in the order of their sends."""
        return self._explanation.messages

    # -- activations held --------------------------------------------------------------

    @cached_property
    def _held(self) -> list[list[Level]]:
        flow = self._explanation.flow
        counts = pairs_of(flow)
        rows = enumerate(flow.table.actions)
        held = []
        for (rank, row), spans in zip(rows, self.spans):
            held.append(without_copies(row, counts.levels(rank))[: len(spans)])
        return held

    @property
    def held_activations(self) -> tuple[tuple[int, ...], ...]:
        """By rank, the number of (stage, microbatch) pairs held after each of its
        spans; see ``peak_activations``.
        """
        return tuple(tuple(int(held) for _, held in row) for row in self._held)

    def memory_over_time(self, rank: int) -> list[tuple[float, float]]:
        """Return (time, memory held) at the start and at the end of each span of a
        rank, a curve of steps; or nothing.

        Examples
        --------
        >>> from minipipe import schedules, simulate
        >>> simulate(schedules.gpipe(1, 1)).memory_over_time(0)
        [(0.0, 1.0), (1.0, 1.0), (1.0, 1.0), (3.0, 0.0)]
        """
        if self.memory is None or self.memory_during is None:
            return []
        levels = zip(self.memory_during[rank], self.memory[rank])
        return list(held_over_time(self.spans[rank], levels))

    def activations_over_time(self, rank: int) -> list[tuple[float, float]]:
        """Return (time, activations held) at the start and at the end of each span of a
        rank: a curve of steps.

        Examples
        --------
        >>> from minipipe import schedules, simulate
        >>> simulate(schedules.gpipe(1, 1)).activations_over_time(0)
        [(0.0, 1), (1.0, 1), (1.0, 1), (3.0, 0)]
        """
        return list(held_over_time(self.spans[rank], self._held[rank]))

    def versions_over_time(self, rank: int) -> list[tuple[float, float]]:
        """Return (time, versions of weights held) at the start and at the end of each
        span: a curve of steps.

        All stages of the rank are counted together. A rank without U has none to show.

        Examples
        --------
        >>> from minipipe import schedules, simulate
        >>> max(
        ...     held
        ...     for _, held in simulate(schedules.pipedream(4, 8)).versions_over_time(0)
        ... )
        4
        """
        actions = [span.action for span in self.spans[rank]]
        if not any(action.kind is U for action in actions):
            return []
        versions = {action.stage: 1 for action in actions if not action.kind.is_of_rank}
        levels: list[Level] = []
        for held in copies_held(Flow(Ran([actions], self.num_slices)), 0):
            totals = []
            for copies in held:
                if copies.stage in versions:
                    versions[copies.stage] = copies.versions
                totals.append(sum(versions.values()))
            levels.append((totals[0], totals[1]))
        return list(held_over_time(self.spans[rank], levels))

    # -- as data, and as text ----------------------------------------------------------

    def summary(self) -> dict[str, Any]:
        """Return the figures as plain data: strings, numbers and lists.

        Examples
        --------
        >>> from minipipe import schedules, simulate
        >>> summary = simulate(schedules.one_f_one_b(4, 8)).summary()
        >>> summary["makespan"], summary["unit"], summary["peak_activations"]
        (33.0, 'units', [4, 3, 2, 1])
        """
        figures = {name: getattr(self, name) for name in _FIGURES}
        origin = "measured" if self.is_measured else "predicted"
        return {
            "name": self.name,
            "origin": origin,
            **figures,
            "peak_activations": list(self.peak_activations),
            "memory_unit": self.memory_unit,
            "peak_memory": list(self.peak_memory or ()),
        }

    def rows(self) -> list[dict[str, Any]]:
        """Return a plain dictionary for each span, rank by rank: for
        ``csv.DictWriter``, JSON or a data frame.

        Examples
        --------
        >>> from minipipe import schedules, simulate
        >>> simulate(schedules.gpipe(2, 1)).rows()[1]
        {'rank': 0, 'stage': 0, 'kind': 'B', 'microbatch': 0, 'start': 4.0, 'end': 6.0, 'held_activations': 0, ...}
        """
        rows: list[dict[str, Any]] = []
        for rank, spans in enumerate(self.spans):
            held = zip(spans, self.held_activations[rank])
            for i, ((action, start, end), count) in enumerate(held):
                row: dict[str, Any] = {"rank": rank, "stage": None}
                row |= {"kind": action.kind.value, "microbatch": None}
                if not action.kind.is_of_rank:
                    row["stage"] = action.stage
                    row["microbatch"] = number_of(action.microbatch, self.num_slices)
                row |= {"start": start, "end": end, "held_activations": count}
                if self.memory is not None:
                    row["memory"] = self.memory[rank][i]
                rows.append(row)
        return rows

    def describe(self) -> str:
        """Return the main figures as one line of text, without the name."""
        return ", ".join(f"{name} {value}" for name, value in self.figures())

    @property
    def pairs_per_microbatch(self) -> int | None:
        """How many (stage, microbatch) pairs each rank has for a microbatch; None if
        their numbers differ.

        Examples
        --------
        >>> from minipipe import schedules, simulate
        >>> [
        ...     simulate(schedules.build(name, 2, 4)).pairs_per_microbatch
        ...     for name in ("1f1b", "zb-v", "chimera")
        ... ]
        [1, 2, 1]
        """
        counts = set()
        for row in self.spans:
            stages: dict[int, set[int]] = {}
            for span in row:
                stage, kind, k = span.action
                if not (kind.is_communication or kind.is_of_rank):
                    stages.setdefault(k, set()).add(stage)
            counts |= set(map(len, stages.values()))
        if len(counts) != 1:
            return None
        return counts.pop() * self.num_slices

    def figures(self, pairs: int | None = None) -> tuple[tuple[str, str], ...]:
        """Return the main figures as text, each with its name: makespan, bubble and
        peak activations.

        Parameters
        ----------
        pairs : int, optional
            How many (stage, microbatch) pairs count as one microbatch, to compare
            timelines with different numbers; by default :attr:`pairs_per_microbatch`.

        Examples
        --------
        >>> from minipipe import schedules, simulate
        >>> simulate(schedules.gpipe(2, 2)).figures()
        (('makespan', '9 units'), ('bubble', '33.3 %'), ('peak activations by rank', '2, 2'))
        >>> simulate(schedules.zb_v(2, 4)).figures()[-1]
        ('peak activations by rank', '2, 2 microbatches over all stages of a rank')
        """
        default = self.pairs_per_microbatch or 1
        per_microbatch = pairs or default
        peaks = by_rank([peak / per_microbatch for peak in self.peak_activations])
        if pairs is not None or default > 1:
            unit = ONE_UNIT
            if peaks == "1":
                unit = unit.replace("es ", " ", 1)
            peaks += f" {unit}"
        return (
            ("makespan", format_time(self.makespan, self.unit)),
            ("bubble", f"{100 * self.bubble_fraction:.1f} %"),
            ("peak activations by rank", peaks),
        )

    def __str__(self) -> str:
        return f"{self.name}: {self.describe()}"

    def __repr__(self) -> str:
        return f"<Timeline {self}>"


def by_rank(
    amounts: Sequence[float], write: Callable[[float], str] = "{:.9g}".format
) -> str:
    """Return amounts by rank as text: all of them, or only the largest and the smallest
    if there are many ranks.

    Examples
    --------
    >>> by_rank([4, 3, 2.5]), by_rank([128] * 64), by_rank(range(64, 0, -1))
    ('4, 3, 2.5', '128 on each', 'at most 64 (rank 0), at least 1 (rank 63)')
    """
    if len(amounts) <= _MOST_LISTED:
        return ", ".join(map(write, amounts))
    most = max(amounts)
    least = min(amounts)
    if most == least:
        return f"{write(most)} on each"
    largest = f"at most {write(most)} (rank {amounts.index(most)})"
    return f"{largest}, at least {write(least)} (rank {amounts.index(least)})"

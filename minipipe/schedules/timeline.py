"""A timeline: who did what, and when. What is predicted and what is measured are of this one type."""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import cached_property
from itertools import accumulate

from minipipe.schedules.action import ActionKind
from minipipe.schedules.duration import format_time
from minipipe.schedules.message import Message
from minipipe.schedules.span import Idle, Span
from minipipe.schedules.waits import Waits

__all__ = ["Timeline"]

F = ActionKind.FORWARD
_HELD = {F: 1, ActionKind.BACKWARD: -1, ActionKind.BACKWARD_WEIGHT: -1}


@dataclass(frozen=True, repr=False)
class Timeline:
    """What every rank did, and when.

    Attributes
    ----------
    name : str
        The schedule's name.
    spans : tuple of tuple of Span
        ``spans[rank]``, in the order in which they ran. SEND and RECV are among them only where sends block.
    peak_activations : tuple of int
        By rank: the most (stage, microbatch) pairs whose activations were held at once.
    peak_memory : tuple of float or None
        By rank: the most memory that they took, where that is known.
    unit, memory_unit : str
        ``"s"`` for seconds, ``"bytes"`` for bytes, ``"units"`` for those of the costs.
    note : str
        What to keep in mind when reading the times.
    message_times : tuple of float
        By stage: the time between its end and the use of its result by the next one. Empty where it is not known.
    sent : dict
        Where SEND stood in the program: by (stage, is a forward, microbatch), when the value arrived, the rank that
        sent it, and how many of its spans, less one, came before.
    memory : tuple of tuple of float or None
        ``memory[rank][i]`` is what the rank held after its span ``i``, where that is known.
    measured_messages : tuple of Message
        What was measured of the messages; empty where they are predicted.
    is_measured : bool
        Whether it happened, or is predicted.

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
    sent: dict[tuple[int, bool, int], tuple[float, int, int]] = field(default_factory=dict, compare=False)
    memory: tuple[tuple[float, ...], ...] | None = None
    measured_messages: tuple[Message, ...] = ()
    is_measured: bool = False

    @property
    def num_ranks(self) -> int:
        """The number of ranks."""
        return len(self.spans)

    @cached_property
    def start(self) -> float:
        """The first start of all ranks."""
        return min((span.start for row in self.spans for span in row), default=0.0)

    @cached_property
    def end(self) -> float:
        """The last end of all ranks."""
        return max((span.end for row in self.spans for span in row), default=0.0)

    @property
    def makespan(self) -> float:
        """From the first start to the last end of all ranks."""
        return self.end - self.start

    def busy(self, rank: int) -> float:
        """Return the time that a rank spent computing."""
        return sum(end - start for action, start, end in self.spans[rank] if not action.kind.is_communication)

    def own_span(self, rank: int) -> float:
        """Return the time between the first start and the last end of a rank's own computations."""
        row = [span for span in self.spans[rank] if not span.action.kind.is_communication]
        return row[-1].end - row[0].start if row else 0.0

    def idle_within_span(self, rank: int) -> float:
        """Return the idle time between the first start and the last end of a rank's own computations."""
        return self.own_span(rank) - self.busy(rank)

    @property
    def bubble_fraction(self) -> float:
        """Idle time over all time: idle / (num_ranks * makespan). GPipe and 1F1B give (p-1)/(m+p-1)."""
        available = self.num_ranks * self.makespan
        return 1 - sum(map(self.busy, range(self.num_ranks))) / available if available else 0.0

    @property
    def bubble_over_ideal(self) -> float:
        """Idle time over work, Megatron's convention: GPipe and 1F1B give (p-1)/m, interleaved (p-1)/(m v)."""
        work = sum(map(self.busy, range(self.num_ranks)))
        return self.num_ranks * self.makespan / work - 1 if work else 0.0

    @property
    def cost(self) -> float:
        """The longest own span of a rank: what the zero-bubble papers call the cost."""
        return max(map(self.own_span, range(self.num_ranks)), default=0.0)

    @property
    def span_bubble_rate(self) -> float:
        """(span - work) / span of the rank whose own span is longest: the bubble rate of the zero-bubble papers."""
        spans = list(map(self.own_span, range(self.num_ranks)))
        longest = max(spans, default=0.0)
        return self.idle_within_span(spans.index(longest)) / longest if longest else 0.0

    # -- who waited for whom: waits.py finds out ---------------------------------------------------------------

    @cached_property
    def _waits(self) -> Waits:
        return Waits(self)

    @cached_property
    def idle(self) -> tuple[tuple[Idle, ...], ...]:
        """By rank, every time in which it computes nothing, with its cause, in order of time."""
        return tuple(tuple(self._waits.idle_of(rank)) for rank in range(self.num_ranks))

    @cached_property
    def critical_path(self) -> tuple[tuple[int, Span], ...]:
        """The chain of (rank, span) that ends last, each of which could only start after the one before it.

        Shorten any of them, or a message between two, and only then may the makespan shrink.
        """
        return self._waits.critical_path()

    @cached_property
    def messages(self) -> tuple[Message, ...]:
        """Every value that went from one rank to another, in the order in which they were sent."""
        return self.measured_messages or tuple(self._waits.messages())

    # -- what was held -----------------------------------------------------------------------------------------

    @property
    def is_forward_only(self) -> bool:
        """Whether there is no backward. Then an activation is held only while its F runs."""
        return not any(span.action.kind.is_backward for row in self.spans for span in row)

    @cached_property
    def held_activations(self) -> tuple[tuple[int, ...], ...]:
        """By rank, how many (stage, microbatch) pairs it holds after each of its spans; see ``peak_activations``."""
        if self.is_forward_only:
            return tuple(tuple(int(span.action.kind is F) for span in row) for row in self.spans)
        return tuple(tuple(accumulate(_HELD.get(span.action.kind, 0) for span in row)) for row in self.spans)

    def __repr__(self) -> str:
        return f"<Timeline {self}>"

    def __str__(self) -> str:
        peak, makespan = ", ".join(map(str, self.peak_activations)), format_time(self.makespan, self.unit)
        return (
            f"{self.name}: makespan {makespan}, bubble {100 * self.bubble_fraction:.1f} %, "
            f"peak activations by rank {peak}"
        )

"""Advice as a value: the choices, the best one, the reasons, and the table.

Each reason is a sentence that compares figures of two rows of the table. It says
whether these were predicted or measured, and names no cause that the figures do not
show.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from html import escape
from math import inf
from typing import Any, NamedTuple

from minipipe.errors import counted
from minipipe.execution.plan import Plan
from minipipe.io import html_table, terminal_width, text_table, wrapped
from minipipe.render.descriptions import format_memory
from minipipe.tuning.weighing import (
    Choice,
    CostModel,
    best_of,
    by_worth,
    described,
    names_left_out,
)

_IDLE = {
    "fill": ("warm-up",),
    "wait": ("waiting", "sending", "overhead"),
    "drain": ("drain",),
}
_TIMES = ("predicted ms", "measured ms")
_HEAD = (
    "schedule",
    "v",
    "microbatches",
    "replicas",
    "partition",
    "recompute",
    *_TIMES,
    "bubble",
    *_IDLE,
    "memory",
    "over bound",
)
_ON_THE_RIGHT = set(range(len(_HEAD))) - {0, 4, 5}
_SHOWN = 10
_SPENT = {
    "warm-up": "before its first action",
    "drain": "after its last action",
    "waiting": "waiting for other ranks",
    "sending": "sending",
    "overhead": "between two actions",
}  # by cause of idle time; the rest is computing
_EQUAL = 0.02  # smaller differences count as none
_BUSY = 0.05  # the fraction of time waiting for a core from which it is reported


def _ms(seconds: float) -> str:
    return f"{1e3 * seconds:.3f} ms"


class Advice:
    """Simulated choices for a model, and the best of them. It prints as a table, and is
    immutable.

    :func:`minipipe.advise` makes it.

    Attributes
    ----------
    choices : tuple of Choice
        All choices, in this order: first the choices within the memory limit, the
        fastest first; choices that ran come before choices that are only predicted.
    best : Choice
        The first of them.
    own : Choice or None
        The program's own choice.
    measured : CostModel
    memory_limit : float
        Bytes of each rank; infinite without a limit.

    Raises
    ------
    ScheduleError
        Code ``memory``, if no choice is within the limit.

    Examples
    --------
    >>> import numpy as np
    >>> from minipipe import Pipeline, advise, nn, spawn
    >>> model, x = (
    ...     nn.Sequential(*(nn.Linear(8, 8) for _ in range(4))),
    ...     np.ones((8, 8), np.float32),
    ... )
    >>> advice = advise(
    ...     model, x, x, loss=nn.MSELoss(), num_ranks=2, messages="assumed", seconds=0
    ... )
    >>> (
    ...     advice.best.is_within_limit,
    ...     advice.best.time == min(choice.time for choice in advice.choices),
    ... )
    (True, True)
    >>> spawn(
    ...     lambda group: (
    ...         Pipeline(model, group, loss=nn.MSELoss(), **advice.options).step(x, x)
    ...         > 0
    ...     ),
    ...     num_ranks=2,
    ... )
    [True, True]
    """

    def __init__(
        self,
        choices: Sequence[Choice],
        measured: CostModel,
        memory_limit: float = inf,
        own: Choice | None = None,
    ) -> None:
        self.best = best_of(choices, memory_limit)
        self.choices = tuple(sorted(choices, key=by_worth))
        self.measured = measured
        self.memory_limit = memory_limit
        self.own = own
        self._reasons = reasons(self.best, self.choices, measured)

    @property
    def options(self) -> Mapping[str, Any]:
        """The best choice as arguments: ``Pipeline(model, group, loss=…,
        **advice.options)``.
        """
        return self.best.options

    @property
    def _times(self) -> tuple[float, float] | None:
        """The measured times of the best choice and the program's own, if both ran."""
        best = self.best.measured
        own = self.own and self.own.measured
        if best is None or own is None:
            return None
        return best, own

    @property
    def reason(self) -> str:
        """Why the best choice is the best: sentences that compare rows of the table."""
        texts = [each.text for each in self._reasons]
        if self._times and self._times[1] <= self._times[0]:
            texts.append("Your own choice is as fast; keep it.")
        return " ".join(texts)

    @property
    def verdict(self) -> str:
        """The best choice in a sentence, with the time of the program's own choice if
        both ran.
        """
        if self._times is None:
            return f"Recommended: {self.summary}"
        best, own = self._times
        if own <= best:
            return f"Recommended: keep your own choice, measured {_ms(own)} per step."
        return f"Recommended: {self.summary} Your own choice: measured {_ms(own)}."

    @property
    def summary(self) -> str:
        """The best choice in a line, with its predicted and measured figures."""
        best = self.best
        text = f"{described(best.candidate)}: predicted {_ms(best.time)} per step"
        if best.measured is not None:
            text += f", measured {_ms(best.measured)}"
        return f"{text}."

    def rows(self) -> list[dict[str, Any]]:
        """Return a plain dictionary for each choice: for csv, JSON or a data frame.
        Times are in seconds.

        Examples
        --------
        >>> import numpy as np
        >>> from minipipe import advise, nn
        >>> model, x = (
        ...     nn.Sequential(nn.Linear(2, 2), nn.Linear(2, 2)),
        ...     np.ones((4, 2), np.float32),
        ... )
        >>> options = {"num_microbatches": 4, "messages": "assumed", "seconds": 0}
        >>> advice = advise(model, x, x, loss=nn.MSELoss(), num_ranks=2, **options)
        >>> sorted({row["schedule"] for row in advice.rows()})
        ['1f1b', 'chimera', 'dualpipe', 'eager-1f1b', 'gpipe', 'sequential', 'zb-h1', 'zb-h2']
        """
        return [choice.row() for choice in self.choices]

    def __repr__(self) -> str:
        count = counted(len(self.choices), "choice")
        return f"<Advice: {count}, predicted {1e3 * self.best.time:.3g} ms per step>"

    def __str__(self) -> str:
        width = terminal_width()
        parts = [*self._ties(), self.reason, self._measured_on()]
        text = wrapped("\n".join(parts), width)
        table = text_table(self._table(), _ON_THE_RIGHT, width)
        return "\n\n".join([wrapped(self.verdict, width), table, text])

    def _repr_html_(self) -> str:
        return html_table(self._table(names_all=True), _ON_THE_RIGHT)

    @property
    def _num_run(self) -> int:
        return sum(choice.measured is not None for choice in self.choices)

    def _shown(self) -> list[list[Choice]]:
        """Return the choices of the table, in groups of the same figures."""
        best_by_name: dict[tuple[str, int], Choice] = {}
        for choice in self.choices:
            if choice.is_within_limit:
                best_by_name.setdefault(_named(choice), choice)
        others = [each.other for each in self._reasons]
        named = [*list(best_by_name.values())[:_SHOWN], *others]
        return _alike([it for it in self.choices if any(it is each for each in named)])

    def _table(self, names_all: bool = False) -> list[tuple[str, ...]]:
        """Return the head, the best choice of each schedule, and the choices of the
        reasons; mark the program's own.
        """
        rows = [_HEAD]
        for first, *others in self._shown():
            name, *cells = _cells(first)
            if names_all:
                alike = (each.candidate.schedule for each in (first, *others))
                name = ", ".join(dict.fromkeys(alike))
            elif others:
                name += f" (+{len(others)})"
            rows.append((name, *cells))
        if self.own is not None:
            rows.append(_cells(self.own, "yours: "))
        left_out = len(_HEAD)
        if self._num_run == 0:
            left_out = _HEAD.index("measured ms")
        return [(*row[:left_out], *row[left_out + 1 :]) for row in rows]

    def _ties(self) -> list[str]:
        """Return a line for each row of several schedules."""
        lines = []
        for first, *others in self._shown():
            if others:
                names = ", ".join(each.candidate.schedule for each in others)
                verb = "has" if len(others) == 1 else "have"
                row = f"{first.candidate.schedule} (+{len(others)})"
                lines.append(f"{row}: {names} {verb} the same figures.")
        return lines

    def _measured_on(self) -> str:
        """Return the costs of messages, how many choices ran, and how noisy the machine
        was.
        """
        messages = self.measured.messages
        best = self.best
        takes = f"A message takes {1e6 * messages.latency:.3g} µs"
        if messages.bandwidth != inf:
            takes += f" and {messages.bandwidth / 1e9:.2g} GB/s"
        takes += f" ({messages.measured_on})"
        if messages.cores is not None:
            cores = counted(float(f"{messages.cores:.3g}"), "core")
            takes += f"; the ranks share about {cores} (fitted)"
        sentences = [f"{takes}."]
        if self._num_run:
            choices = counted(len(self.choices), "choice")
            sentences.append(f"{self._num_run} of {choices} ran in turns.")
        if best.measured is not None:
            half = f"Half of the {counted(best.num_steps, 'step')} of the best"
            sentences.append(f"{half} differ by up to {100 * best.spread:.1f} %.")
        if self.measured.waited > _BUSY:
            waited = f"{100 * self.measured.waited:.0f} % of the layer measurements"
            others = f"during {waited}, other programs had the core"
            sentences.append(f"The machine was busy: {others}.")
        why = "they slice sequences, or update the weights more than once per batch"
        names = ", ".join(names_left_out())
        sentences.append(f"Not considered, because {why}: {names}.")
        return " ".join(sentences)


def _alike(choices: Iterable[Choice]) -> list[list[Choice]]:
    """Return choices in groups whose rows differ in the schedule alone, in the order of
    their first ones.
    """
    groups: dict[tuple[str, ...], list[Choice]] = {}
    for choice in choices:
        groups.setdefault(_cells(choice)[1:], []).append(choice)
    return list(groups.values())


def _cells(choice: Choice, mark: str = "") -> tuple[str, ...]:
    """Return the row of a choice. Idle time by cause is in percent of the ranks'
    time.
    """
    candidate = choice.candidate
    idle = (sum(choice.idle.get(each, 0.0) for each in of) for of in _IDLE.values())
    recomputes = "yes" if candidate.recompute else "no"
    measured = ""
    if choice.measured is not None:
        measured = f"{1e3 * choice.measured:.3f}"
    memory = format_memory(max(choice.memory), "bytes")
    if not choice.is_within_limit:
        memory += " !"
    return (
        mark + candidate.schedule,
        str(candidate.chunks_per_rank),
        str(candidate.num_microbatches),
        str(candidate.replicas),
        candidate.cut,
        recomputes,
        f"{1e3 * choice.time:.3f}",
        measured,
        f"{100 * choice.bubble_fraction:.1f} %",
        *(f"{100 * part:.1f}" for part in idle),
        memory,
        f"{100 * choice.gap:.1f} %",
    )


# -- reasons ---------------------------------------------------------------------------


class Reason(NamedTuple):
    """A sentence about the best choice and another one.

    Attributes
    ----------
    text : str
    other : Choice
        The other choice; the table has a row for each choice that a sentence mentions.
    """

    text: str
    other: Choice


def reasons(
    best: Choice, choices: Sequence[Choice], cost_model: CostModel
) -> list[Reason]:
    """Compare the best choice with others.

    Parameters
    ----------
    best : Choice
    choices : sequence of Choice
        All, the best among them.
    cost_model : CostModel
    """
    within = [choice for choice in choices if choice.is_within_limit]
    allowed = sorted(within, key=by_worth)
    result = list(_another(best, allowed))
    result += [*_about_microbatches(best, allowed, cost_model), *_limit(best, choices)]
    noise = _noise(best)
    is_said = False
    # the noise is of the best choice, so one sentence says it
    for index, (text, other) in enumerate(result):
        if is_said:
            result[index] = Reason(text.replace(noise, ""), other)
        is_said |= noise in text
    return result


def _noise(best: Choice) -> str:
    steps = f"the steps of {best.candidate.schedule} alone"
    return f"; {steps} differ by {100 * best.spread:.1f} %"


def _another(best: Choice, allowed: Sequence[Choice]) -> Iterator[Reason]:
    """Compare with 1F1B at its best or, if that is the best of all or runs the same,
    with the next best schedule.
    """
    others = [choice for choice in allowed if _named(choice) != _named(best)]
    others.sort(key=lambda choice: _named(choice) != ("1f1b", 1))
    for other in others[:1]:
        if best.program == other.program:
            names = f"{best.candidate.schedule} and {other.candidate.schedule}"
            yield Reason(f"{names} are the same program here.", other)
    for other in [choice for choice in others if choice.program != best.program][:1]:
        yield Reason(f"{compared(best, other)}.", other)
        spent = _spent(best, other)
        if spent:
            yield Reason(spent, other)


def compared(best: Choice, other: Choice) -> str:
    """Return which of two choices is the faster one: measured if both ran, otherwise
    predicted.

    Parameters
    ----------
    best, other : Choice
    """
    both_ran = best.measured is not None and other.measured is not None

    def time(choice: Choice) -> float:
        if both_ran:
            return choice.measured or 0.0
        return choice.time

    first, second = sorted((best, other), key=time)
    less = 0.0
    if time(second):
        less = 1 - time(first) / time(second)
    name = _name(first, second)
    beside = _name(second, first)
    was = "is predicted"
    were = "are predicted"
    if both_ran:
        was = "was measured"
        were = "were measured"
    if less < _EQUAL:
        within = f"{-(-1000 * less // 1) / 10:.1f} %"  # rounded up
        return f"{name} and {beside} {were} to take the same time, within {within}"
    text = f"{name} {was} to take {100 * less:.1f} % less than {beside}"
    if not both_ran and first is not best:
        text += ", but was not run"
    elif first is not best and first.num_steps < best.num_steps:
        text += f", in {counted(first.num_steps, 'step')} of {best.num_steps}"
    if both_ran and less < best.spread:
        text += _noise(best)
    return text


def _named(choice: Choice) -> tuple[str, int]:
    return choice.candidate.schedule, choice.candidate.replicas


def _name(choice: Choice, beside: Choice) -> str:
    """Return the name of a choice, with the numbers of replicas and microbatches if the
    other one has others.
    """
    own = choice.candidate
    other = beside.candidate
    text = choice.candidate.schedule
    if own.replicas != other.replicas:
        text += f" in {counted(own.replicas, 'replica')}"
    if own.num_microbatches != other.num_microbatches:
        text += f" with {counted(own.num_microbatches, 'microbatch')}"
    return text


def _spent(best: Choice, other: Choice) -> str:
    """Return the part of a step in which a rank is predicted to save the most time,
    compared with a slower choice.
    """
    spent = []
    for each in (best, other):
        causes = {label: each.idle.get(cause, 0.0) for cause, label in _SPENT.items()}
        parts = {"computing": 1 - each.bubble_fraction, **causes}
        spent.append({label: each.time * part for label, part in parts.items()})
    label = max(spent[0], key=lambda each: spent[1][each] - spent[0][each])
    of_best, of_other = (f"{1e3 * each[label]:.3f}" for each in spent)
    if best.time >= other.time or float(of_best) >= float(of_other):
        return ""
    instead = f"{of_best} ms instead of {of_other} ms"
    return f"Predicted: in each step, a rank spends {instead} {label}, on average."


def _about_microbatches(
    best: Choice, allowed: Sequence[Choice], cost_model: CostModel
) -> Iterator[Reason]:
    """Compare with half and with twice as many microbatches."""
    count = best.candidate.num_microbatches
    by_count: dict[float, Choice] = {}
    for choice in allowed:
        by_count.setdefault(choice.candidate.num_microbatches, choice)
    if other := by_count.get(count / 2):
        both = (other, best)
        of_other, of_best = (f"{100 * each.bubble_fraction:.1f}" for each in both)
        if float(of_other) > float(of_best):
            instead = f"{of_other} % instead of {of_best} %"
            half = f"With half as many microbatches, {other.candidate.schedule}"
            yield Reason(f"{half} is predicted to have a bubble of {instead}.", other)
    if other := by_count.get(2 * count):
        times = [sum(cost_model.layers[n].times) for n in (2 * count, count)]
        sizes = [cost_model.samples_of(n) for n in (2 * count, count)]
        takes = "sample takes" if sizes[0] == 1 else "samples take"
        of = f"{times[0] / times[1]:.2f} of the time of {sizes[1]}"
        alone = f"measured alone, {sizes[0]} {takes} {of}"
        yield Reason(f"{compared(best, other)}: {alone}.", other)


def _limit(best: Choice, choices: Sequence[Choice]) -> Iterator[Reason]:
    """Name the fastest choice, if it is beyond the limit."""
    beyond = [choice for choice in choices if not choice.is_within_limit]
    for fastest in sorted(beyond, key=lambda choice: choice.time)[:1]:
        if fastest.time < best.time:
            memory = format_memory(max(fastest.memory), "bytes")
            needs = f"is faster, but needs {memory} on a rank, above the limit"
            name = described(fastest.candidate)
            yield Reason(f"Predicted: {name}, {needs}.", fastest)


# -- on every rank ---------------------------------------------------------------------


class AdviceReport(NamedTuple):
    """Advice as text and as plain data, for every rank. It prints as the text.

    Attributes
    ----------
    text : str
        The table, the reason, and the predicted and measured times.
    data : dict
        The same, as ``minipipe advise --json`` prints it: ``best``, ``own``,
        ``reason``, ``measured``, ``choices``; and ``summary``, the best choice in a
        line.

    Examples
    --------
    >>> AdviceReport("1f1b is the fastest.", {})
    1f1b is the fastest.
    """

    text: str
    data: dict[str, Any]

    def __repr__(self) -> str:
        return self.text

    @classmethod
    def of(cls, advice: Advice) -> AdviceReport:
        """Return the report of some advice."""
        lines = []
        measured = {}
        for name, choice in (("the best", advice.best), ("yours", advice.own)):
            if choice is not None and choice.measured is not None:
                measured[name] = choice.measured
                error = choice.time / choice.measured - 1
                times = f"predicted {_ms(choice.time)}, measured {_ms(choice.measured)}"
                line = f"{name}: {times} ({100 * error:+.1f} %)"
                if choice.compiled is not None:
                    line += f"; with compile=True {_ms(choice.compiled)}"
                lines.append(wrapped(line, terminal_width()))
        text = "\n".join([str(advice), *lines])
        own = advice.own and advice.own.row()
        data = {"best": advice.best.row(), "own": own, "reason": advice.reason}
        data |= {"measured": measured, "summary": advice.summary}
        return cls(text, {**data, "choices": advice.rows()})


class ChosenPlan(Plan):
    """A plan that ``schedule="auto"`` chose; its printed form says so.

    Parameters
    ----------
    advice : AdviceReport
    *plan, **options
        The arguments of :class:`minipipe.Plan`.
    """

    advice: AdviceReport

    def __init__(self, advice: AdviceReport, *plan: Any, **options: Any) -> None:
        super().__init__(*plan, **options)
        vars(self).update(advice=advice)

    @property
    def sentence(self) -> str:
        """A sentence that describes the choice."""
        return f'schedule="auto" chose {self.advice.data["summary"]}'

    def __str__(self) -> str:
        return f"{super().__str__()}\n\n{self.sentence}"

    def _repr_html_(self) -> str:
        return f"{super()._repr_html_()}<p>{escape(self.sentence)}</p>"

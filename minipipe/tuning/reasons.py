"""Why a choice is the best: sentences about two rows of the table, each true of the figures of both.

Every sentence names its figures as predicted or as measured. None names a cause beyond the figures.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import NamedTuple

from minipipe.render.descriptions import format_memory
from minipipe.tuning.measurements import Measurements
from minipipe.tuning.weighing import Choice, by_worth, described

_SPENT = {
    "warm-up": "before its first action",
    "drain": "after its last action",
    "waiting": "waiting for other ranks",
    "sending": "sending",
    "overhead": "between two actions",
}  # by cause of idle time; the rest is computing
_LITTLE = 0.02  # smaller differences are called none


class Reason(NamedTuple):
    """A sentence about the best choice and another one.

    Attributes
    ----------
    text : str
    other : Choice
        For the table, which has a row for each choice that a sentence is about.
    """

    text: str
    other: Choice


def reasons(best: Choice, choices: Sequence[Choice], measured: Measurements) -> list[Reason]:
    """Return why a choice is the best, or what is known of it beside others.

    Parameters
    ----------
    best : Choice
    choices : sequence of Choice
        All, the best among them.
    measured : Measurements
    """
    allowed = sorted((choice for choice in choices if choice.is_within_limit), key=by_worth)
    return [*_another(best, allowed), *_about_microbatches(best, allowed, measured), *_limit(best, choices)]


def _another(best: Choice, allowed: Sequence[Choice]) -> Iterator[Reason]:
    """Compare with 1F1B at its best or, if that is the best of all or runs the same, with the next best schedule."""
    others = [choice for choice in allowed if choice.candidate.schedule != best.candidate.schedule]
    others.sort(key=lambda choice: choice.candidate.schedule != "1f1b")
    for other in others[:1]:
        if best.program == other.program:
            yield Reason(f"{best.candidate.schedule} and {other.candidate.schedule} run the same here.", other)
    for other in [choice for choice in others if choice.program != best.program][:1]:
        yield Reason(f"{compared(best, other)}.", other)
        spent = _spent(best, other)
        if spent:
            yield Reason(spent, other)


def compared(best: Choice, other: Choice) -> str:
    """Return which of two choices is the faster one, by what was measured of both, or by what is predicted.

    Parameters
    ----------
    best, other : Choice
    """
    both_ran = best.measured is not None and other.measured is not None
    times = {id(each): each.measured if both_ran else each.time for each in (best, other)}
    first, second = sorted((best, other), key=lambda each: times[id(each)] or 0.0)
    slow, fast = times[id(second)] or 0.0, times[id(first)] or 0.0
    less = 1 - fast / slow if slow else 0.0
    name, beside = _name(first, second), _name(second, first)
    verb = ("was measured", "were measured") if both_ran else ("is predicted", "are predicted")
    if less < _LITTLE:
        return f"{name} and {beside} {verb[1]} to take equally long, within {_up(less)}"
    text = f"{name} {verb[0]} to take {100 * less:.1f} % less than {beside}"
    if first is not best and not (both_ran and first.num_steps >= best.num_steps):
        text += f", in {first.num_steps} steps of {best.num_steps}" if both_ran else ", but did not run"
    if both_ran and less < best.spread:
        text += f", while the steps of {best.candidate.schedule} differed by {100 * best.spread:.1f} %"
    return text


def _up(share: float) -> str:
    """Return a share in percent, rounded up."""
    return f"{-(-1000 * share // 1) / 10:.1f} %"


def _name(choice: Choice, beside: Choice) -> str:
    """Return the name of a choice, with the number of microbatches where it tells two choices apart."""
    own = choice.candidate
    if own.num_microbatches == beside.candidate.num_microbatches:
        return own.schedule
    return f"{own.schedule} with {own.num_microbatches} microbatch{'es' * (own.num_microbatches != 1)}"


def _spent(best: Choice, other: Choice) -> str:
    """Return on what a rank is predicted to spend less time than with another choice, which is predicted slower."""
    spent = [
        {"computing": each.time * (1 - each.bubble_fraction)}
        | {words: each.time * each.idle.get(cause, 0.0) for cause, words in _SPENT.items()}
        for each in (best, other)
    ]
    words = max(spent[0], key=lambda each: spent[1][each] - spent[0][each])
    own, others = (f"{1e3 * each[words]:.3f}" for each in spent)
    if best.time >= other.time or float(own) >= float(others):
        return ""
    return f"Predicted: of a step, a rank spends {own} ms instead of {others} ms {words}, on average."


def _about_microbatches(best: Choice, allowed: Sequence[Choice], measured: Measurements) -> Iterator[Reason]:
    """Say what half and twice as many microbatches would do."""
    count = best.candidate.num_microbatches
    for other in [choice for choice in allowed if choice.candidate.num_microbatches * 2 == count][:1]:
        bubbles = [f"{100 * each.bubble_fraction:.1f}" for each in (other, best)]
        if float(bubbles[0]) > float(bubbles[1]):
            own = (
                f"{other.candidate.schedule} is predicted to have a bubble of {bubbles[0]} % instead of {bubbles[1]} %"
            )
            yield Reason(f"With half as many microbatches, {own}.", other)
    for other in [choice for choice in allowed if choice.candidate.num_microbatches == 2 * count][:1]:
        share = sum(measured.layers[2 * count].times) / sum(measured.layers[count].times)
        sizes = measured.samples_of(2 * count), measured.samples_of(count)
        takes = "sample takes" if sizes[0] == 1 else "samples take"
        alone = f"alone, {sizes[0]} {takes} {share:.2f} of the time of {sizes[1]}, as measured"
        yield Reason(f"{compared(best, other)}: {alone}.", other)


def _limit(best: Choice, choices: Sequence[Choice]) -> Iterator[Reason]:
    """Name the fastest choice, if it is beyond the limit."""
    beyond = [choice for choice in choices if not choice.is_within_limit]
    for fastest in sorted(beyond, key=lambda choice: choice.time)[:1]:
        if fastest.time < best.time:
            needs = f"needs {format_memory(max(fastest.memory), 'bytes')} on a rank, beyond the limit"
            yield Reason(f"Predicted: {described(fastest.candidate)}, is faster, and {needs}.", fastest)

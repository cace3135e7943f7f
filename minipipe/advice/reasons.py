"""Why a choice is the best: sentences that follow from what was weighed and measured."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from minipipe.advice.measurements import Measurements
from minipipe.advice.weighing import Choice, by_worth, described
from minipipe.render.descriptions import format_memory
from minipipe.schedules.action import ActionKind

_GAINS = {
    "drain": "the pipeline drains sooner",
    "warm-up": "the pipeline fills sooner",
    "waiting": "ranks wait less for each other",
    "overhead": "there are fewer actions",
}
_LITTLE = 0.02  # differences below that are said to be none


def reason(best: Choice, choices: Sequence[Choice], measured: Measurements) -> str:
    """Return why a choice is the best, in a few sentences.

    Parameters
    ----------
    best : Choice
    choices : sequence of Choice
        All, the best among them.
    measured : Measurements
    """
    return " ".join([*_against_others(best, choices), *_about_microbatches(best, choices, measured), *_limit(choices)])


def _against_others(best: Choice, choices: Sequence[Choice]) -> Iterator[str]:
    """Compare with 1F1B in as many microbatches or, if that is the best, with the next best schedule."""
    own = best.candidate
    alike = [c for c in choices if c.candidate.num_microbatches == own.num_microbatches and c.is_within_limit]
    others = [c for c in alike if c.candidate.schedule != own.schedule]
    known = [c for c in others if c.candidate.schedule == "1f1b"]
    if not others:
        return
    other = min(known or others, key=by_worth)
    less = 1 - (best.measured / other.measured if best.measured and other.measured else best.time / other.time)
    if less < _LITTLE:
        yield f"{own.schedule} is as fast as {other.candidate.schedule}."
        return
    because = _gain(best, other)
    yield f"{own.schedule} takes {100 * less:.0f} % less than {other.candidate.schedule}{because and f': {because}'}."


def _gain(best: Choice, other: Choice) -> str:
    """Return the cause of idle time of which a choice has least, in seconds, beside another one."""
    saved = {cause: other.idle.get(cause, 0.0) * other.time - best.idle.get(cause, 0.0) * best.time for cause in _GAINS}
    cause = max(saved, key=lambda each: saved[each])
    if saved[cause] <= 0:
        return ""
    splits = any(action.kind is ActionKind.BACKWARD_WEIGHT for row in best.schedule.actions for action in row)
    return "W fills the drain" if cause == "drain" and splits else _GAINS[cause]


def _about_microbatches(best: Choice, choices: Sequence[Choice], measured: Measurements) -> Iterator[str]:
    """Say what fewer and more microbatches would do."""
    count = best.candidate.num_microbatches
    fewer = [c for c in choices if c.candidate.num_microbatches * 2 == count and c.is_within_limit]
    if fewer:
        other = min(fewer, key=by_worth)
        bubbles = f"{100 * other.bubble_fraction:.0f} % instead of {100 * best.bubble_fraction:.0f} %"
        if other.bubble_fraction > best.bubble_fraction:
            yield f"Half as many microbatches would leave a bubble of {bubbles}."
    if 2 * count in measured.layers:
        share = sum(measured.layers[2 * count].times) / sum(measured.layers[count].times)
        sizes = measured.samples_of(2 * count), measured.samples_of(count)
        loss = "would shrink them below what one core does efficiently" if share > 0.5 + _LITTLE else "gain nothing"
        takes = "sample takes" if sizes[0] == 1 else "samples take"
        yield f"More microbatches {loss}: {sizes[0]} {takes} {share:.2f} of the time of {sizes[1]}."


def _limit(choices: Sequence[Choice]) -> Iterator[str]:
    """Name the fastest choice, if it is beyond the limit."""
    fastest = min(choices, key=lambda choice: choice.time)
    if not fastest.is_within_limit:
        needs = format_memory(max(fastest.memory), "bytes")
        yield f"Faster, but beyond the limit, is {described(fastest.candidate)}: it needs {needs} on a rank."

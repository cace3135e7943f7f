"""What the table says that a schedule trades, computed from the schedules themselves
for 1 to 16 ranks.
"""

from functools import cache
from math import isclose

import pytest

from minipipe import schedules, simulate
from minipipe.cli.output import help_text
from minipipe.schedules.registry import TRADES
from tests.launch import covering, slowly

RANKS = range(1, 17)


@cache
def peak(name, p, times):
    """Return the most microbatches that a rank holds, each for all its layers."""
    schedule = schedules.build(name, p, times * p)
    return max(schedules.peak_activations(schedule)) / (schedule.num_stages // p)


def first_from(holds):
    """Return the number of ranks from which on a claim holds."""
    return next(
        p
        for p in RANKS
        if all(holds(q, times) for q in RANKS[p - 1 :] for times in (1, 2, 3))
    )


# by the words of the description: does it hold for p ranks, and 1F1B's peak?
CLAIMS = {
    "1F1B's memory, no pauses": lambda held, p, of_1f1b: held == of_1f1b == p,
    "1F1B's memory, less idle": lambda held, p, of_1f1b: held == of_1f1b == p,
    "<2x 1F1B's memory": lambda held, p, of_1f1b: held < 2 * of_1f1b,
    "1/2 of 1F1B's memory, plus 1": lambda held, p, of_1f1b: held == of_1f1b // 2 + 1,
    "1/3 of 1F1B's memory, plus 1": lambda held, p, of_1f1b: (
        held == round(of_1f1b / 3) + 1
    ),
}


def test_every_description_that_compares_with_1f1bs_memory_is_among_the_claims():
    comparing = [name for name, words in TRADES.items() if "1F1B's memory" in words]
    assert comparing == ["zb-h1", "zb-h2", "zb-v", "v-half", "v-min"]
    assert all(
        sum(claim in TRADES[name] for claim in CLAIMS) == 1 for name in comparing
    )


@pytest.mark.parametrize(("words", "times"), covering(CLAIMS, [1, 2, 3], strength=1))
def test_a_schedule_holds_what_its_description_says_for_any_number_of_ranks(
    words, times
):
    """The story: "about half of 1F1B's memory" stood beside a peak of 3 and 1F1B's 4,
    and "1/3" beside 2.
    """
    for name in (name for name in TRADES if words in TRADES[name]):
        for p in RANKS[1:]:
            assert CLAIMS[words](peak(name, p, times), p, peak("1f1b", p, times)), (
                name,
                p,
            )


@pytest.mark.slow
def test_the_note_says_from_how_many_ranks_on_the_memory_is_less():
    def share(name, most):
        return first_from(
            lambda p, times: peak(name, p, times) <= most * peak("1f1b", p, times)
        )

    def is_less(p, times):
        return max(peak("v-half", p, times), peak("v-min", p, times)) < peak(
            "1f1b", p, times
        )

    less, two_thirds, half = (
        first_from(is_less),
        share("v-half", 2 / 3),
        share("v-min", 1 / 2),
    )
    assert two_thirds >= share("v-min", 2 / 3)
    note = " ".join(help_text("table_of_schedules").split())
    assert f"v-half and v-min need less memory than 1F1B from {less} ranks on" in note
    assert (
        f"at most 2/3 of it from {two_thirds} on; v-min at most 1/2 from {half} on"
        in note
    )


NO_PAUSES = [name for name in TRADES if "no pauses" in TRADES[name]]


@pytest.mark.slow
@pytest.mark.parametrize("name", [NO_PAUSES[0], *map(slowly, NO_PAUSES[1:])])
def test_no_rank_pauses_from_the_number_of_microbatches_that_the_note_says(name):
    assert "at least 2p-1 microbatches for p ranks" in " ".join(
        help_text("table_of_schedules").split()
    )
    for p in RANKS:
        for m in (2 * p - 1, 2 * p, 3 * p):
            timeline = simulate(schedules.build(name, p, m))
            assert all(
                isclose(timeline.idle_within_span(rank), 0, abs_tol=1e-9)
                for rank in range(p)
            ), (p, m)


def test_the_note_explains_every_term_of_the_descriptions():
    terms = (
        "chunk",
        "no pauses",
        "splits B",
        "plus 1",
        "V",
        "2x weights",
        "no flush",
        "stale",
        "version",
    )
    explained = [
        line.split("  ")[0]
        for line in help_text("table_of_schedules").strip().splitlines()
        if not line.startswith(" ")
    ]
    assert explained == ["v", "time", "bubble", "gap", "peak", *terms]
    assert [
        term for term in terms if not any(term in trade for trade in TRADES.values())
    ] == []

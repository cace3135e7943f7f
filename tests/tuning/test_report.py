"""Every reason that advice prints is true of the two rows of the table that it is
about.
"""

import re
from types import SimpleNamespace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from minipipe.render.descriptions import format_memory
from minipipe.schedules.simulation.span import IdleCause
from minipipe.tuning import Advice, Candidate, Choice
from minipipe.tuning.report import reasons
from minipipe.tuning.weighing import best_of, by_worth, described
from tests.strategies import examples
from tests.tuning.invented import measured

COUNTS, LIMIT = (2, 4, 8), 1000
LAYERS = measured(4, COUNTS)
WORDS = {
    "before its first action": "warm-up",
    "after its last action": "drain",
    "waiting for other ranks": "waiting",
    "sending": "sending",
    "between two actions": "overhead",
}
seconds = st.floats(1e-4, 1.0)


@st.composite
def rows(draw):
    """Return a choice of made-up figures."""
    candidate = Candidate(
        draw(st.sampled_from(["1f1b", "gpipe", "zb-h1"])),
        draw(st.sampled_from(COUNTS)),
        draw(st.integers(1, 2)),
        draw(st.sampled_from(["time", "memory"])),
        draw(st.booleans()),
        draw(st.integers(1, 2)),
    )
    time, shares = draw(seconds), [draw(st.floats(0, 0.19)) for _ in WORDS]
    run = (
        (draw(seconds), draw(st.integers(2, 9)), draw(st.floats(0, 0.3)))
        if draw(st.booleans())
        else (None, 0, 0.0)
    )
    idle, memory = dict(zip(WORDS.values(), shares)), draw(st.integers(1, 2 * LIMIT))
    bound = time * draw(st.floats(0.1, 1))
    figures = (
        time,
        sum(shares),
        idle,
        (memory,),
        bound,
        "made up",
        memory <= LIMIT,
        *run,
    )
    return Choice(candidate, ran_as(draw(st.integers(0, 3))), (range(4),), *figures)


def ran_as(actions):
    """Return a schedule that runs the same as another one with these actions."""
    return SimpleNamespace(actions=actions, placement=())


tables = st.lists(rows(), min_size=1, max_size=12).filter(
    lambda table: any(row.is_within_limit for row in table)
)


def named(text, row):
    """Tell whether a text names a row: by its schedule and, if it says so, its numbers
    of replicas and microbatches.
    """
    found = re.fullmatch(
        r"([\w-]+)(?: in (\d+) replicas?)?(?: with (\d+) microbatch(?:es)?)?", text
    )
    own = row.candidate
    is_alike = found[2] in (None, str(own.replicas)) and found[3] in (
        None,
        str(own.num_microbatches),
    )
    return found[1] == own.schedule and is_alike


def check_comparison(text, best, other, noise_is_said=False):
    """Recompute, from two rows, which takes less, by how much, and whether both or none
    was run.
    """
    for word, value in (
        ("measured", lambda row: row.measured),
        ("predicted", lambda row: row.time),
    ):
        if alike := re.fullmatch(
            rf"(.+) and (.+) (?:were|are) {word} to take the same time, within "
            r"([\d.]+) %",
            text,
        ):
            pair = {
                id(row)
                for row in (best, other)
                if named(alike[1], row) or named(alike[2], row)
            }
            a, b = value(best), value(other)
            assert (
                len(pair) == 2
                and 1 - min(a, b) / max(a, b) <= float(alike[3]) / 100 + 1e-9
            )
            assert float(alike[3]) <= 2.1
            return
        text, noise, spread = text.partition(
            f"; the steps of {best.candidate.schedule} alone differ by "
        )
        if less := re.fullmatch(
            rf"(.+) (?:was|is) {word} to take ([\d.]+) % less than ([^,]+)(, .+)?", text
        ):
            first, second = (
                (best, other) if value(best) < value(other) else (other, best)
            )
            assert named(less[1], first) and named(less[3], second)
            assert 100 * (1 - value(first) / value(second)) == pytest.approx(
                float(less[2]), abs=0.0501
            )
            is_noise = (
                word == "measured" and 1 - value(first) / value(second) < best.spread
            )
            assert bool(noise) == (is_noise and not noise_is_said) and (
                not noise or spread == f"{100 * best.spread:.1f} %"
            )
            if first is best or (
                word == "measured" and first.num_steps == best.num_steps
            ):
                assert less[4] is None
            elif word == "measured":
                assert less[4] == f", in {first.num_steps} steps of {best.num_steps}"
            else:
                assert less[4] == ", but was not run" and (
                    first.measured is None or second.measured is None
                )
            return
    raise AssertionError(f"no comparison: {text}")


def check(text, best, other, noise_is_said=False):
    """Recompute one sentence from the two rows that it is about."""
    if spent := re.fullmatch(
        r"Predicted: in each step, a rank spends (\S+) ms instead of (\S+) ms "
        r"(.+), on average\.",
        text,
    ):
        for printed, row in ((spent[1], best), (spent[2], other)):
            share = (
                row.idle[WORDS[spent[3]]]
                if spent[3] != "computing"
                else 1 - sum(row.idle.values())
            )
            assert float(printed) == pytest.approx(1e3 * share * row.time, abs=5.01e-4)
        assert float(spent[1]) < float(spent[2]) and best.time < other.time
    elif half := re.fullmatch(
        r"With half as many .+, (\S+) is predicted to have a bubble of (\S+) % "
        r"instead of (\S+) %\.",
        text,
    ):
        assert (
            other.candidate.num_microbatches * 2 == best.candidate.num_microbatches
            and named(half[1], other)
        )
        assert float(half[2]) == pytest.approx(100 * other.bubble_fraction, abs=0.0501)
        assert float(half[3]) == pytest.approx(100 * best.bubble_fraction, abs=0.0501)
        assert other.bubble_fraction > best.bubble_fraction
    elif twice := re.fullmatch(
        r"(.+): measured alone, (\d+) samples? takes? (\S+) of the time of (\d+)\.",
        text,
    ):
        check_comparison(twice[1], best, other, noise_is_said)
        assert other.candidate.num_microbatches == 2 * best.candidate.num_microbatches
        assert (
            int(twice[4]) == 2 * int(twice[2]) == 32 // best.candidate.num_microbatches
        )
        # so the layers were made up
        assert float(twice[3]) == pytest.approx(0.5, abs=0.0051)
    elif text.startswith("Predicted: ") and "above the limit" in text:
        needs = format_memory(max(other.memory), "bytes")
        assert text == (
            f"Predicted: {described(other.candidate)}, is faster, but needs "
            f"{needs} on a rank, above the limit."
        )
        assert max(other.memory) > LIMIT and other.time < best.time
    elif same := re.fullmatch(r"(\S+) and (\S+) are the same program here\.", text):
        assert (
            named(same[1], best)
            and named(same[2], other)
            and best.program == other.program
        )
    else:
        alike = (each.candidate[::6] for each in (best, other))  # schedule and replicas
        assert len({*alike}) == 1 or best.program != other.program
        check_comparison(text.removesuffix("."), best, other)


def firsts_of(ties, schedule):
    """Return the schedules in whose rows another one stands, with the same figures."""
    return [first for first, others in ties if schedule in others.split(", ")]


@examples(300)
@given(tables)
def test_every_reason_is_true_of_its_two_rows_and_both_are_in_the_table(table):
    """The story: "there are fewer actions" between schedules with equally many, beside
    a choice that was not shown.
    """
    best = best_of(table, LIMIT)
    advice = Advice(table, LAYERS, LIMIT)
    shown = [
        " ".join(line.split()) for line in str(advice).split("\n\n")[1].splitlines()[1:]
    ]
    # of a row that schedules share
    shown = [re.sub(r" \(\+\d+\) ", " ", line) for line in shown]
    ties = re.findall(
        r"^(\S+) \(\+\d+\): (.*) ha(?:s|ve) the same figures\.$",
        str(advice),
        re.MULTILINE,
    )
    noise_is_said = False
    for text, other in reasons(best, sorted(table, key=by_worth), LAYERS):
        check(text, best, other, noise_is_said)
        noise_is_said |= " alone differ by " in text
        assert text in advice.reason
        for row in (best, other):
            ran = row.measured is not None
            figures = (
                f"{1e3 * row.time:.3f} {1e3 * row.measured:.3f}"
                if ran
                else f"{1e3 * row.time:.3f}"
            )
            again = "yes" if row.candidate.recompute else "no"
            schedule = row.candidate.schedule
            heads = [
                f"{name} {row.candidate.chunks_per_rank} "
                for name in (schedule, *firsts_of(ties, schedule))
            ]
            assert any(
                line.startswith(tuple(heads))
                and f" {row.candidate.cut} {again} {figures} " in line
                for line in shown
            ), (row, shown)


def row(schedule, count, time, ran=None, num_steps=0, drain=0.0):
    figures = time, drain, {"drain": drain}, (1,), time, "made up", True, ran, num_steps
    return Choice(Candidate(schedule, count), ran_as(schedule), (range(4),), *figures)


BEST, OTHER = row("zb-h1", 4, 1.0, drain=0.1), row("1f1b", 4, 1.25, drain=0.4)


@pytest.mark.parametrize(
    "text",
    [
        "zb-h1 is predicted to take 30.0 % less than 1f1b.",
        "1f1b is predicted to take 20.0 % less than zb-h1.",
        "zb-h1 was measured to take 20.0 % less than 1f1b.",
        "zb-h1 and 1f1b are predicted to take the same time, within 2.0 %.",
        (
            "Predicted: in each step, a rank spends 100.000 ms instead of 400.000 ms "
            "after its last action, on average."
        ),
        (
            "Predicted: in each step, a rank spends 900.000 ms instead of 750.000 ms "
            "computing, on average."
        ),
        "zb-h1 and 1f1b are the same program here.",
        "zb-h1 takes 20 % less than 1f1b: there are fewer actions.",
    ],
)
def test_the_check_refuses_what_is_not_true_of_the_two_rows(text):
    with pytest.raises((AssertionError, TypeError)):
        check(text, BEST, OTHER)


def test_what_is_predicted_and_what_was_measured_are_called_so():
    said = [text for text, _ in reasons(BEST, [BEST, OTHER], LAYERS)]
    assert said == [
        "zb-h1 is predicted to take 20.0 % less than 1f1b.",
        (
            "Predicted: in each step, a rank spends 100.000 ms instead of 500.000 ms "
            "after its last action, on average."
        ),
    ]
    ran = row("zb-h1", 4, 1.0, 1.5, 64), row("1f1b", 4, 1.25, 1.2, 6)
    assert (
        reasons(ran[0], ran, LAYERS)[0].text
        == "1f1b was measured to take 20.0 % less than zb-h1, in 6 steps of 64."
    )
    assert (
        "1f1b is predicted to take"
        in reasons(ran[0], (ran[0], row("1f1b", 4, 0.5)), LAYERS)[0].text
    )


def test_of_choices_that_run_the_same_none_is_called_faster():
    """The story: with one microbatch 1F1B is GPipe, and was "as fast" as it, as if both
    had run.
    """
    alike = BEST._replace(candidate=Candidate("1f1b", 4))
    assert [text for text, _ in reasons(BEST, [BEST, alike], LAYERS)] == [
        "zb-h1 and 1f1b are the same program here."
    ]
    other = row("gpipe", 4, 2.0, drain=0.5)
    assert reasons(BEST, [BEST, alike, other], LAYERS)[1].other is other


def test_where_the_steps_of_one_choice_differ_by_more_than_two_choices_it_is_said():
    noisy = row("zb-h1", 4, 1.0, 1.0, 64)._replace(spread=0.3)
    text = reasons(noisy, [noisy, row("1f1b", 4, 1.25, 1.25, 64)], LAYERS)[0].text
    assert text == (
        "zb-h1 was measured to take 20.0 % less than 1f1b; the steps of zb-h1 "
        "alone differ by 30.0 %."
    )
    assert "64 steps of the best differ by up to 30.0 %" in " ".join(
        str(Advice([noisy], LAYERS)).split()
    )


def test_every_cause_of_idle_time_within_a_step_has_its_words():
    assert set(WORDS.values()) == {cause.value for cause in IdleCause} - {"update"}

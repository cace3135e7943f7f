"""Records of other forms than a file of one gradient each: other microbatches, weights
of all steps, printed losses, one wrong row, and functions that are not repeatable.
"""

import numpy as np
import pytest

from minipipe.testing import Verdict, referee
from tests.referee.cases import recorded
from tests.referee.training import Plan, train

SMALL = Plan(sequences=12, length=6, width=8, num_microbatches=4)
NAME = "gradients/0.weight"
random = np.random.default_rng(0)


@pytest.mark.parametrize("count", [1, 3, 12])
def test_another_number_of_microbatches_is_no_bug(count):
    """The parts differ, and were called a bug, although their sums agree."""
    a = recorded(SMALL, "microbatches")
    b = recorded(SMALL._replace(num_microbatches=count), "microbatches")
    assert referee(a, b).verdict is Verdict.ORDER
    wrong = SMALL._replace(num_microbatches=6, mutant="a missing microbatch", where=1)
    assert referee(a, recorded(wrong, "microbatches")).verdict is Verdict.BUG


def test_other_samples_in_each_microbatch_are_no_bug():
    a = recorded(SMALL, "microbatches")
    numbers = {"/microbatch/0/": "/microbatch/3/", "/microbatch/3/": "/microbatch/0/"}
    b = {}
    for name, array in a.items():
        for number, other in numbers.items():
            if number in name:
                name = name.replace(number, other)
                break
        b[name] = array + np.spacing(array) * ("micro" not in name)
    assert referee(a, b).verdict is Verdict.ORDER


def test_weights_of_all_steps_decide():
    """The bound on step 10 was 8**9 times the bound on step 1, so nothing did."""
    plan = SMALL._replace(steps=10, rate=0.1, fixed_batch=True)
    names = [name for name in train(plan) if "/weights/" in name]
    a, b, stale = (
        {name: array for name, array in train(each).items() if name in names}
        for each in (
            plan,
            plan._replace(order=(3, 1, 0, 2)),
            plan._replace(mutant="one stale update", where=6),
        )
    )
    assert referee(a, b, optimiser="sgd").verdict is Verdict.ORDER
    report = referee(a, stale, optimiser="sgd")
    assert (report.verdict, report.first.step) == (Verdict.BUG, 6)


def test_a_few_losses_of_different_batches_show_no_progress():
    """Two batches of which the second is easier were taken for progress."""
    a, b = (
        recorded(SMALL._replace(rate=1e-9, shards=shards, steps=3), "losses")
        for shards in (1, 2)
    )
    report = referee(a, b, optimiser="sgd")
    assert report.verdict is Verdict.CANNOT_TELL and "more steps" in report.missing


def test_an_update_that_weights_show_with_few_digits_is_in_doubt():
    start = random.standard_normal(500).astype(np.float32)
    update = 1e-4 * random.standard_normal(500)
    a, b = (
        {
            "step/0/weights/w": start,
            "step/1/weights/w": (start + factor * update).astype(np.float32),
        }
        for factor in (1, 1.001)
    )
    report = referee(a, b, optimiser="sgd")
    assert report.verdict is Verdict.CANNOT_TELL
    assert "gradients of step 1" in report.missing
    # what is missing is not in the record already
    gradient = {"step/1/gradients/w": update}
    report = referee({**a, **gradient}, {**b, **gradient}, optimiser="sgd")
    assert report.verdict is Verdict.CANNOT_TELL
    assert "weights in float64" in report.missing


@pytest.mark.parametrize("decimals", [1, 2, 3, 4])
def test_losses_that_were_printed_are_no_bug(decimals):
    """A log has few decimals; their rounding was called a bug."""
    losses = np.linspace(2.31, 1.17, 20) + 0.01 * random.standard_normal(20)
    b = np.round(losses * (1 + 1e-7), decimals)
    for a in (losses, np.round(losses * (1 - 1e-7), decimals)):
        a = a.copy()
        a[7] = b[7] + 10.0**-decimals
        report = referee({"loss": a}, {"loss": b.astype(np.float32)}, optimiser="sgd")
        assert report.verdict is Verdict.CANNOT_TELL
        assert f"{decimals} decimal" in report.missing
    if decimals > 2:
        wrong = referee({"loss": losses}, {"loss": np.round(1.1 * losses, decimals)})
        assert wrong.verdict is Verdict.BUG


@pytest.mark.parametrize("shape", [(3000, 40), (40, 3000), (3, 2000, 10)])
def test_one_wrong_row_of_a_large_array_is_a_bug(shape):
    """As the embedding of one word: the norm of the whole hardly changes."""
    a = random.standard_normal(shape).astype(np.float32)
    a[0] *= 1e-2
    b = a * np.float32(1 + 2**-23)
    axis = int(np.argmax(shape))
    assert referee({NAME: a}, {NAME: b}).verdict is Verdict.ORDER
    row = [slice(None)] * len(shape)
    row[axis] = 77
    b[tuple(row)] *= np.float32(1.001)
    report = referee({NAME: a}, {NAME: b})
    assert report.verdict is Verdict.BUG
    assert f"row 77 of axis {axis}" in report.evidence


@pytest.mark.parametrize("scale", [1e-310, 1e-200, 1e200, 1e307])
def test_the_scale_of_an_array_does_not_decide(scale):
    a = scale * random.standard_normal(100)
    assert referee({NAME: a}, {NAME: 1.5 * a}).verdict is Verdict.BUG


def test_arrays_without_elements_are_equal():
    a = {"loss": np.linspace(2, 1, 9), NAME: np.zeros((0, 3))}
    assert referee(a, a).verdict is Verdict.EQUAL
    report = referee(a, {**a, "loss": a["loss"] + 1})
    assert (report.verdict, report.first.name) == (Verdict.BUG, "loss")


@pytest.mark.parametrize("name", ["loss", NAME])
def test_functions_with_other_numbers_each_time_do_not_decide(name):
    """Their repetitions differ so much that any bug was within the bound."""

    def unseeded(_):
        return {name: 1 + np.random.random(50)}

    report = referee(unseeded, unseeded, optimiser="sgd")
    assert report.verdict is Verdict.CANNOT_TELL and "fix seeds" in report.missing


def test_the_report_says_what_was_compared():
    a = recorded(SMALL._replace(steps=6), "gradients of each step")
    text = str(
        referee(a, {**a, "step/1/gradients/1.bias": a["step/1/gradients/1.bias"]})
    )
    assert "compared: gradients of 6 steps, 1 to 6; a bug elsewhere is not seen" in text


@pytest.mark.parametrize(
    ("decimals", "limit"), [(2, "2.0e-03"), (4, "1.5e-05"), (17, "1.1e-16")]
)
def test_equal_losses_say_below_which_digit_a_bug_is_not_seen(decimals, limit):
    """A bug that changes less than the last printed digit gives the same log."""
    losses = np.round(9.31 - np.linspace(0, 1.17, 20), decimals)
    report = referee({"loss": losses}, {"loss": losses})
    assert report.verdict is Verdict.EQUAL
    unseen = f"a bug that changes it by less than {limit} of it, or elsewhere"
    assert unseen in str(report) and "gradients of step 1" in report.unseen
    near = referee({"loss": losses}, {"loss": losses * (1 + 1e-7)}, optimiser="sgd")
    assert "compared: loss; a bug that changes it by less than" in str(near)

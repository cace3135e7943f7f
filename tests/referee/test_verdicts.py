"""The class of a difference is right: generated runs by seed, every bug at hand, and
never "no bug" if one was planted.
"""

from collections import Counter

import numpy as np
import pytest

from minipipe.referee.formats import BFLOAT16, FLOAT16
from minipipe.testing import Variation, Verdict, referee
from tests.referee.cases import KINDS, MUTANTS, case, hard, honest, recorded
from tests.referee.training import Plan, train

NO_BUG = (Verdict.EQUAL, Verdict.ORDER, Verdict.ROUNDING)
SMALL = Plan(sequences=12, length=6, width=8, num_microbatches=4)
NAME = "gradients/0.weight"


def verdicts(seeds, is_small):
    """Return (expected, verdict) of each seed, counted, and those that are wrong."""
    counts, wrong = Counter(), []
    for seed in seeds:
        a, b, options, expected, words = case(seed, is_small)
        report = referee(a, b, **options)
        counts[expected, report.verdict] += 1
        assert report.verdict is not Verdict.CANNOT_TELL or report.missing
        if report.verdict is not expected:
            wrong.append(f"{seed}: {words}\n{report}")
        assert expected is not Verdict.BUG or report.verdict not in NO_BUG, wrong[-1]
    return counts, wrong


@pytest.mark.parametrize(
    ("seeds", "is_small"),
    [
        (range(20), True),
        pytest.param(range(200), False, marks=pytest.mark.slow),
    ],
    ids=str,
)
def test_95_of_100_verdicts_are_right_and_no_bug_is_taken_for_rounding(seeds, is_small):
    counts, wrong = verdicts(seeds, is_small)
    assert sum(counts.values()) == len(seeds)
    assert len(wrong) <= 0.05 * len(seeds), "\n\n".join(wrong)
    expected = Counter(each for each, _ in counts.elements())
    assert expected[Verdict.BUG] * len(KINDS) == 5 * len(seeds)


@pytest.mark.parametrize(
    "seeds",
    [range(10), pytest.param(range(10, 250), marks=pytest.mark.slow)],
    ids=str,
)
def test_a_bug_that_is_hard_to_see_is_at_least_in_doubt(seeds):
    """Texts of almost equal length, tiny learning rates, Adam, and few digits."""
    verdicts = Counter()
    for seed in seeds:
        a, b, options, _, words = hard(seed)
        report = referee(a, b, **options)
        verdicts[report.verdict] += 1
        if honest(a, b) is Verdict.EQUAL:  # it changed less than the last digit
            continue
        assert report.verdict not in NO_BUG, f"{seed}: {words}\n{report}"
    assert verdicts[Verdict.BUG] >= 0.7 * len(seeds)


@pytest.mark.parametrize("mutant", MUTANTS)
def test_each_bug_is_found_in_the_losses_alone(mutant):
    plan = SMALL._replace(steps=12, dropout=0.2 * (mutant == MUTANTS[3]))
    a = recorded(plan, "losses")
    b = recorded(plan._replace(mutant=mutant, where=3), "losses")
    report = referee(a, b, optimiser="sgd")
    assert report.verdict is Verdict.BUG and report.first.name == "loss"
    # what a bug in the third update changes is the fourth loss
    first_step = {"one stale update": 4, "tied weight counted once": 2}.get(mutant, 1)
    assert report.first.step == first_step


@pytest.mark.parametrize(
    ("mutant", "words"),
    [
        ("loss scaled twice", "B is 0.25 times A: its loss or gradient is scaled"),
        ("a missing microbatch", "microbatch 2 is missing in B"),
        ("mean of means", "such as a mean of means over unequal numbers of tokens"),
        ("tied weight counted once", "only gradients/0.weight is beyond its bound"),
    ],
)
def test_the_evidence_names_the_cause_if_microbatches_are_recorded(mutant, words):
    a = recorded(SMALL, "microbatches")
    b = recorded(
        SMALL._replace(mutant=mutant, where=2, order=(3, 0, 2, 1)), "gradients"
    )
    if mutant == "tied weight counted once":
        a = recorded(SMALL, "gradients")
    report = referee(a, b)
    assert (report.verdict, words in report.evidence) == (Verdict.BUG, True), report
    assert f"verdict: bug\nevidence: {report.evidence}" in str(report)


def test_the_wrong_microbatch_and_the_last_layer_are_the_first_beyond_their_bound():
    plan = SMALL._replace(dropout=0.3, layers=3)
    a = recorded(plan, "microbatches")
    report = referee(a, recorded(plan._replace(mutant=MUTANTS[3]), "microbatches"))
    equal = {each.microbatch for each in report.differences if not each.size}
    assert (report.verdict, equal) == (Verdict.BUG, {0})
    wrong = referee(
        {name: array for name, array in a.items() if "micro" in name},
        {
            name: array * (1 + ("microbatch/1/" in name))
            for name, array in a.items()
            if "micro" in name
        },
    )
    assert wrong.first.place == "gradients/3.bias, layer 3, step 1, microbatch 1"


# -- rounding --------------------------------------------------------------------------


@pytest.mark.parametrize("grid", [BFLOAT16, FLOAT16], ids=lambda grid: grid.name)
@pytest.mark.parametrize("order", [(0, 1, 2, 3), (3, 2, 1, 0)])
def test_a_sum_in_few_digits_is_rounding_if_it_can_be_repeated(grid, order):
    a = recorded(SMALL, "microbatches")
    plan = SMALL._replace(accumulate=grid.name, order=order)
    b = recorded(plan, "gradients")
    report = referee(a, b)
    assert report.verdict is Verdict.ROUNDING, report
    assert (
        f"in {grid.name} gives" in report.evidence and "to the bit" in report.evidence
    )
    # without the parts nobody can tell, and the report says what would help
    alone = referee(recorded(SMALL, "gradients"), b)
    assert alone.verdict is Verdict.CANNOT_TELL
    assert "microbatch/K/gradients/NAME" in alone.missing


@pytest.mark.parametrize("mutant", ["a missing microbatch", "mean of means"])
def test_a_bug_beside_a_rounding_is_still_a_bug(mutant):
    b = recorded(SMALL._replace(accumulate="bfloat16", mutant=mutant), "gradients")
    assert referee(recorded(SMALL, "microbatches"), b).verdict is Verdict.BUG
    assert referee(recorded(SMALL, "gradients"), b).verdict not in NO_BUG


@pytest.mark.parametrize("grid", [BFLOAT16, FLOAT16], ids=lambda grid: grid.name)
def test_two_runs_that_store_few_digits_differ_by_neighbours(grid):
    random = np.random.default_rng(3)

    def stored(plan, noise=0.0):
        arrays = {}
        for name, gradient in recorded(plan, "gradients").items():
            factors = 1 + noise * random.standard_normal(gradient.shape)
            arrays[name] = grid.rounded(gradient * factors)
        return arrays

    plan = SMALL._replace(width=32)
    a = stored(plan)
    assert referee(a, stored(plan, noise=1e-5)).verdict is Verdict.ROUNDING
    assert referee(a, stored(plan, noise=1e-2)).verdict not in NO_BUG
    for mutant in ("a missing microbatch", "mean of means"):
        assert referee(a, stored(plan._replace(mutant=mutant))).verdict not in NO_BUG


def test_one_wrong_value_is_no_rounding():
    a = np.random.default_rng(0).standard_normal(400).astype(np.float32)
    b = BFLOAT16.rounded(a.astype(np.float64))
    assert referee({NAME: a}, {NAME: b}).verdict is Verdict.ROUNDING
    b[7] = 0.0
    assert referee({NAME: a}, {NAME: b}).verdict not in NO_BUG


def test_rounding_agrees_with_the_formats_of_numpy():
    random = np.random.default_rng(0)
    values = random.standard_normal(3000) * 2.0 ** random.integers(-30, 15, 3000)
    halves = values.astype(np.float16).astype(np.float64)
    assert np.array_equal(FLOAT16.rounded(values), halves)
    singles = values.astype(np.float32)
    bits = singles.view(np.uint32).astype(np.uint64)
    bits = (bits + 0x7FFF + ((bits >> 16) & 1)) & 0xFFFF0000
    nearest = bits.astype(np.uint32).view(np.float32)
    assert np.array_equal(BFLOAT16.rounded(singles.astype(np.float64)), nearest)


# -- in doubt --------------------------------------------------------------------------


def test_losses_alone_cannot_show_a_wrong_scale_under_adam_so_they_do_not_decide():
    plan = SMALL._replace(optimiser="adam", rate=0.01, steps=12)
    gradients_scaled = train(plan._replace(mutant=MUTANTS[0]))
    a = train(plan)
    # a bug that scales gradients, but not the losses that are reported
    losses = {"loss": np.array([*a["loss"][:1], *a["loss"][1:] * (1 + 1e-7)])}
    assert not np.array_equal(gradients_scaled["step/1/" + NAME], a["step/1/" + NAME])
    for optimiser in ("", "adam"):
        report = referee({"loss": a["loss"]}, losses, optimiser=optimiser)
        assert report.verdict is Verdict.CANNOT_TELL
        assert "gradients of step 1" in report.missing
    assert (
        referee({"loss": a["loss"]}, losses, optimiser="sgd").verdict is Verdict.ORDER
    )


def test_one_loss_weights_of_an_unknown_step_and_a_tiny_learning_rate_do_not_decide():
    one = referee({"loss": [2.5]}, {"loss": [2.5000001]}, optimiser="sgd")
    assert one.verdict is Verdict.CANNOT_TELL and "losses of more steps" in one.missing
    a = train(SMALL)["step/1/weights/0.weight"]
    b = np.nextafter(a, np.float32(9))
    weights = referee({"0.weight": a}, {"0.weight": b}, kind="weights")
    assert weights.verdict is Verdict.CANNOT_TELL
    assert "step/0/weights/NAME" in weights.missing
    slow = SMALL._replace(steps=12, rate=1e-6)
    stale = slow._replace(mutant="one stale update", where=3, order=(1, 3, 2, 0))
    a, b = recorded(slow, "losses"), recorded(stale, "losses")
    report = referee(a, b, optimiser="sgd")
    assert report.verdict is Verdict.CANNOT_TELL and "more steps" in report.missing


def test_later_gradients_without_the_first_ones_do_not_decide():
    plan = SMALL._replace(steps=4)
    a, b = train(plan), train(plan._replace(mutant="mean of means"))
    names = [name for name in a if name.startswith("step/4/gradients")]
    report = referee(
        {name: a[name] for name in names}, {name: b[name] for name in names}
    )
    assert report.verdict is Verdict.CANNOT_TELL
    assert report.missing == "the gradients of each step from 1 to 4"


@pytest.mark.parametrize(
    ("difference", "options", "expected"),
    [
        (1e-6, {}, Verdict.ORDER),
        (1e-4, {}, Verdict.CANNOT_TELL),
        (1e-4, {"terms": 10**6}, Verdict.ORDER),
        (1e-2, {}, Verdict.BUG),
        (1e-2, {"precision": "bfloat16"}, Verdict.CANNOT_TELL),
        (0.3, {"precision": "bfloat16"}, Verdict.BUG),
    ],
)
def test_the_verdict_follows_the_bound_of_the_stated_arithmetic(
    difference, options, expected
):
    random = np.random.default_rng(1)
    a, noise = random.standard_normal((2, 400)).astype(np.float32)
    b = (a + difference * noise).astype(np.float32)
    report = referee({NAME: a}, {NAME: b}, **options)
    assert report.verdict is expected, report


def test_a_small_difference_with_a_cause_is_a_bug():
    a = np.random.default_rng(1).standard_normal(400).astype(np.float32)
    report = referee({NAME: a}, {NAME: a * np.float32(1 + 1e-5)})
    assert (report.verdict, "times A" in report.evidence) == (Verdict.BUG, True)


def test_a_gradient_that_is_zero_but_for_rounding_errors_is_no_bug():
    """The story: biases of keys in attention have no effect; a difference as large as
    the gradient itself was called a bug.
    """
    random = np.random.default_rng(2)
    whole, noise, other = random.standard_normal((3, 500)).astype(np.float32)
    a = {NAME: whole, "gradients/0.key_bias": np.float32(1e-9) * noise}
    b = {NAME: whole, "gradients/0.key_bias": np.float32(1e-9) * other}
    assert referee(a, b).verdict is Verdict.ORDER


# -- functions -------------------------------------------------------------------------


def varied(plan):
    """Return a training as a function of a variation."""

    def run(variation):
        order = tuple(variation.order(plan.num_microbatches))
        changed = plan._replace(order=order, nudge=variation.nudge)
        return recorded(changed, "losses and gradients")

    return run


def test_repeated_functions_measure_their_own_bounds():
    # a batch that is repeated, so that each step surely lowers the loss
    plan = SMALL._replace(steps=6, fixed_batch=True)
    other = plan._replace(shards=2)
    report = referee(varied(plan), varied(other))
    assert report.verdict is Verdict.ORDER, report
    of_files = referee(varied(plan)(Variation(0)), varied(other)(Variation(0)))
    bounds = [each.bound for each in report.differences if each.name != "loss"]
    assumed = [each.bound for each in of_files.differences if each.name != "loss"]
    assert max(bounds) < min(assumed) / 4
    for mutant in MUTANTS[:3]:
        wrong = varied(plan._replace(mutant=mutant))
        assert referee(varied(plan), wrong).verdict is Verdict.BUG


def test_functions_with_few_digits_are_compared_by_their_microbatches():
    plan = SMALL._replace(steps=1)
    other = plan._replace(accumulate="bfloat16")

    def function_of(plan):
        def run(variation):
            return recorded(plan._replace(nudge=variation.nudge), "microbatches")

        return run

    assert referee(function_of(plan), function_of(other)).verdict is Verdict.ROUNDING
    same = referee(function_of(other), function_of(other._replace(shards=2)))
    assert same.verdict in (*NO_BUG, Verdict.CANNOT_TELL)


def test_honest_runs_are_equal_only_if_their_bits_are():
    a = recorded(SMALL, "gradients")
    assert honest(a, a) is referee(a, a).verdict is Verdict.EQUAL

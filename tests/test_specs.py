"""A Spec allows exactly what it declares, and its refusal says the value, the expected
ones and what to do.
"""

import argparse
import json
import re
from math import inf, isfinite, nan

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from minipipe.cli import main
from minipipe.cli.numbers import add_number, check_numbers
from minipipe.core.specs import COUNT, INDEX, SCHEDULE_COUNT, Spec, divisor
from minipipe.errors import (
    ArgumentError,
    Code,
    MinipipeError,
    ScheduleError,
    TensorError,
    quoted,
)

BOUNDS = st.none() | st.integers(-3, 3)
SPECS = st.tuples(st.sampled_from([int, float]), BOUNDS, BOUNDS, BOUNDS, BOUNDS).map(
    lambda parts: Spec(*parts)
)
NUMBERS = (
    st.integers(-4, 4) | st.floats() | st.booleans() | st.integers(-4, 4).map(np.int64)
)


def declares(spec, value):
    """Say again what a Spec of numbers means."""
    is_of_kind = isinstance(value, int | np.integer) or (
        spec.kind is float and isinstance(value, float)
    )
    if isinstance(value, bool) or not is_of_kind or value != value:
        return False
    if not isfinite(value) and value not in (spec.minimum, spec.maximum):
        return False
    lowest, highest = (
        (-inf if spec.minimum is None else spec.minimum),
        (inf if spec.maximum is None else spec.maximum),
    )
    above, below = (
        (-inf if spec.above is None else spec.above),
        (inf if spec.below is None else spec.below),
    )
    return (
        lowest <= value <= highest
        and (spec.above is None or value > above)
        and (spec.below is None or value < below)
    )


@given(SPECS, NUMBERS)
def test_a_number_is_allowed_if_it_is_within_all_bounds(spec, value):
    assert spec.allows(value) == declares(spec, value)
    if spec.allows(value):
        found = spec.check("it", value)
        assert found == value and type(found) is spec.kind
    else:
        with pytest.raises(
            ArgumentError,
            match=f"^{re.escape(f'it is {quoted(value)}; expected {spec.words}.')}$",
        ):
            spec.check("it", value)


@pytest.mark.parametrize(
    ("spec", "words"),
    [
        (COUNT, "a whole number, at least 1"),
        (INDEX._replace(maximum=3), "a whole number, 0 to 3"),
        (Spec(int, maximum=3), "a whole number, at most 3"),
        (Spec(int), "a whole number"),
        (Spec(float), "a number"),
        (Spec(float, minimum=0, below=1), "a number in [0, 1)"),
        (Spec(float, above=0, maximum=inf), "a number in (0, inf]"),
        (Spec(float, above=0), "a number in (0, inf)"),
        (Spec(float, maximum=1), "a number in (-inf, 1]"),
        (Spec(str, choices=("a",)), "'a'"),
        (Spec(str, choices=("a", "b", "c")), "'a', 'b' or 'c'"),
        (Spec(bool), "True or False"),
        (Spec(choices=(True, False, "maybe", None)), "True, False, 'maybe' or None"),
        (Spec(str), "text"),
        (Spec(int, expected="a number of bytes"), "a number of bytes"),
    ],
)
def test_the_words_follow_from_the_declaration(spec, words):
    assert spec.words == words
    advised = spec._replace(advice="Leave it out.")
    assert (
        str(advised.refusal("it", None))
        == f"it is None; expected {words}. Leave it out."
    )


@pytest.mark.parametrize("wrong", [None, "1", b"1", [], True, nan, 1j, object()])
def test_no_other_type_is_a_number(wrong):
    assert not COUNT.allows(wrong) and not Spec(float, minimum=0).allows(wrong)


@pytest.mark.parametrize("huge", [10**400, -(10**400)])
def test_a_whole_number_beyond_all_floats_is_infinite(huge):
    assert Spec(int).check("it", huge) == huge
    assert not Spec(float, minimum=-1e308).allows(huge)
    assert Spec(float, minimum=-inf, maximum=inf).check("it", huge) == (
        inf if huge > 0 else -inf
    )


def test_each_of_a_fixed_number_of_values_is_checked():
    spec = Spec(float, minimum=0, below=1, length=2)
    assert spec.check("betas", [0, 0.5]) == (0.0, 0.5)
    for wrong, message in (
        ([0.5], "betas is [0.5]; expected 2 values"),
        ([0, 2], "betas[1] is 2; expected a number in"),
    ):
        with pytest.raises(ArgumentError, match=f"^{re.escape(message)}"):
            spec.check("betas", wrong)
    with pytest.raises(
        ArgumentError, match="expected 2 values, each a whole number, at least 1"
    ):
        COUNT._replace(length=2).check("sizes", 3)


def test_a_choice_is_a_text_or_a_truth_value_and_no_number_is_one():
    spec = Spec(choices=(True, "maybe", None))
    for value, choice in (
        (True, True),
        (np.True_, True),
        ("maybe", "maybe"),
        (None, None),
    ):
        assert spec.check("it", value) is choice
    for wrong in (
        False,
        np.False_,
        1,
        1.0,
        np.int64(1),
        "True",
        [True],
        np.array([True, True]),
        {},
    ):
        with pytest.raises(ArgumentError, match="expected True, 'maybe' or None"):
            spec.check("it", wrong)


@pytest.mark.parametrize(
    ("given", "near"), [("meen", "mean"), ("SUM", "sum"), ("max", None), (3, None)]
)
def test_a_misspelt_choice_is_told_the_nearest(given, near):
    error = Spec(str, choices=("mean", "sum")).refusal("reduction", given)
    hint = f" Did you mean {near!r}?" if near else ""
    assert str(error) == f"reduction is {given!r}; expected 'mean' or 'sum'.{hint}"


def test_an_error_has_the_class_and_the_code_of_the_declaration():
    with pytest.raises(TensorError) as caught:
        Spec(float, error=TensorError, code="out-of-range").check("it", "x")
    assert caught.value.code is Code.OUT_OF_RANGE
    with pytest.raises(ScheduleError, match=r"^\[value\] it is 0"):
        SCHEDULE_COUNT.check("it", 0)
    with pytest.raises(ArgumentError) as of_class:
        Spec(str, expected="a name", advice="Quote it.").of_class("open", 3)
    assert (of_class.value.code, str(of_class.value)) == (
        "type",
        "open takes a name; this is of type int. Quote it.",
    )


@pytest.mark.parametrize("wrong", [0, -2, 4, 2.0, True, None])
def test_a_divisor_divides_all_numbers(wrong):
    assert divisor("it", 3, 6, 9, of="6 and 9") == 3
    with pytest.raises(MinipipeError, match="expected a divisor of 6 and 9"):
        divisor("it", wrong, 6, 9, of="6 and 9")


# -- the command line ------------------------------------------------------------------


def test_an_option_has_the_type_and_the_range_of_its_spec():
    parser = argparse.ArgumentParser()
    add_number(
        parser.add_argument_group("numbers"), "--count", spec=COUNT, dest="other"
    )
    add_number(parser, "--part", spec=Spec(float, minimum=0, maximum=1))
    check_numbers(parser, parser.parse_args([]))
    options = parser.parse_args(["--count", "3", "--part", "0.5"])
    check_numbers(parser, options)
    assert (options.other, options.part) == (3, 0.5)
    for words, message in (
        (["--count", "0"], "--count is 0"),
        (["--part", "2"], "--part is 2.0"),
    ):
        with pytest.raises(ArgumentError, match=f"^{re.escape(message)}; expected"):
            check_numbers(parser, parser.parse_args(words))


def test_a_number_out_of_range_is_also_an_answer_in_json(capsys):
    assert main(["show", "gpipe", "--ranks", "0", "--json"]) == 2
    told = json.loads(capsys.readouterr().out)
    assert (
        told["error"] == "value"
        and "--ranks is 0; expected a whole number, at least 1" in told["message"]
    )

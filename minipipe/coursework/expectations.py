"""Assertions for tests of exercises, whose errors name the call, the expected value and
the actual one.

All raise :class:`Unexpected`, an AssertionError that pytest shows as well. They check
the type first: an object that claims to equal everything does not pass.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from numbers import Real
from typing import Any

import numpy as np

from minipipe.core.schedules.action import Action
from minipipe.core.schedules.action_table import Program, Schedule
from minipipe.core.schedules.analysis.verifier import verify
from minipipe.errors import ScheduleError, counted

# pytest shows a student frames of his own files, and none of this one
__tracebackhide__ = True
_LONGEST = 400
_ADDRESS = re.compile(r" at 0x[0-9a-f]+>")  # differs in each run
_NAMES: dict[type, str] = {
    Real: "a number",
    np.ndarray: "an array",
    str: "text",
    bool: "True or False",
}
_PLAIN = (bool, int, float, str, bytes, range, type(None), Action)


class Unexpected(AssertionError):
    """The actual value is not the expected one.

    Parameters
    ----------
    what : str
        The call, such as ``bubble_fraction(4, 8)``.
    expected, got : str
    drawing : str
        A drawing that is printed below them.

    Examples
    --------
    >>> print(Unexpected("bubble_fraction(4, 8)", "3/11", "1/4"))
    bubble_fraction(4, 8): expected 3/11, got 1/4
    """

    def __init__(self, what: str, expected: str, got: str, drawing: str = "") -> None:
        message = f"{what}: expected {expected}, got {got}"
        if drawing:
            message += f"\n\n{drawing}\n"
        super().__init__(message)
        self.what = what
        self.expected = expected
        self.got = got
        self.drawing = drawing

    def __reduce__(self) -> tuple[type[Unexpected], tuple[str, ...]]:
        return type(self), (self.what, self.expected, self.got, self.drawing)


def expect_that(is_so: bool, what: str, expected: str, got: object) -> None:
    """Expect a condition.

    Examples
    --------
    >>> expect_that(2 == 2, "calls of the function", "one in each pass", 2)
    """
    if not is_so:
        if not isinstance(got, str):
            got = shown(got)
        raise Unexpected(what, expected, got)


def expect_type(got: object, kind: type | tuple[type, ...], what: str) -> None:
    """Expect an instance of a class.

    Examples
    --------
    >>> expect_type([1], (list, tuple), "rows(1, 1)")
    """
    if not isinstance(kind, tuple):
        kind = (kind,)
    names = " or ".join(
        _NAMES.get(each, f"a value of type {each.__name__}") for each in kind
    )
    how = f" of type {type(got).__name__}"
    if got is None:
        how = ", as from a function that ends without `return`"
    expect_that(isinstance(got, kind), what, names, f"{shown(got)}{how}")


def expect_sequence(got: Any, what: str) -> list[Any]:
    """Expect a sequence, an array or a generator, and return its items as a list.

    Examples
    --------
    >>> expect_sequence((rank for rank in range(2)), "ranks")
    [0, 1]
    """
    if isinstance(got, np.ndarray) and got.ndim > 0:
        return got.tolist()
    is_sequence = isinstance(got, (Sequence, Iterator))
    is_list = is_sequence and not isinstance(got, (str, bytes))
    actual = f"{shown(got)} of type {type(got).__name__}"
    expect_that(is_list, what, "a list", actual)
    return list(got)


def expect_equal(got: object, expected: object, what: str) -> None:
    """Expect a plain value: a number, a string, or a sequence of those; lists and
    tuples are equal.

    Examples
    --------
    >>> expect_equal([1, 2], (1, 2), "both")
    >>> expect_equal(3, 4, "rows(4, 8)")
    Traceback (most recent call last):
        ...
    minipipe.coursework.expectations.Unexpected: rows(4, 8): expected 4, got 3
    """
    reference = _plain(expected, what)
    value = _plain(got, what)
    if value != reference:
        raise Unexpected(
            what, shown(expected), _first_difference(value, reference) or shown(got)
        )


def expect_close(got: Any, expected: Any, what: str, tolerance: float = 1e-9) -> None:
    """Expect a number or array of the same shape, within a tolerance relative to the
    largest value, at least 1.

    Examples
    --------
    >>> expect_close(0.1 + 0.2, 0.3, "the sum")
    """
    if isinstance(expected, Real):
        expect_type(got, (Real, np.ndarray), what)
    else:
        expect_type(got, np.ndarray, what)
    value = np.asarray(got)
    reference = np.asarray(expected)
    _expect_same("shape", value.shape, reference.shape, what)
    allowed = tolerance * max(1.0, float(np.abs(reference).max(initial=0.0)))
    is_near = np.abs(value - reference) <= allowed  # False for nan
    if not is_near.all():
        raise _unexpected_element(what, value, reference, ~is_near)


def _expect_same(noun: str, got: object, expected: object, what: str) -> None:
    expect_that(got == expected, what, f"the {noun} {expected}", f"the {noun} {got}")


def expect_bits(got: Any, expected: np.ndarray, what: str) -> None:
    """Expect an array of the same dtype, shape and bits.

    Examples
    --------
    >>> expect_bits(np.ones(2), np.array([1.0, 1.0]), "the gradient")
    """
    expect_type(got, np.ndarray, what)
    _expect_same("dtype", got.dtype, expected.dtype, what)
    _expect_same("shape", got.shape, expected.shape, what)
    if got.tobytes() != expected.tobytes():
        raise _unexpected_element(
            f"{what}, bit for bit", got, expected, got != expected
        )


def _unexpected_element(
    what: str, got: np.ndarray, expected: np.ndarray, is_wrong: np.ndarray
) -> Unexpected:
    """Return the error with the first wrong element and their number."""
    places = np.argwhere(is_wrong)
    if got.ndim == 0 or not len(places):  # the sign of a zero
        return Unexpected(what, shown(expected), shown(got))
    place = tuple(map(int, places[0]))
    element = f"{what}, element {list(place)}"
    wrong = f"{len(places)} of {got.size} elements are wrong"
    return Unexpected(element, f"{expected[place]}", f"{got[place]}; {wrong}")


def expect_at_most(got: Any, limit: float, what: str) -> None:
    """Expect a number up to a limit.

    Examples
    --------
    >>> expect_at_most(37, 40, "the makespan")
    """
    expect_type(got, Real, what)
    expect_that(bool(got <= limit), what, f"at most {limit:g}", f"{got:g}")


def expect_legal(
    schedule: Any, what: str, memory_limit: int | Sequence[int] | None = None
) -> None:
    """Expect a legal schedule, within a memory limit in (stage, microbatch) pairs.

    Examples
    --------
    >>> from minipipe import schedules
    >>> expect_legal(schedules.one_f_one_b(2, 4), "1F1B", memory_limit=2)
    """
    expect_type(schedule, (Schedule, Program), what)
    try:
        verify(schedule, memory_limit)
    except ScheduleError as error:
        actual = f"one that is not. {error.problems[0].message}"
        raise Unexpected(what, "a legal schedule", actual, error.grid) from None


def shown(value: object) -> str:
    """Return a value as text, shortened if it is long; errors of its repr are caught.

    Examples
    --------
    >>> shown((Action.parse("0F0"), Action.parse("0B0")))
    '0F0 0B0'
    """
    try:
        if isinstance(value, np.ndarray):
            text = np.array2string(
                value, precision=8, separator=", ", threshold=20, edgeitems=3
            )
        elif isinstance(value, Action):
            text = str(value)
        elif (
            isinstance(value, (list, tuple))
            and value
            and all(isinstance(item, Action) for item in value)
        ):
            text = " ".join(map(str, value))
        else:
            text = _ADDRESS.sub(">", repr(value))
    except Exception as error:
        what = f"an object of type {type(value).__name__}"
        return f"{what} whose repr raises {type(error).__name__}"
    if len(text) <= _LONGEST:
        return text
    return f"{text[:_LONGEST]}… ({counted(len(text), 'character')})"


def _plain(value: Any, what: str) -> Any:
    """Return a value with lists for sequences and Python's numbers for NumPy's; refuse
    other objects.
    """
    if isinstance(value, np.generic):
        return value.item()
    if type(value) in (list, tuple):
        return [_plain(item, what) for item in value]
    plain = "numbers, text, or lists of them"
    expect_that(type(value) in _PLAIN, what, plain, f"an object {shown(value)}")
    return value


def _first_difference(got: Any, expected: Any) -> str | None:
    """Return the first difference of two long lists."""
    if not (isinstance(got, list) and isinstance(expected, list)) or len(expected) < 6:
        return None
    if len(got) != len(expected):
        return f"{counted(len(got), 'item')} instead of {len(expected)}: {shown(got)}"
    at = next(i for i, (one, other) in enumerate(zip(got, expected)) if one != other)
    return (
        f"{shown(got[at])} instead of {shown(expected[at])} at index {at}: {shown(got)}"
    )

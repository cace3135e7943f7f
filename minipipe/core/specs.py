"""Declarations of arguments: type, bounds, choices and the words of a refusal.

A :class:`Spec` reads an argument of a function, a cost, an option of the command line
or a member of a file, and refuses anything else in the same words: the value, the
expected values, what to do.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Sequence
from math import inf, isfinite
from numbers import Integral, Number, Real
from typing import Any, NamedTuple

from minipipe.core.errors import ArgumentError, MinipipeError, ScheduleError, quoted

MakeError = Callable[[Any, str], MinipipeError]  # from a code and a message

_WORDS: dict[Any, str] = {
    int: "a whole number",
    float: "a number",
    bool: "True or False",
    str: "text",
    list: "a list",
    dict: "a mapping",
    Callable: "a function",
}


class Spec(NamedTuple):
    """The legal values of an argument.

    Attributes
    ----------
    kind : type
        ``int`` and ``float`` are also numbers of NumPy, but no truth values. A number
        is finite, unless an infinite bound is included; ``10**400`` is infinite.
    minimum, maximum : float, optional
        The bounds of a number, both included.
    above, below : float, optional
        The bounds of a number, both excluded.
    choices : tuple
        All legal values: texts, True, False or None. Truth values of NumPy are also
        legal, and 1 is not True.
    expected : str
        Replaces the words that follow from the above.
    advice : str
        A sentence after the message.
    error : function
        From a code and a message to an error: a class, or ``ScheduleError.of``.
    code : str
        The code of the error.
    length : int, optional
        A sequence of so many values is expected; each is as described.
    of : str
        If each ``"stage"``, ``"slice"``, ``"host"`` or ``"rank"`` may have a value of
        its own, the noun; empty for a single value.

    Examples
    --------
    >>> Spec(int, minimum=1).check("num_steps", 3)
    3
    >>> Spec(int, minimum=1).check("num_steps", 2.5)
    Traceback (most recent call last):
    minipipe.errors.ArgumentError: num_steps is 2.5; expected a whole number, at least 1.
    >>> Spec(float, minimum=0, below=1).check("momentum", 1)
    Traceback (most recent call last):
    minipipe.errors.ArgumentError: momentum is 1; expected a number in [0, 1).
    >>> Spec(str, choices=("mean", "sum")).check("reduction", "max")
    Traceback (most recent call last):
    minipipe.errors.ArgumentError: reduction is 'max'; expected 'mean' or 'sum'.
    """

    kind: Any = float
    minimum: float | None = None
    maximum: float | None = None
    above: float | None = None
    below: float | None = None
    choices: tuple[Any, ...] = ()
    expected: str = ""
    advice: str = ""
    error: MakeError = ArgumentError
    code: str = "value"
    length: int | None = None
    of: str = ""

    def check(self, name: str, value: Any) -> Any:
        """Return an argument, numbers as Python's own; refuse any other value.

        Parameters
        ----------
        name : str
            Its name; after ``"operation: "`` if the caller's name helps.
        value : Any
        """
        if self.length is not None:
            return self._check_each(name, value)
        if type(value) is self.kind is int and self._is_within(value):
            return value  # at once: most arguments, and each action checks some
        if not self.allows(value):
            raise self.refusal(name, value)
        if self.choices:
            return self.choices[self.choices.index(value)]
        if self.kind is int:
            return int(value)
        return as_float(value) if self.kind is float else value

    def check_items(self, name: str, given: Any, items: Iterable[Any]) -> list[Any]:
        """Return the items of an argument; refuse the whole argument for a wrong
        one.
        """
        items = list(items)
        if all(map(self._allows_own, items)):
            return items
        if not all(map(self.allows, items)):
            raise self.refusal(name, given)
        return [self.check(name, item) for item in items]

    def _allows_own(self, value: Any) -> bool:
        """Whether a value is a legal float of Python's own, as most items are: in a
        tenth of the time of ``allows``.
        """
        if type(value) is not float or self.kind is not float or self.choices:
            return False
        return isfinite(value) and self._is_within(value)

    def _check_each(self, name: str, values: Any) -> tuple[Any, ...]:
        if not isinstance(values, Sequence) or len(values) != self.length:
            raise self.refusal(name, values, f"{self.length} values, each {self.words}")
        of_one = self._replace(length=None)
        return tuple(of_one.check(f"{name}[{i}]", one) for i, one in enumerate(values))

    def allows(self, value: Any) -> bool:
        """Whether a value is legal."""
        if self.choices:
            is_number = isinstance(value, Number) and not isinstance(value, bool)
            is_comparable = isinstance(value, Hashable) and not is_number
            return is_comparable and value in self.choices
        if self.kind is not int and self.kind is not float:
            return isinstance(value, self.kind)
        if self.kind is int and isinstance(value, Integral):
            return not isinstance(value, bool) and self._is_within(int(value))
        if self.kind is int or isinstance(value, bool) or not isinstance(value, Real):
            return False
        number = as_float(value)
        is_number = isfinite(number) or number in (self.minimum, self.maximum)
        return is_number and self._is_within(number)

    def _is_within(self, number: float) -> bool:
        return (
            (self.minimum is None or number >= self.minimum)
            and (self.maximum is None or number <= self.maximum)
            and (self.above is None or number > self.above)
            and (self.below is None or number < self.below)
        )

    def refusal(self, name: str, value: Any, expected: str = "") -> MinipipeError:
        """Return the error for a value that is not legal; ``expected`` replaces the
        words.
        """
        message = f"{name} is {quoted(value)}; expected {expected or self.words}."
        if isinstance(value, str) and (near := self._near(value)):
            message += f" Did you mean {near!r}?"
        return self.error(self.code, message + self._behind)

    def _near(self, value: str) -> str | None:
        """Return the choice that a misspelt value is most like."""
        from difflib import get_close_matches  # only a refusal needs it

        texts = [choice for choice in self.choices if isinstance(choice, str)]
        return next(iter(get_close_matches(value.lower(), texts, 1)), None)

    def of_class(self, taker: str, value: Any) -> Any:
        """Return an argument of a class; name only the type of another, not its value.

        Parameters
        ----------
        taker : str
            The function or class with the argument.
        value : Any

        Examples
        --------
        >>> Spec(type, expected="a class").of_class("Recompute", 4)
        Traceback (most recent call last):
        minipipe.errors.ArgumentError: Recompute takes a class; this is of type int.
        """
        if not isinstance(value, self.kind):
            raise self.error(
                "type",
                f"{taker} takes {self.words}; this is of type {type(value).__name__}."
                f"{self._behind}",
            )
        return value

    @property
    def words(self) -> str:
        """The words behind "expected" in a message."""
        if self.expected:
            return self.expected
        if self.choices:
            *others, last = map(repr, self.choices)
            return f"{', '.join(others)} or {last}" if others else last
        words = _WORDS.get(self.kind, f"a value of type {self.kind}")
        return words + (self._whole_bounds if self.kind is int else self._interval)

    @property
    def _behind(self) -> str:
        return self.advice and f" {self.advice}"

    @property
    def _whole_bounds(self) -> str:
        if self.minimum is not None and self.maximum is not None:
            return f", {self.minimum} to {self.maximum}"
        if self.minimum is not None:
            return f", at least {self.minimum}"
        return "" if self.maximum is None else f", at most {self.maximum}"

    @property
    def _interval(self) -> str:
        bounds = (self.minimum, self.maximum, self.above, self.below)
        if self.kind is not float or bounds == (None,) * 4:
            return ""
        low = f"({-inf if self.above is None else self.above}"
        high = f"{inf if self.below is None else self.below})"
        if self.minimum is not None:
            low = f"[{self.minimum}"
        if self.maximum is not None:
            high = f"{self.maximum}]"
        return f" in {low}, {high}"


def as_float(number: Any) -> float:
    """Return a number as a float; one beyond its range, such as ``10**400``, as
    infinity.

    Examples
    --------
    >>> as_float(2), as_float(-(10**400))
    (2.0, -inf)
    """
    try:
        return float(number)
    except OverflowError:
        return inf if number > 0 else -inf


FLAG = Spec(choices=(True, False))
COUNT = Spec(int, minimum=1)
INDEX = Spec(int, minimum=0)
SCHEDULE_COUNT = COUNT._replace(error=ScheduleError.of)
SCHEDULE_NUMBER = Spec(float, minimum=0, error=ScheduleError.of)
SCHEDULE_AMOUNT = Spec(float, above=0, maximum=inf, error=ScheduleError.of)
"""Numbers of a schedule: the error lists problems, as an error of the verifier does."""

TEXT_WIDTH = Spec(int, minimum=40, expected="at least 40 columns")


def divisor(
    name: str,
    value: Any,
    *numbers: int,
    of: str,
    error: MakeError = ArgumentError,
    code: str = "value",
) -> int:
    """Return an argument that divides numbers; refuse anything else.

    ``of`` describes ``numbers``; the other parameters are as in :class:`Spec`.

    Examples
    --------
    >>> divisor("num_groups", 4, 6, of="the 6 channels")
    Traceback (most recent call last):
    minipipe.errors.ArgumentError: num_groups is 4; expected a divisor of the 6 channels.
    """
    spec = COUNT._replace(expected=f"a divisor of {of}", error=error, code=code)
    size = spec.check(name, value)
    if any(number % size for number in numbers):
        raise spec.refusal(name, value)
    return size

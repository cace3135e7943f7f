"""Hints in errors, if there are any.

Errors can name the equivalents here of other libraries' names (``hints.py``). The core
knows none of them: it asks an adviser, if one is installed, when something has failed.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from functools import partial, update_wrapper
from types import FunctionType
from typing import TYPE_CHECKING, Any, NoReturn, ParamSpec, Self, TypeVar

P = ParamSpec("P")
Result = TypeVar("Result")


@contextmanager
def optional() -> Iterator[None]:
    """Leave this block if a module of minipipe that it imports does not exist: the core
    works without the other packages.
    """
    try:
        yield
    except ImportError as error:
        if not str(error.name).startswith("minipipe"):
            raise


def adviser() -> Any:
    """Return the module of hints, or None without one."""
    with optional():
        from minipipe import hints

        return hints
    return None


class Familiar:
    """A class whose missing attributes raise an error with a hint."""

    __slots__ = ()

    if not TYPE_CHECKING:  # a type checker is to report a missing attribute

        def __getattr__(self, name: str) -> NoReturn:
            # Reached only when the normal look-up has failed.
            # a property that failed: again, for its own error
            if hasattr(type(self), name):
                return object.__getattribute__(self, name)
            raise AttributeError(_Missing(self, name))


class _Missing:
    """The message for a missing attribute, made when someone reads it: most are asked
    for by ``hasattr``, which reads none, and looking for similar names takes longer
    than a layer.
    """

    def __init__(self, owner: object, name: str) -> None:
        self._owner = owner
        self._name = name

    def __str__(self) -> str:
        kinds = [kind.__name__ for kind in type(self._owner).__mro__]
        return str(missing(kinds[0], self._name, dir(self._owner), *kinds))

    def __repr__(self) -> str:
        return repr(str(self))

    def __reduce__(self) -> tuple[type, tuple[str]]:
        return str, (str(self),)  # another process gets the text alone


def with_hints(function: Callable[P, Result]) -> Callable[P, Result]:
    """Let a function name the equivalent of a keyword that it does not take.

    Nothing is checked unless a call fails.

    Raises
    ------
    ArgumentError
        Code ``name``.

    Examples
    --------
    >>> from minipipe import Tensor
    >>> Tensor([1.0, 2.0]).sum(dim=0)
    Traceback (most recent call last):
        ...
    minipipe.errors.ArgumentError: total takes no dim=; here it is axis=.
    """
    advise = adviser  # not a name of the module whose globals the twin has

    def called(*positional: P.args, **given: P.kwargs) -> Result:
        try:
            return function(*positional, **given)
        except TypeError as error:
            hints = advise()
            if hints is not None:
                hints.refuse(error, function, positional, given)
            raise

    # With the globals of the function: doctest runs only functions with the globals of
    # the module that it reads.
    names = getattr(function, "__globals__", {})
    twin = FunctionType(called.__code__, names, closure=called.__closure__)
    return update_wrapper(twin, function)


def advised(question: str, *given: Any) -> Any:
    """Return the answer of the adviser's function of that name; None without one."""
    hints = adviser()
    return None if hints is None else getattr(hints, question)(*given)


def missing(owner: str, name: str, known: Iterable[str], *kinds: str) -> Exception:
    """Return the error for a missing attribute of a class, or name of a package."""
    error = advised("missing", owner, name, known, *kinds)
    return error or AttributeError(f"{owner} has no attribute {name!r}.")


explain = partial(advised, "explain")
"""Add a note to Python's own error, if there is an equivalent here."""
check_keywords = partial(advised, "check_keywords")
"""Refuse keywords that the constructor of a class does not take."""
check_options = partial(advised, "check_options")
"""Refuse keywords that the forward of a layer does not take."""
check_arguments = partial(advised, "check_arguments")
"""Refuse arguments, ``self`` among them, that a function does not take."""


class FamiliarKeywords(Familiar):
    """A class that refuses keywords that its constructor does not take; the error names
    the equivalent of PyTorch's.
    """

    __slots__ = ()

    def __new__(cls, *positional: Any, **given: Any) -> Self:
        """Check the keywords."""
        check_keywords(cls, positional, given)
        return super().__new__(cls)

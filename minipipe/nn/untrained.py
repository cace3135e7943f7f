"""Attributes of layers that look like weights but are not: no optimiser, checkpoint or
comparison would see them.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

from minipipe.core.autograd import backend
from minipipe.core.errors import warn_caller
from minipipe.core.nn.parameter import Parameter
from minipipe.core.tensor import Tensor


def warn_of_untrained(modules: Iterable[Any]) -> None:
    """Warn, once for all modules, of attributes that may be weights and are not
    trained.

    The following are reported if they belong to a custom layer: an array or a tensor of
    real numbers, alone or in a list, tuple or dict; and a parameter, or a module with
    parameters, in a set, in a slot, or in an object that is not a module, since modules
    do not search these. The following are not: whole numbers and truth values;
    attributes whose names begin with an underscore; attributes that the class names in
    ``not_trained`` or in ``not_compared``; and attributes of minipipe's layers that
    these do not use.

    Parameters
    ----------
    modules : iterable of Module

    Examples
    --------
    >>> import warnings
    >>> import numpy as np
    >>> from minipipe import nn
    >>> class Scale(nn.Module):
    ...     __module__, not_trained = "yours", "offset"
    ...
    ...     def __init__(self):
    ...         self.scale, self.offset, self.mask = (
    ...             np.ones(3),
    ...             np.zeros(3),
    ...             np.tri(3, dtype=bool),
    ...         )
    >>> with warnings.catch_warnings(record=True) as caught:
    ...     warnings.simplefilter("always")
    ...     warn_of_untrained([Scale()])
    >>> print(caught[0].message)
    Scale.scale holds real numbers that are not trained: it is not a parameter. A weight is an nn.Parameter(values), ...
    """
    distinct = {id(module): module for module in modules}.values()
    pairs = [(module, name) for module in distinct for name in _untrained_in(module)]
    found = dict.fromkeys(f"{type(module).__name__}.{name}" for module, name in pairs)
    if found:
        holds = "holds" if len(found) == 1 else "hold"
        one = next(iter(found)).partition(".")[2]
        warn_caller(
            f"{', '.join(found)} {holds} real numbers that are not trained: it is not "
            "a parameter. A weight is an nn.Parameter(values), in an attribute or in "
            "a list, tuple or dict of them. A constant is named by its class: "
            f'not_trained = ("{one}",).'
        )


def names_of(given: str | Iterable[str]) -> tuple[str, ...]:
    """Return the names that a class gives as ``not_trained``, ``not_compared`` or
    ``__slots__``: one, or several.

    Examples
    --------
    >>> names_of("table"), names_of(["table", "mask"])
    (('table',), ('table', 'mask'))
    """
    return (given,) if isinstance(given, str) else tuple(given)


def _untrained_in(module: Any) -> Iterator[str]:
    """Yield the names of a module's attributes that may be weights."""
    package = type(module).__module__.partition(".")[0]
    is_own = package == "minipipe" and "forward" not in vars(module)
    read = type(module).forward.__code__.co_names if is_own else None
    given = [getattr(module, name, ()) for name in ("not_trained", "not_compared")]
    declared = {name for names in given for name in names_of(names)}
    for name, value in vars(module).items():
        is_hidden = name.startswith("_") or name in declared
        is_looked_at = not is_hidden and (read is None or name in read)
        if is_looked_at and any(_are_weights(value)):
            yield name
    for kind in type(module).__mro__:
        for name in names_of(vars(kind).get("__slots__", ())):
            if name not in declared and _has_parameters(getattr(module, name, None)):
                yield name


def _are_weights(value: Any) -> Iterator[bool]:
    """Yield for each part of an attribute whether it may be an untrained weight."""
    if isinstance(value, Parameter):
        return
    if isinstance(value, list | tuple | dict):
        for item in _items_of(value):
            yield from _are_weights(item)
    elif isinstance(value, Tensor) or backend.is_array(value):
        yield backend.is_floating(value.dtype) and 0 not in value.shape
    elif isinstance(value, set | frozenset):
        yield _has_parameters(value)
    # an object; modules, classes and functions can be called
    elif not callable(value) and hasattr(value, "__dict__"):
        yield any(map(_has_parameters, vars(value).values()))


def _has_parameters(value: Any) -> bool:
    """Return whether a value is a parameter, or a module, list, tuple, dict or set with
    some in it.
    """
    if isinstance(value, Parameter):
        return True
    if isinstance(value, list | tuple | dict | set | frozenset):
        return any(map(_has_parameters, _items_of(value)))
    if hasattr(value, "named_parameters"):
        return bool(getattr(value, "num_parameters", 0))
    return False


def _items_of(value: Any) -> Iterable[Any]:
    return value.values() if isinstance(value, dict) else value

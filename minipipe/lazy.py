"""Public names that a package loads when they are first asked for (PEP 562)."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from importlib import import_module
from typing import Any

__all__ = ["names_on_demand"]


def names_on_demand(
    package: str, names: Mapping[str, Sequence[str]]
) -> tuple[Callable[[str], Any], Callable[[], list[str]], list[str]]:
    """Return ``__getattr__``, ``__dir__`` and the list of names for a package.

    Parameters
    ----------
    package : str
        Its ``__name__``.
    names : mapping of str to sequence of str
        By module, the public names that it defines. ``"nn": ["nn"]`` stands for the module itself.

    Examples
    --------
    >>> load, _, names = names_on_demand("minipipe", {"minipipe.simulation": ["simulate"]})
    >>> load("simulate").__name__, names
    ('simulate', ['simulate'])
    """
    home_of = {name: module for module, defined in names.items() for name in defined}

    def load(name: str) -> Any:
        if name not in home_of:
            raise AttributeError(f"module {package!r} has no attribute {name!r}")
        module = import_module(home_of[name])
        return module if home_of[name].endswith(f".{name}") else getattr(module, name)

    return load, lambda: sorted(home_of), sorted(home_of)

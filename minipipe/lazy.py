"""Public names that a package loads when they are first asked for (PEP 562).

It imports only what Python itself has imported when it starts; ``minipipe.__main__`` says why.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from importlib import import_module

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any


def names_on_demand(
    package: str, names: Mapping[str, Sequence[str]], modules: Sequence[str] = (), at_once: Sequence[str] = ()
) -> tuple[Callable[[str], Any], Callable[[], list[str]], list[str]]:
    """Return ``__getattr__``, ``__dir__`` and the list of names for a package.

    Parameters
    ----------
    package : str
        Its ``__name__``.
    names : mapping of str to sequence of str
        By module, the public names that it defines.
    modules : sequence of str
        The modules that are public themselves, each by the last part of its name.
    at_once : sequence of str
        The names that the package has imported already.

    Examples
    --------
    >>> load, _, names = names_on_demand("minipipe", {"minipipe.schedules.simulation.simulator": ["simulate"]})
    >>> load("simulate").__name__, names
    ('simulate', ['simulate'])
    """
    home_of = {name: module for module, defined in names.items() for name in defined}
    module_of = {module.rpartition(".")[2]: module for module in modules}

    def load(name: str) -> Any:
        if name in module_of:
            return import_module(module_of[name])
        if name in home_of:
            return getattr(import_module(home_of[name]), name)
        from minipipe.habits import missing_from_package  # most programs need no such error

        raise missing_from_package(package, name, public)

    public = sorted({*home_of, *module_of, *at_once})
    return load, lambda: public, public

"""Public names that a package loads on first access (PEP 562), as its stub
``__init__.pyi`` lists them.

Editors and type checkers read the same stub, so each name is listed once. This file
imports no module that is a file, not even ``__future__``, for the reason given in
``minipipe.__main__``.
"""

import sys

# read by setup.cfg; CITATION.cff and CHANGELOG.md also have it, and a test compares
# them
__version__ = "0.1.0"

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any


class Equivalents:
    """The last finder that Python tries: an import of another library's name raises an
    error that names its equivalent.

    It is in ``sys.meta_path``, since nothing else sees ``import
    minipipe.nn.functional``, or the missing name in ``from minipipe.data import
    DataLoader``: Python drops the error of ``__getattr__`` there.
    """

    @staticmethod
    def find_spec(name: str, path: "Any" = None, target: "Any" = None) -> None:
        """Find nothing."""
        if name.startswith("minipipe."):
            from minipipe.hints import check_import

            check_import(name)


def names_on_demand(
    package: str, file: str
) -> "tuple[Callable[[str], Any], Callable[[], list[str]], list[str]]":
    """Return ``__getattr__``, ``__dir__`` and ``__all__`` for a package with a stub.

    Each line of the stub is ``from module import name as name``, with ``package``
    itself as the module of its modules.

    Parameters
    ----------
    package, file : str
        The ``__name__`` and the ``__file__`` of the package.

    Examples
    --------
    >>> import minipipe
    >>> load, _, names = names_on_demand("minipipe", minipipe.__file__)
    >>> load("simulate").__name__, "simulate" in names
    ('simulate', True)
    """
    with open(f"{file}i", encoding="utf-8") as stub:
        lines = [line.split() for line in stub if line.startswith("from ")]
    home_of = {name: module for _, module, _, name, *_ in lines}
    names = sorted(home_of)

    def load(name: str) -> "Any":
        if name not in home_of:
            from minipipe.hints import missing  # most programs need no such error

            raise missing(package, name, names)
        from importlib import import_module

        home = home_of[name]
        # Asking the package itself for one of its modules would end here again.
        found = None if home == package else getattr(import_module(home), name, None)
        found = import_module(f"{home}.{name}") if found is None else found
        # from now on without this function
        setattr(import_module(package), name, found)
        return found

    return load, lambda: names, names


sys.meta_path.append(Equivalents)  # at the end: tried after all other finders

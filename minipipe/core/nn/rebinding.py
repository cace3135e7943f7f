"""Functions that a program assigns to a module, such as another ``forward``, in a copy
of the module.
"""

from __future__ import annotations

from types import CellType, FunctionType, MethodType
from typing import Any


def rebound(value: Any, memo: dict[int, Any]) -> Any:
    """Return a function that refers to the copies instead of the copied objects; other
    functions as they are.

    ``copy.deepcopy`` does not copy functions. So in a copy of a layer with
    ``layer.forward = lambda x: 2 * old(x)``, the function would compute with the
    parameters of the original, and the copied parameters would not be trained.

    Parameters
    ----------
    value : object
    memo : dict
        The memo of ``copy.deepcopy``: by the identity of an original, its copy.

    Examples
    --------
    >>> original, other = [1], [2]
    >>> rebound(lambda given=original: given, {id(original): other})()
    [2]
    """
    if id(value) in memo:
        return memo[id(value)]
    if isinstance(value, MethodType):
        if id(value.__self__) in memo:
            return MethodType(value.__func__, memo[id(value.__self__)])
        return value
    if not isinstance(value, FunctionType):
        return value
    before = value.__closure__ or ()
    names = value.__kwdefaults__ or {}
    # other cells are shared: their names may get other values
    is_new = [_may_change(cell, memo) for cell in before]
    pairs = zip(is_new, before)
    cells = tuple(CellType() if is_other else cell for is_other, cell in pairs)
    names_of_module = value.__globals__
    twin = FunctionType(value.__code__, names_of_module, value.__name__, None, cells)
    memo[id(value)] = twin  # now, for a function that refers to itself
    changes = []

    def new(referred: Any) -> Any:
        found = rebound(referred, memo)
        changes.append(found is not referred and referred is not value)
        return found

    for cell, old in zip(cells, before):
        if cell is not old:
            cell.cell_contents = new(old.cell_contents)
    twin.__defaults__ = tuple(map(new, value.__defaults__ or ())) or None
    twin.__kwdefaults__ = {name: new(each) for name, each in names.items()} or None
    twin.__qualname__ = value.__qualname__
    twin.__dict__.update(value.__dict__)
    if not any(changes):
        memo[id(value)] = value
    return memo[id(value)]


def _may_change(cell: CellType, memo: dict[int, Any]) -> bool:
    try:
        held = cell.cell_contents
    except ValueError:  # of a name that has no value yet
        return False
    return id(held) in memo or isinstance(held, FunctionType | MethodType)

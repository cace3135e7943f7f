"""The names that a task may use: from minipipe, only the names that its file already
imports.

The library contains solutions of its exercises. The imports of the student's copy
therefore define the allowed names. Other imports of minipipe are refused when they run,
and reported to the instructor. Names that are useful only to circumvent the refusal are
also reported. Pasting the library's source into a file is not detected.
"""

from __future__ import annotations

import ast
import builtins
from collections.abc import Collection, Iterator
from typing import Any

_NAMES = """
    __builtins__ __closure__ __code__ __globals__ __import__ __loader__ __spec__ eval
    exec __subclasses__ _current_frames _getframe f_back f_globals f_locals sys.modules
    tb_frame
"""
_MODULES = """
    _ctypes builtins ctypes gc importlib inspect marshal pkgutil runpy zipimport
"""
_WAYS_AROUND = frozenset(_NAMES.split())
_MODULES_AROUND = frozenset(_MODULES.split())

Names = Collection[tuple[str, str]]


def given_names(stub: str) -> list[tuple[str, str]]:
    """Return the imports of minipipe in a file: pairs of a module and a name in it.

    Examples
    --------
    >>> given_names(
    ...     "import numpy as np\\nfrom minipipe.core.tensor import Tensor, record\\n"
    ... )
    [('minipipe.core.tensor', 'Tensor'), ('minipipe.core.tensor', 'record')]
    """
    return [
        (module, name)
        for _, module, name in _imports(ast.parse(stub))
        if module.partition(".")[0] == "minipipe"
    ]


def findings(tree: ast.Module, allowed: Names) -> list[str]:
    """Return the names in a student's file that its task does not allow, each with its
    line.

    Examples
    --------
    >>> findings(
    ...     ast.parse("from minipipe import schedules\\nimport gc\\nsys.modules\\n"),
    ...     [("minipipe", "Tensor")],
    ... )
    ['line 1: minipipe.schedules', 'line 2: gc', 'line 3: sys.modules']
    """
    refused = {
        (line, _name(module, name))
        for line, module, name in _imports(tree)
        if _is_refused(module, name, allowed)
    }
    for node in ast.walk(tree):
        if isinstance(node, ast.Name | ast.Attribute):
            used = _WAYS_AROUND.intersection(_used(node))
            refused |= {(node.lineno, name) for name in used}
    return [f"line {line}: {what}" for line, what in sorted(refused)]


def guarded_builtins(allowed: Names, flags: list[str]) -> dict[str, Any]:
    """Return builtins for a student's module, whose ``import`` refuses names that the
    task does not allow.

    Refused names that are not among the flags, because the text hides them, are
    appended to ``flags``.
    """

    def guarded(
        name: str, of: Any = None, local: Any = None, fromlist: Any = (), level: int = 0
    ) -> Any:
        for imported in fromlist or ("",):
            if _is_refused(name, imported, allowed):
                refused = _name(name, imported)
                if not any(flag.endswith(f": {refused}") for flag in flags):
                    flags.append(f"when it ran: {refused}")
                reason = f"{refused} is not allowed in this task"
                how = "use the names that its file already imports"
                raise ImportError(f"{reason}; {how}")
        return builtins.__import__(name, of, local, fromlist, level)

    return {**vars(builtins), "__import__": guarded}


def _imports(tree: ast.Module) -> Iterator[tuple[int, str, str]]:
    """Yield the line, the module and the name of each import; the name is empty if the
    module itself is bound.
    """
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from ((node.lineno, alias.name, "") for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            for alias in node.names:
                yield node.lineno, node.module or "", alias.name


def _used(node: ast.Name | ast.Attribute) -> tuple[str, ...]:
    """Return the name in a node; for an attribute, also the name with its object."""
    if isinstance(node, ast.Name):
        return (node.id,)
    owner = getattr(node.value, "id", "")
    return node.attr, f"{owner}.{node.attr}"


def _is_refused(module: str, name: str, allowed: Names) -> bool:
    top = module.partition(".")[0]
    if top in _MODULES_AROUND or {name, _name(module, name)} & _WAYS_AROUND:
        return True
    return top == "minipipe" and (module, name) not in allowed


def _name(module: str, name: str) -> str:
    if not name:
        return module
    return f"{module}.{name}"

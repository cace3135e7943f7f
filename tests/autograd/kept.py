"""Writes kept.txt: for each operation, the values that its nodes keep after a forward,
and after I for W.

``python -m tests.autograd.kept`` writes it; ``test_kept.py`` compares it with the
operations, so that whoever changes a gradient sees what the memory of a stage gains or
loses.
"""

from __future__ import annotations

import pkgutil
from collections.abc import Iterator
from importlib import import_module
from pathlib import Path

import minipipe
from minipipe.core.autograd.operation import Operation

FILE = Path(__file__).with_name("kept.txt")
TITLE = ("operation", "inputs", "after F", "without weights", "after I")
ABOUT = """\
# By operation, the names of the values that a node keeps: after F, if all inputs need a gradient; after F, if only the
# first does; after I, if the first input is an activation and the others are weights (and the gradient of the result).
# An input in parentheses has no gradient. Written by `python -m tests.autograd.kept`.
"""


def operations() -> Iterator[tuple[str, Operation]]:
    """Yield (module, operation) for each operation of the package, in the order of
    modules and definitions.
    """
    seen = set()
    modules = ["minipipe.core.tensor", "minipipe.core.joints"]
    for folder in ("core.functional", "core.nn", "functional", "nn"):
        package = import_module(f"minipipe.{folder}")
        modules += [
            f"minipipe.{folder}.{module.name}"
            for module in pkgutil.iter_modules(package.__path__)
        ]
    for name in modules:
        for value in vars(import_module(name)).values():
            operation = getattr(value, "operation", None)
            if (
                isinstance(operation, Operation)
                and value.__module__ == name
                and operation not in seen
            ):
                seen.add(operation)
                yield name.removeprefix(f"{minipipe.__name__}."), operation


def row(module: str, operation: Operation) -> tuple[str, ...]:
    """Return one row of the table."""
    # two of any number
    inputs = operation.inputs + operation.inputs[-1:] * operation.is_variadic
    has_gradient = [name in operation.steps for name in inputs]
    count = len(inputs)
    pattern = sum(1 << i for i in range(count) if has_gradient[i])
    plan = operation.plan(pattern | 1 << count)
    cells = [listed(plan.names), "", ""]
    if sum(has_gradient) > 1:
        first = has_gradient.index(True)
        cells[1] = listed(operation.plan(1 << first | 1 << count).names)
        is_activation = tuple(i == first for i in range(count) if has_gradient[i])
        cells[2] = listed(plan.halves(is_activation)[1][0].names)
    shown = [
        "*" * (operation.is_variadic and name == operation.inputs[-1]) + name
        for name in operation.inputs
    ]
    shown = [
        text if name in operation.steps else f"({text})"
        for text, name in zip(shown, operation.inputs)
    ]
    return (f"{module}.{operation.name}", " ".join(shown), *cells)


def listed(names: tuple[str, ...]) -> str:
    return " ".join(names) or "-"


def table() -> str:
    """Return the text of the file."""
    rows = [TITLE, *sorted(row(*each) for each in operations())]
    widths = [max(len(each[column]) for each in rows) for column in range(len(TITLE))]
    lines = [
        "  ".join(cell.ljust(width) for cell, width in zip(each, widths)).rstrip()
        for each in rows
    ]
    return ABOUT + "\n".join(lines) + "\n"


if __name__ == "__main__":
    FILE.write_text(table(), encoding="utf-8")

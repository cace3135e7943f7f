"""Reading a lesson: what it prints that no assert is about."""

import ast
import builtins
from collections import defaultdict


def printed_without_assert(cell, imported=frozenset()):
    """Return the names that a cell prints or shows although none of its asserts is
    about them.

    An assert is about a value if it names it, something that it was made from, or
    something made from it, all within the cell. A call counts as the function's name,
    where nothing else is printed. Of drawings shown above each other, an assert about
    one is enough: the others are there to compare with.
    """
    nodes = list(ast.walk(ast.parse(cell.text)))
    sources = _sources(nodes)
    asserted = _names([node.test for node in nodes if isinstance(node, ast.Assert)])
    made_from = _ancestors(asserted, sources)
    found = set()
    for node in nodes:
        if isinstance(node, ast.Call) and _called(node) in ("print", "show"):
            names = _printed_names(node) - imported - set(dir(builtins))
            uncovered = {
                name
                for name in names - made_from
                if not _ancestors({name}, sources) & asserted
            }
            if _called(node) == "print" or uncovered == names:
                found |= uncovered
    return sorted(found)


def imported_names(source):
    """Return the names that a script imports."""
    imports = [
        node
        for node in ast.walk(ast.parse(source))
        if isinstance(node, ast.Import | ast.ImportFrom)
    ]
    return frozenset(
        (alias.asname or alias.name).split(".")[0]
        for node in imports
        for alias in node.names
    )


def _called(call):
    return (
        call.func.id
        if isinstance(call.func, ast.Name)
        else getattr(call.func, "attr", "")
    )


def _names(expressions):
    nodes = [node for expression in expressions for node in ast.walk(expression)]
    return {node.id for node in nodes if isinstance(node, ast.Name)}


def _printed_names(call):
    """Return the names in what a call prints; those of functions only where there is
    nothing else.
    """
    values = [*call.args, *(keyword.value for keyword in call.keywords)]
    functions = {
        _called(node)
        for value in values
        for node in ast.walk(value)
        if isinstance(node, ast.Call)
    }
    names = _names(values)
    return names - functions or names


def _sources(nodes):
    """Return, by name, the names that its value was made from: assigned, looped over,
    caught or entered.
    """
    pairs = []
    for node in nodes:
        if isinstance(node, ast.Assign):
            pairs += [(target, [node.value]) for target in node.targets]
        elif isinstance(node, ast.AugAssign | ast.NamedExpr):
            pairs.append((node.target, [node.value]))
        elif isinstance(node, ast.For | ast.comprehension):
            pairs.append((node.target, [node.iter]))
        elif isinstance(node, ast.withitem) and node.optional_vars:
            pairs.append((node.optional_vars, [node.context_expr]))
    sources = defaultdict(set)
    for target, values in pairs:
        for name in _names([target]):
            sources[name] |= _names(values)
    return sources


def _ancestors(names, sources):
    """Return these names and all that their values were made from."""
    found, waiting = set(), set(names)
    while waiting:
        name = waiting.pop()
        found.add(name)
        waiting |= sources.get(name, set()) - found
    return found

"""Every name that tests, tutorials and documents import from minipipe exists.

Type checkers read the package only, and pytest imports a test when it runs it: a name
that moved would break them for whoever runs them next.
"""

import ast
import functools
import importlib
import re
from importlib.util import find_spec
from pathlib import Path
from textwrap import dedent

import pytest

from tests.code_lines import parsed, tree_of

ROOT = Path(__file__).resolve().parent.parent
_BLOCK = re.compile(r"^```python\n(.*?)^```", re.DOTALL | re.MULTILINE)
_MAY_FAIL = ("raises", "suppress", "importorskip")


def trees():
    """Yield (place, syntax tree) of programs and of Python blocks in documents."""
    for folder in ("tests", "tutorials"):
        for path in sorted((ROOT / folder).rglob("*.py")):
            yield str(path.relative_to(ROOT)), parsed(path)
    documents = [*ROOT.glob("*.md")]
    for folder in ("minipipe", "tests", "tutorials"):
        documents += (ROOT / folder).rglob("*.md")
    for path in sorted(documents):
        for number, block in enumerate(_BLOCK.findall(path.read_text("utf-8")), 1):
            yield f"{path.relative_to(ROOT)}, block {number}", tree_of(dedent(block))


def imports_in(tree):
    """Yield (line, module, name) of imports from minipipe; the name may be missing.

    Left out is what may fail: inside ``try`` and ``with pytest.raises``. Expressions
    have no imports, and most nodes.
    """
    statements = list(tree.body)
    while statements:
        node = statements.pop()
        if isinstance(node, ast.Import):
            names = (alias.name for alias in node.names)
            yield from ((node.lineno, name, "") for name in names if is_ours(name))
        elif isinstance(node, ast.ImportFrom) and is_ours(node.module or ""):
            for alias in node.names:
                yield node.lineno, node.module, alias.name
        elif not may_fail(node):
            for part in ("body", "orelse", "cases"):
                statements += getattr(node, part, ())


def is_ours(module):
    return module.partition(".")[0] == "minipipe"


def may_fail(node):
    if isinstance(node, ast.With):
        return any(name in ast.unparse(node.items[0]) for name in _MAY_FAIL)
    return isinstance(node, ast.Try)


@functools.cache
def exists(module, name):
    try:
        home = importlib.import_module(module)
    except ModuleNotFoundError:
        return False
    if name in ("", "*") or hasattr(home, name):
        return True
    return hasattr(home, "__path__") and bool(find_spec(f"{module}.{name}"))


def missing(trees):
    return [
        f"{place}:{line}: {module} has no {name or 'such module'}"
        for place, tree in trees
        for line, module, name in imports_in(tree)
        if not exists(module, name)
    ]


def test_every_name_imported_from_minipipe_exists():
    assert missing(trees()) == []


@pytest.mark.parametrize(
    ("text", "number"),
    [
        ("from minipipe import Tensor, nn\nimport minipipe.core.tensor", 0),
        ("from minipipe.core import tensor", 0),
        ("from minipipe import Tensr", 1),
        ("def f():\n    if f:\n        from minipipe.core.tensor import Tensr", 1),
        ("class C:\n    from minipipe.core import tensr", 1),
        ("import minipipe.tensor", 1),
        ("from minipipe.gone import a, b", 2),
        ("for _ in ():\n    pass\nelse:\n    import minipipe.gone", 1),
        ("match 1:\n    case 1:\n        import minipipe.gone", 1),
        ("try:\n    import minipipe.gone\nexcept ImportError:\n    pass", 0),
        ("with raises(ImportError):\n    import minipipe.gone", 0),
        ("with open('x') as x:\n    import minipipe.gone", 1),
        ("from minipipes import gone", 0),
    ],
)
def test_a_name_that_is_gone_is_found(text, number):
    assert len(missing([("here", tree_of(text))])) == number

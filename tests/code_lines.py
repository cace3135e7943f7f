"""The sources, parsed once for all tests that read them, and their lines of code:
without docstrings and comments.
"""

import ast
import functools
import gc
import io
import tokenize

_NOT_CODE = {
    tokenize.COMMENT,
    tokenize.NL,
    tokenize.NEWLINE,
    tokenize.INDENT,
    tokenize.DEDENT,
    tokenize.ENDMARKER,
}


@functools.cache
def tree_of(source):
    """Return the syntax tree of a text, which no test may change."""
    tree = ast.parse(source)
    # A million nodes of the whole package stay; a collection of garbage that looked at
    # them would take half a second more.
    gc.freeze()
    return tree


@functools.cache
def parsed(path):
    """Return the syntax tree of a file, which no test may change."""
    return tree_of(path.read_text(encoding="utf-8"))


@functools.cache
def code_lines(source):
    """Return the numbers of the lines of a module that hold code."""
    tokens = tokenize.generate_tokens(io.StringIO(source).readline)
    lines = {
        n
        for t in tokens
        if t.type not in _NOT_CODE
        for n in range(t.start[0], t.end[0] + 1)
    }
    return lines - _docstring_lines(tree_of(source))


def _docstring_lines(tree):
    kinds = (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)
    bodies = [
        node.body
        for node in ast.walk(tree)
        if isinstance(node, kinds) and ast.get_docstring(node, clean=False)
    ]
    return {n for body in bodies for n in range(body[0].lineno, body[0].end_lineno + 1)}


def functions(source):
    """Yield (name, lines of code) for every function of a module."""
    lines = code_lines(source)
    for node in ast.walk(tree_of(source)):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            yield node.name, len(lines & set(range(node.lineno, node.end_lineno + 1)))

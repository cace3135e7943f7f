"""Every error that a user can cause is in the tree, and has one of the codes of its class."""

import ast
import functools
import pickle
from pathlib import Path

import pytest

from minipipe import errors
from tests.code_lines import parsed

PACKAGE = Path(__file__).resolve().parent.parent / "minipipe"
TREES = {path.relative_to(PACKAGE): parsed(path) for path in sorted(PACKAGE.rglob("*.py"))}
CLASSES = {name: getattr(errors, name) for name in errors.__all__ if name.endswith("Error") and name != "MinipipeError"}
BARE = ("ValueError", "TypeError", "KeyError", "IndexError", "RuntimeError")


def raised():
    """Yield (file, class, its arguments) of everything that is made as an error, with ``of`` or without."""
    for file, tree in TREES.items():
        for node in ast.walk(tree):
            if isinstance(node, ast.Call):
                of = isinstance(node.func, ast.Attribute) and node.func.attr == "of"
                name = ast.unparse(node.func.value if of else node.func).rpartition(".")[2]
                if name in CLASSES and node.args:
                    yield file, name, node.args


def literal_codes():
    return [(file, name, args[0].value) for file, name, args in raised() if isinstance(args[0], ast.Constant)]


def test_every_code_that_is_raised_is_one_of_its_class():
    codes = literal_codes()
    assert len(codes) > 200
    assert [each for each in codes if each[2] not in list(CLASSES[each[1]].codes)] == []


@functools.cache
def all_sources():
    return "\n".join(ast.unparse(tree) for file, tree in TREES.items() if file != Path("errors.py"))


@pytest.mark.parametrize("name", CLASSES)
def test_every_code_of_a_class_is_raised_somewhere(name):
    unused = [code for code in CLASSES[name].codes if f"{code.value!r}" not in all_sources()]
    assert [code for code in unused if f".{code.name}" not in all_sources()] == []


def test_what_a_user_can_cause_is_raised_from_the_tree():
    """The story: 48 errors were bare ValueError and TypeError, some beside a sister with a code."""
    bare = []
    for file, tree in TREES.items():
        for node in ast.walk(tree):
            if isinstance(node, ast.Raise) and isinstance(node.exc, ast.Call):
                name = ast.unparse(node.exc.func)
                if name in BARE and "len() of a tensor" not in ast.unparse(node.exc):  # Python's own question
                    bare.append(f"{file}: {ast.unparse(node.exc)}")
    assert bare == []


def test_a_code_that_the_class_does_not_have_cannot_be_raised():
    with pytest.raises(ValueError, match="'shap' is not a valid TensorCode"):
        errors.TensorError("shap", "a slip")


@pytest.mark.parametrize("name", CLASSES)
def test_an_error_says_its_sentence_and_survives_a_pickle(name):
    if name == "ScheduleError":
        error = errors.ScheduleError.of(errors.ScheduleCode.ORDER, "a sentence")
    else:
        error = CLASSES[name](next(iter(CLASSES[name].codes)), "a sentence")
    twin = pickle.loads(pickle.dumps(error))
    assert "a sentence" in str(twin) and type(twin) is type(error) and twin.code is error.code


def test_an_argument_error_is_caught_as_what_it_was_before():
    for kind in (ValueError, TypeError, errors.MinipipeError):
        with pytest.raises(kind):
            raise errors.ArgumentError("value", "a sentence")

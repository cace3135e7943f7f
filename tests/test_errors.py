"""Every error that a user can cause is in the tree, and has one of the codes."""

import ast
import copy
import functools
import json
import pickle
import re
from pathlib import Path

import pytest

from minipipe import errors
from tests.code_lines import parsed

PACKAGE = Path(__file__).resolve().parent.parent / "minipipe"
TREES = {
    path.relative_to(PACKAGE): parsed(path) for path in sorted(PACKAGE.rglob("*.py"))
}
CLASSES = {
    name: getattr(errors, name)
    for name in errors.__all__
    if name.endswith("Error") and name != "MinipipeError"
}
BARE = ("ValueError", "TypeError", "KeyError", "IndexError", "RuntimeError")


def raised():
    """Yield (file, class, its arguments) of everything that is made as an error, with
    ``of`` or without.
    """
    for file, tree in TREES.items():
        for node in ast.walk(tree):
            if isinstance(node, ast.Call):
                of = isinstance(node.func, ast.Attribute) and node.func.attr == "of"
                name = ast.unparse(node.func.value if of else node.func).rpartition(
                    "."
                )[2]
                if name in CLASSES and node.args:
                    yield file, name, node.args


def literal_codes():
    return [
        (file, name, args[0].value)
        for file, name, args in raised()
        if isinstance(args[0], ast.Constant)
        and (name, len(args)) != ("ArgumentError", 1)  # only a message
    ]


def test_an_argument_error_with_only_a_message_has_the_code_value():
    error = errors.ArgumentError("width is 0; expected at least 1.")
    for twin in (error, copy.copy(error), pickle.loads(pickle.dumps(error))):
        assert (twin.code, str(twin)) == ("value", "width is 0; expected at least 1.")


_NAMED = re.compile(r"[Cc]odes?\s((?:``[a-z-]+``(?:, (?:and )?| and | or )?)+)")


def test_every_code_that_a_docstring_names_is_one_of_today():
    texts = [
        " ".join(path.read_text().split()) for path in sorted(PACKAGE.rglob("*.py"))
    ]
    named = [
        code
        for text in texts
        for found in _NAMED.findall(text)
        for code in re.findall("``([a-z-]+)``", found)
    ]
    assert len(named) > 200
    assert {*named} <= {code.value for code in errors.Code}


def test_every_code_that_is_raised_is_one_of_today():
    codes = literal_codes()
    assert len(codes) > 200
    assert [
        each for each in codes if each[2] not in [code.value for code in errors.Code]
    ] == []


@functools.cache
def all_sources():
    return "\n".join(
        ast.unparse(tree) for file, tree in TREES.items() if file != Path("errors.py")
    )


def test_every_code_is_raised_somewhere():
    unused = [code for code in errors.Code if f"{code.value!r}" not in all_sources()]
    assert [code for code in unused if f"Code.{code.name}" not in all_sources()] == []


def test_there_are_at_most_45_codes():
    assert len(errors.Code) <= 45


# -- the codes of earlier versions -----------------------------------------------------

OLD = [(code, old) for code in errors.Code for old in sorted(code.old)]


def test_an_old_code_has_one_successor():
    assert len({old for _, old in OLD} | {code.value for code in errors.Code}) == len(
        OLD
    ) + len(errors.Code)


@pytest.mark.parametrize(("code", "old"), OLD, ids=[old for _, old in OLD])
def test_an_old_code_equals_its_successor_and_no_other(code, old):
    error = errors.ArgumentError(code, "a sentence")
    with pytest.warns(
        DeprecationWarning, match=f"error code {old!r} is now {code.value!r}"
    ):
        assert error.code == old
    with pytest.warns(DeprecationWarning) as caught:
        assert old == error.code
    assert caught[0].filename == __file__
    with pytest.warns(DeprecationWarning):
        assert bool(error.code != old) is False
    with pytest.warns(DeprecationWarning):
        assert error.code in ("another", old)
    assert [other for other in errors.Code if other is not code and other == old] == []
    assert (
        errors.Code(old) is code
        and getattr(errors.Code, old.upper().replace("-", "_")) is code
    )


@pytest.mark.parametrize("name", [name.replace("Error", "Code") for name in CLASSES])
def test_the_enum_that_a_class_had_is_now_the_one_of_all(name):
    with pytest.warns(DeprecationWarning, match=f"{name} is now minipipe.errors.Code"):
        assert getattr(errors, name) is errors.Code


def test_codes_compare_by_their_text_without_a_warning(recwarn):
    code = errors.Code.ORDER
    assert (
        code == "order"
        and code != "missing"
        and code != errors.Code.MISSING
        and code != 1
    )
    assert (
        code in {"order"}
        and {code: 1}["order"] == 1
        and json.loads(json.dumps(code)) == "order"
    )
    assert pickle.loads(pickle.dumps(code)) is code and copy.deepcopy(code) is code
    assert recwarn.list == []


def test_what_a_user_can_cause_is_raised_from_the_tree():
    """The story: 48 errors were bare ValueError and TypeError, some beside a sister
    with a code.
    """
    bare = []
    for file, tree in TREES.items():
        for node in ast.walk(tree):
            if isinstance(node, ast.Raise) and isinstance(node.exc, ast.Call):
                name = ast.unparse(node.exc.func)
                # Python's own question
                if name in BARE and "len() of a tensor" not in ast.unparse(node.exc):
                    bare.append(f"{file}: {ast.unparse(node.exc)}")
    assert bare == []


def test_a_code_that_does_not_exist_cannot_be_raised():
    with pytest.raises(ValueError, match="'shap' is not a valid Code"):
        errors.TensorError("shap", "a slip")


@pytest.mark.parametrize("name", CLASSES)
def test_an_error_says_its_sentence_and_survives_a_pickle(name):
    if name == "ScheduleError":
        error = errors.ScheduleError.of(errors.Code.ORDER, "a sentence")
    else:
        error = CLASSES[name](errors.Code.VALUE, "a sentence")
    twin = pickle.loads(pickle.dumps(error))
    assert (
        "a sentence" in str(twin)
        and type(twin) is type(error)
        and twin.code is error.code
    )


def test_an_argument_error_is_caught_as_what_it_was_before():
    for kind in (ValueError, TypeError, errors.MinipipeError):
        with pytest.raises(kind):
            raise errors.ArgumentError("value", "a sentence")

"""A wrong definition or call of an operation says what was given, what was expected,
and what to do.
"""

import array_api_strict
import numpy as np
import pytest

from minipipe import Tensor, functional, op
from minipipe.errors import ArgumentError, TensorError
from tests.launch import for_each

X = np.ones((2, 3), np.float32)


def scaled(x, weight=None, *, factor=2.0):
    return x * factor if weight is None else x * weight * factor


def parts_of(*parts):
    return sum(parts)


WRONG_GRADIENTS = {
    "without g": (
        lambda x: x,
        "value",
        r"The gradient of x takes \(x\); expected g first",
    ),
    "without a parameter": (
        lambda: 1,
        "value",
        r"The gradient of x takes \(\); expected g first",
    ),
    "with g behind another": (
        lambda x, g: g,
        "value",
        r"takes \(x, g\); expected g first",
    ),
    "with shape in the middle": (
        lambda g, shape, x: g,
        "value",
        r"takes \(g, shape, x\).* and shape, .* last",
    ),
    "of any number of values": (
        lambda g, *values: g,
        "value",
        "needs the variadic positional values; expected one of f",
    ),
    "of a keyword": (
        lambda g, *, factor: g,
        "value",
        "needs the keyword-only factor; expected one of",
    ),
    "of an unknown value": (
        lambda g, bias: g,
        "value",
        r"The gradient of x in scaled needs bias; expected one of factor, ",
    ),
    "that is a number": (
        3.0,
        "type",
        r"The gradient of x is 3.0; expected a function .*: x=lambda g, …",
    ),
    "that is a function of C": (
        max,
        "type",
        "The gradient of x is <built-in function max>; expected a function",
    ),
}


@for_each(case=WRONG_GRADIENTS)
def test_a_gradient_is_refused_when_it_is_set(case):
    function, code, message = case
    operation = op()(scaled)
    with pytest.raises(ArgumentError, match=message) as caught:
        operation.gradients(x=function)
    assert caught.value.code == code


def test_so_is_one_of_no_input_and_a_shared_value_that_nothing_gives():
    operation = op()(scaled)
    with pytest.raises(
        ArgumentError, match=r"scaled has no input factor; its inputs are x, weight\."
    ):
        operation.gradients(factor=lambda g: g)
    with pytest.raises(
        ArgumentError, match=r"dz in scaled needs gates; expected one of"
    ):
        operation.shared(dz=lambda g, gates: g * gates)


def test_a_missing_gradient_is_named_when_an_input_needs_it_and_not_before():
    operation = op()(scaled)
    operation.gradients(x=lambda g, factor: g * factor)
    weight = Tensor(X, requires_grad=True)
    operation(Tensor(X, requires_grad=True), Tensor(X)).sum().backward()
    with pytest.raises(
        ArgumentError,
        match=(
            r"scaled has no gradient for weight, .*: "
            r"scaled\.gradients\(weight=lambda g"
        ),
    ):
        operation(Tensor(X), weight)


def with_keywords(x, **options):
    return x


def with_a_default(x, factor=2.0):
    return x


def with_a_result(result):
    return result


def with_a_number(*parts, number):
    return parts[number]


WRONG_DEFINITIONS = {
    "no function": (
        lambda: op()(3),
        "op takes a function of arrays; this is of type int",
    ),
    "op without parentheses": (
        lambda: op(scaled),
        r"op: too many positional arguments. Expected op\(\*, takes=None",
    ),
    "an unknown option": (
        lambda: op(save="mask"),
        "op takes no save=; here it is saves=",
    ),
    "attributes without names": (
        lambda: op()(with_keywords),
        (
            r"with_keywords takes \*\*options; expected tensors, .* Other arguments "
            r"are attributes"
        ),
    ),
    "an attribute by position": (
        lambda: op()(with_a_default),
        r"takes factor=2.0; expected .* behind a \*, or",
    ),
    "an input named result": (
        lambda: op()(with_a_result),
        r"two values result, .* Rename the parameter",
    ),
    "an attribute named number": (
        lambda: op()(with_a_number),
        r"values number, or one with a name that means",
    ),
    "a saved input": (
        lambda: op(saves="x")(scaled),
        r"scaled has two values x, .* or the value of saves=",
    ),
    "a saved value twice": (
        lambda: op(saves="a a")(scaled),
        r"scaled has two values a",
    ),
}


@for_each(case=WRONG_DEFINITIONS)
def test_a_definition_is_refused(case):
    define, message = case
    with pytest.raises(ArgumentError, match=message):
        define()


WRONG_CALLS = {
    "an unknown attribute": (
        lambda f: f(X, factors=3.0),
        "scaled takes no factors=; here it is factor=",
    ),
    "PyTorch's name beside the right one": (
        lambda f: f(X, factor=1.0, dim=0),
        "scaled takes no dim=; expected x, w",
    ),
    "too many arguments": (
        lambda f: f(X, X, 3.0),
        r"too many positional arguments. Expected scaled\(x, weight=None, ",
    ),
    "no argument": (
        lambda f: f(),
        r"missing a required argument: 'x'. Expected scaled\(x",
    ),
}


@for_each(case=WRONG_CALLS)
def test_a_call_is_refused_and_the_right_one_is_shown(case):
    call, message = case
    with pytest.raises(ArgumentError, match=message) as caught:
        call(op()(scaled))
    assert caught.value.code == "name"


def test_inputs_by_name_and_none_are_as_good():
    operation = op()(scaled)
    operation.gradients(x=lambda g, factor: g * factor)
    assert (
        operation(weight=None, x=X).numpy().tolist()
        == operation(X, None, factor=2.0).numpy().tolist()
    )


def test_one_of_any_number_of_inputs_may_be_none():
    @op()
    def total_of(*parts):
        return sum(part for part in parts if part is not None)

    total_of.gradients(parts=lambda g: g)
    first, last = (Tensor(X, requires_grad=True) for _ in range(2))
    total_of(first, None, last).backward(X)
    assert first.grad.tolist() == last.grad.tolist() == X.tolist()


def test_attributes_may_be_given_by_position_by_name_or_not_at_all():
    seen = []

    @op(attributes="low high")
    def between(x, weight=None, low=0.0, high=None, *, name):
        seen.append((weight is not None, low, high, name))
        return x

    between(X, name="a")
    between(X, None, -1.0, name="b")
    between(X, X, -1.0, 2.0, name="c")
    between(X, name="d", high=2.0)
    between(high=2.0, low=-1.0, name="e", weight=X, x=X)
    defaults = [
        (False, 0.0, None, "a"),
        (False, -1.0, None, "b"),
        (True, -1.0, 2.0, "c"),
        (False, 0.0, 2.0, "d"),
    ]
    assert seen == [*defaults, (True, -1.0, 2.0, "e")]
    for wrong in (
        lambda: between(X, None, 0.0, low=1.0, name="f"),
        lambda: between(X),
        lambda: between(X, name=1, x=X),
    ):
        with pytest.raises(
            ArgumentError,
            match=r"Expected between\(x, weight=None, low=0.0, high=None, \*, name\)",
        ):
            wrong()


def test_any_number_of_inputs_have_attributes_by_name():
    @op()
    def longest(*parts, least=1):
        return max(parts, key=len) if least <= len(parts) else parts[0]

    assert [longest(X, X[:1]).shape, longest(X[:1], X, least=3).shape] == [
        X.shape,
        X[:1].shape,
    ]


def test_an_error_inside_the_function_stays_what_it_is():
    @op()
    def broken(x):
        return len(3)

    with pytest.raises(TypeError, match="object of type 'int' has no len") as caught:
        broken(X)
    assert not isinstance(caught.value, ArgumentError)


WRONG_RESULTS = {
    "none": (lambda x: None, "", "returned a NoneType; expected one array"),
    "a tensor": (
        lambda x: functional.exp(x),
        "",
        r"returned a Tensor; .* computes with arrays",
    ),
    "a list": (lambda x: [x, x], "", "returned a list; expected one array"),
    "two values, of which none is saved": (
        lambda x: (x, x),
        "",
        "returned 2 values; expected one array",
    ),
    "one value, although one is saved": (
        lambda x: x,
        "a",
        r"returned a ndarray; expected \(result, a\)",
    ),
    "too few values": (
        lambda x: (x, x),
        "a b",
        r"returned 2 values; expected \(result, a, b\), because of saves=",
    ),
    "too many values": (
        lambda x: (x, x, x),
        "a",
        r"returned 3 values; expected \(result, a\)",
    ),
}


@for_each(case=WRONG_RESULTS)
def test_a_result_of_another_kind_is_refused(case):
    forward, saves, message = case
    with pytest.raises(ArgumentError, match=message) as caught:
        op(saves=saves)(forward)(X)
    assert caught.value.code == "type"


WRONG_CONTRIBUTIONS = {
    "none": (
        lambda g: None,
        False,
        "missing",
        "The gradient of x in scaled returned None; .* Add its `return`",
    ),
    "a number": (
        lambda g: 1.0,
        False,
        "missing",
        r"returned 1\.0; expected the gradient, an array",
    ),
    "a list": (
        lambda g: [1.0],
        True,
        "missing",
        r"returned \[1\.0\]; expected the gradient, an array",
    ),
    "a smaller shape": (
        lambda g: g[:1],
        False,
        "shape",
        r"of shape \(1, 3\) for an input of shape \(2, 3\)",
    ),
    "a sum": (
        lambda g: g.sum(),
        True,
        "shape",
        r"of shape \(\) for an input of shape \(2, 3\)",
    ),
    "no broadcast shape": (
        lambda g: g[:, :2],
        True,
        "shape",
        r"of shape \(2, 2\) for an input of shape \(2, 3\)",
    ),
    "another shape of the same size": (
        lambda g: g.T,
        False,
        "shape",
        r"of shape \(3, 2\).*name `shape`, last",
    ),
    "another precision": (
        lambda g: g.astype(np.float64),
        False,
        "dtype",
        "of float64 for an input of float32",
    ),
    "whole numbers": (
        lambda g: g.astype(int),
        True,
        "dtype",
        "of int64 for an input of float32: it must return",
    ),
}


@for_each(case=WRONG_CONTRIBUTIONS)
def test_a_gradient_of_another_shape_or_dtype_is_refused_by_the_walk(case):
    gradient, is_broadcast, code, message = case
    operation = op(is_broadcast=is_broadcast)(scaled)
    operation.gradients(x=gradient)
    x = Tensor(X, requires_grad=True)
    with pytest.raises(TensorError, match=message) as caught:
        operation(x).backward(X)
    assert caught.value.code == code and x.grad is None


def test_numpys_numbers_and_arrays_of_other_modules_are_results_and_gradients():
    @op()
    def summed(x):
        return x.sum()

    summed.gradients(x=lambda g, shape: np.broadcast_to(g, shape))
    x = Tensor(X, requires_grad=True)
    summed(x).backward()
    assert isinstance(summed(x).data, np.ndarray) and x.grad.tolist() == X.tolist()
    doubled = op()(scaled)
    doubled.gradients(x=lambda g, factor: g * factor)
    x = Tensor(array_api_strict.asarray(X), requires_grad=True)
    doubled(x).sum().backward()
    assert np.asarray(x.grad).tolist() == (2 * X).tolist()


def test_one_of_any_number_of_inputs_gets_its_number():
    operation = op()(parts_of)
    operation.gradients(parts=lambda g, number: g * (number + 1))
    parts = [Tensor(X, requires_grad=True) for _ in range(3)]
    operation(*parts).sum().backward()
    assert [part.grad[0, 0] for part in parts] == [1.0, 2.0, 3.0]
    with pytest.raises(
        ArgumentError, match=r"needs parts; expected one of number, result, shape\."
    ):
        operation.gradients(parts=lambda g, parts: g)


def test_an_attribute_that_is_no_parameter_is_refused():
    """Otherwise the parameter that was meant would be taken as a tensor."""
    with pytest.raises(
        ArgumentError,
        match=(
            r"scaled has no parameter factr, .*; its parameters are x, weight, "
            r"factor\."
        ),
    ):
        op(attributes="factr")(scaled)
    attributes = op(attributes="factor")(lambda x, factor=2.0: x * factor)
    assert (
        attributes(X, 3.0).numpy().tolist()
        == attributes(X, factor=3.0).numpy().tolist()
        == (3 * X).tolist()
    )

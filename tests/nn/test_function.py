"""Functions as layers: what they pass on, and the name by which ranks notice that they
were given different ones.
"""

from __future__ import annotations

import copy
import os
import re
import subprocess
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import array_api_strict
import numpy as np
import pytest

from minipipe import Pipeline, Tensor, functional, nn, spawn
from minipipe.core.tensor import op
from minipipe.errors import ArgumentError, RankError, TensorError
from minipipe.testing import check_same_as_one_process
from tests.execution.checks.changes import behind_an_empty_cell
from tests.strategies import batch, build, split_backward

FACTOR = 3.0
LAYER = nn.Linear(2, 2)


def tripled(x: Tensor) -> Tensor:
    return x * FACTOR


def through_a_layer(x: Tensor) -> Tensor:
    return LAYER(x)


def times(factor: Any) -> Callable[[Tensor], Tensor]:
    return lambda x: x * factor


# -- a layer ---------------------------------------------------------------------------


def test_a_layer_returns_what_its_function_returns():
    x = Tensor([[1.0, -2.0]], requires_grad=True)
    assert nn.Function(functional.relu)(x).numpy().tolist() == [[1.0, 0.0]]
    nn.Function(lambda x: x * 2)(x).sum().backward()
    assert x.grad.tolist() == [[2.0, 2.0]]
    pair = nn.Function(lambda x: (x, {"twice": x * 2}))(x)
    assert nn.Function(lambda pair: pair[0] + pair[1]["twice"])(
        pair
    ).numpy().tolist() == [[3.0, -6.0]]
    assert nn.Function(tripled).num_parameters == 0


@pytest.mark.parametrize("device", ["cpu", array_api_strict], ids=["numpy", "strict"])
@pytest.mark.parametrize("name", ["1f1b", "zb-h1"])
def test_functions_of_bundles_cut_anywhere_have_the_bits_of_one_process(name, device):
    model = nn.Sequential(
        nn.Linear(4, 6),
        nn.Function(lambda x: {"left": x[:, :3], "right": x[:, 3:].T}),
        nn.Function(lambda x: [x["left"].tanh(), (x["right"].T, x["left"])]),
        nn.Function(lambda x: x[0] * x[1][0] + x[1][1]),
        nn.Linear(3, 4),
        nn.Function(partial(functional.softmax, axis=1)),
        nn.Function(lambda x: functional.dropout(x, 0.3)),
        nn.Linear(4, 2),
    )
    schedule = split_backward(build(name, 4, 3, chunks=2), delay=1)
    check_same_as_one_process(
        model, nn.MSELoss(), *batch(10, 4), schedule, device=device
    )


def test_what_is_no_tensor_is_refused_where_it_leaves_the_layer():
    with pytest.raises(
        TensorError, match="Values between layers must be tensors"
    ) as caught:
        nn.Sequential(nn.Identity(), nn.Function(lambda x: x.shape))(Tensor([1.0]))
    assert (
        caught.value.code == "type"
        and "in layer 1, Function(" in caught.value.__notes__[0]
    )


# -- its name --------------------------------------------------------------------------


def test_a_function_that_can_be_imported_is_known_by_its_name():
    assert repr(nn.Function(functional.relu)) == "Function(minipipe.functional.relu)"
    assert repr(nn.Function(tripled)) == f"Function({__name__}.tripled)"
    assert repr(nn.Function(len)) == "Function(builtins.len)" and repr(
        nn.Function(np.exp)
    ).endswith("exp)")
    softmax = "minipipe.functional.softmax"
    assert (
        repr(nn.Function(partial(functional.softmax, axis=1)))
        == f"Function(partial({softmax}, axis=1))"
    )


class Scaled:
    def __init__(self, factor: float) -> None:
        self.factor, self.lock = factor, object()

    def __call__(self, x: Tensor) -> Tensor:
        return x * self.factor


def recursive(depth: int) -> Callable[[Tensor], Tensor]:
    def again(x: Tensor, left: int = depth) -> Tensor:
        return again(x * 2, left - 1) if left else x

    return again


def operation(
    factor: float = 2.0, slope: float = 2.0, takes: Callable[..., Any] | None = None
) -> Any:
    @op(takes=takes)
    def scaled(x: Any) -> Any:
        return x * factor

    scaled.gradients(x=lambda g: g * slope)
    return scaled


@op()
def of_a_layer(x: Any) -> Any:
    return x * LAYER.weight.data[0]


ALIKE = {
    "a closure": lambda: times(2.0),
    "an array in a closure": lambda: times(np.arange(3)),
    "a tensor in a closure": lambda: times(Tensor([1.0, 2.0])),
    "a function in a closure": lambda: times(times(2.0)),
    "a recursive function": lambda: recursive(2),
    "a partial function": lambda: partial(times(2.0), left=3),
    "an object that can be called": lambda: Scaled(2.0),
    "a method": lambda: Scaled(2.0).__call__,
    "an operation": operation,
    "an operation in a closure": lambda: times(operation()),
    "a set of names": lambda: times({"left", "right", "middle"}),
    "a global number": lambda: lambda x: x * FACTOR,
    "another object": lambda: times(object()),
}


@pytest.mark.parametrize("make", ALIKE.values(), ids=ALIKE)
def test_the_same_function_made_twice_has_one_name_and_no_address(make):
    text = repr(nn.Function(make()))
    assert text == repr(nn.Function(make())) == repr(copy.deepcopy(nn.Function(make())))
    assert "0x" not in text and "object at" not in text


DIFFERENT = {
    "code": (lambda x: x * 2, lambda x: x + 2),
    "a number": (lambda x: x * 2, lambda x: x * 3),
    "a method": (lambda x: x.sum(1), lambda x: x.mean(1)),
    "a function inside": (
        lambda x: (lambda y: y * 2)(x),
        lambda x: (lambda y: y * 3)(x),
    ),
    "a default": (lambda x, k=1: x * k, lambda x, k=2: x * k),
    "a default by name": (lambda x, *, k=1: x * k, lambda x, *, k=2: x * k),
    "a closure": (times(2.0), times(3.0)),
    "an array": (times(np.arange(3)), times(np.arange(3)[::-1])),
    "its dtype": (times(np.ones(1, np.float32)), times(np.ones(1))),
    "a tensor": (times(Tensor([1.0])), times(Tensor([2.0]))),
    "a list": (times([1, 2]), times([1, 3])),
    "a dict": (times({"a": 1}), times({"a": 2})),
    "a function it calls": (times(functional.relu), times(functional.tanh)),
    "an attribute": (Scaled(2.0), Scaled(3.0)),
    "a method's object": (Scaled(2.0).__call__, Scaled(3.0).__call__),
    "a partial argument": (
        partial(functional.softmax, axis=0),
        partial(functional.softmax, axis=1),
    ),
    "the forward of an operation": (operation(), operation(3.0)),
    "its gradient": (operation(), operation(2.0, 3.0)),
    "its operands": (
        operation(takes=lambda x: (x,)),
        operation(takes=lambda x: (x * 2,)),
    ),
    "an operation that it calls": (times(operation()), times(operation(3.0))),
    "the depth of a recursion": (recursive(1), recursive(2)),
}


@pytest.mark.parametrize(("one", "other"), DIFFERENT.values(), ids=DIFFERENT)
def test_different_functions_have_different_names(one, other):
    texts = {
        re.sub(r"line \d+", "line", repr(nn.Function(function)))
        for function in (one, other)
    }
    assert len(texts) == 2


def test_another_value_of_a_global_is_noticed(monkeypatch):
    function = lambda x: x * FACTOR
    text = repr(nn.Function(function))
    monkeypatch.setitem(globals(), "FACTOR", 4.0)
    assert repr(nn.Function(function)) != text


def test_a_name_may_get_its_value_later():
    layer = nn.Function(lambda x: x * late + not_there_yet)  # noqa: F821
    late = 2
    assert repr(layer).startswith("Function(") and late == 2


def test_an_object_that_can_be_called_shows_its_attributes():
    assert (
        repr(nn.Function(Scaled(2.0)))
        == f"Function({__name__}.Scaled(factor=2.0, lock=builtins.object()))"
    )


def test_every_process_gives_a_function_the_same_name():
    program = (
        "from minipipe import nn, functional\n"
        "names = {'left', 'right', 'middle'}\n"
        "layers = [nn.Function(lambda x: x if 'a' in {'a', 'b', 'c'} else "
        "functional.relu(x)), "
        "nn.Function((lambda s: lambda x: x * len(s))(names))]\n"
        "print(layers)\n"
    )
    printed = set()
    for seed in ("1", "2", "3"):
        done = subprocess.run(
            [sys.executable, "-c", program],
            capture_output=True,
            text=True,
            check=True,
            cwd=Path(__file__).resolve().parents[2],
            env={**os.environ, "PYTHONHASHSEED": seed},
        )
        printed.add(done.stdout)
    assert len(printed) == 1 and "Function(__main__.<lambda>, line 3, " in printed.pop()


def test_ranks_with_different_functions_are_refused():
    def run(group: Any) -> None:
        model = nn.Sequential(nn.Linear(2, 2), nn.Function(times(float(group.rank))))
        Pipeline(model, group, loss=nn.MSELoss())

    with pytest.raises(RankError, match="The model of rank 1 differs") as caught:
        spawn(run, 2)
    assert caught.value.code == "disagreement"


def test_ranks_compare_an_operation_by_its_forward_and_gradients_and_not_by_its_plans():
    def run(group: Any, slope: float) -> Any:
        scaled = operation(2.0, slope if group.rank else 2.0)
        if group.rank:  # so it has plans
            scaled(Tensor([1.0], requires_grad=True)).backward(np.ones(1, np.float32))
            scaled(Tensor([1.0]))
        model = nn.Sequential(
            nn.Linear(2, 2), nn.Function(scaled), nn.Function(lambda x: scaled(x))
        )
        return Pipeline(model, group, loss=nn.MSELoss()).step(
            np.ones((8, 2)), np.ones((8, 2))
        )

    assert len(spawn(lambda group: run(group, 2.0), 2)) == 2
    with pytest.raises(RankError, match="The model of rank 1 differs"):
        spawn(lambda group: run(group, 3.0), 2)


# -- what is refused -------------------------------------------------------------------


@pytest.mark.parametrize(
    "wrong", [3, "relu", None, nn.ReLU(), nn.Linear(2, 2)], ids=repr
)
def test_what_is_no_function_or_a_layer_already_is_refused(wrong):
    with pytest.raises(
        ArgumentError,
        match="Function takes a function, such as functional.relu|is a layer already",
    ) as caught:
        nn.Function(wrong)
    assert caught.value.code == "type"


TRAINED = {
    "a module in a closure": times(nn.Linear(2, 2)),
    "modules in a list": times([nn.Linear(2, 2)]),
    "a parameter": times(nn.Parameter([0.0, 0.0])),
    "a tensor that keeps a gradient": times(Tensor([1.0], requires_grad=True)),
    "a global module": lambda x: LAYER(x),
    "a global module inside": lambda x: functional.stack([LAYER(part) for part in x]),
    "a global module in a function with a name": through_a_layer,
    "an operation on a global module": of_a_layer,
    "a method of a module": nn.Linear(2, 2).forward,
    "a partial argument": partial(
        functional.linear, weight=nn.Parameter(np.zeros((2, 2)))
    ),
    "a default": lambda x, layer=nn.Tanh(): layer(x),  # noqa: B008
}


@pytest.mark.parametrize("function", TRAINED.values(), ids=TRAINED)
def test_a_function_with_something_to_train_is_refused(function):
    with pytest.raises(
        ArgumentError, match="The function refers to a .*, which neither a pipeline nor"
    ) as caught:
        nn.Function(function)
    assert caught.value.code == "type"


def test_an_attribute_that_is_called_like_a_global_module_is_not_mistaken_for_it(
    monkeypatch,
):
    monkeypatch.setitem(globals(), "tanh", nn.Tanh())
    assert nn.Function(lambda x: x.tanh())(Tensor([0.0])).item() == 0.0


def test_what_stands_behind_a_name_without_a_value_counts():
    assert repr(nn.Function(behind_an_empty_cell(1.0))) != repr(
        nn.Function(behind_an_empty_cell(2.0))
    )
    assert repr(nn.Function(behind_an_empty_cell(1.0))) == repr(
        nn.Function(behind_an_empty_cell(1.0))
    )

"""A description is the same for what was made alike, in every process, and another one
after any change.
"""

import subprocess
import sys
from dataclasses import dataclass
from functools import cached_property, partial
from pathlib import Path
from types import SimpleNamespace

import hypothesis.strategies as st
import numpy as np
import pytest
from hypothesis import given

from minipipe import Tensor, functional, nn
from minipipe.core.tensor import op
from minipipe.execution.checks.description import description, digest
from tests.execution.checks.changes import behind_an_empty_cell
from tests.launch import ROOT, environment, for_each

NUMBERS = (
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats()
    | st.text(max_size=5)
    | st.binary(max_size=5)
)
VALUES = st.recursive(
    NUMBERS,
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.tuples(inner, inner)
        | st.dictionaries(st.text(max_size=3), inner, max_size=3)
        | st.frozensets(st.integers() | st.text(max_size=3), max_size=3)
    ),
    max_leaves=8,
)


@dataclass
class Options:
    width: int = 4
    names: tuple = ("a",)


class Layer(nn.Module):
    not_compared = ("log",)
    slope = 0.5

    def __init__(self, value):
        self.value, self.log, self.rank = value, [], 0

    @cached_property
    def table(self):
        return np.arange(3)

    def forward(self, x):
        return twice(x) * self.value


class Other(Layer):
    def forward(self, x):
        return x


class Slotted:
    __slots__ = ("value",)

    def __init__(self, value):
        self.value = value


def twice(x):
    return x * 2


def adds(value):
    return lambda x: x + value


def operation(forward=lambda x: x * 2, x=lambda g: g * 2, shared=None, **options):
    made = op(**options)(lambda x: forward(x))
    made.gradients(x=lambda g: x(g))
    if shared:
        made.shared(twice=lambda g: shared(g))
    return made


def loop():
    layer = Layer(1)
    layer.value = [layer]
    return layer


MADE = {
    "an array": lambda k: np.arange(4.0) + k,
    "a view of an array": lambda k: (np.arange(12.0).reshape(3, 4) + k).T[1:],
    "an array of no elements": lambda k: np.zeros((k, 0)),
    "a tensor": lambda k: Tensor([1.0, k]),
    "a dtype": lambda k: (np.dtype(np.float32), np.dtype(np.float64))[k],
    "a type": lambda k: (np.float32, np.float64)[k],
    "NumPy's number": lambda k: np.float64(k),
    "an initialiser": lambda k: nn.Linear(
        2, 2, initialiser=nn.initialisers.normal(1.0 + k)
    ),
    "a frozen layer": lambda k: nn.Linear(2, 2).freeze(bool(k)),
    "a mode": lambda k: nn.Dropout(0.5).train(bool(k)),
    "a closure": lambda k: adds(k),
    "a closure behind an empty cell": lambda k: behind_an_empty_cell(k),
    "a function in a closure": lambda k: adds(adds(k)),
    "an array in a closure": lambda k: adds(np.ones(2) * k),
    "a default": lambda k: lambda x, by=k: x * by,
    "a default by name": lambda k: lambda x, *, by=k: x * by,
    "code": lambda k: (lambda x: x * 2, lambda x: x * 3)[k],
    "a method that is called": lambda k: (lambda x: x.sum(), lambda x: x.mean())[k],
    "a set in code": lambda k: (
        lambda x: x in {"a", "b", "c"},
        lambda x: x in {"a", "b", "d"},
    )[k],
    "a function of minipipe": lambda k: (functional.relu, functional.tanh)[k],
    "a function of NumPy": lambda k: (np.sum, np.mean)[k],
    "a ufunc": lambda k: (np.add, np.multiply)[k],
    "the forward of an operation": lambda k: operation(lambda x: x * (2 + k)),
    "a gradient of an operation": lambda k: operation(x=lambda g: g * (2 + k)),
    "a value that its gradients share": lambda k: operation(
        shared=lambda g: g * (2 + k)
    ),
    "an array of a gradient": lambda k: operation(
        x=partial(np.multiply, np.full(3, k))
    ),
    "an option of an operation": lambda k: operation(is_broadcast=bool(k)),
    "the operands of an operation": lambda k: operation(takes=lambda x: (x * (2 + k),)),
    "a partial function": lambda k: partial(functional.softmax, axis=k),
    "a method": lambda k: Layer(k).forward,
    "an attribute": lambda k: Layer(k),
    "a nested attribute": lambda k: Layer([{"a": (1, k)}]),
    "the class": lambda k: (Layer, Other)[k](1),
    "a dataclass": lambda k: Options(width=k),
    "slots": lambda k: Slotted(k),
    "a namespace": lambda k: SimpleNamespace(a=k),
    "a circle": lambda k: (loop(), Layer([1]))[k],
    "a shared parameter": lambda k: (
        tied(),
        nn.Sequential(nn.Linear(2, 2), nn.Linear(2, 2)),
    )[k],
    "a large number of elements": lambda k: np.concatenate([np.zeros(10**5), [k]]),
    "a long text": lambda k: "a" * 1000 + str(k),
}


def tied():
    first, last = nn.Linear(2, 2), nn.Linear(2, 2)
    last.weight = first.weight
    return nn.Sequential(first, last)


@for_each(make=MADE)
def test_what_was_made_alike_has_one_description_and_any_change_another(make):
    texts = [description(make(k), "it") for k in (0, 0, 1)]
    assert texts[0] == texts[1] != texts[2]
    assert "0x" not in texts[0] and "object at" not in texts[0]


@given(VALUES, VALUES)
def test_values_have_the_same_description_if_they_have_the_same_repr(one, other):
    """-0.0 and 0.0, 1 and True, nan and nan: equality does not tell what computes
    alike, and the repr does.
    """
    is_same = repr(ordered(one)) == repr(ordered(other))
    assert (description(one, "it") == description(other, "it")) == is_same
    assert description(one, "it") == description(one, "it")


def ordered(value):
    if isinstance(value, dict):
        return "dict", [(key, ordered(value[key])) for key in sorted(value)]
    if isinstance(value, frozenset):
        return "frozenset", sorted(map(repr, value))
    return (
        (type(value).__name__, [ordered(item) for item in value])
        if isinstance(value, list | tuple)
        else value
    )


SAME = {
    "the order of a dict": ({"a": 1, "b": 2}, {"b": 2, "a": 1}),
    "an open file and another": (SimpleNamespace(f=Path), SimpleNamespace(f=Path)),
    "generators": (Layer(np.random.default_rng(0)), Layer(np.random.default_rng(1))),
    "objects of other libraries": (Layer(Path("a")), Layer(Path("b"))),
    "notes in a closure": (adds([]), adds([1, 2])),
}


@pytest.mark.parametrize(("one", "other"), SAME.values(), ids=SAME)
def test_what_may_differ_by_right_counts_by_its_type(one, other):
    assert description(one, "it") == description(other, "it")


def test_caches_notes_and_the_rank_do_not_count():
    one, other = Layer(1), Layer(1)
    other.log.append("a step")
    other.rank, other._cache, other._seen = 1, {"a": np.ones(3)}, [1, 2]
    assert other.table is not None and description(one, "it") == description(
        other, "it"
    )
    filled = nn.Sequential(nn.Linear(2, 2))
    before = description(filled, "it")
    # now it has values, which are compared elsewhere
    filled(np.ones((1, 2), np.float32))
    assert description(filled, "it") == before


def test_the_functions_that_a_layer_calls_count(monkeypatch):
    """Another file beside the main script: its name is the same on all ranks, and its
    code is not.
    """
    layer, before = Layer(1), description(Layer(1), "it")
    assert f"{__name__}.twice, code" in before

    def other(x):
        return x * 3

    other.__qualname__, other.__module__ = "twice", __name__
    monkeypatch.setitem(globals(), "twice", other)
    monkeypatch.setitem(sys.modules, __name__, SimpleNamespace(twice=other))
    assert description(layer, "it") != before


@pytest.mark.slow
def test_every_process_gives_the_same_description():
    program = (
        "from minipipe import nn, functional\n"
        "from minipipe.execution.checks.comparison import program\n"
        "from minipipe.execution.checks.description import description, digest\n"
        "from minipipe.execution.checks.updates import fingerprint\n"
        "import numpy as np\n"
        "def made(s): return lambda x: x * len(s) if 'a' in {'a', 'b', 'c'} else "
        "functional.relu(x)\n"
        "class Layer(nn.Module):\n"
        "    def __init__(self): self.names, self.f = {'left', 'right', "
        "'middle'}, made(frozenset('abc'))\n"
        "    def forward(self, x): return x\n"
        "print(description(nn.Sequential(nn.TransformerBlock(8, 2), Layer()), "
        "'model'))\n"
        "print(digest(np.ones(3)), fingerprint({'a': np.ones((4, 2))}), program())\n"
    )
    printed = {
        subprocess.run(
            [sys.executable, "-c", program],
            capture_output=True,
            text=True,
            check=True,
            cwd=ROOT,
            env=environment(PYTHONHASHSEED=seed),
        ).stdout
        for seed in ("1", "2")
    }
    assert len(printed) == 1 and "Layer.forward" in printed.pop()


@given(st.integers(0, 40), st.integers(0, 7))
def test_a_bit_that_is_flipped_changes_the_digest(position, bit):
    array = np.arange(41, dtype=np.uint8)
    other = array.copy()
    other[position] ^= 1 << bit
    assert digest(array) != digest(other) and digest(array) == digest(array.copy())

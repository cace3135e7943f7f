"""What a vjp captures is found wherever Python keeps it, and a view belongs to the
memory that it looks at.
"""

from functools import partial
from types import SimpleNamespace

import array_api_strict
import numpy as np
import pytest

from minipipe import Tensor, nn
from minipipe.autograd.memory import arrays_in, buffer_of, held_bytes
from minipipe.core.tensor import record

W = np.arange(12.0).reshape(3, 4)


def in_a_default(g, w=W):
    return g * w


def in_a_keyword(g, *, w=W):
    return g * w


def behind_itself():
    def again(n):
        return W if n == 0 else again(n - 1)

    w = W
    return lambda g: again(int(g)) * w


def behind_a_variable_without_a_value():
    w = W
    if w is None:
        later = 1
    return lambda g: later if g is None else w


CAPTURES = {
    "closure": (lambda w: lambda g: g * w)(W),
    "default": in_a_default,
    "keyword": in_a_keyword,
    "partial": partial(np.multiply, W),
    "keyword of a partial": partial(np.multiply, x2=W),
    "function of a partial": partial(in_a_default, 1.0),
    "method of an array": W.__mul__,
    "method of C": W.dot,
    "tensor": (lambda w: lambda g: g * w.data)(Tensor(W)),
    "tuple in a list": (lambda kept: lambda g: g * kept[0][1])([(1, W)]),
    "dict": (lambda kept: lambda g: g * kept["w"])({"w": W}),
    "function in a closure": (lambda inner: lambda g: inner(g))(in_a_default),
    "itself": behind_itself(),
    "no value": behind_a_variable_without_a_value(),
}


@pytest.mark.parametrize("vjp", CAPTURES.values(), ids=CAPTURES)
def test_an_array_is_found_wherever_a_function_keeps_it(vjp):
    assert any(array is W for array in arrays_in(vjp))
    x = Tensor(np.ones((3, 4)), requires_grad=True)
    assert held_bytes([record(W.copy(), (x, vjp)).node], []) == W.nbytes


GLOBAL = np.ones(5)


def of_a_global(g):
    return g * GLOBAL


def test_an_array_of_another_object_or_of_a_module_is_not_found():
    kept = SimpleNamespace(w=W)
    assert not list(arrays_in(lambda g: g * kept.w)) and not list(
        arrays_in(of_a_global)
    )


class Without:
    """Has a property ``data`` that raises."""

    @property
    def data(self):
        raise ValueError("there is none")


def test_objects_that_raise_where_a_tensor_has_its_array_have_none():
    empty = nn.Parameter((2, 2), nn.initialisers.constant(1.0))
    assert [array is W for array in arrays_in((Without(), empty, W))] == [True]


VIEWS = {
    "slice": W[1:],
    "slice of a slice": W[1:][:, ::-2],
    "transposed": W.T,
    "reshaped": W.T.reshape(3, 4, order="F")[0],
    "broadcast": np.broadcast_to(W, (2, 3, 4)),
    "as_strided": np.lib.stride_tricks.as_strided(W, (2, 2)),
    "sliding window": np.lib.stride_tricks.sliding_window_view(W, 2, axis=1)[..., 0],
    "memoryview": np.asarray(memoryview(W))[0],
    "frombuffer": np.frombuffer(W),
    "diagonal": W.diagonal(),
    "newaxis": W[None],
}


@pytest.mark.parametrize("view", VIEWS.values(), ids=VIEWS)
def test_a_view_belongs_to_the_memory_that_it_looks_at(view):
    owner = buffer_of(W)
    assert np.shares_memory(view, W) and buffer_of(view) is owner


def test_an_array_of_its_own_belongs_to_itself():
    assert buffer_of(own := np.ones(3)) is own and buffer_of(own.copy()) is not own


def test_so_do_views_of_other_array_modules():
    """Of array-api-strict, whose arrays wrap NumPy's, and of a module whose views know
    their base, as CuPy's do.
    """
    array = array_api_strict.zeros((2, 3))
    view = array_api_strict.reshape(array[:, :2], (4,))[1:]
    assert buffer_of(array_api_strict.permute_dims(array, (1, 0))[0, ...]) is buffer_of(
        array
    )
    assert buffer_of(view) is not buffer_of(array)  # reshape had to copy
    owner = SimpleNamespace(base=None, __cuda_array_interface__={})
    between = SimpleNamespace(base=owner, __cuda_array_interface__={})
    assert (
        buffer_of(SimpleNamespace(base=between, __cuda_array_interface__={})) is owner
    )

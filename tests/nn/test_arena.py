"""An arena: parameters and gradients side by side, and when nobody can notice."""

import copy
import gc
import pickle
import weakref

import array_api_strict
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from minipipe import Tensor, nn, optim
from minipipe.core.autograd.backend import is_half
from minipipe.errors import ParameterError
from minipipe.nn.arena import Arena

bfloat16 = pytest.importorskip("ml_dtypes").bfloat16
SHAPES = [(3, 4), (), (7,), (0, 2), (2, 3, 2), (1, 5), (8, 1)]
DTYPES = [np.float32, np.float64, np.float16, bfloat16]


def parameters_of(shapes, dtypes=(np.float32,), seed=0):
    generator = np.random.default_rng(seed)
    return [
        nn.Parameter(generator.standard_normal(shape).astype(dtype))
        for shape in shapes
        for dtype in dtypes
    ]


def looks_of(parameter):
    data = parameter.data
    return (
        data.tobytes(),
        data.shape,
        data.strides * (data.size > 0),
        data.dtype,
        data.flags.c_contiguous,
    )


def is_moved(parameter):
    return parameter.data.base is not None


# -- layout ----------------------------------------------------------------------------


@given(
    st.lists(
        st.lists(st.integers(0, 5), max_size=3).map(tuple), min_size=1, max_size=8
    ),
    st.lists(st.sampled_from(DTYPES), min_size=1, max_size=3, unique=True),
)
def test_every_parameter_keeps_its_values_shape_strides_dtype_and_alignment(
    shapes, dtypes
):
    parameters = parameters_of(shapes, dtypes)
    before = list(map(looks_of, parameters))
    arena = Arena(parameters)
    assert before == list(map(looks_of, parameters))
    assert arena.is_intact() and all(map(is_moved, parameters))
    for array in (*arena.gradients, *(p.data for p in parameters)):
        start = (
            array.__array_interface__["data"][0]
            - array.base.__array_interface__["data"][0]
        )
        assert start % 16 == 0 or array.size == 0
    for parameter, gradient in zip(parameters, arena.gradients):
        expected = np.float32 if is_half(parameter.dtype) else parameter.dtype
        assert (gradient.shape, gradient.dtype, gradient.flags.c_contiguous) == (
            parameter.shape,
            expected,
            True,
        )
    assert len({id(p.data.base) for p in parameters}) == len(dtypes)


@given(st.lists(st.integers(0, 9), min_size=1, max_size=8))
def test_no_element_belongs_to_two_parameters(lengths):
    parameters = parameters_of([(length,) for length in lengths])
    arena = Arena(parameters)
    for number, (parameter, gradient) in enumerate(zip(parameters, arena.gradients)):
        parameter.data[...] = number
        gradient[...] = -number
    for number, (parameter, gradient) in enumerate(zip(parameters, arena.gradients)):
        assert (parameter.data == number).all() and (gradient == -number).all()


def test_frozen_parameters_stay_and_have_no_gradient_there():
    first, frozen, last = parameters_of([(3,), (3,), (3,)])
    frozen.requires_grad = False
    own = id(frozen.data)
    arena = Arena([first, frozen, last])
    assert id(frozen.data) == own and [g is None for g in arena.gradients] == [
        False,
        True,
        False,
    ]
    assert arena.is_intact()


def test_an_arena_of_nothing_is_intact():
    arena = Arena([])
    assert arena.is_intact() and arena.gradients == [] and arena.gradients_are_free()
    assert arena.joined_gradients() == []


def test_a_parameter_without_values_is_an_error():
    with pytest.raises(ParameterError) as caught:
        Arena([nn.Parameter((2,), nn.initialisers.constant(0.0))])
    assert caught.value.code == "missing"


# -- who else refers to the values -----------------------------------------------------


HOLDERS = {
    "the array": lambda p: p.data,
    "a view": lambda p: p.data[1:],
    "a view of a view": lambda p: p.data[1:].T[:1],
    "a memoryview": lambda p: memoryview(p.data),
    "an array over a buffer": lambda p: np.frombuffer(p.data, p.dtype),
    "a tensor": lambda p: Tensor(p.data),
    "a graph": lambda p: Tensor(np.ones((2, 3), np.float32), requires_grad=True) @ p,
    "a windowed view": lambda p: np.lib.stride_tricks.sliding_window_view(
        p.data, (2, 2)
    ),
}
every_holder = pytest.mark.parametrize("hold", HOLDERS.values(), ids=HOLDERS)


@every_holder
def test_values_that_somebody_else_refers_to_are_not_moved(hold):
    first, held, last = parameters_of([(3, 4)] * 3)
    own = id(held.data)
    kept = hold(held)
    arena = Arena([first, held, last])
    assert [is_moved(first), is_moved(held), is_moved(last)] == [True, False, True]
    assert (
        id(held.data) == own
        and arena.is_intact()
        and arena.gradients[1].shape == (3, 4)
    )
    del kept
    assert all(map(is_moved, parameters_in_a_new_arena(first, held, last)))


def parameters_in_a_new_arena(*parameters):
    Arena(parameters)
    return parameters


@every_holder
def test_in_a_second_arena_held_values_stay_in_the_memory_of_the_first(hold):
    parameters = parameters_of([(3, 4)] * 3)
    arena = Arena(parameters)
    kept = hold(parameters[1])
    addresses = [p.data.__array_interface__["data"] for p in parameters]
    second = Arena(parameters)
    if parameters[1].data.__array_interface__["data"] != addresses[1]:
        pytest.fail("the values that somebody refers to were moved")
    assert second.is_intact() and not arena.is_intact()
    del kept


@pytest.mark.parametrize("change", ["frozen", "two uses", "held"])
def test_in_a_second_arena_all_others_are_moved(change):
    parameters = parameters_of([(3, 4)] * 3)
    first = Arena(parameters)
    if change == "frozen":
        parameters[1].requires_grad = False
    kept = {"two uses": parameters[1].alias, "held": lambda: parameters[1].data}.get(
        change, list
    )()
    before = [id(p.data) for p in parameters]
    second = Arena(parameters)
    assert [id(p.data) != own for p, own in zip(parameters, before)] == [
        True,
        False,
        True,
    ]
    assert second.is_intact() and not first.is_intact()
    del kept


NOT_FRESH = {
    "F order": lambda a: np.asfortranarray(a),
    "turned": lambda a: a.T.copy().T,
    "read-only": lambda a: read_only(a.copy()),
    "a part of an array": lambda a: np.concatenate([a, a])[: len(a)][...],
    "bytes": lambda a: np.frombuffer(bytearray(a.tobytes()), a.dtype).reshape(a.shape),
    "strides of an axis of length one": lambda a: np.lib.stride_tricks.as_strided(
        a[:1].copy(), (1, 4), (4, 4)
    ),
}


def read_only(array):
    array.flags.writeable = False
    return array


@pytest.mark.parametrize("make", NOT_FRESH.values(), ids=NOT_FRESH)
def test_arrays_that_no_allocation_leaves_are_not_moved(make):
    (parameter,) = parameters_of([(3, 4)])
    whole = make(parameter.data)
    parameter.shape, parameter.data = whole.shape, whole
    if make is NOT_FRESH["a part of an array"]:
        keeper = whole.base  # somebody else's
        assert keeper is not None
    del whole
    own = id(parameter.data)  # no reference, which would be a reason
    arena = Arena([parameter])
    assert id(parameter.data) == own and arena.gradients[0].shape == parameter.shape


def test_a_memory_map_is_not_moved(tmp_path):
    (parameter,) = parameters_of([(3, 4)])
    parameter.data = np.memmap(tmp_path / "values", np.float32, "w+", shape=(3, 4))
    Arena([parameter])
    assert type(parameter.data) is np.memmap


def test_arrays_of_the_array_api_standard_stay_and_have_gradients_of_their_own():
    parameters = [
        nn.Parameter(array_api_strict.asarray(np.ones(shape, np.float32)))
        for shape in [(3,), (2, 2)]
    ]
    own = [id(p.data) for p in parameters]
    arena = Arena(parameters)
    assert [id(p.data) for p in parameters] == own and arena.is_intact()
    assert [g.shape for g in arena.gradients] == [(3,), (2, 2)]
    assert all(g.__array_namespace__() is array_api_strict for g in arena.gradients)
    # no reference shows whether somebody keeps one
    assert not arena.gradients_are_free()
    arena.assign_gradients()
    assert len(arena.joined_gradients()) == 2


def test_parameters_of_a_custom_class_stay():
    class Mine(nn.Parameter):
        pass

    parameter = Mine(np.ones(3))
    own = id(parameter.data)
    Arena([parameter])
    assert id(parameter.data) == own


# -- is_intact -------------------------------------------------------------------------


REPLACED = {
    "another array": lambda p: setattr(p, "data", p.data.copy()),
    "another view of the same memory": lambda p: setattr(p, "data", p.data[...]),
    "an alias": lambda p: p.alias(),
    "a copy": lambda p: copy.copy(p),
    "another device": lambda p: p.move(array_api_strict),
}


@pytest.mark.parametrize("replace", REPLACED.values(), ids=REPLACED)
def test_an_arena_notices_that_values_were_replaced(replace):
    parameters = parameters_of([(3, 4)] * 3)
    arena = Arena(parameters)
    assert arena.is_intact()
    kept = replace(parameters[1])
    assert not arena.is_intact()
    del kept


UNCHANGED = {
    "changed in place": lambda p: p.data.__setitem__(..., 7),
    "loaded": lambda p: p.load(np.ones(p.shape, np.float32), "p"),
    "a step": lambda p: optim.SGD([p], 0.1).step(),
    "a deep copy": lambda p: copy.deepcopy(p),
    "a pickle": lambda p: pickle.dumps(p),
    "another gradient": lambda p: setattr(p, "grad", np.ones(p.shape, np.float32)),
    "no gradient": lambda p: p.zero_grad(),
}


@pytest.mark.parametrize("act", UNCHANGED.values(), ids=UNCHANGED)
def test_an_arena_stays_intact(act):
    parameters = parameters_of([(3, 4)] * 3)
    arena = Arena(parameters)
    arena.assign_gradients()
    act(parameters[1])
    assert arena.is_intact()


def test_a_copy_and_a_pickle_have_memory_and_gradients_of_their_own():
    layer = nn.Linear(3, 4).initialise(0)
    arena = Arena(layer.parameters())
    arena.assign_gradients()
    for twin in (copy.deepcopy(layer), pickle.loads(pickle.dumps(layer))):
        assert twin.weight.arena is None and twin.weight.grad is None
        assert not np.shares_memory(twin.weight.data, layer.weight.data)
        assert (
            twin.weight.data.flags.owndata
            and (twin.weight.data == layer.weight.data).all()
        )
    assert arena.is_intact()


def test_a_closed_arena_leaves_the_values_and_frees_the_gradients():
    parameters = parameters_of([(3, 4), (4,)])
    before = [p.data.copy() for p in parameters]
    arena = Arena(parameters)
    gradients = weakref.ref(arena.gradients[0].base)
    arena.assign_gradients()
    arena.close()
    assert gradients() is not None  # the parameters have them
    for parameter, values in zip(parameters, before):
        assert (parameter.data == values).all() and parameter.arena is None
        parameter.grad = None
    assert gradients() is None


def test_each_array_is_freed_before_the_next_is_moved():
    parameters = parameters_of([(3, 4)] * 3)
    freed = []
    for i, parameter in enumerate(parameters):
        weakref.finalize(
            parameter.data,
            lambda i=i: freed.append((i, list(map(is_moved, parameters[i + 1 :])))),
        )
    Arena(parameters)
    assert freed == [(0, [False, False]), (1, [False]), (2, [])]


def test_a_dropped_arena_frees_its_memory_though_an_optimiser_has_used_it():
    parameters = parameters_of([(3, 4), (4,)])
    optimiser = optim.Adam(parameters)
    arena = Arena(parameters)
    memory = [
        weakref.ref(parameters[0].data.base),
        weakref.ref(arena.gradients[0].base),
    ]
    arena.assign_gradients()
    optimiser.step()
    optimiser.zero_grad()
    gc.disable()
    try:
        del arena
        assert memory[1]() is None
        for parameter in parameters:
            parameter.data = parameter.data.copy()
        assert memory[0]() is None
    finally:
        gc.enable()


# -- gradients -------------------------------------------------------------------------


KEPT = {
    "the array": lambda g: g,
    "a view": lambda g: g[1:],
    "a view of a view": lambda g: g[1:].T[:1],
    "a memoryview": lambda g: memoryview(g),
    "an array over a buffer": lambda g: np.frombuffer(g, g.dtype),
    "the elements in one row": lambda g: g.ravel(),
    "a windowed view": lambda g: np.lib.stride_tricks.sliding_window_view(g, (2, 2)),
    "the flat array": lambda g: g.base,
    "a list": lambda g: [g],
}


@pytest.mark.parametrize("keep", KEPT.values(), ids=KEPT)
def test_a_gradient_that_somebody_keeps_is_noticed_until_it_is_dropped(keep):
    parameters = parameters_of([(3, 4)] * 3)
    arena = Arena(parameters)
    # the functions that write into them
    users = [{"gradient": each} for each in arena.gradients]
    arena.count_references()
    for _ in range(2):
        assert arena.gradients_are_free()
        arena.assign_gradients()
        kept = keep(parameters[1].grad)
        for parameter in parameters:
            parameter.zero_grad()
        assert not arena.gradients_are_free()
        del kept
    assert arena.gradients_are_free()
    del users
    assert arena.gradients_are_free()  # fewer references than before are no user's


def test_renewed_gradients_leave_the_old_ones_to_who_keeps_them():
    parameters = parameters_of([(3, 4)] * 3)
    arena = Arena(parameters)
    for gradient in arena.gradients:
        gradient[...] = 5
    arena.assign_gradients()
    kept = parameters[1].grad
    for parameter in parameters:
        parameter.zero_grad()
    assert not arena.gradients_are_free()
    arena.renew_gradients()
    assert arena.gradients_are_free() and arena.is_intact()
    for gradient in arena.gradients:
        gradient[...] = 6
    assert (kept == 5).all() and arena.gradients[1] is not kept
    arena.assign_gradients()
    assert parameters[1].grad is arena.gradients[1]


def test_the_joined_gradients_are_all_or_none():
    parameters = parameters_of([(3, 4), (7,)], DTYPES)
    arena = Arena(parameters)
    assert arena.joined_gradients() is None
    arena.assign_gradients()
    assert sum(each.size for each in arena.joined_gradients()) >= sum(
        p.size for p in parameters
    )
    parameters[2].grad = np.zeros_like(arena.gradients[2])
    assert arena.joined_gradients() is None

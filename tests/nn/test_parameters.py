"""Parameters have no memory until they have values; copies and states carry the values,
and nothing else.
"""

from __future__ import annotations

import copy
import tracemalloc
from types import SimpleNamespace

import array_api_strict
import numpy as np
import pytest

from minipipe import Pipeline, Tensor, functional, nn
from minipipe.comm import OneRankGroup
from minipipe.core.autograd import backend
from minipipe.errors import ParameterError, TensorError
from tests.numerics.small_models import Block, Tied, mlp, values

# -- parameters without values ---------------------------------------------------------


def test_a_model_larger_than_memory_can_be_described():
    tracemalloc.start()
    try:
        model = nn.Sequential(nn.Linear(10**6, 10**6), nn.ReLU())  # 4 TB
        assert model[0].weight.shape == (10**6, 10**6)
        assert model[0].weight.ndim == 2 and model[0].weight.dtype == np.float32
        assert model.num_parameters == 10**12 + 10**6
        assert model[0].weight.nbytes == 4 * 10**12
        assert (
            repr(model) == "Sequential(\n  0: Linear(1000000, 1000000)\n  1: ReLU()\n)"
        )
        assert not model[0].weight.is_filled
        assert copy.deepcopy(model).num_parameters == model.num_parameters
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert peak < 10**6  # bytes


@pytest.mark.parametrize("xp", [np, array_api_strict], ids=["NumPy", "another module"])
def test_a_parameter_stays_in_the_array_module_of_its_values_whatever_is_loaded(xp):
    parameter = nn.Parameter(xp.asarray([1.0, 2.0], dtype=xp.float64))
    for given in (np.array([3.0, 4.0]), array_api_strict.asarray([3.0, 4.0])):
        parameter.load(given, "it")
        assert backend.array_module(parameter.data) is xp
        assert (
            parameter.numpy().tolist() == [3.0, 4.0]
            and parameter.numpy().dtype == np.float64
        )


def test_gradients_that_are_forgotten_are_noted_for_the_pipeline_and_those_that_are_taken_are_not():
    parameter = nn.Parameter([1.0, 2.0])
    forget = {
        "zero_grad": parameter.zero_grad,
        "grad = None": lambda: setattr(parameter, "grad", None),
    }
    keep = {
        "take_grad": parameter.take_grad,
        "grad = …": lambda: setattr(parameter, "grad", np.ones(2, np.float32)),
    }
    for act, is_kept in (
        *((act, False) for act in forget.values()),
        *((act, True) for act in keep.values()),
    ):
        for has_gradient in (True, False):
            parameter.updates = None
            parameter.grad = np.ones(2, np.float32) if has_gradient else None
            parameter.updates = SimpleNamespace(are_gradients_kept=True)
            act()
            assert parameter.updates.are_gradients_kept is (is_kept or not has_gradient)


READS = {
    "data": lambda p: p.data,
    "numpy()": lambda p: p.numpy(),
    "np.asarray": lambda p: np.asarray(p),
    "arithmetic": lambda p: p * 2,
    "an operation": lambda p: functional.linear(Tensor(np.ones((1, 2), np.float32)), p),
    "state_dict": lambda p: nn.Sequential(_holding(p)).state_dict(),
}


def _holding(parameter: nn.Parameter) -> nn.Module:
    module = nn.Module()
    module.parameter = parameter
    return module


@pytest.mark.parametrize("read", READS.values(), ids=READS)
def test_reading_a_parameter_without_values_raises_uninitialised_and_says_what_to_do(
    read,
):
    parameter = nn.Parameter((2, 3), nn.initialisers.constant(0.0))
    with pytest.raises(ParameterError, match=r"\(2, 3\).*initialise\(seed\)") as caught:
        read(parameter)
    assert caught.value.code == "missing"
    parameter.fill(0, "parameter")
    read(parameter)


def test_a_parameter_made_of_values_has_them_at_once_and_its_own():
    array = np.array([1.0, 2.0], np.float32)
    parameter = nn.Parameter(array)
    array[0] = 5
    assert (
        parameter.is_filled
        and parameter.data.tolist() == [1.0, 2.0]
        and parameter.requires_grad
    )
    assert nn.Parameter([1.0, 2.0]).dtype == np.float32
    assert nn.Parameter(np.ones(2)).dtype == np.float64


@pytest.mark.parametrize("not_a_shape", [[3, 4], np.array([3, 4])])
def test_a_parameter_refuses_whole_numbers_as_values(not_a_shape):
    # A list is values and a tuple is a shape; who confuses them must hear of it.
    with pytest.raises(TensorError) as caught:
        nn.Parameter(not_a_shape)
    assert caught.value.code == "dtype"


def test_a_missing_attribute_of_a_parameter_is_an_attribute_error():
    with pytest.raises(AttributeError, match="Parameter has no attribute 'gradient'"):
        _ = nn.Parameter([0.0]).gradient


@pytest.mark.parametrize("shape", [(3, 5), (1, 5), (5, 1), (2, 3, 4)])
def test_loaded_and_drawn_values_are_kept_in_c_order(shape):
    # A product sums in an order that depends on strides: who loads w.T must get the
    # bits of who loads w.T.copy().
    array = np.random.default_rng(0).normal(size=shape[::-1]).astype(np.float32).T
    plain = np.empty(shape, np.float32).strides
    assert array.strides != plain
    loaded = nn.Parameter(shape, nn.initialisers.constant(0.0))
    loaded.load(array, "loaded")
    drawn = nn.Parameter(shape, lambda generator, shape: array)
    drawn.fill(0, "drawn")
    for parameter in (
        loaded,
        drawn,
        nn.Parameter(array),
        copy.deepcopy(nn.Parameter(array)),
    ):
        assert parameter.data.strides == plain
        assert parameter.data.tobytes() == array.tobytes()


# -- copies ----------------------------------------------------------------------------


def test_a_deep_copy_has_the_values_and_none_of_the_memory():
    model = mlp().initialise(2)
    twin = copy.deepcopy(model)
    assert values(twin) == values(model)
    before = values(model)
    for parameter in twin.parameters():
        parameter.data += 1
    twin(np.ones((2, 4), np.float32)).sum().backward()
    assert values(model) == before
    assert all(parameter.grad is None for parameter in model.parameters())
    assert all(parameter.grad is not None for parameter in twin.parameters())


def test_a_deep_copy_of_a_description_is_a_description():
    model = mlp()
    twin = copy.deepcopy(model).initialise(2)
    assert not any(parameter.is_filled for parameter in model.parameters())
    assert values(twin) == values(mlp().initialise(2))


def test_a_deep_copy_keeps_tied_parameters_tied_to_each_other_and_not_to_the_original():
    model = Tied().initialise(2)
    twin = copy.deepcopy(model)
    assert twin.encoder.weight is twin.decoder.weight
    assert twin.encoder.weight is not model.encoder.weight
    layers = copy.deepcopy([model.encoder, model.decoder])
    assert layers[0].weight is layers[1].weight


def test_a_deep_copy_leaves_the_gradient_behind():
    model = mlp().initialise(2)
    model(np.ones((2, 4), np.float32)).sum().backward()
    assert all(
        parameter.grad is None for parameter in copy.deepcopy(model).parameters()
    )


# -- state_dict ------------------------------------------------------------------------


def test_a_state_goes_into_another_model_and_comes_back_equal():
    model, other = Block().initialise(1), Block().initialise(2)
    assert values(model) != values(other)
    other.load_state_dict(model.state_dict())
    assert values(other) == values(model)
    description = Block()
    description.load_state_dict(model.state_dict())  # fills it, too
    assert values(description) == values(model)


def test_a_state_is_a_copy_both_ways():
    model = mlp().initialise(1)
    before = values(model)
    state = model.state_dict()
    state["0.weight"] += 1
    assert values(model) == before
    model.load_state_dict(state)
    after = values(model)
    state["0.weight"] += 1
    assert values(model) == after != before


def test_loading_takes_the_dtype_of_the_model_and_forgets_gradients():
    model = mlp().initialise(1)
    model(np.ones((2, 4), np.float32)).sum().backward()
    model.load_state_dict(
        {name: array.astype(np.float64) for name, array in model.state_dict().items()}
    )
    assert {parameter.dtype for parameter in model.parameters()} == {
        np.dtype(np.float32)
    }
    assert all(
        parameter.data.dtype == np.float32 and parameter.grad is None
        for parameter in model.parameters()
    )


@pytest.mark.parametrize(
    ("own", "given", "value", "is_taken"),
    [
        *(
            ("float32", "float64", 0.5, True),
            ("float32", "float64", 0.1, False),
            ("float32", "float64", 1e300, False),
        ),
        *(
            ("float32", "float64", np.nan, True),
            ("float32", "float64", -np.inf, True),
            ("float64", "float32", 0.1, True),
        ),
        *(
            ("float32", "float16", 0.1, True),
            ("float16", "float32", 0.1, False),
            ("float16", "float32", 70000, False),
        ),
        *(
            ("float32", "int64", 1, False),
            ("float64", "int8", 0, False),
            ("float32", "bool", True, False),
        ),
        *(("float32", ">f4", 0.1, True), ("float32", "complex64", 1, False)),
    ],
)
def test_a_state_gives_a_model_its_own_numbers_or_is_refused(
    own, given, value, is_taken
):
    """The story: a state of float64, of whole numbers or of truth values was rounded
    without a word.
    """
    model, state = (
        nn.Linear(1, 1, bias=False, dtype=own).initialise(3),
        {"weight": np.array([[value]], given)},
    )
    pipeline = Pipeline(
        nn.Sequential(nn.Linear(1, 1, bias=False, dtype=own)), OneRankGroup()
    )
    before = values(model), values(pipeline)
    for one, prefix in ((model, ""), (pipeline, "0.")):
        named = {prefix + "weight": state["weight"]}
        if is_taken:
            one.load_state_dict(named)
            assert np.array_equal(
                one.state_dict()[prefix + "weight"], state["weight"], equal_nan=True
            )
        else:
            with pytest.raises(
                ParameterError, match=rf"weight has dtype {own}, and the state holds"
            ) as caught:
                one.load_state_dict(named)
            assert caught.value.code == "dtype"
    assert is_taken or before == (values(model), values(pipeline))


def drop(state: dict) -> None:
    del state["4.bias"]


def add(state: dict) -> None:
    state["5.weight"] = np.zeros((3, 3))


def reshape(state: dict) -> None:
    state["4.bias"] = np.zeros((1, 3))  # would broadcast


@pytest.mark.parametrize(
    "damage, code, named",
    [
        (drop, "missing", "4.bias"),
        (add, "unexpected", "5.weight"),
        (reshape, "shape", "4.bias"),
    ],
)
def test_a_state_that_does_not_fit_is_refused_by_name_and_changes_nothing(
    damage, code, named
):
    model = mlp().initialise(1)
    before = values(model)
    state = mlp().initialise(2).state_dict()
    damage(state)
    with pytest.raises(ParameterError, match=named) as caught:
        model.load_state_dict(state)
    assert caught.value.code == code
    assert values(model) == before


def test_a_shape_needs_an_initialiser():
    """The story: ``nn.Parameter((8, 2))`` was zeros without a word, so the product of
    two of them was 0, the gradient of each, which is a product with the other, too, and
    the layer never learnt."""
    for shape in ((8, 2), (3,), ()):
        with pytest.raises(
            ParameterError,
            match=r"has no initialiser.* nn\.initialisers\.normal\(0\.02\)",
        ) as caught:
            nn.Parameter(shape)
        assert caught.value.code == "missing" and f"nn.Parameter({shape}, " in str(
            caught.value
        )


def test_given_values_stay_what_they_are_when_a_model_is_initialised():
    """The story: ``initialise`` made zeros of a parameter that was given as values,
    such as a table of positions.
    """
    model = nn.Sequential(_holding(nn.Parameter([1.0, 2.0])), nn.Linear(2, 2))
    for one in (model, copy.deepcopy(model)):
        one.initialise(3)
        assert (
            one[0].parameter.numpy().tolist() == [1.0, 2.0]
            and one[1].weight.numpy().any()
        )


def test_a_parameter_prints_with_and_without_values():
    parameter = nn.Parameter((2,), nn.initialisers.constant(0.0))
    assert repr(parameter) == "Parameter(shape=(2,), dtype=float32, no values yet)"
    parameter.fill(0, "bias")
    assert repr(parameter) == "Parameter([0., 0.], requires_grad=True)"


def test_the_rows_of_a_printed_parameter_stand_below_each_other():
    """The story: they stood three columns too far left, where those of a tensor
    belong.
    """
    rows = repr(nn.Parameter(np.zeros((2, 2)))).splitlines()
    assert rows[0].index("[0.") == rows[1].index("[0.") == len("Parameter([")

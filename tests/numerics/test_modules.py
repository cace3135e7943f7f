"""Parameters, modules and layers: names, first values, state, looks, and what passes between layers."""

from __future__ import annotations

import copy
import tracemalloc

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from minipipe import Tensor, autograd, backend, functional, nn
from minipipe.autograd import StageInput, backward
from minipipe.errors import MinipipeError, ParameterError, TensorError
from minipipe.tensor import record


class Block(nn.Module):
    """A module of one's own: a parameter, a module, a list and a tuple of them, and what is neither."""

    def __init__(self) -> None:
        self.scale = nn.Parameter(np.ones(3, np.float32))
        self.inner = nn.Sequential(nn.Linear(3, 3), nn.Tanh())
        self.branches = [nn.Linear(3, 3, bias=False), nn.Parameter((2, 2))]
        self.pair = (nn.Identity(), nn.Linear(3, 1))
        self.width = 3

    def forward(self, x: Tensor) -> Tensor:
        return self.pair[1](self.branches[0](self.inner(x) * self.scale))


class Tied(nn.Module):
    """One layer under two names."""

    def __init__(self) -> None:
        self.encoder = nn.Linear(3, 3)
        self.decoder = self.encoder

    def forward(self, x: Tensor) -> Tensor:
        return self.decoder(self.encoder(x))


def mlp() -> nn.Sequential:
    return nn.Sequential(nn.Linear(4, 3), nn.ReLU(), nn.Linear(3, 3), nn.Tanh(), nn.Linear(3, 3))


def values(module: nn.Module) -> dict[str, bytes]:
    return {name: parameter.data.tobytes() for name, parameter in module.named_parameters()}


# -- names ---------------------------------------------------------------------------------------------------


def test_names_are_the_path_through_attributes_lists_and_tuples():
    assert [name for name, _ in Block().named_parameters()] == [
        "scale",
        "inner.0.weight",
        "inner.0.bias",
        "branches.0.weight",
        "branches.1",
        "pair.1.weight",
        "pair.1.bias",
    ]
    assert [name for name, _ in nn.Sequential(nn.ReLU(), Block()).named_parameters()][:2] == [
        "1.scale",
        "1.inner.0.weight",
    ]


def test_modules_are_found_wherever_parameters_are():
    assert [type(module).__name__ for module in Block().modules()] == [
        "Block",
        "Sequential",
        "Linear",
        "Tanh",
        "Linear",
        "Identity",
        "Linear",
    ]


def test_a_parameter_under_two_names_comes_once_under_the_first():
    model = Tied()
    assert [name for name, _ in model.named_parameters()] == ["encoder.weight", "encoder.bias"]
    assert model.num_parameters == 12
    shared = nn.Linear(2, 2)
    assert [name for name, _ in nn.Sequential(shared, nn.Linear(2, 2), shared).named_parameters()] == [
        "0.weight",
        "0.bias",
        "1.weight",
        "1.bias",
    ]


# -- first values --------------------------------------------------------------------------------------------


def test_building_twice_gives_the_same_model():
    assert values(mlp().initialise(5)) == values(mlp().initialise(5))


def test_equal_layers_start_different_and_so_do_equal_models_of_other_seeds():
    model, other = mlp().initialise(5), mlp().initialise(6)
    assert values(model)["2.weight"] != values(model)["4.weight"]
    assert values(model)["2.weight"] != values(other)["2.weight"]


def test_first_values_depend_on_the_seed_and_the_qualified_name_alone():
    # Whatever stands around a layer: its neighbours, the order of filling, the rank that fills it.
    alone = nn.Sequential(nn.Identity(), nn.Identity(), nn.Linear(3, 3)).initialise(5)
    assert values(alone)["2.weight"] == values(mlp().initialise(5))["2.weight"]
    one = mlp()
    for name, parameter in reversed(list(one.named_parameters())):
        parameter.fill(5, name)
    assert values(one) == values(mlp().initialise(5))


def test_a_name_is_that_in_the_outermost_module_also_inside_others():
    inner = nn.Sequential(nn.Linear(3, 3))
    outer = nn.Sequential(nn.Identity(), inner).initialise(5)
    assert values(outer)["1.0.weight"] != values(nn.Sequential(nn.Linear(3, 3)).initialise(5))["0.weight"]


def test_the_first_call_fills_with_seed_0_and_later_calls_leave_the_values():
    model, x = mlp(), np.ones((2, 4), np.float32)
    first = model(x).numpy()
    assert values(model) == values(mlp().initialise(0))
    np.testing.assert_array_equal(model(x).numpy(), first)


def test_the_first_call_fills_only_what_has_no_values():
    model = mlp()
    model[2].weight.load(np.full((3, 3), 2.0), "2.weight")
    model(np.ones((2, 4), np.float32))
    assert (model[2].weight.data == 2.0).all()
    assert values(model)["0.weight"] == values(mlp().initialise(0))["0.weight"]


def test_initialise_again_starts_anew_and_forgets_gradients():
    model = mlp().initialise(1)
    model(np.ones((2, 4), np.float32)).sum().backward()
    assert model[0].weight.grad is not None
    assert model.initialise(1) is model
    assert values(model) == values(mlp().initialise(1))
    assert all(parameter.grad is None for parameter in model.parameters())


def test_a_linear_layer_starts_uniform_within_the_bound_of_he_and_its_bias_at_zero():
    layer = nn.Linear(50, 40).initialise(0)
    bound = (6 / 50) ** 0.5
    assert abs(layer.weight.data).max() <= bound
    assert abs(layer.weight.data).max() > 0.99 * bound  # of 2000 draws; all below has probability 1e-9
    assert abs(layer.weight.data.std() - bound / 3**0.5) < 0.03 * bound
    assert not layer.bias.data.any()
    assert layer.weight.dtype == layer.bias.dtype == np.float32


def test_an_initialiser_and_a_dtype_can_be_given():
    layer = nn.Linear(2, 3, bias=False, initialiser=nn.initialisers.constant(0.5), dtype=np.float64).initialise()
    assert layer.bias is None
    assert layer.weight.dtype == np.float64 and (layer.weight.data == 0.5).all()
    assert layer(np.ones((1, 2))).dtype == np.float64


# -- parameters without values -------------------------------------------------------------------------------


def test_a_model_larger_than_memory_can_be_described():
    tracemalloc.start()
    try:
        model = nn.Sequential(nn.Linear(10**6, 10**6), nn.ReLU())  # 4 TB
        assert model[0].weight.shape == (10**6, 10**6)
        assert model[0].weight.ndim == 2 and model[0].weight.dtype == np.float32
        assert model.num_parameters == 10**12 + 10**6
        assert model[0].weight.nbytes == 4 * 10**12
        assert repr(model) == "Sequential(\n  0: Linear(1000000, 1000000)\n  1: ReLU()\n)"
        assert not model[0].weight.is_filled
        assert copy.deepcopy(model).num_parameters == model.num_parameters
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert peak < 10**6  # bytes


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
def test_reading_a_parameter_without_values_raises_uninitialised_and_says_what_to_do(read):
    parameter = nn.Parameter((2, 3))
    with pytest.raises(ParameterError, match=r"\(2, 3\).*initialise\(seed\)") as caught:
        read(parameter)
    assert caught.value.code == "uninitialised"
    parameter.fill(0, "parameter")
    read(parameter)


def test_a_parameter_made_of_values_has_them_at_once_and_its_own():
    array = np.array([1.0, 2.0], np.float32)
    parameter = nn.Parameter(array)
    array[0] = 5
    assert parameter.is_filled and parameter.data.tolist() == [1.0, 2.0] and parameter.requires_grad
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
        _ = nn.Parameter((2,)).gradient


@pytest.mark.parametrize("shape", [(3, 5), (1, 5), (5, 1), (2, 3, 4)])
def test_loaded_and_drawn_values_are_kept_in_c_order(shape):
    # A product sums in an order that depends on strides: who loads w.T must get the bits of who loads w.T.copy().
    array = np.random.default_rng(0).normal(size=shape[::-1]).astype(np.float32).T
    plain = np.empty(shape, np.float32).strides
    assert array.strides != plain
    loaded = nn.Parameter(shape)
    loaded.load(array, "loaded")
    drawn = nn.Parameter(shape, lambda generator, shape: array)
    drawn.fill(0, "drawn")
    for parameter in (loaded, drawn, nn.Parameter(array), copy.deepcopy(nn.Parameter(array))):
        assert parameter.data.strides == plain
        assert parameter.data.tobytes() == array.tobytes()


# -- copies --------------------------------------------------------------------------------------------------


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
    assert all(parameter.grad is None for parameter in copy.deepcopy(model).parameters())


# -- state_dict ----------------------------------------------------------------------------------------------


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
    model.load_state_dict({name: array.astype(np.float64) for name, array in model.state_dict().items()})
    assert {parameter.dtype for parameter in model.parameters()} == {np.dtype(np.float32)}
    assert all(parameter.data.dtype == np.float32 and parameter.grad is None for parameter in model.parameters())


def drop(state: dict) -> None:
    del state["4.bias"]


def add(state: dict) -> None:
    state["5.weight"] = np.zeros((3, 3))


def reshape(state: dict) -> None:
    state["4.bias"] = np.zeros((1, 3))  # would broadcast


@pytest.mark.parametrize(
    "damage, code, named",
    [(drop, "missing", "4.bias"), (add, "unexpected", "5.weight"), (reshape, "shape", "4.bias")],
)
def test_a_state_that_does_not_fit_is_refused_by_name_and_changes_nothing(damage, code, named):
    model = mlp().initialise(1)
    before = values(model)
    state = mlp().initialise(2).state_dict()
    damage(state)
    with pytest.raises(ParameterError, match=named) as caught:
        model.load_state_dict(state)
    assert caught.value.code == code
    assert values(model) == before


# -- train, eval, looks --------------------------------------------------------------------------------------


def test_train_and_eval_reach_every_module_inside():
    model = nn.Sequential(Block(), nn.Sequential(nn.ReLU(), Tied()))
    modules = list(model.modules())
    assert all(module.is_training for module in modules)
    assert model.eval() is model and not any(module.is_training for module in modules)
    assert model.train() is model and all(module.is_training for module in modules)
    model[1].eval()
    assert [module.is_training for module in (model, model[0], model[1], model[1][1].encoder)] == [
        True,
        True,
        False,
        False,
    ]
    assert nn.ReLU().is_training  # not shared through the class


def test_zero_grad_forgets_every_gradient():
    model = mlp()
    model(np.ones((2, 4), np.float32)).sum().backward()
    assert all(parameter.grad is not None for parameter in model.parameters())
    model.zero_grad()
    assert all(parameter.grad is None for parameter in model.parameters())


def test_a_model_prints_as_it_is_written():
    model = nn.Sequential(
        nn.Flatten(),
        nn.Linear(4, 3, bias=False),
        nn.Sequential(nn.Linear(3, 3), nn.Sigmoid()),
        Tied(),
        nn.Identity(),
        nn.Linear(3, 0),
    )
    expected = """\
Sequential(
  0: Flatten()
  1: Linear(4, 3, bias=False)
  2: Sequential(
    0: Linear(3, 3)
    1: Sigmoid()
  )
  3: Tied(
    encoder: Linear(3, 3)
    decoder: Linear(3, 3)
  )
  4: Identity()
  5: Linear(3, 0)
)"""
    assert repr(model) == expected
    assert repr(model.initialise()) == expected
    assert repr(nn.Sequential()) == "Sequential()"
    assert repr(nn.CrossEntropyLoss()) == "CrossEntropyLoss()"


def test_a_parameter_prints_with_and_without_values():
    parameter = nn.Parameter((2,))
    assert repr(parameter) == "Parameter(shape=(2,), dtype=float32, no values yet)"
    parameter.fill(0, "bias")
    assert repr(parameter) == "Parameter([0., 0.], requires_grad=True)"


def test_the_rows_of_a_printed_parameter_stand_below_each_other():
    """The story: they stood three columns too far left, where those of a tensor belong."""
    rows = repr(nn.Parameter(np.zeros((2, 2)))).splitlines()
    assert rows[0].index("[0.") == rows[1].index("[0.") == len("Parameter([")


# -- layers --------------------------------------------------------------------------------------------------

X = np.array([[-1.0, 0.0, 2.0], [0.5, -3.0, 1.0]])
LAYERS = {
    "Identity": (nn.Identity, X),
    "ReLU": (nn.ReLU, [[0.0, 0.0, 2.0], [0.5, 0.0, 1.0]]),
    "Tanh": (nn.Tanh, np.tanh(X)),
    "Sigmoid": (nn.Sigmoid, 1 / (1 + np.exp(-X))),
    "Flatten": (nn.Flatten, X),
    "Linear": (
        lambda: nn.Linear(3, 2, initialiser=nn.initialisers.constant(2.0), dtype=np.float64),
        [[2, 2], [-3, -3]],
    ),
}


@pytest.mark.parametrize("make, expected", LAYERS.values(), ids=LAYERS)
def test_a_layer_computes_what_its_name_says(make, expected):
    np.testing.assert_allclose(make()(Tensor(X)).numpy(), expected, rtol=1e-14)


def test_flatten_keeps_the_first_axis():
    assert nn.Flatten()(Tensor(np.zeros((2, 3, 4)))).shape == (2, 12)


def test_losses_are_means_over_the_batch():
    scores, labels = Tensor(np.log([[1.0, 3.0], [1.0, 1.0]])), [1, 0]
    np.testing.assert_allclose(nn.CrossEntropyLoss()(scores, labels).item(), (np.log(4 / 3) + np.log(2)) / 2)
    prediction, target = Tensor([[1.0, 2.0], [3.0, 4.0]]), [[1.0, 2.0], [3.0, 0.0]]
    assert nn.MSELoss()(prediction, target).item() == 4.0
    assert list(nn.MSELoss().parameters()) == []


def test_a_module_without_forward_says_so():
    class Empty(nn.Module):
        pass

    with pytest.raises(TypeError, match="Empty does not define forward"):
        Empty()(1)


# -- sequences -----------------------------------------------------------------------------------------------


def test_a_sequence_is_indexed_sliced_and_walked_like_a_list_and_shares_its_layers():
    model = mlp()
    assert len(model) == 5
    assert model[0] is model.layers[0] and model[-1] is model.layers[4]
    part = model[1:4]
    assert type(part) is nn.Sequential and list(part) == model.layers[1:4]
    assert list(model[::2]) == [model[0], model[2], model[4]]
    assert [type(layer) for layer in model] == [nn.Linear, nn.ReLU, nn.Linear, nn.Tanh, nn.Linear]
    with pytest.raises(IndexError):
        model[5]


def test_the_parts_of_a_sequence_one_after_another_give_the_whole():
    model, x = mlp().initialise(), np.ones((2, 4), np.float32)
    assert model[2:](model[:2](x)).numpy().tobytes() == model(x).numpy().tobytes()


def test_an_empty_sequence_returns_its_input():
    x = Tensor([1.0])
    assert nn.Sequential()(x) is x


@pytest.mark.parametrize("arguments", [([nn.ReLU()],), (nn.ReLU(), functional.relu), (nn.ReLU,)])
def test_a_sequence_takes_modules_only(arguments):
    with pytest.raises(TypeError, match="Sequential takes modules"):
        nn.Sequential(*arguments)


def notes_of(call) -> tuple[MinipipeError, list[str]]:
    with pytest.raises(MinipipeError) as caught:
        call()
    return caught.value, getattr(caught.value, "__notes__", [])


def test_a_shape_error_names_the_layer_where_it_happened():
    model = nn.Sequential(nn.Linear(4, 3), nn.ReLU(), nn.Linear(5, 2))
    error, notes = notes_of(lambda: model(np.ones((2, 4), np.float32)))
    assert error.code == "shape" and "(2, 3)" in error.message and "(5, 2)" in error.message
    assert notes == ["in layer 2, Linear(5, 2)"]


def test_a_shape_error_inside_nested_sequences_names_the_way_from_the_inside_out():
    model = nn.Sequential(nn.ReLU(), nn.Sequential(nn.Linear(4, 3), nn.Linear(4, 3)))
    _, notes = notes_of(lambda: model(np.ones((2, 4), np.float32)))
    assert notes[0] == "in layer 1, Linear(4, 3)"
    assert notes[1].startswith("in layer 1, Sequential(")
    assert len(notes) == 2


def test_a_dtype_error_names_the_layer_too():
    model = nn.Sequential(nn.Linear(4, 3, dtype=np.float64), nn.Linear(3, 3))
    error, notes = notes_of(lambda: model(np.ones((2, 4))))
    assert error.code == "dtype" and notes == ["in layer 1, Linear(3, 3)"]


# -- what passes from one layer to the next ------------------------------------------------------------------


class Transposed(nn.Module):
    """Returns a transposed view; its gradient is a transposed view, too."""

    def forward(self, x: Tensor) -> Tensor:
        return x.T


class Scattered(nn.Module):
    """Adds to each number its column's sum, which NumPy computes in an order that depends on the strides."""

    def forward(self, x: Tensor) -> Tensor:
        return x + x.sum(axis=0, keepdims=True)


class Spy(nn.Module):
    """Returns its input, and notes the strides of what passes forward and backward."""

    def __init__(self) -> None:
        self.forward_strides: list[tuple[int, ...]] = []
        self.backward_strides: list[tuple[int, ...]] = []

    def forward(self, x: Tensor) -> Tensor:
        self.forward_strides.append(x.data.strides)

        def vjp(gradient):
            self.backward_strides.append(gradient.strides)
            return gradient

        return record(x.data.copy(), (x, vjp))


def spied(shape: tuple[int, ...]) -> tuple[list, list]:
    """Return the strides after, and those of the gradient before, a layer that transposes."""
    before, after = Spy(), Spy()
    x = Tensor(np.ones(shape, np.float32), requires_grad=True)
    nn.Sequential(before, Transposed(), after)(x).backward(np.ones(shape[::-1], np.float32))
    return after.forward_strides, before.backward_strides


SHAPES = [(3, 5), (1, 5), (5, 1), (2, 3, 4), (2, 1, 4), (1, 1)]


@pytest.mark.parametrize("shape", SHAPES)
def test_between_layers_values_and_gradients_have_the_strides_of_a_fresh_array(shape):
    # Also along axes of length one, where NumPy calls any stride contiguous.
    forwards, backwards = spied(shape)
    assert forwards == [np.ones(shape[::-1], np.float32).strides]
    assert backwards == [np.ones(shape, np.float32).strides]


@pytest.mark.parametrize("shape", SHAPES[:-1])
def test_a_sequence_that_passed_views_on_would_be_noticed(shape, monkeypatch):
    monkeypatch.setattr(backend, "contiguous", lambda array: array)
    forwards, backwards = spied(shape)
    assert forwards != [np.ones(shape[::-1], np.float32).strides]
    assert backwards != [np.ones(shape, np.float32).strides]


def test_a_broadcast_gradient_is_written_out_between_layers():
    class Mean(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            return x.mean(axis=0)  # the vjp returns a broadcast view

    spy = Spy()
    x = Tensor(np.ones((3, 4)), requires_grad=True)
    nn.Sequential(spy, Mean())(x).backward(np.ones(4))
    assert spy.backward_strides == [(32, 8)]


def test_what_is_contiguous_is_not_copied_between_layers():
    x = Tensor(np.ones((3, 4)), requires_grad=True)
    y = x * 2
    assert functional.contiguous(y) is y and functional.contiguous(x).data is x.data
    assert nn.Sequential(nn.Identity(), nn.Identity())(x).data is x.data


SIDE = 33  # measured: OpenBLAS multiplies a transposed view of 33 x 33 in another order, one of 32 x 32 in the same
PIECES = {
    "linear": lambda: nn.Linear(SIDE, SIDE),
    "transposed": Transposed,
    "tanh": nn.Tanh,
    "scattered": Scattered,
    "identity": nn.Identity,
}


def stepwise_gradients(model: nn.Sequential, cut: int | None) -> list[bytes]:
    """Return the bits of the result and of every gradient, from one run or from two stages and a message between."""
    x, upstream = np.random.default_rng(1).normal(size=(2, SIDE, SIDE)).astype(np.float32)
    source = Tensor(x)
    source.node = StageInput(needs_gradient=True)
    if cut is None:
        result = model(source)
        backward({result.node: upstream})
    else:
        sent = model[:cut](source)
        received = Tensor(np.ascontiguousarray(sent.numpy()))
        received.node = StageInput(needs_gradient=True)
        result = model[cut:](received)
        backward({result.node: upstream})
        backward({sent.node: np.ascontiguousarray(received.grad)})
    gradients = [parameter.grad for parameter in model.parameters()]
    model.zero_grad()
    return [array.tobytes() for array in [result.numpy(), source.grad, *gradients]]


@settings(max_examples=60, deadline=None)
@given(st.lists(st.sampled_from(list(PIECES)), min_size=2, max_size=7), st.data())
def test_no_cut_between_layers_changes_a_bit(names, data):
    model = nn.Sequential(*(PIECES[name]() for name in names)).initialise(4)
    cut = data.draw(st.integers(1, len(names) - 1))
    assert stepwise_gradients(model, cut) == stepwise_gradients(model, None)


def test_a_sequence_whose_cuts_changed_bits_would_be_noticed(monkeypatch):
    model = nn.Sequential(*(PIECES[name]() for name in ("linear", "transposed", "scattered"))).initialise(4)
    assert stepwise_gradients(model, 2) == stepwise_gradients(model, None)
    monkeypatch.setattr(backend, "contiguous", lambda array: array)
    assert stepwise_gradients(model, 2) != stepwise_gradients(model, None)


def test_a_boundary_is_marked_in_the_graph_and_nothing_else_is():
    x = Tensor(np.ones((2, 3)), requires_grad=True)
    inside = x.T
    assert not inside.node.is_boundary
    outside = functional.contiguous(inside)
    assert outside.node.is_boundary and not inside.node.is_boundary
    assert isinstance(outside.node, autograd.Node) and StageInput(True).is_boundary


def test_parameters_in_dicts_and_nested_lists_are_found():
    class Nested(nn.Module):
        def __init__(self):
            self.heads = {"left": nn.Linear(2, 2), "right": [nn.Linear(2, 2)]}

    names = [name for name, _ in Nested().named_parameters()]
    assert names == ["heads.left.weight", "heads.left.bias", "heads.right.0.weight", "heads.right.0.bias"]


def test_a_module_takes_keywords():
    class Scaled(nn.Module):
        def forward(self, x, factor):
            return x * factor

    assert Scaled()(Tensor([1.0, 2.0]), factor=3).numpy().tolist() == [3, 6]


@pytest.mark.parametrize("widths", [(8, 64 / 2), (8.0, 4), (-1, 4), ("8", 4)])
def test_lengths_that_are_no_whole_numbers_are_refused(widths):
    with pytest.raises(ValueError, match="expected a whole number"):
        nn.Linear(*widths)

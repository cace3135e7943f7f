"""Bugs that were, each with its story."""

import copy
import re
import time

import array_api_strict
import numpy as np
import pytest

from minipipe import Pipeline, Tensor, functional, nn, optim, random_key, spawn
from minipipe.autograd import StageInput, backward_input
from minipipe.errors import MessageError, TensorError
from minipipe.tensor import record
from minipipe.testing import check_gradients, check_same_as_one_process, one_process_step, same_bits
from tests.strategies import build

X = np.random.default_rng(0).standard_normal((8, 6)).astype(np.float32)
Y = np.random.default_rng(1).standard_normal((8, 3)).astype(np.float32)


class HandsOnTwo(nn.Module):
    def __init__(self):
        self.layer = nn.Linear(6, 3)

    def forward(self, x):
        y = self.layer(x)
        return y, y


class Constant(nn.Module):
    """Its result is a parameter itself."""

    def __init__(self):
        self.weight = nn.Parameter((2, 3), nn.initialisers.he_uniform(3))

    def forward(self, x):
        return self.weight


class UsesItOften(nn.Module):
    def __init__(self):
        self.one, self.other = nn.Linear(3, 3), nn.Linear(3, 3)

    def forward(self, x):
        return self.one(x) * 1.3 + self.other(x) * x + x * x


class NoisyLoss:
    """A loss with dropout in a sequence of its own."""

    def __init__(self):
        self.noise = nn.Sequential(nn.Dropout(0.5))

    def __call__(self, outputs, targets):
        return functional.mean_squared_error(self.noise(outputs), targets)


@pytest.mark.parametrize("layer", [nn.Linear(3, 3), nn.GELU(), nn.LayerNorm(3), nn.Residual(nn.Identity())])
def test_a_tuple_of_tensors_where_one_belongs_is_refused(layer):
    """NumPy stacked the two into one array, the graph behind them was gone, and the first layer never learnt."""
    model = nn.Sequential(HandsOnTwo(), layer)
    with pytest.raises(TensorError, match="A tuple of tensors was passed; expected one tensor") as caught:
        model(X)
    assert caught.value.code == "wrong-number"
    with pytest.raises(TensorError, match=r"A list of tensors .* nn.Take\('x'\) selects one"):
        functional.add(Tensor(X), [Tensor(X)])


def test_a_tuple_inside_an_index_repeats_as_a_list_does():
    """Repeats in t[(0, 0), :] were added once."""
    for key in (((0, 0), slice(None)), ((0, 0), (0, 0)), (range(2), [1, 1])):
        check_gradients(lambda t, key=key: t[key], np.arange(6.0).reshape(3, 2))
    t = Tensor(np.ones((3, 2)), requires_grad=True)
    t[(0, 0), :].sum().backward()
    assert t.grad.tolist() == [[2, 2], [0, 0], [0, 0]]


@pytest.mark.parametrize("recompute", [False, True])
@pytest.mark.parametrize("name", ["1f1b", "zb-h1", "gpipe"])
def test_a_layer_that_hands_on_a_parameter_itself_trains_as_in_one_process(name, recompute):
    """Each use added its gradient to the parameter by itself uncut, and the sum of them did where the model was cut.

    Split, the backward even took the parameter for changed in place.
    """
    model = nn.Sequential(Constant(), UsesItOften())
    y = Y[:, :3]
    check_same_as_one_process(model, nn.MSELoss(), X, y, build(name, 2, 4), recompute=recompute)
    check_same_as_one_process(
        nn.Sequential(nn.Recompute(Constant()), UsesItOften()), nn.MSELoss(), X, y, build(name, 2, 4)
    )


def test_recompute_of_a_parameter_itself_and_of_one_result_twice_changes_no_bit():
    """A node of its own for each result added up some gradients before the others."""

    class Twice(nn.Module):
        def __init__(self):
            self.layer = nn.Linear(6, 3)

        def forward(self, x):
            y = self.layer(x)
            return y, y

    def gradients(wrap):
        model, constant, use = wrap(Twice()), wrap(Constant()), UsesItOften()
        for module in (model, constant, use):
            module.initialise(0)
        a, b = model(Tensor(X[:2]))
        c = constant(Tensor(X[:2]))
        (use(a) * 1.1 + b.tanh() * 0.7 + a * a * 0.3 + use(c) * c).sum().backward()
        return [p.grad.tobytes() for m in (model, constant, use) for p in m.parameters()]

    assert gradients(nn.Recompute) == gradients(lambda module: module)


@pytest.mark.parametrize("name", ["1f1b", "zb-v"])
def test_dropout_in_a_loss_draws_the_same_wherever_the_model_is_cut(name):
    """It went on counting where the model's layers had stopped, and those were on other ranks."""
    model = nn.Sequential(nn.Dropout(0.5), nn.Linear(6, 5), nn.Dropout(0.5), nn.Linear(5, 4), nn.Linear(4, 3))
    for ranks in (1, 2):
        check_same_as_one_process(model, NoisyLoss(), X, Y, build(name, ranks, 4))


def test_a_part_of_a_model_draws_as_that_part_does_in_one_process():
    """The pipeline counted the layers of a slice from 0."""
    whole = nn.Sequential(nn.Linear(6, 6), nn.Linear(6, 6), nn.Dropout(0.5), nn.Linear(6, 6), nn.Linear(6, 3))
    check_same_as_one_process(whole[1:], nn.MSELoss(), X, Y, build("1f1b", 2, 4))
    assert [whole[1:][1:].first_layer, whole[::-1].first_layer, whole[2:4].first_layer] == [2, 0, 2]
    with random_key(0):
        parts = whole[3:](whole[:3].initialise(0)(X)).numpy()
    assert parts.shape == (8, 3)


def test_a_weight_that_is_shared_after_the_first_call_adds_up_as_in_a_pipeline():
    """What layers share was looked up at the first call, once for all."""
    first, last = nn.Linear(6, 6), nn.Linear(6, 6)
    model = nn.Sequential(first, nn.Tanh(), last, nn.Linear(6, 3)).initialise(0)
    model(X)
    last.weight = first.weight
    check_same_as_one_process(model, nn.MSELoss(), X, Y, build("1f1b", 2, 4))


def test_copies_of_a_shared_parameter_begin_with_the_values_of_the_first_rank():
    """Values that each rank had computed for itself were kept, and the copies went apart without a word."""

    def weights(group):
        shared = nn.Linear(6, 6).initialise(group.rank)
        model = nn.Sequential(shared, nn.Tanh(), shared, nn.Linear(6, 3).initialise(7))
        options = {"num_microbatches": 2, "partition": [range(2), range(2, 4)], "check_agreement": False}
        pipeline = Pipeline(model, group, loss=nn.MSELoss(), **options)  # which refuses such values otherwise
        optimiser = optim.AdamW(pipeline.parameters())
        for _ in range(3):
            pipeline.step(X, Y)
            optimiser.step()
        return dict(pipeline.named_parameters())["0.weight"].data

    first, second = spawn(weights, 2)
    assert same_bits(first, second)


@pytest.mark.parametrize("value", [1.0, 10.3, 1000.3, -3e6])
def test_rows_of_one_value_are_normalised_to_nothing(value):
    """The mean was off by its last bit, and what was left was a thousandth of epsilon and more."""
    rows = np.full((4, 7), value, np.float32)
    result = functional.layer_norm(Tensor(rows), np.ones(7, np.float32), np.zeros(7, np.float32))
    assert np.abs(result.numpy()).max() < 1e-6 * max(1, abs(value))


def test_memory_can_be_measured_with_arrays_that_do_not_tell_their_bytes():
    model = nn.Sequential(nn.Linear(6, 6), nn.Tanh(), nn.Linear(6, 3))

    def measure(device):
        return spawn(
            lambda group: Pipeline(model, group, loss=nn.MSELoss(), num_microbatches=2, device=device).measure_memory(
                X, Y
            ),
            2,
        )[0]

    # They do not tell what they are views of either, so it may be more than there is.
    for known, unknown in zip(measure("cpu"), measure(array_api_strict)):
        assert all(0 < a <= b for a, b in zip(known, unknown)) or not any((*known, *unknown))  # nothing is recomputed


def test_the_timeout_of_the_group_holds_for_all_that_a_pipeline_does_together():
    """Clipping once waited longer than the step."""
    model = nn.Sequential(nn.Linear(6, 6), nn.Linear(6, 3))

    def clip_alone(group):
        pipeline = Pipeline(model, group, loss=nn.MSELoss(), num_microbatches=2)
        pipeline.step(X, Y)
        if group.rank == 0:
            start = time.perf_counter()
            with pytest.raises(MessageError) as caught:
                pipeline.clip_grad_norm(1.0)
            assert caught.value.code in ("timeout", "deadlock")
            return time.perf_counter() - start
        return 0.0

    assert spawn(clip_alone, 2, timeout=1)[0] < 5


def test_targets_have_the_dtype_of_the_last_layer():
    """They were cast to that of the first."""
    model = nn.Sequential(nn.Linear(6, 6, dtype=np.float64), Narrow(), nn.Linear(6, 3))
    losses = spawn(lambda group: Pipeline(model, group, loss=nn.MSELoss(), num_microbatches=2).step(X, Y), 2)
    assert np.isfinite(losses).all()


class Narrow(nn.Module):
    def forward(self, x):
        return record(x.data.astype(np.float32), (x, lambda g: g.astype(np.float64)))


def test_recompute_changes_neither_names_nor_first_values():
    """Its parameters had another name each, and so other first values: the same program had another loss."""
    plain, wrapped = nn.Sequential(nn.TransformerBlock(4, 2)), nn.Sequential(nn.Recompute(nn.TransformerBlock(4, 2)))
    state = plain.initialise(0).state_dict()
    assert state.keys() == wrapped.initialise(0).state_dict().keys()
    assert all(same_bits(value, wrapped.state_dict()[name]) for name, value in state.items())
    assert [m.is_training for m in wrapped.eval().modules()] == [False] * (1 + len(list(plain.modules())))


def test_an_optimiser_that_finds_no_gradient_at_all_says_so():
    """It was given model.parameters() beside a pipeline; the model had values, and the loss never fell."""
    model = nn.Sequential(nn.Linear(6, 3)).initialise(0)
    optimiser = optim.SGD(model.parameters(), 0.1)
    with pytest.warns(UserWarning) as caught:
        optimiser.step()
    assert len(caught) == 1
    assert re.search("none of its 2 parameters has a gradient.*pipeline.parameters", str(caught[0].message))


@pytest.mark.parametrize("wrong", [lambda g: g.sum(), lambda g: np.stack([g, g]), lambda g: g[:2]])
def test_a_gradient_of_another_shape_than_its_tensor_is_refused(wrong):
    """A vjp that forgot to sum left a gradient of any shape, and the optimiser complained, or did not."""
    for tensor in (Tensor(np.ones(3), requires_grad=True), nn.Parameter(np.ones(3))):
        result = record(tensor.data * 2, (tensor, wrong))
        with pytest.raises(TensorError, match=r"for an input of shape \(3,\): a vjp must"):
            result.backward(np.ones(3))


def test_a_stage_that_returns_a_parameter_postpones_it_in_a_split_backward():
    weight = Tensor(np.ones(3), requires_grad=True)
    weight.node.changed = 5  # filled, after something else was recorded
    x = Tensor(np.ones(3))
    x.node = StageInput(needs_gradient=True)
    work = backward_input({weight.node: np.full(3, 2.0)})
    assert weight.grad is None
    work.run()
    assert weight.grad.tolist() == [2, 2, 2]


def test_one_process_and_a_copy_agree_about_what_is_shared():
    shared = nn.Linear(6, 6)
    model = nn.Sequential(shared, nn.Tanh(), shared, nn.Linear(6, 3)).initialise(0)
    one = one_process_step(model, nn.MSELoss(), X, Y, 4)
    other = one_process_step(copy.deepcopy(model), nn.MSELoss(), X, Y, 4)
    assert all(same_bits(one.gradients[name], other.gradients[name]) for name in one.gradients)

"""Recompute(module) gives the bits of the module: values, every gradient, whole and
split, over several microbatches.

Bits of the same shapes, that is; for float32 no tolerance would tell another order of
summation from the right one.
"""

from __future__ import annotations

from contextlib import nullcontext

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from minipipe import Tensor, autograd, nn, no_grad, random_key, watch_everything
from minipipe import functional as F
from minipipe.autograd import StageInput
from minipipe.core.autograd import modes
from minipipe.errors import TensorError
from minipipe.nn import recompute
from minipipe.testing import same_bits
from tests.numerics.recomputed import (
    USED_EVERYWHERE,
    Parts,
    Wrap,
    everything,
    shared_gradients,
    stages,
    unchanged,
)
from tests.numerics.stages import (
    NUM_MATRICES,
    ROWS,
    WIDTH,
    bits,
    fresh_weights,
    numbers,
)
from tests.strategies import examples


@pytest.mark.parametrize("is_split", [False, True], ids=["whole", "split"])
@examples(150)
@given(stages, st.integers(1, 3), st.booleans())
def test_what_is_computed_again_has_the_bits_of_what_is_kept(
    is_split, stage, num_microbatches, needs_gradient
):
    arguments = num_microbatches, is_split, needs_gradient
    assert everything(stage, nn.Recompute, *arguments) == everything(
        stage, unchanged, *arguments
    )


@examples(40)
@given(stages, st.integers(1, 3))
def test_split_or_whole_what_is_computed_again_has_the_same_bits(
    stage, num_microbatches
):
    whole = everything(stage, nn.Recompute, num_microbatches)
    assert everything(stage, nn.Recompute, num_microbatches, is_split=True) == whole


@examples(40)
@given(stages)
def test_without_a_graph_only_the_values_are_computed(stage):
    weights = [nn.Parameter(weight.data) for weight in fresh_weights()]
    x = Tensor(numbers(ROWS, WIDTH, seed=0), requires_grad=True)
    results = []
    for wrap in (unchanged, nn.Recompute):
        with no_grad(), random_key(0):
            results.append(Parts(stage, weights, wrap)(x))
    assert results[0].numpy().tobytes() == results[1].numpy().tobytes()
    assert results[1].node is None and not results[1].requires_grad


def test_the_random_stages_can_reach_weights_and_inputs():
    # Guards the tests above: were all gradients zero, they would pass whatever was
    # computed again.
    found = everything(USED_EVERYWHERE, nn.Recompute, 2, is_split=True)
    arrays = [
        None if array is None else np.frombuffer(array, np.float32) for array in found
    ]
    results, weights, inputs = arrays[:2], arrays[2:-2], arrays[-2:]
    assert [gradient is not None for gradient in weights] == [False] * (
        NUM_MATRICES - 1
    ) + [True, False, False]
    assert all(
        np.any(array) for array in (*results, weights[NUM_MATRICES - 1], *inputs)
    )


def test_every_part_is_computed_once_more_and_a_nested_one_twice():
    class Counts(nn.Module):
        def __init__(self) -> None:
            self.num_calls = 0

        def forward(self, x: Tensor) -> Tensor:
            self.num_calls += 1
            return x.tanh()

    outer, inner = Counts(), Counts()
    model = nn.Recompute(nn.Sequential(outer, nn.Recompute(inner)))
    x = Tensor(numbers(3, seed=0), requires_grad=True)
    y = model(x).sum()
    assert (outer.num_calls, inner.num_calls) == (1, 1)
    y.backward()
    assert (outer.num_calls, inner.num_calls) == (2, 3)


# -- what cannot be computed again -----------------------------------------------------


class Counting(nn.Module):
    """Its values depend on how often it was called, at one place or everywhere."""

    def __init__(self, place: object = ...) -> None:
        self.times, self.place = 0, place

    def forward(self, x: Tensor) -> Tensor:
        self.times += 1
        factors = np.ones(x.shape, np.float32)
        factors[self.place] = self.times
        return x * factors


def test_a_layer_with_a_counter_is_refused_where_it_is_computed_again():
    """The story: its gradient was that of its second value, without a word."""
    x = Tensor(numbers(ROWS, WIDTH, seed=0), requires_grad=True)
    result = nn.Recompute(Counting())(x)
    with pytest.raises(
        TensorError, match=r"Recompute\(Counting\(\)\): computed again .* other values"
    ) as caught:
        result.sum().backward()
    assert caught.value.code == "not-repeatable"


@pytest.fixture
def unwatched():
    """As in training: tests watch everything."""
    with modes.setting(modes.current_mode, modes.mode()._replace(watch=None)):
        yield


def test_random_numbers_of_its_own_are_found_in_a_sample_of_a_large_result(unwatched):
    generator = np.random.default_rng(0)
    own_dropout = nn.Function(lambda x: x * (generator.random(x.shape) > 0.1))
    x = Tensor(np.ones((512, 512), np.float32), requires_grad=True)
    result = nn.Recompute(own_dropout)(x)
    with pytest.raises(
        TensorError, match="random numbers as functional.dropout draws them"
    ):
        result.sum().backward()


def test_every_element_is_compared_while_everything_is_watched(unwatched):
    place, x = (3, 500), Tensor(np.ones((8, 1024), np.float32), requires_grad=True)
    nn.Recompute(Counting(place))(x).sum().backward()  # not among the sample
    with watch_everything():
        result = nn.Recompute(Counting(place))(x)
    with pytest.raises(TensorError) as caught:
        result.sum().backward()
    assert caught.value.code == "not-repeatable"


@pytest.mark.parametrize("column", [0, 1, 31, 63])
def test_a_sample_meets_every_column(unwatched, column):
    """Mutant: with an even step it would meet some columns alone."""
    x = Tensor(np.ones((64, 64), np.float32), requires_grad=True)
    result = nn.Recompute(Counting((slice(None), column)))(x)
    with pytest.raises(TensorError, match="other values"):
        result.sum().backward()


# -- bundles, whole numbers ------------------------------------------------------------


class Mixed(nn.Module):
    """From (x, skip, rows) to three tensors in the same form: one with all inputs, one
    of weights alone, numbers.
    """

    def __init__(self) -> None:
        self.weight = nn.Parameter(numbers(WIDTH, WIDTH, seed=1))

    def forward(self, bundle):
        x, skip, rows = bundle.values() if isinstance(bundle, dict) else bundle
        table = self.weight @ self.weight
        items = [F.dropout((x @ table) * skip + x, 0.3), F.embedding(table, rows), rows]
        return (
            dict(zip("abc", items)) if isinstance(bundle, dict) else type(bundle)(items)
        )


@pytest.mark.parametrize("is_split", [False, True], ids=["whole", "split"])
@pytest.mark.parametrize("with_gradient", ["ab", "a", "b"])
@pytest.mark.parametrize("form", [tuple, list, dict])
def test_a_bundle_goes_in_and_comes_out_in_its_form_with_the_same_bits(
    form, with_gradient, is_split
):
    def found(wrap: Wrap) -> list[bytes | None]:
        module = Mixed()
        arrays = [
            numbers(ROWS, WIDTH, seed=2),
            numbers(ROWS, WIDTH, seed=3),
            np.array([3, 0, 3]),
        ]
        inputs = [Tensor(array) for array in arrays]
        for tensor, needs_gradient in zip(inputs, (True, True, False)):
            tensor.node = StageInput(needs_gradient)
        bundle = dict(zip("xyz", inputs)) if form is dict else form(inputs)
        with random_key(0):
            results = wrap(module)(bundle)
        assert type(results) is form and (
            form is not dict or list(results) == ["a", "b", "c"]
        )
        results = list(results.values()) if form is dict else list(results)
        assert results[2].dtype == np.int64 and not results[2].requires_grad
        roots = {
            results[i].node: numbers(*results[i].shape, seed=5 + i)
            for i in range(2)
            if "ab"[i] in with_gradient
        }
        if is_split:
            work = autograd.backward_input(roots)
            assert module.weight.grad is None
            work.run()
        else:
            autograd.backward(roots)
        gradients = [module.weight.grad, *(tensor.node.grad for tensor in inputs)]
        return bits([result.data for result in results]) + bits(gradients)

    assert found(nn.Recompute) == found(unchanged)
    assert found(nn.Recompute)[3] is not None


def test_a_module_that_takes_whole_numbers_learns():
    ids = np.array([[0, 3], [3, 3]])
    gradients = []
    for wrap in (unchanged, nn.Recompute):
        embedding = nn.Embedding(5, 3).initialise(0)
        result = wrap(embedding)(Tensor(ids))
        result.backward(numbers(2, 2, 3, seed=1))
        gradients.append(embedding.weight.grad.tobytes())
    assert gradients[0] == gradients[1]


def test_results_that_depend_on_nothing_with_a_gradient_have_no_graph():
    assert nn.Recompute(nn.Tanh())(Tensor([1.0])).node is None
    assert nn.Recompute(nn.Linear(1, 1))(Tensor([[1.0]])).requires_grad
    whole = Tensor(np.array([1, 2]))
    whole.node = StageInput(needs_gradient=False)
    assert not nn.Recompute(nn.Identity())(whole).requires_grad


class WithConstant(nn.Module):
    """Returns beside its result one that depends on nothing."""

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        return x * 2, Tensor([5.0])


def test_a_result_that_depends_on_nothing_takes_its_gradient_to_nobody():
    x = Tensor([3.0], requires_grad=True)
    doubled, five = nn.Recompute(WithConstant())(x)
    (doubled * five).backward()
    assert x.grad.tolist() == [10.0]


def test_what_depends_on_weights_alone_is_computed_again_in_w():
    times: list[str] = []

    class Product(nn.Module):
        def __init__(self) -> None:
            self.weight = nn.Parameter(numbers(WIDTH, WIDTH, seed=1))

        def forward(self, given: Tensor) -> Tensor:
            times.append(when)
            return self.weight @ given

    when, module = "F", nn.Recompute(Product())
    x = Tensor(numbers(ROWS, WIDTH, seed=0))
    x.node = StageInput(needs_gradient=True)
    result = x @ module(Tensor(numbers(WIDTH, WIDTH, seed=2)))
    when = "I"
    work = autograd.backward_input({result.node: numbers(ROWS, WIDTH, seed=3)})
    when = "W"
    work.run()
    assert times == ["F", "W"]


def test_a_tensor_that_was_given_other_values_later_is_computed_again_from_those_it_had():
    x, gradients = Tensor(numbers(3, seed=0), requires_grad=True), []
    for later in (x.data, numbers(3, seed=1)):
        x.data = numbers(3, seed=0)
        result = nn.Recompute(nn.Tanh())(x)
        x.data = later
        x.zero_grad()
        result.sum().backward()
        gradients.append(x.grad.tobytes())
    assert gradients[0] == gradients[1]


def test_an_input_that_is_handed_on_gets_its_gradients_in_the_same_order():
    """The story: it came out as another tensor, whose gradients were added up before
    those of the input itself.
    """

    def gradient(wrap: Wrap) -> bytes:
        x = Tensor(numbers(50, 50, seed=0), requires_grad=True)
        h = x.tanh()
        same, other = wrap(HandsOn())(h)
        y = same.tanh() * 0.3 + same.sigmoid() * 0.7 + h.exp() * 1.1 + other
        y.sum().backward()

    assert gradient(nn.Recompute) == gradient(unchanged)


class HandsOn(nn.Module):
    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        return x, x * 2


def test_a_parameter_that_layers_share_adds_up_use_by_use_all_the_same():
    found = shared_gradients(nn.Recompute)
    assert found == shared_gradients(unchanged)
    assert [gradient is not None for gradient in found[2:]] == [True, True, True, False]


# -- mutants: what the tests above must notice -----------------------------------------


def test_a_mask_that_is_not_that_of_the_first_time_is_noticed(monkeypatch):
    """The mutant goes on from where the place is at backward, instead of from where it
    was.
    """
    x = Tensor(numbers(ROWS, WIDTH, seed=0), requires_grad=True)

    def gradient() -> None:
        x.zero_grad()
        with random_key(0):
            nn.Recompute(nn.Dropout(0.5))(x).backward(numbers(ROWS, WIDTH, seed=1))

    gradient()
    monkeypatch.setattr(recompute, "at", lambda place: nullcontext())
    with pytest.raises(TensorError) as caught:
        gradient()
    assert caught.value.code == "not-repeatable"
    with pytest.raises(TensorError) as caught:
        # there backward is outside of the key
        everything(USED_EVERYWHERE, nn.Recompute)
    assert caught.value.code == "missing"


def test_a_place_that_was_not_copied_is_noticed(monkeypatch):
    monkeypatch.setattr(
        "minipipe.core.autograd.modes.RandomKey.copy", lambda self: self
    )
    with pytest.raises(TensorError) as caught:
        everything(USED_EVERYWHERE, nn.Recompute)
    assert caught.value.code == "not-repeatable"


def test_what_is_numbered_as_if_it_were_computed_now_is_noticed(monkeypatch):
    right = everything(USED_EVERYWHERE, unchanged, is_split=True)
    monkeypatch.setattr(recompute, "record_again", lambda first: modes.enable_grad())
    wrong = everything(USED_EVERYWHERE, nn.Recompute, is_split=True)
    assert wrong != right
    where = [a != b for a, b in zip(wrong, right)]
    # the weight that is used before and after
    assert where == [False, False, False, True, False, False, False]
    close = [np.frombuffer(found[NUM_MATRICES], np.float32) for found in (wrong, right)]
    np.testing.assert_allclose(*close, rtol=1e-3, atol=1e-4)  # rounding only


def test_a_module_that_is_set_to_be_evaluated_meanwhile_is_computed_again_as_it_was():
    """The story: training was switched off between forward and backward, and the mask
    was gone the second time.
    """
    layer = nn.Recompute(
        nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.Dropout(0.5))
    ).initialise(0)
    gradients = []
    for switches in (False, True):
        x = Tensor(numbers(ROWS, WIDTH, seed=0), requires_grad=True)
        with random_key(0):
            y = layer.train()(x)
        if switches:
            layer.eval()
        y.backward(numbers(ROWS, WIDTH, seed=1))
        assert all(module.is_training is not switches for module in layer.modules())
        gradients.append(x.grad.tobytes())
    assert gradients[0] == gradients[1]


def test_a_module_that_does_more_the_second_time_is_no_error():
    """The story: its results took the numbers of later ones, and the walk could not
    tell which of two is the later.
    """

    class DoesMoreWhenRecorded(nn.Module):
        def __init__(self) -> None:
            self.layer = nn.Linear(WIDTH, WIDTH)

        def forward(self, x: Tensor) -> Tensor:
            for _ in range(10 if modes.is_grad_enabled() else 2):
                x = x * 1.0  # more results, of the same values
            return self.layer(x)

    model = nn.Sequential(
        nn.Recompute(DoesMoreWhenRecorded()),
        *[nn.Linear(WIDTH, WIDTH) for _ in range(8)],
    )
    model.initialise(0)
    x = Tensor(numbers(ROWS, WIDTH, seed=0))
    x.node = StageInput(needs_gradient=True)
    work = autograd.backward_input({model(x).node: numbers(ROWS, WIDTH, seed=1)})
    work.run()
    assert all(np.isfinite(parameter.grad).all() for parameter in model.parameters())


def test_recompute_changes_neither_names_nor_first_values():
    """Its parameters had another name each, and so other first values: the same program
    had another loss.
    """
    plain, wrapped = (
        nn.Sequential(nn.TransformerBlock(4, 2)),
        nn.Sequential(nn.Recompute(nn.TransformerBlock(4, 2))),
    )
    state = plain.initialise(0).state_dict()
    assert state.keys() == wrapped.initialise(0).state_dict().keys()
    assert all(
        same_bits(value, wrapped.state_dict()[name]) for name, value in state.items()
    )
    assert [m.is_training for m in wrapped.eval().modules()] == [False] * (
        1 + len(list(plain.modules()))
    )

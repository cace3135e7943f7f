"""Recompute(module) gives the bits of the module: values, every gradient, whole and split, over several microbatches.

Bits of the same shapes, that is; for float32 no tolerance would tell another order of summation from the right one.
"""

from __future__ import annotations

import gc
import weakref
from collections.abc import Callable
from contextlib import nullcontext

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from minipipe import Tensor, autograd, nn, no_grad, random_key, recording
from minipipe import functional as F
from minipipe.autograd import StageInput
from minipipe.errors import TensorError
from minipipe.held import held_bytes
from minipipe.nn import recompute
from tests.numerics.test_split_backward import (
    NUM_MATRICES,
    ROWS,
    WIDTH,
    Microbatch,
    Step,
    bits,
    first_half,
    fresh_weights,
    numbers,
    programs,
    run,
)

Wrap = Callable[[nn.Module], nn.Module]


def unchanged(module: nn.Module) -> nn.Module:
    return module


# -- random stages: parts one after another, some of which are computed again ----------------------------------------


class Program(nn.Module):
    """Runs a program of test_split_backward.py with weights that other parts use, too."""

    def __init__(self, program: list[Step], weights: list[nn.Parameter]) -> None:
        self.program, self.weights = program, weights

    def forward(self, x: Tensor) -> Tensor:
        return run(self.program, x, self.weights)


class Parts(nn.Module):
    """Parts one after another; a list of parts is computed again, beside its input (x + f(x)) or not.

    A part is a program, a probability (of Dropout), or (whether beside, list of parts).
    """

    def __init__(self, parts: list, weights: list[nn.Parameter], wrap: Wrap) -> None:
        self.modules_of_parts, self.weights = [], weights
        for part in parts:
            if isinstance(part, float):
                self.modules_of_parts.append((False, nn.Dropout(part)))
            elif isinstance(part, tuple):
                self.modules_of_parts.append((part[0], wrap(Parts(part[1], weights, wrap))))
            else:
                self.modules_of_parts.append((False, Program(part, weights)))

    def forward(self, x: Tensor) -> Tensor:
        for is_beside, module in self.modules_of_parts:
            x = x + module(x) if is_beside else module(x)
        return x


programs_or_dropout = programs | st.sampled_from([0.25, 0.5])
parts = st.recursive(
    st.lists(programs_or_dropout, min_size=1, max_size=2),
    lambda inner: st.lists(programs_or_dropout | st.tuples(st.booleans(), inner), min_size=1, max_size=3),
    max_leaves=8,
)
stages = st.lists(programs_or_dropout | st.tuples(st.booleans(), parts), max_size=2).flatmap(
    lambda before: st.tuples(st.booleans(), parts).map(lambda again: [*before, again])
)


def everything(
    stage: list, wrap: Wrap, num_microbatches: int = 1, is_split: bool = False, needs_gradient: bool = True
) -> list[bytes | None]:
    """Return the bits of all results, and of the gradients of all weights and inputs.

    F0 B0 F1 B1 …, or F0 F1 … I0 I1 … W0 W1 …
    """
    weights = [nn.Parameter(weight.data) for weight in fresh_weights()]
    model = Parts(stage, weights, wrap)
    microbatches, postponed = [], []
    for k in range(num_microbatches):
        x = Tensor(numbers(ROWS, WIDTH, seed=100 + k))
        x.node = StageInput(needs_gradient)
        with random_key(5, step=1, microbatch=k):
            y = model(x)
        microbatches.append(Microbatch(x, y, numbers(*y.shape, seed=200 + k)))
        if not is_split:
            autograd.backward({y.node: microbatches[-1].upstream})
    if is_split:
        postponed = [first_half(microbatch) for microbatch in microbatches]
        assert all(weight.grad is None for weight in weights), "I has touched the gradient of a weight"
    for work in postponed:
        work.run()
    gradients = bits([weight.grad for weight in weights]) + bits([m.x.grad for m in microbatches])
    return bits([microbatch.y.data for microbatch in microbatches]) + gradients


@pytest.mark.parametrize("is_split", [False, True], ids=["whole", "split"])
@settings(max_examples=150, deadline=None)
@given(stages, st.integers(1, 3), st.booleans())
def test_what_is_computed_again_has_the_bits_of_what_is_kept(is_split, stage, num_microbatches, needs_gradient):
    arguments = num_microbatches, is_split, needs_gradient
    assert everything(stage, nn.Recompute, *arguments) == everything(stage, unchanged, *arguments)


@settings(max_examples=40, deadline=None)
@given(stages, st.integers(1, 3))
def test_split_or_whole_what_is_computed_again_has_the_same_bits(stage, num_microbatches):
    whole = everything(stage, nn.Recompute, num_microbatches)
    assert everything(stage, nn.Recompute, num_microbatches, is_split=True) == whole


@settings(max_examples=40, deadline=None)
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


# -- a stage on which most of it can be seen ---------------------------------------------------------------------

USED_EVERYWHERE: list = [
    [Step("matmul", (0, 0, 0)), Step("tanh", (0, 0, 0))],
    0.5,
    (
        True,
        [
            [Step("one weight twice", (0, 0, 0)), Step("tanh", (0, 0, 0))],
            0.25,
            (False, [[Step("matmul", (0, 0, 0)), Step("softmax", (0, 0, 0))], 0.25]),
            [Step("matmul", (0, 0, 0))],
        ],
    ),
    [Step("matmul", (0, 0, 0)), Step("tanh", (0, 0, 0)), Step("matmul", (0, 0, 0))],
]


def test_the_random_stages_can_reach_weights_and_inputs():
    # Guards the tests above: were all gradients zero, they would pass whatever was computed again.
    found = everything(USED_EVERYWHERE, nn.Recompute, 2, is_split=True)
    arrays = [None if array is None else np.frombuffer(array, np.float32) for array in found]
    results, weights, inputs = arrays[:2], arrays[2:-2], arrays[-2:]
    assert [gradient is not None for gradient in weights] == [False] * (NUM_MATRICES - 1) + [True, False, False]
    assert all(np.any(array) for array in (*results, weights[NUM_MATRICES - 1], *inputs))


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


# -- bundles, whole numbers --------------------------------------------------------------------------------------


class Mixed(nn.Module):
    """From (x, skip, rows) to three tensors in the same form: one with all inputs, one of weights alone, numbers."""

    def __init__(self) -> None:
        self.weight = nn.Parameter(numbers(WIDTH, WIDTH, seed=1))

    def forward(self, bundle):
        x, skip, rows = bundle.values() if isinstance(bundle, dict) else bundle
        table = self.weight @ self.weight
        items = [F.dropout((x @ table) * skip + x, 0.3), F.embedding(table, rows), rows]
        return dict(zip("abc", items)) if isinstance(bundle, dict) else type(bundle)(items)


@pytest.mark.parametrize("is_split", [False, True], ids=["whole", "split"])
@pytest.mark.parametrize("with_gradient", ["ab", "a", "b"])
@pytest.mark.parametrize("form", [tuple, list, dict])
def test_a_bundle_goes_in_and_comes_out_in_its_form_with_the_same_bits(form, with_gradient, is_split):
    def found(wrap: Wrap) -> list[bytes | None]:
        module = Mixed()
        arrays = [numbers(ROWS, WIDTH, seed=2), numbers(ROWS, WIDTH, seed=3), np.array([3, 0, 3])]
        inputs = [Tensor(array) for array in arrays]
        for tensor, needs_gradient in zip(inputs, (True, True, False)):
            tensor.node = StageInput(needs_gradient)
        bundle = dict(zip("xyz", inputs)) if form is dict else form(inputs)
        with random_key(0):
            results = wrap(module)(bundle)
        assert type(results) is form and (form is not dict or list(results) == ["a", "b", "c"])
        results = list(results.values()) if form is dict else list(results)
        assert results[2].dtype == np.int64 and not results[2].requires_grad
        roots = {results[i].node: numbers(*results[i].shape, seed=5 + i) for i in range(2) if "ab"[i] in with_gradient}
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
    """The story: it came out as another tensor, whose gradients were added up before those of the input itself."""

    def gradient(wrap: Wrap) -> bytes:
        x = Tensor(numbers(50, 50, seed=0), requires_grad=True)
        h = x.tanh()
        same, other = wrap(HandsOn())(h)
        y = same.tanh() * 0.3 + same.sigmoid() * 0.7 + h.exp() * 1.1 + other
        y.sum().backward()
        return x.grad.tobytes()

    assert gradient(nn.Recompute) == gradient(unchanged)


class HandsOn(nn.Module):
    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        return x, x * 2


# -- parameters that layers share --------------------------------------------------------------------------------


def shared_gradients(wrap: Wrap) -> list[bytes | None]:
    """Return the gradients of a weight that three layers share, layer by layer and together, and its user's bits."""
    tied = nn.Linear(WIDTH, WIDTH)
    model = nn.Sequential(
        tied, nn.Tanh(), wrap(nn.Sequential(tied, nn.Dropout(0.5), nn.Tanh())), wrap(nn.Residual(tied)), nn.Tanh()
    ).initialise(1)
    for k in range(2):
        with random_key(0, microbatch=k):
            result = model(Tensor(numbers(ROWS, WIDTH, seed=k)))
        result.backward(numbers(ROWS, WIDTH, seed=10 + k))
    assert tied.weight.node is tied.weight._own  # as it was
    return bits([tied.weight.grad, tied.bias.grad, *(tied.weight.grad_of_layer(i) for i in range(5))])


def test_a_parameter_that_layers_share_adds_up_layer_by_layer_all_the_same():
    found = shared_gradients(nn.Recompute)
    assert found == shared_gradients(unchanged)
    assert [gradient is not None for gradient in found[2:]] == [True, False, True, True, False]


# -- memory ------------------------------------------------------------------------------------------------------


def deep(num_layers: int = 6) -> nn.Sequential:
    layers = [layer for _ in range(num_layers) for layer in (nn.Linear(WIDTH, WIDTH), nn.Tanh())]
    return nn.Sequential(*layers).initialise(0)


def test_between_forward_and_backward_only_the_input_is_held():
    model = deep()
    x = Tensor(numbers(ROWS, WIDTH, seed=0))
    x.node = StageInput(needs_gradient=True)
    parameters = [parameter.data for parameter in model.parameters()]
    assert held_bytes([nn.Recompute(model)(x).node], parameters) == x.data.nbytes
    assert held_bytes([model(x).node], parameters) >= 6 * x.data.nbytes


def test_each_of_several_recomputed_layers_holds_its_input():
    layers = [nn.Recompute(deep(2)) for _ in range(3)]
    x = Tensor(numbers(ROWS, WIDTH, seed=0))
    x.node = StageInput(needs_gradient=True)
    node = nn.Sequential(*layers)(x).node
    parameters = [p.data for layer in layers for p in layer.parameters()]
    assert held_bytes([node], parameters) == 3 * x.data.nbytes


def test_what_is_inside_dies_at_once_and_what_was_computed_again_after_backward():
    alive: list[weakref.ref] = []

    class Watched(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            y = x.tanh()
            alive.append(weakref.ref(y.data))
            return y * y

    x = Tensor(numbers(ROWS, WIDTH, seed=0))
    x.node = StageInput(needs_gradient=True)
    root = nn.Recompute(Watched())(x).node
    array_of_x = weakref.ref(x.data)
    del x
    assert [array() is None for array in alive] == [True]
    assert array_of_x() is not None
    autograd.backward({root: numbers(ROWS, WIDTH, seed=1)})
    gc.collect()
    assert [array() is None for array in alive] == [True, True]
    assert array_of_x() is None


def test_after_i_what_w_needs_is_held_and_after_w_nothing():
    model = deep()
    x = Tensor(numbers(ROWS, WIDTH, seed=0))
    x.node = StageInput(needs_gradient=True)
    parameters, found = [parameter.data for parameter in model.parameters()], []
    for wrap in (unchanged, nn.Recompute):
        work = autograd.backward_input({wrap(model)(x).node: numbers(ROWS, WIDTH, seed=1)})
        found.append(held_bytes([work], parameters))
        work.run()
        assert held_bytes([work], []) == 0
    assert found[0] == found[1] >= 6 * x.data.nbytes


# -- errors ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("again", ["backward", "backward_input"])
def test_backward_twice_raises_backward_twice_and_changes_nothing(again):
    model = deep(1)
    x = Tensor(numbers(ROWS, WIDTH, seed=0))
    x.node = StageInput(needs_gradient=True)
    result, upstream = nn.Recompute(model)(x), numbers(ROWS, WIDTH, seed=1)
    result.backward(upstream)
    before = bits([parameter.grad for parameter in model.parameters()])
    with pytest.raises(TensorError) as caught:
        getattr(autograd, again)({result.node: upstream})
    assert caught.value.code == "backward-twice"
    assert bits([parameter.grad for parameter in model.parameters()]) == before


def test_a_module_that_fails_when_it_is_computed_again_leaves_parameters_and_place_as_they_were():
    class FailsLater(nn.Module):
        def __init__(self) -> None:
            self.linear, self.num_calls = nn.Linear(WIDTH, WIDTH), 0

        def forward(self, x: Tensor) -> Tensor:
            self.num_calls += 1
            if self.num_calls > 1:
                raise ZeroDivisionError
            return self.linear(x)

    module = FailsLater()
    model = nn.Sequential(nn.Recompute(module), nn.Recompute(nn.Sequential(module.linear))).initialise(0)
    result = model(Tensor(numbers(ROWS, WIDTH, seed=0)))
    with pytest.raises(ZeroDivisionError):
        result.sum().backward()
    assert module.linear.weight.node is module.linear.weight._own
    assert recording.is_grad_enabled() and recompute.current_place().seed is None


def test_what_is_no_bundle_is_refused_going_in_and_coming_out():
    class ReturnsNumber(nn.Module):
        def forward(self, x: Tensor) -> float:
            return 1.0

    assert nn.Recompute(nn.Tanh())(np.ones(2)).shape == (2,)  # as any other layer takes it
    for module, x in ((nn.Tanh(), (1.0,)), (ReturnsNumber(), Tensor([1.0]))):
        with pytest.raises(TensorError) as caught:
            nn.Recompute(module)(x)
        assert caught.value.code == "not-a-tensor"


# -- mutants: what the tests above must notice ---------------------------------------------------------------------


def test_a_mask_that_is_not_that_of_the_first_time_is_noticed(monkeypatch):
    """The mutant goes on from where the place is at backward, instead of from where it was."""
    x = Tensor(numbers(ROWS, WIDTH, seed=0), requires_grad=True)

    def gradient() -> bytes:
        x.zero_grad()
        with random_key(0):
            nn.Recompute(nn.Dropout(0.5))(x).backward(numbers(ROWS, WIDTH, seed=1))
        return x.grad.tobytes()

    right = gradient()
    monkeypatch.setattr(recompute, "at", lambda place: nullcontext())
    assert gradient() != right
    with pytest.raises(TensorError) as caught:
        everything(USED_EVERYWHERE, nn.Recompute)  # there backward is outside of the key
    assert caught.value.code == "no-random-key"


def test_a_place_that_was_not_copied_is_noticed(monkeypatch):
    monkeypatch.setattr("minipipe.place.Place.copy", lambda self: self)
    assert everything(USED_EVERYWHERE, nn.Recompute) != everything(USED_EVERYWHERE, unchanged)


def test_what_is_numbered_as_if_it_were_computed_now_is_noticed(monkeypatch):
    right = everything(USED_EVERYWHERE, unchanged, is_split=True)
    monkeypatch.setattr(recording, "recording_again", lambda first: recording.enable_grad())
    wrong = everything(USED_EVERYWHERE, nn.Recompute, is_split=True)
    assert wrong != right
    where = [a != b for a, b in zip(wrong, right)]
    assert where == [False, False, False, True, False, False, False]  # the weight that is used before and after
    close = [np.frombuffer(found[NUM_MATRICES], np.float32) for found in (wrong, right)]
    np.testing.assert_allclose(*close, rtol=1e-3, atol=1e-4)  # rounding only


def test_gradients_that_go_to_the_parameter_and_not_to_its_layer_are_noticed(monkeypatch):
    right = shared_gradients(unchanged)
    monkeypatch.setattr(recompute, "_set", lambda state: None)
    assert shared_gradients(nn.Recompute) != right


def test_a_module_that_is_set_to_be_evaluated_meanwhile_is_computed_again_as_it_was():
    """The story: training was switched off between forward and backward, and the mask was gone the second time."""
    layer = nn.Recompute(nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.Dropout(0.5))).initialise(0)
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
    """The story: its results took the numbers of later ones, and the walk could not tell which of two is the later."""

    class DoesMoreWhenRecorded(nn.Module):
        def __init__(self) -> None:
            self.layer = nn.Linear(WIDTH, WIDTH)

        def forward(self, x: Tensor) -> Tensor:
            for _ in range(5 if recording.is_grad_enabled() else 1):
                x = self.layer(x) * 1.0
            return x

    model = nn.Sequential(nn.Recompute(DoesMoreWhenRecorded()), *[nn.Linear(WIDTH, WIDTH) for _ in range(8)])
    model.initialise(0)
    x = Tensor(numbers(ROWS, WIDTH, seed=0))
    x.node = StageInput(needs_gradient=True)
    work = autograd.backward_input({model(x).node: numbers(ROWS, WIDTH, seed=1)})
    work.run()
    assert all(np.isfinite(parameter.grad).all() for parameter in model.parameters())

"""The two halves of backward: I, the gradients of activations, and W, those of weights.
Any graph, the same bits.
"""

from __future__ import annotations

import importlib
import weakref
from collections.abc import Iterator
from contextlib import contextmanager

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from minipipe import Tensor, nn
from minipipe import functional as F
from minipipe.autograd import (
    Leaf,
    Node,
    StageInput,
    WeightWork,
    backward,
    backward_input,
)
from minipipe.autograd.memory import held_bytes
from minipipe.core.tensor import record
from minipipe.errors import TensorError
from tests.numerics.stages import (
    ROWS,
    WIDTH,
    Microbatch,
    Step,
    bits,
    first_half,
    forward,
    fresh_weights,
    fused,
    gradients_of,
    in_halves,
    numbers,
    programs,
    run,
)
from tests.strategies import examples

# -- the same bits ---------------------------------------------------------------------


@examples(250)
@given(programs)
def test_i_then_w_gives_the_bits_of_the_fused_backward_and_i_touches_no_weight(program):
    def stage(x, weights):
        return run(program, x, weights)

    assert in_halves(stage) == fused(stage)


@examples(100)
@given(programs, st.integers(2, 4))
def test_every_w_postponed_to_the_end_gives_the_bits_of_one_microbatch_after_another(
    program, num_microbatches
):
    def stage(x, weights):
        return run(program, x, weights)

    assert in_halves(stage, num_microbatches) == fused(stage, num_microbatches)


@examples(100)
@given(programs)
def test_a_first_stage_gives_no_gradient_of_its_input_and_the_same_bits_of_its_weights(
    program,
):
    def stage(x, weights):
        return run([Step("linear", (0, 0, 0)), *program], x, weights)

    first = in_halves(stage, needs_gradient=False)
    assert first[-1] is None
    assert (
        first[:-1]
        == fused(stage, needs_gradient=False)[:-1]
        == in_halves(stage, needs_gradient=True)[:-1]
    )


@examples(50)
@given(programs)
def test_the_gradient_of_the_input_is_there_after_i_already(program):
    weights = fresh_weights()
    microbatch = forward(lambda x, weights: run(program, x, weights), weights, 0)
    work = first_half(microbatch)
    after_i = bits([microbatch.x.grad])
    work.run()
    assert after_i == bits([microbatch.x.grad])
    assert microbatch.x.grad is None or microbatch.x.grad.flags.c_contiguous


class Tied(nn.Module):
    """One matrix three times: as it stands, transposed, and combined with another
    before it is used.
    """

    def __init__(self) -> None:
        self.first = nn.Linear(WIDTH, WIDTH)
        self.second = nn.Linear(WIDTH, WIDTH, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        w1, w2 = self.first.weight, self.second.weight
        hidden = self.second(self.first(x).tanh())
        return (hidden @ w1.T) @ (w1 * w2 + w1) + self.first.bias


LAYERS = {
    "linear": lambda: nn.Linear(WIDTH, WIDTH),
    "linear without bias": lambda: nn.Linear(WIDTH, WIDTH, bias=False),
    "tanh": nn.Tanh,
    "relu": nn.ReLU,
    "sigmoid": nn.Sigmoid,
    "tied": Tied,
    "sequential": lambda: nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.Tanh()),
}


@examples(60)
@given(
    st.lists(st.sampled_from(list(LAYERS)), min_size=1, max_size=6),
    st.integers(1, 3),
    st.booleans(),
)
def test_modules_split_like_any_other_graph(names, num_microbatches, same_layer_again):
    def gradients(in_two_halves: bool) -> list[bytes | None]:
        layers = [LAYERS[name]() for name in names]
        model = nn.Sequential(*layers, *layers[:1] * same_layer_again).initialise(3)
        microbatches, postponed = [], []
        for i in range(num_microbatches):
            microbatch = forward(lambda x, _: model(x), [], i)
            microbatches.append(microbatch)
            if in_two_halves:
                postponed.append(first_half(microbatch))
            else:
                backward({microbatch.y.node: microbatch.upstream})
        for work in postponed:
            work.run()
        return gradients_of(list(model.parameters()), microbatches)

    assert gradients(in_two_halves=True) == gradients(in_two_halves=False)


def test_the_programs_really_reach_weights_and_inputs():
    # Guards the tests above: were all gradients None or zero, they would pass whatever
    # the walk did.
    program = [
        Step("w1 * w2 + w1", (0, 1, 0)),
        Step("one weight twice", (0, 0, 0)),
        Step("scale by a vector", (0, 0, 1)),
    ]
    given_ = fused(lambda x, weights: run(program, x, weights))
    assert [gradient is not None for gradient in given_] == [
        False,
        True,
        True,
        True,
        False,
        True,
    ]
    assert all(
        np.any(np.frombuffer(gradient, np.float32))
        for gradient in given_
        if gradient is not None
    )


# -- mutants: what the tests above must notice -----------------------------------------


@contextmanager
def earliest_consumer_first(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Let W add the contributions in the order of the forward pass, and not latest
    first.
    """

    with monkeypatch.context() as patched:
        patched.setattr(
            importlib.import_module("minipipe.core.autograd.walk"),
            "Node",
            lambda plan, inputs, saved, order: Node(plan, inputs, saved, 10**9 - order),
        )
        yield


@contextmanager
def pieces_straight_to_the_leaves(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Let W run one postponed edge after another, each down to the leaves, instead of
    one walk through all.
    """

    def run_each(self: WeightWork) -> None:
        for node, gradient in self.postponed.items():
            inputs, plan, saved = node.release(gradient)
            for number in range(len(inputs)):
                only, _ = plan.halves(tuple(i == number for i in range(len(inputs))))
                backward(
                    {
                        Node(
                            only, inputs[number : number + 1], saved, node.order
                        ): gradient
                    }
                )

    with monkeypatch.context() as patched:
        patched.setattr(WeightWork, "run", run_each)
        yield


def three_consumers_of_one_weight(x: Tensor, weights: list[Tensor]) -> Tensor:
    w = weights[0]
    return ((x @ w).tanh() @ w).tanh() @ w


def test_another_order_of_three_consumers_of_one_weight_changes_bits_and_is_noticed(
    monkeypatch,
):
    right = fused(three_consumers_of_one_weight)
    assert in_halves(three_consumers_of_one_weight) == right
    with earliest_consumer_first(monkeypatch):
        wrong = in_halves(three_consumers_of_one_weight)
    assert wrong[0] != right[0]
    assert wrong[-1] == right[-1]  # the gradient of the input does not come from W
    close = [np.frombuffer(gradients[0], np.float32) for gradients in (wrong, right)]
    # rounding only: no looser test would do
    np.testing.assert_allclose(*close, rtol=1e-4, atol=1e-5)


def test_a_second_half_that_is_not_one_walk_is_noticed_when_microbatches_share_a_weight(
    monkeypatch,
):
    # w gets what comes through `square`, the later one, before what comes through
    # `small`, whoever used them first.
    def stage(x: Tensor, weights: list[Tensor]) -> Tensor:
        w = weights[0]
        small, square = w * 0.1, w * w
        return ((x @ square).tanh() @ small).tanh() @ w

    right = fused(stage, num_microbatches=3)
    assert in_halves(stage, num_microbatches=3) == right
    with pieces_straight_to_the_leaves(monkeypatch):
        wrong = in_halves(stage, num_microbatches=3)
    assert wrong[0] != right[0]


def test_a_first_half_that_postpones_nothing_is_noticed():
    def everything_at_once(microbatch: Microbatch) -> WeightWork:
        backward({microbatch.y.node: microbatch.upstream})
        return WeightWork()

    with pytest.raises(AssertionError, match="I has touched"):
        in_halves(three_consumers_of_one_weight, half=everything_at_once)


# -- the edges of what a stage can be --------------------------------------------------


def test_a_stage_that_returns_its_input_passes_the_gradient_on():
    microbatch = forward(lambda x, weights: x, [], 0)
    first_half(microbatch).run()
    np.testing.assert_array_equal(microbatch.x.grad, microbatch.upstream)


def test_a_stage_that_ignores_its_input_leaves_everything_to_w():
    weights = fresh_weights()
    microbatch = forward(
        lambda x, weights: weights[0] * weights[1] + weights[0], weights, 0
    )
    work = first_half(microbatch)
    assert weights[0].grad is None and microbatch.x.grad is None
    work.run()
    np.testing.assert_array_equal(
        weights[1].grad, microbatch.upstream * weights[0].data
    )
    assert microbatch.x.grad is None


def test_a_first_stage_without_weights_has_nothing_to_do():
    microbatch = forward(
        lambda x, weights: x.reshape(-1).tanh(), [], 0, needs_gradient=False
    )
    work = first_half(microbatch)
    assert held_bytes([work], []) == 0
    work.run()
    assert microbatch.x.grad is None


def test_every_vjp_runs_once_those_to_activations_in_i_and_those_to_weights_in_w():
    calls: list[str] = []

    def called(name: str, gradient: np.ndarray) -> np.ndarray:
        calls.append(name)
        return gradient

    weights = fresh_weights()[:1]
    x = Tensor(numbers(WIDTH, WIDTH, seed=0))
    x.node = StageInput(needs_gradient=True)
    w = record(weights[0].data, (weights[0], lambda g: called("behind the weight", g)))
    y = record(
        x.data + w.data,
        (x, lambda g: called("to x", g)),
        (w, lambda g: called("to w", g)),
    )
    z = record(y.data + 0, (y, lambda g: called("to y", g)))
    work = backward_input({z.node: numbers(WIDTH, WIDTH, seed=1)})
    assert calls == ["to y", "to x"]
    work.run()
    assert calls == ["to y", "to x", "to w", "behind the weight"]


def test_w_run_again_adds_nothing():
    weights = fresh_weights()
    work = first_half(forward(three_consumers_of_one_weight, weights, 0))
    work.run()
    once = bits([weights[0].grad])
    work.run()
    assert bits([weights[0].grad]) == once


def test_i_twice_raises_backward_twice_and_changes_nothing():
    weights = fresh_weights()
    microbatch = forward(three_consumers_of_one_weight, weights, 0)
    work = first_half(microbatch)
    before = bits([microbatch.x.grad])
    for again in (first_half, lambda m: backward({m.y.node: m.upstream})):
        with pytest.raises(TensorError) as caught:
            again(microbatch)
        assert caught.value.code == "no-graph"
    assert bits([microbatch.x.grad]) == before and weights[0].grad is None
    work.run()
    assert weights[0].grad is not None


def test_a_stage_input_keeps_its_gradient_contiguous_and_does_not_copy_one_that_is():
    node = StageInput(needs_gradient=True)
    gradient = numbers(3, 4, seed=0)
    backward({node: gradient})
    assert node.grad is gradient
    backward({(transposed := StageInput(needs_gradient=True)): gradient.T})
    assert transposed.grad.flags.c_contiguous
    np.testing.assert_array_equal(transposed.grad, gradient.T)
    backward({(leaf := Leaf(gradient.shape)): gradient})
    assert leaf.grad is not gradient  # a parameter's gradient is its own


# -- memory ----------------------------------------------------------------------------


def test_what_only_i_needed_is_freed_after_i_and_what_w_needs_after_w():
    #   x ── linear ── h ── tanh ── y        I needs y, for the slope of tanh; W needs x and the gradient of h
    weight = Tensor(numbers(WIDTH, WIDTH, seed=1), requires_grad=True)
    x = Tensor(numbers(ROWS, WIDTH, seed=2))
    x.node = StageInput(needs_gradient=True)
    h = F.linear(x, weight)
    y = h.tanh()
    root, upstream = y.node, numbers(ROWS, WIDTH, seed=3)
    array_of_x, array_of_h, array_of_y = (
        weakref.ref(x.data),
        weakref.ref(h.data),
        weakref.ref(y.data),
    )
    array_of_upstream = weakref.ref(upstream)
    del x, h, y
    assert (
        array_of_x() is not None and array_of_h() is None and array_of_y() is not None
    )

    work = backward_input({root: upstream})
    del upstream
    assert array_of_y() is None and array_of_upstream() is None
    assert array_of_x() is not None

    gradient_of_h = weakref.ref(next(iter(work.postponed.values())))
    assert gradient_of_h() is not None
    work.run()
    assert array_of_x() is None and gradient_of_h() is None
    assert weight.grad is not None


def test_activations_between_layers_that_no_weight_needs_are_freed_after_i():
    held: list[weakref.ref] = []

    def stage(x: Tensor) -> Tensor:
        for _ in range(3):
            x = (x * x).tanh()  # I needs x and tanh's result; W nothing
            held.append(weakref.ref(x.data))
        return x

    x = Tensor(numbers(ROWS, WIDTH, seed=2))
    x.node = StageInput(needs_gradient=True)
    root = stage(x).node
    assert all(array() is not None for array in held)
    work = backward_input({root: numbers(ROWS, WIDTH, seed=3)})
    assert all(array() is None for array in held)
    assert held_bytes([work], []) == 0


def test_eight_linears_hold_8_arrays_after_f_and_15_after_i_and_none_after_w():
    # After F the input of each layer. After I besides the gradient of each layer's
    # result; the last of those eight is the one that came from outside, and the caller
    # holds it anyway.
    layers = [nn.Linear(WIDTH, WIDTH, bias=False).initialise(i) for i in range(8)]
    weights = [layer.weight.data for layer in layers]
    x = Tensor(numbers(ROWS, WIDTH, seed=0))
    x.node = StageInput(needs_gradient=True)
    unit, root = x.data.nbytes, nn.Sequential(*layers)(x).node
    upstream = numbers(ROWS, WIDTH, seed=1)
    del x
    assert held_bytes([root], weights) == 8 * unit
    work = backward_input({root: upstream})
    assert held_bytes([work], [*weights, upstream]) == 15 * unit
    work.run()
    assert held_bytes([work], []) == 0


def test_a_bias_and_a_weight_that_wait_for_the_same_gradient_hold_it_once():
    layer = nn.Linear(WIDTH, WIDTH).initialise()
    x = Tensor(numbers(ROWS, WIDTH, seed=0))
    x.node = StageInput(needs_gradient=True)
    upstream = numbers(ROWS, WIDTH, seed=1)
    work = backward_input({layer(x).node: upstream})
    assert held_bytes([work], [x.data, layer.weight.data]) == upstream.nbytes


def test_a_stage_that_returns_a_parameter_postpones_it_in_a_split_backward():
    weight = Tensor(np.ones(3), requires_grad=True)
    weight.node.changed = 5  # filled, after something else was recorded
    x = Tensor(np.ones(3))
    x.node = StageInput(needs_gradient=True)
    work = backward_input({weight.node: np.full(3, 2.0)})
    assert weight.grad is None
    work.run()
    assert weight.grad.tolist() == [2, 2, 2]

"""An array that is changed between forward and backward would make a gradient wrong;
that is an error, and no other.
"""

from __future__ import annotations

import gc
import weakref
from collections.abc import Callable
from contextvars import Context
from typing import Any

import numpy as np
import pytest
from hypothesis import given

from minipipe import Tensor, autograd, nn, optim, random_key, spawn, watch_everything
from minipipe.autograd import Node, StageInput
from minipipe.autograd.watch import Watched
from minipipe.core.autograd.modes import enable_grad, mode
from minipipe.core.nn.sequential import Sequential
from minipipe.errors import TensorError
from minipipe.pipeline import Pipeline
from minipipe.testing import check_same_as_one_process
from tests.numerics.stages import fresh_weights, numbers, programs, run
from tests.strategies import batch, examples, steps

SMALL, LARGE = (4, 4), (40, 40)


def raises_changed_in_place() -> Any:
    return pytest.raises(TensorError, match="changed after the graph had recorded it")


def leaf(shape: tuple[int, ...] = SMALL, seed: int = 0) -> Tensor:
    return Tensor(numbers(*shape, seed=seed), requires_grad=True)


# -- what is changed -------------------------------------------------------------------


def change_nothing(
    leaf: Tensor, constant: Tensor, result: Tensor, last: Tensor
) -> None:
    pass


def change_the_leaf(
    leaf: Tensor, constant: Tensor, result: Tensor, last: Tensor
) -> None:
    leaf.data += 1


def change_the_constant(
    leaf: Tensor, constant: Tensor, result: Tensor, last: Tensor
) -> None:
    constant.data[0, 0] = 7


def change_a_result(
    leaf: Tensor, constant: Tensor, result: Tensor, last: Tensor
) -> None:
    result.data *= 2


def change_the_last_result(
    leaf: Tensor, constant: Tensor, result: Tensor, last: Tensor
) -> None:
    last.data[...] = 0


def change_through_a_view(
    leaf: Tensor, constant: Tensor, result: Tensor, last: Tensor
) -> None:
    leaf.data.T[1] = 3


CHANGES = [
    change_the_leaf,
    change_the_constant,
    change_a_result,
    change_the_last_result,
    change_through_a_view,
]


def change_and_walk_back(
    change: Callable[[Tensor, Tensor, Tensor, Tensor], None],
    shape: tuple[int, ...],
    walk: str = "backward",
) -> bytes:
    """Compute, change, and walk back; return the gradient of the leaf."""
    x, constant = leaf(shape), Tensor(numbers(*shape, seed=1))
    if walk == "backward_input":
        x.node = StageInput(needs_gradient=True)
    result = (x * constant).tanh()
    last = result * result
    change(x, constant, result, last)
    if walk == "backward_input":
        autograd.backward_input({last.node: numbers(*shape, seed=2)}).run()
    else:
        last.backward(numbers(*shape, seed=2))
    return x.grad.tobytes()


@pytest.mark.parametrize("walk", ["backward", "backward_input"])
@pytest.mark.parametrize("change", CHANGES)
@pytest.mark.parametrize("shape", [SMALL, LARGE])
def test_an_array_that_was_changed_before_backward_raises_changed_in_place(
    change, walk, shape
):
    with raises_changed_in_place() as caught:
        change_and_walk_back(change, shape, walk)
    assert caught.value.code == "changed-in-place"
    assert str(shape) in str(caught.value)


def unwatched(function: Callable[[], Any]) -> Any:
    """Call a function where nothing is watched: in a context of its own, that of a new
    thread.
    """
    return Context().run(function)


def test_nothing_is_watched_unless_it_was_asked_for_and_after_the_block_it_was_asked_for():
    def change_before_in_and_after_a_block() -> None:
        change_and_walk_back(change_a_result, SMALL)  # unnoticed, and wrong
        with watch_everything(), raises_changed_in_place():
            change_and_walk_back(change_a_result, SMALL)
        change_and_walk_back(change_a_result, SMALL)

    unwatched(change_before_in_and_after_a_block)


def test_a_call_without_a_block_watches_from_then_on():
    def change_after_a_call() -> None:
        watch_everything()
        with raises_changed_in_place():
            change_and_walk_back(change_a_result, SMALL)

    unwatched(change_after_a_call)


def test_a_value_that_is_put_back_before_backward_is_no_change():
    x = leaf()
    result = (x * x).sum()
    x.data += 1
    x.data -= 1
    x.data[...] = numbers(*SMALL, seed=0)  # to the last bit
    result.backward()
    np.testing.assert_array_equal(x.grad, 2 * x.data)


def test_not_a_number_is_equal_to_itself_here():
    x = Tensor([np.nan, np.inf, 0.0], requires_grad=True)
    (x * 2).sum().backward()
    assert x.grad.tolist() == [2, 2, 2]
    y = Tensor([0.0], requires_grad=True)
    result = y * 2
    y.data[0] = -0.0  # equal, but other bits
    with raises_changed_in_place():
        result.backward()


def test_a_change_raises_before_any_gradient_behind_it():
    x, y = leaf(seed=0), leaf(seed=1)
    product = x * y
    result = (product * 2).sum()
    x.data += 1
    with raises_changed_in_place():
        result.backward()
    assert x.grad is None and y.grad is None


# -- optimisers ------------------------------------------------------------------------


@pytest.mark.parametrize(
    "wrap", [lambda module: module, nn.Recompute], ids=["", "recompute"]
)
@pytest.mark.parametrize("width", [3, 40])
@pytest.mark.parametrize("kind", [optim.SGD, optim.Adam, optim.AdamW, optim.Muon])
def test_an_optimiser_that_steps_between_forward_and_backward_raises_changed_in_place(
    kind, width, wrap
):
    """For parameters of any size: they know when they were changed, and no bytes are
    compared.
    """
    model = nn.Sequential(nn.Linear(width, width, bias=False), nn.Tanh()).initialise(0)
    module, x = wrap(model), Tensor(numbers(10, width, seed=0))
    optimiser = kind(model.parameters(), learning_rate=0.1)
    module(x).sum().backward()
    late = module(x).sum()
    optimiser.step()
    with raises_changed_in_place() as caught:
        late.backward()
    assert caught.value.code == "changed-in-place"
    module(x).sum().backward()  # computed again it is all right


def test_so_does_a_step_between_the_halves_of_a_split_backward():
    weight = nn.Parameter(numbers(*LARGE, seed=0))
    x = Tensor(numbers(2, 40, seed=1))
    x.node = StageInput(needs_gradient=True)
    work = autograd.backward_input({(x @ weight).tanh().node: numbers(2, 40, seed=2)})
    weight.grad = numbers(*LARGE, seed=3)
    optim.SGD([weight], learning_rate=0.1).step()
    with raises_changed_in_place():
        work.run()


def test_so_do_values_that_are_loaded_in_between():
    model = nn.Sequential(nn.Linear(40, 40, bias=False)).initialise(0)
    state, result = model.state_dict(), model(Tensor(numbers(10, 40, seed=0))).sum()
    model.load_state_dict(state)
    with raises_changed_in_place():
        result.backward()


def test_so_does_a_step_for_a_parameter_that_layers_share():
    tied = nn.Linear(40, 40, bias=False)
    model = nn.Sequential(tied, nn.Tanh(), tied).initialise(0)
    optimiser, x = optim.SGD(model.parameters(), 0.1), Tensor(numbers(10, 40, seed=0))
    model(x).sum().backward()
    late = model(x).sum()
    optimiser.step()
    with raises_changed_in_place():
        late.backward()


# -- recomputation ---------------------------------------------------------------------


@pytest.mark.parametrize("changed", ["input", "weight"])
def test_what_will_be_computed_again_is_watched_too(changed):
    """The story: it was computed again from the changed values, and the gradient was
    that of another function.
    """
    x, layer = leaf((2, 3)), nn.Linear(3, 3).initialise(0)
    result = nn.Recompute(nn.Sequential(layer, nn.Tanh()))(x)
    (x if changed == "input" else layer.weight).data[0, 0] += 1
    with raises_changed_in_place():
        result.sum().backward()


# -- no false alarm --------------------------------------------------------------------


@examples(100)
@given(programs)
def test_no_program_changes_what_it_has_recorded(program):
    weights, x = fresh_weights(), Tensor(numbers(5, 4, seed=100), requires_grad=True)
    gradients = []
    # the second time there are gradients to add to
    for is_fresh in (True, False, True):
        for leaf in (x, *weights):
            leaf.grad = None if is_fresh else leaf.grad
        result = run(program, x, weights)
        result.backward(numbers(*result.shape, seed=200))
        gradients.append(
            [
                None if leaf.grad is None else leaf.grad.tobytes()
                for leaf in (x, *weights)
            ]
        )
    assert gradients[0] == gradients[2], "some array was changed"


@examples(30)
@given(steps())
def test_no_pipelined_step_raises_a_false_alarm(step):
    model, inputs, targets, schedule, partition = step
    check_same_as_one_process(
        model, nn.MSELoss(), inputs, targets, schedule, 3, partition
    )


@pytest.mark.parametrize("kind", [optim.SGD, optim.AdamW])
def test_training_as_it_should_be_raises_no_alarm(kind):
    tied = nn.Embedding(11, 8)
    model: Sequential = nn.Sequential(
        tied,
        nn.PositionalEmbedding(5, 8),
        nn.Recompute(nn.TransformerBlock(8, 2, is_causal=True, dropout=0.1)),
        nn.TransformerBlock(8, 2, is_causal=True),
        nn.Unembedding(tied),
    ).initialise(0)
    optimiser, loss = kind(model.parameters(), 0.01), nn.CrossEntropyLoss()
    before = {
        name: parameter.numpy().copy() for name, parameter in model.named_parameters()
    }
    ids = np.random.default_rng(0).integers(0, 11, (4, 5))
    for step in range(4):
        for part in (slice(2), slice(2, 4)):
            with random_key(0, step, part.start or 0):
                loss(model(ids[part]), ids[part]).backward(0.5)
        optim.clip_grad_norm(model.parameters(), 0.1)
        optimiser.step()
        optimiser.zero_grad()
    assert not [
        name
        for name, parameter in model.named_parameters()
        if (parameter.numpy() == before[name]).all()
    ]


def test_two_forwards_before_two_backwards_raise_no_alarm():
    model = nn.Sequential(nn.Linear(4, 4), nn.Tanh(), nn.Linear(4, 2)).initialise(0)
    results = [model(Tensor(numbers(3, 4, seed=i))).sum() for i in range(3)]
    for result in results:
        result.backward()
    assert model[2].bias.grad.tolist() == [9, 9]  # 3 rows each
    optim.SGD(model.parameters(), 0.1).step()


def test_a_gradient_that_was_taken_out_and_changed_disturbs_nobody():
    x = leaf()
    (x * x).sum().backward()
    x.grad[...] = 0
    (x * x).sum().backward()
    np.testing.assert_array_equal(x.grad, 2 * x.data)


def test_a_pipeline_that_trains_raises_no_alarm():
    inputs, targets = batch(8, 4)

    def losses(group: Any) -> list[float]:
        watch_everything()
        model = nn.Sequential(nn.Linear(4, 4), nn.Tanh(), nn.Linear(4, 2))
        pipeline = Pipeline(
            model, group, loss=nn.MSELoss(), schedule="zb-h1", num_microbatches=4
        )
        optimiser = optim.AdamW(pipeline.parameters(), 0.1)
        found = []
        for _ in range(3):
            found.append(pipeline.step(inputs, targets))
            optimiser.step()
        return found

    first, second = spawn(losses, 2)
    assert first == second and first[0] > first[1] > first[2]


# -- what the watch costs --------------------------------------------------------------


def test_a_watched_array_dies_as_if_nobody_watched_it():
    x = leaf()
    hidden = x + 1  # whose values no vjp needs
    result = hidden + 2
    array = weakref.ref(hidden.data)
    del hidden
    assert array() is None
    result.backward(np.ones(SMALL, np.float32))
    assert x.grad.tolist() == np.ones(SMALL).tolist()


def test_an_array_that_is_gone_may_give_its_memory_to_another():
    x = leaf()
    result = (x + 1) + 2
    gc.collect()
    # some of them where the sum was
    others = [np.zeros(SMALL, np.float32) for _ in range(50)]
    result.backward(np.ones(SMALL, np.float32))
    assert len(others) == 50


def test_the_watch_holds_what_the_operation_saved_and_costs_nothing_where_it_is_off():
    x = leaf()
    with enable_grad():  # keeps the watch
        watched = (x * x).node
    assert isinstance(watched.saved, Watched) and all(
        array is x.data for array in watched.saved.values
    )
    assert (
        type(watched) is Node and type(unwatched(lambda: (x * x).node.saved)) is tuple
    )
    assert unwatched(mode).watch is None


# -- without it ------------------------------------------------------------------------


def test_without_the_watch_a_wrong_gradient_goes_unnoticed():
    right = change_and_walk_back(change_nothing, SMALL)
    wrong = [
        unwatched(lambda change=change: change_and_walk_back(change, SMALL)) != right
        for change in CHANGES
    ]
    # the product keeps the constant, tanh and the square the result
    assert wrong == [False, True, True, False, False]

"""The graph: what is recorded, how gradients add, what is refused, and when memory is
given back.
"""

from __future__ import annotations

import subprocess
import sys
import threading
import weakref

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from minipipe import Tensor, functional, no_grad
from minipipe.autograd.memory import held_bytes
from minipipe.core.autograd import modes
from minipipe.core.tensor import record
from minipipe.errors import TensorError
from minipipe.testing import check_gradients
from tests.strategies import examples


def leaf(*shape: int, seed: int = 0, dtype: type = np.float64) -> Tensor:
    return Tensor(
        np.random.default_rng(seed).uniform(0.5, 2.0, shape).astype(dtype),
        requires_grad=True,
    )


# -- gradients add ---------------------------------------------------------------------


def test_the_gradients_of_a_value_that_is_used_twice_add():
    x = Tensor([3.0, -2.0], requires_grad=True)
    (x * x + x).sum().backward()
    assert x.grad.tolist() == [7.0, -3.0]  # 2 x + 1


def test_the_gradients_of_a_result_that_is_used_twice_add_before_they_go_on():
    #      ┌─ a ─┐
    #   x ─┤     ├─ a * b       a = 2 x, b = x + 1, so 2 x^2 + 2 x
    #      └─ b ─┘
    x = Tensor([3.0], requires_grad=True)
    a, b = 2 * x, x + 1
    (a * b).backward()
    assert x.grad.tolist() == [14.0]


@examples(30)
@given(
    st.lists(
        st.tuples(st.sampled_from("+*-"), st.integers(0, 99), st.integers(0, 99)),
        min_size=1,
        max_size=6,
    )
)
def test_any_graph_of_shared_results_has_the_gradients_of_central_differences(steps):
    def program(a: Tensor, b: Tensor) -> Tensor:
        values = [a, b]
        for symbol, left, right in steps:
            x, y = values[left % len(values)], values[right % len(values)]
            values.append({"+": x + y, "*": (x * y).tanh(), "-": x - y}[symbol])
        return values[-1]

    check_gradients(
        program, np.array([0.3, -0.2]), np.array([0.5, 0.9]), tolerance=2e-8
    )


def test_backward_adds_to_the_gradient_that_is_there_and_zero_grad_forgets_it():
    x = Tensor([1.0, 2.0], requires_grad=True)
    for expected in ([3.0, 3.0], [6.0, 6.0]):
        (3 * x).sum().backward()
        assert x.grad.tolist() == expected
    x.zero_grad()
    assert x.grad is None


def test_contributions_are_added_latest_consumer_first():
    # Whoever changes this order changes bits: 1 is lost beside 2^53, unless the two
    # large numbers meet first.
    large = 2.0**53
    w = Tensor(np.array(1.0), requires_grad=True)
    first, second, third = w * 1.0, w * large, w * -large
    (first + second + third).backward()
    assert w.grad == (-large + large) + 1.0 == 1.0
    assert (1.0 + large) + -large == 0.0  # what the other order would have given


def test_only_leaves_keep_a_gradient():
    x = leaf(2)
    y = x * 2
    y.sum().backward()
    assert y.grad is None and x.grad is not None


def test_a_gradient_does_not_reach_what_does_not_require_one():
    x, constant = leaf(3), Tensor(np.ones(3))
    (x * constant).sum().backward()
    assert constant.grad is None and not constant.requires_grad
    assert x.grad.tolist() == [1.0, 1.0, 1.0]


def test_detach_cuts_the_graph_and_shares_the_values():
    x = leaf(3)
    y = (x * x).detach() * x
    y.sum().backward()
    np.testing.assert_array_equal(x.grad, x.data * x.data)
    assert x.detach().data is x.data


def test_a_long_chain_needs_no_deep_stack():
    x = Tensor(np.array(0.0), requires_grad=True)
    y = x
    for _ in range(20_000):
        y = y + 1.0
    y.backward()
    assert y.item() == 20_000 and x.grad == 1.0


# -- the gradient that backward() begins with ------------------------------------------


@pytest.mark.parametrize("shape", [(), (1,), (1, 1)])
def test_a_tensor_with_one_element_begins_with_the_gradient_1(shape):
    x = leaf(*shape)
    (x * 3).backward()
    assert x.grad.tolist() == np.full(shape, 3.0).tolist()


@pytest.mark.parametrize(
    "gradient",
    [
        np.array([1.0, 2.0]),
        np.array([1, 2]),
        np.array([1.0, 2.0], np.float32),
        [1, 2],
        Tensor([1.0, 2.0]),
    ],
)
def test_backward_takes_a_gradient_of_its_shape_in_any_form(gradient):
    x = Tensor(np.ones(2), requires_grad=True)
    (x * 3).backward(gradient)
    assert x.grad.tolist() == [3.0, 6.0] and x.grad.dtype == np.float64


def test_backward_of_many_elements_without_a_gradient_raises_not_scalar():
    x = leaf(2, 3)
    with pytest.raises(TensorError, match=r"\(2, 3\)") as caught:
        (x * 2).backward()
    assert caught.value.code == "shape"
    assert x.grad is None


@pytest.mark.parametrize("shape", [(), (3,), (1, 2), (2, 1)])
def test_a_gradient_of_another_shape_is_refused_even_if_it_would_broadcast(shape):
    x = leaf(2)
    y = x * 2
    with pytest.raises(TensorError) as caught:
        y.backward(np.ones(shape))
    assert caught.value.code == "shape"
    with pytest.raises(TensorError) as caught:
        x.grad = np.ones(shape)
    assert caught.value.code == "shape"
    y.backward(np.ones(2))  # nothing was used up
    assert x.grad.tolist() == [2.0, 2.0]


def test_a_gradient_can_be_set_on_leaves_only():
    x = leaf(2)
    x.grad = np.array([5.0, 6.0])
    assert x.grad.tolist() == [5.0, 6.0]
    for tensor in (x * 2, Tensor([1.0])):
        with pytest.raises(TensorError) as caught:
            tensor.grad = np.ones(tensor.shape)
        assert caught.value.code == "no-graph"


# -- what is refused -------------------------------------------------------------------


def test_backward_twice_raises_backward_twice_and_changes_nothing():
    x = leaf(3)
    y = (x * x).sum()
    y.backward()
    before = x.grad.copy()
    with pytest.raises(TensorError) as caught:
        y.backward()
    assert caught.value.code == "no-graph"
    np.testing.assert_array_equal(x.grad, before)


def test_backward_through_a_part_that_another_backward_has_used_raises():
    x, other = leaf(3), leaf(3, seed=1)
    shared = x.exp()
    first, second = shared.sum(), (shared * other).sum()
    first.backward()
    before = x.grad.copy()
    with pytest.raises(TensorError) as caught:
        second.backward()
    assert caught.value.code == "no-graph"
    np.testing.assert_array_equal(x.grad, before)


def test_backward_without_a_graph_raises_no_graph():
    with no_grad():
        unrecorded = leaf(1) * 2
    for tensor in (Tensor([1.0]), Tensor([1.0]) * 2, unrecorded):
        with pytest.raises(TensorError) as caught:
            tensor.backward()
        assert caught.value.code == "no-graph"


# -- no_grad ---------------------------------------------------------------------------


def test_no_grad_records_nothing():
    x = leaf(3)
    with no_grad():
        y = functional.relu(x * x + 1)
        assert not modes.is_grad_enabled()
    assert y.node is None and not y.requires_grad
    assert x.requires_grad
    assert (x * 1).requires_grad and modes.is_grad_enabled()


def test_no_grad_ends_with_its_block_also_by_an_exception_and_nested():
    x = leaf(3)
    with pytest.raises(ZeroDivisionError), no_grad():
        with no_grad():
            pass
        # the inner block's end does not end the outer one
        assert not (x * 1).requires_grad
        raise ZeroDivisionError
    assert (x * 1).requires_grad


def test_no_grad_is_per_thread():
    x = leaf(3)
    seen: dict[str, bool] = {}
    inside, done = threading.Event(), threading.Event()

    def records() -> None:
        seen["another thread, while this one does not record"] = (x * 1).requires_grad

    def does_not_record() -> None:
        with no_grad():
            inside.set()
            done.wait(timeout=60)
            seen["a thread in no_grad"] = (x * 1).requires_grad

    with no_grad():
        thread = threading.Thread(target=records)
        thread.start()
        thread.join()
        assert not (x * 1).requires_grad
    thread = threading.Thread(target=does_not_record)
    thread.start()
    assert inside.wait(timeout=60)
    seen["this thread, while another does not record"] = (x * 1).requires_grad
    done.set()
    thread.join()
    assert seen == {
        "another thread, while this one does not record": True,
        "a thread in no_grad": False,
        "this thread, while another does not record": True,
    }


# -- memory ----------------------------------------------------------------------------

W = np.arange(1.0, 5.0).reshape(2, 2)


FORGET_THEIR_INPUT = {
    "add": lambda h: h + 1,
    "add to a tensor": lambda h: h + Tensor(W, requires_grad=True),
    "subtract": lambda h: 1 - h,
    "negative": lambda h: -h,
    "multiply by a constant": lambda h: h * 2.0,
    "multiply by a constant array": lambda h: h * W,
    "divide by a constant": lambda h: h / 2.0,
    "matmul with a constant": lambda h: h @ W,
    "matmul of a constant": lambda h: W @ h,
    "linear with a constant weight": lambda h: functional.linear(h, Tensor(W)),
    "exp": lambda h: h.exp(),
    "sqrt": lambda h: h.sqrt(),
    "tanh": lambda h: h.tanh(),
    "sigmoid": lambda h: h.sigmoid(),
    "relu": lambda h: h.relu(),
    "softmax": lambda h: functional.softmax(h),
    "log_softmax": lambda h: functional.log_softmax(h),
    "cross_entropy": lambda h: functional.cross_entropy(h, [0, 1]),
    "mean_squared_error": lambda h: functional.mean_squared_error(h, W),
    "sum": lambda h: h.sum(0),
    "mean": lambda h: h.mean(),
    "concatenate": lambda h: functional.concatenate([h, h]),
    "index by an array": lambda h: h[[0, 0]],
    "contiguous, of a transposed tensor": lambda h: functional.contiguous(h.T),
}


NEED_THEIR_INPUT = {
    "log": lambda h: h.log(),
    "square": lambda h: h**2,
    "multiply by a tensor": lambda h: h * Tensor(W, requires_grad=True),
    "divide a tensor": lambda h: Tensor(W, requires_grad=True) / h,
    "matmul with a tensor": lambda h: h @ Tensor(W, requires_grad=True),
    "linear": lambda h: functional.linear(h, Tensor(W, requires_grad=True)),
    "max": lambda h: h.max(1),
}


def after_the_only_holder_is_gone(operation, h: Tensor) -> tuple[Tensor, weakref.ref]:
    """Return the result of the operation, and a weak reference to the array of its
    input.
    """
    return operation(h), weakref.ref(h.data)


@pytest.mark.parametrize(
    "operation", FORGET_THEIR_INPUT.values(), ids=FORGET_THEIR_INPUT
)
def test_an_array_dies_as_soon_as_no_vjp_needs_it(operation):
    result, array = after_the_only_holder_is_gone(operation, leaf(2, 2) + 1)
    assert result.requires_grad and array() is None


@pytest.mark.parametrize("operation", NEED_THEIR_INPUT.values(), ids=NEED_THEIR_INPUT)
def test_an_array_that_a_vjp_needs_lives_until_backward_has_used_it(operation):
    result, array = after_the_only_holder_is_gone(operation, leaf(2, 2) + 1)
    assert array() is not None
    result.backward(np.ones(result.shape))
    assert array() is None  # although the result is held still


def test_without_a_graph_every_intermediate_dies_at_once():
    with no_grad():
        _, array = after_the_only_holder_is_gone(lambda h: h.log(), leaf(2, 2) + 1)
    assert array() is None


def test_gradients_that_add_hands_to_two_inputs_are_not_one_array():
    a, b = leaf(3), leaf(3, seed=1)
    upstream = np.ones(3)
    (a + b).backward(upstream)
    a.grad += 5
    assert b.grad.tolist() == [1.0, 1.0, 1.0]
    assert upstream.tolist() == [1.0, 1.0, 1.0]
    b.grad[:] = 7
    assert a.grad.tolist() == [6.0, 6.0, 6.0]


def test_accumulating_into_one_gradient_leaves_the_other_alone():
    a, b = leaf(3), leaf(3, seed=1)
    (a + b).sum().backward()
    (a * 2).sum().backward()
    assert a.grad.tolist() == [3.0, 3.0, 3.0] and b.grad.tolist() == [1.0, 1.0, 1.0]


def test_the_bytes_that_a_graph_holds_are_counted_once_each_and_views_as_their_buffer():
    x, w = Tensor(np.ones((4, 8))), leaf(8, 8)
    # its vjps hold x and the result of exp; of w there is no need
    y = functional.linear(x, w).exp()
    assert held_bytes([y.node], []) == x.data.nbytes + y.data.nbytes
    assert held_bytes([y.node], [x.data]) == y.data.nbytes
    twice = functional.concatenate([y * y.T.T, y * y.T.T])
    assert held_bytes([twice.node], []) == x.data.nbytes + y.data.nbytes


def test_a_vjp_that_forgets_to_return_is_named():
    """The story: a student forgot `return`, and read that NoneType has no attribute
    'shape', in no line of theirs.
    """

    def double(a):
        def double_vjp(gradient):
            gradient * 2

        return record(a.data * 2, (a, double_vjp))

    x = Tensor([1.0], requires_grad=True)
    with pytest.raises(
        TensorError, match=r"double_vjp returned None; expected the gradient, an array"
    ) as caught:
        double(double(x)).sum().backward()
    assert caught.value.code == "missing"


def test_an_error_in_one_walk_leaves_nothing_behind_for_the_next():
    """The story: a node kept its pending gradient, never entered the next queue, and
    gradients were lost in silence.
    """

    def bad(x):
        def vjp(g):
            raise RuntimeError("in the middle")

        return record(x.data * 1, (x, vjp))

    w = Tensor([1.0, 2.0], requires_grad=True)
    h = w * 3
    with pytest.raises(RuntimeError, match="in the middle"):
        (h * 2 + bad(h)).sum().backward()
    with pytest.raises(RuntimeError, match="in the middle"):
        (bad(h) + h * 2).sum().backward()
    w.zero_grad()
    (h * 5).sum().backward()
    np.testing.assert_array_equal(w.grad, [15, 15])


def test_arithmetic_is_there_with_the_tensor_alone():
    """The story: until something else had imported the operations, Tensor([1.0]) * 3
    was a TypeError.
    """
    code = "from minipipe import Tensor; assert (Tensor([1.0]) * 3).item() == 3"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0

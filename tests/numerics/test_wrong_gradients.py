"""What a vjp returns is the gradient of its input: of that shape and dtype, or it is
refused where it is returned.
"""

from functools import partial

import array_api_strict
import numpy as np
import pytest

from minipipe import Pipeline, Tensor, functional, nn, spawn
from minipipe.autograd import backward_input
from minipipe.core.tensor import record
from minipipe.errors import TensorError

WRONG_DTYPES = {
    "float64": lambda g: g * np.float64(2.0),
    "complex64": lambda g: g * 1j,
    "bool": lambda g: g > 0,
    "int64": lambda g: g.astype(np.int64),
    "float16": lambda g: g.astype(np.float16),
}


def wrongly(a, vjp):
    """Return twice the tensor, by an operation whose vjp is wrong."""
    return record(a.data * 2, (a, vjp))


class Wrong(nn.Module):
    """A layer that is such an operation."""

    def __init__(self, vjp):
        self.vjp = vjp

    def forward(self, x):
        return wrongly(x, self.vjp)


@pytest.mark.parametrize("dtype", WRONG_DTYPES)
@pytest.mark.parametrize("schedule", ["1f1b", "zb-h1"])
def test_a_gradient_of_another_dtype_neither_crosses_ranks_nor_reaches_a_parameter(
    dtype, schedule
):
    """The story: a vjp that computed in float64 crossed ranks, and gradients of all
    stages before were float64.
    """

    def train(group):
        model = nn.Sequential(
            nn.Linear(3, 3),
            nn.Tanh(),
            nn.Linear(3, 3),
            Wrong(WRONG_DTYPES[dtype]),
            nn.Linear(3, 2),
        )
        parts = [range(2), range(2, 5)]
        options = {"schedule": schedule, "num_microbatches": 2, "partition": parts}
        Pipeline(model, group, loss=nn.MSELoss(), **options).step(
            np.ones((4, 3)), np.ones((4, 2))
        )

    expected = (
        rf"<lambda> returned a gradient of {dtype} for an input of float32: a vjp "
        r"must return the dtype"
    )
    with pytest.raises(TensorError, match=expected) as caught:
        spawn(train, 2)
    assert caught.value.code == "dtype"
    kind = "B" if schedule == "1f1b" else "I"
    assert caught.value.__notes__[0].startswith(
        f"on rank 1, stage 1, microbatch 0, action 1{kind}0 of {schedule}"
    )


@pytest.mark.parametrize("dtype", WRONG_DTYPES)
def test_neither_a_leaf_nor_a_parameter_takes_it(dtype):
    for tensor in (
        Tensor(np.ones(3, np.float32), requires_grad=True),
        nn.Parameter(np.ones(3, np.float32)),
    ):
        with pytest.raises(
            TensorError, match=f"gradient of {dtype} for an input of float32"
        ):
            wrongly(tensor, WRONG_DTYPES[dtype]).backward(np.ones(3, np.float32))
        assert tensor.grad is None


def test_a_gradient_that_numpy_would_broadcast_is_refused_where_it_is_returned():
    """The story: it was broadcast by the operation before, and came to the parameter in
    the right shape: all wrong.
    """
    x = Tensor(np.ones(3), requires_grad=True)
    with pytest.raises(
        TensorError,
        match=r"returned a gradient of shape \(\) for an input of shape \(3,\)",
    ) as caught:
        wrongly(x.exp(), lambda g: g.sum()).sum().backward()
    assert caught.value.code == "shape" and x.grad is None


def test_of_several_vjps_the_wrong_one_is_named():
    def right(g):
        return g

    def wrong(g):
        return g[:1]

    a, b = (Tensor(np.ones(3, np.float32), requires_grad=True) for _ in range(2))
    with pytest.raises(
        TensorError, match=r"\.wrong returned a gradient of shape \(1,\)"
    ):
        record(a.data + b.data, (a, right), (b, wrong)).backward(np.ones(3))


def test_the_second_half_of_a_split_backward_refuses_it_and_names_a_partial_function():
    def in_float64(array, g):
        return array.astype(np.float64) * g

    x, w = (
        Tensor(np.ones(2, np.float32)),
        Tensor(np.ones(2, np.float32), requires_grad=True),
    )
    work = backward_input(
        {
            record(x.data * w.data, (w, partial(in_float64, x.data))).node: np.ones(
                2, np.float32
            )
        }
    )
    with pytest.raises(TensorError, match="in_float64 returned a gradient of float64"):
        work.run()


def test_operations_that_change_the_dtype_return_gradients_in_that_of_their_input():
    xp = array_api_strict
    for dtype in (np.float16, np.float32, np.float64):
        for other in (np.float16, np.float32, np.float64):
            x, weight = (
                Tensor(np.ones(3, dtype), requires_grad=True),
                nn.Parameter(np.ones(3, dtype)),
            )
            functional.astype(x * weight, other).sum().backward()
            assert x.grad.dtype == dtype
            # where halves add up
            assert weight.grad.dtype == (np.float32 if dtype == np.float16 else dtype)
    x = Tensor(xp.ones(3, dtype=xp.float32), requires_grad=True)
    functional.astype(x, "float64").sum().backward()
    assert x.grad.dtype == xp.float32


@pytest.mark.parametrize(
    "wrong", [lambda g: g.sum(), lambda g: np.stack([g, g]), lambda g: g[:2]]
)
def test_a_gradient_of_another_shape_than_its_tensor_is_refused(wrong):
    """A vjp that forgot to sum left a gradient of any shape, and the optimiser
    complained, or did not.
    """
    for tensor in (Tensor(np.ones(3), requires_grad=True), nn.Parameter(np.ones(3))):
        result = record(tensor.data * 2, (tensor, wrong))
        with pytest.raises(
            TensorError, match=r"for an input of shape \(3,\): a vjp must"
        ):
            result.backward(np.ones(3))

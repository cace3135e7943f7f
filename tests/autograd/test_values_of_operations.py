"""Values that gradients share or keep stay as they are, and each name of an operation
means one thing.
"""

import numpy as np
import pytest

from minipipe import Tensor, functional, nn, op, spawn, watch_everything
from minipipe.autograd import StageInput, backward, backward_input
from minipipe.errors import ArgumentError, TensorError
from tests.half_precision import every_half
from tests.launch import for_each

ONES = np.ones(2, np.float32)


@op()
def squared_sum(x, y):
    return (x + y) ** 2


squared_sum.shared(u=lambda g, x, y: g * 2 * (x + y))
squared_sum.gradients(x=lambda g, u: u, y=lambda g, u: u)


@op(saves="factor")
def tripled(x, y):
    factor = np.full_like(x, 3)
    return factor * x + y * factor, factor


tripled.gradients(x=lambda g, factor: factor, y=lambda g, factor: factor)


@op()
def exchanged(x, y):
    return x * y


exchanged.gradients(x=lambda g, y: y, y=lambda g, x: x)  # of a sum: g is 1


@for_each(operation={"shared": squared_sum, "saved": tripled, "inputs": exchanged})
def test_several_microbatches_add_up_in_arrays_of_each_leaf(operation):
    x, y = (
        Tensor(np.array(values, np.float32), requires_grad=True)
        for values in ([1, 2], [3, 4])
    )
    once = [Tensor(t.data.copy(), requires_grad=True) for t in (x, y)]
    operation(*once).sum().backward()
    before = [x.data.copy(), y.data.copy()]
    for _ in range(3):
        operation(x, y).sum().backward()
    assert x.grad is not y.grad
    for tensor, single, values in zip((x, y), once, before):
        assert np.array_equal(tensor.grad, 3 * single.grad) and np.array_equal(
            tensor.data, values
        )


def test_w_does_not_change_the_gradient_that_i_has_handed_on():
    weight = Tensor([3.0, 4.0], requires_grad=True)
    sent = []
    for _ in range(2):
        x = Tensor([1.0, 2.0])
        x.node = StageInput(needs_gradient=True, array=x.data)
        work = backward_input({squared_sum(x, weight).node: ONES})
        sent.append((x.grad, x.grad.copy()))
        work.run()
    for gradient, before in sent:
        assert np.array_equal(gradient, before) and gradient.tolist() == [8.0, 12.0]
    assert weight.grad.tolist() == [16.0, 24.0]


# -- half precision --------------------------------------------------------------------


@op(in_float32=True)
def parity(x, n):
    return x * (n % 2).astype(x.dtype)


parity.gradients(x=lambda g, n: g * (n % 2).astype(g.dtype))


@op(in_float32=True)
def chosen(n, x):
    return x[n]


chosen.gradients(x=lambda g, n, shape: np.bincount(n, g, shape[0]).astype(g.dtype))


@every_half
def test_only_halves_are_widened(half):
    odd = Tensor(np.array([2**24 + 1, 2**24]))
    x = Tensor(np.ones(2, half), requires_grad=True)
    result = parity(x, odd)
    result.backward(np.ones(2, half))
    assert (
        result.dtype == half
        and result.numpy().tolist() == [1.0, 0.0] == x.grad.tolist()
    )


@every_half
def test_a_half_behind_whole_numbers_is_widened_too(half):
    x = Tensor(np.array([1.0, 2.0], half), requires_grad=True)
    result = chosen(Tensor(np.array([1, 1])), x)
    result.backward(np.ones(2, half))
    assert (
        result.dtype == half
        and result.numpy().tolist() == [2.0, 2.0]
        and x.grad.tolist() == [0.0, 2.0]
    )


@op(in_float32=True)
def square(x):
    return x * x


@op(in_float32=True)
def joined(*parts):
    return np.concatenate(parts) if parts else np.zeros(0, np.float32)


@op(in_float32=True)
def either(x=None, y=None):
    return y if x is None else x


@every_half
def test_operands_are_converted_before_their_dtype_is_read(half):
    assert (
        square(np.full(2, 3, half)).numpy().tolist() == [9.0, 9.0]
        and square(np.ones(2, half)).dtype == half
    )
    assert (
        square([2.0, 3.0]).numpy().tolist() == [4.0, 9.0] and square(2.0).item() == 4.0
    )
    assert joined().shape == (0,) and joined(np.ones(2, half)).dtype == half
    assert either(None, np.ones(2, half)).dtype == half


# -- names -----------------------------------------------------------------------------


def scaled(x, shape):
    return x * shape


def with_attribute(x, *, shape=2.0):
    return x * shape


def saving(x):
    return x * 3, 3


def in_rows(x):
    return x


AMBIGUOUS = {
    "an input": lambda: op()(scaled).gradients(x=lambda g, shape: g * shape),
    "an attribute": lambda: op()(with_attribute).gradients(
        x=lambda g, shape: g * shape
    ),
    "a saved value": lambda: op(saves="shape")(saving).gradients(
        x=lambda g, shape: g * shape
    ),
}


@for_each(define=AMBIGUOUS)
def test_a_gradient_does_not_need_a_shape_with_two_meanings(define):
    with pytest.raises(
        ArgumentError, match="needs shape: the shape of its input, and also a value"
    ) as caught:
        define()
    assert caught.value.code == "value"


@pytest.mark.parametrize("name", ["s", "x", "result", "g", "number", "shape"])
def test_a_shared_value_has_a_name_of_its_own(name):
    operation = op(saves="s")(saving)
    with pytest.raises(
        ArgumentError, match=rf"saving.shared\({name}=…\) has the name of another value"
    ):
        operation.shared(**{name: lambda g: g})


def test_a_shared_value_does_not_need_the_shape_of_an_input():
    with pytest.raises(ArgumentError, match="needs shape, which only a gradient gets"):
        op()(in_rows).shared(u=lambda g, shape: g)


WRONG = {
    "a list of names": (
        lambda: op(saves=["a"]),
        "op: saves takes names separated by spaces; this is of type list",
    ),
    "no names": (
        lambda: op(attributes=None),
        "op: attributes takes names separated by spaces",
    ),
    "a comma": (
        lambda: op(saves="a,b"),
        "op: saves is 'a,b'; expected names separated by spaces",
    ),
    "a gradient by position": (
        lambda: op()(in_rows).gradients(lambda g: g),
        r"by name; 1 came without one. Write g",
    ),
    "a shared value by position": (
        lambda: op()(in_rows).shared(lambda g: g),
        r"by name; 1 came without one. Write s",
    ),
}


@for_each(case=WRONG)
def test_names_are_texts_and_functions_have_names(case):
    define, message = case
    with pytest.raises(ArgumentError, match=message):
        define()


def test_an_input_may_be_called_self():
    operation = op()(lambda self: 2 * self)
    operation.gradients(self=lambda g: 2 * g)
    x = Tensor([1.0, 2.0], requires_grad=True)
    operation(x).backward(ONES)
    assert x.grad.tolist() == [2.0, 2.0]


# -- operands --------------------------------------------------------------------------


@pytest.mark.parametrize(
    "name",
    ["relu", "negative", "exp", "total", "amax", "reshape", "transpose", "softmax"],
)
def test_none_is_no_tensor(name):
    rest = ((2,),) if name == "reshape" else ()
    with pytest.raises(
        TensorError, match="A tensor holds real or whole numbers; this is object: None"
    ) as caught:
        getattr(functional, name)(None, *rest)
    assert caught.value.code == "dtype"


def test_a_shape_is_of_whole_numbers():
    with pytest.raises(
        TensorError, match="reshape: the shape is 'a'; expected whole numbers"
    ):
        functional.reshape([1.0, 2.0], "a")


def test_labels_on_the_input_of_a_stage_have_no_gradient():
    labels = Tensor(np.array([0, 1]))
    labels.node = StageInput(needs_gradient=True, array=labels.data)
    scores = Tensor(np.zeros((2, 2), np.float32), requires_grad=True)
    backward({functional.cross_entropy(scores, labels).node: np.ones((), np.float32)})
    assert scores.grad.tolist() == [[-0.25, 0.25], [0.25, -0.25]]


class Picks(nn.Module):
    def __init__(self):
        self.weight = nn.Parameter(np.full((8, 8), 0.5, np.float32))

    def forward(self, x):
        return (x @ self.weight)[0, :, [0, 1]]


def test_a_fully_sharded_layer_may_save_other_values_than_arrays_while_it_is_watched():
    def differentiate(group):
        layer = nn.fully_shard(Picks(), group)
        with watch_everything():
            result = layer(Tensor(np.ones((2, 4, 8), np.float32)))
            result.backward(np.ones(result.shape, np.float32))
        return float(
            sum(np.abs(parameter.grad).sum() for parameter in layer.parameters())
        )

    assert sum(spawn(differentiate, 2)) == 2 * 8 * 4 * 2

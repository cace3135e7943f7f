"""An operation of one's own in four lines: it splits, recomputes, is watched, measured,
offloaded and compiled.
"""

from concurrent.futures import ThreadPoolExecutor
from inspect import signature
from traceback import extract_tb, walk_tb

import numpy as np
import pytest

import minipipe.core.tensor
from minipipe import (
    Pipeline,
    Tensor,
    functional,
    nn,
    op,
    optim,
    schedules,
    spawn,
    watch_everything,
)
from minipipe.autograd import StageInput, backward, backward_input
from minipipe.autograd.memory import held_bytes
from minipipe.comm.job.reports import place_of
from minipipe.core.autograd.backend import array_module
from minipipe.core.tensor import record
from minipipe.errors import ArgumentError, TensorError
from minipipe.execution.offloading import Parked
from minipipe.testing import check_gradients, check_same_as_one_process, same_bits
from tests.compile.driver import TRACED, Job, compiled, eager, traced
from tests.launch import covering
from tests.strategies import build

X = np.random.default_rng(0).standard_normal((16, 6)).astype(np.float32)
MANY = {
    **{
        name: build(name, 2, 4)
        for name in ("1f1b", "gpipe", "zb-h1", "interleaved-1f1b", "zb-v")
    },
    "1f1b of one rank": build("1f1b", 1, 4),
    "zb-h1 of one rank": build("zb-h1", 1, 4),
    "recomputed": schedules.recomputed(schedules.zb_h1(2, 4)),
    "offloaded": schedules.offloaded(schedules.gpipe(2, 4), 2),
}


@pytest.fixture(autouse=True)
def watching():
    """Watch nothing, unlike other tests: what is watched leaves no script."""


@op(is_broadcast=True)
def cube(x, weight):
    return x * x * x * weight


cube.gradients(
    x=lambda g, x, weight: g * (3 * x * x) * weight, weight=lambda g, x: g * (x * x * x)
)


@op(saves="slope")
def softsign(x, *, scale=1.0):
    size = 1 + array_module(x).abs(x) * scale
    return x / size, 1 / (size * size)


softsign.gradients(x=lambda g, slope: g * slope)


class Cubed(nn.Module):
    """A layer of both operations, with a weight that is broadcast."""

    is_compilable = True

    def __init__(self):
        self.weight = nn.Parameter((6,), nn.initialisers.constant(0.5))

    def forward(self, x):
        return softsign(cube(x, self.weight), scale=2.0)


def model(wrap=lambda layer: layer):
    return nn.Sequential(
        *(layer for _ in range(4) for layer in (nn.Linear(6, 6), wrap(Cubed())))
    )


def trained(group, schedule, how=False, wrap=lambda layer: layer):
    pipeline = Pipeline(
        model(wrap), group, loss=nn.MSELoss(), schedule=schedule, compile=how
    )
    optimiser, losses = optim.Adam(pipeline.parameters(), learning_rate=0.01), []
    for _ in range(4):
        losses.append(pipeline.step(X, X))
        optimiser.step()
    state = pipeline.state_dict()
    return (
        losses,
        [state[name].tobytes() for name in sorted(state)],
        pipeline.compile_report() if how else "",
    )


def test_op_is_a_public_name():
    assert minipipe.op is minipipe.core.tensor.op and "op" in dir(minipipe)


def test_its_signature_says_which_parameters_are_tensors():
    assert str(signature(softsign)) == "(x: 'Operand', *, scale=1.0) -> 'Tensor'"
    assert softsign.__annotations__ == {"x": "Operand", "return": "Tensor"}
    assert softsign.__name__ == "softsign" and softsign.__module__ == __name__


def test_its_gradients_are_slopes():
    random = np.random.default_rng(0)
    check_gradients(cube, random.standard_normal((3, 6)), random.standard_normal(6))
    check_gradients(lambda x: softsign(x, scale=2.0), random.standard_normal((3, 6)))


@pytest.mark.parametrize(
    ("name", "recompute"), covering(MANY, [False, True], strength=1)
)
def test_it_has_the_bits_of_one_process(name, recompute):
    check_same_as_one_process(
        model(), nn.MSELoss(), X, X, MANY[name], recompute=recompute
    )


@pytest.mark.parametrize("name", MANY)
def test_so_has_a_training_also_in_recomputed_layers(name):
    ranks = MANY[name].num_ranks
    expected = spawn(lambda group: trained(group, MANY[name]), ranks)
    assert (
        spawn(lambda group: trained(group, MANY[name], wrap=nn.Recompute), ranks)
        == expected
    )
    assert (
        expected[0][:2]
        == spawn(lambda group: trained(group, build("1f1b", 1, 4)), 1)[0][:2]
    )


@pytest.mark.parametrize("ranks", [1, 2])
def test_it_is_compiled_with_the_same_bits(ranks):
    for name in ("1f1b", "zb-h1"):
        schedule = build(name, ranks, 4)
        for found in spawn(
            lambda group, schedule=schedule: trained(group, schedule, True), ranks
        ):
            assert found[2].endswith(" is compiled"), found[2]
            assert (
                found[:2]
                == spawn(
                    lambda group, schedule=schedule: trained(group, schedule), ranks
                )[0][:2]
            )


def staged():
    """Return the input of a stage, a weight, and the result of both operations."""
    x, weight = (
        Tensor(X.copy()),
        Tensor(np.full(6, 0.5, np.float32), requires_grad=True),
    )
    x.node = StageInput(needs_gradient=True, array=x.data)
    return x, weight, softsign(cube(x, weight), scale=2.0)


def test_i_leaves_the_weight_to_w_and_both_together_have_the_bits_of_b():
    x, weight, y = staged()
    backward({y.node: X})
    again, again_weight, y = staged()
    work = backward_input({y.node: X})
    assert again_weight.grad is None and same_bits(again.node.grad, x.node.grad)
    work.run()
    assert same_bits(again_weight.grad, weight.grad)


def test_it_holds_what_its_gradients_name_and_after_i_what_w_needs():
    _, weight, y = staged()
    # x, the slope, the weight
    assert held_bytes([y.node], []) == 2 * X.nbytes + weight.data.nbytes
    assert cube.operation.plan(0b111).names == ("x", "weight") and cube.operation.plan(
        0b110
    ).names == ("x",)
    assert softsign.operation.plan(0b11).names == ("slope",)
    root = y.node
    del y
    # x, and the gradient of the cube
    assert held_bytes([backward_input({root: X})], []) == 2 * X.nbytes


@pytest.mark.parametrize("changed", ["input", "result"])
def test_a_change_in_place_is_found(changed):
    with watch_everything():
        x, _, y = staged()
        (x if changed == "input" else y).data[0, 0] += 1
        with pytest.raises(TensorError) as caught:
            backward({y.node: X})
    assert caught.value.code == "changed-in-place"


def test_so_is_one_of_a_single_number():
    """NumPy returns no array of a sum of two of them, so the result is another
    object.
    """
    with watch_everything():
        x = Tensor(2.0, requires_grad=True)
        y = x + x
        y.data[...] = 3.0
        with pytest.raises(TensorError, match="shape \\(\\) was changed"):
            y.backward()


def test_without_watching_a_change_in_place_gives_a_wrong_gradient():
    _, weight, y = staged()
    backward({y.node: X})
    other, other_weight, y = staged()
    other.data[0, 0] += 1
    backward({y.node: X})
    assert not same_bits(other_weight.grad, weight.grad)


def test_what_it_keeps_can_go_to_a_file_and_come_back():
    x, weight, y = staged()
    backward({y.node: X})
    again, again_weight, y = staged()
    root = y.node
    before = held_bytes([root], [])
    del y
    with ThreadPoolExecutor(1) as threads:
        parked = Parked([root], [again_weight.data], threads)
        assert (
            parked.num_bytes == 2 * X.nbytes
            and held_bytes([root], []) == before - 2 * X.nbytes
        )
        parked.read()
        parked.put_back()
    work = backward_input({root: X})
    work.run()
    assert same_bits(again.node.grad, x.node.grad) and same_bits(
        again_weight.grad, weight.grad
    )


def test_a_compiled_section_of_it_has_its_bits():
    job = Job(
        lambda tensors: [softsign(tensors[0], scale=2.0)],
        [],
        lambda k: [(k * X, True)],
        lambda k, i, result: np.ones_like(X) if k == TRACED else X.copy(),
    )
    row = [("F", 2), ("B", 2)]
    assert compiled(job, traced(job, is_split=False), row) == eager(job, row)


def test_a_gradient_that_is_set_again_is_used_from_then_on():
    @op()
    def square(x):
        return x * x

    square.gradients(x=lambda g: g)
    x = Tensor(X, requires_grad=True)
    square(x).backward(X)
    square.gradients(x=lambda g, x: g * 2 * x)
    again = Tensor(X, requires_grad=True)
    square(again).backward(X)
    assert same_bits(x.grad, X) and same_bits(again.grad, X * 2 * X)


def test_ranks_notice_that_their_operations_differ_also_in_a_gradient_alone():
    def made(factor, slope):
        @op()
        def scaled(x):
            return x * factor

        scaled.gradients(x=lambda g: g * slope)
        return nn.Function(scaled)

    assert repr(made(2.0, 2.0)) == repr(made(2.0, 2.0))
    assert len({repr(made(2.0, 2.0)), repr(made(3.0, 2.0)), repr(made(2.0, 3.0))}) == 3


def test_an_operation_may_not_hide_a_parameter():
    weight = nn.Parameter((6,), nn.initialisers.constant(0.5))

    @op()
    def hidden(x):
        return x * weight.data

    with pytest.raises(ArgumentError, match="refers to a Parameter"):
        nn.Function(hidden)


def test_record_and_op_give_the_same_bits():
    def recorded(x, weight):
        a, w = x.data, weight.data
        return record(
            a * a * a * w,
            (x, lambda g: g * (3 * a * a) * w),
            (weight, lambda g: (g * (a * a * a)).sum(axis=0)),
        )

    grads = []
    for operation in (cube, recorded):
        x, weight = (
            Tensor(X, requires_grad=True),
            Tensor(np.full(6, 0.5, np.float32), requires_grad=True),
        )
        functional.tanh(operation(x, weight)).backward(X)
        grads.append((x.grad.tobytes(), weight.grad.tobytes()))
    assert grads[0] == grads[1]


def test_a_traceback_shows_the_printed_call_and_reports_leave_it_out():
    @op()
    def broken(x):
        return 1 / 0

    with pytest.raises(ZeroDivisionError) as caught:
        broken(Tensor([1.0]))
    (_, printed, own), stack = extract_tb(caught.tb), list(walk_tb(caught.tb))
    assert (printed.line, own.line) == ("data = forward(a0, )", "return 1 / 0")
    assert place_of(stack[:2][::-1]).startswith("test_own_operations.py, line ")

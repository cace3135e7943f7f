"""Offloading takes activations out of graphs: no parameter, no constant of a layer, and
nothing that others look at.
"""

from concurrent.futures import ThreadPoolExecutor
from functools import cache
from weakref import ref

import array_api_strict
import numpy as np
import pytest

from minipipe import Grid, Pipeline, Tensor, nn, schedules, spawn
from minipipe.autograd.memory import arrays_in, buffer_of, held_bytes, saved_by
from minipipe.core.tensor import op, record
from minipipe.execution.meter import persistent_arrays
from minipipe.execution.offloading import Parked
from minipipe.testing import same_bits
from tests.execution.offloaded_layers import (
    LAYERS,
    SEQUENCES,
    Of,
    Scaled,
    X,
    linear,
    of_views,
)
from tests.launch import covering, slowly

TABLES = {
    "gpipe": schedules.gpipe(1, 4),
    "zb-h1": schedules.zb_h1(1, 4),
    "1f1b of two": schedules.one_f_one_b(2, 4),
    "zb-h1 of two": schedules.zb_h1(2, 4),
    "interleaved": schedules.interleaved_1f1b(1, 4, 2),
    "recomputed": schedules.recomputed(schedules.gpipe(1, 4)),
}
# layers with custom vjps
CUSTOM = {"strided", "defaults", "object", "method", "itself", "constants"}
# What the bugs needed: a workspace that another layer overwrites before the arrays are
# written, and W behind others.
QUICK = ("gpipe", "zb-h1")


def squares(outputs, targets):
    return (outputs * outputs).mean()


@cache
def gradients(name, table_name, is_offloaded, fully_sharded):
    """Return the loss and the whole gradients by name, of all ranks."""
    layers, inputs = LAYERS[name]
    kept = TABLES[table_name]
    table = schedules.offloaded(kept, 1) if is_offloaded else kept

    def step(group):
        grid = (
            Grid(group, pipeline=table.num_ranks, data=2, fully_sharded=True)
            if fully_sharded
            else group
        )
        pipeline = Pipeline(
            nn.Sequential(*layers()), grid, loss=squares, schedule=table
        )
        loss = float(pipeline.step(inputs, inputs))
        found = {}
        for key, parameter in pipeline.named_parameters():
            gradient = parameter.grad
            found[key] = (
                None if gradient is None else np.array(parameter.joined(gradient))
            )
        return loss, found

    results = spawn(step, table.num_ranks * (2 if fully_sharded else 1))
    return results[0][0], {
        key: gradient for _, found in results for key, gradient in found.items()
    }


PAIRS = [
    (name, table)
    for name, (layers, _) in LAYERS.items()
    for table in TABLES
    if TABLES[table].num_stages <= len(layers())
]
QUICK_PAIRS = [pair for pair in PAIRS if pair[1] in QUICK]
CELLS = [*covering(QUICK_PAIRS, [False, True], strength=1)]
CELLS += [
    slowly(pair, either)
    for pair in PAIRS
    if pair not in QUICK_PAIRS
    for either in (False, True)
]


@pytest.mark.parametrize(("pair", "fully_sharded"), CELLS)
def test_gradients_have_the_bits_of_a_step_that_keeps_everything(pair, fully_sharded):
    name, table = pair
    loss, found = gradients(name, table, True, fully_sharded)
    expected, gradient_of = gradients(name, table, False, fully_sharded)
    assert loss == expected
    for key, gradient in gradient_of.items():
        assert (gradient is None and found[key] is None) or same_bits(
            found[key], gradient
        ), key


@pytest.mark.parametrize(
    ("name", "table"),
    [pair if pair in QUICK_PAIRS[::3] else slowly(*pair) for pair in PAIRS],
)
def test_fully_sharded_ones_are_those_of_plain_layers(name, table):
    _, found = gradients(name, table, False, True)
    for key, gradient in gradients(name, table, False, False)[1].items():
        assert found[key] is gradient is None or np.allclose(
            found[key], gradient, rtol=1e-12, atol=1e-12
        ), key


@pytest.mark.parametrize("schedule", ["1f1b", "zb-h1"])
def test_w_finds_the_values_of_parameters_with_another_array_module(schedule):
    """The story: views of the workspace were known among NumPy's arrays alone, and W
    computed with another layer.
    """

    def layers():
        return [
            linear(),
            Of(lambda own, x: x @ (own.a * own.b)),
            Of(lambda own, x: x @ (own.a.T @ own.b)),
            linear(),
        ]

    def step(group, fully_sharded, device):
        grid = Grid(group, data=2, fully_sharded=fully_sharded)
        options = {"schedule": schedule, "num_microbatches": 2, "device": device}
        pipeline = Pipeline(nn.Sequential(*layers()), grid, loss=squares, **options)
        pipeline.step(X, X)
        return {
            name: np.asarray(p.joined(p.grad))
            for name, p in pipeline.named_parameters()
        }

    plain = spawn(lambda group: step(group, False, "cpu"), 2)[0]
    for found in spawn(lambda group: step(group, True, array_api_strict), 2):
        for name, gradient in plain.items():
            np.testing.assert_allclose(found[name], gradient, rtol=1e-12)


# -- what is taken out -----------------------------------------------------------------


def graph_of(layer, inputs):
    """Return a layer with values, the result for some inputs, and the arrays of the
    model.
    """
    model = nn.Sequential(layer).initialise(0)
    x = Tensor(np.array(inputs), requires_grad=True)
    return model, x, model(x)


@pytest.mark.parametrize(
    "layer",
    [Of(of_views), Scaled(), nn.Residual(linear(), nn.Tanh(), linear())],
    ids=repr,
)
def test_a_model_keeps_its_arrays_and_loses_no_memory_to_a_graph_that_is_away(layer):
    model, x, y = graph_of(layer, SEQUENCES[0])
    before = {id(array): array.copy() for array in persistent_arrays(model)}
    with ThreadPoolExecutor(1) as threads:
        parked = Parked([y.node], [*persistent_arrays(model), x.data], threads)
        parked.read()
        again = model(Tensor(x.data))  # while the graph is away
        parked.put_back()
    assert same_bits(again.data, y.data)
    assert {id(array) for array in persistent_arrays(model)} == before.keys()
    assert all(
        same_bits(array, before[id(array)]) for array in persistent_arrays(model)
    )


@pytest.mark.parametrize("name", sorted(LAYERS.keys() - CUSTOM))
def test_nothing_of_an_operation_stays(name):
    layers, inputs = LAYERS[name]
    model = nn.Sequential(*layers()).initialise(0)
    x = Tensor(np.array(inputs))
    y = model(x)
    with ThreadPoolExecutor(1) as threads:
        kept = [*persistent_arrays(model), x.data]
        before = held_bytes([y.node], kept)
        parked = Parked([y.node], kept, threads)
        assert held_bytes([y.node], kept) == 0 < before <= parked.num_bytes
        parked.read()
        parked.put_back()
        assert held_bytes([y.node], kept) == before


def test_arrays_that_are_away_are_freed():
    """A linear layer holds the rows of its input, relu its result."""
    inner = nn.Linear(6, 6, dtype=np.float64).initialise(0)
    x = Tensor(np.ones((4, 6)), requires_grad=True)
    rows = x * 2.0
    result = inner(rows).relu()
    y = inner(result)
    alive = [ref(buffer_of(tensor.data)) for tensor in (rows, result)]
    del rows, result
    with ThreadPoolExecutor(1) as threads:
        parked = Parked([y.node], persistent_arrays(inner), threads)
        parked._done.result()
        # and the factor
        assert [array() for array in alive] == [
            None,
            None,
        ] and parked.num_bytes == 2 * 4 * 6 * 8 + 8
        parked.read()
        parked.put_back()
    y.backward(np.ones((4, 6)))
    twin = Tensor(np.ones((4, 6)), requires_grad=True)
    inner(inner(twin * 2.0).relu()).backward(np.ones((4, 6)))
    assert same_bits(x.grad, twin.grad)


def test_so_is_the_input_of_what_will_be_computed_again():
    inner = nn.Sequential(nn.Linear(6, 6, dtype=np.float64), nn.Tanh()).initialise(0)
    x = Tensor(np.arange(24.0).reshape(4, 6), requires_grad=True)
    rows = x + 1.0
    y = nn.Recompute(inner)(rows)
    alive = ref(rows.data)
    del rows
    with ThreadPoolExecutor(1) as threads:
        parked = Parked([y.node], persistent_arrays(inner), threads)
        parked._done.result()
        assert alive() is None and parked.num_bytes == 4 * 6 * 8
        parked.read()
        parked.put_back()
    y.backward(np.ones((4, 6)))
    twin = Tensor(np.arange(24.0).reshape(4, 6), requires_grad=True)
    inner(twin + 1.0).backward(np.ones((4, 6)))
    assert same_bits(x.grad, twin.grad)


def test_arrays_of_custom_vjps_stay_and_those_of_a_custom_operation_are_away():
    x = Tensor(np.arange(6.0), requires_grad=True)
    by_hand, recorded = np.arange(6.0) + 1, np.arange(6.0) + 2
    vjp = record(x.data * by_hand, (x, lambda g: g * by_hand))
    y = scaled(vjp, recorded)
    with ThreadPoolExecutor(1) as threads:
        parked = Parked([y.node], [], threads)
        assert [array is by_hand for array in arrays_in(saved_by(vjp.node))] == [True]
        assert (
            not [*arrays_in(saved_by(y.node))] and parked.num_bytes == recorded.nbytes
        )
        parked.read()
        parked.put_back()
    y.backward(np.ones(6))
    assert same_bits(x.grad, by_hand * recorded)


@op()
def scaled(x, factors):
    return x * factors


scaled.gradients(x=lambda g, factors: g * factors)

"""What is measured of single layers is what stages of them cost, to the byte."""

import tracemalloc

import array_api_strict
import numpy as np
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from minipipe import (
    Microbatches,
    Pipeline,
    measure_layers,
    nn,
    schedules,
    simulate,
    spawn,
)
from minipipe.errors import (
    ArgumentError,
    MicrobatchError,
    MinipipeError,
    ModelError,
    PartitionError,
)
from tests.pipeline.small_pipelines import mlp
from tests.strategies import Fork, batch, examples, stacks


def measured(model, inputs, targets, **options):
    return measure_layers(model, inputs, targets, nn.MSELoss(), repeats=1, **options)


@st.composite
def divided_stacks(draw):
    """Draw a model, its batch and a partition of up to 4 stages."""
    model, width = draw(stacks(min_layers=4))
    num_layers = len(model)
    num_stages = draw(st.integers(1, 4))
    ends = [
        0,
        *sorted(draw(st.permutations(range(1, num_layers)))[: num_stages - 1]),
        num_layers,
    ]
    return (
        model,
        batch(5, width),
        [range(start, end) for start, end in zip(ends, ends[1:])],
    )


def of_a_pipeline(model, inputs, targets, partition, **options):
    schedule = schedules.gpipe(len(partition), 1)

    def measure(group):
        pipeline = Pipeline(
            model,
            group,
            loss=nn.MSELoss(),
            schedule=schedule,
            partition=partition,
            **options,
        )
        return pipeline.measure_memory(inputs, targets)

    return spawn(measure, len(partition))[0]


def held(costs):
    return costs.activation, costs.weight_activation, costs.transient_activation


@examples(150)
@given(divided_stacks())
def test_layers_measured_one_by_one_give_the_bytes_of_every_stage(drawn):
    model, (inputs, targets), partition = drawn
    layers = measured(model, inputs, targets, num_microbatches=1)
    assert held(layers.costs(partition)) == of_a_pipeline(
        model, inputs, targets, partition
    )


@examples(100)
@given(divided_stacks())
def test_and_of_every_stage_that_is_recomputed(drawn):
    model, (inputs, targets), partition = drawn
    # a stage that hands on its input holds less, a packed gradient may take more
    hands_on = (nn.Identity, Fork)
    assume(not any(isinstance(layer, hands_on) for layer in model))
    layers = measured(model, inputs, targets, num_microbatches=1)
    recomputed = layers.costs(partition, recompute=True)
    assert held(recomputed) == of_a_pipeline(
        model, inputs, targets, partition, recompute=True
    )


def test_neighbours_on_one_rank_need_no_message_and_hold_no_packed_one():
    model = nn.Sequential(nn.Linear(4, 4), Fork(tuple), nn.Identity(), nn.Identity())
    layers = measure_layers(model, np.ones((5, 4)), repeats=1, num_microbatches=1)
    parts = [range(i, i + 1) for i in range(4)]
    apart, together = layers.costs(parts), layers.costs(parts, placement=[0, 0, 0, 0])
    # two tensors, whole numbers, and what they are
    assert layers[1].message_size > 2 * 5 * 4 * 4
    assert apart.message_size == together.message_size
    assert all(
        a >= b for a, b in zip(apart.weight_activation, together.weight_activation)
    )


def test_the_batch_does_not_count_as_far_as_it_comes_without_a_message():
    """The story: a stage behind an Identity on the same rank was said to hold its
    input, which was the batch itself.
    """
    model = nn.Sequential(nn.Identity(), nn.Linear(4, 2))
    layers = measure_layers(model, np.ones((5, 4)), repeats=1, num_microbatches=1)
    parts = [range(1), range(1, 2)]
    assert layers.costs(parts, placement=[0, 0]).activation == (0, 0)
    # in a message that says that nobody wants a gradient
    assert layers.costs(parts).activation[1] > 5 * 4 * 4


def test_a_layer_has_its_shapes_bytes():
    samples, f32 = 10, 4
    model = nn.Sequential(nn.Linear(8, 6), nn.Tanh(), nn.Linear(6, 2))
    layers = measured(model, np.ones((80, 8)), np.ones((80, 2)), num_microbatches=8)
    assert [costs.layer for costs in layers] == [
        "Linear(8, 6)",
        "Tanh()",
        "Linear(6, 2)",
    ]
    assert [costs.message_size for costs in layers] == [
        samples * n * f32 for n in (6, 6, 2)
    ]
    assert [costs.activation for costs in layers] == [
        0,
        samples * 6 * f32,
        samples * 6 * f32,
    ]  # the batch is not counted
    assert [costs.weight_activation for costs in layers] == [
        samples * 6 * f32,
        0,
        samples * (6 + 2) * f32,
    ]
    assert [costs.num_parameters for costs in layers] == [54, 0, 14]
    assert [costs.parameter_bytes for costs in layers] == [216, 0, 56]
    assert (
        all(costs.returns_gradient for costs in layers)
        and layers.loss.layer == "MSELoss"
    )
    assert not layers.loss.returns_gradient and layers.loss.message_size == 0
    assert (
        layers.loss.activation == samples * 2 * f32 and layers.loss.backward_weight >= 0
    )
    assert all(min(costs[1:4]) > 0 for costs in layers)
    assert layers.times[2] == layers[2].time + layers.loss.time


def test_bytes_of_single_layers_do_not_simply_add_up():
    """The mutant: a sum counts twice what a Tanh and the Linear behind it hold
    together.
    """
    layers = measured(mlp(), np.ones((8, 4)), np.ones((8, 2)), num_microbatches=1)
    whole = layers.costs([range(len(layers))]).activation[0]
    assert whole < sum(costs.activation for costs in (*layers, layers.loss))
    assert (
        whole
        == of_a_pipeline(
            mlp(), np.ones((8, 4)), np.ones((8, 2)), [range(len(layers))]
        ).activation[0]
    )


def test_another_array_module_holds_the_same_bytes():
    """For matrices: only NumPy's arrays tell that they are views."""
    ours, others = (
        measured(mlp(), np.ones((8, 4)), np.ones((8, 2)), device=device)
        for device in ("cpu", array_api_strict)
    )
    assert [costs[4:] for costs in ours] == [costs[4:] for costs in others]
    assert all(min(costs[1:4]) > 0 for costs in others)


def test_no_gradient_comes_back_to_what_is_frozen_and_nothing_is_held_there():
    model = nn.Sequential(
        nn.Linear(8, 6).freeze(), nn.Tanh(), nn.Linear(6, 4), nn.Linear(4, 4).freeze()
    )
    layers = measured(model, np.ones((8, 8)), np.ones((8, 4)), num_microbatches=1)
    assert [costs.returns_gradient for costs in layers] == [False, False, True, True]
    assert [costs.backward_input > 0 for costs in layers] == [False, False, True, True]
    assert [costs.backward_weight > 0 for costs in layers] == [
        False,
        False,
        True,
        False,
    ]
    assert [costs.activation for costs in layers][:2] == [0, 0]


def test_without_a_loss_backward_begins_with_ones():
    layers = measure_layers(mlp(), np.ones((8, 4)), repeats=1)
    assert layers.loss is None and all(costs.backward_input > 0 for costs in layers)
    assert layers.times == [costs.time for costs in layers]


def test_bundles_microbatches_and_dropout_are_measured_as_a_step_takes_them():
    inputs, targets = batch(6, 4)
    model = nn.Sequential(Fork(dict), _First(), nn.Dropout(0.5), nn.Linear(4, 2))
    assert len(measured(model, inputs, targets, num_microbatches=3)) == 4
    cut = measured(
        model,
        Microbatches([inputs[:4], inputs[4:]]),
        Microbatches([targets[:4], targets[4:]]),
        num_microbatches=2,
    )
    assert cut[3].message_size == 4 * 2 * 4  # of the first one


class _First(nn.Module):
    def forward(self, bundle):
        return bundle["x"]


def test_one_layer_at_a_time_has_values_and_the_model_stays_a_description():
    """So a model can be measured that is larger than this process can hold."""
    # 6 MiB of parameters
    model = nn.Sequential(*(nn.Linear(256, 256) for _ in range(24)))
    inputs = np.ones((8, 256), np.float32)
    tracemalloc.start()
    measured(model, inputs, inputs, num_microbatches=1)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert not any(parameter.is_filled for parameter in model.parameters())
    assert (
        peak < 2 * 2**20 < sum(parameter.nbytes for parameter in model.parameters()) / 2
    )


def test_values_that_the_model_has_stay_as_they_are():
    model = mlp().initialise(3)
    before = model.state_dict()
    measured(model, np.ones((8, 4)), np.ones((8, 2)))
    assert all(
        np.array_equal(values, before[name])
        for name, values in model.state_dict().items()
    )
    assert all(parameter.grad is None for parameter in model.parameters())


def test_the_costs_of_a_partition_simulate():
    layers = measured(mlp(), np.ones((16, 4)), np.ones((16, 2)))
    plan = [range(3), range(3, len(layers))]
    timeline = simulate(schedules.zb_h1(2, 8), layers.costs(plan))
    assert timeline.unit == "s" and timeline.memory_unit == "bytes"
    work = 8 * sum(layers.times)
    assert sum(
        span.end - span.start for row in timeline.spans for span in row
    ) == pytest.approx(work)


def test_it_prints_as_a_table_with_a_row_for_each_layer_and_the_loss():
    layers = measured(mlp(), np.ones((16, 4)), np.ones((16, 2)))
    lines = str(layers).splitlines()
    assert (
        len(lines) == len(layers) + 2
        and "F ms" in lines[0]
        and lines[-1].split()[0] == "MSELoss"
    )
    assert layers._repr_html_().count("<tr>") == len(lines)
    assert repr(layers).startswith(
        f"<MeasuredLayers: {len(layers)} layers, "
    ) and layers[1:3] == [layers[1], layers[2]]


@pytest.mark.parametrize(
    ("call", "error", "code", "words"),
    [
        (
            lambda x: measure_layers(nn.Linear(6, 2), x),
            ModelError,
            "type",
            "this model is Linear",
        ),
        (
            lambda x: measure_layers(mlp(), x, x, nn.MSELoss),
            ModelError,
            "loss",
            "such as nn.MSELoss",
        ),
        (
            lambda x: measure_layers(mlp(), x, x),
            ArgumentError,
            "value",
            "has targets, but no loss",
        ),
        (
            lambda x: measure_layers(mlp(), x, loss=nn.MSELoss()),
            ArgumentError,
            "value",
            "has a loss, but no targets",
        ),
        (
            lambda x: measure_layers(mlp(), x, repeats=0),
            ArgumentError,
            "value",
            "repeats is 0; expected a whole number",
        ),
        (
            lambda x: measure_layers(mlp(), x, num_microbatches=9),
            MicrobatchError,
            "too-few",
            "8 samples",
        ),
        (
            lambda x: measured(mlp(), x, x[:7, :2]),
            MicrobatchError,
            "wrong-number",
            "8 inputs, but 7 targets",
        ),
        (
            lambda x: measure_layers(mlp(), x, repeats=1).costs([range(1)]),
            PartitionError,
            "value",
            "does not divide layers",
        ),
    ],
)
def test_what_cannot_be_measured_is_refused(call, error, code, words):
    with pytest.raises(error, match=words) as caught:
        call(np.ones((8, 4), np.float32))
    assert caught.value.code == code and isinstance(caught.value, MinipipeError)

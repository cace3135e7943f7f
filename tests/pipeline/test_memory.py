"""What a pipeline holds, in bytes: measured on one microbatch, it predicts every
schedule's peak exactly.
"""

import gc
import weakref

import array_api_strict
import numpy as np
import pytest
from hypothesis import given

from minipipe import Costs, Grid, Pipeline, nn, simulate, spawn
from minipipe.comm import OneRankGroup
from tests.execution.offloaded_layers import Of, Scaled, X, linear, of_views
from tests.launch import slowly
from tests.strategies import NAMES, build, examples, split_backward, stacks, v_shaped

SAMPLES = 4  # of each microbatch


def transformer():
    embedding = nn.Embedding(11, 8)
    blocks = [nn.TransformerBlock(8, 2, is_causal=True, dropout=0.1) for _ in range(6)]
    return nn.Sequential(
        embedding,
        nn.PositionalEmbedding(5, 8),
        *blocks,
        nn.LayerNorm(8),
        nn.Unembedding(embedding),
    )


def measured_and_predicted(model, loss, inputs, targets, schedule, **options):
    """Return the peak of each rank in one step, and what the simulator says, given one
    microbatch's memory.
    """

    def measure(group):
        pipeline = Pipeline(model, group, loss=loss, schedule=schedule, **options)
        memory = pipeline.measure_memory(inputs, targets)
        pipeline.measures_memory = True
        pipeline.step(inputs, targets)
        costs = Costs(**memory._asdict(), memory_unit="bytes")
        return pipeline.timeline(), simulate(schedule, costs), memory

    return spawn(measure, schedule.num_ranks)[-1]


@pytest.mark.parametrize(
    ("num_ranks", "recompute"),
    [(3, False), slowly(3, True), slowly(1, False), slowly(1, True)],
)
@pytest.mark.parametrize("name", [*map(slowly, [*NAMES, "v-shaped"]), "split"])
def test_the_peak_of_every_schedule_is_predicted_to_the_byte(
    name, num_ranks, recompute
):
    if name == "v-shaped":
        schedule = v_shaped(num_ranks, 6)
    elif name == "split":
        schedule = split_backward(build("gpipe", num_ranks, 6), delay=3)
    else:
        schedule = build(name, num_ranks, 6)
    ids = np.random.default_rng(0).integers(
        0, 11, (SAMPLES * schedule.num_microbatches, 5)
    )
    measured, predicted, memory = measured_and_predicted(
        transformer(), nn.CrossEntropyLoss(), ids, ids, schedule, recompute=recompute
    )
    assert measured.peak_memory == predicted.peak_memory
    assert measured.memory == predicted.memory
    assert recompute == any(memory.transient_activation)
    if recompute and name != "forward-only":
        assert measured.memory_during == predicted.memory_during
    assert measured.memory_unit == predicted.memory_unit == "bytes"
    # embeddings hold nothing but ids, which are the batch
    assert sum(nbytes == 0 for nbytes in memory.activation) <= 2


@pytest.mark.parametrize(
    "grid",
    [None, {"pipeline": 2, "data": 2, "fully_sharded": True}],
    ids=["plain", "sharded"],
)
def test_so_it_is_where_layers_keep_arrays_that_all_microbatches_use(grid):
    def held(group):
        model = nn.Sequential(linear(), Scaled(), linear(), Of(of_views))
        ranks = group if grid is None else Grid(group, **grid)
        pipeline = Pipeline(
            model, ranks, loss=nn.MSELoss(), schedule=build("gpipe", 2, 2)
        )
        memory = pipeline.measure_memory(X, X)
        pipeline.measures_memory = True
        pipeline.step(X, X)
        costs = Costs(**memory._asdict(), memory_unit="bytes")
        return pipeline.timeline().memory, simulate(pipeline.schedule, costs).memory

    for measured, predicted in spawn(held, 2 if grid is None else 4):
        assert measured == predicted


def test_so_it_is_where_stages_are_recomputed():
    ids = np.random.default_rng(0).integers(0, 11, (SAMPLES * 6, 5))
    measured, predicted, _ = measured_and_predicted(
        transformer(),
        nn.CrossEntropyLoss(),
        ids,
        ids,
        build("zb-h1", 3, 6),
        recompute=True,
    )
    assert measured.peak_memory == predicted.peak_memory


@examples(40)
@given(stacks(min_layers=3, max_layers=8))
def test_so_it_is_for_any_model(stack):
    model, width = stack
    schedule = build("zb-h1", 3, 4)
    generator = np.random.default_rng(0)
    inputs = generator.standard_normal((4 * SAMPLES, width)).astype(np.float32)
    targets = generator.standard_normal((4 * SAMPLES, 2)).astype(np.float32)
    measured, predicted, _ = measured_and_predicted(
        model, nn.MSELoss(), inputs, targets, schedule, seed=1
    )
    assert measured.peak_memory == predicted.peak_memory


def test_eight_linears_hold_8_units_until_i_15_until_w_and_0_after():
    layers = [nn.Linear(8, 8, bias=False) for _ in range(8)]
    unit = SAMPLES * 8 * 4
    inputs = np.ones((SAMPLES * 2, 8), np.float32)
    # the batch itself is not counted: look at stage 1
    model = nn.Sequential(nn.Linear(8, 8), *layers, nn.Linear(8, 8))
    schedule = build("zb-h1", 3, 2)
    partition = [range(1), range(1, 9), range(9, 10)]
    *_, memory = measured_and_predicted(
        model, nn.MSELoss(), inputs, inputs, schedule, partition=partition
    )
    # with the gradient received
    assert (memory.activation[1], memory.weight_activation[1]) == (8 * unit, 16 * unit)


def test_a_stage_that_recomputes_holds_what_it_keeps_otherwise_while_its_backward_runs():
    """The story: the prediction said 2,048 bytes where a backward held 40,000, for it
    counted only between actions.
    """

    def peaks(**options):
        model = nn.Sequential(*(nn.Linear(8, 8, bias=False) for _ in range(8)))
        inputs = np.ones((SAMPLES * 2, 8), np.float32)
        schedule = build("1f1b", 2, 2)
        partition = [range(1), range(1, 8)]
        return measured_and_predicted(
            model,
            nn.MSELoss(),
            inputs,
            inputs,
            schedule,
            partition=partition,
            **options,
        )

    unit = SAMPLES * 8 * 4
    *_, kept = peaks()
    measured, predicted, recomputed = peaks(recompute=True)
    difference = unit  # of prediction and target, for the loss
    assert kept.activation[
        1
    ] == 7 * unit + difference and kept.transient_activation == (0, 0)
    assert recomputed.activation[1] == unit + difference
    # The inputs of all layers but the first; the difference has done its part by then.
    assert recomputed.transient_activation[1] == 6 * unit - difference
    assert measured.peak_memory[1] == predicted.peak_memory[1] == 7 * unit
    assert measured.memory_during[1] == predicted.memory_during[1]


def test_a_recomputation_inside_another_is_counted():
    def transient(model):
        inputs = np.ones((SAMPLES, 8), np.float32)

        def measure(group):
            return Pipeline(
                model, group, loss=nn.MSELoss(), num_microbatches=1
            ).measure_memory(inputs, inputs)

        return spawn(measure, 1)[0].transient_activation[0]

    def layers():
        return [nn.Linear(8, 8, bias=False) for _ in range(6)]

    once = transient(
        nn.Sequential(nn.Linear(8, 8), nn.Recompute(nn.Sequential(*layers())))
    )
    inner = nn.Recompute(nn.Sequential(*layers()))
    twice = transient(
        nn.Sequential(
            nn.Linear(8, 8), nn.Recompute(nn.Sequential(nn.Tanh(), inner, nn.Tanh()))
        )
    )
    assert once > 0 and twice > 0


def test_recompute_holds_the_input_of_each_block_alone():
    def after_forward(wrap):
        blocks = [wrap(nn.TransformerBlock(8, 2)) for _ in range(4)]
        inputs = np.ones((2 * SAMPLES, 5, 8), np.float32)
        schedule = build("1f1b", 2, 2)
        partition = [range(1), range(1, 5)]
        *_, memory = measured_and_predicted(
            nn.Sequential(nn.Linear(8, 8), *blocks),
            nn.MSELoss(),
            inputs,
            inputs,
            schedule,
            partition=partition,
        )
        return memory.activation[1]

    unit = SAMPLES * 5 * 8 * 4
    difference = unit  # that of prediction and target, for the loss
    assert after_forward(nn.Recompute) == 4 * unit + difference
    assert after_forward(lambda block: block) > 40 * unit


def test_measuring_leaves_no_gradients_and_changes_no_step():
    model = nn.Sequential(nn.Linear(4, 4), nn.Dropout(0.5), nn.Linear(4, 2))
    inputs, targets = np.ones((8, 4), np.float32), np.zeros((8, 2), np.float32)

    def losses(group, measures):
        pipeline = Pipeline(model, group, loss=nn.MSELoss(), num_microbatches=4)
        first = pipeline.step(inputs, targets)
        if measures:
            pipeline.measure_memory(inputs, targets)
            assert all(parameter.grad is None for parameter in pipeline.parameters())
        return first, pipeline.step(inputs, targets)

    assert spawn(lambda group: losses(group, True), 2) == spawn(
        lambda group: losses(group, False), 2
    )


def test_memory_can_be_measured_with_arrays_that_do_not_tell_their_bytes():
    model = nn.Sequential(nn.Linear(6, 6), nn.Tanh(), nn.Linear(6, 3))
    inputs, targets = np.ones((8, 6), np.float32), np.ones((8, 3), np.float32)

    def measure(device):
        def on_rank(group):
            pipeline = Pipeline(
                model, group, loss=nn.MSELoss(), num_microbatches=2, device=device
            )
            return pipeline.measure_memory(inputs, targets)

        return spawn(on_rank, 2)[0]

    # They do not tell what they are views of either, so it may be more than there is.
    for known, unknown in zip(measure("cpu"), measure(array_api_strict)):
        # nothing is recomputed
        assert all(0 < a <= b for a, b in zip(known, unknown)) or not any(
            (*known, *unknown)
        )


def test_nothing_of_a_step_is_kept_once_it_is_over():
    layers = nn.Sequential(nn.Identity(), nn.Identity())
    pipeline = Pipeline(
        layers,
        OneRankGroup(),
        num_microbatches=2,
        loss=nn.MSELoss(),
        inputs_require_grad=True,
    )
    x = np.ones((4, 1))
    for _ in range(3):
        loss = pipeline.step(x, x, outputs=True)
    outputs = weakref.ref(loss.outputs)
    del loss
    gc.collect()
    assert outputs() is None
    assert all(not record.input_gradients for record in pipeline._steps.records)

"""What a step leaves behind: messages as they went, memory after each action, costs
that predict.
"""

import sys

import numpy as np
import pytest

from minipipe import Costs, Pipeline, nn, schedules, simulate, spawn
from minipipe.comm import OneRankGroup
from minipipe.errors import MicrobatchError
from minipipe.render import perfetto_trace
from tests.launch import mpirun, needs_mpi, slowly

WIDTHS = [6, 16, 5, 9, 2, 3, 4, 8, 2]
# seconds, at most: clocks of processes are aligned as well as a loaded machine allows
CLOCKS_APART = 1e-3
NAMES = ["1f1b", "gpipe", "interleaved-1f1b", "zb-v", "zb-h1"]


def make_pipeline(group, schedule, num_microbatches=4, **options):
    model = nn.Sequential(*(nn.Linear(a, b) for a, b in zip(WIDTHS, WIDTHS[1:])))
    return Pipeline(
        model,
        group,
        loss=nn.MSELoss(),
        schedule=schedule,
        num_microbatches=num_microbatches,
        seed=1,
        **options,
    )


def batch(num_samples=8):
    generator = np.random.default_rng(0)
    return generator.standard_normal((num_samples, 6)), generator.standard_normal(
        (num_samples, 2)
    )


def step(group, name):
    pipeline = make_pipeline(group, name)
    pipeline.measures_memory = True
    pipeline.step(*batch())
    widths = [WIDTHS[layers.stop] for layers in pipeline.partition]
    memory = pipeline.measure_memory(*batch())
    return pipeline.timeline(), pipeline.schedule, widths, memory


def check_measured(timeline, schedule, widths, memory):
    """The laws of a measured timeline."""
    predicted = simulate(schedule, Costs(**memory._asdict(), memory_unit="bytes"))
    assert timeline.is_measured and not predicted.is_measured
    assert timeline.memory == predicted.memory
    assert timeline.held_activations == predicted.held_activations

    def way(message):
        return message.value, message.used_by, message.source, message.destination

    assert sorted(map(way, timeline.messages)) == sorted(map(way, predicted.messages))
    span_of = {span.action: span for row in timeline.spans for span in row}
    for message in timeline.messages:
        assert span_of[message.value].end <= message.sent
        assert message.sent <= message.arrived + CLOCKS_APART
        assert message.arrived <= span_of[message.used_by].start
        boundary = min(message.value.stage, message.used_by.stage)
        assert message.size == 2 * widths[boundary] * 4  # two samples, float32


@pytest.mark.parametrize("name", NAMES)
def test_messages_go_between_the_spans_that_make_and_use_them(name):
    for found in spawn(lambda group: step(group, name), num_ranks=2):
        check_measured(*found)


@needs_mpi
@pytest.mark.slow
def test_so_they_do_between_processes():
    done = mpirun(2, __file__)
    assert done.code == 0, done.err
    assert done.out.split() == NAMES


def test_a_rank_alone_sends_nothing():
    timeline, schedule, widths, memory = step(OneRankGroup(), "1f1b")
    assert timeline.messages == ()
    check_measured(timeline, schedule, widths, memory)


def test_memory_that_one_rank_did_not_measure_is_known_of_none():
    """The story: with the setting on one rank only, the ranks disagreed, and the
    drawing of one failed.
    """

    def train(group):
        pipeline = make_pipeline(group, "1f1b")
        pipeline.measures_memory = group.rank == 0
        pipeline.step(*batch())
        return pipeline.timeline()

    first, second = spawn(train, num_ranks=2)
    assert first == second and (first.memory, first.peak_memory) == (None, None)
    assert "1f1b, measured" in perfetto_trace(first)


# -- costs -----------------------------------------------------------------------------


def test_costs_are_measured_in_full():
    def train(group):
        return make_pipeline(group, "1f1b").measure_costs(*batch(), num_steps=2)

    costs, other = spawn(train, num_ranks=2)
    assert costs == other
    for times in (costs.forward, costs.backward_input, costs.backward_weight):
        assert len(times) == 2 and all(time > 0 for time in times)
    assert (
        costs.latency > 0
        and costs.overhead > 0
        and costs.message_size == [2 * 5 * 4, 0]
    )
    assert (costs.unit, costs.memory_unit) == ("s", "bytes")
    # 4 linears: their inputs are held from F until I, and the gradients of their
    # outputs from I until W.
    assert all(
        0 < held < 1000 for held in (*costs.activation, *costs.weight_activation)
    )
    predicted = simulate(schedules.zb_h1(2, 4), costs)
    assert (
        predicted.makespan > sum(costs.forward)
        and predicted.peak_memory[0] > costs.activation[0]
    )
    assert costs.gradient_size == [
        sum(4 * b * (a + 1) for a, b in zip(w, w[1:])) for w in (WIDTHS[:3], WIDTHS[2:])
    ]


@pytest.mark.parametrize("name", ["1f1b", slowly("zb-v")])
def test_costs_of_replicas_say_what_their_sums_take(name):
    def train(group):
        pipeline = make_pipeline(group, name, replicas=2)
        costs = pipeline.measure_costs(*batch(), num_steps=2)
        pipeline.step(*batch())
        gradients = {n: p.grad for n, p in pipeline.named_parameters()}
        return costs, pipeline.timeline(), pipeline.schedule, gradients

    costs, timeline, schedule, gradients = spawn(train, num_ranks=4)[0]
    assert sorted((s.actions[0].stage, s.size) for s in timeline.sums) == [
        *enumerate(costs.gradient_size)
    ]
    predicted = simulate(schedule, costs)
    assert [s.ranks for s in predicted.sums] and all(
        s.end > s.begin for s in predicted.sums
    )
    assert gradients and all(gradient is not None for gradient in gradients.values())


def test_measuring_costs_changes_neither_training_nor_its_random_numbers():
    def train(group, measures):
        model = nn.Sequential(nn.Linear(6, 8), nn.Dropout(0.5), nn.Linear(8, 2))
        pipeline = Pipeline(model, group, loss=nn.MSELoss(), num_microbatches=4)
        first = pipeline.step(*batch())
        if measures:
            pipeline.measure_costs(*batch(), num_steps=1)
        return (
            first,
            pipeline.step(*batch()),
            pipeline.state_dict()["0.weight"].tobytes(),
        )

    assert spawn(lambda group: train(group, True), num_ranks=2) == spawn(
        lambda group: train(group, False), num_ranks=2
    )


def test_a_batch_too_small_to_train_with_is_too_small_to_measure_with():
    """The story: fewer samples than microbatches were cut into fewer, and the schedule
    asked for one too many.
    """
    with pytest.raises(
        MicrobatchError, match=r"A batch of 3 samples cannot make 4 microbatches"
    ):
        make_pipeline(OneRankGroup(), "1f1b").measure_costs(*batch(3))


def test_a_pipeline_that_only_goes_forward_is_measured_so():
    costs = make_pipeline(OneRankGroup(), "forward-only").measure_costs(
        *batch(), num_steps=1
    )
    assert costs.forward[0] > 0 and costs.backward_input == costs.backward_weight == [
        0.0
    ]


@pytest.mark.parametrize("num_steps", [0, -1, 1.5])
def test_there_is_at_least_one_step_to_measure(num_steps):
    with pytest.raises(
        ValueError, match=r"num_steps is .*; expected a whole number, at least 1"
    ):
        make_pipeline(OneRankGroup(), "1f1b").measure_costs(
            *batch(), num_steps=num_steps
        )


def main():
    from minipipe import init_process_group

    with init_process_group() as group:
        for name in NAMES:
            check_measured(*step(group, name))
            if group.rank == 0:
                print(name)


if __name__ == "__main__":
    sys.exit(main())

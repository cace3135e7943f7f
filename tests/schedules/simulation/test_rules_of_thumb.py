"""Two rules of thumb as statements: under which costs they hold, and where they end.

"Take four times as many microbatches as stages": then 1F1B is idle for less than a
fifth of the time. "Tensor parallelism inside a host, the pipeline between hosts."
"""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from minipipe import Costs, schedules, simulate
from minipipe.schedules.simulation.paper_scale import A100, Link, Run, predict
from tests.launch import slowly

TIMES = st.floats(0.1, 10)


def idle(num_stages, per_stage, costs, name="1f1b"):
    return simulate(
        schedules.build(name, num_stages, per_stage * num_stages), costs
    ).bubble_fraction


# -- four times as many microbatches as stages -----------------------------------------


@given(st.integers(1, 16), TIMES, TIMES, TIMES)
def test_equal_stages_without_messages_are_idle_for_less_than_a_fifth(
    num_stages, forward, inputs, weights
):
    assert idle(num_stages, 4, Costs(forward, inputs, weights)) < 0.2
    if num_stages >= 4:  # three times as many would not do
        assert idle(num_stages, 3, Costs(forward, inputs, weights)) > 0.2 - 1e-9


@given(st.integers(2, 16), TIMES, TIMES, TIMES)
def test_the_last_stage_may_be_slower_by_little_and_less_in_a_longer_pipeline(
    num_stages, forward, inputs, weights
):
    """With m microbatches and a stage of x units instead of one the step takes m x + p
    - 1 units.
    """
    most = 0.8 * (num_stages - 1) / (0.8 * num_stages - 1)
    for slowest, holds in ((most - 1e-3, True), (most + 1e-3, False)):
        work = [1.0] * (num_stages - 1) + [slowest]
        costs = Costs(
            *([time * part for part in work] for time in (forward, inputs, weights))
        )
        assert (idle(num_stages, 4, costs) < 0.2) is holds


@pytest.mark.parametrize(
    ("num_stages", "most"), [(2, 0.375), (4, 0.107), (8, 0.044), (16, 0.020)]
)
def test_messages_may_take_little_and_less_in_a_longer_pipeline(num_stages, most):
    """In units of F = I = W."""
    assert (
        idle(num_stages, 4, Costs(latency=most - 1e-3))
        < 0.2
        < idle(num_stages, 4, Costs(latency=most + 1e-3))
    )


@given(st.sampled_from([2, 4, 8]), TIMES, TIMES, TIMES)
def test_with_two_chunks_on_a_rank_twice_as_many_are_enough(
    num_stages, forward, inputs, weights
):
    assert (
        idle(num_stages, 2, Costs(forward, inputs, weights), "interleaved-1f1b") < 0.2
    )


# -- tensor inside a host, the pipeline between hosts ----------------------------------


def seconds(width, tensor, ratio, is_swapped=False, microbatches=64):
    """Return the time of 64 layers on 64 GPUs in hosts of eight, with links between
    them slower by a ratio.
    """
    run = Run(
        "",
        "",
        64,
        width,
        64,
        tensor,
        64 // tensor,
        1,
        64,
        microbatches,
        1,
        "full",
        "nothing",
        "",
    )
    between = Link(20e-6, A100.node.bandwidth / ratio)
    node = (
        between._replace(latency=A100.node.latency)
        if is_swapped or tensor > 8
        else A100.node
    )
    return predict(
        run, A100._replace(node=node, network=A100.node if is_swapped else between)
    )


@pytest.mark.parametrize("width", [1024, 4096, 16384])
def test_sums_between_hosts_cost_more_than_messages_wherever_links_between_hosts_are_slower(
    width,
):
    worse = [
        seconds(width, 8, ratio, True) / seconds(width, 8, ratio)
        for ratio in (1, 1.5, 2, 5, 10, 30)
    ]
    # with equal links it does not matter
    assert worse[0] == pytest.approx(1, abs=0.02) and worse == sorted(worse)
    assert worse[1] < 1.15 and worse[4] > 1.7  # A100: 225 GB/s inside, 22.5 between


@pytest.mark.parametrize(("width", "best"), [slowly(1024, 4), (4096, 4), (16384, 8)])
def test_a_layer_stays_in_its_host_but_need_not_fill_it(width, best):
    times = {tensor: seconds(width, tensor, 10) for tensor in (1, 2, 4, 8, 16)}
    assert (
        min(times, key=times.get) == best
        and times[8] < 1.1 * times[best]
        and times[16] > 2.5 * times[8]
    )


@pytest.mark.slow
def test_with_many_microbatches_not_even_wide_layers_fill_the_host():
    times = {
        tensor: seconds(16384, tensor, 10, microbatches=256) for tensor in (1, 2, 4, 8)
    }
    assert min(times, key=times.get) == 4 and times[1] > 1.2 * times[4]

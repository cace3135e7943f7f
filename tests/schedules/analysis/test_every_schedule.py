"""Laws of every named schedule, over all sizes up to 8 ranks, 24 microbatches and 4
chunks.
"""

from collections import Counter

import pytest
from hypothesis import event, given
from hypothesis import strategies as st

from minipipe import schedules
from minipipe.core.schedules.action import ActionKind
from minipipe.core.schedules.analysis.lowering import lower
from minipipe.core.schedules.analysis.verifier import verify
from minipipe.core.schedules.analysis.walk import walk
from minipipe.errors import ScheduleError
from minipipe.schedules import theory
from minipipe.schedules.analysis.activations import peak_activations
from minipipe.schedules.analysis.theory import tick_grid
from minipipe.schedules.simulation.costs import Costs
from minipipe.schedules.simulation.simulator import peak_memory, simulate
from tests.strategies import examples, named_schedules

TIMES = st.integers(0, 5)
LAWS = examples(150)


@LAWS
@given(named_schedules())
def test_it_is_legal_and_ends_even_when_every_send_waits_for_its_receive(drawn):
    _, schedule = drawn
    verify(schedule)
    lowered = lower(schedule)
    verify(lowered)  # as it stands: a send and its receive meet
    assert not walk(lowered).blocked
    assert lowered.schedule == schedule


@LAWS
@given(named_schedules())
def test_it_adds_gradients_in_ascending_order_and_is_what_was_asked_for(drawn):
    (name, num_ranks, num_microbatches, _), schedule = drawn
    sizes = schedule.num_ranks, schedule.num_microbatches
    assert (schedule.name, *sizes) == (
        name,
        num_ranks,
        num_microbatches * schedule.num_slices,
    )
    assert schedule.is_reproducible
    held = Counter(
        rank
        for stage in range(schedule.num_stages)
        for rank in schedule.ranks_of(stage)
    )
    replicas = 2 if schedule.has_replicas else 1
    assert held == dict.fromkeys(
        range(num_ranks), replicas * schedule.num_stages // num_ranks
    )


@LAWS
@given(named_schedules(), st.booleans())
def test_it_survives_csv_and_text_with_messages_and_without(drawn, with_messages):
    _, schedule = drawn
    written = lower(schedule) if with_messages else schedule
    if schedule.num_slices == 1:
        assert type(written).from_csv(written.to_csv(), name=written.name) == written
    assert type(written).from_text(written.to_text(), name=written.name) == written


def predicted(formula, *sizes, **options):
    """Return what a formula says, or None where it holds only under other
    conditions.
    """
    try:
        return formula(*sizes, **options)
    except ScheduleError as error:
        assert error.code == "unsupported"
        return None


@examples(400)
@given(named_schedules(), st.integers(1, 5), TIMES, TIMES)
def test_the_formulas_of_time_are_what_the_simulator_finds(
    drawn, forward, backward_input, backward_weight
):
    (name, p, m, v), schedule = drawn
    timeline = simulate(schedule, Costs(forward, backward_input, backward_weight))
    share = {
        "forward": forward * v,
        "backward_input": backward_input * v,
        "backward_weight": backward_weight * v,
    }
    makespan = predicted(theory.makespan, name, p, m, v, **share)
    event(f"{name}: {'no formula' if makespan is None else 'formula'}")
    if makespan is not None:
        assert timeline.makespan == pytest.approx(makespan)
    if makespan is not None:
        assert timeline.bubble_fraction == pytest.approx(
            theory.bubble_fraction(name, p, m, v, **share)
        )
        assert timeline.bubble_over_ideal == pytest.approx(
            theory.bubble_over_ideal(name, p, m, v, **share)
        )
    within = predicted(theory.span_bubble, name, p, m, v, **share)
    if within is not None:
        assert max(map(timeline.idle_within_span, range(p))) == pytest.approx(within)


@examples(300)
@given(named_schedules(), st.integers(0, 4), st.integers(0, 4))
def test_the_formulas_of_memory_are_what_the_simulator_finds(
    drawn, activation, weight_activation
):
    (name, p, m, v), schedule = drawn
    pairs = predicted(theory.peak_activations, name, p, m, v)
    event(f"{name}: {'no formula' if pairs is None else 'formula'}")
    if pairs is not None:
        assert peak_activations(schedule) == pairs
    held = {"activation": activation, "weight_activation": weight_activation}
    memory = predicted(theory.peak_memory, name, p, m, v, **held)
    if memory is not None:
        assert (
            peak_memory(schedule, Costs(**held))
            == memory
            == simulate(schedule, Costs(**held)).peak_memory
        )


@LAWS
@given(named_schedules())
def test_its_tick_grid_is_its_timeline_when_everything_takes_one_tick(drawn):
    _, schedule = drawn
    n = schedule.num_slices
    costs = (
        Costs(n, n, 0, update=1) if ActionKind.BACKWARD in schedule.kinds else Costs()
    )
    if len({ActionKind.BACKWARD, ActionKind.BACKWARD_WEIGHT} & schedule.kinds) == 2:
        return  # B and I cannot both take one unit
    timeline = simulate(schedule, costs)
    drawn_from_times = [[None] * int(timeline.makespan) for _ in schedule.actions]
    for row, spans in zip(drawn_from_times, timeline.spans):
        for action, start, _ in spans:
            row[int(start)] = action
    assert tick_grid(schedule) == tuple(map(tuple, drawn_from_times))


@pytest.mark.parametrize("name", schedules.REGISTRY)
def test_unless_told_it_is_made_for_eight_microbatches(name):
    schedule = schedules.build(name, 4)
    assert (
        schedule.num_microbatches
        == schedules.build(name, 2).num_microbatches
        == 8 * schedule.num_slices
    )
    assert predicted(theory.peak_activations, name, 4, 8) == peak_activations(schedule)

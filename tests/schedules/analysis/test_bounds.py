"""No schedule is below a lower bound, and where the best schedule is known, the bound
says how good it is.
"""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from minipipe import Costs, schedules, simulate
from minipipe.errors import ScheduleError
from minipipe.schedules.analysis.bounds import lower_bound, lower_bounds
from minipipe.schedules.analysis.workload import Objective
from tests.schedules.analysis.brute_force import optimum
from tests.schedules.published import TABLE_5
from tests.strategies import examples, runs

MAKESPAN, SPAN = Objective.MAKESPAN, Objective.SPAN
V = (0, 1, 2, 3, 3, 2, 1, 0)


def bound(costs, placement, m, limit, objective):
    return lower_bound(costs.workload(placement, m, limit), objective).value


# -- where the best schedule is known --------------------------------------------------


@pytest.mark.parametrize(
    ("costs", "placement", "m", "objective", "best", "lower"),
    [
        # By limit: the optimum that an exact search proved, and the bound where it is
        # less.
        (
            Costs(),
            range(4),
            8,
            MAKESPAN,
            {1: 72, 2: 41, 3: 31, 4: 27, 5: 27},
            {2: 39, 3: 30},
        ),
        (Costs(), range(4), 8, SPAN, {4: 27, 5: 26, 6: 25, 7: 24}, {}),
        (Costs(2, 2), range(4), 8, MAKESPAN, {4: 49, 5: 48, 6: 47, 7: 46}, {}),
        (Costs(), V, 8, MAKESPAN, {4: 59, 6: 53, 8: 51}, {}),
        (Costs(), V, 16, MAKESPAN, {4: 107, 6: 101}, {}),
        (Costs(), V, 8, SPAN, {4: 59, 6: 53, 8: 48}, {}),
        (
            Costs(185, 181, 93, 6, weight_activation=0.366),
            range(3),
            6,
            SPAN,
            {3: 3348},
            {},
        ),
        (
            Costs(185, 181, 93, 6, weight_activation=0.366),
            range(4),
            8,
            SPAN,
            {4: 4563},
            {},
        ),
        (
            Costs(185, 181, 93, 6, weight_activation=0.366),
            *(
                range(4),
                8,
                MAKESPAN,
                {2.5: 6714, 3: 5319, 3.5: 5133, 4.5: 4470, 5: 4248},
            ),
            {2.5: 6537, 3: 5238, 3.5: 5042, 4.5: 4465, 5: 4245},
        ),
        (
            Costs(185, 181, 93, 20, weight_activation=0.366),
            range(4),
            8,
            SPAN,
            {4: 4731},
            {},
        ),
    ],
)
def test_the_bound_is_the_known_optimum_or_a_little_less(
    costs, placement, m, objective, best, lower
):
    assert {limit: bound(costs, placement, m, limit, objective) for limit in best} == {
        **best,
        **lower,
    }


@pytest.mark.parametrize(
    ("p", "m", "times", "sizes", "zb_1p", "zb_2p", "lower"), TABLE_5
)
def test_zb_1p_of_the_paper_cannot_be_improved(p, m, times, sizes, zb_1p, zb_2p, lower):
    """The bound has the bubble rate of the published schedule, to the last digit:
    within its memory it is the best.
    """
    heads, width, length = sizes
    held, held_for_weights = 34 * width + 5 * heads * length, 32 * width
    costs = Costs(*times, activation=held, weight_activation=held_for_weights)
    work = m * sum(times[:3])
    print()
    for limit, published, expected in (
        (p * held, zb_1p, zb_1p),
        (2 * p * held, zb_2p, lower),
    ):
        rate = 1 - work / bound(costs, range(p), m, limit, SPAN)
        print(
            f"{p} ranks, {m} microbatches, memory for {limit / held:g}: at least "
            f"{rate:.4f}, published {published}"
        )
        assert rate == pytest.approx(expected, abs=0.00006)
        assert rate <= published + 0.00006


@pytest.mark.slow
def test_v_half_is_the_best_for_its_memory():
    for p in range(1, 9):
        for m in (1, 2, 5, 8, 16):
            schedule = schedules.v_half(p, m)
            limit = max(schedules.peak_activations(schedule))
            assert simulate(schedule).makespan == bound(
                Costs(), schedule.placement, m, limit, MAKESPAN
            ), (p, m)


def test_every_bound_says_why_in_a_sentence():
    bounds = lower_bounds(Costs().workload(range(4), 8, 3), MAKESPAN)
    assert [bound[:2] for bound in bounds] == [
        (30.0, "warm-up and drain"),
        (28.0, "warm-up"),
        (28.0, "drain"),
        (28.0, "round trip"),
        (27.0, "work"),
        (24.0, "memory over time"),
    ]
    assert bounds[0].reason == (
        "Rank 0 computes for 24 and must wait because its memory is full: 4 "
        "before its first I, 2 after its last F."
    )
    assert [b.reason for b in bounds[3:]] == [
        (
            "On rank 0 a microbatch takes 8 from F to I, and memory allows 3 at a "
            "time: 3 rounds."
        ),
        "Rank 3 gets its first input at 3 and computes for 24.",
        "Memory times duration on rank 0 is at least 72, and its memory is 3.",
    ]
    assert all(bound.reason.count(".") == 1 for bound in bounds)


# -- the formulas ----------------------------------------------------------------------

times = st.integers(0, 9)


@examples(100)
@given(
    p=st.integers(1, 6),
    m=st.integers(1, 20),
    limit=st.floats(1, 9),
    held=st.floats(0, 1),
    data=st.data(),
)
def test_the_bounds_of_a_straight_pipeline_are_those_of_the_papers(
    p, m, limit, held, data
):
    f, i, w, c = (data.draw(times) for _ in range(4))
    costs = Costs(f, i, w, c, weight_activation=held)
    k = min(m, int(limit))
    warm_up = m * (f + i + w) + max(0, (p - 1) * (i + 2 * c) + (p - k) * f)
    assert bound(costs, range(p), m, limit, SPAN) >= warm_up - 1e-9
    most = m - 1 if limit - 1 >= held * (m - 1) else int((limit - 1) / held)
    drain = (p - 1) * (f + i + 2 * c) + m * (f + i) + (m - min(m - 1, most)) * w
    assert bound(costs, range(p), m, limit, MAKESPAN) >= max(drain, warm_up) - 1e-9


@examples(60)
@given(data=st.data())
def test_less_memory_and_slower_messages_never_make_a_bound_smaller(data):
    m, objective = data.draw(st.integers(1, 9)), data.draw(st.sampled_from(Objective))
    placement = data.draw(
        st.sampled_from([(0,), (0, 1), (0, 1, 2), (0, 1, 1, 0), (0, 1, 2, 0, 1, 2), V])
    )
    f, i, w, c = (data.draw(times) for _ in range(4))
    limits = sorted(data.draw(st.lists(st.floats(8, 20), min_size=2, max_size=2)))
    first, second = (
        bound(Costs(f, i, w, c, weight_activation=0.4), placement, m, limit, objective)
        for limit in limits
    )
    assert first >= second
    assert (
        bound(
            Costs(f, i, w, c + 1, weight_activation=0.4),
            placement,
            m,
            limits[0],
            objective,
        )
        >= first
    )


# -- against the truth -----------------------------------------------------------------

# to most microbatches
PLACEMENTS = {
    (0,): 3,
    (0, 0): 2,
    (0, 1): 3,
    (0, 1, 2): 2,
    (0, 1, 1, 0): 1,
    (0, 1, 0, 1): 1,
}


@st.composite
def small_workloads(draw, more=0):
    placement = draw(st.sampled_from(list(PLACEMENTS)))
    is_equal = draw(st.booleans())

    def by_stage(value):
        return draw(
            value
            if is_equal
            else st.lists(value, min_size=len(placement), max_size=len(placement))
        )

    time, amount = st.integers(0, 2), st.sampled_from([0, 0.5, 1, 2])
    held = {
        name: by_stage(amount)
        for name in ("activation", "weight_activation", "transient_activation")
    }
    others = {
        "message_size": by_stage(time),
        "bandwidth": 1,
        "overhead": draw(st.integers(0, 1)),
    }
    costs = Costs(*(by_stage(time) for _ in range(3)), **others, **held)
    limit = draw(st.sampled_from([None, 1, 1.5, 2, 2.5, 3, 3.5, 4, 5, 6]))
    return costs.workload(
        placement, draw(st.integers(1, PLACEMENTS[placement] + more)), limit
    )


def check_against_brute_force(workload, objective):
    best = optimum(workload, objective, latest_start=3)
    try:
        bounds = lower_bounds(workload, objective)
    except ScheduleError as error:
        assert best == float("inf") and error.code == "value"
        return
    for value, name, _ in bounds:
        assert value <= best + 1e-9, name


@examples(480)
@given(workload=small_workloads(), objective=st.sampled_from(Objective))
def test_no_schedule_is_below_a_bound(workload, objective):
    check_against_brute_force(workload, objective)


@pytest.mark.parametrize(
    ("costs", "placement", "m", "limit"),
    [
        # The W of the round before may wait: memory is for a microbatch and a half.
        (Costs(1, 2, 1, weight_activation=0.5), (0, 1), 2, 1.5),
        # The last F may leave a W behind beside its own pair.
        (
            Costs(0, 0, 2, latency=1, weight_activation=0.5, transient_activation=0.5),
            (0, 1),
            2,
            1.75,
        ),
        # With one microbatch the wait before the first I is the wait after the last F.
        (Costs(1, 0, 1, latency=2, weight_activation=0.5), (0, 1, 2), 1, 3),
        # What a rank has left may be done after the span of rank 0.
        (Costs(2, 0, 1, overhead=1, weight_activation=0), (0, 1), 2, 2.5),
        # Stages of one rank differ in what they hold; between two forwards of a rank is
        # its overhead.
        (
            Costs(
                [2, 0],
                1,
                [2, 1],
                overhead=1,
                activation=[2, 0.5],
                weight_activation=0.5,
            ),
            (0, 0),
            1,
            3.5,
        ),
        (Costs(0, 1, 2, latency=1, overhead=1, weight_activation=0.5), (0, 1, 0), 1, 2),
        # Stages of one rank differ in what W needs.
        (
            Costs(
                [1, 0, 2, 0],
                [0, 1, 1, 0],
                [2, 1, 2, 0],
                activation=[3, 3, 0, 2],
                weight_activation=[0, 4, 1, 1],
            ),
            *((0, 1, 1, 0), 1, 6),
        ),
    ],
)
def test_no_schedule_is_below_a_bound_where_a_proof_has_a_condition(
    costs, placement, m, limit
):
    for objective in Objective:
        check_against_brute_force(costs.workload(placement, m, limit), objective)


@pytest.mark.slow
@examples(600)
@given(workload=small_workloads(more=1), objective=st.sampled_from(Objective))
def test_no_schedule_of_one_more_microbatch_is_below_a_bound(workload, objective):
    check_against_brute_force(workload, objective)


@examples(20)
@given(workload=small_workloads(), objective=st.sampled_from(Objective))
def test_microbatches_may_keep_their_order(workload, objective):
    """All proofs number the actions of a stage by their starts."""
    workload = workload._replace(num_microbatches=min(workload.num_microbatches, 2))
    if workload.num_stages < 3:
        assert optimum(workload, objective, 2) == optimum(
            workload, objective, 2, in_order=False
        )


@examples(80)
@given(data=st.data())
def test_no_named_schedule_is_below_the_bound_for_its_own_memory(every_schedule, data):
    schedule = data.draw(st.sampled_from([s for s in every_schedule if runs(s)]))
    num_stages = schedule.num_stages
    few = st.lists(st.integers(0, 5), min_size=num_stages, max_size=num_stages)
    given = {
        name: data.draw(few)
        for name in ("forward", "backward_input", "backward_weight", "message_size")
    }
    costs = Costs(
        **given,
        bandwidth=2,
        latency=data.draw(st.integers(0, 3)),
        weight_activation=0.5,
    )
    timeline = simulate(schedule, costs)
    workload = costs.workload(
        schedule.placement, schedule.num_microbatches, timeline.peak_memory
    )
    assert bound_of(workload, MAKESPAN) <= timeline.makespan + 1e-9
    spans = [row[-1].end - row[0].start for row in timeline.spans]
    assert bound_of(workload, SPAN) <= max(spans) + 1e-9


def bound_of(workload, objective):
    return lower_bound(workload, objective).value


# -- limits that no schedule keeps -----------------------------------------------------


def test_a_limit_below_one_microbatch_is_refused_with_the_rank_and_both_amounts():
    costs = Costs(activation=[1, 2.5], transient_activation=[0, 0.5])
    message = r"memory_limit is 2\.5 on rank 1, but one microbatch alone takes 3 there"
    with pytest.raises(ScheduleError, match=message) as caught:
        lower_bounds(costs.workload(range(2), 4, 2.5))
    assert caught.value.code == "value"
    assert lower_bound(costs.workload(range(2), 4, 3), SPAN).value >= 12
    assert (
        lower_bound(Costs(activation=0.25).workload(range(2), 1, 0.25), SPAN).value == 5
    )


def test_without_limits_a_rank_that_is_always_busy_is_the_bound():
    workload = Costs(forward=[1, 5, 1]).workload(range(3), 10)
    assert lower_bound(workload, SPAN) == (70.0, "work", "Rank 1 computes for 70.")
    assert (
        simulate(schedules.zb_h1(3, 10)).makespan
        >= lower_bound(Costs().workload(range(3), 10), MAKESPAN).value
    )

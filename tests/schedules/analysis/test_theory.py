"""Closed forms: the published numbers, their conditions, and the mistakes that common
sources make.
"""

import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from minipipe import schedules
from minipipe.core.schedules.action import ActionKind
from minipipe.core.schedules.analysis.lowering import lower
from minipipe.errors import ScheduleError
from minipipe.schedules import theory
from minipipe.schedules.analysis.activations import peak_activations
from minipipe.schedules.analysis.theory import tick_grid
from minipipe.schedules.simulation.costs import Costs
from minipipe.schedules.simulation.simulator import peak_memory, simulate
from tests.launch import slowly
from tests.refusals import refusal
from tests.strategies import examples, takes


def test_with_four_ranks_and_eight_microbatches_the_numbers_are_the_published_ones():
    assert theory.makespan("gpipe", 4, 8) == theory.makespan("1f1b", 4, 8) == 33
    assert theory.makespan("interleaved-1f1b", 4, 8, 2) == 28.5
    assert theory.makespan("zb-h1", 4, 8) == 27
    assert theory.makespan("1f1b", 4, 8, backward_weight=0) == 22
    assert theory.bubble_fraction("gpipe", 4, 8) == pytest.approx(3 / 11)
    assert theory.peak_activations("1f1b", 4, 8) == (4, 3, 2, 1)
    assert theory.peak_activations("gpipe", 4, 8) == (8, 8, 8, 8)
    assert theory.peak_memory("zb-h1", 4, 8) == (4, 4, 4, 4)


def test_four_ranks_work_57_73_and_84_percent_of_the_time_with_4_8_and_16_microbatches():
    assert [round(100 * theory.efficiency(4, m)) for m in (4, 8, 16)] == [57, 73, 84]
    for m in (4, 8, 16):
        for name in ("gpipe", "1f1b"):
            bubble = simulate(schedules.build(name, 4, m)).bubble_fraction
            assert 1 - bubble == pytest.approx(theory.efficiency(4, m))


@given(st.integers(1, 64))
def test_four_microbatches_for_each_rank_keep_the_ranks_busy_four_fifths_of_the_time(p):
    m = theory.recommended_num_microbatches(p)
    assert m == 4 * p and theory.efficiency(p, m) >= 0.8


@given(p=st.integers(1, 8), m=st.integers(1, 24), data=st.data())
def test_1f1b_over_gpipe_is_what_each_of_them_holds(p, m, data):
    rank = data.draw(st.integers(0, p - 1))
    held = [
        peak_activations(schedules.build(name, p, m))[rank]
        for name in ("1f1b", "gpipe")
    ]
    assert (
        theory.memory_footprint_ratio(p, m, rank)
        == held[0] / held[1]
        == min(p - rank, m) / m
    )


@examples(60)
@given(
    name=st.sampled_from(["1f1b", "eager-1f1b", "zb-h1"]),
    p=st.integers(2, 5),
    times=st.tuples(st.integers(1, 9), st.integers(1, 9), st.integers(0, 9)),
    c=st.integers(0, 6),
)
def test_the_steady_period_is_work_or_a_shared_round_trip(name, p, times, c):
    costs = Costs(*times, latency=c)
    in_flight = 2 * p - 1 if name == "eager-1f1b" else p
    period = theory.steady_period(
        name,
        p,
        12 * p,
        forward=times[0],
        backward_input=times[1],
        backward_weight=times[2],
        latency=c,
    )
    # K microbatches later everything is K periods later.
    short, long = (
        simulate(schedules.build(name, p, m), costs).makespan
        for m in (12 * p, 12 * p + 2 * in_flight)
    )
    assert long - short == pytest.approx(2 * in_flight * period)


def test_with_latency_eager_1f1b_is_as_fast_as_gpipe_and_1f1b_is_not():
    costs = Costs(2, 4, 0, latency=1)
    assert [
        simulate(schedules.build(name, 4, 8), costs).makespan
        for name in ("gpipe", "1f1b", "eager-1f1b")
    ] == [
        72,
        82,
        72,
    ]
    times = {"forward": 2, "backward_input": 4, "backward_weight": 0, "latency": 1}
    assert [
        theory.steady_period(name, 4, 8, **times)
        for name in ("1f1b", "eager-1f1b", "gpipe")
    ] == [7.5, 6, 6]


@pytest.mark.parametrize(
    "shape",
    [
        ("v-half", [1, 5, 5, 11, 11, 17, 17]),
        slowly(("v-min", [1, 5, 11, 13, 17, 23, 25])),
    ],
)
def test_controllable_memory_takes_so_much_longer_than_no_bubble_at_all(shape):
    name, expected = shape
    for p, more in zip(range(2, 9), expected):
        for m in (p, p + 1, 2 * p, 24):
            assert simulate(schedules.build(name, p, m)).makespan - 6 * m == more, (
                p,
                m,
            )


def test_zb_h2_and_zb_v_have_no_bubble_within_a_ranks_own_span():
    for name, m in (("zb-h2", 7), ("zb-v", 7)):
        timeline = simulate(schedules.build(name, 4, m))
        assert [timeline.idle_within_span(rank) for rank in range(4)] == [0, 0, 0, 0]
        assert timeline.span_bubble_rate == 0 < timeline.bubble_fraction


def test_idle_within_the_own_span_of_each_rank():
    for p, m in ((2, 4), (4, 8), (6, 13)):
        h1 = simulate(schedules.zb_h1(p, m), Costs(3, 2, 1))
        assert [h1.idle_within_span(r) for r in range(p)] == [
            (p - 1 - r) * (3 + 2 - 1) for r in range(p)
        ]
        pipe = simulate(schedules.dualpipe_v(p, 2 * p))
        assert [pipe.idle_within_span(r) for r in range(p)] == [
            p - 1 - r for r in range(p)
        ]


# -- what common sources get wrong -----------------------------------------------------


def test_the_bubble_of_1f1b_is_gpipes_and_not_half_of_it():
    bubble = simulate(schedules.one_f_one_b(4, 8)).bubble_fraction
    assert bubble == pytest.approx(theory.bubble_fraction("gpipe", 4, 8))
    assert bubble != pytest.approx(3 / (2 * 7 + 4))


def test_the_memory_of_1f1b_over_gpipes_is_one_half_and_not_three_eighths():
    assert theory.memory_footprint_ratio(4, 8, 0) == 0.5 != (4 + 8) / (4 * 8)


def test_zero_bubble_with_w_right_after_its_i_keeps_two_thirds_of_the_bubble():
    def with_w_at_once(p, m):
        rows = schedules.one_f_one_b(p, m).to_text().splitlines()[1:]
        cells = [c for row in rows for c in [row.split(": ")[1]]]
        halves = [
            " ".join(
                c.replace("B", "I") + " " + c.replace("B", "W") if "B" in c else c
                for c in r.split()
            )
            for r in cells
        ]
        return schedules.Schedule.from_text("\n".join(halves))

    work = 8 * 3
    assert simulate(with_w_at_once(4, 8)).makespan - work == 2 * 3
    assert simulate(schedules.zb_h1(4, 8)).makespan - work == 3
    assert simulate(schedules.one_f_one_b(4, 8)).makespan - work == 3 * 3


# -- conditions ------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("formula", "arguments", "times", "words"),
    [
        (
            theory.makespan,
            ("v-half", 4, 8),
            {},
            "No closed form is known for v-half; simulate it",
        ),
        (
            theory.steady_period,
            ("zb-v", 4, 8),
            {"latency": 1},
            "No closed form is known for zb-v",
        ),
        (
            theory.makespan,
            ("zb-h1", 4, 3),
            {},
            "The formula for zb-h1 holds only for m >= p",
        ),
        (
            theory.makespan,
            ("zb-h1", 4, 8),
            {"backward_weight": 2},
            "holds only for tW <= tF",
        ),
        (theory.makespan, ("zb-h2", 4, 6), {}, "m >= 2p - 1"),
        (theory.makespan, ("zb-h2", 4, 8), {"backward_input": 0.5}, "2 tW <= tF + tI"),
        (theory.makespan, ("zb-v", 4, 8), {"forward": 2}, "tF = tI = tW"),
        (theory.makespan, ("zb-v", 4, 8, 3), {}, "two chunks on each rank"),
        (theory.peak_memory, ("dualpipe-v", 4, 7), {}, "m >= 2p"),
        (
            theory.peak_memory,
            ("zb-h1", 4, 8),
            {"weight_activation": 2},
            "weight_activation <= activation",
        ),
        (
            theory.peak_memory,
            ("v-min", 4, 8),
            {"weight_activation": 0},
            "weight_activation = activation",
        ),
    ],
)
def test_outside_its_conditions_a_formula_says_what_they_are(
    formula, arguments, times, words
):
    with pytest.raises(ScheduleError) as caught:
        formula(*arguments, **times)
    assert caught.value.code == "unsupported" and words in str(caught.value)


@pytest.mark.parametrize(
    ("ask", "code"),
    [
        (lambda: theory.makespan("1f2b", 4, 8), "name"),
        (lambda: theory.makespan("1f1b", 0, 8), "value"),
        (lambda: theory.efficiency(4, 0), "value"),
        (lambda: theory.makespan("1f1b", 4, 8, forward=-1), "value"),
        (lambda: theory.recommended_num_microbatches(2.5), "value"),
        (lambda: theory.memory_footprint_ratio(4, 8, rank=4), "value"),
    ],
)
def test_what_is_no_schedule_and_no_size_is_refused(ask, code):
    with pytest.raises(ScheduleError) as caught:
        ask()
    assert caught.value.code == code


def test_where_nothing_takes_time_there_is_no_bubble():
    nothing = {"forward": 0, "backward_input": 0, "backward_weight": 0}
    assert (
        theory.bubble_fraction("1f1b", 4, 8, **nothing)
        == theory.bubble_over_ideal("1f1b", 4, 8, **nothing)
        == 0
    )


def test_the_bubble_of_a_prediction_is_that_of_its_forwards():
    """The formula counted the backwards that a prediction does not have as work: the
    bubble was -118 %.
    """
    assert theory.bubble_fraction("forward-only", 4, 8) == pytest.approx(3 / 11)
    assert theory.bubble_over_ideal("forward-only", 4, 8) == pytest.approx(3 / 8)


TIMES = [
    (1, 1, 1),
    (2, 1, 1),
    (1, 4, 1),
    (1, 0, 0),
    (3, 2, 1),
    (1, 1, 2),
    (2, 4, 3),
    (2, 2, 0),
]


ENOUGH_MICROBATCHES = {
    "zb-h1": lambda p, m: m >= p,
    "interleaved-zb": lambda p, m: m >= p,
    "zb-h2": lambda p, m: m >= 2 * p - 1,
    "zb-v": lambda p, m: m >= 2 * p - 1,
    "dualpipe-v": lambda p, m: m >= 2 * p,
    "v-half": lambda p, m: m >= p,
    "v-min": lambda p, m: m >= p,
    "hanayo": lambda p, m: m % p == 0,
    "chimera": lambda p, m: m % p == 0,
    "bitpipe": lambda p, m: m % p == 0,
    "dualpipe": lambda p, m: m >= 2 * p and m % 2 == 0,
}


WHOLE = [
    name
    for name in schedules.REGISTRY
    if ActionKind.BACKWARD_WEIGHT not in schedules.build(name, 4).kinds
]


def sizes(name, largest):
    for p, m in itertools.product(range(1, 5), range(1, largest + 1)):
        if takes(name, p):
            yield p, m, ENOUGH_MICROBATCHES.get(name, lambda p, m: True)(p, m)


def times_fit(name, forward, backward_input, backward_weight):
    """The conditions as the documentation says them."""
    if name in ("zb-h1", "interleaved-zb"):
        return backward_weight <= forward
    if name == "zb-h2":
        return (
            backward_weight <= forward
            and 2 * backward_weight <= forward + backward_input
        )
    if name in ("zb-v", "dualpipe-v", "dualpipe"):
        return forward == backward_input == backward_weight
    return theory.CLOSED_FORMS[name].makespan is not None


def test_no_formula_of_time_is_lost():
    assert (
        sum(
            theory.CLOSED_FORMS[name].makespan is not None
            for name in schedules.REGISTRY
        )
        >= 21
    )


@pytest.mark.parametrize("largest", [4, slowly(9)])
@pytest.mark.parametrize("name", schedules.REGISTRY)
def test_a_formula_of_time_holds_wherever_its_conditions_do_and_is_refused_elsewhere(
    name, largest
):
    equal, *others = TIMES
    for place, (p, m, are_enough) in enumerate(sizes(name, largest)):
        schedule = schedules.build(name, p, m)
        v = schedule.num_stages // p
        # each with every size of p or of m
        for times in (equal, others[place % 7], others[(place + 3) % 7]):
            share = dict(
                zip(
                    ("forward", "backward_input", "backward_weight"),
                    [v * time for time in times],
                )
            )
            asked = (
                [theory.makespan]
                if name == "forward-only"
                else [theory.makespan, theory.span_bubble]
            )
            for formula in asked:
                if not (are_enough and times_fit(name, *times)):
                    assert (
                        refusal(formula, name, p, m, v, **share).code == "unsupported"
                    )
                    continue
                timeline = simulate(schedule, Costs(*times))
                idle = max(map(timeline.idle_within_span, range(p)))
                found = timeline.makespan if formula is theory.makespan else idle
                assert found == pytest.approx(formula(name, p, m, v, **share)), (
                    p,
                    m,
                    times,
                )


@pytest.mark.parametrize("largest", [4, slowly(9)])
@pytest.mark.parametrize("name", schedules.REGISTRY)
def test_a_formula_of_memory_holds_wherever_its_conditions_do_and_is_refused_elsewhere(
    name, largest
):
    for (p, m, are_enough), (activation, weight_activation) in itertools.product(
        sizes(name, largest), [(1, 1), (3, 1), (3, 0), (2, 3)]
    ):
        held = {"activation": activation, "weight_activation": weight_activation}
        fits = are_enough and (name in WHOLE or weight_activation <= activation)
        if name in ("v-half", "v-min"):
            fits = fits and weight_activation == activation
        if fits:
            assert theory.peak_memory(name, p, m, **held) == peak_memory(
                schedules.build(name, p, m), Costs(**held)
            )
        else:
            assert refusal(theory.peak_memory, name, p, m, **held).code == "unsupported"


@pytest.mark.parametrize(
    ("name", "sizes", "only_for"),
    [
        *(
            (name, (3, 6), "an even number of ranks")
            for name in ("chimera", "bitpipe", "dualpipe")
        ),
        *(
            (name, (4, 8, 2), "one chunk on each rank")
            for name in ("chimera", "dualpipe")
        ),
        ("bitpipe", (4, 8, 4), "two chunks on each rank"),
        ("hanayo", (4, 8, 3), "an even number of chunks on each rank"),
    ],
)
def test_a_formula_is_refused_for_sizes_that_the_builder_refuses(name, sizes, only_for):
    assert not takes(name, *sizes)
    for formula in (theory.makespan, theory.span_bubble, theory.peak_memory):
        error = refusal(formula, name, *sizes)
        assert error.code == "unsupported" and only_for in str(error)


def test_a_rank_below_zero_has_no_memory():
    assert refusal(theory.memory_footprint_ratio, 4, 8, -1).code == "value"


def test_the_tick_grid_leaves_messages_out():
    schedule = schedules.zb_h1(3, 4)
    assert tick_grid(lower(schedule)) == tick_grid(schedule)

"""Small changes of the schedule tower that no other test noticed: here each of them fails."""

import itertools

import pytest

from minipipe import schedules
from minipipe.errors import ScheduleError
from minipipe.render import draw_text
from minipipe.schedules import schedule_of_text, theory
from minipipe.schedules.action import Action, ActionKind
from minipipe.schedules.action_table import Schedule
from minipipe.schedules.analysis.activations import peak_activations
from minipipe.schedules.analysis.lowering import lower
from minipipe.schedules.analysis.theory import tick_grid
from minipipe.schedules.analysis.updates import drift, staleness, weight_versions
from minipipe.schedules.analysis.verifier import verify
from minipipe.schedules.analysis.walk import walk
from minipipe.schedules.simulation.costs import Costs
from minipipe.schedules.simulation.simulator import peak_memory, simulate
from minipipe.schedules.simulation.span import Span
from minipipe.schedules.simulation.timeline import Timeline
from minipipe.search.list_scheduling import greedy
from tests.strategies import table, takes

F = ActionKind.FORWARD


def rows(schedule):
    return [" ".join(map(str, row)) for row in schedule.actions]


def refusal(call, *arguments, **options):
    with pytest.raises(ScheduleError) as caught:
        call(*arguments, **options)
    return caught.value


def spans(*cells):
    return tuple(Span(Action.parse(cell), start, end) for cell, start, end in cells)


# -- builders --------------------------------------------------------------------------------------------------


def test_a_prediction_goes_in_rounds_as_equal_as_can_be_the_smaller_first():
    assert rows(schedules.forward_only(2, 5, 2)) == [
        "0F0 0F1 2F0 2F1 0F2 0F3 0F4 2F2 2F3 2F4",
        "1F0 1F1 3F0 3F1 1F2 1F3 1F4 3F2 3F3 3F4",
    ]
    assert "num_microbatches is 0" in str(refusal(schedules.forward_only_over, (0, 1), 0))


def test_zb_v_ends_with_the_weights_of_chunk_1_and_then_those_of_chunk_0():
    assert [str(action) for action in schedules.zb_v(3, 6).actions[2]][-4:] == ["3W4", "3W5", "2W4", "2W5"]


def test_one_chunk_may_be_asked_for_where_there_is_one():
    for name in ("gpipe", "1f1b", "zb-h1"):
        assert schedules.build(name, 2, 4, 1) == schedules.build(name, 2, 4)
    assert refusal(schedules.build, ["gpipe"], 2).code == "name"


def test_of_equal_microbatches_greedy_takes_the_weights_of_the_earlier_stage_first():
    assert rows(greedy(1, Costs(), (0, 0), None, "IFW")) == ["0F0 1F0 1I0 0I0 0W0 1W0"]


# -- formulas hold exactly where they say ------------------------------------------------------------------------

TIMES = [(1, 1, 1), (2, 1, 1), (1, 4, 1), (1, 0, 0), (3, 2, 1), (1, 1, 2), (2, 4, 3), (2, 2, 0)]
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
WHOLE = [name for name in schedules.REGISTRY if ActionKind.BACKWARD_WEIGHT not in schedules.build(name, 4).kinds]


def sizes(name):
    for p, m in itertools.product(range(1, 5), range(1, 10)):
        if takes(name, p):
            yield p, m, ENOUGH_MICROBATCHES.get(name, lambda p, m: True)(p, m)


def times_fit(name, forward, backward_input, backward_weight):
    """The conditions as the documentation says them."""
    if name in ("zb-h1", "interleaved-zb"):
        return backward_weight <= forward
    if name == "zb-h2":
        return backward_weight <= forward and 2 * backward_weight <= forward + backward_input
    if name in ("zb-v", "dualpipe-v", "dualpipe"):
        return forward == backward_input == backward_weight
    return theory.CLOSED_FORMS[name].makespan is not None


def test_no_formula_of_time_is_lost():
    assert sum(theory.CLOSED_FORMS[name].makespan is not None for name in schedules.REGISTRY) >= 21


@pytest.mark.parametrize("name", schedules.REGISTRY)
def test_a_formula_of_time_holds_wherever_its_conditions_do_and_is_refused_elsewhere(name):
    equal, *others = TIMES
    for place, (p, m, are_enough) in enumerate(sizes(name)):
        schedule = schedules.build(name, p, m)
        v = schedule.num_stages // p
        for times in (equal, others[place % 7], others[(place + 3) % 7]):  # each with every size of p or of m
            share = dict(zip(("forward", "backward_input", "backward_weight"), [v * time for time in times]))
            asked = [theory.makespan] if name == "forward-only" else [theory.makespan, theory.span_bubble]
            for formula in asked:
                if not (are_enough and times_fit(name, *times)):
                    assert refusal(formula, name, p, m, v, **share).code == "unsupported"
                    continue
                timeline = simulate(schedule, Costs(*times))
                idle = max(map(timeline.idle_within_span, range(p)))
                found = timeline.makespan if formula is theory.makespan else idle
                assert found == pytest.approx(formula(name, p, m, v, **share)), (p, m, times)


@pytest.mark.parametrize("name", schedules.REGISTRY)
def test_a_formula_of_memory_holds_wherever_its_conditions_do_and_is_refused_elsewhere(name):
    for (p, m, are_enough), (activation, weight_activation) in itertools.product(
        sizes(name), [(1, 1), (3, 1), (3, 0), (2, 3)]
    ):
        held = {"activation": activation, "weight_activation": weight_activation}
        fits = are_enough and (name in WHOLE or weight_activation <= activation)
        if name in ("v-half", "v-min"):
            fits = fits and weight_activation == activation
        if fits:
            assert theory.peak_memory(name, p, m, **held) == peak_memory(schedules.build(name, p, m), Costs(**held))
        else:
            assert refusal(theory.peak_memory, name, p, m, **held).code == "unsupported"


@pytest.mark.parametrize(
    ("name", "sizes", "only_for"),
    [
        *((name, (3, 6), "an even number of ranks") for name in ("chimera", "bitpipe", "dualpipe")),
        *((name, (4, 8, 2), "one chunk on each rank") for name in ("chimera", "dualpipe")),
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


# -- order and verifier ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("wrong", [Action(-1, F, 0), Action(0, F, -1)])
@pytest.mark.parametrize("use", [simulate, lower, tick_grid])
def test_numbers_below_zero_are_out_of_range_everywhere(use, wrong):
    assert refusal(use, table("wrong", (0, 0), 2, [[wrong, "0F0", "0B0"]])).code == "out-of-range"


@pytest.mark.parametrize("wrong", [Action(2, F, 0), Action(-1, F, 0), Action(0, F, 2), Action(0, F, -1)])
@pytest.mark.parametrize("use", [peak_activations, weight_versions, staleness, drift])
def test_numbers_out_of_range_are_no_crash_of_an_analysis(use, wrong):
    rows = [[wrong, "0F0", "0B0", "0F1", "0B1", "0U1"]]
    assert refusal(use, table("wrong", (0, 0), 2, rows)).code == "out-of-range"


def test_blocked_ranks_are_told_in_their_order():
    steps = walk(schedule_of_text("0F0 0B0 0B1 0F1\n1F0 1B0 1F1 1B1"))
    assert [stuck.rank for stuck in steps.blocked] == [0, 1]


def test_the_tick_grid_leaves_messages_out():
    schedule = schedules.zb_h1(3, 4)
    assert tick_grid(lower(schedule)) == tick_grid(schedule)


def test_what_is_missing_is_told_by_microbatch_and_a_repetition_by_its_first_place():
    error = refusal(verify, table("s", (0, 1), 2, [["0F0", "0B0"], ["1F1", "1B1"]]))
    assert [problem.message[:3] for problem in error.problems] == ["1F0", "1B0", "0F1", "0B1"]
    error = refusal(verify, schedule_of_text("0F0 0F0 0F0 0B0"))
    assert ["duplicate of position 0" in problem.message for problem in error.problems] == [True, True]


def test_an_order_that_cannot_be_is_told_before_the_memory_it_takes():
    assert refusal(verify, schedule_of_text("0F0 0F1 0F2 0W0 0I0 0B1 0B2"), 1).code == "order"


def test_a_second_stage_in_descending_order_is_seen():
    assert not schedule_of_text("0F0 0F1 1F0 1F1 1B1 1B0 0B0 0B1").is_reproducible


def test_kinds_given_as_letters_become_kinds():
    schedule = table("mine", (0,), 1, ((Action(0, "F", 0), Action(0, "B", 0)),))
    assert {type(action.kind) for action in schedule.actions[0]} == {ActionKind}
    verify(schedule)


# -- simulator and timeline ------------------------------------------------------------------------------------


def test_units_go_from_the_costs_to_the_timeline_and_back():
    timeline = simulate(schedules.gpipe(2, 2), Costs(unit="s", memory_unit="bytes"))
    assert (timeline.unit, timeline.memory_unit, Costs.measured(timeline).unit) == ("s", "bytes", "s")


def test_w_gives_back_what_i_left():
    schedule = schedule_of_text("0F0 0I0 0W0 0F1 0F2 0I1 0W1 0I2 0W2")
    assert simulate(schedule, Costs(activation=5, weight_activation=3)).peak_memory == (10,)


@pytest.mark.parametrize("end", [2, 4])
def test_who_has_what_it_needs_when_it_is_free_does_not_wait_for_it(end):
    timeline = Timeline("m", (spans(("0F0", 0, 1), ("0F1", 1, end)), spans(("1F0", 1, 4), ("1F1", 6, 7))), (1, 1))
    assert [(slot.start, slot.end, slot.cause) for slot in timeline.idle[1]] == [(0, 1, "warm-up"), (4, 6, "overhead")]


def test_cost_and_rate_are_those_of_the_rank_with_the_longest_own_span():
    timeline = Timeline(
        "m", (spans(("0F0", 0, 1)), spans(("1F0", 1, 2), ("1F1", 5, 8)), spans(("2F0", 2, 3), ("2F1", 7, 8))), (1, 1, 1)
    )
    assert timeline.cost == 7 and timeline.span_bubble_rate == 3 / 7


def test_a_message_takes_the_time_of_its_own_stage_when_idle_time_is_explained():
    timeline = simulate(schedules.gpipe(3, 2), Costs([1, 4, 3], 1, 0, bandwidth=1, message_size=[0, 6, 0]))
    slots = [(slot.start, slot.end, slot.cause, str(slot.awaited)) for slot in timeline.idle[2][:2]]
    assert slots == [(0, 11, "warm-up", "1F0"), (14, 15, "waiting", "1F1")]


def test_idle_time_counts_from_the_first_start():
    timeline = Timeline("clock", (spans(("0F0", 5, 7)), spans(("1F0", 7, 9))), (1, 1), unit="s")
    assert [(slot.start, slot.end, slot.cause) for slot in timeline.idle[1]] == [(5, 7, "warm-up")]
    assert draw_text(timeline).splitlines()[0].endswith("·")


def test_measured_costs_are_means_and_of_mixed_backwards_those_of_the_halves():
    assert Costs.measured(Timeline("m", (spans(("0F0", 0, 1), ("0F1", 1, 4)),), (1,))).forward == [2]
    schedule = schedules.dualpipe_v(2, 4)
    timeline = simulate(schedule, Costs(1, 2, 3))
    assert simulate(schedule, Costs.measured(timeline)) == timeline


# -- text and drawing ------------------------------------------------------------------------------------------


def test_the_corners_of_csv():
    assert Schedule.from_csv("0UNSHARD0,0F0,0B0,0RESHARD12", ignore_sharding=True) == Schedule.from_csv("0F0,0B0")
    assert Schedule.from_csv("0F0,( 0F1 ; 0B0 )OVERLAP_F_B,0B1").to_csv() == "0F0,(0F1;0B0)OVERLAP_F_B,0B1\n"
    assert "is not a supported overlap" in str(refusal(Schedule.from_csv, "0F0,0I0,(0F1;0W0)OVERLAP_F_B,0B1"))
    assert refusal(Schedule.from_csv, "0F0,(0F1;0B0)OVERLAP_F_Bjunk,0B1").code == "syntax"
    assert refusal(Schedule.from_text, "0F0 0B0 0F3").code == "missing"
    assert "bandwidth is a single number" in str(refusal(Costs.parse, "bandwidth=1:2"))


def test_labels_have_room_for_the_longest_and_bands_tell_milliseconds():
    assert "F10" in draw_text(schedules.gpipe(1, 12))
    timeline = Timeline("m", (spans(*[(f"0F{k}", k, k + 1) for k in range(100)]),), (1,), unit="s")
    assert "\n\nms     |20000         |25000 " in draw_text(timeline)
    with pytest.raises(ValueError, match="at least 40"):
        draw_text(schedules.gpipe(2, 2), width=39)


def test_what_takes_no_time_among_what_does_is_drawn_all_the_same():
    row, *_ = draw_text(simulate(schedules.zb_h1(1, 8), Costs(3, 3, 0))).splitlines()
    assert row.count("W") == 8

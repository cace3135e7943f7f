"""What once went wrong, each with its story. Found by people and programs that tried to break the schedule tower."""

import pickle

import pytest

from minipipe import schedules
from minipipe.errors import ScheduleError
from minipipe.schedules import schedule_of_text, theory
from minipipe.schedules.action import Action
from minipipe.schedules.action_table import Schedule, check_range
from minipipe.schedules.analysis.lowering import lower
from minipipe.schedules.analysis.verifier import verify
from minipipe.schedules.analysis.walk import complete_walk
from minipipe.schedules.simulation.costs import Costs
from minipipe.schedules.simulation.simulator import peak_memory, simulate
from minipipe.schedules.simulation.span import Span
from minipipe.schedules.simulation.timeline import Timeline
from tests.strategies import table


def code_of(call, *arguments, **options):
    with pytest.raises(ScheduleError) as caught:
        call(*arguments, **options)
    return caught.value.code


def test_the_bubble_of_a_prediction_is_that_of_its_forwards():
    """The formula counted the backwards that a prediction does not have as work: the bubble was -118 %."""
    assert theory.bubble_fraction("forward-only", 4, 8) == pytest.approx(3 / 11)
    assert theory.bubble_over_ideal("forward-only", 4, 8) == pytest.approx(3 / 8)


def test_a_ranks_own_span_begins_with_its_first_computation():
    """A RECV of no length at time 0 counted as the first start, so blocking sends gave ZB-H2 a bubble of its own."""
    for sends_block in (False, True):
        timeline = simulate(schedules.zb_h2(4, 8), Costs(sends_block=sends_block))
        assert timeline.cost == timeline.own_span(3) == 24 and timeline.span_bubble_rate == 0


def test_a_text_that_names_many_stages_and_microbatches_but_few_of_their_pairs_is_refused_soon():
    """26 kB of text took 40 s and 1.3 GB: one problem for each of four million pairs."""
    n = 2000
    text = " ".join([*(f"{i}F0" for i in range(n)), *(f"0F{i}" for i in range(1, n))])
    with pytest.raises(ScheduleError) as caught:
        verify(schedule_of_text(text))
    assert caught.value.code == "missing" and len(caught.value.problems) == 1000
    assert "1F1 is missing on rank 0." in str(caught.value)
    for text in ("0F0 0B0 " * n, " ".join([*["0F0 0B0"] * n, "\n1F0 1B0"]), "0F0 0B0 0W0 " * n):
        with pytest.raises(ScheduleError) as caught:  # five million equal actions were five million problems
            verify(schedule_of_text(text))
        assert 1000 <= len(caught.value.problems) <= 3000
    absurd = table("absurd", (0,), 10**12, [["0F0"]])
    assert code_of(verify, absurd) == code_of(simulate, absurd) == code_of(lower, absurd) == "missing"


@pytest.mark.parametrize("text", ["0F0 0SEND_F0 0B0", "0F0 0B0 0SEND_B0", "0F0 0RECV_F0 0B0", "0F0 0RECV_B0 0B0"])
@pytest.mark.parametrize("sends_block", [False, True])
def test_a_message_to_nobody_never_ends(text, sends_block):
    """It was a bare IndexError, or was written where another microbatch's time stood."""
    with pytest.raises(ScheduleError, match="waits for ever"):
        complete_walk(schedule_of_text(text), sends_are_buffered=not sends_block)
    assert code_of(simulate, schedule_of_text(text), Costs(sends_block=sends_block)) == "missing"
    assert code_of(verify, schedule_of_text(text)) == "missing"


def test_memory_of_a_stage_that_is_not_there_is_refused():
    """It was a bare IndexError."""
    assert code_of(peak_memory, table("x", (0,), 1, [["1F0"]]), Costs()) == "out-of-range"
    check_range(schedules.gpipe(2, 2))


def test_the_critical_path_of_a_timeline_that_goes_round_ends():
    """Two actions that were each said to come after the other were followed for ever."""
    forward = Span(Action.parse("0F0"), 0, 5), Span(Action.parse("1F0"), 0, 5)
    backward = Span(Action.parse("1B0"), 0, 5), Span(Action.parse("0B0"), 0, 5)
    path = Timeline("cycle", (forward[1:] + backward[1:], backward[:1] + forward[:1]), (1, 1)).critical_path
    assert len(path) <= 4


def test_a_rank_with_five_thousand_digits_is_no_bare_error():
    """Python refuses to read so long a number with a ValueError of its own."""
    assert code_of(Schedule.from_text, "rank " + "0" * 5000 + ": 0F0 0B0") == "syntax"


def test_text_may_begin_with_a_byte_order_mark_and_may_leave_out_sharding():
    """CSV could, text could not, although the message of text recommended it."""
    text = "\ufeffrank 0: 0F0 0UNSHARD 0B0"
    assert schedule_of_text(text, ignore_sharding=True) == schedule_of_text("0F0 0B0")


def test_a_cost_that_is_given_twice_is_refused():
    """The last one won in silence."""
    assert code_of(Costs.parse, "F=1,forward=2") == "value"


def test_times_beyond_all_numbers_are_refused():
    """They were printed as Infinity and NaN, which is no JSON."""
    assert code_of(simulate, schedules.gpipe(4, 8), Costs(forward=1e308)) == "value"


@pytest.mark.parametrize("cell", [(0.7, "F", 0), (0, "F", 0.9), ("0", "F", 0), Action(0.5, "F", 0)])
def test_a_stage_or_microbatch_that_is_no_integer_is_refused(cell):
    """0.7 became 0, and a string was a TypeError much later."""
    assert code_of(Schedule, "x", (0,), 1, [[cell]]) == "syntax"


@pytest.mark.parametrize(("placement", "num_microbatches"), [(("0",), 1), ((0,), 1.0), ((0,), "1"), ((0.0,), 1)])
def test_a_placement_and_a_number_that_are_no_integers_are_refused(placement, num_microbatches):
    """They were TypeErrors much later."""
    assert code_of(Schedule, "x", placement, num_microbatches, [["0F0"]]) == "placement"


def test_other_arguments_that_were_bare_errors():
    """IndexError, TypeError and KeyError told nobody what was wrong."""
    assert code_of(schedules.forward_only_over, [0, 5], 2, 2) == "placement"
    assert code_of(schedules.greedy, 4, Costs(), (0, 1), None, None) == "value"
    assert code_of(schedules.build, "gpipe", None) == "value"
    assert code_of(theory.memory_footprint_ratio, 4, 8, 0.5) == "value"


def test_a_schedule_is_pickled_without_what_was_found_out_about_it():
    """The walk went along, and made it a fifth longer."""
    schedule = schedules.one_f_one_b(4, 16)
    before = len(pickle.dumps(schedule))
    verify(schedule)
    assert len(pickle.dumps(schedule)) == before
    verify(pickle.loads(pickle.dumps(schedule)))


def test_a_name_of_two_lines_stays_within_its_comment():
    """Its second line was read as the actions of a rank."""
    named = table("two\nlines", (0,), 1, [["0F0", "0B0"]])
    assert schedule_of_text(named.to_text(), name="two\nlines") == named

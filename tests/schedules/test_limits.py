"""What is too large is refused before it takes memory, with what was asked and the
limit.
"""

import re

import pytest

from minipipe import Costs, Schedule, io, schedules, simulate
from minipipe.core.schedules import placement, text
from minipipe.core.schedules.action import Action, ActionKind
from minipipe.core.schedules.analysis.lowering import lower
from minipipe.core.schedules.placement import check_sizes
from minipipe.errors import MinipipeError, quoted
from minipipe.schedules import read_schedule, schedule_of_text
from minipipe.schedules.analysis import theory
from minipipe.schedules.analysis.activations import peak_activations
from minipipe.schedules.analysis.theory import tick_grid
from minipipe.schedules.analysis.updates import drift, staleness, weight_versions
from minipipe.schedules.transforms import spread_stages
from minipipe.search.list_scheduling import greedy
from tests.launch import for_each
from tests.refusals import code_of, refusal
from tests.strategies import table

# -- builders --------------------------------------------------------------------------


@for_each(name={name: name for name in schedules.REGISTRY})
@pytest.mark.parametrize(
    "sizes",
    [(10**6, 10**6), (10**20, 1), (1, 10**20), (10**5000, 8), (4, 10**5000)],
    ids=quoted,
)
def test_no_builder_begins_what_it_cannot_end(name, sizes):
    error = refusal(schedules.build, name, *sizes)
    assert (
        error.code == "too-large"
        and "the limits are 4096 stages and 16777216 actions" in str(error)
    )


def test_the_message_has_what_was_asked():
    error = refusal(schedules.gpipe, 10**6, 10**6)
    assert (
        "1000000 stages and 1000000 microbatches take 2000000000000 actions, F "
        "and B; the limits"
    ) in str(error)
    assert refusal(schedules.gpipe, 4, 8, 10**9).code == "too-large"


def test_the_largest_real_pipelines_are_within_the_limits():
    """And their text is, with a split backward, and with messages: the file of 512
    ranks and 4096 microbatches.
    """
    for num_ranks, num_microbatches, chunks in (
        (512, 4096, 1),
        (512, 4096, 4),
        (1024, 256, 1),
        (1, 2**23, 1),
    ):
        check_sizes(num_ranks, num_microbatches, chunks)
    assert io.MOST_ACTIONS >= 512 * 4096 * 6
    assert 512 * 4096 * 6 * len("511SEND_F4095,") <= io.MOST_BYTES


def test_other_ways_to_a_large_schedule_are_closed_too():
    small = schedules.gpipe(2, 2)
    assert refusal(schedules.repeat, small, 10**9).code == "too-large"
    assert refusal(greedy, 10**9, Costs(), (0, 1)).code == "too-large"
    assert refusal(schedules.forward_only_over, (0, 1), 10**12).code == "too-large"
    assert refusal(schedules.table, 10**6, 10**6).code == "too-large"
    assert refusal(spread_stages, small, 10**6).code == "too-large"


def test_a_formula_takes_any_size():
    assert theory.makespan("1f1b", 10**6, 10**6) == 3 * (2 * 10**6 - 1)
    assert theory.efficiency(10**6, 10**9) > 0.998


# -- texts and files -------------------------------------------------------------------


@pytest.fixture
def small_limits(monkeypatch):
    """Limits of a few, so that what exceeds them is small."""
    for name, value in (("MOST_ACTIONS", 8), ("MOST_STAGES", 4), ("MOST_BYTES", 200)):
        monkeypatch.setattr(text, name, value)
    monkeypatch.setattr(placement, "MOST_STAGES", 4)


@pytest.mark.usefixtures("small_limits")
@pytest.mark.parametrize(
    ("given", "words"),
    [
        ("0F0 " * 9, "Line 1 is beyond the limit of 4 ranks and 8 actions"),
        ("0F0 0F1 0F2\n" * 3, "Line 3 is beyond the limit"),
        ("0F0," * 9, "The text has 9 cells; the limit is 8"),
        ("," * 9, "The text has 9 cells"),
        ("0F0\n" * 5, "Line 5 is beyond the limit of 4 ranks"),
        ("F0\n" * 5, "Line 5 is beyond the limit of 4 ranks"),
        ("0F0 1F0 2F0 3F0 4F0", "The text has 5 stages; the limit is 4"),
        ("0F0 0B0" + " " * 200, "The text has 207 characters; the limit is 200"),
        ("# " + "," * 9 + "\n0F0 0B0", "The text has 9 cells"),
    ],
)
def test_a_text_beyond_a_limit_is_refused_with_the_limit(given, words):
    error = refusal(schedule_of_text, given)
    assert error.code == "too-large" and words in str(error)
    for read in (Schedule.from_text, Schedule.from_csv):
        assert refusal(read, given).code in ("too-large", "syntax")


@pytest.mark.usefixtures("small_limits")
@pytest.mark.parametrize(
    "given", ["0F0 0F1 0F2 0F3 0B0 0B1 0B2 0B3", "0F0,0B0\n1F0,1B0\n2F0,2B0\n3F0,3B0\n"]
)
def test_a_text_at_its_limits_is_read(given):
    assert sum(map(len, schedule_of_text(given).actions)) == 8


@pytest.mark.parametrize(
    "cell",
    [
        "999999999999F0",
        "0F999999999999",
        "9" * 5000 + "F0",
        "999999999F0",
        "0F999999999",
    ],
)
def test_a_huge_number_in_a_cell_takes_no_memory(cell):
    error = refusal(schedule_of_text, f"0F0 {cell} 0B0")
    assert error.code in ("syntax", "missing") and len(str(error)) < 300


def test_the_same_cell_over_and_over_is_one_action():
    """The story: 20 MB of ``0F0,`` took 1.8 GB and 60 s, most of it for five million
    equal actions.
    """
    table = schedule_of_text("0F0," * 10_000)
    assert (
        len(table.actions[0]) == 10_000
        and len({id(action) for action in table.actions[0]}) == 1
    )


def test_a_file_that_is_none_is_refused_as_a_file(tmp_path):
    for path in ("/dev/zero", tmp_path, "a" * 300, "a\0b"):
        for read in (read_schedule, Schedule.from_file):
            error = refusal(read, path)
            assert error.code == "unreadable" and re.match(
                r"\[unreadable\] The schedule .* cannot be read: ", str(error)
            )


# -- costs -----------------------------------------------------------------------------

NUMBERS = [
    name
    for name in Costs.__dataclass_fields__
    if name not in ("sends_block", "unit", "memory_unit", "other")
]
NO_NUMBERS = [
    10**400,
    -(10**400),
    10**5000,
    float("nan"),
    "1",
    b"1",
    {},
    object,
    [10**400] * 2,
]


@for_each(name={name: name for name in NUMBERS})
@pytest.mark.parametrize("wrong", NO_NUMBERS, ids=quoted)
def test_costs_that_no_float_can_hold_are_refused(name, wrong):
    """The story: ``Costs(latency=10**400)`` was an OverflowError, and 10**5000 could
    not even be quoted.
    """
    if (
        name in ("bandwidth", "copy_bandwidth", "cores")
        and isinstance(wrong, int)
        and wrong > 0
    ):
        assert simulate(schedules.gpipe(2, 2), Costs(**{name: wrong})).makespan == 9
        return
    error = refusal(lambda: simulate(schedules.gpipe(2, 2), Costs(**{name: wrong})))
    assert error.code == "value" and name in str(error) and len(str(error)) < 200


@for_each(name={name: name for name in NUMBERS})
@pytest.mark.parametrize("wrong", [True, "1", b"1", [1, False], ("1", 2)], ids=quoted)
def test_a_truth_value_or_text_is_no_cost_from_the_beginning(name, wrong):
    """The story: ``Costs(forward=True)`` was 1, and ``Costs(forward="1")`` failed where
    the costs were used.
    """
    error = refusal(Costs, **{name: wrong})
    assert (
        error.code == "value"
        and f"{name} is" in str(error)
        and "expected numbers" in str(error)
    )


@pytest.mark.parametrize("wrong", [None, 3, "a\x1b[2J", "two\nlines", b"s"])
def test_a_unit_is_a_name_that_can_be_printed(wrong):
    assert refusal(Costs, unit=wrong).code == "value"
    assert refusal(Costs, memory_unit=wrong).code == "value"


@pytest.mark.parametrize(
    "given",
    [
        None,
        5,
        b"F=1",
        "F=" + "1" * 10**6 + "x",
        "F=1," * 10**5,
        "F=" + "1:" * 10**5,
        "\ud800=1",
        "F=\x1b[2J",
    ],
    ids=quoted,
)
def test_costs_of_a_command_line_are_refused_in_a_sentence(given):
    with pytest.raises(MinipipeError) as caught:
        simulate(schedules.gpipe(2, 2), Costs.parse(given))
    assert (
        caught.value.code == "value"
        and len(str(caught.value)) < 400
        and str(caught.value).isprintable()
    )


@pytest.mark.parametrize("pieces", [0, -1, 1.5, "2", None, 10**5000, 10**9], ids=quoted)
def test_a_number_of_pieces_is_within_limits(pieces):
    assert refusal(Costs(forward=[1, 2]).cut, pieces).code in ("value", "too-large")


def test_a_rank_with_five_thousand_digits_is_no_bare_error():
    """Python refuses to read so long a number with a ValueError of its own."""
    assert code_of(Schedule.from_text, "rank " + "0" * 5000 + ": 0F0 0B0") == "syntax"


def test_other_arguments_that_were_bare_errors():
    """IndexError, TypeError and KeyError told nobody what was wrong."""
    assert code_of(schedules.forward_only_over, [0, 5], 2, 2) == "placement"
    assert code_of(schedules.greedy, 4, Costs(), (0, 1), None, None) == "value"
    assert code_of(schedules.build, "gpipe", None) == "value"
    assert code_of(theory.memory_footprint_ratio, 4, 8, 0.5) == "value"


F = ActionKind.FORWARD


@pytest.mark.parametrize("wrong", [Action(-1, F, 0), Action(0, F, -1)])
@pytest.mark.parametrize("use", [simulate, lower, tick_grid])
def test_numbers_below_zero_are_out_of_range_everywhere(use, wrong):
    assert (
        refusal(use, table("wrong", (0, 0), 2, [[wrong, "0F0", "0B0"]])).code
        == "out-of-range"
    )


@pytest.mark.parametrize(
    "wrong", [Action(2, F, 0), Action(-1, F, 0), Action(0, F, 2), Action(0, F, -1)]
)
@pytest.mark.parametrize("use", [peak_activations, weight_versions, staleness, drift])
def test_numbers_out_of_range_are_no_crash_of_an_analysis(use, wrong):
    rows = [[wrong, "0F0", "0B0", "0F1", "0B1", "0U1"]]
    assert refusal(use, table("wrong", (0, 0), 2, rows)).code == "out-of-range"

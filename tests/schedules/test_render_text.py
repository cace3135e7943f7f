"""A timeline drawn as text is exact where a unit is a whole number of columns, and never wider than asked."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from minipipe import schedules
from minipipe.errors import ScheduleError
from minipipe.render import draw_text
from minipipe.schedules import Action, ActionKind, Costs, Schedule, Span, Timeline, simulate


def picture(drawn, width=80):
    """Return the rows without their labels, what goes on below put behind, and the caption."""
    *lines, caption = [line for line in draw_text(drawn, width).splitlines() if not line.startswith("(not to")]
    assert all(len(line) <= width for line in lines)
    rows = {}
    for line in lines:
        if line.startswith("rank"):
            _, rank, cells = line.split(" ", 2)
            rows.setdefault(int(rank), []).append(cells)
    assert list(rows) == list(range(len(rows)))
    return ["".join(cells) for cells in rows.values()], caption


def test_gpipe_drawn_on_two_ranks():
    assert draw_text(schedules.gpipe(2, 2)) == (
        "rank 0 F0---F1---···············B0========B1========\n"
        "rank 1 ·····F0---F1---B0========B1========··········\n"
        "gpipe: makespan 9 units, bubble 33.3 %, peak activations by rank 2, 2"
    )


def test_1f1b_drawn_on_four_ranks():
    assert draw_text(schedules.one_f_one_b(4, 8)) == (
        "rank 0 F0F1F2F3············B0==F4B1==F5B2==F6B3==F7B4==··B5==··B6==··B7==\n"
        "rank 1 ··F0F1F2········B0==F3B1==F4B2==F5B3==F6B4==F7B5==··B6==··B7==····\n"
        "rank 2 ····F0F1····B0==F2B1==F3B2==F4B3==F5B4==F6B5==F7B6==··B7==········\n"
        "rank 3 ······F0B0==F1B1==F2B2==F3B3==F4B4==F5B5==F6B6==F7B7==············\n"
        "1f1b: makespan 33 units, bubble 27.3 %, peak activations by rank 4, 3, 2, 1"
    )


def test_without_room_for_microbatches_the_letters_remain():
    row = picture(schedules.one_f_one_b(4, 40), width=40)[0][0]
    assert row.startswith("FFFF······B0FB1FB2FB3FB4FB5FB6FB7FB8FB9FB=FB=F")


def test_what_is_wider_than_a_line_goes_on_below_with_its_time():
    # 12 units of 4 columns; 33 columns beside the label hold 8 of them.
    assert draw_text(schedules.zb_v(1, 2), width=40) == (
        "rank 0 0F0-1F0-1I0=1W0~0F1-0I0=0W0~1F1-\n"
        "\n"
        "       from 8 units\n"
        "rank 0 1I1=1W1~0I1=0W1~\n"
        "zb-v: makespan 12 units, bubble 0.0 %, peak activations by rank 2"
    )


def test_each_kind_has_its_own_filling():
    rows, _ = picture(Schedule.from_text("0F0 0I0 0W0 0F1 0B1"))
    assert rows == ["F0---I0===W0~~~F1---B1========"]


def test_where_a_rank_holds_several_stages_each_label_names_its_stage():
    rows, _ = picture(schedules.interleaved_1f1b(2, 2, chunks_per_rank=2))
    assert rows == [
        "0F0-0F1-2F0-2F1-········2B0=====····2B1=====0B0=====0B1=====",
        "····1F0-1F1-3F0-3B0=====3F1-3B1=====1B0=====1B1=====········",
    ]


def test_a_timeline_is_drawn_with_its_own_times():
    # tF = 2, tB = 1, and the message takes 1 each way.
    rows, caption = picture(simulate(schedules.gpipe(2, 1), Costs(2, 1, 0, latency=1)))
    assert rows == [
        "F0--------·························B0===",
        "···············F0--------B0===··········",
    ]
    assert caption == "gpipe: makespan 8 units, bubble 62.5 %, peak activations by rank 1, 1"


def test_rows_line_up_from_the_eleventh_rank_on():
    lines = draw_text(schedules.gpipe(11, 1), width=120).splitlines()
    assert lines[0].startswith("rank 0  F0") and lines[10].startswith("rank 10 ··")
    assert len({len(line) for line in lines[:-1]}) == 1
    assert draw_text(schedules.gpipe(10, 1), width=120).startswith("rank 0 F0")


def test_a_long_schedule_fills_the_80_columns_of_a_terminal_and_goes_on_below():
    *rows, _ = draw_text(simulate(schedules.gpipe(2, 9), Costs(forward=0.7))).splitlines()
    assert [len(row) for row in rows] == [80, 80]
    *rows, _ = draw_text(simulate(schedules.gpipe(2, 37), Costs(forward=0.7))).splitlines()
    assert [len(row) for row in rows] == [80, 80, 0, len("       from 51.3 units"), 80, 80, 0, 22, 80, 80]


@pytest.mark.parametrize("costs", ["F=120,I=118,W=60", "F=1e9", "F=0.001,I=1000", "latency=30", "F=0.37,latency=3.1"])
def test_no_costs_make_it_longer_than_four_lines_for_each_rank(costs):
    """The story: a billion whole units were drawn with a billion columns, and 120 microseconds with 270 lines."""
    for name in ("1f1b", "zb-v", "dualpipe-v"):
        lines = draw_text(simulate(schedules.build(name, 4, 16), Costs.parse(costs))).splitlines()
        assert sum(line.startswith("rank 0") for line in lines) <= 4


@pytest.mark.parametrize("name", ["1f1b", "zb-v", "v-half"])
def test_what_is_not_drawn_to_scale_says_so(name):
    """The story: rows without a gap stood above the number 90 %, the bubble of the step that they drew."""
    timeline = simulate(schedules.build(name, 4, 8), Costs(latency=1.1))
    assert "not to scale" not in draw_text(timeline)
    rows, _ = picture(timeline)
    drawn = 1 - sum(cell != "·" for row in rows for cell in row) / sum(map(len, rows))
    assert drawn == pytest.approx(timeline.bubble_fraction, abs=0.05)
    assert "(not to scale:" in draw_text(simulate(schedules.build(name, 4, 64), Costs(latency=3000)))


def test_sends_that_block_are_drawn_and_receives_are_not():
    rows, _ = picture(simulate(schedules.gpipe(2, 1), Costs(1, 1, 0, latency=1, sends_block=True)))
    assert rows == [
        "F0------SEND_F0+························B0======",
        "················F0------B0======SEND_B0+········",
    ]


@settings(deadline=None, max_examples=100)
@given(
    data=st.data(),
    width=st.integers(40, 160),
    unit=st.sampled_from([1, 3, 0.37]),
    latency=st.sampled_from([0, 1, 0.21]),
)
def test_rows_are_of_one_length_and_never_wider_than_asked(every_schedule, data, width, unit, latency):
    schedule = data.draw(st.sampled_from(every_schedule))
    rows, caption = picture(simulate(schedule, Costs(forward=unit, latency=latency)), width)
    assert len(rows) == schedule.num_ranks
    assert len({len(row) for row in rows}) == 1
    assert caption.startswith(f"{schedule.name}: makespan ")


@settings(deadline=None, max_examples=100)
@given(data=st.data(), width=st.integers(40, 160))
def test_a_column_is_idle_exactly_when_its_rank_is(every_schedule, data, width):
    schedule = data.draw(st.sampled_from(every_schedule))
    timeline = simulate(schedule)
    rows, _ = picture(timeline, width)
    per_unit = len(rows[0]) / timeline.makespan
    assert per_unit == int(per_unit)
    for row, spans in zip(rows, timeline.spans):
        busy = {unit for _, start, end in spans for unit in range(int(start), int(end))}
        for column, cell in enumerate(row):
            assert (cell != "·") == (column // per_unit in busy)
        begins = [row[int(span.start * per_unit)] for span in spans]
        assert all(cell in f"{span.action.kind.value}{span.action.stage}" for cell, span in zip(begins, spans))


def test_what_takes_no_time_is_drawn_as_idle():
    rows, caption = picture(simulate(schedules.gpipe(2, 2), Costs(0, 0, 0)))
    assert [set(row) for row in rows] == [{"·"}, {"·"}]
    assert "makespan 0 units" in caption


def test_what_cannot_end_cannot_be_drawn():
    with pytest.raises(ScheduleError) as caught:
        draw_text(Schedule.from_text("0B0 0F0"))
    assert caught.value.code == "deadlock"


def test_measured_times_are_in_milliseconds_and_notes_are_shown():
    span = Span(Action(0, ActionKind.FORWARD, 0), 0.0, 0.0125)
    timeline = Timeline("mine", ((span,),), (1,), unit="s", note="only a test")
    assert draw_text(timeline).splitlines()[1:] == [
        "mine: makespan 12.5 ms, bubble 0.0 %, peak activations by rank 1",
        "(only a test)",
    ]


@given(st.lists(st.tuples(st.floats(0, 5), st.floats(0, 5)), min_size=1, max_size=200))
def test_every_action_is_drawn_as_long_as_there_is_a_column_for_it(pairs):
    """The story: in a measured step of 16 microbatches most actions were shorter than half a column, and vanished.

    And of a step with more actions than columns only the last ones were left.
    """
    spans, time = [], 0.0
    for k, (pause, length) in enumerate(pairs):
        start = time + (pause if k else 0.0)  # the first start is 0
        time = start + length
        spans.append(Span(Action(0, ActionKind.FORWARD, k), start, time))
    (row,), _ = picture(Timeline("mine", (tuple(spans),), (1,), unit="s"))
    if time > 0:
        assert row.count("F") == len(pairs)

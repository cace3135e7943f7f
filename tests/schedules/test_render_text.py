"""A timeline drawn as text is exact where a unit is a whole number of columns, and never wider than asked."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from minipipe import schedules
from minipipe.errors import ScheduleError
from minipipe.render import draw_text
from minipipe.schedules import Action, ActionKind, Costs, Schedule, Span, Timeline, simulate


def picture(drawn, width=80):
    """Return the rows without their labels, and the caption."""
    *rows, caption = draw_text(drawn, width).splitlines()
    assert [row.split()[:2] for row in rows] == [["rank", str(rank)] for rank in range(len(rows))]
    return [row.split(" ", 2)[2] for row in rows], caption


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
    assert picture(schedules.one_f_one_b(4, 8), width=40)[0][0] == "FFFF······B0FB1FB2FB3FB4·B5·B6·B7"


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


def test_a_long_schedule_fills_the_80_columns_of_a_terminal():
    *rows, _ = draw_text(schedules.gpipe(2, 30)).splitlines()
    assert [len(row) for row in rows] == [80, 80]


@settings(deadline=None, max_examples=100)
@given(
    data=st.data(),
    width=st.integers(40, 160),
    unit=st.sampled_from([1, 3, 0.37]),
    latency=st.sampled_from([0, 1, 0.21]),
)
def test_rows_are_of_one_length_and_never_wider_than_asked(every_schedule, data, width, unit, latency):
    schedule = data.draw(st.sampled_from(every_schedule))
    *rows, caption = draw_text(simulate(schedule, Costs(forward=unit, latency=latency)), width).splitlines()
    assert len(rows) == schedule.num_ranks
    assert len({len(row) for row in rows}) == 1
    assert len(rows[0]) <= width
    assert caption.startswith(f"{schedule.name}: makespan ")


@settings(deadline=None, max_examples=100)
@given(data=st.data(), width=st.integers(40, 160))
def test_a_column_is_idle_exactly_when_its_rank_is(every_schedule, data, width):
    schedule = data.draw(st.sampled_from(every_schedule))
    timeline = simulate(schedule)
    rows, _ = picture(timeline, width)
    per_unit = len(rows[0]) / timeline.makespan
    if per_unit != int(per_unit):
        assert timeline.makespan > width - len("rank 0 ")
        return
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


@given(st.lists(st.tuples(st.floats(0, 5), st.floats(0, 5)), min_size=1, max_size=60))
def test_every_action_is_drawn_as_long_as_there_is_a_column_for_it(pairs):
    """The story: in a measured step of 16 microbatches most actions were shorter than half a column, and vanished."""
    spans, time = [], 0.0
    for k, (pause, length) in enumerate(pairs):
        start = time + (pause if k else 0.0)  # the first start is 0
        time = start + length
        spans.append(Span(Action(0, ActionKind.FORWARD, k), start, time))
    row = draw_text(Timeline("mine", (tuple(spans),), (1,), unit="s")).splitlines()[0]
    assert len(row) <= 80
    if time > 0:
        assert row.removeprefix("rank 0 ").count("F") == len(pairs)

"""A timeline drawn as text is exact where a unit is a whole number of columns, and
never wider than asked.
"""

import re
from dataclasses import replace

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from minipipe import schedules
from minipipe.core.schedules.action import Action, ActionKind
from minipipe.core.schedules.action_table import Schedule
from minipipe.errors import ArgumentError, ScheduleError
from minipipe.render import descriptions, draw_text
from minipipe.render.panel import Panel
from minipipe.schedules.simulation.costs import Costs
from minipipe.schedules.simulation.simulator import simulate
from minipipe.schedules.simulation.span import Span
from minipipe.schedules.simulation.timeline import Timeline
from tests.render.text_pictures import picture
from tests.strategies import examples, spans

F = ActionKind.FORWARD


def test_a_unit_has_no_more_columns_than_the_shortest_action_needs_for_its_label():
    drawn = draw_text(simulate(schedules.zb_h1(2, 12), Costs(2, 3, 2)))
    bands = re.findall(r"^rank 0 (.*)$", drawn, re.MULTILINE)
    # 87 units of two columns: "F10" needs three for its two units
    assert [len(band) for band in bands] == [60, 60, 54]


def test_gpipe_drawn_on_two_ranks():
    assert draw_text(schedules.gpipe(2, 2)) == (
        "rank 0 F0---F1---···············B0========B1========\n"
        "rank 1 ·····F0---F1---B0========B1========··········\n"
        "F- forward, B= backward, · idle, F3: microbatch 3\n"
        "gpipe: makespan 9 units, bubble 33.3 %, peak activations by rank 2, 2"
    )


def test_a_caption_of_more_than_80_columns_goes_on_below():
    timeline = replace(
        simulate(schedules.gpipe(2, 2)),
        name="stages of 10, 20, 15 and 5 ms, cut where it costs least",
    )
    assert draw_text(timeline).splitlines()[3:] == [
        "stages of 10, 20, 15 and 5 ms, cut where it costs least: makespan 9 units,",
        "  bubble 33.3 %, peak activations by rank 2, 2",
    ]


def test_1f1b_drawn_on_four_ranks():
    assert draw_text(schedules.one_f_one_b(4, 8)) == (
        "rank 0 F0F1F2F3············B0==F4B1==F5B2==F6B3==F7B4==··B5==··B6==··B7==\n"
        "rank 1 ··F0F1F2········B0==F3B1==F4B2==F5B3==F6B4==F7B5==··B6==··B7==····\n"
        "rank 2 ····F0F1····B0==F2B1==F3B2==F4B3==F5B4==F6B5==F7B6==··B7==········\n"
        "rank 3 ······F0B0==F1B1==F2B2==F3B3==F4B4==F5B5==F6B6==F7B7==············\n"
        "F- forward, B= backward, · idle, F3: microbatch 3\n"
        "1f1b: makespan 33 units, bubble 27.3 %, peak activations by rank 4, 3, 2, 1"
    )


def test_without_room_for_microbatches_the_letters_remain():
    row = picture(schedules.one_f_one_b(4, 40), width=40)[0][0]
    assert row.startswith("FFFF······B0FB1FB2FB3FB4FB5FB6FB7FB8FB9FB=FB=F")


def test_what_is_wider_than_a_line_goes_on_below_an_axis_of_its_own_in_bands_of_about_one_length():
    # 12 units of 4 columns; 33 columns beside the label hold 8 of them, and two bands
    # of 6 are enough.
    assert draw_text(schedules.zb_v(1, 2), width=40) == (
        "units  |0                  |5\n"
        "rank 0 0F0-1F0-1I0=1W0~0F1-0I0=\n"
        "\n"
        "units                  |10\n"
        "rank 0 0W0~1F1-1I1=1W1~0I1=0W1~\n"
        "F- forward, I= backward of the inputs, W~ backward of the weights, · idle,\n"
        "2F3: stage 2, microbatch 3\n"
        "zb-v: makespan 12 units, bubble 0.0 %, peak activations by rank 1 microbatch\n"
        "  over all stages of a rank"
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
    assert (
        caption
        == "gpipe: makespan 8 units, bubble 62.5 %, peak activations by rank 1, 1"
    )


def test_rows_line_up_from_the_eleventh_rank_on():
    lines = draw_text(schedules.gpipe(11, 1), width=120).splitlines()
    assert lines[0].startswith("rank 0  F0") and lines[10].startswith("rank 10 ··")
    assert len({len(line) for line in lines[:11]}) == 1
    assert draw_text(schedules.gpipe(10, 1), width=120).startswith("rank 0 F0")


def test_a_long_schedule_fills_the_80_columns_of_a_terminal_and_goes_on_below():
    *rows, _, _ = draw_text(
        simulate(schedules.gpipe(2, 9), Costs(forward=0.7))
    ).splitlines()
    assert [len(row) for row in rows if not row.startswith("units")] == [
        80,
        80,
        0,
        80,
        80,
    ]
    *rows, _, _ = draw_text(
        simulate(schedules.gpipe(2, 37), Costs(forward=0.7))
    ).splitlines()
    assert [len(row) for row in rows if not row.startswith("units")] == [
        80,
        80,
        0,
    ] * 2 + [80, 80]


@pytest.mark.parametrize(
    "costs",
    ["F=120,I=118,W=60", "F=1e9", "F=0.001,I=1000", "latency=30", "F=0.37,latency=3.1"],
)
def test_no_costs_make_it_longer_than_six_bands(costs):
    """The story: a billion whole units were drawn with a billion columns, and 120
    microseconds with 270 lines.
    """
    for name in ("1f1b", "zb-v", "dualpipe-v"):
        lines = draw_text(
            simulate(schedules.build(name, 4, 16), Costs.parse(costs))
        ).splitlines()
        assert sum(line.startswith("rank 0") for line in lines) <= 6


@pytest.mark.parametrize("name", ["1f1b", "zb-v", "v-half"])
def test_what_is_not_drawn_to_scale_says_so(name):
    """The story: rows without a gap stood above the number 90 %, the bubble of the step
    that they drew.
    """
    timeline = simulate(schedules.build(name, 4, 8), Costs(latency=1.1))
    assert "not to scale" not in draw_text(timeline)
    rows, _ = picture(timeline)
    drawn = 1 - sum(cell != "·" for row in rows for cell in row) / sum(map(len, rows))
    assert drawn == pytest.approx(timeline.bubble_fraction, abs=0.05)
    assert "(not to scale:" in draw_text(
        simulate(schedules.build(name, 4, 64), Costs(latency=3000))
    )


def test_sends_that_block_are_drawn_and_receives_are_not():
    rows, _ = picture(
        simulate(schedules.gpipe(2, 1), Costs(1, 1, 0, latency=1, sends_block=True))
    )
    assert rows == [
        "F0---S0+++···············B0===",
        "··········F0---B0===S0+++·····",
    ]


@examples(100)
@given(
    data=st.data(),
    width=st.integers(40, 160),
    unit=st.sampled_from([1, 3, 0.37]),
    latency=st.sampled_from([0, 1, 0.21]),
)
def test_rows_are_of_one_length_and_never_wider_than_asked(
    every_schedule, data, width, unit, latency
):
    schedule = data.draw(st.sampled_from(every_schedule))
    rows, caption = picture(
        simulate(schedule, Costs(forward=unit, latency=latency)), width
    )
    assert len(rows) == schedule.num_ranks
    assert len({len(row) for row in rows}) == 1
    assert caption.startswith(f"{schedule.name}: makespan ")


@examples(100)
@given(data=st.data(), width=st.integers(40, 160))
def test_a_column_is_idle_exactly_when_its_rank_is(every_schedule, data, width):
    schedule = data.draw(st.sampled_from(every_schedule))
    n = schedule.num_slices  # so that a slice takes whole units
    # what takes no time has a column, too
    timeline = simulate(schedule, Costs(n, n, n, update=1))
    rows, _ = picture(timeline, width)
    per_unit = len(rows[0]) / timeline.makespan
    assert per_unit == int(per_unit)
    for row, own in zip(rows, timeline.spans):
        busy = {unit for _, start, end in own for unit in range(int(start), int(end))}
        for column, cell in enumerate(row):
            assert (cell != "·") == (column // per_unit in busy)
        for action, start, end in own:
            assert (
                start == end
                or row[int(start * per_unit)].upper()
                in f"{action.kind.value}{action.stage}"
            )


def test_what_takes_no_time_is_drawn_as_idle():
    rows, caption = picture(simulate(schedules.gpipe(2, 2), Costs(0, 0, 0)))
    assert [set(row) for row in rows] == [{"·"}, {"·"}]
    assert "makespan 0 units" in caption


def test_what_cannot_end_cannot_be_drawn():
    with pytest.raises(ScheduleError) as caught:
        draw_text(Schedule.from_text("0B0 0F0"))
    assert caught.value.code == "order"


def test_measured_times_are_in_milliseconds_and_notes_are_shown():
    span = Span(Action(0, ActionKind.FORWARD, 0), 0.0, 0.0125)
    timeline = Timeline("mine", ((span,),), (1,), unit="s", note="only a test")
    assert draw_text(timeline).splitlines()[1:] == [
        "F- forward, · idle, F3: microbatch 3",
        "mine: makespan 12.5 ms, bubble 0.0 %, peak activations by rank 1",
        "(only a test)",
    ]


@given(st.lists(st.tuples(st.floats(0, 5), st.floats(0, 5)), min_size=1, max_size=200))
@example([(0.0, 5e-324), (0.0, 1.0)])
@example([(0.0, 1.0)] + 199 * [(0.0, 0.0)])
def test_every_action_is_drawn_as_long_as_there_is_a_column_for_it(pairs):
    """The story: in a measured step of 16 microbatches most actions were shorter than
    half a column, and vanished.

    And of a step with more actions than columns only the last ones were left. Then
    hypothesis found an action of 5e-324 seconds beside one of a second: that many
    columns, it was reckoned, would give it a label, and the sum overflowed.
    """
    spans, time = [], 0.0
    for k, (pause, length) in enumerate(pairs):
        start = time + (pause if k else 0.0)  # the first start is 0
        time = start + length
        spans.append(Span(Action(0, ActionKind.FORWARD, k), start, time))
    (row,), _ = picture(Timeline("mine", (tuple(spans),), (1,), unit="s"))
    if time > 0:
        assert row.count("F") == len(pairs)


# -- wide drawings ---------------------------------------------------------------------


def test_a_wide_v_names_every_microbatch_and_tells_the_second_stage_of_a_rank_by_lower_case():
    """The story: 4 ranks and 16 microbatches of zb-v were rows of FIWFIW, with neither
    stage nor microbatch.
    """
    text = draw_text(schedules.zb_v(4, 16))
    assert text.endswith("\n(lower case: the second stage of its rank)")
    rows, _ = picture(schedules.zb_v(4, 16))
    for row, actions in zip(rows, schedules.zb_v(4, 16).actions):
        labels = [f"{a.kind}{a.microbatch}" for a in actions]
        expected = [
            label if a.stage < 4 else label.lower() for a, label in zip(actions, labels)
        ]
        assert re.findall(r"[A-Za-z]\d+", row) == expected


def test_of_two_pipelines_lower_case_tells_the_second_on_every_rank():
    schedule = schedules.dualpipe(8, 20)
    text = draw_text(schedule)
    assert text.endswith(
        "\n(lower case: the second stage of its rank, or its replica of later "
        "microbatches)"
    )
    rows, _ = picture(schedule)
    for row, actions in zip(rows, schedule.actions):
        letters = re.findall("[A-Za-z]", row)
        assert letters == [
            a.kind if a.microbatch < 10 else a.kind.lower() for a in actions
        ]


def test_where_a_rank_holds_more_than_two_stages_lower_case_would_not_tell_them_so_labels_name_them():
    text = draw_text(schedules.interleaved_1f1b(4, 8, chunks_per_rank=3))
    assert "rank 0 0F0" in text and "11B7" in text and "lower case" not in text


@pytest.mark.parametrize("width", [80, 120, 160])
@pytest.mark.parametrize(
    ("name", "sizes"),
    [("1f1b", (4, 16)), ("interleaved-1f1b", (4, 8)), ("zb-h2", (4, 16))],
)
def test_bands_are_of_one_length_but_the_last_which_is_shorter_by_less_than_a_unit_for_each_band(
    name, sizes, width
):
    lines = draw_text(schedules.build(name, *sizes), width=width).splitlines()
    lengths = [
        len(line) - len("rank 0 ") for line in lines if line.startswith("rank 0")
    ]
    *others, last = lengths
    assert set(others) <= {max(lengths)} and last > max(lengths) / 3


def test_the_axis_marks_the_column_in_which_a_time_begins():
    timeline = simulate(schedules.zb_v(2, 7))
    lines = draw_text(timeline).splitlines()
    axes = [line for line in lines if line.startswith("units")]
    assert len(axes) > 1
    cells, per_unit, first = 0, None, {}
    rows = [line.removeprefix("rank 0 ") for line in lines if line.startswith("rank 0")]
    per_unit = sum(map(len, rows)) / timeline.makespan
    for axis, row in zip(axes, rows):
        for found in re.finditer(r"\|(\S+)", axis):
            assert (cells + found.start() - len("rank 0 ")) / per_unit == float(
                found[1]
            )
            first[float(found[1])] = True
        cells += len(row)
    assert len(first) >= timeline.makespan // 5


@given(st.floats(0, 1e6), st.floats(1e-6, 1e6), st.floats(0.01, 1))
def test_the_axis_of_any_times_marks_its_column_within_half_a_column(
    start, makespan, part
):
    span = Span(Action(0, ActionKind.FORWARD, 0), start, start + makespan * part)
    other = Span(
        Action(0, ActionKind.FORWARD, 1), start + makespan * part, start + makespan
    )
    timeline = Timeline("mine", ((span, other),), (1,), unit="s")
    lines = draw_text(timeline, timeline).splitlines()
    axes = [line for line in lines if line.startswith("ms")]
    length = len(next(line for line in lines if line.startswith("rank 0"))) - 7
    if len(axes) == 1 and timeline.makespan > makespan / 2:
        for found in re.finditer(r"\|(\S+)", axes[0]):
            column = float(found[1]) / 1000 / timeline.makespan * length
            assert abs(column - (found.start() - 7)) <= 0.51


# -- several on one axis ---------------------------------------------------------------


def groups(text):
    """Return, for each title, the rows under it, all bands behind each other, and the
    captions.
    """
    found, captions = {}, []
    for line in text.splitlines():
        if line.startswith("       "):
            title = line.strip()
        elif line.startswith("rank "):
            _, rank, cells = line.split(" ", 2)
            rows = found.setdefault(title, {})
            rows[int(rank)] = rows.get(int(rank), "") + cells
        elif line and not line.startswith(("units", "ms", "(", "F- ")):
            captions.append(line)
    return {title: list(rows.values()) for title, rows in found.items()}, captions


def test_a_schedule_of_twice_the_length_takes_twice_the_columns_and_each_has_its_caption():
    short, long = (
        simulate(schedules.gpipe(2, 2)),
        simulate(schedules.gpipe(2, 2), Costs(2, 2, 2)),
    )
    found, captions = groups(
        draw_text(short, replace(long, name="slow", is_measured=True))
    )
    assert list(found) == ["gpipe, predicted", "slow, measured"]
    a, b = found.values()
    assert len(a[0]) * 2 == len(b[0])
    assert [row.index("B0") * 2 for row in a] == [row.index("B0") for row in b]
    assert captions == [
        descriptions.caption(Panel(item))
        for item in (short, replace(long, name="slow", is_measured=True))
    ]


@examples(60)
@given(data=st.data(), width=st.integers(40, 160), unit=st.sampled_from([1, 2, 0.37]))
def test_equal_columns_are_equal_times_in_all_that_is_drawn_together(
    every_schedule, data, width, unit
):
    chosen = st.sampled_from(every_schedule)
    timelines = [simulate(data.draw(chosen), Costs(unit, unit, unit)) for _ in range(2)]
    names = [replace(timeline, name=f"{i}") for i, timeline in enumerate(timelines)]
    text = draw_text(*names, width=width)
    assert all(
        len(line) <= width
        for line in text.splitlines()
        if line.startswith(("rank", "units"))
    )
    if "(not to scale" in text:
        return
    found, _ = groups(text)
    longest = max(timeline.makespan for timeline in timelines)
    columns = max(len(row) for rows in found.values() for row in rows)
    for rows, timeline in zip(found.values(), timelines):
        for row, own in zip(rows, timeline.spans):
            assert abs(len(row) - timeline.makespan / longest * columns) <= 1
            busy = sum(cell != "·" for cell in row)
            assert abs(
                busy - sum(s.end - s.start for s in own) / longest * columns
            ) <= max(2, columns / 30)


def test_each_counts_its_time_from_its_own_start():
    timeline = simulate(schedules.gpipe(2, 2))
    later = [
        [Span(a, start + 1e6, end + 1e6) for a, start, end in row]
        for row in timeline.spans
    ]
    found, _ = groups(
        draw_text(timeline, Timeline("later", tuple(map(tuple, later)), (2, 2)))
    )
    assert found["gpipe, predicted"] == found["later, predicted"]


def test_one_that_has_ended_is_left_out_of_the_bands_below():
    long, short = (
        replace(simulate(schedules.zb_v(4, 8)), name="long"),
        simulate(schedules.gpipe(2, 1)),
    )
    text = draw_text(long, short)
    assert (
        text.count("long, predicted\n") == 3 and text.count("gpipe, predicted\n") == 1
    )


def test_what_is_neither_schedule_nor_timeline_and_nothing_at_all_are_refused():
    for wrong in ((80,), (schedules.gpipe(2, 2), "1f1b"), (schedules.zb_v,)):
        with pytest.raises(TypeError, match="expected a Schedule or a Timeline"):
            draw_text(*wrong)
    with pytest.raises(ValueError, match="Nothing to draw"):
        draw_text()


def test_what_is_crowded_at_the_end_of_a_short_one_stays_within_its_own_length():
    def timeline(*lengths):
        times = [sum(lengths[:i]) for i in range(len(lengths) + 1)]
        spans = [
            Span(Action(0, F, k), *ends) for k, ends in enumerate(zip(times, times[1:]))
        ]
        return Timeline(f"of {len(spans)}", (tuple(spans),), (1,))

    found, _ = groups(
        draw_text(timeline(33.3, 33.3, 33.4), timeline(9.7, 0.1, 0.1, 0.1))
    )
    (long,), (short,) = found.values()
    assert short.count("F") == 4 and len(short) <= len(long) / 10 + 1


def test_a_drawing_of_too_many_characters_is_refused_before_it_is_made(monkeypatch):
    """The story: thousands of ranks took gigabytes for a drawing that no terminal
    shows.
    """
    monkeypatch.setattr("minipipe.render.text.MOST_CHARACTERS", 100)
    with pytest.raises(
        ArgumentError,
        match="would have 264 characters; the limit is 100. Choose the format svg",
    ):
        draw_text(schedules.gpipe(4, 8))


def test_labels_have_room_for_the_longest_and_bands_tell_milliseconds():
    assert "F10" in draw_text(schedules.gpipe(1, 12))
    timeline = Timeline(
        "m", (spans(*[(f"0F{k}", k, k + 1) for k in range(100)]),), (1,), unit="s"
    )
    assert "\n\nms     |20000         |25000 " in draw_text(timeline)
    with pytest.raises(ValueError, match="at least 40"):
        draw_text(schedules.gpipe(2, 2), width=39)


def test_what_takes_no_time_among_what_does_is_drawn_all_the_same():
    row, *_ = draw_text(simulate(schedules.zb_h1(1, 8), Costs(3, 3, 0))).splitlines()
    assert row.count("W") == 8

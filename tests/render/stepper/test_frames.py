"""The frames of the stepper: a screen as on paper, any window, shades of the grid."""

import re

from hypothesis import given
from hypothesis import strategies as st

from minipipe import schedules
from minipipe.core.schedules.analysis.lowering import lower
from minipipe.errors import ScheduleError
from minipipe.render.stepper.frame import LEAST_SIZE, Frame
from minipipe.render.stepper.walkthrough import Walkthrough
from minipipe.schedules import schedule_of_text
from minipipe.schedules.simulation.costs import Costs
from tests.render.stepper.screens import plain
from tests.strategies import examples, named_schedules, table


def test_a_screen_of_1f1b_as_on_paper():
    walkthrough = Walkthrough(schedules.one_f_one_b(4, 8))
    assert Frame(walkthrough).draw(walkthrough[17], 79, 23) == [
        (
            "1f1b: 4 ranks, 4 stages, 8 microbatches       step 17 of 64, time 9 of "
            "33 units"
        ),
        "rank 2 begins 2B1: backward of microbatch 1 on stage 2",
        "",
        "units  |0        |5        |10       |15       |20       |25       |30",
        "                         v",
        "rank 0 F0F1F2F3··········  B0  F4B1  F5B2  F6B3  F7B4    B5    B6    B7",
        "rank 1 ··F0F1F2········B0==F3B1  F4B2  F5B3  F6B4  F7B5    B6    B7",
        "rank 2>····F0F1····B0==F2B1==F3B2  F4B3  F5B4  F6B5  F7B6    B7",
        "rank 3 ······F0B0==F1B1==F2B2  F3B3  F4B4  F5B5  F6B6  F7B7",
        "",
        "       now                                    next         holds",
        "rank 0 waits for 1B0 on rank 1 until 10       0B0 0F4 0B1  4 (0-3)",
        "rank 1 1B0 until 10                           1F3 1B1 1F4  3 (0-2)",
        "rank 2>2B1 until 11                           2F3 2B2 2F4  2 (1,2)",
        "rank 3 begins 3F2 now                         3F2 3B2 3F3",
        "",
        "result of 0F3, rank 0 to rank 1: delivered, not yet consumed by 1F3",
        "result of 2F2, rank 2 to rank 3: delivered, not yet consumed by 3F2",
        "",
        "F- forward, B= backward, · idle, F3: microbatch 3",
    ]


@examples(60)
@given(
    data=st.data(),
    width=st.integers(LEAST_SIZE[0], 200),
    height=st.integers(LEAST_SIZE[1], 60),
    named=named_schedules(max_ranks=12, max_microbatches=6, max_chunks=3),
    unit=st.sampled_from([1.0, 0.37, 1e-6]),
    latency=st.sampled_from([0.0, 0.5]),
    is_lowered=st.booleans(),
    is_broken=st.booleans(),
)
def test_a_frame_fits_its_window_and_colour_changes_no_character(
    data, width, height, named, unit, latency, is_lowered, is_broken
):
    schedule = lower(named[1]) if is_lowered else named[1]
    if is_broken:
        rows = [
            row[1:] if rank == 0 else row for rank, row in enumerate(schedule.actions)
        ]
        schedule = table("broken", schedule.placement, schedule.num_microbatches, rows)
    try:
        walkthrough = Walkthrough(schedule, Costs(unit, latency=latency))
    except ScheduleError:
        return
    snapshot = walkthrough[data.draw(st.integers(0, len(walkthrough) - 1))]
    lines = Frame(walkthrough).draw(snapshot, width, height)
    assert len(lines) <= height and all(len(line) <= width for line in lines)
    assert (
        list(map(plain, Frame(walkthrough, colour=True).draw(snapshot, width, height)))
        == lines
    )
    if snapshot.event:
        assert any(re.match(rf"rank {snapshot.event.rank} *>", line) for line in lines)


def test_an_action_on_a_wrong_rank_has_the_shade_of_its_box_in_the_strip():
    """The story: the table looked its stage up among those placed on the rank, and
    colour raised a ValueError.
    """
    walkthrough = Walkthrough(schedule_of_text("0F0 0F1 1F0 0B0\n1B0 1F1 1B1 0B1"))
    lines = Frame(walkthrough, colour=True).draw(walkthrough[3], 79, 23)
    drawn = [
        re.search(r"\x1b\[([\d;]+)m1F0", line)
        for line in lines
        if plain(line).startswith("rank 0>")
    ]
    assert len({shade[1] for shade in drawn}) == 1 and len(drawn) == 2


@examples(60)
@given(
    data=st.data(), named=named_schedules(max_ranks=4, max_microbatches=6, max_chunks=2)
)
def test_in_the_grid_what_has_begun_is_filled_and_what_comes_is_not(data, named):
    walkthrough = Walkthrough(named[1], Costs(update=1))
    snapshot = walkthrough[data.draw(st.integers(0, len(walkthrough) - 1))]
    frame = Frame(walkthrough)
    lines = frame.draw(snapshot, 2000, 40)  # so wide that all is there
    at = next(i for i, line in enumerate(lines) if line.startswith("units"))
    columns = frame.strip.columns
    for rank, state in enumerate(snapshot.ranks):
        now = round(
            columns.column(state.until if state.activity == "runs" else snapshot.time)
        )
        row = lines[at + 2 + rank][len("rank 0 ") :].ljust(now)
        assert " " not in row[:now] and not set(row[now:]) & set("-=~#+·")
        coming = walkthrough.program.actions[rank][
            state.position + (state.activity == "runs") :
        ]
        assert re.findall(r"[FBIWU][\d.]+", row[now:].upper()) == [
            f"{a.kind}{a.microbatch}" for a in coming
        ]


@examples(60)
@given(
    data=st.data(),
    named=named_schedules(["1f1b", "zb-v", "gpipe"], max_ranks=4, max_microbatches=12),
    width=st.integers(LEAST_SIZE[0], 90),
)
def test_the_part_of_the_grid_that_is_shown_has_the_cursor_and_is_busy_where_its_ranks_are(
    data, named, width
):
    walkthrough = Walkthrough(named[1])
    snapshot = walkthrough[data.draw(st.integers(1, len(walkthrough) - 1))]
    frame = Frame(walkthrough)
    lines = frame.draw(snapshot, width, 40)
    at = next(i for i, line in enumerate(lines) if line.startswith("units"))
    tick = re.search(r"\|(\d+)", lines[at])
    per_unit = frame.strip.columns.total / walkthrough.timeline.makespan
    # the strip's column at the left edge
    first = int(tick[1]) * per_unit - (tick.start() - 7)
    marker = lines[at + 1].index("v")
    assert 7 <= marker < width
    assert (
        marker - 7 + first == snapshot.time * per_unit
        or snapshot.number == len(walkthrough) - 1
    )
    for row, spans in zip(lines[at + 2 :], walkthrough.timeline.spans):
        busy = {unit for _, start, end in spans for unit in range(int(start), int(end))}
        for column, sign in enumerate(row[7:marker]):
            assert (sign != "·") == ((first + column) // per_unit in busy)

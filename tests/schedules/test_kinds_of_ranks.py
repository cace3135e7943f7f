"""A program declares an instruction of a rank: its word stands in a row once."""

import pickle

import pytest

from minipipe import Costs, Schedule, simulate, verify
from minipipe.errors import ArgumentError, ScheduleError
from minipipe.render import draw_html, draw_svg, draw_text, perfetto_trace
from minipipe.render.stepper.frame import Frame
from minipipe.render.stepper.walkthrough import Walkthrough
from minipipe.schedules import (
    Action,
    ActionKind,
    Kind,
    Meeting,
    Noun,
    Program,
    Uses,
    declare,
    declared,
)


def everybody(site):
    return Meeting(("sync",), site.setting.num_ranks)


def sync(site):
    return Uses(gives=(site.value("synchronised"),))


SYNC = Kind(
    "SYNC",
    sync,
    "synchronisation of all ranks",
    meets=everybody,
    time="SYNC",
    of_rank=True,
)
NOUNS = {
    "synchronised": Noun(
        "synchronisation", of_rank=True, may_stay=lambda setting, owner: True
    )
}
# one stage, three replicas
TEXT = "rank 0: 0F0 0B0 SYNC\nrank 1: SYNC 0F1 0B1\nrank 2: 0F2 0B2 SYNC\n"


@pytest.fixture(autouse=True)
def _declared():
    with declared(SYNC, NOUNS):
        yield


def test_its_word_is_read_for_the_rank_of_its_row_and_written_again():
    table = Program.from_text(TEXT)
    kind = ActionKind("SYNC")
    assert table.actions[1][0] == Action(1, kind, 0) == Action.parse("1SYNC0")
    assert str(table).endswith(TEXT.rstrip()) and str(table.actions[2][-1]) == "SYNC"
    assert Program("again", (0, 1, 2), 3, [["SYNC"], ["SYNC"], ["SYNC"]]).actions[
        2
    ] == (Action(2, kind, 0),)
    assert pickle.loads(pickle.dumps(table)) == table


def test_its_cell_alone_names_no_rank():
    with pytest.raises(ScheduleError, match="'SYNC' is not an action"):
        Action.parse("SYNC")


def test_replicas_keep_the_order_of_their_own_microbatches():
    assert Program.from_text("rank 0: SYNC 0F1 0B1\nrank 1: SYNC 0F0 0B0").ranks_of(
        0
    ) == (1, 0)


def test_papers_omit_the_stage_beside_it():
    assert Schedule.from_text("F0 B0 SYNC \n F0 B0 SYNC").actions[1][2] == Action(
        1, ActionKind("SYNC"), 0
    )


def test_slices_stand_beside_it():
    table = Schedule.from_text("SYNC 0F0.0 0F0.1 0B0.1 0B0.0")
    verify(table)
    assert str(table).endswith("rank 0: SYNC 0F0.0 0F0.1 0B0.1 0B0.0")


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("0F0 0B0 SYNC\n0F1 0B1", "SYNC is missing on rank 1; the others wait for it"),
        (
            "0F0 0B0 SYNC SYNC\nSYNC 0F1 0B1",
            "position 3: SYNC is a duplicate of position 2",
        ),
        (
            "0F0 0B0 SYNC\n0SYNC0 0F1 0B1",
            "names rank 0 and microbatch 0; an instruction of a rank names its own",
        ),
        (
            "0F0 0B0 SYNC\n1SYNC1 0F1 0B1",
            "names rank 1 and microbatch 1; an instruction of a rank names its own",
        ),
    ],
)
def test_a_row_without_it_or_with_another_one_is_refused(text, words):
    with pytest.raises(ScheduleError, match=words):
        verify(Schedule.from_text(text))


def test_all_ranks_start_and_end_it_together():
    timeline = simulate(Program.from_text(TEXT), Costs(other={"SYNC": [0.5, 0.25, 1]}))
    assert [
        [(s.start, s.end) for s in row if str(s.action) == "SYNC"]
        for row in timeline.spans
    ] == [[(3, 4)]] * 3
    assert timeline.makespan == 7
    waits = timeline.idle[1][0]
    assert (str(waits.awaited), waits.source, waits.start, waits.end) == (
        "SYNC",
        0,
        0,
        3,
    )


@pytest.mark.parametrize("draw", [draw_text, draw_svg, draw_html, perfetto_trace])
def test_it_is_drawn_by_its_word(draw):
    timeline = simulate(Program.from_text(TEXT), Costs(other={"SYNC": 3}))
    drawn = str(draw(timeline))
    assert "SYNC" in drawn and "SYNC0" not in drawn


def test_the_stepper_says_who_waits_for_it():
    walkthrough = Walkthrough(Program.from_text(TEXT), Costs(other={"SYNC": 3}))
    state = walkthrough[1].ranks[1]
    assert (str(state.awaited), state.source) == ("SYNC", 0)
    screens = [
        "\n".join(Frame(walkthrough).draw(snapshot, 100, 30))
        for snapshot in walkthrough
    ]
    assert any("waits for SYNC on rank 0" in screen for screen in screens)
    assert not any("SYNC0" in screen for screen in screens)


def test_it_gives_values_of_a_rank_and_others_give_values_of_a_stage():
    kind = SYNC._replace(
        name="LOOK", uses=lambda site: Uses(gives=(site.value("sight"),))
    )
    for of_rank in (False, True):
        with pytest.raises(
            ArgumentError,
            match=f"'sight' of a .*; expected a Noun with of_rank={of_rank}",
        ):
            declare(
                kind._replace(of_rank=of_rank),
                {"sight": Noun("sight", of_rank=not of_rank)},
            )

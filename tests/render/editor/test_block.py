"""Building blocks in the editor: messages and what the page shows."""

import json

import pytest

from minipipe import Costs, Schedule, schedules, simulate
from minipipe.render.editor import Editor, draw_editor
from minipipe.render.editor.block import PATTERNS, block_data, block_like
from minipipe.render.editor.draft import Draft
from minipipe.schedules import BuildingBlock, build
from minipipe.schedules.placements import v_placement


def asked(editor, **message):
    """Ask in JSON, as a page does."""
    return json.loads(editor.ask(json.dumps(message)))


@pytest.fixture
def editor():
    return Editor(Draft.of(build("1f1b", 2, 8)))


@pytest.mark.parametrize("name", PATTERNS)
def test_a_pattern_is_repeated_and_holds_what_was_predicted(editor, name):
    block = asked(editor, do="pattern", name=name)["block"]
    assert block["problem"] == "" and "It can be repeated." in block["said"]
    interval = block["interval"]
    message = {"do": "repeat", "text": block["text"], "interval": interval}
    answer = asked(editor, **message, microbatches=16)
    predicted = ", ".join(str(peak) for *_, peak in block["memory"])
    assert answer["said"] == f"Repeated. The block predicts peaks of {predicted}."
    figures = dict(answer["figures"])
    assert figures["peak activations by rank"].startswith(predicted)
    assert answer["halves"] == ("1f1b" not in name) and "undo" in answer["can"]
    exported = Schedule.from_csv(asked(editor, do="export", form="csv")["content"])
    timeline = simulate(exported)
    assert list(timeline.peak_activations) == [peak for *_, peak in block["memory"]]
    assert figures["makespan"] == f"{timeline.makespan:g} units"


def test_what_the_page_shows_of_a_block_is_the_block():
    block = BuildingBlock.of(schedules.v_half(4, 48))
    shown = block_data(block)
    for rank, (boxes, row) in enumerate(zip(shown["rows"], block.spans)):
        assert [box[:3] for box in boxes] == [
            (f"{stage}{kind}", start, end - start)
            for (stage, kind, _), start, end in row
        ]
        label, lives, mean, peak = shown["memory"][rank]
        first, second = (block.lifespans[stage] for stage in (rank, 7 - rank))
        assert (label, peak) == (f"rank {rank}", 6)
        assert lives == f"{first:g} / 6 + {second:g} / 6"
        assert mean == f"{(first + second) / 6:.3g}"
    # of the two stages of a rank, the later one is darker
    fills = {box[0]: box[3] for box in shown["rows"][0]}
    assert len({fills[name] for name in ("0F", "7F", "0I", "7I")}) == 4


def test_one_microbatch_without_waits_has_the_shortest_interval_and_may_collide(editor):
    block = asked(editor, do="pattern")["block"]
    assert block["interval"] == 3
    assert block["problem"].startswith("Two actions need rank 0 at ")
    again = asked(editor, do="block", text=block["text"], interval=block["length"])
    assert again["block"]["problem"] == ""
    wide = block_like(Draft.of(build("zb-v", 3, 6)), "", Costs(forward=2))
    assert (wide.placement, wide.interval) == (v_placement(3), 8)


def test_a_block_has_the_costs_of_the_page(editor):
    asked(editor, do="costs", costs="F=1,I=1,W=1,latency=0.5")
    block = asked(editor, do="pattern")["block"]
    assert block["text"].startswith("rank 0: 0F@0 0I@4 0W@5\n")
    early = block["text"].replace("1F@1.5", "1F@1")
    problem = asked(editor, do="block", text=early, interval=9)["block"]["problem"]
    assert problem == ("Rank 1: 1F starts at 1, but its input from 0F arrives at 1.5.")


def test_a_block_changes_nothing_until_it_is_repeated(editor):
    before = asked(editor, do="show")
    text = asked(editor, do="pattern", name="zb-h1")["block"]["text"]
    asked(editor, do="block", text=text, interval=3)
    assert asked(editor, do="show") == before


TEXT = "0F@0 0B@4\n1F@1 1B@2"


@pytest.mark.parametrize(
    ("message", "words"),
    [
        ({"do": "pattern", "name": "gpipe"}, "expected '', '1f1b'"),
        ({"do": "pattern", "name": ["1f1b"]}, "The pattern"),
        ({"do": "block", "text": "0F@0 0B", "interval": 3}, "Line 1, cell 2"),
        ({"do": "block", "text": 7, "interval": 3}, "The block is 7"),
        ({"do": "block", "text": TEXT, "interval": "3"}, "interval is '3'"),
        ({"do": "repeat", "text": TEXT, "interval": 2, "microbatches": 4}, "need rank"),
        ({"do": "repeat", "text": TEXT, "interval": 3, "microbatches": "4"}, "'4'"),
        ({"do": "repeat", "text": TEXT, "interval": 3, "microbatches": 0}, "is 0"),
        (
            {"do": "repeat", "text": TEXT, "interval": 3, "microbatches": 10**6},
            "the editor takes at most",
        ),
    ],
)
def test_what_is_no_block_gets_a_sentence_and_changes_nothing(editor, message, words):
    before = asked(editor, do="show")
    answer = asked(editor, **message)
    assert answer["isRefused"] and words in answer["said"]
    assert asked(editor, do="show") == before


def test_a_limit_and_a_puzzle_hold_for_a_block_as_well(editor):
    message = {"do": "repeat", "text": TEXT, "interval": 3, "microbatches": 8}
    asked(editor, do="limit", limit=2)
    longer = message | {"text": TEXT.replace("0B@4", "0B@7")}
    assert "the limit is 2" in asked(editor, **longer)["said"]
    assert not asked(editor, **message)["isRefused"]
    asked(editor, do="puzzle", number=1)
    assert "Puzzle 1 has 2 stages" in asked(editor, **message)["said"]
    answer = asked(editor, **message | {"microbatches": 2})
    assert not answer["isRefused"] and answer["puzzle"] == 1


def test_a_pattern_for_too_many_ranks_is_refused_before_it_is_built():
    editor = Editor(Draft.of(build("gpipe", 60, 60)))
    answer = asked(editor, do="pattern", name="v-half")
    assert answer["isRefused"] and "the editor takes at most" in answer["said"]


def test_the_page_offers_the_patterns_and_follows_a_theme_only_on_the_site(editor):
    page = draw_editor(editor, "worker", home="../index.html")
    for name in PATTERNS:
        assert f"<option>{name}</option>" in page
    assert "localStorage" in page and "localStorage" not in draw_editor(editor, "http")

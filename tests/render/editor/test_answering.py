"""The protocol of the editor: every message, without a browser."""

import json
import re

import pytest

from minipipe import Costs, Schedule, schedules, simulate
from minipipe.coursework.checking import load
from minipipe.coursework.exercise import exercises_in, find_source
from minipipe.render.editor import Editor, draw_editor
from minipipe.render.editor.draft import Draft
from minipipe.render.editor.puzzles import PUZZLES
from minipipe.render.editor.sharing import packed, unpacked
from minipipe.schedules import find_schedule
from minipipe.schedules.analysis.workload import Objective

SMALL = {"do": "open", "name": "1f1b", "ranks": 2, "microbatches": 2}
BUILD_1F1B = ["0:0F0", "1:1F0", "0:0F1", "1:1B0", "0:0B0", "1:1F1", "1:1B1", "0:0B1"]


def asked(editor, **message):
    """Ask in JSON, as a page does."""
    return json.loads(editor.ask(json.dumps(message)))


@pytest.fixture
def editor():
    made = Editor()
    assert not asked(made, **SMALL)["isRefused"]
    return made


def place(editor, *words):
    for word in words:
        rank, cell = word.split(":")
        answer = asked(editor, do="place", rank=int(rank), action=cell)
        assert not answer["isRefused"], answer["said"]
    return answer


def text_of(editor):
    return "\n".join(asked(editor, do="show")["text"].splitlines()[1:])


def figures(answer):
    return dict(answer["figures"])


def test_1f1b_is_built_by_hand_and_recognised(editor):
    asked(editor, do="empty")
    answer = place(editor, *BUILD_1F1B[:-1])
    assert answer["said"] == "" and figures(answer)["placed"] == "7 of 8 actions"
    answer = place(editor, BUILD_1F1B[-1])
    assert answer["said"].startswith("You built 1f1b")
    assert figures(answer) | {
        "bubble": "33.3 %",
        "makespan": "9 units",
        "gap": "28.6 %",
    } == figures(answer)
    assert (
        schedules.Schedule.from_text(answer["text"], "1f1b").actions
        == schedules.one_f_one_b(2, 2).actions
    )


def test_what_has_no_name_is_complete_as_well(editor):
    answer = asked(editor, do="text", text="0F0 0F1 0B0 0B1\n1F0 1F1 1B1 1B0")
    assert answer["said"] == "The schedule is complete and legal."


def test_what_is_opened_was_not_built(editor):
    assert "built" not in asked(editor, **SMALL)["said"]


def test_a_schedule_is_opened_by_its_name_in_any_case(editor):
    """The story: it was built, and then the sentence about it was looked up as it was
    written: a KeyError.
    """
    named = {
        name: asked(editor, do="open", name=name, ranks=2, microbatches=2)
        for name in ("1f1b", "1F1B")
    }
    assert (
        named["1F1B"]["said"] == named["1f1b"]["said"]
        and not named["1F1B"]["isRefused"]
    )


def test_a_wrong_action_is_refused_and_changes_nothing(editor):
    asked(editor, do="empty")
    before = text_of(editor)
    answer = asked(editor, do="place", rank=1, action="1B0")
    assert (
        answer["isRefused"]
        and answer["said"]
        == "Rank 1, position 0: 1B0 comes before 1F0, which it needs."
    )
    assert "player" not in answer and text_of(editor) == before


def test_a_rank_alone_places_what_is_ready_or_offers_it(editor):
    asked(editor, do="empty")
    place(editor, "0:0F0", "1:1F0", "1:1B0")
    answer = asked(editor, do="place", rank=0)
    assert answer["offers"] == ["0F1", "0B0"] and "0F1 or 0B0" in answer["said"]
    assert "0F0 0F1" in asked(editor, do="place", rank=0, kind="F")["text"]
    assert asked(editor, do="place", rank=1)["said"] == "" and "1B0 1F1" in text_of(
        editor
    )
    assert "no W left to place" in asked(editor, do="place", rank=1, kind="W")["said"]


def test_undo_and_redo_go_through_all_that_was_done(editor):
    texts = [text_of(editor)]
    for message in (
        {"do": "empty"},
        {"do": "place", "rank": 0},
        {"do": "text", "text": "0F0 0F1\n1F0"},
    ):
        asked(editor, **message)
        texts.append(text_of(editor))
    assert asked(editor, do="show")["can"] == ["undo"]
    for text in texts[-2::-1]:
        asked(editor, do="undo")
        assert text_of(editor) == text
    assert asked(editor, do="undo")["said"] == "There is nothing to undo."
    for text in texts[1:]:
        asked(editor, do="redo")
        assert text_of(editor) == text
    assert asked(editor, do="redo")["isRefused"]
    asked(editor, do="undo")
    asked(editor, do="back", rank=0)
    assert asked(editor, do="redo")["isRefused"], "an edit begins a new future"


def test_what_begins_at_a_time_or_later_is_cut(editor):
    answer = asked(editor, do="cut", time=3)
    assert [
        len(rank["actions"]) for rank in answer["player"]["panels"][0]["ranks"]
    ] == [2, 2]
    assert (
        asked(editor, do="cut", time="3")["said"]
        == "The time is '3'; expected a number."
    )


@pytest.mark.parametrize(
    ("text", "place", "words"),
    [
        ("0F0 0X1\n1F0", [1, 2], "Line 1, cell 2: '0X1' is not an action"),
        (
            "# mine\nrank 0: 0F0 0B0\nrank 1: 1B0 1F0",
            [3, 1],
            "Rank 1, position 0: 1B0 comes before 1F0",
        ),
        ("0F0,0F0\n1F0,", [1, 2], "0F0 is a duplicate of position 0"),
        ("0F1 0B0 0F0 0B1\n1F0 1B0 1F1 1B1", [1, 2], "0B0 comes before 0F0"),
        ("0F0 0B0 0F1 0B1\n1F1 1B1 1F0 1B0", [1, 2], "wait for each other in a cycle"),
        # 0F1 has no position
        (
            "0F0 0B1\n1F0",
            [1, 2],
            "Rank 0, position 1: 0B1 comes before 0F1, which it needs.",
        ),
        ("0F0\n7F0", None, "Stage 7 occurs without stage 1"),
        ("", None, "The text has no action"),
    ],
)
def test_a_wrong_text_is_refused_with_its_place(editor, text, place, words):
    before = text_of(editor)
    answer = asked(editor, do="text", text=text)
    assert (answer["isRefused"], answer["place"]) == (True, place) and words in answer[
        "said"
    ]
    assert text_of(editor) == before


def test_a_text_may_have_another_size_and_may_be_csv(editor):
    answer = asked(editor, do="text", text=schedules.zb_v(2, 4).to_csv())
    assert (
        answer["sizes"] == [2, 4, 4]
        and "You built zb-v" in answer["said"]
        and answer["halves"] is False
    )


def test_costs_and_latency_change_the_figures(editor):
    answer = asked(editor, do="costs", costs="F=2,I=1,W=0.5,latency=0.25")
    timeline = simulate(schedules.one_f_one_b(2, 2), Costs(2, 1, 0.5, latency=0.25))
    assert figures(answer)["makespan"] == f"{timeline.makespan:g} units"
    assert answer["player"]["duration"] == timeline.makespan
    for wrong in ("F=1:2:3", "F=x", "nonsense", 7):
        refused = asked(editor, do="costs", costs=wrong)
        assert refused["isRefused"] and refused["said"]
    assert asked(editor, do="show")["costs"] == "F=2,I=1,W=0.5,latency=0.25"


def test_a_limit_must_be_kept_by_what_is_there_and_by_what_comes(editor):
    assert "the limit is 1" in asked(editor, do="limit", limit=1)["said"]
    assert asked(editor, do="limit", limit=2)["limit"] == 2
    asked(editor, do="empty")
    place(editor, "0:0F0", "0:0F1", "1:1F0")
    asked(editor, do="open", name="gpipe", ranks=2, microbatches=4)
    assert asked(editor, do="show")["limit"] is None
    for wrong in (0, 1.5, "2", True, float("nan")):
        assert asked(editor, do="limit", limit=wrong)["isRefused"]


def test_a_search_continues_from_message_to_message_and_what_it_found_is_taken():
    editor = Editor()
    asked(editor, do="limit", limit=4)
    asked(editor, do="empty")
    answer = asked(editor, do="search", seconds=0.05)
    while not answer["isDone"]:
        answer = asked(editor, do="search", seconds=0.05)
    assert "none is shorter" in answer["said"]
    taken = asked(editor, do="take")
    assert (
        figures(taken)["makespan"] == "27 units"
        and taken["said"].startswith("Found by")
        and "undo" in taken["can"]
    )
    assert asked(editor, do="search", seconds=60)["isRefused"]


def test_nothing_is_taken_before_a_search(editor):
    assert (
        asked(editor, do="take")["said"]
        == "The search has no schedule yet; search first."
    )


def test_a_search_counts_its_evaluations_over_messages():
    editor = Editor(
        Draft.of(schedules.one_f_one_b(3, 5)), "F=1:2:1,I=1:2:1,W=2:2:1,latency=1"
    )
    asked(editor, do="search", seconds=1e-9)
    first = editor.search.evaluations
    asked(editor, do="search", seconds=1e-9)
    assert editor.search.evaluations == first + 1
    asked(editor, do="search", seconds=1e-9, again=True)
    assert editor.search.evaluations == first


# -- addresses and files ---------------------------------------------------------------


def test_a_shared_address_opens_the_same_draft_costs_and_limit(editor):
    asked(editor, do="costs", costs="F=2,latency=0.5")
    asked(editor, do="limit", limit=2)
    asked(editor, do="cut", time=5)
    fragment = asked(editor, do="share")["fragment"]
    assert fragment.isascii() and not set(fragment) & set("#%&+/= ")
    other = Editor()
    answer = asked(other, do="shared", fragment=fragment)
    assert not answer["isRefused"]
    assert (other.draft, other.costs, other.limit) == (
        editor.draft,
        editor.costs,
        editor.limit,
    )


def test_a_shared_puzzle_stays_a_puzzle():
    editor, other = Editor(), Editor()
    asked(editor, do="puzzle", number=2)
    place(editor, "0:0F0")
    answer = asked(other, do="shared", fragment=asked(editor, do="share")["fragment"])
    assert answer["puzzle"] == 2 and other.limit == 3 and "0F0" in answer["text"]


def bomb():
    """A small address of a very long text."""
    draft = Draft("x", (0,), 1, ((),))
    return packed(draft, "F=1" + " " * 10**7, None, 0)


@pytest.mark.parametrize(
    "fragment", ["", "zz", "é", "AAAA", "x" * 10**5, bomb(), 7, None]
)
def test_an_address_that_holds_no_schedule_is_refused(fragment):
    editor = Editor()
    answer = asked(editor, do="shared", fragment=fragment)
    assert answer["isRefused"] and answer["said"] and editor.draft == Editor().draft


def test_a_forged_address_cannot_hold_an_illegal_schedule():
    draft = Draft("x", (0, 1), 1, ((), ())).placed(1, schedules.Action.parse("1B0"))
    forged = Draft("x", (0, 1), 1, ((), ()))
    object.__setattr__(forged, "placement", (0, 5))
    for wrong in (
        packed(draft, "", None, 0),
        packed(forged, "", None, 0),
        packed(Draft("x", (0, 1), 1, ((), ())), "F=y", None, 0),
        packed(Draft("x", (0, 1), 1, ((), ())), "", -1, 0),
        packed(Draft("x", (0, 1), 1, ((), ())), "", None, 99),
        # of another size than its puzzle
        packed(Draft("x", (0, 1), 1, ((), ())), "", None, 2),
    ):
        editor = Editor()
        answer = asked(editor, do="shared", fragment=wrong)
        assert answer["isRefused"] and answer["said"] and editor.draft == Editor().draft
    assert unpacked(packed(draft, "", None, 0))[0] == draft


def test_csv_and_text_are_read_again_and_a_picture_is_of_a_finished_schedule(editor):
    for form in ("csv", "txt"):
        answer = asked(editor, do="export", form=form)
        read = Schedule.from_csv if form == "csv" else Schedule.from_text
        assert read(answer["content"]).actions == schedules.one_f_one_b(2, 2).actions
        assert answer["name"] == f"1f1b.{form}"
    assert asked(editor, do="export", form="svg")["content"].startswith("<svg")
    asked(editor, do="back", rank=0)
    assert "missing: 1 action" in asked(editor, do="export", form="svg")["said"]
    assert (
        "expected 'csv', 'txt' or 'svg'"
        in asked(editor, do="export", form="exe")["said"]
    )


def test_a_page_without_a_file_saves_nothing_and_one_with_a_file_that_file(
    editor, tmp_path
):
    assert "no file" in asked(editor, do="save")["said"]
    editor.file = tmp_path / "mine.csv"
    said = asked(editor, do="save")["said"]
    assert (
        f"Saved {editor.file}" in said and f"train.py --schedule {editor.file}" in said
    )
    assert (
        Schedule.from_file(editor.file).actions == schedules.one_f_one_b(2, 2).actions
    )
    assert [path.name for path in tmp_path.iterdir()] == ["mine.csv"]
    asked(editor, do="back", rank=0)
    said = asked(editor, do="save")["said"]
    assert (
        said.startswith(f"Warning: {editor.file} is incomplete: 1 action missing.")
        and "train.py" not in said
    )
    editor.file = tmp_path / "nowhere" / "mine.csv"
    assert "cannot be written" in asked(editor, do="save")["said"]


# -- what is no message ----------------------------------------------------------------


@pytest.mark.parametrize(
    "message",
    [
        {},
        {"do": None},
        {"do": "answer"},
        {"do": "__init__"},
        {"do": "place"},
        {"do": "place", "rank": "0"},
        {"do": "place", "rank": 9},
        {"do": "place", "rank": -1},
        {"do": "place", "rank": True, "action": "zz"},
        {"do": "place", "rank": 0, "action": 7},
        {"do": "place", "rank": 0, "kind": ["F"]},
        {"do": "place", "rank": 0, "action": "0SEND_F0"},
        {"do": "undo", "twice": True},
        {"do": "open", "name": "nosuch", "ranks": 2, "microbatches": 2},
        {"do": "open", "name": ["1f1b"], "ranks": 2, "microbatches": 2},
        {"do": "open", "name": "chimera", "ranks": 4, "microbatches": 4},
        {"do": "open", "name": "1f1b", "ranks": 10**12, "microbatches": 2},
        {"do": "open", "name": "1f1b", "ranks": 2, "microbatches": "2"},
        {"do": "open", "name": "zb-v", "ranks": 2, "microbatches": 2, "chunks": 3},
        {"do": "open", "name": "zb-v", "ranks": 2, "microbatches": 2, "chunks": "x"},
        {"do": "puzzle", "number": 0},
        {"do": "puzzle", "number": "1"},
        {"do": "text", "text": 5},
        {"do": "search", "seconds": "1"},
        {"do": "search", "seconds": 0},
        {"do": "export", "form": ["csv"]},
    ],
)
def test_a_wrong_message_gets_a_sentence_and_changes_nothing(editor, message):
    before = text_of(editor)
    answer = asked(editor, **message)
    assert (
        answer["isRefused"] is True
        and len(answer["said"]) > 10
        and "Traceback" not in answer["said"]
    )
    assert text_of(editor) == before


@pytest.mark.parametrize(
    "text", ["", "x", "[]", "7", '{"do": "show"', "[" * 10**5, "null"]
)
def test_what_is_no_message_gets_a_sentence(text):
    answer = json.loads(Editor().ask(text))
    assert answer["isRefused"] and answer["said"].startswith(
        "No message of the editor: "
    )


# -- puzzles ---------------------------------------------------------------------------


@pytest.mark.parametrize("number", range(1, len(PUZZLES) + 1))
def test_the_par_of_a_puzzle_is_proved_and_1f1b_does_not_reach_it(number):
    puzzle = PUZZLES[number - 1]
    costs = Costs.parse(puzzle.costs)
    assert (
        simulate(
            schedules.one_f_one_b(puzzle.num_ranks, puzzle.num_microbatches), costs
        ).makespan
        > puzzle.par.value
    )
    answer = asked(Editor(), do="puzzle", number=number)
    assert (
        answer["said"].startswith(f"Par is {puzzle.par.value:g} units.")
        and answer["puzzle"] == number
    )


@pytest.mark.parametrize("number", [1, 2, 3])
def test_the_par_of_a_puzzle_is_reached(number):
    puzzle = PUZZLES[number - 1]
    workload = Costs.parse(puzzle.costs).workload(
        range(puzzle.num_ranks), puzzle.num_microbatches, puzzle.memory_limit
    )
    assert (
        find_schedule(workload, Objective.MAKESPAN, evaluations=100).value
        == puzzle.par.value
    )


def test_the_last_five_puzzles_are_those_of_the_coursework_and_its_solutions_reach_par():
    (exercise,) = [
        each for each in exercises_in(find_source()) if each.name == "14_puzzle"
    ]
    levels, solution = (
        load("checks", exercise.checks).LEVELS,
        load("solution", exercise.solution),
    )
    for number, level in levels.items():
        puzzle = PUZZLES[number - 1 - len(levels)]
        of_both = (
            puzzle.num_ranks,
            puzzle.num_microbatches,
            puzzle.memory_limit,
            puzzle.par.value,
        )
        assert of_both == (
            level.num_ranks,
            level.num_microbatches,
            level.memory_limit,
            level.par,
        )
        sizes = range(level.num_ranks), level.num_microbatches
        assert Costs.parse(puzzle.costs).workload(*sizes) == level.costs.workload(
            *sizes
        )
        editor = Editor()
        asked(editor, do="puzzle", number=len(PUZZLES) - len(levels) + number)
        answer = asked(editor, do="text", text=getattr(solution, f"level_{number}")())
        assert "It cannot be beaten" in answer["said"], answer["said"]


def test_costs_and_sizes_of_a_puzzle_stay():
    editor = Editor()
    asked(editor, do="puzzle", number=1)
    for message in ({"do": "costs", "costs": "F=0"}, {"do": "limit", "limit": None}):
        assert "belong to the puzzle" in asked(editor, **message)["said"]
    assert "Puzzle 1 has 2 stages" in asked(editor, do="text", text="0F0 0B0")["said"]
    assert (
        "above par"
        in asked(editor, do="text", text="0F0 0F1 0B0 0B1\n1F0 1B0 1F1 1B1")["said"]
    )


def test_the_page_shows_the_draft_before_any_message_and_holds_no_markup_of_a_name():
    draft = Draft("</script><b>", (0,), 1, ((),))
    page = draw_editor(Editor(draft), "worker")
    assert "</script><b>" not in page and '"transport":"worker"' in page.replace(
        " ", ""
    )


@pytest.mark.parametrize(
    ("name", "selected"), [("zb-h1", "zb-h1"), ("gpipe", "gpipe"), ("mine", "1f1b")]
)
def test_the_page_selects_the_schedule_that_it_shows(name, selected):
    draft = Draft(name, (0,), 1, ((),))
    assert re.findall(
        r"<option [^>]* selected>([^<]+)<", draw_editor(Editor(draft), "http")
    ) == [selected]

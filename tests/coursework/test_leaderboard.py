"""The leaderboard of a puzzle: nobody's figures are believed, nothing is lost, equal
students share a place.
"""

import fcntl
import json
import os
import threading

import jsonschema
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from minipipe import schedules, simulate
from minipipe.cli import main
from minipipe.coursework import grade, leaderboard
from minipipe.coursework.exercise import exercises_in, find_source, named
from minipipe.coursework.leaderboard import (
    Entry,
    Leaderboard,
    as_text,
    levels_in,
    standings,
)
from minipipe.coursework.results import as_gradescope
from minipipe.errors import CourseworkError, FileError, ScheduleError
from tests.coursework.test_results import SCHEMA

SOLUTION = '''"""01 small: two schedules.

Lesson 11. Example: none. Checked: both.
"""


def level_1():
    """Return two rows."""
    # SOLUTION
    return "0F0 0F1 0I0 0W0 0I1 0W1 \\n 1F0 1I0 1F1 1I1 1W0 1W1"
    # STUB
    # raise NotImplementedError("two rows")
    # END


def level_2():
    """Return a row."""
    # SOLUTION
    return "0F0 0B0"
    # STUB
    # raise NotImplementedError("a row")
    # END
'''

CHECKS = '''"""Tests of 01_small."""

from minipipe import Costs, Schedule
from minipipe.coursework import Level, expect_legal

LEVELS = {1: Level(2, 2, Costs(1, 1, 1), 2, 7), 2: Level(1, 1, Costs(1, 2, 1), 1, 4)}


def test_level_1(task):
    """Level 1 is legal."""
    expect_legal(Schedule.from_text(task.level_1()), "level_1()", LEVELS[1].memory_limit)


def test_level_2(task):
    """Level 2 is legal."""
    expect_legal(Schedule.from_text(task.level_2()), "level_2()", LEVELS[2].memory_limit)


# HIDDEN
WRONG_ANSWERS = []
VARIANTS = [
    [("Level(1, 1, Costs(1, 2, 1), 1, 4)", "0F0 0B0"), ("Level(1, 2, Costs(1, 2, 1), 1, 8)", "0F0 0B0 0F1 0B1")],
]
'''
PAR, SLOW, ONE = (
    "0F0 0F1 0I0 0W0 0I1 0W1\n1F0 1I0 1F1 1I1 1W0 1W1",
    "0F0 0F1 0B0 0B1\n1F0 1B0 1F1 1B1",
    "0F0 0B0",
)
STUCK = "0F0 0F1 0B0 0B1\n1F1 1B0 1F0 1B1"


@pytest.fixture
def source(tmp_path):
    (tmp_path / "source" / "checks").mkdir(parents=True)
    (tmp_path / "source" / "01_small.py").write_text(SOLUTION)
    (tmp_path / "source" / "checks" / "01_small.py").write_text(CHECKS)
    return tmp_path / "source"


@pytest.fixture
def board(source, tmp_path):
    return Leaderboard(tmp_path / "board.json", exercises_in(source), variants=False)


def kept(entries):
    return {(entry.student, entry.level): entry.makespan for entry in entries}


def test_the_best_of_a_student_counts_whenever_it_came(board):
    assert kept(board.add([("ada", {"level_1": SLOW})])) == {("ada", "level_1"): 9}
    assert (
        kept(board.add([("ada", {"level_1": PAR, "level_2": ONE})]))[("ada", "level_1")]
        == 7
    )
    entries = board.add([("ada", {"level_1": SLOW}), ("bob", {"level_1": SLOW})])
    assert kept(entries) == {
        ("ada", "level_1"): 7,
        ("ada", "level_2"): 4,
        ("bob", "level_1"): 9,
    }
    assert board.read() == entries and [entry.bound for entry in entries] == [7, 4, 7]


def test_more_levels_come_first_then_the_smaller_gap_and_equal_students_share_a_place(
    board,
):
    own = {"zoe": [PAR, ONE], "ada": [PAR, ONE], "bob": [SLOW, ONE], "eve": [PAR]}
    entries = board.add(
        (name, dict(zip(("level_1", "level_2"), rows))) for name, rows in own.items()
    )
    assert [each[:2] for each in standings(entries)] == [
        (1, "ada"),
        (1, "zoe"),
        (3, "bob"),
        (4, "eve"),
    ]
    assert as_text(entries) == (
        "place  student  level_1  level_2  mean gap\n"
        "    1  ada          7/7      4/4     0.0 %\n"
        "    1  zoe          7/7      4/4     0.0 %\n"
        "    3  bob          9/7      4/4    14.3 %\n"
        "    4  eve          7/7              0.0 %\n"
        "makespan/bound; bounds by work (level_1, level_2)"
    )


@pytest.mark.parametrize(
    ("level", "rows"),
    [
        ("level_1", STUCK),
        ("level_1", "0F0 0B0\n1F0 1B0"),
        ("level_1", "0F0 0F1 1F0 1F1 1B0 1B1 0B0 0B1"),
        ("level_1", "0F0 0F1\n1F0 1F1"),
        ("level_1", "0F0 0F1 0R0 0B0 0B1\n1F0 1B0 1F1 1B1"),
        ("level_2", "0F0.0 0F0.1 0B0.1 0B0.0"),
        ("level_2", "no schedule"),
        ("level_2", ""),
        ("level_3", ONE),
    ],
    ids=[
        "stuck",
        "too short",
        "one rank",
        "no backward",
        "recomputes",
        "slices",
        "text",
        "nothing",
        "no such level",
    ],
)
def test_what_is_no_answer_is_no_entry(board, level, rows):
    assert board.add([("eve", {level: rows})]) == []


def test_memory_beyond_the_limit_is_no_answer():
    level = levels_in(exercises_module())["level_5"]
    fast = schedules.one_f_one_b(4, 8).to_text()
    with pytest.raises(ScheduleError) as caught:
        Entry.of("eve", "level_5", level, fast)
    assert caught.value.problems[0].code == "memory"


def exercises_module():
    from minipipe.coursework.checking import load

    return load("checks", named(exercises_in(find_source()), "14_puzzle").checks)


def test_a_whole_backward_takes_the_time_that_it_takes_when_it_is_graded():
    level = levels_in(exercises_module())["level_2"]
    built = schedules.one_f_one_b(3, 5)
    entry = Entry.of("ada", "level_2", level, built.to_text())
    assert entry.makespan == simulate(built, level.costs).makespan == 37
    assert simulate(schedules.split_backward(built), level.costs).makespan < 37


# -- forged and damaged files ----------------------------------------------------------


def altered(board, tmp_path, change):
    """Write a board of two students, change the JSON of one entry, and return the error
    of reading it.
    """
    path = tmp_path / "board.json"
    board.add([("ada", {"level_1": SLOW}), ("eve", {"level_1": SLOW})])
    content = json.loads(path.read_text())
    change(content["entries"][1])
    path.write_text(json.dumps(content))
    before = path.read_bytes()
    with pytest.raises((CourseworkError, FileError)) as caught:
        board.add([("bob", {"level_1": PAR})])
    assert path.read_bytes() == before and not list(tmp_path.glob(".*"))
    return str(caught.value)


FORGED = {
    "makespan": (
        lambda entry: entry.update(makespan=7.0),
        "whose makespan is 7.0; here it is 9.0",
    ),
    "bound": (
        lambda entry: entry.update(bound=9.0),
        "whose bound is 9.0; here it is 7.0",
    ),
    "gap": (lambda entry: entry.update(gap=0.0), "whose gap is 0.0; here it is 0.28"),
    "proof": (
        lambda entry: entry.update(bound_by="drain"),
        "whose bound_by is 'drain'; here it is work",
    ),
    "another schedule": (lambda entry: entry.update(schedule=PAR), "; here it is "),
    "stuck": (
        lambda entry: entry.update(schedule=STUCK),
        "is not a solution: Rank 1, position",
    ),
    "an easier level": (
        lambda entry: entry.update(asked="1 rank"),
        "for 'level_1': '1 rank'. Here that is 2 ranks, ",
    ),
    "another level": (
        lambda entry: entry.update(level="level_2"),
        "for 'level_2': '2 ranks,",
    ),
    "no level": (
        lambda entry: entry.update(level="level_9"),
        "Here there is no such level. Give the --source",
    ),
    "not a number": (
        lambda entry: entry.update(makespan=float("nan")),
        "whose makespan is nan",
    ),
    "no text": (
        lambda entry: entry.update(student=None),
        "cannot be read as a leaderboard: student is None, expected text",
    ),
    "lacks": (
        lambda entry: entry.pop("schedule"),
        "a leaderboard: it lacks 'schedule'",
    ),
}


@pytest.mark.parametrize("kind", FORGED)
def test_an_entry_that_says_what_is_not_so_is_refused_and_nothing_is_written(
    board, tmp_path, kind
):
    change, words = FORGED[kind]
    said = altered(board, tmp_path, change)
    assert (
        words in said
        and "board.json" in said
        and ("eve" in said or "cannot be read" in said)
    )
    if "--source" not in said:
        assert said.endswith(
            "Restore the file from a copy, or delete it and grade the "
            "submissions again."
        )


@pytest.mark.slow
@settings(max_examples=200)
@given(data=st.data())
def test_whatever_byte_of_a_file_is_damaged_its_entries_are_as_they_were_or_it_is_refused(
    tmp_path_factory, data
):
    folder = tmp_path_factory.getbasetemp() / "damaged"
    if not folder.exists():
        (folder / "source" / "checks").mkdir(parents=True)
        (folder / "source" / "01_small.py").write_text(SOLUTION)
        (folder / "source" / "checks" / "01_small.py").write_text(CHECKS)
    board = Leaderboard(
        folder / "board.json", exercises_in(folder / "source"), variants=False
    )
    (folder / "board.json").unlink(missing_ok=True)
    entries = board.add([("ada", {"level_1": PAR, "level_2": ONE})])
    content = bytearray((folder / "board.json").read_bytes())
    content[data.draw(st.integers(0, len(content) - 1))] = data.draw(
        st.integers(0, 255)
    )
    (folder / "board.json").write_bytes(
        content[: data.draw(st.sampled_from([len(content), len(content) // 2]))]
    )
    try:
        found = board.read()
    except (CourseworkError, FileError):
        return
    for entry, true in zip(found, entries, strict=True):
        assert entry._replace(student="ada") == true  # a name is a name


@pytest.mark.parametrize(
    "text",
    ["", "[]", "[" * 100_000, '{"format": "minipipe certificate"}', '{"a": NaN}', "\0"],
)
def test_a_file_that_is_no_leaderboard_is_said_to_be_none(board, tmp_path, text):
    (tmp_path / "board.json").write_text(text)
    with pytest.raises(FileError, match="board.json' cannot be read"):
        board.add([("ada", {"level_1": PAR})])
    assert (tmp_path / "board.json").read_text() == text


def test_a_pipe_in_the_place_of_the_file_is_refused_at_once(board, tmp_path):
    os.mkfifo(tmp_path / "board.json")
    with pytest.raises(FileError, match="it is a pipe"):
        board.add([("ada", {"level_1": PAR})])


def test_a_file_of_another_puzzle_or_of_other_numbers_is_refused(
    board, source, tmp_path
):
    board.add([(name, {"level_2": ONE}) for name in ("ada", "bob", "eve", "zoe")])
    own = Leaderboard(tmp_path / "board.json", exercises_in(source), variants=True)
    with pytest.raises(
        CourseworkError, match="Here that is 1 rank, .* Give the --source and the --var"
    ):
        own.read()
    other = Leaderboard(
        tmp_path / "board.json",
        [named(exercises_in(find_source()), "14_puzzle")],
        variants=False,
    )
    with pytest.raises(
        CourseworkError,
        match=(
            "belongs to '01_small', but 14_puzzle is graded. Use one file for each "
            "puzzle"
        ),
    ):
        other.read()


def test_with_variants_each_entry_is_for_the_numbers_of_its_student(source, tmp_path):
    board = Leaderboard(tmp_path / "board.json", exercises_in(source), variants=True)
    names = ["ada", "bob", "eve", "zoe"]
    entries = board.add(
        [
            *((name, {"level_2": ONE}) for name in names),
            *((n, {"level_2": "0F0 0B0 0F1 0B1"}) for n in names),
        ]
    )
    assert {entry.makespan for entry in entries} == {4, 8} and [
        entry.student for entry in entries
    ] == names
    assert board.read() == entries and {entry.gap for entry in entries} == {0}


# -- several writers -------------------------------------------------------------------


def test_of_writers_at_once_none_loses_what_another_has_added(board, tmp_path):
    names = [f"student {number}" for number in range(12)]
    threads = [
        threading.Thread(target=board.add, args=([(name, {"level_1": PAR})],))
        for name in names
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(entry.student for entry in board.read()) == sorted(
        names
    ) and not list(tmp_path.glob(".*"))


def test_from_reading_to_writing_nobody_else_can_begin(board, tmp_path, monkeypatch):
    held, write = [], leaderboard.write_whole

    def written(path, content):
        other = os.open(tmp_path, os.O_RDONLY)
        try:
            fcntl.flock(other, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            held.append(path)
        finally:
            os.close(other)
        return write(path, content)

    monkeypatch.setattr(leaderboard, "write_whole", written)
    board.add([("ada", {"level_1": PAR})])
    board.add([("bob", {"level_1": PAR})])
    assert len(held) == 2


# -- the command -----------------------------------------------------------------------


@pytest.fixture
def classroom(tmp_path):
    """A class of three: par, slower, and one whose first level is stuck and who prints
    what he likes.
    """
    texts = {
        "ada": [PAR, ONE],
        "bob": [SLOW, ONE],
        "eve": [STUCK, ONE],
    }
    for name, rows in texts.items():
        (tmp_path / "class" / name).mkdir(parents=True)
        functions = (
            f"def level_{n}():\n    return {text!r}\n" for n, text in enumerate(rows, 1)
        )
        (tmp_path / "class" / name / "01_small.py").write_text("\n".join(functions))
    return tmp_path / "class"


@pytest.mark.slow
def test_the_command_grades_a_class_adds_to_the_file_and_shows_it(
    source, classroom, tmp_path, capsys
):
    words = ["--source", str(source), "--leaderboard", str(tmp_path / "board.json")]
    assert main(["grade", str(classroom), *words]) == 1  # eve's first level is stuck
    out = capsys.readouterr().out
    assert (
        "ada              2   2      2     1\n" in out
        and "    3  eve" in out
        and "    2  bob          9/7" in out
    )
    assert main(["grade", *words]) == 0
    assert capsys.readouterr().out == out.partition("\n\n")[2].partition("\n\n")[2]
    assert main(["grade", *words, "--json"]) == 0
    places = json.loads(capsys.readouterr().out)["leaderboard"]
    assert [(each["place"], each["student"], each["mean_gap"]) for each in places] == [
        (1, "ada", 0),
        (2, "bob", 1 / 7),
        (3, "eve", 0),
    ]


@pytest.mark.slow
def test_gradescope_has_the_gaps_for_its_own_leaderboard(source, classroom):
    report = grade(classroom / "bob", source=source).as_json()
    results = json.loads(as_gradescope(report))
    jsonschema.validate(results, SCHEMA)
    assert [tuple(each.values()) for each in results["leaderboard"]] == [
        ("level_1: % above the bound", 28.6, "asc"),
        ("level_2: % above the bound", 0.0, "asc"),
    ]


def test_a_leaderboard_needs_one_puzzle_and_something_to_do(
    source, classroom, tmp_path, capsys
):
    file = ["--leaderboard", str(tmp_path / "board.json")]
    assert main(["grade"]) == 2
    assert (
        "Expected a submission, such as `minipipe grade mine`; --leaderboard FILE alone"
        in capsys.readouterr().err
    )
    assert main(["grade", str(classroom), "--only", "05_bubble", *file]) == 2
    assert (
        "none of the tasks has levels. The checks of a puzzle have LEVELS"
        in capsys.readouterr().err
    )
    for name in (source / "01_small.py", source / "checks" / "01_small.py"):
        (name.parent / "02_small.py").write_text(
            name.read_text().replace("01 small:", "02 small:")
        )
    assert main(["grade", str(classroom), "--source", str(source), *file]) == 2
    assert (
        "01_small and 02_small has levels. Choose one with --only"
        in capsys.readouterr().err
    )
    assert not (tmp_path / "board.json").exists()

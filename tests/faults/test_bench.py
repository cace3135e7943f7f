"""The bench itself: it notices whatever falls short, and the table names what there
is.
"""

import inspect
import os
import re
import subprocess
import sys
from math import nan

import pytest

from tests.faults import deeds, scenes
from tests.faults.__main__ import line
from tests.faults.bench import SCREEN, Outcome, is_named, shortfalls
from tests.faults.deeds import JOB, PLACES, processes_of
from tests.faults.table import FAULTS, case_of, cases

GOOD = Outcome(
    1,
    1.9,
    0,
    "",
    "[rank 0] MessageError: …\n[rank 0] Rank 2 does not answer: stopped by a signal.\n",
    "",
)


def stopped():
    return case_of("stops", "steady", 2)


def test_an_outcome_as_the_table_has_it_falls_short_of_nothing():
    assert shortfalls(stopped(), GOOD) == [] and is_named(stopped(), GOOD)


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"code": 0}, "exit code 0 instead of 1"),
        ({"code": 9}, "exit code 9 instead of 1"),
        ({"code": None}, "hangs"),
        ({"seconds": 4.6}, "T 4.6 s instead of 4.5 s"),
        ({"seconds": None}, "the fault did not happen"),
        ({"left": 1}, "1 processes left"),
        ({"err": ""}, "says: nothing"),
        (
            {"err": GOOD.err.replace("Rank 2", "Rank 1")},
            "says: .* Rank 1 does not answer",
        ),
        ({"err": "[rank 0] Rank 1 may have stopped.\n" + GOOD.err}, "says: "),
        (
            {"err": GOOD.err + "[rank 0] on rank 0, stage 0\n"},
            "says: .*on rank 0, stage 0",
        ),
        ({"err": "[rank 1] Rank 2 is late.\n" + GOOD.err}, "ranks 0, 1 speak"),
        (
            {"err": "[rank 0] a line\n" * SCREEN + GOOD.err},
            "26 lines of ours, more than a screen",
        ),
        (
            {"err": "Exception ignored in atexit\n" + GOOD.err},
            "1 lines of nobody, such as: Exception ignored",
        ),
    ],
)
def test_a_mutant_of_it_is_noticed(changes, words):

    found = shortfalls(stopped(), GOOD._replace(**changes))
    assert len(found) == 1 and re.match(words, found[0]), found


@pytest.mark.parametrize(
    "text",
    [
        "= BAD TERMINATION OF ONE",
        "Abort(1) on node 2 (rank 2 in comm 0): application called MPI_Abort",
        "[mpiexec@vm] HYDU_sock_write",
        (
            "Fatal Python error: Aborted\n\nCurrent thread 0x1 (most recent call "
            'first):\n  File "a", line 1 in b'
        ),
    ],
)
def test_what_the_launcher_or_a_crash_adds_is_nobodys_fault(text):
    assert shortfalls(stopped(), GOOD._replace(err=f"{GOOD.err}{text}\n")) == []


def test_a_job_that_goes_on_says_nothing_and_all_its_ranks_end_well():
    case, good = (
        case_of("naps", "steady", 2),
        Outcome(0, 2.2, 0, "ended well\n" * 4, "", ""),
    )
    assert shortfalls(case, good) == []
    assert shortfalls(case, good._replace(out="ended well\n" * 3)) == [
        "3 of 4 ranks ended well"
    ]
    assert shortfalls(case, good._replace(err="[rank 1] Rank 2 is slow.\n")) == [
        "a false alarm: [rank 1] Rank 2 is slow."
    ]


def test_a_lost_message_is_named_with_the_rank_that_it_was_for():
    case = case_of("loses_a_message", "steady", 1)
    right, wrong = (
        f"[rank 0] Rank {a} has waited longest, for 1F4 from rank {b}: never sent?\n"
        for a, b in ((2, 1), (1, 2))
    )
    assert is_named(case, GOOD._replace(err=right, peer="2"))
    assert not is_named(case, GOOD._replace(err=wrong, peer="2"))


def test_an_error_in_a_layer_names_its_place_and_one_elsewhere_does_not():
    in_layer, after = (
        case_of("exits", place, 3) for place in ("cool-down", "between steps")
    )
    note = "[rank 3] on rank 3, stage 3, microbatch 7, action 3B7 of 1f1b, step 2\n"
    for err, found in (
        (note, []),
        ("[rank 3] sys.exit(7)\n", 1),
        (note.replace("tch 7", "tch 6"), 1),
    ):
        outcome = GOOD._replace(code=7, err=err)
        assert len(shortfalls(in_layer, outcome)) == (found or 0), err
        assert shortfalls(after, outcome) == []


# -- the table -------------------------------------------------------------------------


def test_every_fault_is_a_deed_at_places_of_the_training_or_a_scene():
    for fault in FAULTS:
        owner = scenes if fault.places == ("",) else deeds
        function = getattr(owner, fault.name)
        assert next(iter(inspect.signature(function).parameters)) == "group", fault.name
        assert fault.places == ("",) or set(fault.places) <= set(PLACES), fault.name
        assert fault.code == 0 or fault.limit < 40, fault.name


def test_every_deed_and_scene_stands_in_the_table_and_no_case_twice():
    named = {fault.name for fault in FAULTS}
    written = {name for name, _ in inspect.getmembers(deeds, inspect.isfunction)} | {
        name
        for name, value in inspect.getmembers(scenes, inspect.isfunction)
        if not name.startswith("_")
    }
    tools = {"stamp", "processes_of", "break_stream", "repeat", "train", "scene"}
    assert {name for name in written if not name.startswith("_")} - tools == named
    keys = [(str(case), case.style) for fault in FAULTS for case in cases(fault)]
    assert len(keys) == len(set(keys))


def test_every_row_that_is_about_running_jobs_is_there():
    assert {fault.row for fault in FAULTS} == {*range(1, 11), 18, *range(20, 26)}


@pytest.mark.parametrize(
    "place", ["construction", "warm-up", "steady", "cool-down", "between steps", "exit"]
)
@pytest.mark.parametrize("name", ["is_killed", "raises", "stops"])
def test_the_culprit_is_in_every_place_and_on_every_rank(name, place):
    assert {
        case.rank
        for fault in FAULTS
        if fault.name == name
        for case in cases(fault)
        if case.place == place
    } >= {*range(4)}


# -- measuring -------------------------------------------------------------------------


def test_the_processes_of_a_job_are_found_by_their_mark_until_they_have_ended():
    job = f"test-{os.getpid()}"
    command, pipes = (
        [sys.executable, "-c", "print(); input()"],
        {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE},
    )
    child = subprocess.Popen(command, **pipes, env={**os.environ, JOB: job})
    child.stdout.readline()  # before, the system may not show its environment yet
    assert processes_of(job) == [child.pid] and processes_of("another") == []
    child.communicate(b"\n")
    assert processes_of(job) == []


def test_a_line_of_the_table_counts_runs_that_fall_short():
    case = stopped()
    bad = GOOD._replace(seconds=nan, err="", code=None)
    text = line(case.fault, case.place, [(case, GOOD, []), (case, bad, ["hangs"])])
    assert (
        "4  stops" in text
        and "1/2" in text
        and "1,hangs" in text
        and text.endswith("1 of 2")
    )

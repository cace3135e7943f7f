"""Compare with par: the table against simulations and proofs."""

import json

import pytest

from minipipe import Costs, schedules, simulate
from minipipe.render.editor import Editor
from minipipe.render.editor.draft import Draft
from minipipe.render.editor.par import named_drafts
from minipipe.render.editor.puzzles import PUZZLES
from minipipe.schedules import build, find_schedule, lower_bound
from minipipe.schedules.analysis.workload import Objective
from minipipe.search.gallery import known_bound


def compared(editor, seconds=0.2, tries=40):
    """Compare until nothing is left to find, as the page does."""
    for again in (True, *[False] * tries):
        message = {"do": "par", "seconds": seconds, "again": again}
        answer = json.loads(editor.ask(json.dumps(message)))
        if answer.get("isDone", True):
            break
    return answer


def table_of(answer):
    return {name: rest for name, *rest in answer["table"]}


def editor_of(name, ranks, microbatches, costs="", chunks=None):
    return Editor(Draft.of(build(name, ranks, microbatches, chunks)), costs)


@pytest.mark.parametrize(
    ("name", "ranks", "chunks", "costs"),
    [
        ("1f1b", 4, None, ""),
        ("gpipe", 3, None, "F=2,I=1,W=1,latency=0.5"),
        ("1f1b", 3, 2, "F=1,I=2,W=1"),
        ("v-half", 4, None, ""),
        ("interleaved-1f1b", 2, 3, ""),
    ],
)
def test_the_named_schedules_have_their_simulated_figures(name, ranks, chunks, costs):
    editor = editor_of(name, ranks, 8, costs, chunks)
    answer = compared(editor, tries=0)
    named = table_of(answer)
    own = editor.draft
    others = named.keys() - {"yours", "lower bound", "best found"}
    assert name in others
    for other in others:
        schedule = build(other, ranks, 8, chunks)
        timeline = simulate(schedule, editor.costs)
        assert schedule.placement == own.placement
        peaks = timeline.peak_activations
        note = "over the memory" * (max(peaks) > max(editor.sight.peaks))
        assert named[other] == [
            f"{timeline.makespan:g} units",
            f"{100 * timeline.bubble_fraction:.1f} %",
            ", ".join(map(str, peaks)),
            note,
        ]
    assert named["yours"] == named[name]
    # first what counts, and the shortest of it first
    lines = [(bool(line[-1]), float(line[1].split()[0])) for line in answer["table"]]
    assert lines[3:] == sorted(lines[3:])


def test_the_bound_is_the_one_of_the_stages_costs_and_memory():
    editor = editor_of("1f1b", 4, 8, "F=1,I=2,W=1,latency=0.25")
    costs = Costs(1, 2, 1, latency=0.25)
    for limit in (None, 5):
        editor.answer({"do": "limit", "limit": limit})
        workload = costs.workload(range(4), 8, limit or 4)
        bound = lower_bound(workload, Objective.MAKESPAN)
        time, bubble, memory, why = table_of(compared(editor, tries=0))["lower bound"]
        assert (time, why) == (f"{bound.value:g} units", bound.name)
        assert memory == f"at most {limit or 4}"
        assert bubble == f"{100 * (1 - 4 * 8 * 4 / (4 * bound.value)):.1f} %"


@pytest.mark.parametrize("number", range(1, len(PUZZLES) + 1))
def test_the_par_of_a_puzzle_is_the_par_of_the_comparison(number):
    editor = Editor()
    editor.answer({"do": "puzzle", "number": number})
    answer = compared(editor, seconds=1e-9, tries=0)
    assert answer["said"] == (
        f"Par is {PUZZLES[number - 1].par.value:g} units, which is proved."
    )
    assert table_of(answer)["yours"][-1] == "incomplete"


def test_par_is_reached_or_missed_by_so_much():
    editor = editor_of("1f1b", 4, 8)
    said = compared(editor)["said"]
    assert said == "Par is 27 units, which is proved. Yours takes 6 units more."
    assert not editor.answer({"do": "take"})["isRefused"]
    said = compared(editor)["said"]
    assert said == "Par is 27 units, which is proved. Yours reaches it."


def test_what_the_gallery_has_proved_is_par_before_a_search_has_found_it():
    workload = Costs().workload(range(4), 8, 3)
    bound = known_bound(workload, Objective.MAKESPAN)
    assert (bound.name, bound.value) == ("gallery", 31)
    found = find_schedule(workload, Objective.MAKESPAN, evaluations=1)
    assert found.value > 31
    editor = Editor(Draft.of(found.schedule))
    answer = compared(editor, seconds=1e-9, tries=0)
    over = found.value - 31
    unit = "unit" if over == 1 else "units"
    assert answer["said"] == (
        f"Par is 31 units, which is proved. Yours takes {over:g} {unit} more."
    )


def test_where_nothing_is_proved_the_best_known_is_named_with_its_bound():
    editor = editor_of("1f1b", 4, 8, "latency=0.5")
    editor.answer({"do": "empty"})
    editor.answer({"do": "limit", "limit": 3})
    answer = compared(editor, seconds=1e-9, tries=0)
    named = table_of(answer)
    counted = [line[0].split() for line in named.values() if not line[-1]]
    best = min(float(time) for time, _ in counted)
    bound = named["lower bound"][0]
    assert not answer["isDone"]
    assert answer["said"].startswith(f"The best known is {best:g} units (")
    assert f"It is not proved: the bound is {bound}." in answer["said"]


def test_without_a_proof_a_schedule_is_compared_with_the_best_known():
    editor = editor_of("1f1b", 4, 8, "F=1:2:1:1,I=1:2:1:2,W=1,latency=1")
    answer = compared(editor, seconds=1e-9, tries=0)
    named = table_of(answer)
    best, bound = (float(named[n][0].split()[0]) for n in ("best found", "lower bound"))
    assert bound < best < editor.sight.end
    assert f"The best known is {best:g} units (best found)" in answer["said"]
    assert answer["said"].endswith(
        f"Yours takes {editor.sight.end - best:g} units more."
    )


def test_a_schedule_better_than_the_search_is_itself_the_best_known():
    workload = Costs(latency=0.5).workload(range(4), 6, 3)
    best = find_schedule(workload, Objective.MAKESPAN, evaluations=4000).schedule
    editor = Editor(Draft.of(best), "latency=0.5")
    answer = compared(editor, seconds=1e-9, tries=0)
    assert "Yours reaches it." in answer["said"]


def test_after_an_edit_the_comparison_is_of_the_edited_schedule():
    editor = editor_of("1f1b", 2, 4)
    first = table_of(compared(editor))["yours"]
    editor.answer({"do": "costs", "costs": "F=3"})
    second = table_of(compared(editor))["yours"]
    assert first[0] == "15 units" != second[0]
    editor.answer({"do": "back", "rank": 0})
    third = table_of(compared(editor))["yours"]
    assert third[-1] == "incomplete"
    assert table_of(compared(editor))["lower bound"][2] == "any"


def test_large_schedules_are_compared_without_the_named_ones():
    assert named_drafts(tuple(range(8)), 101) == {}
    assert "zb-h1" in named_drafts(tuple(range(8)), 100)
    editor = editor_of("1f1b", 8, 128)
    named = table_of(compared(editor, seconds=0.01, tries=0))
    assert list(named) == ["yours", "lower bound", "best found"]


def test_names_of_other_stages_are_left_out():
    assert named_drafts((0, 1, 2, 3, 3, 2, 1, 0), 8).keys() == {
        "zb-v",
        "v-half",
        "v-min",
        "dualpipe-v",
        "hanayo",
    }
    assert "interleaved-1f1b" not in named_drafts((0, 1, 2, 3), 8)
    assert "interleaved-1f1b" in named_drafts((0, 1, 2, 3) * 2, 8)
    assert named_drafts((0, 2, 1), 8) == {}
    assert schedules.one_f_one_b(4, 8).placement == (0, 1, 2, 3)

"""``minipipe trace``: its text, its data, and the files that other verbs read."""

import json
import re

import pytest

from minipipe import Costs, Schedule, schedules, simulate
from tests.trace.written import FORWARD_OR_BACKWARD, recorded, write_timeline

ZB_V = recorded("zb-v")


@pytest.fixture
def traces(tmp_path):
    """Return the traces of a 1F1B of four ranks, as simulated."""
    costs = Costs(forward=0.01, backward_input=0.01, backward_weight=0.01, unit="s")
    timeline = simulate(schedules.one_f_one_b(4, 8), costs)
    return write_timeline(tmp_path, timeline)


def test_the_text_has_the_bubble_its_causes_the_costs_and_other_schedules(traces, ask):
    status, out, err = ask("trace", *traces, "--width", 120)
    assert (status, err) == (0, "")
    assert "recorded, 4 ranks, 4 stages, 8 microbatches; 1 step" in out
    assert "measured: makespan 330 ms, bubble 27.3 % of all time, 37.5 % of" in out
    rank, busy, warm_up, *_, idle, _ = re.search(r"^ +3 .*%", out, re.M)[0].split()
    assert (rank, busy, warm_up, idle) == ("3", "240", "30", "27.3")
    assert "critical path: 0F0 1F0 2F0 3F0" in out
    assert re.search(r"^ +0 +F +8 +10 +\S+ +10\S*$", out, re.M)
    assert re.search(r"^ +3 +B +8 +20 +\S+ +20\S*$", out, re.M)
    assert "overlap, each" not in out  # rounding makes no overlapped pairs
    assert "simulated with these costs (+0.0 %): makespan 330 ms, bubble 27.3 %" in out
    assert "recorded, measured" in out and "recorded, predicted" in out
    assert re.search(r"^zb-h1 +270 +-18.2 % +11.1 % +4 +1F1B's memory", out, re.M)


def test_updates_of_weights_are_a_kind_of_action(ask, tmp_path):
    """The table of times had a traceback."""
    timeline = simulate(schedules.build("2bw", 2, 4), Costs(update=0.5, unit="s"))
    status, out, _ = ask("trace", *write_timeline(tmp_path, timeline))
    assert status == 0 and re.search(r"^ +0 +U +\d+ +500", out, re.M)


def test_the_data_has_all_of_it(ask):
    status, out, _ = ask("trace", *ZB_V, "--json")
    data = json.loads(out)
    assert status == 0 and data["num_stages"] == 4
    assert data["makespan"] == data["steps"][data["step"]]
    for busy, idle in zip(data["busy"], data["idle"]):
        assert busy + sum(idle.values()) == pytest.approx(data["makespan"])
    assert {(it["stage"], it["kind"]) for it in data["times"]} == {
        (stage, kind) for stage in range(4) for kind in "FIW"
    }
    assert data["forecasts"][0]["makespan"] <= data["forecasts"][-1]["makespan"]


@pytest.mark.parametrize("ending", [".svg", ".html", ".txt", ".json"])
def test_the_drawing_has_the_measured_step_above_the_simulated_one(
    ending, ask, tmp_path
):
    path = tmp_path / f"both{ending}"
    status, out, _ = ask("trace", *ZB_V, "-o", path)
    assert status == 0 and f"wrote {path}" in out
    content = path.read_text()
    assert content.index("measured") < content.index("predicted")


def test_other_verbs_read_the_costs_and_the_schedule(traces, ask, tmp_path):
    costs = tmp_path / "costs.json"
    schedule = tmp_path / "mine.csv"
    written = ("--write-costs", costs, "--write-schedule", schedule)
    assert ask("trace", *traces, *written)[0] == 0
    table = Schedule.from_file(schedule)
    assert table.actions == schedules.one_f_one_b(4, 8).actions
    for command in (
        ("simulate", schedule),
        ("simulate", "zb-h1", "--ranks", 4),
        ("search", "--ranks", 4, "--microbatches", 2, "--evaluations", 3),
    ):
        status, out, _ = ask(*command, "--costs", costs)
        assert status == 0 and "makespan" in out, command
    status, out, _ = ask("simulate", schedule, "--costs", costs, "--json")
    assert json.loads(out)["makespan"] == pytest.approx(0.33, abs=1e-4)


def test_a_weight_part_changes_schedules_that_split_backwards_only(traces, ask):
    makespans = {}
    for part in (0, 0.5):
        _, out, _ = ask("trace", *traces, "--weight-part", part, "--json")
        for it in json.loads(out)["forecasts"]:
            makespans[part, it["schedule"]] = it["makespan"]
    assert makespans[0, "1f1b"] == pytest.approx(makespans[0.5, "1f1b"])
    assert makespans[0, "zb-h1"] > 1.05 * makespans[0.5, "zb-h1"]


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (recorded("gpipe"), "'Forward 0', 'Backward 0'"),
        (
            ZB_V[:1],
            "No trace has stage 1, 2. There are traces of rank 0 of 2; pass all",
        ),
        ([*ZB_V, ZB_V[0]], "Rank 0 has two traces"),
        ([*ZB_V, "--step", 1], "--step is 1, and the traces have 1 complete step"),
        ([*ZB_V, "--label", "("], "is no regular expression"),
        ([*ZB_V, "--label", r"PP:(\d)"], "lacks the group kind and microbatch"),
        ([*ZB_V, "--label", "(?P<kind>PP)(?P<microbatch>:)"], "expected a kind such"),
        ([*ZB_V, "-o", "both.pptx"], "ends in .pptx"),
        ([__file__], "expected a trace"),
    ],
)
def test_what_is_wrong_is_said_in_a_sentence(words, said, ask):
    status, out, err = ask("trace", *words)
    assert status in (1, 2) and said in err and not out


def test_a_pattern_reads_the_labels_of_gpipe(ask):
    command = ("trace", *recorded("gpipe"), "--label", FORWARD_OR_BACKWARD, "--json")
    status, out, _ = ask(*command)
    data = json.loads(out)
    assert (status, data["num_stages"], data["num_microbatches"]) == (0, 2, 4)
    assert data["peak_activations"] == [4, 4]

"""The page of records: each certificate holds, and each row says what it proves."""

import json

import pytest

from minipipe import Costs, Schedule, simulate, verify
from minipipe.core.schedules.action import B, I, W
from minipipe.errors import ScheduleError
from minipipe.schedules.analysis.bounds import lower_bound
from minipipe.schedules.analysis.workload import ROUNDING
from minipipe.search.certificate import _digest, changed, read_certificate
from minipipe.search.joint import find_joint
from tests.launch import slowly
from tests.slow import records

ROWS = records.PAGE.read_text().splitlines()


CASES = []
for each in records.RECORDS:
    parameter = slowly if each.workload.num_ranks > 8 else pytest.param
    CASES.append(parameter(each, id=each.name))


@pytest.mark.parametrize("record", CASES)
def test_a_certificate_holds_and_its_row_says_so(record):
    certificate, finding = records.checked(record)
    verify(
        certificate.schedule, record.workload.memory_limit, record.workload.footprint
    )
    assert finding.formula == lower_bound(record.workload, record.objective)
    assert finding.is_proved
    assert certificate.bound <= certificate.value * (1 + ROUNDING)
    assert records.row(record).rstrip("\n") in ROWS
    # as good as published, to half of the last digit
    ours = float(record.shown(certificate.value))
    assert ours <= record.published + 1e-9
    assert certificate.seconds == 0


@pytest.mark.slow
def test_the_page_is_the_one_that_the_command_writes():
    assert records.page() == records.PAGE.read_text()


def test_the_page_has_a_row_and_a_certificate_for_each_record():
    paths = sorted(record.path for record in records.RECORDS)
    assert paths == sorted(records.FOLDER.iterdir())
    for path in paths:
        assert sum(f"(records/{path.name})" in row for row in ROWS) == 1


def test_the_open_puzzle_takes_20_with_whole_backwards_and_six_held():
    certificate, _ = records.checked(records.TABLES["puzzles"][0])
    rows = []
    for row in certificate.schedule.actions:
        whole = (each._replace(kind=B) if each.kind is I else each for each in row)
        rows.append(" ".join(str(each) for each in whole if each.kind is not W))
    schedule = Schedule.from_text("\n".join(rows))
    verify(schedule, memory_limit=6)
    timeline = simulate(schedule, Costs(backward_weight=0))
    assert timeline.makespan == 20 and max(timeline.peak_memory) == 6
    assert schedule.placement == (0, 1, 2, 0, 1, 2) and schedule.num_microbatches == 4


def rows_of_choices():
    """Yield the rows of the table of layers: options and what was found."""
    for row in ROWS[ROWS.index("## Layers, memory and time together") :]:
        cells = [cell.strip().strip("`") for cell in row.split("|")[1:-1]]
        if len(cells) == 5 and cells[1].isdigit():
            quick = cells[0] in ("--recompute any", "--offload")
            make = pytest.param if quick else slowly
            yield make(cells, id=cells[0])


@pytest.mark.parametrize("cells", list(rows_of_choices()))
def test_a_row_of_layers_is_what_the_search_finds(cells):
    words, value, bound, sizes, stages = cells
    options = {}
    if "--recompute" in words:
        options["recompute"] = words.split()[-1]
    if "--offload" in words:
        options["offload"] = True
    costs = Costs(activation=4, message_size=0.5, weights=1, copy_bandwidth=8)
    problem = (costs, 12, [(0, 1, 2, 3)], 8, 40)
    joint = find_joint(*problem, evaluations=500, **options)
    assert (joint.best.value, joint.best.bound) == (float(value), float(bound))
    assert ",".join(map(str, joint.sizes)) == sizes
    again = [str(stage) for stage, is_so in enumerate(joint.recomputed) if is_so]
    assert ",".join(again) == stages


def swapped(content):
    row = content["schedule"]["rows"][0].split()
    content["schedule"]["rows"][0] = " ".join([row[1], row[0], *reversed(row[2:])])


def less_memory(content):
    content["workload"]["memory_limit"] = [5.0, 5.0, 5.0]


MUTANTS = {
    "a smaller value": lambda content: content.update(value=19.0, bound=19.0),
    "a larger bound": lambda content: content.update(bound=21.0),
    "a bound that no formula proves": lambda content: content.update(bound=20.0 - 1),
    "another order": swapped,
    "less memory": less_memory,
}


@pytest.mark.parametrize("name", MUTANTS)
def test_a_wrong_certificate_is_refused(name, tmp_path, monkeypatch):
    record = records.TABLES["puzzles"][0]
    content = json.loads(record.path.read_text())
    MUTANTS[name](content)
    del content["sha256"]
    text = json.dumps({**content, "sha256": _digest(content)})
    monkeypatch.setattr(records, "FOLDER", tmp_path)
    record.path.write_text(text)
    with pytest.raises((ScheduleError, AssertionError)):
        records.checked(record)


def test_a_certificate_changed_by_hand_is_refused():
    text = records.RECORDS[0].path.read_text()
    assert read_certificate(text)[1] is True
    assert (
        read_certificate(text.replace('"seconds": 0.0', '"seconds": 1.0'))[1] is False
    )
    assert changed().code == "mismatch"

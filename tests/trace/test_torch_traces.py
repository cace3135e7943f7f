"""Traces that PyTorch itself records over gloo, on four ranks: what is read is what
ran, by PyTorch's own list and by clocks beside the profiler.
"""

import json
import subprocess
import sys
from statistics import mean, median, stdev

import pytest

from minipipe import schedules
from minipipe.trace import costs_of, forecasts, read_run
from tests.launch import ROOT, environment
from tests.trace.written import FORWARD_OR_BACKWARD

pytest.importorskip("torch", reason="needs PyTorch: pip install '.[oracle]'")
pytestmark = pytest.mark.slow

RANKS = range(4)
NAMES = ("interleaved", "zb-v", "dualpipe-v", "csv", "gpipe")
RECORD = ROOT / "tests" / "trace" / "record.py"


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """Return the folder of the traces of all schedules, from one job of four ranks."""
    folder = tmp_path_factory.mktemp("traces")
    text = schedules.one_f_one_b(4, 8).to_csv()
    (folder / "1f1b.csv").write_text(text)
    changes = {"OMP_NUM_THREADS": "1", "GLOO_SOCKET_IFNAME": "lo"}
    ranks = [
        subprocess.Popen(
            [sys.executable, str(RECORD), str(rank), str(folder), *NAMES],
            env={**environment(), **changes},
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
        )
        for rank in RANKS
    ]
    try:
        errors = [rank.communicate(timeout=300)[1] for rank in ranks]
    finally:
        for rank in ranks:
            rank.kill()
    assert [rank.returncode for rank in ranks] == [0] * 4, errors
    return folder


@pytest.fixture(scope="module")
def read(folder):
    """Return a function of a name: the run, and what each rank noted."""

    def reads(name):
        label = FORWARD_OR_BACKWARD if name == "gpipe" else None
        run = read_run(
            *(folder / f"{name}.{rank}.json.gz" for rank in RANKS), label=label
        )
        notes = (folder / f"{name}.{rank}.truth.json" for rank in RANKS)
        return run, [json.loads(note.read_text()) for note in notes]

    return reads


def spans_of(run, rank):
    """Return the spans of all steps of a rank."""
    return [span for timeline in run.timelines for span in timeline.spans[rank]]


@pytest.mark.parametrize("name", NAMES)
def test_the_order_is_exactly_what_each_rank_ran(name, read):
    run, notes = read(name)
    assert len(run.timelines) == 2
    lines = run.schedule.to_csv().splitlines()
    for rank, note in enumerate(notes):
        assert [str(it.action) for it in spans_of(run, rank)] == [
            cell for cell, _ in note["times"]
        ]
        if name != "gpipe":
            assert lines[rank].split(",") == note["actions"]


def test_what_was_loaded_from_csv_is_read_as_it_was_written(read):
    run, _ = read("csv")
    assert run.schedule.actions == schedules.one_f_one_b(4, 8).actions


@pytest.mark.parametrize("name", NAMES)
def test_costs_are_those_of_another_clock_within_the_spread(name, read):
    run, notes = read(name)
    times, others = {}, {}
    paired = {*run.schedule.joined, *run.schedule.joined.values()}
    for rank, note in enumerate(notes):
        for span, (_, seconds) in zip(spans_of(run, rank), note["times"]):
            if span.action not in paired:
                key = span.action.stage, span.action.kind
                times.setdefault(key, []).append(span.end - span.start)
                others.setdefault(key, []).append(seconds)
    assert len(times) >= 8
    for key, measured in times.items():
        spread = 0.0
        if len(measured) > 1:
            spread = max(stdev(measured), stdev(others[key]))
        # a range also has the work around the action, such as the loss
        assert abs(mean(measured) - mean(others[key])) <= spread + 2e-3, key
        assert median(measured) - median(others[key]) <= spread + 2e-3, key


def test_the_second_action_of_a_pair_begins_when_its_message_has_come(read):
    run, notes = read("dualpipe-v")
    joined = run.schedule.joined
    assert len(joined) >= 8
    errors = []
    num_apart = 0
    for rank, note in enumerate(notes):
        spans = spans_of(run, rank)
        pairs = zip(spans, spans[1:], note["times"][1:])
        for first, second, (_, seconds) in pairs:
            if joined.get(first.action) == second.action:
                num_apart += first.start < second.start
                errors.append(second.end - second.start - seconds)
    assert num_apart > len(errors) / 2
    assert median(errors) < 2e-3


@pytest.mark.parametrize("name", NAMES)
def test_the_messages_of_ranks_with_one_clock_agree_with_it(name, read):
    run, _ = read(name)
    for timeline in run.timelines:
        assert timeline.messages
        assert all(it.arrived > it.sent for it in timeline.messages)
    assert run.offsets == (0.0,) * 4


@pytest.mark.parametrize("name", NAMES)
def test_other_schedules_are_predicted(name, read):
    run, _ = read(name)
    names = [it.schedule for it in forecasts(run, costs_of(run))]
    assert {"recorded", "1f1b", "zb-v", "dualpipe-v"} <= set(names)

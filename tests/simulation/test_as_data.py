"""Figures and spans as plain data: what tables, JSON and data frames are made of."""

import csv
import io
import json

import pytest
from hypothesis import given

from minipipe import Costs, schedules, simulate
from minipipe.errors import ScheduleError
from minipipe.schedules import explain, table, theory
from tests.strategies import examples, named_schedules

PLAIN = (str, int, float, list, type(None), bool)


@examples(40)
@given(named_schedules(max_ranks=4, max_microbatches=6, max_chunks=2))
def test_the_summary_holds_the_figures_as_plain_data(named):
    timeline = simulate(named[1], Costs(latency=0.5))
    summary = timeline.summary()
    assert all(type(value) in PLAIN for value in summary.values()) and json.loads(json.dumps(summary)) == summary
    assert summary["makespan"] == timeline.makespan and summary["bubble_fraction"] == timeline.bubble_fraction
    assert summary["peak_activations"] == list(timeline.peak_activations)
    assert summary["num_ranks"] == timeline.num_ranks and summary["origin"] == "predicted"
    assert f"{timeline.name}: {timeline.describe()}" == str(timeline)


@examples(40)
@given(named_schedules(max_ranks=4, max_microbatches=6, max_chunks=2))
def test_rows_have_every_span_once_and_write_as_csv(named):
    timeline = simulate(named[1])
    rows = timeline.rows()
    text = io.StringIO()
    writer = csv.DictWriter(text, rows[0])
    writer.writeheader()
    writer.writerows(rows)
    read = list(csv.DictReader(io.StringIO(text.getvalue())))
    spans = [(rank, span) for rank, row in enumerate(timeline.spans) for span in row]
    assert len(read) == len(spans)
    for row, (rank, (action, start, end)) in zip(read, spans):
        assert (int(row["rank"]), f"{row['stage']}{row['kind']}{row['microbatch']}") == (rank, str(action))
        assert (float(row["start"]), float(row["end"])) == (start, end)
    assert [row["held_activations"] for row in rows] == [held for row in timeline.held_activations for held in row]


def test_the_explanation_of_a_timeline_is_what_its_properties_show():
    timeline = simulate(schedules.zb_h1(3, 5), Costs(latency=1))
    explanation = explain(timeline)
    assert explanation.idle == timeline.idle and explanation.messages == timeline.messages
    assert explanation.critical_path == timeline.critical_path


def test_the_comparison_is_of_a_ranks_whole_share():
    rows = {row["schedule"]: row for row in table(4, 8)}
    assert list(rows) == list(schedules.REGISTRY)
    for name, row in rows.items():
        try:
            assert row["makespan"] == pytest.approx(theory.makespan(name, 4, 8))
        except ScheduleError as error:
            assert error.code == "no-formula"
        assert json.loads(json.dumps(row)) == row
    assert rows["interleaved-1f1b"]["makespan"] == 28.5 and max(rows["interleaved-1f1b"]["peak_activations"]) == 5.5


def test_a_comparison_keeps_to_its_memory_limit_and_says_what_does_not_fit():
    assert [row["schedule"] for row in table(4, 8, memory_limit=2)] == ["sequential", "v-min", "forward-only"]
    rows = table(4, 8, Costs([1, 2, 3, 4]))
    assert len({tuple(sorted(row)) for row in rows}) == 1  # csv.DictWriter wants the same keys in all
    with pytest.raises(ScheduleError, match="forward has 8 values for 4 stages"):
        table(4, 8, Costs([1] * 8))
    with pytest.raises(ScheduleError, match="expected Costs, such as"):
        table(4, 8, "F=1")
    with pytest.raises(ScheduleError, match="num_ranks is 0"):
        table(0, 8)


def test_an_illegal_schedule_is_not_timed():
    """The story: a schedule without 0B1 was timed as it stood, and looked fast."""
    incomplete = schedules.Schedule.from_text("0F0 0F1 0B0\n1F0 1B0 1F1 1B1")
    with pytest.raises(ScheduleError, match="0B1 is missing on rank 0"):
        simulate(incomplete)


def test_a_deadlock_that_buffered_sends_avoid_is_timed_only_with_buffered_sends():
    program = schedules.Program.from_text(
        "0F0 0SEND_F0 0F1 0SEND_F1 0RECV_B0 0B0 0RECV_B1 0B1\n1RECV_F0 1F0 1B0 1SEND_B0 1RECV_F1 1F1 1B1 1SEND_B1"
    )
    assert simulate(program).makespan == 9
    with pytest.raises(ScheduleError) as caught:
        simulate(program, Costs(sends_block=True))
    assert caught.value.code == "rendezvous-deadlock"

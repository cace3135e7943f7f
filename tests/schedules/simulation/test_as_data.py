"""Figures and spans as plain data: what tables, JSON and data frames are made of."""

import csv
import io
import json
from itertools import product

import pytest
from hypothesis import given
from hypothesis import strategies as st

from minipipe import Costs, schedules, simulate
from minipipe.core.schedules.action import number_of
from minipipe.errors import ScheduleError
from minipipe.schedules import explain, sweep, table, theory
from tests.strategies import OVER_A_V, examples, named_schedules

PLAIN = (str, int, float, list, type(None), bool)


@examples(40)
@given(named_schedules(max_ranks=4, max_microbatches=6, max_chunks=2))
def test_the_summary_holds_the_figures_as_plain_data(named):
    timeline = simulate(named[1], Costs(latency=0.5))
    summary = timeline.summary()
    assert (
        all(type(value) in PLAIN for value in summary.values())
        and json.loads(json.dumps(summary)) == summary
    )
    assert (
        summary["makespan"] == timeline.makespan
        and summary["bubble_fraction"] == timeline.bubble_fraction
    )
    assert summary["peak_activations"] == list(timeline.peak_activations)
    assert (
        summary["num_ranks"] == timeline.num_ranks and summary["origin"] == "predicted"
    )
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
        number = number_of(action.microbatch, named[1].num_slices)
        assert (
            int(row["rank"]),
            f"{row['stage']}{row['kind']}{row['microbatch']}",
        ) == (rank, f"{action.stage}{action.kind}{number}")
        assert (float(row["start"]), float(row["end"])) == (start, end)
    assert [row["held_activations"] for row in rows] == [
        held for row in timeline.held_activations for held in row
    ]


def test_the_explanation_of_a_timeline_is_what_its_properties_show():
    timeline = simulate(schedules.zb_h1(3, 5), Costs(latency=1))
    explanation = explain(timeline)
    assert (
        explanation.idle == timeline.idle and explanation.messages == timeline.messages
    )
    assert explanation.critical_path == timeline.critical_path


def test_the_comparison_is_of_a_ranks_whole_share():
    rows = {row["schedule"]: row for row in table(4, 8)}
    assert list(rows) == list(schedules.REGISTRY)
    for name, row in rows.items():
        try:
            assert row["makespan"] == pytest.approx(theory.makespan(name, 4, 8))
        except ScheduleError as error:
            assert error.code == "unsupported"
        assert json.loads(json.dumps(row)) == row
    assert (
        rows["interleaved-1f1b"]["makespan"] == 28.5
        and max(rows["interleaved-1f1b"]["peak_activations"]) == 5.5
    )


def test_a_comparison_keeps_to_its_memory_limit_and_says_what_does_not_fit():
    assert [row["schedule"] for row in table(4, 8, memory_limit=2)] == [
        "sequential",
        "v-min",
        "forward-only",
    ]
    rows = table(4, 8, Costs([1, 2, 3, 4]))
    # csv.DictWriter wants the same keys in all
    assert len({tuple(sorted(row)) for row in rows}) == 1
    with pytest.raises(ScheduleError, match="forward has 8 values for 4 stages"):
        table(4, 8, Costs([1] * 8))
    with pytest.raises(ScheduleError, match="expected Costs, such as"):
        table(4, 8, "F=1")
    with pytest.raises(ScheduleError, match="num_ranks is 0"):
        table(0, 8)


@examples(20)
@given(
    *(
        st.lists(st.integers(1, 4), min_size=1, max_size=2, unique=True)
        for _ in range(2)
    ),
    st.lists(
        st.sampled_from(list(schedules.REGISTRY)), min_size=1, max_size=4, unique=True
    ),
    st.lists(
        st.sampled_from([Costs(), Costs(latency=1), Costs([1, 2])]),
        min_size=1,
        max_size=3,
        unique_by=id,
    ),
)
def test_a_sweep_has_the_rows_of_all_its_tables(ranks, microbatches, names, costs):
    by_name = {f"costs {i}": own for i, own in enumerate(costs)}
    expected = []
    for label, p, m in product(by_name, ranks, microbatches):
        try:
            rows = {row["schedule"]: row for row in table(p, m, by_name[label])}
            expected += [{"costs": label, **rows[name]} for name in names]
        except ScheduleError as error:  # the costs do not fit the number of ranks
            expected += [
                (label, name, p, m, error.problems[0].message) for name in names
            ]
    found = sweep(ranks, microbatches, names, costs=by_name)
    sizes = ("costs", "schedule", "num_ranks", "num_microbatches", "error")
    assert expected == [
        row if isinstance(wanted, dict) else tuple(row[key] for key in sizes)
        for row, wanted in zip(found, expected)
    ]
    assert len(found) == len(expected) and len({tuple(row) for row in found}) == 1


def test_a_comparison_names_the_placement():
    placements = {row["schedule"]: row["placement"] for row in table(4, 8)}
    assert {name for name, placement in placements.items() if placement == "V"} == set(
        OVER_A_V
    )
    looped = {name for name, placement in placements.items() if placement == "looped"}
    assert looped == {"interleaved-1f1b", "looped-bfs", "interleaved-zb"}
    assert (
        placements["1f1b"]
        == sweep([4], [8], ["1f1b"], [2])[0]["placement"]
        == "straight"
    )
    assert {row["placement"] for row in table(1, 2) if row["error"] is None} == {
        "straight"
    }


def test_a_sweep_goes_over_chunks_and_says_which_do_not_fit():
    rows = sweep([4], [8], ["1f1b", "zb-v"], chunks_per_rank=[1, 2])
    assert [
        (row["chunks_per_rank"], row["schedule"], row["makespan"]) for row in rows
    ] == [
        (1, "1f1b", 33),
        (1, "zb-v", None),
        (2, "1f1b", 33),
        (2, "zb-v", 25.5),
    ]
    assert rows[1]["error"] == (
        "chunks_per_rank is 1; zb-v is V-shaped and has exactly 2 chunks on each rank."
    )


@pytest.mark.parametrize(
    ("arguments", "code", "words"),
    [
        (((2,), (4,), ("1f2b",)), "name", "did you mean 1f1b?"),
        (((2, 0), (4,)), "value", "num_ranks is 0; expected a whole number"),
        (((2,), (4, 0.5)), "value", "num_microbatches is 0.5; expected a whole number"),
        (
            ((2,), (4,), ("1f1b",), (0,)),
            "value",
            "chunks_per_rank is 0; expected a whole number",
        ),
        (((10**9,), (4,)), "too-large", "the limits are"),
        ((2, (4,)), "value", "num_ranks is 2; expected at least one value, in a list"),
        (((2,), ()), "value", "num_microbatches is (); expected at least one value"),
        (
            ((2,), (4,), "1f1b"),
            "value",
            "schedules is '1f1b'; expected at least one value, in a list",
        ),
        (
            ((2,), (4,), ("1f1b",), (None,), Costs()),
            "value",
            "expected a mapping, such as",
        ),
        (
            ((2,), (4,), ("1f1b",), (None,), {"far": 1}),
            "value",
            "costs is 1; expected Costs",
        ),
    ],
)
def test_a_sweep_refuses_what_fits_no_combination(arguments, code, words):
    with pytest.raises(ScheduleError) as caught:
        sweep(*arguments)
    assert caught.value.code == code and words in str(caught.value)


def test_an_illegal_schedule_is_not_timed():
    """The story: a schedule without 0B1 was timed as it stood, and looked fast."""
    incomplete = schedules.Schedule.from_text("0F0 0F1 0B0\n1F0 1B0 1F1 1B1")
    with pytest.raises(ScheduleError, match="0B1 is missing on rank 0"):
        simulate(incomplete)


def test_a_deadlock_that_buffered_sends_avoid_is_timed_only_with_buffered_sends():
    program = schedules.Program.from_text(
        "0F0 0SEND_F0 0F1 0SEND_F1 0RECV_B0 0B0 0RECV_B1 0B1\n1RECV_F0 1F0 1B0 "
        "1SEND_B0 1RECV_F1 1F1 1B1 1SEND_B1"
    )
    assert simulate(program).makespan == 9
    with pytest.raises(ScheduleError) as caught:
        simulate(program, Costs(sends_block=True))
    assert caught.value.code == "rendezvous-deadlock"

"""What is read from traces: order, times, messages and clocks."""

import json

import pytest

from minipipe import Costs, Schedule, render, schedules, simulate
from minipipe.errors import ScheduleError
from minipipe.trace import costs_of, forecasts, read_run
from minipipe.trace.clocks import clock_offsets
from tests.trace.written import (
    FORWARD_OR_BACKWARD,
    event,
    events_of,
    recorded,
    write_timeline,
    write_trace,
)

COSTS = Costs(
    forward=[0.010, 0.012, 0.009, 0.014],
    backward_input=0.011,
    backward_weight=0.008,
    latency=0.004,
    unit="s",
)
# What PyTorch 2.13 ran on two ranks with four microbatches.
ZB_V = """
    0F0 0F1 0F2 3F0 3I0 3W0 3F1 3I1 3W1 0F3 0I0 0W0 3F2 3I2 3W2 0I1 0W1 3F3 3I3 3W3 0I2 0W2 0I3 0W3
    1F0 2F0 1F1 2F1 2I0 2W0 1F2 1I0 1W0 2F2 2I1 2W1 1F3 1I1 1W1 2F3 2I2 2W2 1I2 2I3 1I3 1W2 2W3 1W3
"""
DUALPIPE_V = """
    0F0 0F1 0F2 3F0 3I0 3W0 3F1 (0F3;3B1)OVERLAP_F_B (3F2;0B0)OVERLAP_F_B 3B2 (3F3;0B1)OVERLAP_F_B 3B3 0I2 0W2 0I3 0W3
    1F0 2F0 1F1 2F1 1F2 2B0 (2F2;1B0)OVERLAP_F_B (1F3;2B1)OVERLAP_F_B (2F3;1B1)OVERLAP_F_B 2B2 1B2 2I3 1I3 2W3 1W3
"""
GPIPE = """
    0F0 0F1 0F2 0F3 0B0 0B1 0B2 0B3
    1F0 1F1 1F2 1F3 1B0 1B1 1B2 1B3
"""


@pytest.mark.parametrize(
    ("name", "rows", "label"),
    [
        ("zb-v", ZB_V, None),
        ("dualpipe-v", DUALPIPE_V, None),
        ("gpipe", GPIPE, FORWARD_OR_BACKWARD),
    ],
)
def test_the_order_of_a_recorded_run_is_the_one_that_ran(name, rows, label):
    run = read_run(*recorded(name), label=label)
    expected = Schedule.from_text(rows)
    assert run.schedule.actions == expected.actions
    assert run.schedule.overlaps == expected.overlaps
    assert run.has_messages and run.offsets == (0.0, 0.0)


@pytest.mark.parametrize("name", ["zb-v", "dualpipe-v"])
def test_a_recorded_action_begins_when_its_message_has_arrived(name):
    timeline = read_run(*recorded(name)).timelines[0]
    starts = {span.action: span.start for row in timeline.spans for span in row}
    for message in timeline.messages:
        assert message.sent < message.arrived
    awaited = [it for it in timeline.messages if it.was_awaited]
    assert awaited
    for message in awaited:
        assert starts[message.used_by] >= message.arrived - 1e-9


@pytest.mark.parametrize("name", ["1f1b", "zb-h1", "interleaved-1f1b"])
def test_a_written_timeline_is_read_as_it_was(name, tmp_path):
    schedule = schedules.build(name, 4, 8)
    costs = COSTS.cut(schedule.num_stages // 4)
    timeline = simulate(schedule, costs)
    run = read_run(*write_timeline(tmp_path, timeline))
    assert run.schedule.actions == schedule.actions
    measured = run.timelines[0]
    for row, expected in zip(measured.spans, timeline.spans):
        for span, other in zip(row, expected):
            assert span.start == pytest.approx(other.start, abs=5e-6)
            assert span.end == pytest.approx(other.end, abs=5e-6)
    assert measured.makespan == pytest.approx(timeline.makespan, abs=1e-5)
    fitted = costs_of(run)
    assert fitted.forward == pytest.approx(costs.forward, abs=5e-6)
    assert fitted.latency == pytest.approx(0.004, abs=5e-6)
    for row, expected in zip(measured.idle_by_cause, timeline.idle_by_cause):
        assert row["waiting"] == pytest.approx(expected["waiting"], abs=1e-4)
    predicted = simulate(schedule, fitted)
    assert predicted.makespan == pytest.approx(timeline.makespan, rel=1e-3)


def test_times_of_a_gpu_count_instead_of_those_of_its_launches(tmp_path):
    """No GPU recorded this: the form is PyTorch's, the times are simulated."""
    timeline = simulate(schedules.one_f_one_b(2, 4), Costs(latency=0.5, unit="s"))
    for rank in range(2):
        launches = [
            event(f"PP:{span.action}", i * 1e-5, (i + 1) * 1e-5)
            for i, span in enumerate(timeline.spans[rank])
        ]
        events = [*launches, *events_of(timeline, rank, "gpu_user_annotation")]
        write_trace(tmp_path / f"{rank}.json", events, rank, 2)
    run = read_run(tmp_path / "0.json", tmp_path / "1.json")
    assert run.timelines[0].makespan == pytest.approx(timeline.makespan, abs=1e-4)


def on_streams(events, has_ids):
    """Return the events of a GPU: halves of each action on two streams, messages on a
    third one. Between the halves, the streams are idle.
    """
    result = []
    for number, it in enumerate(events, 1):
        if "PP:" not in it["name"] or "_" in it["name"]:
            result.append({**it, "tid": 25})
            continue
        third = it["dur"] / 3
        arguments = {"External id": number} if has_ids else {}
        for tid, start in (7, it["ts"]), (9, it["ts"] + 2 * third):
            times = {"tid": tid, "ts": start, "dur": third, "args": arguments}
            result.append({**it, **times})
    return sorted(result, key=lambda it: it["tid"])


@pytest.mark.parametrize("ranks", [2, None], ids=["job", "files"])
def test_ranges_of_several_streams_are_one_action_by_their_external_id(ranks, tmp_path):
    timeline = simulate(schedules.one_f_one_b(2, 4), Costs(latency=0.5, unit="s"))
    for has_ids in (True, False):
        paths = []
        for rank in range(2):
            events = on_streams(
                events_of(timeline, rank, "gpu_user_annotation"), has_ids
            )
            path = tmp_path / f"rank{rank}.json"
            job = None if ranks is None else rank
            paths.append(write_trace(path, events, job, ranks))
        if has_ids:
            measured = read_run(*paths).timelines[0]
    assert measured.makespan == pytest.approx(timeline.makespan, abs=1e-4)
    for row, expected in zip(measured.idle_by_cause, timeline.idle_by_cause):
        assert row["waiting"] == pytest.approx(expected["waiting"], abs=1e-4)
    # without the ids, each half would be an action of its own
    with pytest.raises(ScheduleError):
        read_run(*paths)


def test_one_file_may_have_all_ranks(tmp_path):
    """Threads are named after ranks, in another order than their numbers."""
    timeline = simulate(schedules.gpipe(3, 4), Costs(unit="s"))
    events = []
    for rank in range(3):
        thread = 9 - rank
        name = {"ph": "M", "name": "thread_name", "pid": 1, "tid": thread}
        events.append({**name, "args": {"name": f"rank {rank}"}})
        of_rank = events_of(timeline, rank)
        events += [{**it, "pid": 1, "tid": thread} for it in of_rank]
    run = read_run(write_trace(tmp_path / "all.json.gz", events))
    assert run.schedule.actions == schedules.gpipe(3, 4).actions


@pytest.mark.parametrize("form", ["files", "processes"])
def test_names_of_files_and_processes_state_ranks(form, tmp_path):
    """A shell lists rank10 before rank2, and the labels have no stage."""
    schedule = schedules.gpipe(12, 2)
    timeline = simulate(schedule, Costs(unit="s", latency=0.5))
    paths, together = [], []
    for rank in sorted(range(12), key=str):
        events = events_of(timeline, rank)
        for it in events:
            it["name"] = it["name"].replace(f"PP:{rank}F", "Forward ")
            it["name"] = it["name"].replace(f"PP:{rank}B", "Backward ")
        paths.append(write_trace(tmp_path / f"job_rank{rank}.json", events))
        together += [{**it, "pid": f"rank {rank}"} for it in events]
    if form == "processes":
        paths = [write_trace(tmp_path / "all.json", together)]
    run = read_run(*paths, label=FORWARD_OR_BACKWARD)
    assert run.schedule.actions == schedule.actions
    assert run.ranks == tuple(range(12))


def test_a_trace_that_minipipe_draws_can_be_read(tmp_path):
    timeline = simulate(schedules.v_half(2, 4))
    path = render.save(tmp_path / "v-half.json", timeline)
    pattern = r"^(?P<stage>\d)(?P<kind>[FIW])(?P<microbatch>\d)$"
    run = read_run(path, label=pattern)
    assert run.schedule.actions == schedules.v_half(2, 4).actions
    assert not run.has_messages


# -- steps -----------------------------------------------------------------------------


def repeated(timeline, rank, starts):
    events = []
    for start in starts:
        of_step = events_of(timeline, rank)
        events += [{**it, "ts": it["ts"] + start * 1e6} for it in of_step]
    return events


def test_incomplete_steps_at_either_end_are_left_out(tmp_path):
    schedule = schedules.one_f_one_b(2, 4)
    timeline = simulate(schedule, Costs(unit="s", latency=0.5))
    paths = []
    for rank, (begin, end) in enumerate([(7, -3), (11, -6)]):
        events = repeated(timeline, rank, [0, 100, 200, 300])[begin:end]
        paths.append(write_trace(tmp_path / f"{rank}.json", events, rank, 2))
    run = read_run(*paths)
    assert run.schedule.actions == schedule.actions
    assert len(run.timelines) == 2
    for each in run.timelines:
        assert each.makespan == pytest.approx(timeline.makespan, abs=1e-4)


def test_the_shown_step_has_the_median_makespan(tmp_path):
    paths = []
    for rank in range(2):
        events = []
        for start, factor in (0, 1), (100, 9), (400, 2):
            costs = Costs(*[factor] * 3, unit="s")
            each = simulate(schedules.gpipe(2, 2), costs)
            events += repeated(each, rank, [start])
        paths.append(write_trace(tmp_path / f"{rank}.json", events, rank, 2))
    run = read_run(*paths)
    makespans = [round(each.makespan) for each in run.timelines]
    assert (makespans, run.usual) == ([9, 81, 18], 2)
    spread = run.spreads()[0]
    assert (spread.number, round(spread.mean), round(spread.largest)) == (6, 4, 9)


def test_steps_that_differ_are_refused(tmp_path):
    """An evaluation, which has forwards alone, between two training steps."""
    timeline = simulate(schedules.gpipe(1, 2), Costs(unit="s"))
    evaluation = [event(f"PP:0F{k}", 20 + k, 21 + k) for k in range(2)]
    events = [*events_of(timeline, 0), *evaluation, *repeated(timeline, 0, [30])]
    path = write_trace(tmp_path / "0.json", events, 0, 1)
    with pytest.raises(ScheduleError, match="without evaluation") as caught:
        read_run(path)
    assert caught.value.problems[0].code == "order"


# -- clocks ----------------------------------------------------------------------------


@pytest.mark.parametrize("shift", [(0, 3.0, -7.0, 0.5), (0, 0, 1000.0, 0)])
def test_clocks_that_differ_are_aligned_by_messages(shift, tmp_path):
    schedule = schedules.one_f_one_b(4, 8)
    timeline = simulate(schedule, COSTS)
    run = read_run(*write_timeline(tmp_path, timeline, shift=shift))
    # half the time of a message there and back is the most that messages leave open
    for offset, ahead in zip(run.offsets, shift):
        assert offset == pytest.approx(-ahead, abs=0.004 * 3)
    measured = run.timelines[0]
    assert all(message.arrived > message.sent for message in measured.messages)
    assert measured.makespan == pytest.approx(timeline.makespan, abs=0.02)


def test_clocks_whose_zeros_differ_are_moved_exactly(tmp_path):
    timeline = simulate(schedules.gpipe(2, 2), Costs(unit="s", latency=0.25))
    paths = []
    for rank, base in enumerate([1_790_857_026_000_000_000, 1_790_857_020_000_000_000]):
        events = repeated(timeline, rank, [6.0 * rank])
        path = tmp_path / f"{rank}.json"
        paths.append(write_trace(path, events, rank, 2, baseTimeNanoseconds=base))
    run = read_run(*paths)
    assert run.offsets == (0.0, 0.0)
    assert run.timelines[0].makespan == pytest.approx(timeline.makespan, abs=1e-5)


def test_clocks_are_aligned_by_the_order_of_actions_if_no_message_was_recorded(
    tmp_path,
):
    timeline = simulate(schedules.one_f_one_b(3, 4), Costs(unit="s"))
    paths = []
    for rank, ahead in enumerate([0, 50, -7]):
        events = [
            event(f"PP:{span.action}", span.start + ahead, span.end + ahead)
            for span in timeline.spans[rank]
        ]
        paths.append(write_trace(tmp_path / f"{rank}.json", events, rank, 3))
    run = read_run(*paths)
    assert not run.has_messages
    # an action there and back is what their order leaves open
    assert run.offsets == pytest.approx((0, -50, 7), abs=3)


def test_clocks_between_which_messages_go_one_way_are_moved_as_little_as_needed():
    assert clock_offsets(3, [(0, 1, -2.0), (1, 2, 5.0)]) == [0.0, 2.0, 0.0]


def test_an_alignment_in_the_wrong_direction_fails():
    """The mutant: offsets that are subtracted let messages arrive before they left."""
    times = [(0, 1, 6.0), (1, 0, -4.0)]
    offsets = clock_offsets(2, times)
    aligned = [time + offsets[b] - offsets[a] for a, b, time in times]
    wrong = [time - offsets[b] + offsets[a] for a, b, time in times]
    assert min(aligned) > 0 > min(wrong)


# -- costs and other schedules ---------------------------------------------------------


def test_a_part_of_a_whole_backward_becomes_its_w(tmp_path):
    timeline = simulate(schedules.gpipe(2, 4), Costs(unit="s"))
    run = read_run(*write_timeline(tmp_path, timeline))
    costs = costs_of(run, weight_part=0.25)
    assert costs.backward_input == pytest.approx([1.5, 1.5], abs=1e-4)
    assert costs.backward_weight == pytest.approx([0.5, 0.5], abs=1e-4)


def test_forecasts_are_simulations_of_the_named_schedules(tmp_path):
    timeline = simulate(schedules.one_f_one_b(4, 8), Costs(unit="s"))
    run = read_run(*write_timeline(tmp_path, timeline))
    by_name = {it.schedule: it for it in forecasts(run, costs_of(run))}
    table = schedules.table(4, 8)
    expected = {row["schedule"]: row["makespan"] for row in table}
    for name in ("zb-h1", "zb-v", "interleaved-1f1b", "dualpipe"):
        assert by_name[name].makespan == pytest.approx(expected[name], rel=1e-3)
    assert by_name["recorded"].change == 0
    assert by_name["zb-h1"].change == pytest.approx(27 / 33 - 1, abs=1e-3)
    assert not {"pipedream", "2bw", "forward-only"} & set(by_name)


# -- what is wrong ---------------------------------------------------------------------


@pytest.mark.parametrize("missing", range(4))
def test_a_missing_rank_is_named_by_its_stage(missing, tmp_path):
    timeline = simulate(schedules.one_f_one_b(4, 4), COSTS)
    paths = write_timeline(tmp_path, timeline)
    del paths[missing]
    with pytest.raises(ScheduleError, match=f"stage {missing}. .*of 4;") as caught:
        read_run(*paths)
    assert caught.value.problems[0].code == "missing"


def test_two_traces_of_one_rank_are_refused_with_their_names(tmp_path):
    first, second = recorded("zb-v")
    copy = tmp_path / "copy.json.gz"
    copy.write_bytes(second.read_bytes())
    with pytest.raises(ScheduleError, match=r"Rank 1 .*zb-v.1.json.gz and .*copy"):
        read_run(first, second, copy)


def test_two_pipelines_are_refused_with_the_action_that_both_ran(tmp_path):
    timeline = simulate(schedules.gpipe(1, 2), Costs(unit="s"))
    paths = []
    for rank in range(2):
        path = tmp_path / f"{rank}.json"
        paths.append(write_trace(path, events_of(timeline, 0), rank, 2))
    with pytest.raises(
        ScheduleError, match="0F0 is a duplicate of .* rank 0"
    ) as caught:
        read_run(*paths)
    assert caught.value.problems[0].code == "duplicate"


def test_a_file_without_labels_is_refused_with_the_labels_that_it_has():
    with pytest.raises(ScheduleError) as caught:
        read_run(*recorded("gpipe"))
    message = caught.value.problems[0].message
    assert "'Forward 0', 'Backward 0'" in message and "--label" in message


def test_a_file_without_any_range_says_how_to_record_some(tmp_path):
    path = write_trace(tmp_path / "0.json", [{"ph": "M", "name": "process_name"}])
    with pytest.raises(ScheduleError, match="record_function"):
        read_run(path)


def test_events_in_unexpected_forms_are_passed_over(tmp_path):
    timeline = simulate(schedules.gpipe(1, 2), Costs(unit="s"))
    odd = [1, [], None, {}, {"ph": "X"}, {"ph": "X", "name": 3, "ts": "x"}]
    odd += [{"ph": "X", "name": "PP:0F0", "ts": "x"}, {"ph": "M", "args": []}]
    for wrong in (float("nan"), float("inf"), 10**400, [], None):
        odd.append({"ph": "X", "name": "PP:0F0", "ts": wrong, "dur": 1})
    odd += [{"ph": "X", "name": "PP:0F0", "ts": 1, "dur": -1}, {"ph": "E"}]
    path = tmp_path / "0.json"
    path.write_text(json.dumps([*odd, *events_of(timeline, 0)]))
    run = read_run(path)
    assert run.schedule.num_microbatches == 2
    assert run.timelines[0].makespan == pytest.approx(6)


def as_pairs(events):
    """Return events with a begin and an end of their own, in order of time."""
    pairs = []
    for it in events:
        place = {name: it[name] for name in ("pid", "tid", "name")}
        begin = {**place, "ph": "B", "ts": it["ts"], "cat": it["cat"]}
        pairs += [begin, {**place, "ph": "E", "ts": it["ts"] + it["dur"]}]
    return sorted(pairs, key=lambda it: it["ts"])


def as_text(events):
    """Return events whose times are text with three decimals."""
    times = ("ts", "dur")
    return [{**it, **{name: f"{it[name]:.3f}" for name in times}} for it in events]


def with_odd_places(events):
    """Return events whose process and thread are no numbers."""
    return [{**it, "pid": {"host": "a"}, "tid": None} for it in events]


def with_inner_ranges(events):
    """Return events of which each action has a range of its own name inside."""
    inner = []
    for it in events:
        if it["name"].startswith("PP:") and "RECV" not in it["name"]:
            times = {"ts": it["ts"] + it["dur"] / 4, "dur": it["dur"] / 2}
            inner.append({**it, **times})
    return [*events, *inner]


@pytest.mark.parametrize(
    "form", [as_pairs, as_text, with_odd_places, with_inner_ranges, reversed]
)
def test_other_forms_of_events_give_the_same_timeline(form, tmp_path):
    timeline = simulate(schedules.one_f_one_b(2, 4), Costs(unit="s", latency=0.5))
    paths = []
    for rank in range(2):
        events = form(events_of(timeline, rank))
        paths.append(write_trace(tmp_path / f"{rank}.json", events, rank, 2))
    run = read_run(*paths)
    assert run.timelines[0].makespan == pytest.approx(timeline.makespan, abs=1e-4)
    fraction = pytest.approx(timeline.bubble_fraction, abs=1e-4)
    assert run.timelines[0].bubble_fraction == fraction


def test_a_label_of_pytorch_that_is_no_action_is_passed_over(tmp_path):
    timeline = simulate(schedules.gpipe(1, 2), Costs(unit="s"))
    events = [*events_of(timeline, 0), event("PP:0NEW_KIND3", 6, 8)]
    run = read_run(write_trace(tmp_path / "0.json", events, 0, 1))
    assert run.timelines[0].makespan == pytest.approx(6)


def test_slices_among_whole_microbatches_are_refused(tmp_path):
    timeline = simulate(schedules.gpipe(1, 2), Costs(unit="s"))
    events = [*events_of(timeline, 0), event("PP:0F0.1", 6, 8)]
    with pytest.raises(ScheduleError, match=r"0F0\.1 names a slice"):
        read_run(write_trace(tmp_path / "0.json", events, 0, 1))


def test_no_traces_are_refused():
    with pytest.raises(ScheduleError, match="There are no traces"):
        read_run()

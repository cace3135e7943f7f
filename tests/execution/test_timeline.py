"""The measured timeline of ranks says what they recorded: from the records of a
predicted one it is that one again.
"""

import numpy as np
import pytest

from minipipe import Costs, Pipeline, nn, schedules, simulate, spawn
from minipipe.core.schedules.analysis.dependencies import Transfer
from minipipe.execution.timeline import Recorded, measured_timeline
from minipipe.schedules import ActionKind, Message, data_parallel, repeat
from minipipe.schedules.transforms import first_stages

TIMES = {
    "forward": 1.0,
    "backward_input": 1.5,
    "backward_weight": 0.5,
    "latency": 0.25,
    "update": 0.75,
}
COSTS = Costs(
    **TIMES,
    message_size=8,
    bandwidth=64,
    activation=16,
    weight_activation=4,
    gradient_size=32,
    memory_unit="bytes",
)
ORIGIN = 1000.0  # seconds on the clock of rank 0
NAMES = ["gpipe", "1f1b", "zb-h1", "interleaved-1f1b", "zb-v"]
SENDS = (ActionKind.SEND_F, ActionKind.SEND_B)
RECEIVES = (ActionKind.RECV_F, ActionKind.RECV_B)


def held_after(row):
    """Return how many microbatches the stage of each action holds after it: from F
    until W, or B.
    """
    held, found = {}, []
    for action in row:
        change = {"F": 1, "B": -1, "W": -1}.get(action.kind.value, 0)
        held[action.stage] = held.get(action.stage, 0) + change
        found.append(held[action.stage])
    return found


def records_of(predicted, program, num_steps):
    """Return what the ranks would have recorded, at times long after the clock
    began.
    """
    whole = repeat(program, num_steps)
    found = []
    by_value = {(str(m.value), str(m.used_by)): m for m in predicted.messages}
    for rank, (spans, actions) in enumerate(zip(predicted.spans, whole.actions)):
        reduced = [
            action for action in actions if action.kind is ActionKind.REDUCE_GRAD
        ]
        computed = [
            action
            for action in actions
            if not action.kind.is_communication and action not in reduced
        ]
        ran = [
            (ORIGIN + s.start, ORIGIN + s.end, held)
            for s, held in zip(spans, held_after(computed), strict=True)
        ]
        memory = list(zip(predicted.memory[rank], predicted.memory_during[rank]))
        values = {
            kinds: [Transfer.carried_by(a) for a in actions if a.kind in kinds]
            for kinds in (SENDS, RECEIVES)
        }

        def message(value, whole=whole):
            return by_value[
                str(whole.as_written(value.producer)),
                str(whole.as_written(value.consumer)),
            ]

        sent = [ORIGIN + message(value).sent for value in values[SENDS]]
        received = []
        for i, value in enumerate(values[RECEIVES]):
            awaited_from = message(value).sent + (0.125 if i % 2 else -0.125)
            received.append(
                (ORIGIN + awaited_from, ORIGIN + message(value).arrived, 8.0)
            )
        changes = (
            [(ORIGIN + c.left, ORIGIN + c.begun) for c in predicted.step_changes[rank]]
            if num_steps > 1
            else []
        )
        of_rank = {
            action: s
            for s in predicted.sums
            for action, r in zip(s.actions, s.ranks)
            if r == rank
        }
        sums = [
            (ORIGIN + s.came(rank), ORIGIN + s.end, s.size)
            for s in map(of_rank.__getitem__, reduced)
        ]
        found.append(Recorded(ran, memory, changes, sent, received, sums))
    return found


def assert_same_spans(measured, predicted):
    for mine, theirs in zip(measured.spans, predicted.spans, strict=True):
        assert [span.action for span in mine] == [span.action for span in theirs]
        assert np.allclose([s.start for s in mine], [s.start for s in theirs])
        assert np.allclose([s.end for s in mine], [s.end for s in theirs])


def without_times(message):
    return message._replace(sent=0.0, arrived=0.0, was_awaited=True)


@pytest.mark.parametrize("replicas", [1, 2])
@pytest.mark.parametrize("num_steps", [1, 3])
@pytest.mark.parametrize("name", NAMES)
def test_the_records_of_a_predicted_timeline_give_that_timeline(
    name, num_steps, replicas
):
    schedule = schedules.build(name, 2, 4)
    if replicas > 1:
        schedule = data_parallel(schedule, replicas)
    program = schedules.lower(schedule)
    predicted = simulate(schedule, COSTS, num_steps=num_steps, wait=True)
    measured = measured_timeline(
        program, records_of(predicted, program, num_steps), note="a note"
    )
    assert measured.is_measured and (
        measured.unit,
        measured.memory_unit,
        measured.note,
    ) == ("s", "bytes", "a note")
    assert_same_spans(measured, predicted)
    assert measured.makespan == pytest.approx(predicted.makespan)
    assert measured.peak_activations == predicted.peak_activations
    assert measured.held_activations == predicted.held_activations
    assert (measured.peak_memory, measured.memory) == (
        predicted.peak_memory,
        predicted.memory,
    )
    assert measured.memory_during == predicted.memory_during
    key = lambda m: (str(m.value), str(m.used_by))
    mine, theirs = (
        sorted(timeline.messages, key=key) for timeline in (measured, predicted)
    )
    assert [m._replace(size=None) for m in map(without_times, mine)] == [
        m._replace(size=None) for m in map(without_times, theirs)
    ]
    assert all(message.size == 8 for message in mine)
    for field in ("sent", "arrived"):
        assert np.allclose(
            [getattr(m, field) for m in mine], [getattr(m, field) for m in theirs]
        )
    changes = predicted.step_changes or [()] * schedule.num_ranks
    for mine, theirs in zip(measured.step_changes, changes, strict=True):
        assert [change.after for change in mine] == [change.after for change in theirs]
        assert np.allclose(
            [change[:2] for change in mine], [change[:2] for change in theirs]
        )
    assert (
        len(measured.sums)
        == len(predicted.sums)
        == schedule.num_stages * num_steps * (replicas > 1)
    )
    for mine, theirs in zip(
        *(sorted(timeline.sums, key=str) for timeline in (measured, predicted)),
        strict=True,
    ):
        assert (mine.actions, mine.ranks, mine.size) == (
            theirs.actions,
            theirs.ranks,
            32,
        )
        assert (*mine.reached, mine.end) == pytest.approx((*theirs.reached, theirs.end))
    assert list(measured.messages) == sorted(
        measured.messages, key=lambda m: (m.sent, m.arrived)
    )


@pytest.mark.parametrize("frozen", [[0], [0, 1]])
def test_a_frozen_stage_holds_its_microbatch_while_it_runs(frozen):
    schedule = schedules.freeze_stages(schedules.one_f_one_b(3, 4), frozen)
    program = schedules.lower(schedule)
    predicted = simulate(schedule, COSTS)
    records = records_of(predicted, program, 1)
    for rank, record in enumerate(records):
        row = [
            action
            for action in program.actions[rank]
            if not action.kind.is_communication
        ]
        is_kept = [action.stage >= program.first_backward_stage for action in row]
        ran = [
            (*times, held * kept) for (*times, held), kept in zip(record.ran, is_kept)
        ]
        records[rank] = record._replace(ran=ran)
    assert (
        measured_timeline(program, records).peak_activations
        == predicted.peak_activations
    )


def test_a_message_was_awaited_if_its_receiver_waited_when_it_was_sent():
    program = schedules.lower(schedules.gpipe(2, 1))
    for awaited_from, was_awaited in ((5.5, True), (6.0, True), (6.5, False)):
        records = [
            Recorded(
                [(5.0, 6.0, 1), (9.0, 10.0, 0)], [], [], [6.0], [(6.0, 9.0, 24.0)]
            ),
            Recorded(
                [(7.0, 8.0, 1), (8.0, 8.5, 0)],
                [],
                [],
                [8.5],
                [(awaited_from, 7.0, 16.0)],
            ),
        ]
        there, back = measured_timeline(program, records).messages
        assert there == Message(
            *there[:2], 0, 1, sent=1.0, arrived=2.0, was_awaited=was_awaited, size=16.0
        )
        assert back == Message(
            *back[:2], 1, 0, sent=3.5, arrived=4.0, was_awaited=True, size=24.0
        )
        assert [str(action) for action in (*there[:2], *back[:2])] == [
            "0F0",
            "1F0",
            "1B0",
            "0B0",
        ]


@pytest.mark.parametrize(
    ("end_of_first", "end_of_last", "left", "waited_for"),
    [
        (4.0, 6.0, 7.0, 1),
        (4.0, 6.0, 6.0, 1),
        (4.0, 6.0, 5.0, 0),
        (6.0, 6.0, 7.0, 0),
        (6.5, 6.0, 7.0, 0),
    ],
)
def test_a_change_waited_for_the_last_stage_if_that_ended_between(
    end_of_first, end_of_last, left, waited_for
):
    program = schedules.lower(schedules.gpipe(2, 1))
    first = [(1.0, 2.0, 1), (3.0, end_of_first, 0), (8.0, 9.0, 1), (12.0, 13.0, 0)]
    last = [(2.0, 3.0, 1), (5.0, end_of_last, 0), (9.0, 10.0, 1), (10.0, 11.0, 0)]
    sent = [(2.0, 9.0), (6.0, 11.0)]
    records = [
        Recorded(
            first, [], [(left, 8.0)], sent[0], [(2.0, 6.0, 8.0), (9.0, 12.0, 8.0)]
        ),
        Recorded(last, [], [(7.5, 7.75)], sent[1], [(1.0, 2.0, 8.0), (7.75, 9.0, 8.0)]),
    ]
    changes = measured_timeline(program, records).step_changes
    assert changes == (((left - 1, 7.0, waited_for),), ((6.5, 6.75, 1),))


def test_a_sum_is_there_once_the_last_of_its_ranks_has_it():
    program = schedules.lower(data_parallel(schedules.gpipe(1, 1), 2))
    records = [
        Recorded(
            [(10.0, 11.0, 1), (11.0, 13.0, 0)], [], [], [], [], [(13.0, 16.0, 24.0)]
        ),
        Recorded(
            [(10.5, 11.0, 1), (11.0, 14.0, 0)], [], [], [], [], [(14.0, 15.5, 20.0)]
        ),
    ]
    (found,) = measured_timeline(program, records).sums
    assert (found.ranks, found.reached, found.end, found.size) == (
        (0, 1),
        (3.0, 4.0),
        6.0,
        24.0,
    )
    assert (found.begin, found.last_rank) == (4.0, 1)


def test_memory_is_known_if_every_rank_measured_it():
    program = schedules.lower(schedules.gpipe(1, 2))
    ran = [(0.0, 1.0, 1), (1.0, 2.0, 2), (2.0, 3.0, 1), (3.0, 4.0, 0)]
    known = measured_timeline(
        program, [Recorded(ran, [(8, 9), (16, 16), (8, 30), (0, 12)], [], [], [])]
    )
    assert (known.memory, known.memory_during, known.peak_memory) == (
        ((8, 16, 8, 0),),
        ((9, 16, 30, 12),),
        (30,),
    )
    for memory in ([], [(8, 9)]):
        unknown = measured_timeline(program, [Recorded(ran, memory, [], [], [])])
        assert (unknown.memory, unknown.memory_during, unknown.peak_memory) == (
            None,
            None,
            None,
        )
        assert unknown.peak_activations == (2,)


def test_memory_that_one_rank_of_two_did_not_measure_is_not_known():
    program = schedules.lower(schedules.gpipe(2, 1))
    ran, memory = [(5.0, 6.0, 1), (9.0, 10.0, 0)], [(8, 8), (0, 9)]
    for first, second, peaks in (
        (memory, memory, (9, 9)),
        (memory, [], None),
        ([], memory, None),
    ):
        records = [
            Recorded(ran, first, [], [6.0], [(6.0, 9.0, 8.0)]),
            Recorded(ran, second, [], [9.0], [(5.0, 6.0, 8.0)]),
        ]
        assert measured_timeline(program, records).peak_memory == peaks


def test_a_rank_without_a_stage_holds_nothing():
    program = schedules.lower(first_stages(schedules.gpipe(2, 1), 1))
    records = [
        Recorded([(1.0, 2.0, 1), (2.0, 3.0, 0)], [(8, 8), (0, 8)], [], [], []),
        Recorded([], [], [], [], []),
    ]
    found = measured_timeline(program, records)
    assert (found.peak_memory, found.memory, found.peak_activations) == (
        (8, 0),
        ((8, 0), ()),
        (1, 0),
    )
    twice = [(1.0, 2.0, 1), (2.0, 3.0, 0), (4.0, 5.0, 1), (5.0, 6.0, 0)]
    records = [
        Recorded(twice, [], [(3.0, 4.0)], [], []),
        Recorded([], [], [(1.0, 3.5)], [], []),
    ]
    assert measured_timeline(program, records).step_changes == (
        ((2.0, 3.0, 0),),
        ((0.0, 2.5, 1),),
    )


def test_a_rank_that_computes_nothing_has_an_empty_row():
    program = schedules.lower(schedules.gpipe(1, 1))
    measured = measured_timeline(program, [Recorded([], [], [(5.0, 6.0)], [], [])])
    assert (measured.spans, measured.step_changes) == (((),), (((5.0, 6.0, 0),),))


def test_the_clock_of_each_rank_is_set_right_in_all_its_times_and_in_nothing_else():
    # seconds by which the clock of each rank is behind that of the one before
    apart = 1000.0

    def timelines(group):
        model = nn.Sequential(*(nn.Linear(2, 2) for _ in range(4)))
        pipeline = Pipeline(
            model, group, loss=nn.MSELoss(), num_microbatches=4, replicas=2
        )
        pipeline.measures_memory = True
        for _ in range(2):
            pipeline.step(np.ones((8, 2), np.float32), np.ones((8, 2), np.float32))
        before = pipeline.timeline()
        group.clock_offset += apart * group.rank
        return before, pipeline.timeline()

    before, after = spawn(timelines, 4)[0]
    # rank 0 begins first on clocks that are apart
    first = min(span.start for span in before.spans[0])

    def moved(time, rank):
        return pytest.approx(time - first + apart * rank, abs=1e-6)

    for rank, (mine, theirs) in enumerate(zip(before.spans, after.spans, strict=True)):
        assert [(s.start, s.end) for s in theirs] == [
            (moved(s.start, rank), moved(s.end, rank)) for s in mine
        ]
    for rank, (mine, theirs) in enumerate(
        zip(before.step_changes, after.step_changes, strict=True)
    ):
        assert [change[:2] for change in theirs] == [
            (moved(c.left, rank), moved(c.begun, rank)) for c in mine
        ]
    key = lambda message: (message.value, message.used_by, message.source)
    assert before.messages and before.sums
    for mine, theirs in zip(
        sorted(before.messages, key=key), sorted(after.messages, key=key), strict=True
    ):
        assert (theirs.sent, theirs.arrived) == (
            moved(mine.sent, mine.source),
            moved(mine.arrived, mine.destination),
        )
        assert theirs.size == mine.size == 2 * 2 * 4 / 2
    for mine, theirs in zip(before.sums, after.sums, strict=True):
        assert list(theirs.reached) == [
            moved(time, rank) for time, rank in zip(mine.reached, mine.ranks)
        ]
        assert (
            theirs.end > apart * max(theirs.ranks)
            and theirs.size == mine.size == 2 * (4 + 2) * 4
        )
    assert (after.memory, after.memory_during) == (before.memory, before.memory_during)
    assert (after.peak_memory, after.peak_activations) == (
        before.peak_memory,
        before.peak_activations,
    )
    assert (
        after.memory is not None and after.held_activations == before.held_activations
    )

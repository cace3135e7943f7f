"""The frame of a step: what all ranks do around their schedule."""

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st
from minipipe import schedules, verify
from minipipe.core.values import NOUNS
from minipipe.errors import ScheduleError
from minipipe.passes.framing import frame
from minipipe.passes.kinds import ADDED, FRAMING
from minipipe.passes.shards import shard
from minipipe.schedules import Action, Program, data_parallel, declaring, lower
from tests.passes.framed import framed_programs
from tests.strategies import examples

_ADDED = {*FRAMING, "U"}


def test_the_frame_of_1f1b_stands_around_its_messages_and_computations():
    program = frame(lower(schedules.one_f_one_b(2, 2)), clip=True)
    assert str(program) == "\n".join(
        [
            "# 1f1b: 2 ranks, 2 stages, 2 microbatches",
            "rank 0: HANDSHAKE 0F0 0SEND_F0 0F1 0SEND_F1 0RECV_B0 0B0 0RECV_B1 0B1"
            " FINITE LOSS NORM 0U1",
            "rank 1: HANDSHAKE 1RECV_F0 1RECV_F1 1F0 1B0 1SEND_B0 1F1 1B1 1SEND_B1"
            " FINITE LOSS NORM 1U1",
        ]
    )


def test_replicas_gather_their_results_and_tied_stages_exchange_their_gradients():
    schedule = data_parallel(schedules.gpipe(2, 1), 2)
    program = frame(lower(schedule), tied=[(0, 1)], input_gradients=True)
    ends = [" ".join(map(str, row)).partition("GRAD")[2] for row in program.actions]
    assert ends == [
        "0 REDUCE_TIED GATHER_INPUT_GRADS FINITE LOSS 0U0",
        "0 REDUCE_TIED GATHER_RESULTS FINITE LOSS 1U0",
        "1 REDUCE_TIED GATHER_INPUT_GRADS FINITE LOSS 0U1",
        "1 REDUCE_TIED GATHER_RESULTS FINITE LOSS 1U1",
    ]


def test_a_schedule_with_updates_of_its_own_gets_neither_a_check_nor_others():
    program = frame(lower(schedules.pipedream(2, 1)), clip=True)
    assert [" ".join(map(str, row)) for row in program.actions] == [
        "HANDSHAKE 0F0 0SEND_F0 0RECV_B0 0B0 0U0 LOSS",
        "HANDSHAKE 1RECV_F0 1F0 1B0 1SEND_B0 1U0 LOSS",
    ]


def test_updates_stand_in_the_order_of_stages_and_frozen_stages_have_none():
    schedule = schedules.freeze_stages(schedules.interleaved_1f1b(1, 1, 3), [0])
    assert str(frame(lower(schedule))).endswith(" FINITE LOSS 1U0 2U0")


def test_sharded_stages_are_gathered_inside_of_the_frame():
    program = frame(lower(schedules.gpipe(1, 1)), sharded=[0], update=False)
    row = " ".join(map(str, program.actions[0]))
    assert row == "HANDSHAKE 0GATHER0 0F0 0B0 0FREE0 FINITE LOSS"


def test_a_schedule_without_messages_is_no_program():
    for add in (frame, lambda schedule: shard(schedule, [0])):
        with pytest.raises(ScheduleError, match="Expected a Program, not .*lower"):
            add(schedules.gpipe(2, 1))


@given(framed_programs())
@examples(60)
def test_a_framed_program_is_legal_and_its_text_is_read_back(drawn):
    _, program = drawn
    verify(program)
    again = Program.from_text(str(program), program.name)
    assert again == program


@given(framed_programs(), st.data())
@examples(60)
def test_a_row_without_any_one_of_its_instructions_is_illegal(drawn, data):
    _, program = drawn
    rank = data.draw(st.integers(0, program.num_ranks - 1))
    row = program.actions[rank]
    position = data.draw(st.integers(0, len(row) - 1))
    others = {a.kind for other in program.actions for a in other if a != row[position]}
    short = [*row[:position], *row[position + 1 :]]
    if row[position].kind not in others and row[position].kind != "F":
        return  # without the only one of its kind, the step just does not do that
    with pytest.raises(ScheduleError):
        verify(_with_row(program, rank, short))


@given(framed_programs(), st.data())
@examples(60)
def test_an_instruction_of_the_frame_that_stands_twice_is_illegal(drawn, data):
    _, program = drawn
    rank = data.draw(st.integers(0, program.num_ranks - 1))
    row = program.actions[rank]
    added = [action for action in row if action.kind in _ADDED]
    again = data.draw(st.sampled_from(added))
    position = data.draw(st.integers(0, len(row)))
    with pytest.raises(ScheduleError, match="duplicate"):
        verify(_with_row(program, rank, [*row[:position], again, *row[position:]]))


@given(framed_programs(), st.data())
@examples(60)
def test_nothing_runs_before_the_handshake_or_behind_the_loss(drawn, data):
    _, program = drawn
    rank = data.draw(st.integers(0, program.num_ranks - 1))
    row = list(program.actions[rank])
    inner = [at for at, action in enumerate(row) if action.kind not in _ADDED]
    if not inner:
        return
    loss = next(action for action in row if action.kind == "LOSS")
    rest = [action for action in row[1:] if action != loss]
    late = [row[1], row[0], *row[2:]]
    early = [row[0], *rest[: inner[-1] - 1], loss, *rest[inner[-1] - 1 :]]
    with pytest.raises(ScheduleError):
        verify(_with_row(program, rank, late if data.draw(st.booleans()) else early))


def _with_row(program, rank, row):
    rows = [*program.actions]
    rows[rank] = row
    return program.with_rows(Program, rows)


def test_a_frame_is_put_on_once():
    program = frame(lower(schedules.gpipe(2, 1)))
    with pytest.raises(ScheduleError, match="instructions of a rank already, such as"):
        frame(program)
    with pytest.raises(ScheduleError, match="a row has each once; repeat the schedule"):
        schedules.repeat(program, 2)


def test_the_schedule_of_a_framed_program_has_its_computations():
    schedule = schedules.one_f_one_b(2, 3)
    assert frame(lower(schedule), clip=True, update=False).schedule == schedule


FRAMED = frame(lower(schedules.gpipe(2, 1)), tied=[(0, 1)], clip=True)
_ORDER = [
    (
        "0F0",
        "HANDSHAKE",
        "0F0 comes before HANDSHAKE .*gives the agreement on the call",
    ),
    ("FINITE", "REDUCE_TIED", "FINITE comes before REDUCE_TIED .*, which it needs"),
    ("FINITE", "0B0", "FINITE comes before 0B0"),
    ("REDUCE_TIED", "0B0", "REDUCE_TIED comes before 0B0"),
    ("LOSS", "FINITE", "LOSS comes before FINITE"),
    ("LOSS", "0B0", "0B0 comes after LOSS .*, which takes the agreement on the call"),
    ("NORM", "LOSS", "NORM comes before LOSS"),
    ("0U0", "NORM", "NORM comes after 0U0 .*takes the gradients of weights of stage 0"),
    ("0U0", "LOSS", "LOSS comes after 0U0 .*takes the gradients of weights of stage 0"),
    ("0U0", "FINITE", "FINITE comes after 0U0 .*takes the gradients of weights"),
    ("0U0", "REDUCE_TIED", "REDUCE_TIED comes after 0U0 .*takes the gradients of weig"),
    ("0U0", "0B0", "0U0 comes before 0B0 .*, whose gradient it applies"),
]


@pytest.mark.parametrize(("moved", "before", "words"), _ORDER)
def test_each_instruction_has_its_place_and_a_message_says_which(moved, before, words):
    row = list(map(str, FRAMED.actions[0]))
    row.remove(moved)
    row.insert(row.index(before), moved)
    with pytest.raises(ScheduleError) as caught:
        verify(_with_row(FRAMED, 0, [_action(cell) for cell in row]))
    assert re.search(words, str(caught.value))


def _action(cell):
    return Action.parse(f"0{cell}0" if cell in FRAMING else cell)


_MISSING = {
    "HANDSHAKE": "HANDSHAKE is missing on rank 0; the others wait for it",
    "REDUCE_TIED": "REDUCE_TIED is missing on rank 0; the others wait for it",
    "FINITE": "LOSS needs the result of the finite check of rank 0, which nothing",
    "LOSS": "LOSS is missing on rank 0; the others wait for it",
    "NORM": "NORM is missing on rank 0; the others wait for it",
    "0U0": "0U0 is missing on rank 0: either all stages have a U, or none",
}


@pytest.mark.parametrize(("missing", "words"), _MISSING.items())
def test_a_message_says_what_is_missing(missing, words):
    row = [action for action in FRAMED.actions[0] if str(action) != missing]
    with pytest.raises(ScheduleError) as caught:
        verify(_with_row(FRAMED, 0, row))
    assert words in caught.value.problems[0].message


def test_a_step_of_one_rank_needs_its_handshake_and_its_loss():
    program = frame(lower(schedules.sequential(1, 1)))
    for missing in ("HANDSHAKE", "LOSS"):
        row = [action for action in program.actions[0] if str(action) != missing]
        with pytest.raises(ScheduleError, match="agreement on the call"):
            verify(_with_row(program, 0, row))


def test_stages_that_share_parameters_on_one_rank_exchange_nothing():
    program = lower(schedules.interleaved_1f1b(2, 2))
    for tied, count in (([(0, 2)], 0), ([(0, 3)], 2), ([(0, 2), (1, 2)], 2)):
        framed = frame(program, tied=tied)
        verify(framed)
        assert str(framed).count("REDUCE_TIED") == count


def test_each_pipeline_of_replicas_exchanges_gradients_of_its_own():
    program = lower(data_parallel(schedules.gpipe(3, 1), 2))
    framed = frame(program, tied=[(0, 2)])
    verify(framed)
    ranks = [r for r, row in enumerate(framed.actions) if "REDUCE_TIED" in str(row)]
    assert ranks == [0, 2, 3, 5]


@pytest.mark.parametrize("name", ADDED)
def test_the_declaration_of_an_added_kind_is_one_that_a_program_may_make(name):
    declaring._checked_nouns(ADDED[name], NOUNS)
    declaring._check_uses(ADDED[name], NOUNS)

"""An action that nothing handles is refused before anything runs; it is never
skipped.
"""

import inspect

import numpy as np
import pytest

from minipipe import nn, schedules
from minipipe.comm import OneRankGroup
from minipipe.core.execution.executor import Executor
from minipipe.core.schedules.action import L, O, R, U
from minipipe.core.values import NOUNS
from minipipe.errors import ScheduleError
from minipipe.execution.building import build_stages
from minipipe.execution.plan import Plan
from minipipe.execution.row_handlers import HANDLERS, handlers_of
from minipipe.passes.framing import frame
from minipipe.passes.shards import shard
from minipipe.schedules import data_parallel, lower

ROWS = {
    "1f1b": lambda: schedules.one_f_one_b(1, 2),
    "split": lambda: schedules.split_backward(schedules.one_f_one_b(1, 2)),
    "recomputed": lambda: schedules.recomputed(schedules.one_f_one_b(1, 2)),
    "offloaded": lambda: schedules.offloaded(schedules.gpipe(1, 4), 1),
}


def executor_of(schedule, handlers):
    model = nn.Sequential(nn.Linear(2, 2))
    plan = Plan(model, schedule)
    return Executor(
        lower(schedule), build_stages(plan, 0, 0), OneRankGroup(), np, handlers
    )


@pytest.mark.parametrize("name", ROWS)
def test_a_row_is_refused_if_any_of_its_kinds_has_no_handler(name):
    schedule = ROWS[name]()
    handlers = handlers_of(schedule.numbered[0])
    executor_of(schedule, handlers)
    for kind in schedule.kinds:
        others = {
            other: handler for other, handler in handlers.items() if other != kind
        }
        with pytest.raises(
            ScheduleError, match=f"0{kind}[0-9] has no handler here: this run has no "
        ) as caught:
            executor_of(schedule, others)
        assert caught.value.code == "name"


def test_only_a_row_with_copies_has_their_handlers():
    assert handlers_of(ROWS["1f1b"]().numbered[0]) is HANDLERS
    assert handlers_of(ROWS["offloaded"]().numbered[0]).keys() == {*HANDLERS, O, L}


def test_the_parameters_of_handlers_are_names_of_values():
    names = {noun.replace(" ", "_") for noun in NOUNS}
    for kind, handler in handlers_of(ROWS["offloaded"]().numbered[0]).items():
        assert {*inspect.signature(handler).parameters} - {
            "executor",
            "action",
        } <= names, kind


PROGRAMS = {
    "1f1b": lambda: lower(schedules.one_f_one_b(2, 2)),
    "zb-h1": lambda: lower(schedules.zb_h1(2, 3)),
    "interleaved": lambda: lower(schedules.interleaved_1f1b(2, 2)),
    "recomputed": lambda: lower(schedules.recomputed(schedules.one_f_one_b(2, 2))),
    "offloaded": lambda: lower(schedules.offloaded(schedules.gpipe(2, 4), 1)),
    "replicas": lambda: lower(data_parallel(schedules.one_f_one_b(1, 2), 2)),
    "shards": lambda: shard(lower(data_parallel(schedules.one_f_one_b(1, 2), 2)), [0]),
    "updates": lambda: lower(schedules.pipedream(2, 4)),
    "forward only": lambda: lower(schedules.forward_only(2, 2)),
}


def executor_of_any(program):
    handlers = dict.fromkeys(program.kinds, lambda executor, action: None)
    return Executor(
        program, dict.fromkeys(program.stages_of(0)), OneRankGroup(), np, handlers
    )


@pytest.mark.parametrize("name", PROGRAMS)
def test_a_program_without_any_one_of_its_instructions_is_refused_before_anything_runs(
    name,
):
    program = frame(PROGRAMS[name]())
    executor_of_any(program)
    for at, action in enumerate(row := program.actions[0]):
        # a graph is kept then; a later update applies its gradients
        if action.kind in (R, U):
            continue
        rows = [[*row[:at], *row[at + 1 :]], *program.actions[1:]]
        with pytest.raises(ScheduleError) as caught:
            executor_of_any(program.with_rows(type(program), rows))
        assert caught.value.problems, action


def test_gradients_of_replicas_that_nothing_sums_are_refused():
    program = frame(PROGRAMS["replicas"](), update=False)
    rows = [
        [action for action in row if action.kind != "REDUCE_GRAD"]
        for row in program.actions
    ]
    with pytest.raises(
        ScheduleError,
        match="needs the summed gradients of weights of stage 0, which nothing gives",
    ):
        executor_of_any(program.with_rows(type(program), rows))

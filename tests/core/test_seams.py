"""Kinds of a program enter the core's pipeline through passes and handlers.

`test_alone.py` runs such a kind on threads and over MPI, with the bits of one process.
"""

import contextlib
from types import MappingProxyType

import minipipe
import numpy as np
import pytest
from minipipe import nn, optim, schedules, spawn
from minipipe.core.framing import framing_kind, with_rank_kind
from minipipe.core.pipeline import Pipeline
from minipipe.core.schedules.action import Action, ActionKind
from minipipe.core.schedules.action_table import Program
from minipipe.core.values import gives, takes
from minipipe.errors import ArgumentError, ScheduleError
from minipipe.execution.offloading import Offloading
from minipipe.optim.scaling import clip_gradients, squared_norms, total_norm
from minipipe.passes.framing import norm
from minipipe.schedules import Kind, Noun, Uses, declared
from tests.core import alone


def begin(site):
    """BEGIN gives the number of its microbatch to the END of the stage."""
    return Uses(gives=(site.value("number"),))


def end(site):
    return Uses(takes=(site.value("number"),))


KINDS = (
    (Kind("BEGIN", begin, "begin of a microbatch"), {"number": Noun("number")}),
    (Kind("END", end, "end of a microbatch"), {}),
    (framing_kind("COUNT", lambda site: Uses(), "count of steps"), {}),
    (alone.NOISE, {}),
)


@pytest.fixture(autouse=True)
def _declared():
    with contextlib.ExitStack() as stack:
        for kind, nouns in KINDS:
            stack.enter_context(declared(kind, nouns))
        yield


def marked(program):
    """A pass: BEGIN stands before each F, and END behind each B."""
    rows = []
    for row in program.actions:
        cells = []
        for action in row:
            stage, kind, k = action
            before = [Action(stage, ActionKind("BEGIN"), k)] * (kind == "F")
            behind = [Action(stage, ActionKind("END"), k)] * (kind == "B")
            cells += [*before, action, *behind]
        rows.append(tuple(cells))
    return program.with_rows(Program, rows)


X = np.ones((4, 2), np.float32)


def model():
    return nn.Sequential(nn.Linear(2, 4), nn.Tanh(), nn.Linear(4, 1))


def trained(
    group, passes=(), handlers=MappingProxyType({}), num_steps=2, changed=lambda t: t
):
    """Return a pipeline that has trained, and its losses."""
    table = changed(schedules.one_f_one_b(group.size, num_microbatches=2))
    sgd = lambda parameters: optim.SGD(parameters, learning_rate=0.1)
    pipeline = Pipeline(
        model(),
        group,
        table,
        nn.MSELoss(),
        optimiser=sgd,
        passes=passes,
        handlers=handlers,
    )
    return pipeline, [pipeline.step(X, X[:, :1]) for _ in range(num_steps)]


def counted(program):
    """A pass: COUNT stands at the end of all rows, also when nothing is trained."""
    return with_rank_kind(program, "COUNT", range(program.num_ranks))


def test_a_value_goes_from_the_handler_that_gives_it_to_the_one_that_takes_it():
    def train(group):
        ended = []

        @gives("number")
        def run_begin(executor, action):
            return 10 * executor.batch.step + action.microbatch

        @takes("number")
        def run_end(executor, action, number):
            ended.append(number)

        def train_only(program):
            return program if program.is_forward_only else marked(program)

        handlers = {"BEGIN": run_begin, "END": run_end}
        pipeline, losses = trained(group, [train_only], handlers)
        assert losses == trained(group)[1]
        row = f"{pipeline.rows}".splitlines()[-1]
        return ended, row

    for ended, _ in (results := spawn(train, 2)):
        assert ended == [10, 11, 20, 21]
    assert results[1][1].startswith(
        "rank 1: HANDSHAKE 1RECV_F0 1RECV_F1 1BEGIN0 1F0 1B0 1END0 1SEND_B0 1BEGIN1"
    )


def test_passes_change_the_rows_of_all_calls_in_turn():
    def train(group):
        counts = []
        handlers = {"COUNT": lambda executor, action: counts.append(executor.call.name)}
        pipeline, _ = trained(group, [counted], handlers)
        pipeline.predict(X)
        assert str(pipeline.rows).endswith("U1 COUNT")
        return counts

    assert spawn(train, 2) == [["step", "step", "predict"]] * 2


def test_a_handler_replaces_one_of_the_core():
    def train(group):
        pipeline, losses = trained(group, handlers={"U": lambda executor, action: None})
        assert losses[0] == losses[1]
        return pipeline.num_steps

    assert spawn(train, 2) == [2, 2]


def clip(executor, action):
    """Run a NORM: limit the norm of the gradients of all ranks to 0.1."""
    stages = executor.stages.values()
    parameters = [p for stage in stages for p in stage.parameters.values()]
    squares = executor.group.all_gather(np.array(squared_norms(parameters)))
    norm = total_norm(np.concatenate(squares).tolist())
    clip_gradients(parameters, norm, 0.1)


def test_clipping_and_offloading_of_outer_packages_keep_the_bits_of_one_process():
    def train(group):
        pipeline, losses = trained(
            group,
            passes=[lambda p: p if p.is_forward_only else norm(p)],
            handlers={"NORM": clip, **Offloading().handlers({})},
            changed=lambda table: schedules.offloaded(table, num_held=1),
        )
        assert {"O", "L", "NORM"} <= pipeline.rows.kinds or group.size == 1
        return losses, pipeline.state_dict()

    def train_publicly(group):
        pipeline = minipipe.Pipeline(
            model(), group, loss=nn.MSELoss(), num_microbatches=2
        )
        optimiser = optim.SGD(pipeline.parameters(), learning_rate=0.1)
        losses = []
        for _ in range(2):
            losses.append(pipeline.step(X, X[:, :1]))
            pipeline.clip_grad_norm(0.1)
            optimiser.step()
        return losses, pipeline.state_dict()

    ((losses, state),) = spawn(train_publicly, 1)
    for num_ranks in (1, 2):
        for own_losses, own_state in spawn(train, num_ranks):
            assert own_losses == losses
            for name, values in state.items():
                np.testing.assert_array_equal(own_state[name], values)


def behind_updates(program):
    """A wrong pass: U takes the gradients that NOISE reads."""
    return with_rank_kind(program, "NOISE", [0] * ("U" in program.kinds))


def without_end(program):
    """A wrong pass: nothing takes the value of a BEGIN."""
    whole = marked(program)
    rows = [[each for each in row if each.kind != "END"] for row in whole.actions]
    return program.with_rows(Program, rows)


@takes("nubmer")
def misspelt(executor, action, number):
    """Take a value that nobody declares."""


@pytest.mark.parametrize(
    ("passes", "handlers", "error", "message"),
    [
        ([behind_updates], {}, ScheduleError, "NOISE comes after 0U1 .*takes the grad"),
        ([without_end], {}, ScheduleError, "0BEGIN0 gives the number of stage 0"),
        ([marked], {"BEGIN": print}, ScheduleError, "0END0 has no handler here"),
        ([marked], {"BEGIN": print, "END": misspelt}, ScheduleError, "takes 'nubmer'"),
        ([], {"NOSE": print}, ArgumentError, "'NOSE' is not a kind of action"),
    ],
)
def test_wrong_passes_and_handlers_are_refused_before_a_step(
    passes, handlers, error, message
):
    def make(group):
        with pytest.raises(error, match=message):
            trained(group, passes, handlers)

    spawn(make, 1)

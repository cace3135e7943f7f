"""A rank runs the row that `Pipeline.rows` shows, with the handshake first and the loss
last.
"""

from contextlib import suppress

import numpy as np
import pytest

from minipipe import Pipeline, nn, optim, schedules, spawn
from minipipe.errors import MinipipeError, ScheduleError
from minipipe.schedules import verify

WIDTH = 4
AFTER_THE_STEP = ("NORM", "U")
OPTIONS = {
    "plain": ({}, "HANDSHAKE … FINITE LOSS"),
    "unchecked": ({"check_finite": "off"}, "HANDSHAKE … LOSS"),
    "replicas": ({"replicas": 2}, "HANDSHAKE … GATHER_RESULTS FINITE LOSS"),
    "input gradients": (
        {"replicas": 2, "inputs_require_grad": True},
        "HANDSHAKE … GATHER_INPUT_GRADS GATHER_RESULTS FINITE LOSS",
    ),
    "tied": ({}, "HANDSHAKE … REDUCE_TIED FINITE LOSS"),
}


def model(is_tied):
    first = nn.Linear(WIDTH, WIDTH)
    return nn.Sequential(
        first,
        nn.Tanh(),
        nn.Linear(WIDTH, WIDTH),
        first if is_tied else nn.Linear(WIDTH, WIDTH),
    )


def made(group, name):
    options, _ = OPTIONS[name]
    return Pipeline(
        model(name == "tied"), group, loss=nn.MSELoss(), num_microbatches=2, **options
    )


def stepped(pipeline):
    """Take a step; return the actions whose handlers ran."""
    trainer, ran = pipeline._trainer, []

    def noting(step, action):
        return lambda executor: (ran.append(str(action)), step(executor))

    row = trainer.program.actions[trainer.group.rank]
    begin = len(trainer._before)
    end = begin + len(trainer._steps)
    trainer._before = [
        noting(step, action) for step, action in zip(trainer._before, row)
    ]
    trainer._steps = [
        noting(step, action) for step, action in zip(trainer._steps, row[begin:])
    ]
    trainer._after = [
        noting(step, action) for step, action in zip(trainer._after, row[end:])
    ]
    x = np.ones((8, WIDTH), np.float32)
    pipeline.step(x, x)
    return ran


@pytest.mark.parametrize("name", OPTIONS)
def test_a_step_runs_the_row_that_is_shown(name):
    def run(group):
        pipeline = made(group, name)
        shown = [
            str(action)
            for action in pipeline.rows.actions[group.rank]
            if action.kind not in AFTER_THE_STEP
        ]
        return shown, stepped(pipeline)

    for shown, ran in spawn(run, 2):
        assert shown == ran
    framing = [cell for cell in shown if not cell[0].isdigit()]
    _, expected = OPTIONS[name]
    first, *last = expected.replace("… ", "").split()
    assert (framing[0], ran[0]) == (first, first)
    # rank 1 holds only some stages
    others = [cell for cell in framing[1:] if cell in last]
    assert ran[-len(others) :] == others == [cell for cell in last if cell in others]


def test_an_evaluation_and_a_prediction_run_the_row_that_is_shown():
    def run(group):
        pipeline = made(group, "replicas")
        ran, shown = (
            [],
            [str(action) for action in pipeline.forward_rows.actions[group.rank]],
        )
        pipeline.predict(np.ones((8, WIDTH), np.float32))  # makes the executor
        (executor,) = pipeline._predictors._executors.values()
        noted = {
            name: noting_all(getattr(executor, name), ran)
            for name in ("_before", "_steps", "_after")
        }
        for name, steps in noted.items():
            setattr(executor, name, steps)
        pipeline.evaluate(
            np.ones((8, WIDTH), np.float32), np.ones((8, WIDTH), np.float32)
        )
        evaluated = len(ran)
        pipeline.predict(np.ones((8, WIDTH), np.float32))
        return shown, evaluated, len(ran)

    for shown, evaluated, both in spawn(run, 2):
        assert shown[0] == "HANDSHAKE" and shown[-2:] == ["GATHER_RESULTS", "LOSS"]
        assert (evaluated, both) == (len(shown), 2 * len(shown))


def noting_all(steps, ran):
    def noting(step):
        return lambda executor: (ran.append(step), step(executor))

    return [noting(step) for step in steps]


@pytest.mark.parametrize("name", OPTIONS)
def test_the_rows_of_a_pipeline_are_a_legal_program(name):
    rows, forward_rows = spawn(
        lambda group: (made(group, name).rows, made(group, name).forward_rows), 2
    )[0]
    verify(forward_rows)
    verify(rows)
    read = schedules.Program.from_text(rows.to_text())
    assert [list(row) for row in read.actions] == [list(row) for row in rows.actions]


def test_tied_weights_whose_uses_are_all_on_each_rank_are_not_exchanged():
    def stepped_rows(group):
        pipeline = Pipeline(
            model(True),
            group,
            loss=nn.MSELoss(),
            schedule="chimera",
            num_microbatches=2,
        )
        pipeline.step(np.ones((8, WIDTH)), np.ones((8, WIDTH)))
        return pipeline.rows

    rows = spawn(stepped_rows, 2)[0]
    assert "REDUCE_GRAD" in rows.kinds and "REDUCE_TIED" not in rows.kinds


def test_a_run_with_updates_has_them_in_its_row_and_one_loss():
    def rows(group):
        return Pipeline(
            model(False),
            group,
            loss=nn.MSELoss(),
            schedule="pipedream",
            num_microbatches=2,
        ).rows

    found = spawn(rows, 2)[0]
    verify(found)
    row = " ".join(map(str, found.actions[1]))
    assert (
        row
        == "HANDSHAKE 1RECV_F0 1RECV_F1 1F0 1B0 1SEND_B0 1U0 1F1 1B1 1SEND_B1 1U1 LOSS"
    )


def test_norm_and_update_are_shown_though_the_program_calls_them():
    (text,) = spawn(lambda group: str(made(group, "plain").rows), 1)
    assert (
        text.splitlines()[1] == "rank 0: HANDSHAKE 0F0 0B0 0F1 0B1 FINITE LOSS NORM 0U1"
    )


@pytest.mark.parametrize("missing", ["HANDSHAKE", "FINITE", "LOSS"])
def test_without_one_of_its_handlers_the_row_is_refused(missing):
    def run(group):
        pipeline = made(group, "plain")
        framing = pipeline._framing
        handlers = framing.handlers(
            dict.fromkeys("FBIW", lambda executor, action: None)
        )
        others = {
            kind: handler for kind, handler in handlers.items() if kind != missing
        }
        with pytest.raises(ScheduleError, match=f"{missing} has no handler here"):
            pipeline._executor(framing.program(), handlers=others)

    spawn(run, 1)


def test_a_step_that_is_not_finite_counts_and_one_that_fails_before_does_not():
    """Dropout and the like draw by this number, on all ranks alike."""

    def run(group):
        pipeline = made(group, "plain")
        optimiser = optim.SGD(pipeline.parameters(), 0.1)
        x = np.ones((8, WIDTH), np.float32)
        counts = [pipeline.num_steps]
        for inputs, targets in ((x, x), (x * np.inf, x), (x[:1], x[:1]), (x, x)):
            with suppress(MinipipeError), np.errstate(invalid="ignore"):
                pipeline.step(inputs, targets)
                optimiser.step()
            counts.append(pipeline.num_steps)
        return counts

    assert spawn(run, 2) == [[0, 1, 2, 2, 3]] * 2

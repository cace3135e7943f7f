"""The row of a rank as Python: its text runs, and leaves the bits that the executor's
loop leaves.
"""

import ast
from operator import methodcaller
from time import perf_counter

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from minipipe import Pipeline, nn, optim, schedules, spawn
from minipipe.errors import ScheduleError
from minipipe.execution.source import name_of, source_of
from tests.launch import covering
from tests.strategies import NAMES, build, examples

WIDTH = 4


class Tied(nn.Module):
    def __init__(self, layer):
        self.layer = layer

    def forward(self, x):
        return self.layer(x)


def model(tied=False):
    first = nn.Linear(WIDTH, WIDTH)
    inner = [
        layer
        for _ in range(3)
        for layer in (nn.Tanh(), nn.Dropout(0.25), nn.Linear(WIDTH, WIDTH))
    ]
    return nn.Sequential(first, *inner, first if tied else nn.Linear(WIDTH, WIDTH))


def function_of(executor):
    """Return the function with the source of ``source_of``."""
    rank = executor.group.rank
    cells = dict(zip(map(str, executor.program.actions[rank]), executor.bindings))
    namespace = {"wait": methodcaller("wait")}
    for binding in executor.bindings:
        namespace[name_of(binding)] = by_cell(binding.handler, cells)
    exec(compile(source_of(executor), f"<row of rank {rank}>", "exec"), namespace)
    return namespace["step"]


def by_cell(handler, cells):
    """Return a handler that gets its action by the text of its cell, and notes the
    times of a computation.
    """

    def run(executor, cell, *values):
        binding = cells[cell]
        start = perf_counter()
        found = handler(executor, binding.action, *values)
        if binding.is_timed:
            executor.record.ran.append((start, perf_counter(), 0))
        if not binding.action.kind.declaration.of_rank:
            executor.advance()
        return found

    return run


def run_text(pipeline):
    """Let a pipeline run the text of its row in place of the executor's loop."""
    trainer = pipeline._trainer
    text = function_of(trainer)
    run = trainer.run

    def run_function(call, *observers, finishes_sends=True):
        trainer.call = trainer.batch = call
        try:
            text(trainer)
            return trainer.record
        finally:
            trainer.forget()

    trainer.run = run_function
    return run


def trained(group, as_text, schedule, tied, steps=2, **options):
    pipeline = Pipeline(
        model(tied), group, loss=nn.MSELoss(), schedule=schedule, **options
    )
    if as_text:
        run_text(pipeline)
    optimiser, random = (
        optim.Adam(pipeline.parameters(), 0.05),
        np.random.default_rng(0),
    )
    found = []
    for _ in range(steps):
        x = random.normal(size=(16, WIDTH)).astype(np.float32)
        found.append(pipeline.step(x, x).hex())
        found += [p.grad.tobytes() for p in pipeline.parameters()]
        optimiser.step()
    spans = [[str(span.action) for span in row] for row in pipeline.timeline().spans]
    return found, spans


def same(num_ranks, **options):
    as_loop = spawn(lambda group: trained(group, False, **options), num_ranks)
    assert spawn(lambda group: trained(group, True, **options), num_ranks) == as_loop


@pytest.mark.parametrize(
    ("name", "num_ranks", "tied"), covering(NAMES, [1, 2], [False, True], strength=1)
)
def test_a_row_as_text_leaves_the_bits_of_the_executor(name, num_ranks, tied):
    same(num_ranks, schedule=build(name, num_ranks, 4), tied=tied)


@examples(10)
@given(
    name=st.sampled_from(["gpipe", "1f1b", "zb-h1"]),
    change=st.sampled_from(
        [schedules.recomputed, lambda table: schedules.offloaded(table, 1)]
    ),
    num_microbatches=st.integers(2, 5),
)
def test_also_if_it_recomputes_or_offloads(name, change, num_microbatches):
    same(2, schedule=change(build(name, 2, num_microbatches)), tied=False, steps=1)


@pytest.mark.parametrize(
    "options", [{"replicas": 2}, {"replicas": 2, "gradient_blocks": 4}], ids=str
)
def test_also_with_replicas(options):
    same(2, schedule="1f1b", tied=False, num_microbatches=4, **options)


def test_a_mutant_that_changes_one_line_is_noticed():
    """The text is what runs: without the W of a microbatch, gradients differ."""

    def texts(group):
        pipeline = Pipeline(
            model(), group, loss=nn.MSELoss(), schedule=schedules.zb_h1(1, 2)
        )
        x = np.ones((4, WIDTH), np.float32)
        pipeline.step(x, x)
        whole = [p.grad.tobytes() for p in pipeline.parameters()]
        trainer = pipeline._trainer
        lines = source_of(trainer).splitlines()
        at = next(i for i, line in enumerate(lines) if "'0W1'" in line)
        mutant = "\n".join(lines[:at] + lines[at + 1 :])
        namespace = dict(function_of(trainer).__globals__)
        exec(mutant, namespace)
        trainer.run = lambda call, **_: (
            setattr(trainer, "call", call),
            namespace["step"](trainer),
            trainer.record,
        )[-1]
        pipeline.step(x, x)
        return whole, [p.grad.tobytes() for p in pipeline.parameters()]

    ((whole, mutant),) = spawn(texts, 1)
    assert whole != mutant


@pytest.mark.parametrize("name", NAMES)
def test_each_instruction_is_one_call_and_each_value_is_deleted(name):
    def text(group):
        pipeline = Pipeline(
            model(), group, loss=nn.MSELoss(), schedule=build(name, 2, 3)
        )
        return pipeline.source(), pipeline.rows.actions[group.rank]

    for source, row in spawn(text, 2):
        (function,) = ast.parse(source).body
        cells = [
            node.value for node in ast.walk(function) if isinstance(node, ast.Constant)
        ]
        after_step = ("NORM", "U")
        assert sorted(cells) == sorted(
            str(action) for action in row if action.kind not in after_step
        )
        made = {
            n.id
            for n in ast.walk(function)
            if isinstance(n, ast.Name) and isinstance(n.ctx, ast.Store)
        } - {"_"}
        gone = {
            n.id
            for n in ast.walk(function)
            if isinstance(n, ast.Name) and isinstance(n.ctx, ast.Del)
        }
        assert made == gone


def test_the_row_of_a_schedule_with_updates_is_made_for_each_run():
    def show(group):
        with pytest.raises(ScheduleError, match=r"pipeline\.run\(batches, optimiser\)"):
            Pipeline(
                model(),
                group,
                loss=nn.MSELoss(),
                schedule="pipedream",
                num_microbatches=2,
            ).source()

    spawn(show, 1)

"""Replicas add their gradients behind a compiled schedule, in steps like the last one."""

from functools import partial

import numpy as np
import pytest

from minipipe import Grid, Pipeline, nn, optim, spawn
from minipipe.errors import NotFiniteError
from tests.launch import sample_of, slowly
from tests.strategies import build

WIDTH = 4
LAYOUTS = {  # of a schedule: its ranks, and its replicas beside those that it has
    "1f1b": [(1, 2), (1, 4), (2, 2)],
    "gpipe": [(2, 2)],
    "zb-h1": [(1, 2), (2, 2)],
    "interleaved-1f1b": [(1, 2), (2, 2)],
    "zb-v": [(2, 2)],
    "chimera": [(2, 1), (4, 1), (2, 2)],
    "dualpipe": [(2, 1), (4, 1)],
    "bitpipe": [(2, 1)],
}
OPTIMISERS = {
    "sgd": partial(optim.SGD, learning_rate=0.1),
    "momentum": partial(optim.SGD, learning_rate=0.1, momentum=0.9),
    "adam": partial(optim.Adam, learning_rate=0.01),
    "adamw": partial(optim.AdamW, learning_rate=0.01),
    "muon": partial(optim.Muon, learning_rate=0.01),
}
FROZEN = {"never": (), "from the start": range(20), "between steps": range(4, 9)}
MOST_ORDINARY = {"never": 3, "from the start": 3, "between steps": 9}
"""An eager step, and for each program one that is recorded and the first run."""
STEPS = {"never": 7, "from the start": 7, "between steps": 14}
"""As many that repeat the last one, of each program."""


def model():
    parts = [(nn.Linear(WIDTH, WIDTH), nn.Tanh(), nn.Dropout(0.2)) for _ in range(8)]
    return nn.Sequential(*(layer for part in parts for layer in part))


def counting(run, counts):
    """Return a function that is run, and counted."""

    def counted(*given, **options):
        counts.append(1)
        return run(*given, **options)

    return counted


def freeze(pipeline, is_frozen):
    for name, parameter in pipeline.named_parameters():
        parameter.requires_grad = not (is_frozen and int(name.partition(".")[0]) < 5)


def trained(group, how, name, layout, optimiser, frozen, **options):
    """Return all that steps leave, the number of ordinary steps, and the source."""
    num_ranks, replicas = layout
    options = {"schedule": build(name, num_ranks, 4), "compile": how, **options}
    given = {"loss": nn.MSELoss(), "replicas": replicas, **options}
    pipeline, found, ordinary = Pipeline(model(), group, **given), [], []
    pipeline._trainer.run = counting(pipeline._trainer.run, ordinary)
    rule = OPTIMISERS[optimiser](pipeline.parameters())
    count = pipeline.schedule.num_microbatches
    for step in range(STEPS[frozen]):
        freeze(pipeline, step in FROZEN[frozen])
        shape = 2, 2 * count + 3, WIDTH
        x, y = np.random.default_rng(step).normal(size=shape).astype(np.float32)
        loss = pipeline.step(x, y)
        found.append((float(loss), loss.losses))
        for parameter in pipeline.parameters():
            gradient = parameter.grad
            found.append(None if gradient is None else gradient.tobytes())
        rule.step()
    found += [values.tobytes() for values in pipeline.state_dict().values()]
    return found, len(ordinary), pipeline.source()


CELLS = [(name, layout) for name, layouts in LAYOUTS.items() for layout in layouts]
QUICK_CELLS = {
    (("zb-h1", (2, 2)), "adam", "never"),
    (("1f1b", (1, 2)), "muon", "between steps"),
    (("chimera", (2, 1)), "sgd", "from the start"),
}
CASES = [
    case if case in QUICK_CELLS else slowly(*case)
    for case in sorted(
        {
            *sample_of(CELLS, OPTIMISERS, FROZEN, strength=1),
            *sample_of(CELLS, OPTIMISERS, FROZEN),
            *QUICK_CELLS,
        }
    )
]


@pytest.mark.parametrize(("cell", "optimiser", "frozen"), CASES)
def test_replicas_have_the_bits_of_eager_ones_and_repeat_their_steps(
    cell, optimiser, frozen
):
    given = *cell, optimiser, frozen
    num_ranks = cell[1][0] * cell[1][1]
    eager = spawn(lambda group: trained(group, False, *given), num_ranks)
    compiled = spawn(lambda group: trained(group, True, *given), num_ranks)
    for rank, ((expected, *_), (found, ordinary, source)) in enumerate(
        zip(eager, compiled)
    ):
        assert found == expected, f"rank {rank}"
        assert ordinary <= MOST_ORDINARY[frozen], f"rank {rank}"
        assert "sums.finish()" in source[source.index("def step(") :]


@pytest.mark.parametrize("gradient_blocks", [slowly(2), 4])
@pytest.mark.parametrize("layout", [(2, 1), slowly((1, 2))])
def test_blocks_of_microbatches_have_the_bits_of_eager_ones(layout, gradient_blocks):
    def run(group, how):
        given = "1f1b", layout, "adam", "between steps"
        return trained(group, how, *given, gradient_blocks=gradient_blocks)

    eager = spawn(lambda group: run(group, False), 2)
    compiled = spawn(lambda group: run(group, True), 2)
    assert [found for found, *_ in compiled] == [found for found, *_ in eager]
    for _, ordinary, _ in compiled:
        assert ordinary <= MOST_ORDINARY["between steps"]


@pytest.mark.slow
def test_repeated_steps_of_some_replicas_understand_eager_ones_of_others():
    def run(group, observed):
        options = {"num_microbatches": 2, "replicas": 2, "compile": True}
        pipeline, found = Pipeline(model(), group, loss=nn.MSELoss(), **options), []
        rule = optim.Adam(pipeline.parameters(), 0.01)
        for step in range(9):
            x = np.random.default_rng(step).normal(size=(8, WIDTH)).astype(np.float32)
            pipeline.measures_memory = step > 3 and group.rank in observed
            found.append(pipeline.step(x, x))
            found += [parameter.grad.tobytes() for parameter in pipeline.parameters()]
            rule.step()
        return found

    expected = spawn(lambda group: run(group, ()), 4)
    for observed in ([0], [1, 2], [3]):
        assert spawn(lambda group: run(group, observed), 4) == expected


def test_a_gradient_that_is_kept_keeps_its_values():
    def run(group, how):
        options = {"num_microbatches": 2, "replicas": 2, "compile": how}
        pipeline, kept = Pipeline(model(), group, loss=nn.MSELoss(), **options), []
        for step in range(7):
            x = np.random.default_rng(step).normal(size=(8, WIDTH)).astype(np.float32)
            pipeline.step(x, x)
            if step > 3:
                kept += [parameter.grad for parameter in pipeline.parameters()]
        return [gradient.tobytes() for gradient in kept]

    eager = spawn(lambda group: run(group, False), 2)
    assert spawn(lambda group: run(group, True), 2) == eager


@pytest.mark.filterwarnings("ignore:invalid value")
@pytest.mark.parametrize("bad", [0, 7])
def test_a_step_that_is_not_finite_is_told_as_in_an_eager_one(bad):
    """Of the first replica, or of the second."""

    def run(group, how):
        options = {"num_microbatches": 2, "replicas": 2, "compile": how}
        pipeline, found = Pipeline(model(), group, loss=nn.MSELoss(), **options), []
        for step in range(8):
            x = np.random.default_rng(step).normal(size=(8, WIDTH)).astype(np.float32)
            if step == 5:
                x[bad, 1] = np.inf
            try:
                found.append(float(pipeline.step(x, x)))
            except NotFiniteError as error:
                found.append((str(error), error.code))
            gradients = [parameter.grad for parameter in pipeline.parameters()]
            found += [each if each is None else each.tobytes() for each in gradients]
        return found

    eager = spawn(lambda group: run(group, False), 2)
    assert spawn(lambda group: run(group, True), 2) == eager


def on_a_mesh(group, how, mesh):
    """Return what steps leave on a device mesh, and the number of ordinary ones."""
    layers = [nn.Linear(WIDTH, WIDTH), nn.TransformerBlock(WIDTH, 2, dropout=0.1)] * 2
    options = {"loss": nn.MSELoss(), "num_microbatches": 2, "compile": how}
    pipeline = Pipeline(nn.Sequential(*layers), Grid(group, **mesh), **options)
    found, ordinary = [], []
    pipeline._trainer.run = counting(pipeline._trainer.run, ordinary)
    rule = optim.AdamW(pipeline.parameters(), 0.01)
    for step in range(8):
        x = np.random.default_rng(step).normal(size=(8, 3, WIDTH)).astype(np.float32)
        found.append(float(pipeline.step(x, x)))
        found += [parameter.grad.tobytes() for parameter in pipeline.parameters()]
        found.append(pipeline.clip_grad_norm(0.1))
        rule.step()
    return found, len(ordinary)


MESHES = {
    "data": {"data": 2},
    "tensor": {"tensor": 2},
    "shards": {"data": 2, "fully_sharded": True},
    "data, two stages": {"data": 2, "pipeline": 2},
    "tensor, two stages": {"tensor": 2, "pipeline": 2},
    "data and tensor": {"data": 2, "tensor": 2},
    "shards, two stages": {"data": 2, "pipeline": 2, "fully_sharded": True},
}
QUICK = ("data",)


@pytest.mark.parametrize(
    "name", [name if name in QUICK else slowly(name) for name in MESHES]
)
def test_steps_on_a_mesh_are_repeated(name):
    mesh = MESHES[name]
    num_ranks = int(np.prod([n for n in mesh.values() if n is not True]))
    eager = spawn(lambda group: on_a_mesh(group, False, mesh), num_ranks)
    compiled = spawn(lambda group: on_a_mesh(group, True, mesh), num_ranks)
    for (expected, _), (found, ordinary) in zip(eager, compiled):
        assert found == expected
        assert ordinary == 3

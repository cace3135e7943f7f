"""Tensor-parallel and fully sharded pipelines have the bits of eager ones."""

import numpy as np
import pytest

from minipipe import Grid, Pipeline, nn, optim, spawn
from tests.launch import slowly

SYMBOLS, WIDTH = 9, 8


def model():
    options = {"is_causal": True, "dropout": 0.1}
    return nn.Sequential(
        nn.Embedding(SYMBOLS, WIDTH),
        nn.PositionalEmbedding(6, WIDTH),
        *(nn.TransformerBlock(WIDTH, 2, **options) for _ in range(2)),
        nn.LayerNorm(WIDTH),
        nn.Linear(WIDTH, SYMBOLS),
    )


def train(group, how, schedule, mesh, **options):
    grid = Grid(group, **mesh)
    pipeline = Pipeline(
        model(),
        grid,
        loss=nn.CrossEntropyLoss(),
        schedule=schedule,
        num_microbatches=2,
        compile=how,
        **options,
    )
    optimiser, found = optim.AdamW(pipeline.parameters(), 0.05), []
    for step in range(5):
        text = np.random.default_rng(step).integers(0, SYMBOLS, (8, 7))
        found.append(float(pipeline.step(text[:, :-1], text[:, 1:])))
        found += [each.grad.tobytes() for each in pipeline.parameters()]
        found.append(pipeline.clip_grad_norm(0.1))
        optimiser.step()
        found.append(float(pipeline.evaluate(text[:, :-1], text[:, 1:])))
    found.append({n: w.tobytes() for n, w in pipeline.state_dict().items()})
    return found, pipeline.compile_report()


MESHES = {
    "tensor": {"tensor": 2},
    "shards": {"data": 2, "fully_sharded": True},
    "replicas": {"data": 2},
    "tensor, two stages": {"tensor": 2, "pipeline": 2},
    "shards, two stages": {"data": 2, "pipeline": 2, "fully_sharded": True},
    "replicas of tensor": {"data": 2, "tensor": 2},
}


@pytest.mark.parametrize(
    ("name", "schedule", "recompute"),
    [
        ("tensor", "1f1b", False),
        slowly("shards", "1f1b", False),
        *(slowly(name, "1f1b", True) for name in MESHES),
        *(slowly(name, "zb-h1", False) for name in MESHES),
    ],
)
def test_a_grid_has_the_bits_of_an_eager_one(name, schedule, recompute):
    mesh = MESHES[name]
    num_ranks = int(np.prod([n for n in mesh.values() if n is not True]))

    def both(group):
        eager, _ = train(group, False, schedule, mesh, recompute=recompute)
        found, report = train(group, True, schedule, mesh, recompute=recompute)
        assert found == eager
        steps = [line for line in report.splitlines() if line.startswith("step")]
        assert steps
        assert all(line.endswith("is compiled") for line in steps), report
        return report

    spawn(both, num_ranks=num_ranks)

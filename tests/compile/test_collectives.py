"""Messages between the ranks of a layer are lines that are never left out."""

import numpy as np
import pytest

from minipipe import Grid, Pipeline, functional, nn, optim, spawn
from minipipe.compile.sections import Sections
from minipipe.core.nn.sequential import parameters_of
from tests.compile.driver import Job, compiled, eager, seeds, traced
from tests.compile.stages import CLASSES, HALVES, OF_TOKENS, ROWS, WIDTH
from tests.launch import covering, slowly

IDS = 6


def linear(group):
    first = nn.ColumnParallelLinear(nn.Linear(WIDTH, WIDTH), group)
    last = nn.RowParallelLinear(nn.Linear(WIDTH, WIDTH), group)
    return nn.Sequential(first, nn.ReLU(), last)


def gathered(group):
    layer = nn.ColumnParallelLinear(nn.Linear(WIDTH, WIDTH), group, gather=True)
    return nn.Sequential(nn.Linear(WIDTH, WIDTH), layer, nn.Tanh())


def block(group):
    return nn.parallelise(nn.Sequential(nn.TransformerBlock(WIDTH, 2)), group)


def embedding(group):
    whole = nn.Embedding(IDS, WIDTH)
    own = nn.ParallelEmbedding(whole, group)
    return nn.Sequential(own, nn.Tanh(), nn.ParallelUnembedding(own))


def sharded(group):
    layers = nn.Linear(WIDTH, WIDTH), nn.Tanh(), nn.Linear(WIDTH, WIDTH)
    return nn.fully_shard(nn.Sequential(*layers), group)


def sharded_block(group):
    block = nn.TransformerBlock(WIDTH, 2, dropout=0.2)
    return nn.fully_shard(nn.Sequential(block, nn.Linear(WIDTH, WIDTH), block), group)


def sharded_and_recomputed(group):
    inner = nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.Tanh())
    layers = nn.Linear(WIDTH, WIDTH), nn.Recompute(inner)
    return nn.fully_shard(nn.Sequential(*layers), group)


def scores(group):
    return nn.Sequential(nn.ColumnParallelLinear(nn.Linear(WIDTH, 2 * CLASSES), group))


def job_of(model, group, loss):
    model = model.initialise()
    is_of_ids = isinstance(model[0], nn.ParallelEmbedding)

    def inputs(k):
        random = np.random.default_rng(k)
        x = random.normal(size=OF_TOKENS).astype(np.float32)
        found = [(x, True)]
        if is_of_ids:
            found = [(random.integers(0, IDS, OF_TOKENS[:2]), False)]
        if loss is not None:
            labels = random.integers(0, 2 * CLASSES, OF_TOKENS[:2])
            found.append((labels, False))
        return found

    def compute(tensors):
        result = model(tensors[0])
        return [result if loss is None else loss(result, tensors[1])]

    parameters = {id(p): p for layer in model for p in parameters_of(layer)}
    return Job(compute, list(parameters.values()), inputs, seeds)


MODELS = {
    "linear": (linear, None),
    "gathered": (gathered, None),
    "block": (block, None),
    "embedding": (embedding, None),
    "sharded": (sharded, None),
    "sharded block": (sharded_block, None),
    "sharded and recomputed": (sharded_and_recomputed, None),
    "loss": (scores, {}),
    "loss that ignores": (scores, {"ignore_index": 1}),
    "sum of losses": (scores, {"reduction": "sum"}),
}


@pytest.mark.parametrize(
    ("name", "row"), covering([*MODELS], ["gpipe", "mixed"], strength=1)
)
def test_stages_with_messages_have_the_bits_of_eager_ones(name, row):
    def run(group):
        make, options = MODELS[name]
        loss = None
        if options is not None:
            loss = nn.ParallelCrossEntropyLoss(group, **options)
        job = job_of(make(group), group, loss)
        trace = traced(job, is_split=row in HALVES)
        steps = {**ROWS, **HALVES}[row]
        sections = Sections(trace, 0)
        return compiled(job, trace, steps, sections) == eager(job, steps)

    assert spawn(run, num_ranks=2) == [True, True]


@pytest.mark.parametrize("make", [block, sharded, sharded_and_recomputed])
def test_compiled_and_eager_ranks_send_the_same_messages(make):
    def run(group):
        job = job_of(make(group), group, None)
        trace = traced(job, is_split=False)
        if group.rank == 0:
            return compiled(job, trace, ROWS["gpipe"])
        return eager(job, ROWS["gpipe"])

    def eagerly(group):
        job = job_of(make(group), group, None)
        traced(job, is_split=False)
        return eager(job, ROWS["gpipe"])

    assert spawn(run, num_ranks=2) == spawn(eagerly, num_ranks=2)


def test_a_message_whose_result_nobody_reads_is_sent():
    def run(group):
        def compute(tensors):
            functional.parallel.reduce_from(tensors[0], group=group)
            return [tensors[0] * 2]

        def inputs(k):
            return [(np.ones(2, np.float32), True)]

        job = Job(compute, [], inputs, seeds)
        sections = Sections(traced(job, is_split=False), 0)
        return "combined(x0, " in sections.source

    assert spawn(run, num_ranks=2) == [True, True]


def trained(group, how, is_sharded, schedule):
    if is_sharded:
        grid = Grid(group, pipeline=2, data=2)
        layers = [nn.Linear(WIDTH, WIDTH), nn.ReLU(), nn.Linear(WIDTH, WIDTH)]
        model = nn.fully_shard(nn.Sequential(*layers), grid.data)
        loss = nn.MSELoss()
    else:
        grid = Grid(group, pipeline=2, tensor=2)
        blocks = [nn.TransformerBlock(WIDTH, 2, dropout=0.1) for _ in range(2)]
        layers = [nn.Embedding(IDS, WIDTH), *blocks, nn.Linear(WIDTH, IDS)]
        model, loss = nn.parallelise(nn.Sequential(*layers), grid.tensor), None
    options = {"num_microbatches": 4, "schedule": schedule, "compile": how}
    pipeline = Pipeline(model, grid, loss=loss or nn.CrossEntropyLoss(), **options)
    optimiser, random = (
        optim.Adam(pipeline.parameters(), 0.01),
        np.random.default_rng(0),
    )
    found = []
    for _ in range(5):
        x = random.normal(size=(16, WIDTH)).astype(np.float32)
        if not is_sharded:
            x = random.integers(0, IDS, (16, 3))
        found.append(pipeline.step(x, x))
        found += [p.grad.tobytes() for p in pipeline.parameters()]
        optimiser.step()
    return found, pipeline.compile_report()


@pytest.mark.parametrize(
    ("is_sharded", "schedule"),
    [
        (True, "zb-h1"),
        *(slowly(False, schedule) for schedule in ("1f1b", "zb-h1")),
        slowly(True, "1f1b"),
    ],
)
def test_steps_over_a_grid_of_ranks_have_the_bits_of_eager_ones(is_sharded, schedule):
    def both(group):
        expected, _ = trained(group, False, is_sharded, schedule)
        return expected, *trained(group, True, is_sharded, schedule)

    for expected, found, report in spawn(both, num_ranks=4):
        assert found == expected, report
        assert report.endswith("is compiled"), report

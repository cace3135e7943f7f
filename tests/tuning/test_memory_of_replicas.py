"""What a plan says of the memory of ranks with replicas and blocks of gradients, and
what a run of it takes.
"""

import tracemalloc
from collections import defaultdict
from threading import current_thread

import numpy as np
import pytest

from minipipe import Pipeline, Plan, measure_layers, nn, optim, spawn
from minipipe.execution import versions
from minipipe.parallel import reduction, repeated
from minipipe.pipeline import running
from tests.launch import covering
from tests.pipeline.small_pipelines import mlp
from tests.tuning.test_memory import SAMPLES, taken

FORMS = [
    {"schedule": "1f1b", "replicas": 2, "num_microbatches": 3, "num_ranks": 4},
    {"schedule": "zb-v", "replicas": 2, "num_microbatches": 3, "num_ranks": 4},
    {"schedule": "chimera", "num_microbatches": 6, "num_ranks": 2},
    {"schedule": "chimera", "replicas": 2, "num_microbatches": 4, "num_ranks": 4},
    {"schedule": "dualpipe", "num_microbatches": 8, "num_ranks": 4},
    {"schedule": "bitpipe", "num_microbatches": 8, "num_ranks": 2},
]


def case(model, options):
    plan = Plan(model, **options)
    count = plan.schedule.num_microbatches
    inputs = np.ones((count * SAMPLES, 4), np.float32)
    layers = measure_layers(
        model, inputs, inputs[:, :2], nn.MSELoss(), num_microbatches=count, repeats=1
    )
    return plan, layers, inputs


@pytest.mark.parametrize(
    ("options", "recompute"), covering(FORMS, [False, True], strength=1)
)
def test_ranks_with_replicas_take_what_was_predicted_to_the_byte(options, recompute):
    plan, layers, inputs = case(mlp(linears=6), options)
    predicted = plan.memory(layers, optimiser=optim.Adam, recompute=recompute)
    found = taken(
        plan, nn.MSELoss(), inputs, inputs[:, :2], optim.Adam, recompute=recompute
    )
    assert [rank[:4] for rank in predicted] == found


def size_of(arrays):
    return sum(array.nbytes for array in arrays if array is not None)


def counted(monkeypatch, sent, came):
    """Note, by thread, the bytes of each packed list of arrays that a reduction sends,
    and that come.
    """

    def noting(by_thread, act, arrays_of):
        def noted(*given):
            found = act(*given)
            by_thread[current_thread()].append(size_of(arrays_of(found, *given)))
            return found

        return noted

    opened = noting(came, reduction.opened, lambda arrays, *message: arrays)
    for module, pack in ((reduction, "packed"), (versions, "pack")):
        monkeypatch.setattr(
            module,
            pack,
            noting(sent, getattr(module, pack), lambda message, arrays: arrays),
        )
        monkeypatch.setattr(module, "opened", opened)


@pytest.mark.parametrize(
    ("replicas", "is_frozen"), covering([2, 3, 4], [False, True], strength=1)
)
def test_a_sum_sends_and_receives_the_predicted_bytes(replicas, is_frozen, monkeypatch):
    model, sent, came = mlp(linears=4), defaultdict(list), defaultdict(list)
    if is_frozen:
        model[0].freeze()
    options = {"num_ranks": 2 * replicas, "replicas": replicas, "num_microbatches": 2}
    plan, layers, inputs = case(model, options)

    monkeypatch.setattr(repeated, "MOST_BYTES", 0)  # others have buffers
    counted(monkeypatch, sent, came)

    def step(group):
        pipeline = Pipeline(plan, group, loss=nn.MSELoss())
        pipeline.step(inputs, inputs[:, :2])
        return current_thread()

    for thread, predicted in zip(spawn(step, 2 * replicas), plan.memory(layers)):
        parts, wholes = came[thread][: replicas - 1], came[thread][replicas - 1 :]
        assert len(wholes) == replicas - 1 and len(sent[thread]) == replicas
        assert predicted.sums == sum(sent[thread]) + max(sum(parts), sum(wholes))


@pytest.mark.parametrize("replicas", [2, 3])
def test_a_sum_before_an_update_takes_the_predicted_bytes(replicas, monkeypatch):
    sent, came, totals = (defaultdict(list) for _ in range(3))
    options = {
        "schedule": "pipedream",
        "num_ranks": 2 * replicas,
        "replicas": replicas,
        "num_microbatches": 2,
    }
    plan, layers, inputs = case(mlp(linears=4), options)

    counted(monkeypatch, sent, came)

    class Summing(versions.ReplicaSums):
        def total(self, update, own):
            found = super().total(update, own)
            totals[current_thread()].append(size_of(found))
            return found

    monkeypatch.setattr(running, "ReplicaSums", Summing)

    def train(group):
        pipeline = Pipeline(plan, group, loss=nn.MSELoss())
        pipeline.run([(inputs, inputs[:, :2])] * 2, optim.Adam(pipeline.parameters()))
        return current_thread()

    for thread, predicted in zip(spawn(train, 2 * replicas), plan.memory(layers)):
        assert len(sent[thread]) == len(totals[thread]) == 4 and len(
            came[thread]
        ) == 4 * (replicas - 1)
        assert (
            predicted.sums
            == sent[thread][0] + sum(came[thread][: replicas - 1]) + totals[thread][0]
        )


@pytest.mark.parametrize("blocks", [1, 2, 3, 4, 8])
def test_blocks_of_gradients_take_as_many_more_as_their_number_has_digits(blocks):
    model = nn.Sequential(nn.Linear(256, 256, bias=False))
    x = np.ones((blocks, 256), np.float32)
    plan = Plan(model, num_ranks=1, num_microbatches=blocks, gradient_blocks=blocks)
    layers = measure_layers(
        model, x, x, nn.MSELoss(), num_microbatches=blocks, repeats=1
    )
    (predicted,) = plan.memory(layers)

    def peak(group):
        pipeline = Pipeline(plan, group, loss=nn.MSELoss())
        tracemalloc.start()
        pipeline.step(x, x)
        found = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
        return found

    of_gradients = predicted.gradients + predicted.sums
    # one more would be 20 % of eight blocks
    assert spawn(peak, 1)[0] == pytest.approx(of_gradients, rel=0.15)
    assert of_gradients == 256 * 256 * 4 * {1: 1, 2: 3, 3: 3, 4: 4, 8: 5}[blocks]

"""A run whose schedule updates weights has the bits of an eager one, compiled."""

import numpy as np
import pytest

from minipipe import Pipeline, nn, optim, schedules, spawn
from minipipe.compile import stage
from minipipe.errors import ModelError, TensorError
from minipipe.schedules import Schedule
from tests.launch import covering, sample_of, slowly

WIDTH = 8
SCHEDULES = ("pipedream", "vertical-sync", "2bw", "paci")


def mlp():
    layers = [
        layer
        for _ in range(4)
        for layer in (nn.Linear(WIDTH, WIDTH), nn.Tanh(), nn.Dropout(0.2))
    ]
    return nn.Sequential(*layers, nn.LayerNorm(WIDTH))


def train(group, how, schedule, model=mlp, sizes=(16, 13), stash=None, **options):
    """Return the bits of the losses and parameters, and the compiled stages."""
    optimiser = options.pop("optimiser", optim.AdamW)
    pipeline = Pipeline(
        model(),
        group,
        loss=nn.MSELoss(),
        num_microbatches=12 if isinstance(schedule, Schedule) else 4,
        schedule=schedule,
        compile=how,
        **options,
    )
    optimise = optimiser(pipeline.parameters(), 0.05)
    random, found = np.random.default_rng(0), []
    for size in (*sizes, sizes[0]):  # several runs
        given = []
        for _ in range(3):
            x = random.normal(size=(size, WIDTH)).astype(np.float32)
            given.append((x, np.tanh(x[:, ::-1])))
        losses = pipeline.run(given, optimise, stash=stash)
        found.append([np.array(loss.losses).tobytes() for loss in losses])
        found.append(losses.copies)
    found.append({n: w.tobytes() for n, w in pipeline.state_dict().items()})
    return found, pipeline._runs.compiled


def check(schedule, num_ranks, **options):
    """Compare, and return the compiled stages of all ranks."""

    def both(group):
        eager, _ = train(group, False, schedule, **options)
        found, compiled = train(group, True, schedule, **options)
        assert found == eager
        return compiled

    compiled = spawn(both, num_ranks=num_ranks)
    for each in compiled:
        assert all(line.endswith("is compiled") for line in each.report.splitlines())
        assert each.sources
    return compiled


@pytest.mark.parametrize(
    ("schedule", "stash"), covering(SCHEDULES, [True, False], strength=1)
)
def test_runs_on_two_ranks_have_the_bits_of_eager_ones(schedule, stash):
    check(schedule, 2, stash=stash)


@pytest.mark.slow
@pytest.mark.parametrize("schedule", ["pipedream", slowly("paci")])
def test_replicas_have_the_bits_of_eager_ones(schedule):
    check(schedule, 4, replicas=2)


LAYOUTS = [(1, 1), (2, 1), (4, 1), (4, 2)]  # ranks, and replicas


@pytest.mark.slow
@pytest.mark.parametrize(
    ("schedule", "stash", "ranks", "optimiser"),
    sample_of(SCHEDULES, [True, False], LAYOUTS, ["SGD", "Adam"], strength=3),
)
def test_all_runs_have_the_bits_of_eager_ones(schedule, stash, ranks, optimiser):
    num_ranks, replicas = ranks
    options = {"stash": stash, "replicas": replicas}
    check(schedule, num_ranks, optimiser=getattr(optim, optimiser), **options)


@pytest.mark.slow
def test_dropped_activations_are_computed_again_in_a_run():
    check("pipedream", 2, recompute=True)
    check(schedules.recomputed(schedules.pipedream(2, 12)), 2)


def test_offloaded_activations_of_a_run_have_the_bits_of_eager_ones():
    check(schedules.offloaded(schedules.pipedream(2, 12), 1), 2)


def test_weights_of_a_run_that_are_used_twice_have_the_bits_of_eager_ones():
    def tied():
        shared = nn.Linear(WIDTH, WIDTH)
        return nn.Sequential(shared, nn.Tanh(), shared, nn.Linear(WIDTH, WIDTH))

    check("2bw", 1, model=tied)


def test_a_run_holds_as_many_microbatches_as_its_schedule():
    stages = check("pipedream", 4, sizes=(16,))
    slots = [entry.num_slots for each in stages for entry in each.entries]
    assert slots == [4, 3, 2, 1]


def test_a_changed_layer_is_compiled_anew():
    def change(group):
        found = []
        for how in (False, True):
            pipeline = Pipeline(
                mlp(),
                group,
                loss=nn.MSELoss(),
                schedule="2bw",
                num_microbatches=4,
                compile=how,
            )
            optimiser = optim.SGD(pipeline.parameters(), 0.1)
            batch = np.ones((8, WIDTH), np.float32), np.zeros((8, WIDTH), np.float32)
            losses = []
            for probability in (0.2, 0.5, 0.2):
                stages = pipeline._stages.values()
                for layer in (each for one in stages for each in one.module.layers):
                    if isinstance(layer, nn.Dropout):
                        layer.probability = probability
                losses += map(float, pipeline.run([batch] * 3, optimiser))
            found.append(losses)
        assert found[0] == found[1]

    spawn(change, num_ranks=2)


class Reads(nn.Module):
    def forward(self, x):
        return x * 2 if float(x.data.flat[0]) > 0 else x


def foreign():
    return nn.Sequential(nn.Linear(WIDTH, WIDTH), Reads(), nn.Linear(WIDTH, WIDTH))


def test_a_layer_that_cannot_be_compiled_is_named():
    def run(group):
        with pytest.raises(ModelError, match="layer 1, Reads, runs code of its own"):
            train(group, True, "pipedream", model=foreign)
        eager, _ = train(group, False, "pipedream", model=foreign)
        found, compiled = train(group, "where-possible", "pipedream", model=foreign)
        assert found == eager
        assert "stage 0 runs eagerly: layer 1, Reads" in compiled.report

    spawn(run, num_ranks=1)


def test_a_run_with_an_error_names_the_layer_and_leaves_no_slots_in_use():
    def ids(step, highest):
        return np.random.default_rng(step).integers(0, highest, (8, 4))

    def run(group):
        found = []
        for how in (False, True):
            layers = nn.Embedding(5, WIDTH), nn.Tanh(), nn.Linear(WIDTH, 5)
            pipeline = Pipeline(
                nn.Sequential(*layers),
                group,
                loss=nn.CrossEntropyLoss(),
                num_microbatches=4,
                schedule="pipedream",
                compile=how,
            )
            optimiser, losses = optim.SGD(pipeline.parameters(), 0.1), []
            for step in range(6):
                batch = ids(step, 5), ids(step + 50, 5)
                losses += map(float, pipeline.run([batch] * 2, optimiser))
                wrong = [batch, (np.full((8, 4), 7), batch[1])]
                with pytest.raises(TensorError) as caught:
                    pipeline.run(wrong, optimiser)
                notes = "\n".join(caught.value.__notes__)
                assert "layer 0, Embedding" in notes + str(caught.value)
            found.append(losses)
        assert found[0] == found[1]
        compiled = pipeline._runs.compiled
        assert [each.num_slots for each in compiled.entries] == [1]

    spawn(run, num_ranks=1)


def test_more_forms_than_are_compiled_run_eagerly_and_are_reported(monkeypatch):
    monkeypatch.setattr(stage, "MOST_ENTRIES", 3)

    def run(group):
        found = []
        for how in (False, True):
            options = {"schedule": "2bw", "num_microbatches": 2, "compile": how}
            pipeline = Pipeline(mlp(), group, loss=nn.MSELoss(), **options)
            optimiser, losses = optim.SGD(pipeline.parameters(), 0.1), []
            for size in (2, 4, 6, 8, 10, 4, 10):
                batch = np.ones((size, WIDTH), np.float32), np.zeros((size, WIDTH))
                losses += map(float, pipeline.run([batch] * 4, optimiser))
            found.append(losses)
        assert found[0] == found[1]
        assert "for 3 forms of microbatches" in pipeline.compile_report()

    spawn(run, num_ranks=1)

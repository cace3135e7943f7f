"""Compiled slices of sequences have the bits of eager ones."""

import numpy as np
import pytest

from minipipe import Pipeline, nn, optim, schedules, spawn
from minipipe.errors import TensorError
from tests.launch import slowly

SYMBOLS, WIDTH = 9, 8


def model(dropout=0.1):
    options = {"is_causal": True, "dropout": dropout, "attention_dropout": dropout}
    return nn.Sequential(
        nn.Embedding(SYMBOLS, WIDTH),
        nn.PositionalEmbedding(13, WIDTH),
        *(nn.TransformerBlock(WIDTH, 2, **options) for _ in range(2)),
        nn.LayerNorm(WIDTH),
        nn.Linear(WIDTH, SYMBOLS),
    )


def train(group, how, schedule, make=model, num_sequences=8, **options):
    pipeline = Pipeline(
        make(),
        group,
        loss=nn.CrossEntropyLoss(),
        schedule=schedule,
        compile=how,
        **options,
    )
    optimiser = optim.AdamW(pipeline.parameters(), 0.05)
    random, found = np.random.default_rng(0), []
    for step in range(6):
        text = random.integers(0, SYMBOLS, (num_sequences - (step == 2), 14))
        found.append(float(pipeline.step(text[:, :-1], text[:, 1:])))
        found += [each.grad.tobytes() for each in pipeline.parameters()]
        optimiser.step()
        found.append(float(pipeline.evaluate(text[:, :-1], text[:, 1:])))
    found.append({n: w.tobytes() for n, w in pipeline.state_dict().items()})
    return found, pipeline.compile_report()


def check(schedule, num_ranks, **options):
    def both(group):
        eager, _ = train(group, False, schedule, **options)
        found, report = train(group, True, schedule, **options)
        assert found == eager
        lines = report.splitlines()
        assert lines
        assert all(line.endswith("is compiled") for line in lines), report

    spawn(both, num_ranks=num_ranks)


@pytest.mark.parametrize(
    ("num_ranks", "is_split"),
    [(2, True), slowly(1, False), slowly(1, True), slowly(2, False)],
)
def test_slices_have_the_bits_of_eager_ones(num_ranks, is_split):
    schedule = schedules.seq1f1b(num_ranks, 4, num_slices=2)
    schedule = schedules.split_backward(schedule) if is_split else schedule
    check(schedule, num_ranks)


@pytest.mark.slow
@pytest.mark.parametrize(  # the quick test has both kinds on one rank and on two
    ("num_ranks", "num_slices", "is_split"),
    [(1, 1, False), (3, 3, True), (2, 5, False), (4, 2, True), (2, 13, False)],
)
def test_any_number_of_slices_has_the_bits_of_eager_ones(
    num_ranks, num_slices, is_split
):
    schedule = schedules.seq1f1b(num_ranks, 4, num_slices=num_slices)
    schedule = schedules.split_backward(schedule) if is_split else schedule
    check(schedule, num_ranks)


@pytest.mark.slow
def test_slices_of_replicas_have_the_bits_of_eager_ones():
    check("seq1f1b", 4, replicas=2, num_microbatches=8, num_sequences=19)


def test_slices_of_frozen_stages_have_the_bits_of_eager_ones():
    def frozen():
        made = model()
        for layer in made.layers[:3]:
            layer.freeze()
        return made

    def both(group):
        schedule = schedules.seq1f1b(2, 4, num_slices=2)
        found = []
        for how in (False, True):
            pipeline = Pipeline(
                frozen(),
                group,
                loss=nn.CrossEntropyLoss(),
                schedule=schedule,
                compile=how,
            )
            text = np.random.default_rng(0).integers(0, SYMBOLS, (8, 14))
            losses = [float(pipeline.step(text[:, :-1], text[:, 1:])) for _ in range(5)]
            grads = [each.grad for each in pipeline.parameters()]
            found.append((losses, [g is not None and g.tobytes() for g in grads]))
        assert found[0] == found[1]

    spawn(both, num_ranks=2)


@pytest.mark.slow
def test_an_error_in_a_later_slice_names_the_layer_and_training_goes_on():
    def run(group):
        found = []
        for how in (False, True):
            options = {"schedule": schedules.seq1f1b(1, 4, num_slices=2)}
            options |= {"loss": nn.CrossEntropyLoss(), "compile": how}
            pipeline, losses = Pipeline(model(), group, **options), []
            for step in range(6):
                text = np.random.default_rng(step).integers(0, SYMBOLS, (8, 14))
                losses.append(float(pipeline.step(text[:, :-1], text[:, 1:])))
                wrong = text.copy()
                wrong[-1, 12] = SYMBOLS
                with pytest.raises(TensorError) as caught:
                    pipeline.step(wrong[:, :-1], text[:, 1:])
                notes = "\n".join(caught.value.__notes__)
                assert "layer 0, Embedding" in notes + str(caught.value)
                assert "0F3.1" in notes
            found.append(losses)
        assert found[0] == found[1]
        assert "def schedule(rank):" in pipeline.source()

    spawn(run, num_ranks=1)

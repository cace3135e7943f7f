"""Which layers replay, which stay eager, and what the report says of them."""

from functools import partial

import numpy as np
import pytest

from minipipe import Pipeline, functional, init_process_group, nn, optim, spawn

WIDTH, CLASSES = 8, 5


class Taught(nn.Module):
    def forward(self, x):
        return x * 2


def numbers(*shape):
    return lambda random: random.normal(size=(8, *shape)).astype(np.float32)


def ids(random):
    return random.integers(0, CLASSES, (8, 4))


LAYERS = {
    "attention": (lambda: [nn.MultiHeadAttention(WIDTH, 2)], numbers(4, WIDTH)),
    "causal block": (lambda: [nn.TransformerBlock(WIDTH, 2, is_causal=True, dropout=0.1)], numbers(4, WIDTH)),
    "embedding": (lambda: [nn.Embedding(CLASSES, WIDTH), nn.PositionalEmbedding(4, WIDTH)], ids),
    "language model": (lambda: [nn.Embedding(CLASSES, WIDTH), nn.TransformerBlock(WIDTH, 2, is_causal=True)], ids),
    "SiLU": (lambda: [nn.Linear(WIDTH, WIDTH), nn.SiLU()], numbers(WIDTH)),
    "RMSNorm": (lambda: [nn.RMSNorm(WIDTH)], numbers(WIDTH)),
    "LSTM": (lambda: [nn.LSTM(WIDTH, WIDTH)], numbers(4, WIDTH)),
    "Conv1d": (lambda: [nn.Conv1d(3, WIDTH, 3)], numbers(3, 6)),
    "Conv2d": (lambda: [nn.Conv2d(3, WIDTH, 3)], numbers(3, 6, 6)),
    "pooling": (lambda: [nn.Linear(6, 6), nn.MaxPool1d(2)], numbers(3, 6)),
    "means": (lambda: [nn.Linear(6, 6), nn.AvgPool1d(2)], numbers(3, 6)),
    "function": (lambda: [nn.Function(functional.tanh)], numbers(WIDTH)),
    "one's own": (lambda: [Taught()], numbers(WIDTH)),
}
REASONS = {
    "function": "layer 0, Function, runs code of its own",
    "one's own": "layer 0, Taught, runs code of its own",
}


def trained(name, replay, loss):
    make, draw = LAYERS[name]
    with init_process_group() as group:
        width = {"Conv1d": 32, "Conv2d": 128, "pooling": 9, "means": 9}.get(name, WIDTH)
        turn = [nn.Flatten()] if width != WIDTH else []
        model = nn.Sequential(*make(), *turn, nn.Linear(width, CLASSES))
        pipeline = Pipeline(model, group, loss=loss, num_microbatches=2, replay=replay)
        optimiser, random, found = optim.SGD(pipeline.parameters(), 0.05), np.random.default_rng(0), []
        for _ in range(6):
            x = draw(random)
            leading = 2 if x.dtype == int or (x.ndim == 3 and not turn) else 1
            labels = random.integers(0, CLASSES, x.shape[:leading])
            found.append(pipeline.step(x, labels))
            found += [p.grad.tobytes() for p in pipeline.parameters()]
            optimiser.step()
        return found, pipeline.replay_report()


@pytest.mark.parametrize("name", LAYERS)
def test_a_layer_replays_or_says_why_not(name):
    replayed, report = trained(name, True, nn.CrossEntropyLoss())
    assert replayed == trained(name, False, nn.CrossEntropyLoss())[0], report
    assert report.startswith(f"stage 0: {REASONS.get(name, 'replays 1 kind of microbatch')}"), report


@pytest.mark.parametrize(
    "options", [{"ignore_index": 1}, {"class_weights": [1.0, 0.5, 2.0, 3.0, 0.0]}, {"label_smoothing": 0.1}]
)
def test_a_loss_that_counts_labels_differently_replays(options):
    loss = nn.CrossEntropyLoss(**options)
    replayed, report = trained("SiLU", True, loss)
    assert replayed == trained("SiLU", False, loss)[0], report
    assert report == "stage 0: replays 1 kind of microbatch"


class Both(nn.Module):
    """Hands on a bundle."""

    is_replayable = True

    def forward(self, x):
        return x, functional.tanh(x)


class Added(nn.Module):
    is_replayable = True

    def forward(self, both):
        return both[0] + both[1] * 2


def test_a_stage_that_hands_on_a_bundle_stays_eager_and_gets_all_gradients():
    """The story: while such a microbatch was captured, all gradients but the first were lost."""

    def run(replay, group):
        stages = nn.Sequential(nn.Linear(WIDTH, WIDTH), Both()), nn.Sequential(Added(), nn.Linear(WIDTH, CLASSES))
        options = {"loss": nn.CrossEntropyLoss(), "num_microbatches": 2, "replay": replay}
        pipeline, random = Pipeline.from_modules(stages, group, **options), np.random.default_rng(0)
        losses = [pipeline.step(numbers(WIDTH)(random), random.integers(0, CLASSES, 8)) for _ in range(6)]
        return losses, [p.grad.tobytes() for p in pipeline.parameters()], pipeline.replay_report()

    replayed, eager = (spawn(partial(run, replay), 2, take_turns=True) for replay in (True, False))
    assert [rank[:2] for rank in replayed] == [rank[:2] for rank in eager]
    assert replayed[0][2].startswith("stage 0: the stage passes on a pytree")


def test_a_stage_that_replays_may_be_followed_by_one_that_cannot():
    def run(replay, group):
        model = nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.Tanh(), Taught(), nn.Linear(WIDTH, CLASSES))
        options = {
            "loss": nn.CrossEntropyLoss(),
            "partition": [range(2), range(2, 4)],
            "num_microbatches": 2,
            "replay": replay,
        }
        pipeline, random = Pipeline(model, group, **options), np.random.default_rng(0)
        losses = [pipeline.step(numbers(WIDTH)(random), random.integers(0, CLASSES, 8)) for _ in range(6)]
        return losses, pipeline.replay_report()

    (first, of_first), (_, of_last) = spawn(partial(run, True), 2, take_turns=True)
    assert first == spawn(partial(run, False), 2, take_turns=True)[0][0]
    assert of_first == "stage 0: replays 1 kind of microbatch"
    assert of_last.startswith("stage 1: layer 2, Taught, runs code of its own")

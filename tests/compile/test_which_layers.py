"""Which layers are compiled, and how an error or a report says why others are not."""

from functools import partial

import numpy as np
import pytest

from minipipe import Pipeline, functional, init_process_group, nn, optim, spawn
from minipipe.errors import ModelError

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
    "causal block": (
        lambda: [nn.TransformerBlock(WIDTH, 2, is_causal=True, dropout=0.1)],
        numbers(4, WIDTH),
    ),
    "embedding": (
        lambda: [nn.Embedding(CLASSES, WIDTH), nn.PositionalEmbedding(4, WIDTH)],
        ids,
    ),
    "language model": (
        lambda: [
            nn.Embedding(CLASSES, WIDTH),
            nn.TransformerBlock(WIDTH, 2, is_causal=True),
        ],
        ids,
    ),
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


def trained(name, how, loss):
    make, draw = LAYERS[name]
    with init_process_group() as group:
        width = {"Conv1d": 32, "Conv2d": 128, "pooling": 9, "means": 9}.get(name, WIDTH)
        turn = [nn.Flatten()] if width != WIDTH else []
        model = nn.Sequential(*make(), *turn, nn.Linear(width, CLASSES))
        pipeline = Pipeline(model, group, loss=loss, num_microbatches=2, compile=how)
        optimiser, random, found = (
            optim.SGD(pipeline.parameters(), 0.05),
            np.random.default_rng(0),
            [],
        )
        for _ in range(6):
            x = draw(random)
            leading = 2 if x.dtype == int or (x.ndim == 3 and not turn) else 1
            labels = random.integers(0, CLASSES, x.shape[:leading])
            found.append(pipeline.step(x, labels))
            found += [p.grad.tobytes() for p in pipeline.parameters()]
            optimiser.step()
        return found, pipeline.compile_report()


@pytest.mark.parametrize("name", LAYERS)
def test_a_layer_is_compiled_or_runs_eagerly_and_says_why(name):
    compiled, report = trained(name, "where-possible", nn.CrossEntropyLoss())
    assert compiled == trained(name, False, nn.CrossEntropyLoss())[0], report
    reason = REASONS.get(name)
    assert report == (
        f"step: stage 0 runs eagerly: {reason}"
        if reason
        else "step: stage 0 is compiled"
    )


@pytest.mark.parametrize("name", REASONS)
def test_a_layer_that_cannot_be_compiled_is_refused_with_a_remedy(name):
    with pytest.raises(ModelError) as caught:
        trained(name, True, nn.CrossEntropyLoss())
    assert caught.value.code == "unsupported"
    message = str(caught.value)
    assert message.startswith(f"Stage 0 cannot be compiled: {REASONS[name]}")
    assert "is_compilable = True" in message and 'compile="where-possible"' in message


@pytest.mark.parametrize(
    "options",
    [
        {"ignore_index": 1},
        {"class_weights": [1.0, 0.5, 2.0, 3.0, 0.0]},
        {"label_smoothing": 0.1},
    ],
)
def test_a_loss_that_counts_labels_differently_is_compiled(options):
    loss = nn.CrossEntropyLoss(**options)
    compiled, report = trained("SiLU", True, loss)
    assert compiled == trained("SiLU", False, loss)[0], report
    assert report == "step: stage 0 is compiled"


class Both(nn.Module):
    """Passes on a pytree."""

    is_compilable = True

    def forward(self, x):
        return x, functional.tanh(x)


class Added(nn.Module):
    is_compilable = True

    def forward(self, both):
        return both[0] + both[1] * 2


@pytest.mark.parametrize("schedule", ["1f1b", "zb-h1"])
def test_a_stage_that_passes_on_a_pytree_gets_all_gradients(schedule):
    """The story: in the recorded microbatch all gradients but the first were lost."""

    def run(how, group):
        stages = (
            nn.Sequential(nn.Linear(WIDTH, WIDTH), Both()),
            nn.Sequential(Added(), nn.Linear(WIDTH, CLASSES)),
        )
        options = {
            "loss": nn.CrossEntropyLoss(),
            "num_microbatches": 2,
            "schedule": schedule,
            "compile": how,
        }
        pipeline, random = (
            Pipeline.from_modules(stages, group, **options),
            np.random.default_rng(0),
        )
        found = []
        for _ in range(6):
            found.append(
                pipeline.step(numbers(WIDTH)(random), random.integers(0, CLASSES, 8))
            )
            found += [p.grad.tobytes() for p in pipeline.parameters()]
        return found, pipeline.compile_report()

    compiled, eager = (
        spawn(partial(run, how), 2, take_turns=True) for how in (True, False)
    )
    assert [rank[0] for rank in compiled] == [rank[0] for rank in eager]
    assert [rank[1] for rank in compiled] == [
        f"step: stage {stage} is compiled" for stage in range(2)
    ]


def test_a_compiled_stage_may_be_followed_by_one_that_runs_eagerly():
    def run(how, group):
        model = nn.Sequential(
            nn.Linear(WIDTH, WIDTH), nn.Tanh(), Taught(), nn.Linear(WIDTH, CLASSES)
        )
        options = {
            "loss": nn.CrossEntropyLoss(),
            "partition": [range(2), range(2, 4)],
            "num_microbatches": 2,
            "compile": how,
        }
        pipeline, random = Pipeline(model, group, **options), np.random.default_rng(0)
        losses = [
            pipeline.step(numbers(WIDTH)(random), random.integers(0, CLASSES, 8))
            for _ in range(6)
        ]
        return losses, pipeline.compile_report()

    (first, of_first), (_, of_last) = spawn(
        partial(run, "where-possible"), 2, take_turns=True
    )
    assert first == spawn(partial(run, False), 2, take_turns=True)[0][0]
    assert of_first == "step: stage 0 is compiled"
    assert (
        of_last == "step: stage 1 runs eagerly: layer 2, Taught, runs code of its own"
    )


class Total(nn.Module):
    is_compilable = True

    def forward(self, x):
        return x, x.sum()


class Spread(nn.Module):
    is_compilable = True

    def forward(self, both):
        return both[0] + both[1]


def test_a_stage_that_passes_on_a_tensor_without_axes_is_compiled():
    def run(how, group):
        first = nn.Sequential(nn.Linear(WIDTH, WIDTH), Total())
        stages = first, nn.Sequential(Spread(), nn.Linear(WIDTH, CLASSES))
        options = {"loss": nn.CrossEntropyLoss(), "num_microbatches": 2}
        pipeline = Pipeline.from_modules(stages, group, compile=how, **options)
        random, found = np.random.default_rng(0), []
        for _ in range(5):
            labels = random.integers(0, CLASSES, 8)
            found.append(pipeline.step(numbers(WIDTH)(random), labels))
            found += [p.grad.tobytes() for p in pipeline.parameters()]
        return found, pipeline.compile_report()

    compiled, eager = (
        spawn(partial(run, how), 2, take_turns=True)
        for how in ("where-possible", False)
    )
    assert [rank[0] for rank in compiled] == [rank[0] for rank in eager]
    assert all(report.endswith("is compiled") for _, report in compiled), compiled


class Masked(nn.Module):
    """Passes on a mask, which gets no gradient."""

    is_compilable = True

    def __init__(self):
        self.linear = nn.Linear(WIDTH, WIDTH)

    def forward(self, given):
        x, mask = given
        return functional.masked_fill(self.linear(x), mask.data == 0, 0.0), mask


class Unmasked(nn.Module):
    is_compilable = True

    def forward(self, given):
        return given[0]


@pytest.mark.parametrize("schedule", ["1f1b", "zb-h1"])
def test_a_part_of_a_pytree_may_get_no_gradient(schedule):
    """The story: a compiled stage refused the gradient of a mask that never came."""

    def run(how, group):
        stages = nn.Sequential(Masked()), nn.Sequential(Masked(), Unmasked())
        options = {"loss": nn.MSELoss(), "num_microbatches": 2, "schedule": schedule}
        pipeline = Pipeline.from_modules(stages, group, compile=how, **options)
        random, found = np.random.default_rng(0), []
        for _ in range(5):
            mask = random.integers(0, 2, (8, WIDTH))
            x, y = numbers(WIDTH)(random), numbers(WIDTH)(random)
            found.append(pipeline.step((x, mask), y))
            found += [p.grad.tobytes() for p in pipeline.parameters()]
        return found, pipeline.compile_report()

    for num_ranks in (1, 2):
        compiled, eager = (
            spawn(partial(run, how), num_ranks) for how in ("where-possible", False)
        )
        assert [rank[0] for rank in compiled] == [rank[0] for rank in eager]
        assert all(report.endswith(" is compiled") for _, report in compiled), compiled


def test_a_loss_that_is_a_function_runs_its_stage_eagerly():
    def loss(outputs, targets):
        return ((outputs - targets) * (outputs - targets)).mean()

    def run(how, group):
        layers = [nn.Linear(WIDTH, WIDTH), nn.Tanh(), nn.Linear(WIDTH, WIDTH)]
        options = {
            "loss": loss,
            "num_microbatches": 2,
            "partition": [range(2), range(2, 3)],
        }
        pipeline = Pipeline(nn.Sequential(*layers), group, compile=how, **options)
        random = np.random.default_rng(0)
        x = [numbers(WIDTH)(random) for _ in range(5)]
        return [pipeline.step(each, each) for each in x], pipeline.compile_report()

    compiled, eager = (spawn(partial(run, how), 2) for how in ("where-possible", False))
    assert compiled[0][0] == eager[0][0]
    first, last = (report for _, report in compiled)
    assert first == "step: stage 0 is compiled"
    assert last == "step: stage 1 runs eagerly: the loss runs code of its own"

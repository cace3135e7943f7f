"""Trainings that differ in what their next steps depend on, each of eight layers or
more, for up to eight stages.
"""

from typing import Any, NamedTuple

import numpy as np

from minipipe import Pipeline, checkpoint, nn, optim
from minipipe.pipeline.checkpoint.state import take
from tests.half_precision import bfloat16

NUM_MICROBATCHES = 12  # any of 1 to 4 ranks divides it
INPUTS, TARGETS = (
    np.random.default_rng(3).standard_normal((2, 12, 4)).astype(np.float32)
)
TOKENS = np.random.default_rng(4).integers(0, 6, (12, 3))


def mlp(dtype=np.float32):
    layers = [
        layer
        for _ in range(4)
        for layer in (nn.Linear(4, 4, dtype=dtype), nn.Dropout(0.2), nn.Tanh())
    ]
    return nn.Sequential(*layers)


def frozen():
    model = mlp()
    for i in (0, 6):
        model.layers[i].freeze()
    return model


def tied():
    """A language model whose last layer has the vectors of its first one, and which
    uses another layer twice.
    """
    embedding, twice = nn.Embedding(6, 4), nn.Linear(4, 4)
    body = [
        nn.LayerNorm(4),
        twice,
        nn.GELU(),
        nn.Dropout(0.1),
        nn.Linear(4, 4),
        nn.Tanh(),
        twice,
    ]
    return nn.Sequential(embedding, *body, nn.Unembedding(embedding))


def groups(pipeline):
    """Return two groups, whose parameters lie on different ranks: each has numbers of
    its own.
    """
    weights, biases = [], []
    for name, parameter in pipeline.named_parameters():
        (biases if name.endswith("bias") or name.startswith("9.") else weights).append(
            parameter
        )
    return [
        {"parameters": weights, "learning_rate": 0.05},
        {"parameters": biases, "weight_decay": 0.0},
    ]


def two(pipeline):
    own = dict(pipeline.named_parameters())
    body = [parameter for name, parameter in own.items() if name < "6"]
    return {
        "body": optim.SGD(body, 0.1, momentum=0.9),
        "head": optim.Adam(
            [parameter for name, parameter in own.items() if name >= "6"]
        ),
    }


class Recipe(NamedTuple):
    """A model, what trains it, and whether its gradients need a scale."""

    model: Any = mlp
    optimisers: Any = None
    inputs: Any = INPUTS
    targets: Any = TARGETS
    loss: Any = nn.MSELoss
    has_rates: bool = False
    has_scale: bool = False


def by(kind, *given, **options):
    return lambda pipeline: {
        "optimiser": kind(pipeline.parameters(), *given, **options)
    }


def by_muon(pipeline):
    return {"optimiser": optim.Muon(optim.muon_groups(pipeline), 0.01)}


RECIPES = {
    "SGD": Recipe(optimisers=by(optim.SGD, 0.1)),
    "momentum": Recipe(optimisers=by(optim.SGD, 0.1, momentum=0.9, weight_decay=0.01)),
    "Adam": Recipe(optimisers=by(optim.Adam, 0.01)),
    "AdamW": Recipe(optimisers=by(optim.AdamW, 0.01)),
    "Muon": Recipe(optimisers=by_muon),
    "tied": Recipe(
        tied, by(optim.Adam, 0.01), TOKENS, TOKENS[:, ::-1].copy(), nn.CrossEntropyLoss
    ),
    "float16": Recipe(lambda: mlp(np.float16), by(optim.AdamW, 0.01), has_scale=True),
    "groups": Recipe(
        optimisers=lambda pipeline: {"optimiser": optim.AdamW(groups(pipeline), 0.01)}
    ),
    "two": Recipe(optimisers=two),
    "rates": Recipe(optimisers=by(optim.SGD, 0.1, momentum=0.9), has_rates=True),
    "frozen": Recipe(frozen, by(optim.Adam, 0.01)),
}
if bfloat16 is not None:
    RECIPES["bfloat16"] = Recipe(lambda: mlp(bfloat16), by(optim.Adam, 0.01))


def train(group, recipe, schedule, folder, num_steps, **more):
    """Train to a number of steps, from the newest checkpoint if there is one, and save.

    Return all values of this rank by name, and the losses.
    """
    recipe = RECIPES[recipe]
    options = {
        "schedule": schedule,
        "chunks_per_rank": 2 if schedule == "interleaved-1f1b" else None,
    }
    options |= {
        "num_microbatches": NUM_MICROBATCHES // more.get("replicas", 1),
        "seed": 5,
        **more,
    }
    pipeline = Pipeline(recipe.model(), group, loss=recipe.loss(), **options)
    optimisers = recipe.optimisers(pipeline)
    rates = [
        optim.LearningRateSchedule(one, optim.cosine(10, 2))
        for one in optimisers.values()
        if recipe.has_rates
    ]
    scale = optim.LossScale(initial=2.0**17, growth_interval=2)
    restored = checkpoint.restore(folder, pipeline, optimisers, required=False)
    if restored:
        scale.value, scale.num_good_steps = restored.extra["scale"]
        for one, state in zip(rates, restored.extra["rates"], strict=True):
            one.load_state_dict(state)
    losses = []
    for _ in range(restored.step if restored else 0, num_steps):
        losses.append(
            float(
                pipeline.step(
                    recipe.inputs,
                    recipe.targets,
                    scale=scale.value if recipe.has_scale else 1.0,
                )
            )
        )
        if recipe.has_scale and not pipeline.unscale_gradients(scale):
            continue
        for one in optimisers.values():
            one.step()
            for its in one.groups:
                its.learning_rate *= 0.9  # by hand, as some scripts do
        for one in rates:
            one.step()
    extra = {
        "scale": [scale.value, scale.num_good_steps],
        "rates": [one.state_dict() for one in rates],
    }
    checkpoint.save(folder, pipeline, optimisers, step=num_steps, extra=extra)
    return {**named(pipeline, optimisers), "scale": scale.value}, losses


def named(pipeline, optimisers):
    """Return the bits of all that this rank has, each by its name in the whole
    model.
    """
    arrays, told = take(
        pipeline, optimisers, [name for name, _ in pipeline.named_parameters()]
    )
    found = {
        key: (array.tobytes(), array.dtype.name, array.shape)
        for key, array in arrays.items()
    }
    for key, its in told.items():
        found[key, "num_steps"] = its.num_steps
        found |= {(key, name): numbers for name, numbers in its.kept.items()}
        found |= {
            (key, "group", name): one.numbers
            for one in its.groups
            for name in one.parameters
        }
    return found

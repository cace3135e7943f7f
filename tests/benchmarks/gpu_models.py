"""The models of gpu.py in minipipe: three language models of GPT's form, and three MLPs."""

from time import perf_counter
from typing import NamedTuple

import numpy as np

from minipipe import Pipeline, nn, optim

RATE = 1e-3
BETAS, EPSILON, DECAY = (0.9, 0.95), 1e-8, 0.1


class Case(NamedTuple):
    """A model and its batch: a GPT if it has a vocabulary, or else an MLP.

    The aims are times over PyTorch's own CUDA graph of forward and backward, with a
    fused update, in float32 and in TF32.
    """

    name: str
    width: int
    layers: int
    batch: int
    microbatches: int
    vocabulary: int = 0
    heads: int = 1
    length: int = 1
    aim: float = 1.0
    aim_of_tf32: float | None = None

    @property
    def is_text(self):
        return self.vocabulary > 0

    def __str__(self):
        sizes = f"d={self.width} L={self.layers} B={self.batch} m={self.microbatches}"
        if self.is_text:
            sizes += f" V={self.vocabulary} h={self.heads} T={self.length}"
        return f"{self.name}: {sizes}"


CASES = [
    Case("GPT small", 96, 4, 16, 8, 96, 4, 64, 0.85, 0.97),
    Case("GPT mid", 512, 8, 16, 4, 8192, 8, 256, 0.95, 0.97),
    Case("GPT-2", 768, 12, 8, 4, 50257, 12, 512, 0.98, 0.97),
    Case("MLP d=128", 128, 8, 1024, 8, aim=0.8),
    Case("MLP d=1024", 1024, 8, 2048, 8, aim=0.85),
    Case("MLP d=4096", 4096, 8, 4096, 8, aim=1.0),
]
TINY = [  # for a test of the program, on a CPU
    Case("tiny GPT", 8, 2, 4, 2, 11, 2, 5),
    Case("tiny MLP", 8, 2, 6, 2),
]
AIM_OF_EAGER = 1.5  # over PyTorch's eager step


def model_of(case, dtype=np.float32):
    """Return the layers of a case, with their first values."""
    if not case.is_text:
        layers = [
            layer
            for _ in range(case.layers)
            for layer in (nn.Linear(case.width, case.width, dtype=dtype), nn.ReLU())
        ]
        return nn.Sequential(*layers).initialise(0)
    blocks = [
        nn.TransformerBlock(case.width, case.heads, is_causal=True, dtype=dtype)
        for _ in range(case.layers)
    ]
    return nn.Sequential(
        nn.Embedding(case.vocabulary, case.width, dtype=dtype),
        nn.PositionalEmbedding(case.length, case.width, dtype=dtype),
        *blocks,
        nn.LayerNorm(case.width, dtype=dtype),
        nn.Linear(case.width, case.vocabulary, dtype=dtype),
    ).initialise(0)


def batch_of(case, dtype=np.float32):
    """Return inputs and targets, in NumPy's memory."""
    generator = np.random.default_rng(0)
    if case.is_text:
        shape = case.batch, case.length + 1
        tokens = generator.integers(0, case.vocabulary, shape)
        return np.ascontiguousarray(tokens[:, :-1]), np.ascontiguousarray(tokens[:, 1:])
    x, y = (generator.standard_normal((case.batch, case.width)) for _ in "xy")
    return x.astype(dtype), y.astype(dtype)


def step_of(case, group, device, compiles, dtype=np.float32, schedule="1f1b"):
    """Return a function that trains for a step and returns its loss, and the pipeline."""
    loss = nn.CrossEntropyLoss() if case.is_text else nn.MSELoss()
    options = {"schedule": schedule, "num_microbatches": case.microbatches}
    options |= {"device": device, "compile": "where-possible" if compiles else False}
    pipeline = Pipeline(model_of(case, dtype), group, loss=loss, **options)
    own = pipeline.parameters()
    if case.is_text:
        optimiser = optim.AdamW(own, RATE, BETAS, EPSILON, weight_decay=DECAY)
    else:
        optimiser = optim.SGD(own, RATE)
    inputs, targets = batch_of(case, dtype)

    def step():
        found = float(pipeline.step(inputs, targets))
        optimiser.step()
        return found

    return step, pipeline


def seconds_of(step, wait, count):
    """Return the seconds of some steps, updates included."""
    wait()
    begun = perf_counter()
    for _ in range(count):
        step()
    wait()
    return perf_counter() - begun

"""Random stages as programs, and the gradients of their microbatches: with one
backward, and in two halves.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import numpy as np
from hypothesis import strategies as st

from minipipe import Tensor, functional
from minipipe import functional as F
from minipipe.autograd import StageInput, WeightWork, backward, backward_input

ROWS, WIDTH, NUM_MATRICES, NUM_VECTORS = 5, 4, 3, 2


def numbers(*shape: int, seed: int) -> np.ndarray:
    return np.random.default_rng(seed).normal(size=shape).astype(np.float32)


# -- programs: random stages as data ---------------------------------------------------
#
# A program computes with activations of shape (ROWS, WIDTH), which come from the
# stage's input, with matrices (WIDTH, WIDTH) and with vectors (WIDTH,), which come from
# weights. Every step appends one value to one of the three lists; its operands are
# picked from what is there already, the newest most often.


class Step(NamedTuple):
    """One operation, and which values it takes (counted back from the newest)."""

    name: str
    picks: tuple[int, int, int]


ACTIVATION_STEPS: dict[str, Callable[..., Tensor]] = {
    "linear": lambda a, b, m, n, v: F.linear(a, m, v),
    "linear without bias": lambda a, b, m, n, v: F.linear(a, m),
    "matmul": lambda a, b, m, n, v: a @ m,
    "matmul from the left": lambda a, b, m, n, v: (m @ a.T).T,
    "through the transpose": lambda a, b, m, n, v: a @ m.T,
    "tanh": lambda a, b, m, n, v: a.tanh(),
    "relu": lambda a, b, m, n, v: a.relu(),
    "softmax": lambda a, b, m, n, v: functional.softmax(a),
    "add": lambda a, b, m, n, v: a + b,
    "multiply": lambda a, b, m, n, v: a * b,
    "shift by a vector": lambda a, b, m, n, v: a - v,
    "scale by a vector": lambda a, b, m, n, v: a * v,
    "scale by a column": lambda a, b, m, n, v: a * a.mean(axis=1, keepdims=True),
    "one weight twice": lambda a, b, m, n, v: (a @ m) @ m + a @ m,
    "three consumers of one vector": lambda a, b, m, n, v: a * v + v * b - v,
    "rows picked, some twice": lambda a, b, m, n, v: a[[4, 0, 0, 2, 1]],
    "columns backwards": lambda a, b, m, n, v: a[:, ::-1],
    "columns of two": lambda a, b, m, n, v: F.concatenate([a[:, :1], b[:, 1:]], axis=1),
    "contiguous": lambda a, b, m, n, v: F.contiguous(a[:, ::-1]),
    "a weight alone, broadcast": lambda a, b, m, n, v: m.sum() + b,
}


MATRIX_STEPS: dict[str, Callable[..., Tensor]] = {
    "w1 * w2 + w1": lambda m, n, v: m * n + m,
    "w1 @ w2": lambda m, n, v: m @ n,
    "transposed": lambda m, n, v: m.T,
    "bounded": lambda m, n, v: m.tanh(),
    "scaled by a vector": lambda m, n, v: m * v,
    "columns picked, some twice": lambda m, n, v: m[:, [1, 1, 3, 0]],
}


VECTOR_STEPS: dict[str, Callable[..., Tensor]] = {
    "sum of a matrix": lambda m, n, v: m.sum(axis=0),
    "row of a matrix": lambda m, n, v: n[2],
    "matrix times vector": lambda m, n, v: m @ v,
    "v * v": lambda m, n, v: v * v + v,
}


steps = st.builds(
    Step,
    st.sampled_from([*ACTIVATION_STEPS, *MATRIX_STEPS, *VECTOR_STEPS]),
    st.tuples(st.integers(0, 3), st.integers(0, 3), st.integers(0, 2)),
)


programs = st.lists(steps, min_size=1, max_size=9)


def run(program: list[Step], x: Tensor, weights: list[Tensor]) -> Tensor:
    """Return the newest activation; if no step made one, the stage returns its
    input.
    """
    activations, matrices, vectors = (
        [x],
        list(weights[:NUM_MATRICES]),
        list(weights[NUM_MATRICES:]),
    )

    def pick(values: list[Tensor], back: int) -> Tensor:
        return values[-1 - back % len(values)]

    for name, (i, j, k) in program:
        operands = pick(matrices, i), pick(matrices, j), pick(vectors, k)
        if name in ACTIVATION_STEPS:
            activations.append(
                ACTIVATION_STEPS[name](
                    pick(activations, i), pick(activations, j), *operands
                )
            )
        elif name in MATRIX_STEPS:
            matrices.append(MATRIX_STEPS[name](*operands))
        else:
            vectors.append(VECTOR_STEPS[name](*operands))
    return activations[-1]


def fresh_weights() -> list[Tensor]:
    arrays = [numbers(WIDTH, WIDTH, seed=i) / 2 for i in range(NUM_MATRICES)]
    arrays += [numbers(WIDTH, seed=10 + i) for i in range(NUM_VECTORS)]
    return [Tensor(array, requires_grad=True) for array in arrays]


Stage = Callable[[Tensor, list[Tensor]], Tensor]


class Microbatch(NamedTuple):
    """The input of a stage, its result, and the gradient of the result."""

    x: Tensor
    y: Tensor
    upstream: np.ndarray


def forward(
    stage: Stage, weights: list[Tensor], number: int, needs_gradient: bool = True
) -> Microbatch:
    x = Tensor(numbers(ROWS, WIDTH, seed=100 + number))
    x.node = StageInput(needs_gradient)
    y = stage(x, weights)
    return Microbatch(x, y, numbers(*y.shape, seed=200 + number))


def bits(gradients: list[np.ndarray | None]) -> list[bytes | None]:
    return [None if gradient is None else gradient.tobytes() for gradient in gradients]


def gradients_of(
    weights: list[Tensor], microbatches: list[Microbatch]
) -> list[bytes | None]:
    return bits([weight.grad for weight in weights]) + bits(
        [microbatch.x.grad for microbatch in microbatches]
    )


def fused(
    stage: Stage, num_microbatches: int = 1, needs_gradient: bool = True
) -> list[bytes | None]:
    """F0 B0 F1 B1 …"""
    weights, done = fresh_weights(), []
    for i in range(num_microbatches):
        microbatch = forward(stage, weights, i, needs_gradient)
        backward({microbatch.y.node: microbatch.upstream})
        done.append(microbatch)
    return gradients_of(weights, done)


def first_half(microbatch: Microbatch) -> WeightWork:
    return backward_input({microbatch.y.node: microbatch.upstream})


def in_halves(
    stage: Stage,
    num_microbatches: int = 1,
    needs_gradient: bool = True,
    half: Callable[[Microbatch], WeightWork] = first_half,
) -> list[bytes | None]:
    """F0 F1 … I0 I1 … W0 W1 …"""
    weights = fresh_weights()
    microbatches = [
        forward(stage, weights, i, needs_gradient) for i in range(num_microbatches)
    ]
    postponed = [half(microbatch) for microbatch in microbatches]
    assert all(weight.grad is None for weight in weights), (
        "I has touched the gradient of a weight"
    )
    for work in postponed:
        work.run()
    return gradients_of(weights, microbatches)

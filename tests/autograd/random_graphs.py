"""Random graphs as data, computed by the engine and by an oracle that records the same
operations as closures.

An entry of ``TABLE`` is an operation, made by ``op`` here or in
``minipipe.functional``, and its oracle: the same formulas in ``record(data, (input,
vjp), …)``, where each vjp captures what it needs and sums over stretched axes. The
oracle is the engine as it was before operations became data: one node for each result,
one closure for each input.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
from hypothesis import strategies as st

from minipipe import Tensor, functional, op
from minipipe.autograd import (
    Leaf,
    Node,
    StageInput,
    WeightWork,
    backward,
    backward_input,
)
from minipipe.core.autograd.backend import unbroadcast
from minipipe.core.tensor import as_tensor, cast, record

WIDTH = 4
SHAPES = [(3, WIDTH), (WIDTH,), (1, WIDTH), (3, 1), ()]
# A leaf is the input of a stage, one whose gradient nobody needs, a weight, or a
# constant.
ROLES = ["input", "input", "first input", "weight", "weight", "constant"]
DTYPES = ["float64", "float32", "float16"]


# -- operations of every kind ----------------------------------------------------------


@op(saves="slope", is_broadcast=True)
def gated(a, b):
    """Return a * b / (1 + b²), whose slope in b is saved."""
    size = 1 + b * b
    return a * b / size, (1 - b * b) / (size * size)


gated.gradients(a=lambda g, b: g * b / (1 + b * b), b=lambda g, a, slope: g * a * slope)


def _gated(a: Tensor, b: Tensor) -> Tensor:
    x, y = a.data, b.data
    size = 1 + y * y
    slope = (1 - y * y) / (size * size)
    to_b = lambda g: unbroadcast(g * x * slope, y.shape)
    return record(
        x * y / size,
        (a, lambda g: unbroadcast(g * y / (1 + y * y), x.shape)),
        (b, to_b),
    )


@op()
def joined(*parts, axis):
    """Return the parts beside each other."""
    return np.concatenate(parts, axis=axis)


joined.gradients(
    parts=lambda g, number, axis, shape: np.split(
        g, g.shape[axis] // shape[axis], axis=axis
    )[number]
)


def _joined(*parts: Tensor, axis: int) -> Tensor:
    def part_of(i: int, length: int) -> Callable[[Any], Any]:
        return lambda g: np.split(g, g.shape[axis] // length, axis=axis)[i]

    result = np.concatenate([part.data for part in parts], axis=axis)
    return record(
        result, *((part, part_of(i, part.shape[axis])) for i, part in enumerate(parts))
    )


@op(saves="inner")
def layered(x, first, second=None):
    """Return tanh(x @ first) @ second, whose gradients share a value."""
    inner = np.tanh(x @ first)
    return inner if second is None else inner @ second, inner


layered.shared(
    dz=lambda g, inner, second: (
        (g if second is None else g @ second.T) * (1 - inner * inner)
    )
)
layered.gradients(
    x=lambda g, dz, first: dz @ first.T,
    first=lambda g, dz, x: x.T @ dz,
    second=lambda g, inner: inner.T @ g,
)


def _layered(x: Tensor, first: Tensor, second: Tensor | None = None) -> Tensor:
    a, w, v = x.data, first.data, None if second is None else second.data
    inner = np.tanh(a @ w)

    def dz(g: Any) -> Any:
        return (g if v is None else g @ v.T) * (1 - inner * inner)

    inputs = [(x, lambda g: dz(g) @ w.T), (first, lambda g: a.T @ dz(g))]
    if second is None:
        return record(inner, *inputs)
    return record(inner @ v, *inputs, (second, lambda g: inner.T @ g))


@op(in_float32=True)
def averaged(x, *, axis):
    """Return means over an axis, which stays; halves are added in float32."""
    return x.mean(axis=axis, keepdims=True)


averaged.gradients(
    x=lambda g, axis, shape: np.broadcast_to(
        g / np.asarray(shape[axis], g.dtype), shape
    )
)


def _averaged(x: Tensor, axis: int) -> Tensor:
    if x.dtype == np.float16:
        return cast(_averaged(cast(x, "float32"), axis), "float16")
    shape = x.shape
    vjp = lambda g: np.broadcast_to(g / np.asarray(shape[axis], g.dtype), shape)
    return record(x.data.mean(axis=axis, keepdims=True), (x, vjp))


@op()
def turned(x):
    """Return x backwards: a view, and so is the gradient."""
    return x[..., ::-1]


turned.gradients(x=lambda g: g[..., ::-1])


def _binary(forward: Any, to_a: Any, to_b: Any) -> Callable[[Tensor, Tensor], Tensor]:
    """Return the oracle of an operation whose operands are broadcast."""

    def recorded(a: Tensor, b: Tensor) -> Tensor:
        x, y = a.data, b.data
        inputs = (
            (a, lambda g: unbroadcast(to_a(g, x, y), x.shape)),
            (b, lambda g: unbroadcast(to_b(g, x, y), y.shape)),
        )
        return record(forward(x, y), *inputs)

    return recorded


def _relu(a: Tensor) -> Tensor:
    result = np.maximum(a.data, 0)
    return record(result, (a, lambda g: np.where(result != 0, g, 0)))


def _tanh(a: Tensor) -> Tensor:
    result = np.tanh(a.data)
    return record(result, (a, lambda g: g * (1 - result * result)))


Operation = Callable[..., Tensor]
TABLE: dict[str, tuple[Operation, Operation]] = {
    "add": (
        functional.add,
        _binary(lambda x, y: x + y, lambda g, x, y: g, lambda g, x, y: g),
    ),
    "subtract": (
        functional.subtract,
        _binary(lambda x, y: x - y, lambda g, x, y: g, lambda g, x, y: -g),
    ),
    "multiply": (
        functional.multiply,
        _binary(lambda x, y: x * y, lambda g, x, y: g * y, lambda g, x, y: g * x),
    ),
    "relu": (functional.relu, _relu),
    "tanh": (functional.tanh, _tanh),
    "turned": (
        turned,
        lambda a: record(a.data[..., ::-1], (a, lambda g: g[..., ::-1])),
    ),
    "gated": (gated, _gated),
    "joined": (
        lambda *parts: joined(*parts, axis=0),
        lambda *parts: _joined(*parts, axis=0),
    ),
    "averaged": (lambda a: averaged(a, axis=-1), lambda a: _averaged(a, -1)),
    "layered": (layered, _layered),
}
NUM_INPUTS = {
    "relu": 1,
    "tanh": 1,
    "turned": 1,
    "averaged": 1,
    "joined": 3,
    "layered": 3,
}


# -- graphs ----------------------------------------------------------------------------


class Step(NamedTuple):
    """An operation, and the values that it takes, counted back from the newest."""

    name: str
    picks: tuple[int, int, int]


class Graph(NamedTuple):
    """A graph, as data: leaves with their shapes and roles, steps, and how many of the
    last results are roots.
    """

    dtype: str
    leaves: list[tuple[tuple[int, ...], str]]
    matrices: list[str]
    steps: list[Step]
    num_roots: int


graphs = st.builds(
    Graph,
    st.sampled_from(DTYPES),
    st.lists(
        st.tuples(st.sampled_from(SHAPES), st.sampled_from(ROLES)),
        min_size=1,
        max_size=5,
    ),
    st.lists(st.sampled_from(ROLES), min_size=1, max_size=3),
    st.lists(
        st.builds(Step, st.sampled_from([*TABLE]), st.tuples(*[st.integers(0, 4)] * 3)),
        min_size=1,
        max_size=10,
    ),
    st.integers(1, 3),
)


def leaf(shape: tuple[int, ...], role: str, dtype: str, seed: int) -> Tensor:
    values = np.random.default_rng(seed).normal(size=shape).astype(dtype)
    tensor = Tensor(values, requires_grad=role == "weight")
    if "input" in role:
        tensor.node = StageInput(needs_gradient=role == "input", array=values)
    return tensor


class Computed(NamedTuple):
    """The leaves of a graph, all results, and the roots with their gradients."""

    leaves: list[Tensor]
    results: list[Tensor]
    roots: dict[Node, np.ndarray]

    def bits(self) -> list[bytes | None]:
        """Return the bits of all results and gradients."""
        nodes = [tensor.node for tensor in self.leaves]
        found = [
            node.grad if isinstance(node, Leaf | StageInput) else None for node in nodes
        ]
        return [
            None if each is None else each.tobytes()
            for each in (*(y.data for y in self.results), *found)
        ]


def computed(
    graph: Graph, is_oracle: bool, weights: dict[int, Tensor], number: int = 0
) -> Computed:
    """Compute a graph for one microbatch; its weights are taken from the earlier ones,
    or put there.
    """
    leaves = []
    for i, (shape, role) in enumerate(
        [*graph.leaves, *[((WIDTH, WIDTH), role) for role in graph.matrices]]
    ):
        made = leaf(shape, role, graph.dtype, 100 * i + number * ("input" in role))
        leaves.append(weights.setdefault(i, made) if role == "weight" else made)
    results = results_of(graph, leaves, is_oracle)
    roots: dict[Node, np.ndarray] = {}
    for i, y in enumerate(results[-graph.num_roots :]):
        if y.requires_grad:
            upstream = (
                np.random.default_rng(50 + i).normal(size=y.shape).astype(graph.dtype)
            )
            roots[y.node] = upstream  # type: ignore[index]
    return Computed(leaves, results, roots)


def results_of(
    graph: Graph, leaves: list[Tensor], is_oracle: bool = False
) -> list[Tensor]:
    """Return the results of all steps, from the leaves and behind these the
    matrices.
    """
    values, matrices, results = (
        leaves[: len(graph.leaves)],
        leaves[len(graph.leaves) :],
        list[Tensor](),
    )
    for name, picks in graph.steps:
        operands = [values[-1 - pick % len(values)] for pick in picks][
            : NUM_INPUTS.get(name, 2)
        ]
        if name == "layered":
            operands[1:] = [
                matrices[pick % len(matrices)] for pick in picks[1:] if pick < 4
            ]
            if (
                operands[0].data.ndim != 2
                or operands[0].shape[1] != WIDTH
                or len(operands) < 2
            ):
                continue
        if name == "joined":
            like = operands[0].shape
            operands = [each for each in operands if each.shape == like]
        if name in ("joined", "averaged", "turned") and not operands[0].shape:
            continue
        if (
            results
            and len({len(each.shape) and each.shape[0] for each in operands} - {0, 1})
            > 1
            and name != "layered"
        ):
            continue  # rows that were joined fit only each other
        if name not in ("layered", "joined") and not fits(operands):
            continue
        results.append(TABLE[name][is_oracle](*map(as_tensor, operands)))
        values.append(results[-1])
    return results


def fits(operands: list[Tensor]) -> bool:
    try:
        np.broadcast_shapes(*(each.shape for each in operands))
    except ValueError:
        return False
    return True


def at_once(
    graph: Graph, is_oracle: bool, num_microbatches: int = 1
) -> list[list[bytes | None]]:
    """F0 B0 F1 B1 …"""
    weights: dict[int, Tensor] = {}
    found = []
    for k in range(num_microbatches):
        found.append(computed(graph, is_oracle, weights, k))
        backward(found[-1].roots)
    return [each.bits() for each in found]


def in_halves(
    graph: Graph, is_oracle: bool, num_microbatches: int = 1
) -> list[list[bytes | None]]:
    """F0 F1 … I0 I1 … W0 W1 …"""
    weights: dict[int, Tensor] = {}
    found = [computed(graph, is_oracle, weights, k) for k in range(num_microbatches)]
    works: list[WeightWork] = [backward_input(each.roots) for each in found]
    assert all(weight.grad is None for weight in weights.values()), (
        "I has touched the gradient of a weight"
    )
    for work in works:
        work.run()
    return [each.bits() for each in found]

"""More calls of edges.json: arrays without elements or axes, axes of length 1,
broadcasting, and moved elements.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any

import numpy as np

INF, NAN = math.inf, math.nan
Case = tuple[str, str, list[Any], dict[str, Any], Any]

UNARY = (
    "negative",
    "exp",
    "log",
    "sqrt",
    "tanh",
    "sigmoid",
    "relu",
    "silu",
    "gelu",
    "gelu with tanh",
    "erf",
)
BINARY = ("add", "subtract", "multiply", "divide", "power")
REDUCTIONS = (
    "total",
    "mean",
    "variance",
    "amax",
    "amin",
    "softmax",
    "log_softmax",
    "logsumexp",
)


def nothing(*shape: int) -> np.ndarray:
    return np.zeros(shape)


def operands(n: Any) -> Iterator[Case]:
    """Yield the cases of elementwise operations on numbers, on nothing, and on shapes
    that are broadcast.
    """
    for name in UNARY:
        yield f"{name} of a number without axes", name, [0.5], {}, INF
        yield f"{name} of nothing", name, [nothing(2, 0)], {}, 1.0
    column, row = [[0.0], [INF], [-2.0]], [1.0, 0.0, -INF, NAN]
    for name in BINARY:
        yield f"{name} of a column and a row", name, [column, row], {}, 1.0
        yield (
            f"{name} of a row and a column",
            name,
            [row, column],
            {},
            [[INF], [0.0], [-1.0]] * np.ones(4),
        )
        yield f"{name} of a number and a row", name, [2.0, row], {}, 1.0
        yield f"{name} of one by one elements", name, [[[3.0]], [0.0]], {}, 1.0
        yield f"{name} of nothing and a row", name, [nothing(0, 4), row], {}, 1.0
        yield f"{name} of nothing and a column", name, [nothing(3, 0), column], {}, 1.0
        yield f"{name} of nothing and a number", name, [nothing(0), 2.0], {}, 1.0
    for name, option in (
        ("power to a number", "exponent"),
        ("power of a number", "base"),
    ):
        for number in (0.0, 2.0):
            yield (
                f"{name} {number} and nothing",
                name,
                [nothing(0)],
                {option: number},
                1.0,
            )
            yield f"{name} {number} without axes", name, [0.0], {option: number}, 1.0
    bounds = {"low": -1.0, "high": 1.0}
    yield (
        "clip of numbers at the bounds",
        "clip",
        [[-1.0, 1.0, -1.0]],
        bounds,
        [1.0, INF, NAN],
    )
    yield "clip of nothing", "clip", [nothing(0, 3)], bounds, 1.0
    yield "clip of a number without axes", "clip", [INF], bounds, 1.0
    yield "dropout of an empty array", "dropout", [nothing(0, 3)], {"p": 0.0}, 1.0
    yield "dropout of one element", "dropout", [[INF]], {"p": 0.0}, NAN
    mask = [[True, False, True, False]]
    yield "where, broadcast", "where", [column, row], {"mask": mask}, 1.0
    yield (
        "where, broadcast, with the gradient inf",
        "where",
        [row, column],
        {"mask": mask},
        INF,
    )
    yield "where of numbers without axes", "where", [INF, NAN], {"mask": True}, 1.0
    yield "where of nothing", "where", [nothing(0, 4), row], {"mask": mask}, 1.0
    yield (
        "masked_fill, broadcast",
        "masked_fill",
        [np.ones((3, 4))],
        {"mask": mask, "value": NAN},
        1.0,
    )
    yield (
        "masked_fill of one element",
        "masked_fill",
        [[INF]],
        {"mask": [True], "value": 0.0},
        INF,
    )
    yield (
        "masked_fill of nothing",
        "masked_fill",
        [nothing(0, 4)],
        {"mask": mask, "value": 1.0},
        1.0,
    )


def reduced(n: Any) -> Iterator[Case]:
    """Yield the cases of reductions and norms of axes of length 1 and of no rows."""
    for name in REDUCTIONS:
        yield (
            f"{name} of a column",
            name,
            [[[INF], [-INF], [NAN], [0.0]]],
            {"axis": 1},
            1.0,
        )
        yield f"{name} of no rows", name, [nothing(0, 3)], {"axis": 1}, 1.0
        yield (
            f"{name} of ties in columns",
            name,
            [[[2.0, -INF], [2.0, -INF]]],
            {"axis": 0},
            1.0,
        )
    weight, one = [1.0, 2.0], [2.0]
    options = {"epsilon": 1e-5}
    yield (
        "layer_norm of no rows",
        "layer_norm",
        [nothing(0, 2), weight, weight],
        options,
        1.0,
    )
    yield (
        "layer_norm of one feature",
        "layer_norm",
        [[[3.0], [-1.0]], one, one],
        options,
        1.0,
    )
    yield "rms_norm of no rows", "rms_norm", [nothing(0, 2), weight], options, 1.0
    yield (
        "rms_norm of one feature",
        "rms_norm",
        [[[3.0], [0.0], [INF]], one],
        options,
        1.0,
    )
    yield (
        "group_norm of no samples",
        "group_norm",
        [nothing(0, 2, 3), weight, weight],
        options,
        1.0,
    )
    yield (
        "group_norm of one position",
        "group_norm",
        [[[[3.0], [-1.0]]], weight, weight],
        options,
        1.0,
    )
    yield (
        "cross_entropy of one row of one class",
        "cross_entropy",
        [[[INF]]],
        {"labels": [0]},
        1.0,
    )
    yield "mean_squared_error of numbers", "mean_squared_error", [2.0, INF], {}, 1.0


def products(n: Any) -> Iterator[Case]:
    """Yield the cases of products, windows, tables, attention and memory of nothing,
    and of one of each.
    """
    matrix = [[0.0, INF], [1.0, NAN], [2.0, n.most]]
    yield "linear of no rows", "linear", [nothing(0, 3), matrix, [1.0, 2.0]], {}, 1.0
    yield (
        "linear of no features",
        "linear",
        [nothing(2, 0), nothing(0, 3), [1.0, 2.0, INF]],
        {},
        1.0,
    )
    yield (
        "linear to no features",
        "linear",
        [np.ones((2, 3)), nothing(3, 0), nothing(0)],
        {},
        1.0,
    )
    yield (
        "linear of a vector",
        "linear",
        [[1.0, 0.0, -1.0], matrix, [1.0, 2.0]],
        {},
        1.0,
    )
    yield "linear of one by one", "linear", [[[INF]], [[0.0]], [1.0]], {}, 1.0
    for name in ("matmul", "einsum"):
        yield f"{name} of no rows", name, [nothing(0, 3), matrix], {}, 1.0
        yield f"{name} of no columns", name, [[[1.0, INF]], nothing(2, 0)], {}, 1.0
        yield f"{name} of one by one", name, [[[INF]], [[0.0]]], {}, 1.0
    yield "matmul of vectors", "matmul", [[0.0, INF, 1.0], [1.0, 2.0, NAN]], {}, 1.0
    yield (
        "matmul of a vector and a matrix",
        "matmul",
        [[0.0, 1.0, 2.0], matrix],
        {},
        1.0,
    )
    yield "matmul of empty vectors", "matmul", [nothing(0), nothing(0)], {}, 1.0
    yield (
        "matmul, broadcast",
        "matmul",
        [[[[1.0, INF]], [[0.0, 1.0]]], [[1.0], [2.0]]],
        {},
        1.0,
    )
    yield (
        "matmul, broadcast over nothing",
        "matmul",
        [nothing(0, 1, 2), [[1.0], [2.0]]],
        {},
        1.0,
    )
    for name in ("embedding", "index"):
        yield f"{name} of no ids", name, [[[0.0, INF], [NAN, 1.0]]], {"ids": []}, 1.0
        yield (
            f"{name} of one row",
            name,
            [[[INF, NAN]]],
            {"ids": [0, 0]},
            [[1.0, INF], [-1.0, -INF]],
        )
    for name in ("max_pool1d", "avg_pool1d"):
        yield f"{name} of no samples", name, [nothing(0, 1, 4)], {}, 1.0
        yield f"{name} of one window", name, [[[[-INF, -INF]]]], {}, 1.0
    for name in ("max_pool2d", "avg_pool2d", "global_avg_pool"):
        yield f"{name} of no samples", name, [nothing(0, 1, 2, 2)], {}, 1.0
        yield f"{name} of ties", name, [[[[[2.0, 2.0], [2.0, 2.0]]]]], {}, INF
    yield "conv1d of no samples", "conv1d", [nothing(0, 1, 3), [[[0.0, 1.0]]]], {}, 1.0
    yield (
        "conv1d of equal elements",
        "conv1d",
        [[[[2.0, 2.0, 2.0]]], [[[0.5, 0.5]]]],
        {},
        INF,
    )
    yield "conv1d of one position", "conv1d", [[[[INF]]], [[[2.0]]]], {}, 1.0
    yield "conv2d of no samples", "conv2d", [nothing(0, 1, 2, 2), [[[[1.0]]]]], {}, 1.0
    yield "conv2d of one position", "conv2d", [[[[[0.0]]]], [[[[INF]]]]], {}, 1.0
    two = [[[1.0, 2.0], [3.0, -4.0]]]
    yield "attention of no samples", "attention", [nothing(0, 2, 2)] * 3, {}, 1.0
    yield "attention of no queries", "attention", [nothing(1, 0, 2), two, two], {}, 1.0
    yield (
        "attention to no keys",
        "attention",
        [two, nothing(1, 0, 2), nothing(1, 0, 2)],
        {},
        1.0,
    )
    yield (
        "attention to equal keys",
        "attention",
        [two, [[[1.0, 1.0], [1.0, 1.0]]], two],
        {},
        1.0,
    )
    yield (
        "attention of one to one",
        "attention",
        [[[[INF, 0.0]]], [[[1.0, 1.0]]], [[[2.0, 3.0]]]],
        {},
        1.0,
    )
    ones = [[0.5, -1.0, 1.0, 2.0]]
    yield "lstm of no samples", "lstm", [nothing(0, 2, 1), ones, ones], {}, 1.0
    yield (
        "lstm of equal weights",
        "lstm",
        [[[[1.0], [1.0]]], [[1.0] * 4], [[1.0] * 4]],
        {},
        1.0,
    )
    yield "lstm of one step", "lstm", [[[[0.0]]], ones, ones], {}, 1.0
    projections = [[[1.0, 2.0, 0.5, 2.0, 1.0, 0.0], [0.0, 1.0, -1.0, 0.5, 2.0, -1.0]]]
    for number in (0.0, INF, NAN):
        changed = np.array(projections)
        # a value of the second position, which the first one does not see
        changed[0, 1, 4] = number
        options = {"is_causal": True}
        yield (
            f"self_attention past a value of {number}",
            "self_attention",
            [changed],
            options,
            1.0,
        )
    yield "self_attention of no samples", "self_attention", [nothing(0, 2, 6)], {}, 1.0
    yield (
        "self_attention of one position",
        "self_attention",
        [[projections[0][:1]]],
        {},
        1.0,
    )
    yield (
        "rotary",
        "rotary",
        [[[0.0, 1.0, -2.0, n.least], [1.0, -0.0, 0.5, 3.0]]],
        {},
        [[1.0, 0.0, -1.0, 2.0]] * np.ones((2, 1)),
    )
    yield (
        "rotary of NaN and inf",
        "rotary",
        [[[NAN, 1.0, INF, 2.0], [INF, 1.0, -INF, NAN]]],
        {},
        1.0,
    )
    yield "rotary of one position", "rotary", [[[2.0, 2.0]]], {}, [[INF, 1.0]]
    yield "rotary of nothing", "rotary", [nothing(0, 2, 4)], {}, 1.0


def moved(n: Any) -> Iterator[Case]:
    """Yield the cases of operations that move elements, or change their dtype: values
    and gradients stay.
    """
    x, upstream = (
        [[0.0, -0.0, INF], [NAN, -INF, n.least]],
        [[INF, 1.0, -0.0], [NAN, 0.0, -INF]],
    )
    for name in (
        "reshape",
        "transpose",
        "contiguous",
        "identity",
        "astype",
        "in_float32",
    ):
        turned = (
            np.array(upstream).T
            if name in ("transpose", "contiguous")
            else np.reshape(upstream, (3, 2))
        )
        of_result = (
            turned if name in ("reshape", "transpose", "contiguous") else upstream
        )
        yield name, name, [x], {}, of_result
        yield f"{name} of nothing", name, [nothing(2, 0)], {}, 1.0
        if name != "reshape":
            yield f"{name} of one element", name, [[[NAN]]], {}, INF
    yield "reshape of a column", "reshape", [[[1.0], [NAN], [1.0]]], {}, INF
    for name in ("concatenate", "stack"):
        yield name, name, [x, upstream], {}, 1.0
        yield f"{name} of one element each", name, [[[NAN]], [[0.0]]], {}, INF
        yield f"{name} of nothing", name, [nothing(2, 0), nothing(2, 0)], {}, 1.0
    yield (
        "concatenate of nothing and a row",
        "concatenate",
        [nothing(0, 3), x],
        {},
        [*upstream],
    )
    yield (
        "concatenate of parts that get inf and NaN",
        "concatenate",
        [x, x],
        {},
        [*upstream, *upstream[::-1]],
    )
    yield "split", "split", [x], {}, [upstream[0][:2], upstream[1][:2]]
    yield "split of a row", "split", [[[1.0, 1.0, INF]]], {}, NAN
    yield "split of nothing", "split", [nothing(0, 3)], {}, 1.0


GROUPS = (operands, reduced, products, moved)

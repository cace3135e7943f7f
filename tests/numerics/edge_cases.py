"""The calls of edges.json: each operation at the edges of its domain.

A case is a name, an operation of ``make_edges.py``, the inputs, the options, and the
gradient of the result: an array, or one number for all elements.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any

import numpy as np

from tests.numerics import edge_shapes

INF, NAN = math.inf, math.nan
Case = tuple[str, str, list[Any], dict[str, Any], Any]


class Numbers:
    """The numbers at the edges of a dtype."""

    def __init__(self, dtype: str) -> None:
        info = np.finfo(dtype)
        self.most, self.tiny, self.least = (
            float(info.max),
            float(info.tiny),
            float(info.smallest_subnormal),
        )
        self.edges = [
            0.0,
            -0.0,
            self.least,
            -self.least,
            self.tiny,
            0.5,
            1.0,
            -1.0,
            -1.5,
            3.0,
            self.most,
            -self.most,
        ]
        self.edges += [INF, -INF, NAN]


def elementwise(n: Numbers) -> Iterator[Case]:
    """Yield the cases of one and of two operands, each element with the gradients 1, 0
    and inf.
    """
    x, upstream = [3 * n.edges], [g for g in (1.0, 0.0, INF) for _ in n.edges]
    for name in (
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
    ):
        yield name, name, x, {}, upstream
    for options in (
        {"low": -1.0, "high": 1.0},
        {"low": 0.0},
        {"high": 0.0},
        {"low": -INF, "high": INF},
    ):
        yield f"clip to {options}", "clip", x, options, upstream
    for number in (0, 0.0, 1.0, 2, 3.0, 0.5, -1.0, -0.5):
        yield (
            f"power to {number}",
            "power to a number",
            x,
            {"exponent": number},
            upstream,
        )
    for number in (0.0, 1.0, 2.0, -2.0):
        yield f"power of {number}", "power of a number", x, {"base": number}, upstream
    for name in ("sqrt of relu", "log of relu", "one over clip"):
        yield name, name, x, {}, upstream
    some = [0.0, -0.0, n.least, 1.0, -2.0, 0.5, n.tiny, n.most, INF, -INF, NAN]
    pairs = [[a for a in some for _ in some], some * len(some)]
    for name in ("add", "subtract", "multiply", "divide", "power"):
        yield name, name, pairs, {}, 1.0
    mask = [True, False] * (len(some) // 2) + [True]
    for name in ("sqrt of where", "one over where", "one over masked_fill"):
        yield name, name, [some], {"mask": mask}, 1.0
    for g in (1.0, INF, NAN):
        yield (
            f"where, with the gradient {g}",
            "where",
            [some, some[::-1]],
            {"mask": mask},
            g,
        )
        for value in (0.0, -INF, NAN):
            options = {"mask": mask, "value": value}
            yield (
                f"masked_fill with {value}, with the gradient {g}",
                "masked_fill",
                [some],
                options,
                g,
            )
    yield "dropout of nothing", "dropout", [some], {"p": 0.0}, 1.0


def rows_of(n: Numbers) -> dict[str, list[float]]:
    """Return the rows that reductions and norms are tried on."""
    return {
        "ties": [2.0, 2.0, 1.0, 2.0],
        "constants": [3.0, 3.0, 3.0, 3.0],
        "zeros of both signs": [0.0, -0.0, -0.0, 0.0],
        "-inf among others": [1.0, -INF, 2.0, -INF],
        "-inf alone": [-INF, -INF, -INF, -INF],
        "inf among others": [1.0, INF, 2.0, -3.0],
        "inf and -inf": [INF, -INF, 1.0, INF],
        "NaN among others": [1.0, NAN, 2.0, 3.0],
        "subnormal numbers": [n.least, -n.least, 3 * n.least, 0.0],
        "tiny numbers": [n.tiny, 2 * n.tiny, -n.tiny, 0.0],
        "one of the largest": [n.most, 1.0, -2.0, 0.0],
        "the largest of both signs": [n.most, -n.most, 0.0, 1.0],
    }


def reductions(n: Numbers) -> Iterator[Case]:
    """Yield the cases over an axis: of rows, of empty axes, and of one element."""
    names = (
        "total",
        "mean",
        "variance",
        "amax",
        "amin",
        "softmax",
        "log_softmax",
        "logsumexp",
    )
    for name in names:
        for what, row in rows_of(n).items():
            yield f"{name} of {what}", name, [[row]], {"axis": 1}, 1.0
        yield f"{name} of one element", name, [[[-1.5]]], {"axis": 1}, 1.0
        yield f"{name} over an empty axis", name, [np.zeros((2, 0))], {"axis": 1}, 1.0
        yield f"{name} beside an empty axis", name, [np.zeros((2, 0))], {"axis": 0}, 1.0
        yield (
            f"{name} with the gradient inf",
            name,
            [[[1.0, 3.0, 3.0]]],
            {"axis": 1},
            INF,
        )
    yield (
        "variance of one element as a sample",
        "variance",
        [[[2.0]]],
        {"axis": 1, "correction": 1},
        1.0,
    )
    yield (
        "sqrt of max of zeros",
        "sqrt of max",
        [[[0.0, -1.0, -2.0], [-3.0, -1.0, 0.0]]],
        {},
        1.0,
    )
    for mask in ([[False, True, False]], [[True, True, True]]):
        yield (
            f"softmax masked by {mask}",
            "softmax of masked_fill",
            [[[1.0, NAN, 3.0]]],
            {"mask": mask},
            [[1.0, 5.0, 2.0]],
        )


def norms(n: Numbers) -> Iterator[Case]:
    """Yield the cases of norms: with and without the number that keeps the division
    from blowing up.
    """
    weight, bias, upstream = (
        [1.0, 2.0, -1.0, 0.5],
        [0.0, 1.0, 0.0, -1.0],
        [[1.0, -2.0, 0.5, 3.0]],
    )
    small_or_large = (
        "subnormal numbers",
        "tiny numbers",
        "one of the largest",
        "the largest of both signs",
    )
    for what, row in rows_of(n).items():
        for epsilon in (1e-5,) if what in small_or_large else (1e-5, 0.0):
            options, end = {"epsilon": epsilon}, f"of {what}, epsilon {epsilon}"
            yield (
                f"layer_norm {end}",
                "layer_norm",
                [[row], weight, bias],
                options,
                upstream,
            )
            yield f"rms_norm {end}", "rms_norm", [[row], weight], options, upstream
    for what in ("constants", "-inf among others", "NaN among others", "tiny numbers"):
        x = [[rows_of(n)[what][:2], rows_of(n)[what][2:]]]
        yield (
            f"group_norm of {what}",
            "group_norm",
            [x, [1.0, 2.0], [0.0, 1.0]],
            {"epsilon": 1e-5},
            1.0,
        )


def losses(n: Numbers) -> Iterator[Case]:
    """Yield the cases of losses: what is infinite or NaN where it counts, and where it
    does not.
    """
    fine, masked, wrong, nothing = (
        [0.5, 1.0, -1.0],
        [1.0, -INF, 2.0],
        [NAN, 1.0, INF],
        [-INF, -INF, -INF],
    )
    spread = {"label_smoothing": 0.1}
    weights, no_second = (
        {"class_weights": [1.0, 2.0, 0.5]},
        {"class_weights": [1.0, 0.0, 2.0]},
    )
    ignored = {"ignore_index": -100}
    for what, rows, labels, options in (
        ("a masked class", [masked, fine], [0, 1], {}),
        ("a masked label", [masked, fine], [1, 1], {}),
        ("a masked class, smoothed", [masked, fine], [0, 1], spread),
        ("a masked class, weighted", [masked, fine], [0, 1], weights),
        ("a masked label, weighted", [masked, fine], [1, 1], weights),
        ("a masked label of weight 0", [masked, fine], [1, 0], no_second),
        ("a wrong row of weight 0", [wrong, fine], [1, 0], no_second),
        ("a masked class, some ignored", [masked, masked, fine], [2, -100, 1], ignored),
        (
            "a masked class, some ignored, smoothed",
            [fine, masked, fine],
            [2, -100, 1],
            ignored | spread,
        ),
        (
            "a masked class, some ignored, weighted",
            [masked, masked, fine],
            [2, -100, 1],
            ignored | weights,
        ),
        ("a wrong row, ignored", [wrong, fine], [-100, 1], ignored),
        ("a wrong row, ignored, smoothed", [wrong, fine], [-100, 1], ignored | spread),
        ("a wrong row, ignored, weighted", [wrong, fine], [-100, 1], ignored | weights),
        ("an ignored class", [wrong, fine], [2, 1], {"ignore_index": 2}),
        ("all rows ignored", [wrong, masked], [-100, -100], ignored),
        (
            "all rows ignored, a sum",
            [wrong, masked],
            [-100, -100],
            {**ignored, "reduction": "sum"},
        ),
        ("a wrong row", [wrong, fine], [1, 1], {}),
        ("nothing but -inf", [nothing, fine], [1, 1], {}),
        ("nothing but -inf, ignored", [nothing, fine], [-100, 1], ignored),
        (
            "the largest numbers",
            [[n.most, -n.most, 0.0], [n.most, n.most, 1.0]],
            [0, 2],
            {},
        ),
        ("the largest numbers, smoothed", [[n.most, -n.most, 0.0]], [0], spread),
        ("equal scores", [[2.0, 2.0, 2.0]], [1], {}),
        ("one class", [[7.0], [NAN]], [0, -100], ignored),
    ):
        yield (
            f"cross_entropy of {what}",
            "cross_entropy",
            [rows],
            {"labels": labels, **options},
            1.0,
        )
    no_labels = np.zeros(0, np.int64)
    yield (
        "cross_entropy of no rows",
        "cross_entropy",
        [np.zeros((0, 3))],
        {"labels": no_labels},
        1.0,
    )
    infinite = {"labels": [0], "class_weights": [1.0, INF, 1.0]}
    yield (
        "cross_entropy with an infinite class weight",
        "cross_entropy",
        [[fine]],
        infinite,
        1.0,
    )
    some = [0.0, INF, NAN, n.most, n.least]
    yield (
        "mean_squared_error",
        "mean_squared_error",
        [some, [0.0, 1.0, 1.0, 0.0, 0.0]],
        {},
        1.0,
    )
    yield (
        "mean_squared_error of nothing",
        "mean_squared_error",
        [np.zeros(0), np.zeros(0)],
        {},
        1.0,
    )
    for weight in ([1.0, 0.0, 0.0, 0.0, 2.0], [0.0] * 5):
        options = {"weights": weight}
        yield (
            f"weights {weight}",
            "mean_squared_error with weights",
            [some, [1.0, 1.0, 1.0, NAN, 2.0]],
            options,
            1.0,
        )


def layers(n: Numbers) -> Iterator[Case]:
    """Yield the cases of windows, products, tables, attention and memory."""
    for what, row in rows_of(n).items():
        for name in ("max_pool1d", "max_pool1d, overlapping", "avg_pool1d"):
            yield f"{name} of {what}", name, [[[row]]], {}, 1.0
        image = [[[row[:2], row[2:]]]]
        for name in ("max_pool2d", "avg_pool2d", "global_avg_pool"):
            yield f"{name} of {what}", name, [image], {}, 1.0
    yield (
        "max_pool1d with the gradient inf",
        "max_pool1d, overlapping",
        [[[[1.0, 3.0, 3.0, 2.0]]]],
        {},
        INF,
    )
    yield (
        "sqrt of max_pool1d of zeros",
        "sqrt of max_pool1d",
        [[[[0.0, -1.0, -2.0, 0.0]]]],
        {},
        1.0,
    )
    yield (
        "conv1d of inf and NaN",
        "conv1d",
        [[[[1.0, INF, 0.0, NAN, 2.0]]], [[[0.0, 1.0]]]],
        {},
        1.0,
    )
    image = [[[[1.0, INF], [0.0, NAN]], [[0.0, 1.0], [2.0, n.most]]]]
    yield (
        "conv2d of inf and NaN",
        "conv2d",
        [image, [[[[1.0]], [[0.0]]], [[[1.0]], [[2.0]]]]],
        {},
        1.0,
    )
    matrix, other = (
        [[0.0, INF, 1.0], [1.0, 2.0, NAN]],
        [[INF, 0.0], [0.0, 1.0], [1.0, n.most]],
    )
    for name in ("matmul", "einsum"):
        yield f"{name} of inf and NaN", name, [matrix, other], {}, 1.0
        yield (
            f"{name} over an empty axis",
            name,
            [np.zeros((2, 0)), np.zeros((0, 3))],
            {},
            1.0,
        )
    yield "linear of inf and NaN", "linear", [matrix, other, [0.0, 1.0]], {}, 1.0
    table = [[0.0, INF], [NAN, 1.0], [-0.0, 2.0]]
    for name in ("embedding", "index"):
        yield f"{name} past what is wrong", name, [table], {"ids": [2, 2]}, 1.0
        yield (
            f"{name} of what is wrong",
            name,
            [table],
            {"ids": [1, 0, 1]},
            [[INF, 1.0], [0.0, NAN], [1.0, -INF]],
        )
    query, key, value = (
        [[[1.0, 2.0], [3.0, -4.0]]],
        [[[0.5, 2.0], [-3.0, 4.0]]],
        [[[1.0, 2.0], [3.0, 0.0]]],
    )
    for what, mask in (
        ("nothing", [[False, False]]),
        ("one key", [[True, False]]),
        ("both keys", [[True, True]]),
    ):
        yield (
            f"attention to {what}",
            "attention",
            [query, key, value],
            {"mask": mask},
            [[[1.0, 0.0], [-1.0, 2.0]]],
        )
    for what, number in (("-inf", -INF), ("inf", INF), ("NaN", NAN)):
        yield (
            f"attention to a key of {what}",
            "attention",
            [query, [[[0.5, number], [1.0, 1.0]]], value],
            {},
            1.0,
        )
        masked, options = [[[1.0, 1.0], [1.0, number]]], {"mask": [[True, False]]}
        yield (
            f"attention past a key of {what}",
            "attention",
            [query, masked, value],
            options,
            1.0,
        )
        yield (
            f"attention past a value of {what}",
            "attention",
            [query, key, masked],
            options,
            1.0,
        )
        values = [[[1.0, number], [1.0, 1.0]]]
        yield (
            f"causal attention to a value of {what}",
            "attention",
            [query, key, values],
            {"is_causal": True},
            1.0,
        )
    ones = [[0.5, -1.0, 1.0, 2.0]]
    for number in (1e4, n.most, INF, NAN):
        yield f"lstm of {number}", "lstm", [[[[number], [1.0]]], ones, ones], {}, 1.0


def refused(n: Numbers) -> Iterator[Case]:
    """Yield the rest of the calls that minipipe refuses."""
    yield (
        "clip between crossed bounds",
        "clip",
        [[0.0, 3.0]],
        {"low": 2.0, "high": 1.0},
        1.0,
    )
    yield "dropout of everything", "dropout", [[1.0, INF]], {"p": 1.0}, 1.0


GROUPS = (elementwise, reductions, norms, losses, layers, refused, *edge_shapes.GROUPS)


def cases(dtype: str) -> Iterator[Case]:
    """Yield the cases of all groups."""
    for group in GROUPS:
        yield from group(Numbers(dtype))

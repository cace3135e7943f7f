"""The table edges.json, and minipipe's results for its cases: eager on any array
module, or compiled.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np

from minipipe import Tensor
from minipipe import functional as F
from minipipe.autograd import StageInput, backward_input
from minipipe.core.autograd.backend import array_module
from tests.compile import driver

Case = dict[str, Any]
CASES: list[Case] = json.loads(
    Path(__file__).with_name("edges.json").read_text(encoding="utf-8")
)


def integers(numbers: Any, like: Tensor) -> Any:
    """Return labels or ids in the module of a tensor."""
    return array_module(like.data).asarray(np.array(numbers, np.int64))


# By name, as in make_edges.py: minipipe's call, from the tensors of a case and its
# options.
OPERATIONS = {
    "add": F.add,
    "subtract": F.subtract,
    "multiply": F.multiply,
    "divide": F.divide,
    "power": F.power,
    "power of a number": lambda a, base: base**a,
    "power to a number": lambda a, exponent: a**exponent,
    "negative": F.negative,
    "exp": F.exp,
    "log": F.log,
    "sqrt": F.sqrt,
    "tanh": F.tanh,
    "sigmoid": F.sigmoid,
    "relu": F.relu,
    "silu": F.silu,
    "gelu": F.gelu,
    "gelu with tanh": lambda a: F.gelu(a, approximate=True),
    "erf": F.erf,
    "clip": F.clip,
    "dropout": lambda a, p: F.dropout(a, p),
    "where": lambda a, b, mask: F.where(mask, a, b),
    "masked_fill": F.masked_fill,
    "sqrt of relu": lambda a: F.sqrt(F.relu(a)),
    "log of relu": lambda a: F.log(F.relu(a)),
    "sqrt of where": lambda a, mask: F.sqrt(F.where(mask, a, 0.0)),
    "one over where": lambda a, mask: 1 / F.where(mask, a, 0.0),
    "one over clip": lambda a: 1 / F.clip(a, 0.0, 2.0),
    "one over masked_fill": lambda a, mask: 1 / F.masked_fill(a, mask, 0.0),
    "sqrt of max": lambda a: F.sqrt(F.amax(a, 1)),
    "sqrt of max_pool1d": lambda a: F.sqrt(F.max_pool1d(a, 2)),
    "softmax of masked_fill": lambda a, mask: F.softmax(
        F.masked_fill(a, mask, -math.inf)
    ),
    "total": F.total,
    "mean": F.mean,
    "variance": F.variance,
    "amax": F.amax,
    "amin": F.amin,
    "softmax": F.softmax,
    "log_softmax": F.log_softmax,
    "logsumexp": F.logsumexp,
    "cross_entropy": lambda x, labels, **options: F.cross_entropy(
        x, integers(labels, x), **options
    ),
    "mean_squared_error": F.mean_squared_error,
    "mean_squared_error with weights": F.mean_squared_error,
    "layer_norm": F.layer_norm,
    "rms_norm": F.rms_norm,
    "group_norm": lambda x, w, b, epsilon: F.group_norm(x, 1, w, b, epsilon),
    "max_pool1d": lambda x: F.max_pool1d(x, 2),
    "max_pool1d, overlapping": lambda x: F.max_pool1d(x, 3, 1),
    "max_pool2d": lambda x: F.max_pool2d(x, 2),
    "avg_pool1d": lambda x: F.avg_pool1d(x, 2),
    "avg_pool2d": lambda x: F.avg_pool2d(x, 2),
    "global_avg_pool": F.global_avg_pool,
    "conv1d": F.conv1d,
    "conv2d": F.conv2d,
    "linear": F.linear,
    "matmul": F.matmul,
    "einsum": lambda a, b: F.einsum("ij,jk->ik", a, b),
    "embedding": lambda w, ids: F.embedding(w, integers(ids, w)),
    "index": lambda a, ids: F.index(
        a, (integers(np.reshape(ids, (-1, 1)), a), integers([0, 1], a))
    ),
    "attention": F.attention,
    "lstm": F.lstm,
    "self_attention": lambda x, **options: F.self_attention(x, 1, **options),
    "rotary": F.rotary,
    "reshape": lambda a: F.reshape(a, (3, -1) if a.size else (0, 4)),
    "transpose": F.transpose,
    "contiguous": lambda a: F.contiguous(F.transpose(a)),
    "identity": F.identity,
    "astype": lambda a: F.astype(
        F.astype(a, "float32" if "64" in str(a.dtype) else "float64"), a.dtype
    ),
    "in_float32": lambda a: F.in_float32(F.negative, a),
    "concatenate": lambda a, b: F.concatenate([a, b]),
    "stack": lambda a, b: F.stack([a, b], axis=1),
    "split": lambda a: F.split(a, [2, 1], axis=1)[0],
}
# Sums of products cancel, or are reduced in another order: there an error is relative
# to 1, not to the result.
CANCELS = ("layer_norm", "rms_norm", "group_norm", "attention")


def by_operation(cases: list[Case]) -> dict[str, list[Case]]:
    """Return cases by what they call."""
    return {
        name: [case for case in cases if case["operation"] == name]
        for name in OPERATIONS
    }


def array(written: dict[str, Any], dtype: str) -> np.ndarray:
    return np.array(written["elements"], dtype).reshape(written["shape"])


def upstream(case: Case, shape: tuple[int, ...]) -> np.ndarray:
    """Return the gradient of a case's result."""
    given = case["upstream"]
    if isinstance(given, float):
        return np.full(shape, given, case["dtype"])
    return np.broadcast_to(array(given, case["dtype"]), shape)


def inputs(case: Case) -> list[np.ndarray]:
    return [array(written, case["dtype"]) for written in case["inputs"]]


# By name: an array with the same elements, which lie in memory in another way.
LAYOUTS = {
    "columns behind each other": lambda x: np.array(x, order="F"),
    "backwards": lambda x: np.flip(np.flip(x).copy()) if x.ndim else x,
    "every second element": lambda x: (
        np.repeat(x, 2, axis=-1)[..., ::2] if x.ndim else x
    ),
}


def results(case: Case, make: Callable[[np.ndarray], Any] = np.asarray) -> list[Any]:
    """Return the value and the gradients, computed with arrays that a function makes of
    NumPy's.
    """
    tensors = [Tensor(make(each), requires_grad=True) for each in inputs(case)]
    value = OPERATIONS[case["operation"]](*tensors, **case["options"])
    value.backward(make(upstream(case, value.shape)))
    return [value.data, *(tensor.grad for tensor in tensors)]


def results_in_halves(case: Case, number: int) -> list[Any]:
    """Return the value and the gradients by I and W, where one input is an activation
    and the others are weights.
    """
    tensors = [
        Tensor(each, requires_grad=i != number) for i, each in enumerate(inputs(case))
    ]
    tensors[number].node = StageInput(needs_gradient=True, array=tensors[number].data)
    value = OPERATIONS[case["operation"]](*tensors, **case["options"])
    work = backward_input({value.node: np.asarray(upstream(case, value.shape))})
    assert all(
        (tensor.grad is None) == (i != number) for i, tensor in enumerate(tensors)
    ), "I computed something else"
    work.run()
    return [value.data, *(tensor.grad for tensor in tensors)]


def expected(case: Case) -> list[np.ndarray]:
    return [array(written, case["dtype"]) for written in case["results"]]


def check(case: Case, found: list[Any]) -> None:
    """Compare results with the table: infinities and NaN at their places, numbers to
    the rounding of some steps.
    """
    info = np.finfo(case["dtype"])
    tolerance = (
        30 * info.eps if case["operation"] in CANCELS else 10 * info.smallest_subnormal
    )
    for ours, wanted in zip(found, expected(case), strict=True):
        assert ours.shape == wanted.shape
        np.testing.assert_allclose(
            np.asarray(ours), wanted, rtol=30 * info.eps, atol=tolerance
        )


def failing(cases: list[Case]) -> Iterator[Case]:
    """Yield the cases that are not as in the table."""
    for case in cases:
        try:
            check(case, results(case))
        except AssertionError:
            yield case


def compiled(case: Case) -> list[bytes | None]:
    """Return the bits of value and gradients by sections that were traced with ordinary
    numbers.
    """
    random = np.random.default_rng(0)
    ordinary = [random.uniform(0.5, 1.5, x.shape).astype(x.dtype) for x in inputs(case)]

    def given(k: int) -> list[tuple[np.ndarray, bool]]:
        return [
            (array, True)
            for array in (ordinary if k == driver.TRACED else inputs(case))
        ]

    def seed_of(k: int, i: int, result: np.ndarray) -> np.ndarray:
        shape = result.shape
        return (
            np.ones(shape, case["dtype"])
            if k == driver.TRACED
            else upstream(case, shape).copy()
        )

    def compute(tensors: list[Tensor]) -> list[Tensor]:
        return [OPERATIONS[case["operation"]](*tensors, **case["options"])]

    job = driver.Job(compute, [], given, seed_of)
    trace = driver.traced(job, is_split=False)
    assert trace.reason is None, f"{case['name']} cannot be compiled: {trace.reason}"
    return driver.compiled(job, trace, [("F", 0), ("B", 0)])

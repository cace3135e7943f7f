"""Writes edges.json: what PyTorch computes at the edges of each operation's domain, in
value and gradient.

``python -m tests.numerics.make_edges`` needs PyTorch; ``test_edges.py``, which compares
minipipe with the file, does not. Where minipipe gives something else on purpose,
``DIFFERENCES`` or ``WITHOUT`` says what and why, and the file has both. A call that
minipipe refuses has the code of the error instead of results.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import torch

from tests.numerics.edge_cases import INF, cases

TF = torch.nn.functional


def heads(
    query: Any, key: Any, value: Any, mask: Any = None, is_causal: bool = False
) -> Any:
    shown = None if mask is None else torch.tensor(mask)[:, None, :]
    return TF.scaled_dot_product_attention(
        query, key, value, attn_mask=shown, is_causal=is_causal
    )


def lstm(x: Any, input_weight: Any, hidden_weight: Any) -> Any:
    layer = torch.nn.LSTM(
        x.shape[2], hidden_weight.shape[0], bias=False, batch_first=True, dtype=x.dtype
    )
    weights = {"weight_ih_l0": input_weight.T, "weight_hh_l0": hidden_weight.T}
    return torch.func.functional_call(layer, weights, (x,))[0]


def cross_entropy(
    x: Any, labels: Any, class_weights: Any = None, **options: Any
) -> Any:
    weight = (
        None if class_weights is None else torch.tensor(class_weights, dtype=x.dtype)
    )
    return TF.cross_entropy(x, torch.tensor(labels), weight=weight, **options)


def weighted_error(x: Any, y: Any, weights: Any) -> Any:
    each = torch.tensor(weights, dtype=x.dtype)
    return (each * (x - y) ** 2).sum() / (each.sum() or 1.0)


def rotary(x: Any) -> Any:
    """Return vectors turned by the formulas of the paper: PyTorch has no such
    operation.
    """
    rows, width = x.shape[-2:]
    speeds = 10000.0 ** (torch.arange(0, width, 2, dtype=x.dtype) / -width)
    angles = torch.arange(rows, dtype=x.dtype)[:, None] * speeds
    a, b = x.chunk(2, -1)
    return torch.cat(
        [a * angles.cos() - b * angles.sin(), a * angles.sin() + b * angles.cos()], -1
    )


# By name: the call, from the tensors of a case and its options. test_edges.py has
# minipipe's.
OPERATIONS = {
    "add": torch.add,
    "subtract": torch.subtract,
    "multiply": torch.multiply,
    "divide": torch.divide,
    "power": torch.pow,
    "power of a number": lambda a, base: base**a,
    "power to a number": lambda a, exponent: a**exponent,
    "negative": torch.negative,
    "exp": torch.exp,
    "log": torch.log,
    "sqrt": torch.sqrt,
    "tanh": torch.tanh,
    "sigmoid": torch.sigmoid,
    "relu": torch.relu,
    "silu": TF.silu,
    "gelu": TF.gelu,
    "gelu with tanh": lambda a: TF.gelu(a, approximate="tanh"),
    "erf": torch.erf,
    "clip": lambda a, low=None, high=None: torch.clamp(a, low, high),
    "dropout": TF.dropout,
    "where": lambda a, b, mask: torch.where(torch.tensor(mask), a, b),
    "masked_fill": lambda a, mask, value: torch.masked_fill(
        a, torch.tensor(mask), value
    ),
    "sqrt of relu": lambda a: torch.sqrt(torch.relu(a)),
    "log of relu": lambda a: torch.log(torch.relu(a)),
    "sqrt of where": lambda a, mask: torch.sqrt(
        torch.where(torch.tensor(mask), a, 0.0)
    ),
    "one over where": lambda a, mask: 1 / torch.where(torch.tensor(mask), a, 0.0),
    "one over clip": lambda a: 1 / torch.clamp(a, 0.0, 2.0),
    "one over masked_fill": lambda a, mask: (
        1 / torch.masked_fill(a, torch.tensor(mask), 0.0)
    ),
    "sqrt of max": lambda a: torch.sqrt(a.max(1).values),
    "sqrt of max_pool1d": lambda a: torch.sqrt(TF.max_pool1d(a, 2)),
    "softmax of masked_fill": lambda a, mask: torch.softmax(
        torch.masked_fill(a, torch.tensor(mask), -INF), -1
    ),
    "total": lambda a, axis: torch.sum(a, axis),
    "mean": lambda a, axis: torch.mean(a, axis),
    "variance": lambda a, axis, correction=0: torch.var(a, axis, correction=correction),
    "amax": lambda a, axis: torch.amax(a, axis),
    "amin": lambda a, axis: torch.amin(a, axis),
    "softmax": lambda a, axis: torch.softmax(a, axis),
    "log_softmax": lambda a, axis: torch.log_softmax(a, axis),
    "logsumexp": lambda a, axis: torch.logsumexp(a, axis),
    "cross_entropy": cross_entropy,
    "mean_squared_error": TF.mse_loss,
    "mean_squared_error with weights": weighted_error,
    "layer_norm": lambda x, w, b, epsilon: TF.layer_norm(x, w.shape, w, b, epsilon),
    "rms_norm": lambda x, w, epsilon: TF.rms_norm(x, w.shape, w, epsilon),
    "group_norm": lambda x, w, b, epsilon: TF.group_norm(x, 1, w, b, epsilon),
    "max_pool1d": lambda x: TF.max_pool1d(x, 2),
    "max_pool1d, overlapping": lambda x: TF.max_pool1d(x, 3, 1),
    "max_pool2d": lambda x: TF.max_pool2d(x, 2),
    "avg_pool1d": lambda x: TF.avg_pool1d(x, 2),
    "avg_pool2d": lambda x: TF.avg_pool2d(x, 2),
    "global_avg_pool": lambda x: x.mean((2, 3)),
    "conv1d": TF.conv1d,
    "conv2d": TF.conv2d,
    "linear": lambda x, w, b: TF.linear(x, w.T, b),
    "matmul": torch.matmul,
    "einsum": lambda a, b: torch.einsum("ij,jk->ik", a, b),
    "embedding": lambda w, ids: TF.embedding(torch.tensor(ids, dtype=torch.int64), w),
    "index": lambda a, ids: a[torch.tensor(ids, dtype=torch.int64)],
    "attention": heads,
    "lstm": lstm,
    "self_attention": lambda x, is_causal=False: heads(
        *x.chunk(3, -1), is_causal=is_causal
    ),
    "rotary": rotary,
    "reshape": lambda a: a.reshape((3, -1) if a.numel() else (0, 4)),
    "transpose": lambda a: a.T,
    "contiguous": lambda a: a.T.contiguous(),
    "identity": lambda a: a * 1,
    "astype": lambda a: a.to({4: torch.float64, 8: torch.float32}[a.itemsize]).to(
        a.dtype
    ),
    "in_float32": torch.negative,
    "concatenate": lambda a, b: torch.cat([a, b]),
    "stack": lambda a, b: torch.stack([a, b], 1),
    "split": lambda a: torch.split(a, [2, 1], 1)[0],
}
REFUSED = {
    "amax over an empty axis": (
        "shape",
        "There is no largest element; PyTorch refuses it as well.",
    ),
    "amin over an empty axis": (
        "shape",
        "There is no smallest element; PyTorch refuses it as well.",
    ),
    "variance over an empty axis": (
        "out-of-range",
        "The mean of nothing is undefined; PyTorch gives NaN and a warning.",
    ),
    "variance of one element as a sample": (
        "out-of-range",
        "0 / 0; PyTorch gives NaN and a warning.",
    ),
    "clip between crossed bounds": (
        "out-of-range",
        "There is no such interval; PyTorch takes the upper bound for all.",
    ),
    "dropout of everything": (
        "out-of-range",
        "It would train nothing; PyTorch gives zeros.",
    ),
    "attention to no keys": (
        "shape",
        (
            "A sequence has a position; PyTorch gives zeros, as for a query that "
            "sees no key."
        ),
    ),
    "cross_entropy of no rows": (
        "shape",
        "There is no mean over nothing; PyTorch gives NaN.",
    ),
    "cross_entropy with an infinite class weight": (
        "value",
        "inf * 0 and inf / inf are NaN, as in PyTorch.",
    ),
}
IEEE = (
    "This is pow of IEEE 754, as in NumPy and C; PyTorch takes sqrt and rsqrt, which "
    "are NaN below 0."
)
CONSTANT = (
    "The result does not depend on the input there, so its gradient is 0; PyTorch "
    "multiplies inf by 0."
)
OVERFLOW = (
    "The mean square overflows to inf, so the row is divided by inf; PyTorch gets "
    "inf * 0 on the way."
)
LIMIT = "The limit of the function; PyTorch gets inf * 0 or an overflow on the way."
ROUNDING = "Deviations from the mean are exactly 0 here; PyTorch rounds the mean."
NEGLIGIBLE = (
    "A row, class or element that does not count adds nothing, whatever it holds; "
    "PyTorch multiplies it by 0."
)
MASKED = "A row that is masked whole has no gradient; PyTorch gets -inf + inf."
NOTHING = (
    "A mean over nothing that counts is 0, so that a microbatch of padding adds "
    "nothing; PyTorch gives 0 / 0."
)

_FLAT = {0: [0.0, 1.0, 0.0, -1.0], 1: [0.0] * 4, 2: [0.0] * 4}  # a layer_norm of zeros
# By case, and by array, the value first: all its elements in C order, or some by their
# positions.
DIFFERENCES: dict[str, tuple[str, dict[int, Any]]] = {
    # None: the element of the input
    "gelu": (LIMIT, {0: dict.fromkeys((10, 12, 25, 27, 40, 42))}),
    "power to 0.5": (IEEE, {1: {1: INF, 13: 0.0, 28: 0.0, 31: INF}}),
    "power to -0.5": (IEEE, {0: {1: INF, 13: 0.0, 16: INF, 28: 0.0, 31: INF, 43: 0.0}}),
    "power of 0.0": (
        CONSTANT,
        {1: {30 + i: 0.0 for i in (0, 1, 2, 4, 5, 6, 9, 10, 12)}},
    ),
    "amax with the gradient inf": (CONSTANT, {1: {0: 0.0}}),
    "amin with the gradient inf": (CONSTANT, {1: {1: 0.0, 2: 0.0}}),
    "logsumexp of -inf alone": (MASKED, {1: [0.0] * 4}),
    "logsumexp of a column": (MASKED, {1: {1: 0.0}}),
    "logsumexp of ties in columns": (MASKED, {1: {1: 0.0, 3: 0.0}}),
    "layer_norm of one of the largest, epsilon 1e-05": (OVERFLOW, _FLAT),
    "layer_norm of the largest of both signs, epsilon 1e-05": (OVERFLOW, _FLAT),
    "rms_norm of one of the largest, epsilon 1e-05": (OVERFLOW, {1: [0.0] * 4}),
    "rms_norm of the largest of both signs, epsilon 1e-05": (OVERFLOW, {1: [0.0] * 4}),
    "group_norm of constants": (ROUNDING, {0: [0.0, 0.0, 1.0, 1.0]}),
}
# By case: what does not count, an index of the inputs. The results are PyTorch's for 0
# there, with the options changed.
WITHOUT: dict[str, tuple[str, Any, dict[str, Any]]] = {
    "cross_entropy of a masked label of weight 0": (NEGLIGIBLE, 0, {}),
    "cross_entropy of a wrong row of weight 0": (NEGLIGIBLE, 0, {}),
    "cross_entropy of a wrong row, ignored": (NEGLIGIBLE, 0, {}),
    "cross_entropy of a wrong row, ignored, smoothed": (NEGLIGIBLE, 0, {}),
    "cross_entropy of a wrong row, ignored, weighted": (NEGLIGIBLE, 0, {}),
    "cross_entropy of an ignored class": (NEGLIGIBLE, 0, {}),
    "cross_entropy of all rows ignored": (NOTHING, slice(None), {"reduction": "sum"}),
    "cross_entropy of all rows ignored, a sum": (NEGLIGIBLE, slice(None), {}),
    "cross_entropy of nothing but -inf, ignored": (NEGLIGIBLE, 0, {}),
    "cross_entropy of one class": (NEGLIGIBLE, 1, {}),
    "weights [1.0, 0.0, 0.0, 0.0, 2.0]": (NEGLIGIBLE, slice(1, 4), {}),
    "weights [0.0, 0.0, 0.0, 0.0, 0.0]": (NEGLIGIBLE, slice(None), {}),
}


def described(
    dtype: str,
    name: str,
    operation: str,
    inputs: Any,
    options: dict[str, Any],
    upstream: Any,
) -> dict[str, Any]:
    """Return one case as it stands in the file, with what PyTorch computes."""
    arrays = [np.asarray(array, dtype) for array in inputs]
    found: dict[str, Any] = {"name": name, "dtype": dtype, "operation": operation}
    found["inputs"] = list(map(written, arrays))
    found["options"] = {
        key: np.asarray(value).tolist() for key, value in options.items()
    }
    if name in REFUSED:
        code, reason = REFUSED[name]
        return {**found, "refused": code, "reason": reason}
    results = computed(operation, arrays, options, upstream)
    expected, reason = results, ""
    if name in DIFFERENCES:
        reason, changes = DIFFERENCES[name]
        expected = [
            changed(array, changes.get(i, {}), arrays[0])
            for i, array in enumerate(results)
        ]
    elif name in WITHOUT:
        reason, key, others = WITHOUT[name]
        for array in (cleaned := [array.copy() for array in arrays]):
            array[key] = 0
        expected = computed(operation, cleaned, options | others, upstream)
    found["upstream"] = (
        upstream
        if isinstance(upstream, float)
        else written(np.asarray(upstream, dtype))
    )
    found["results"] = list(map(written, expected))
    theirs = list(map(written, results))
    if str(theirs) != str(found["results"]):  # as text, in which NaN is equal to NaN
        found |= {"pytorch": theirs, "reason": reason}
    return found


def computed(
    operation: str, arrays: list[np.ndarray], options: dict[str, Any], upstream: Any
) -> list[np.ndarray]:
    """Return the value and the gradients of one call in PyTorch."""
    tensors = [torch.tensor(array, requires_grad=True) for array in arrays]
    value = OPERATIONS[operation](*tensors, **options)
    value.backward(
        torch.tensor(
            np.broadcast_to(np.asarray(upstream, arrays[0].dtype), value.shape)
        )
    )
    return [value.detach().numpy(), *(tensor.grad.numpy() for tensor in tensors)]


def changed(array: np.ndarray, changes: Any, given: np.ndarray) -> np.ndarray:
    """Return an array with some elements, or all, replaced."""
    result = array.ravel().copy()
    for i, element in (
        changes.items() if isinstance(changes, dict) else enumerate(changes)
    ):
        result[i] = given.ravel()[i] if element is None else element
    return result.reshape(array.shape)


def written(array: np.ndarray) -> dict[str, Any]:
    """Return an array as its shape and its elements in C order, each with as many
    digits as its dtype needs.
    """
    return {
        "shape": list(array.shape),
        "elements": [float(str(element)) for element in array.ravel()],
    }


def main() -> None:
    """Write the file, a case on a line."""
    torch.manual_seed(0)
    found = [
        described(dtype, *case)
        for dtype in ("float32", "float64")
        for case in cases(dtype)
    ]
    lines = ",\n".join(json.dumps(each, separators=(",", ":")) for each in found)
    Path(__file__).with_name("edges.json").write_text(
        f"[\n{lines}\n]\n", encoding="utf-8"
    )
    unused = {*REFUSED, *DIFFERENCES, *WITHOUT} - {
        each["name"] for each in found if "reason" in each
    }
    print(
        f"{len(found)} cases of PyTorch {torch.__version__}; exceptions without "
        f"a case: {sorted(unused)}"
    )


if __name__ == "__main__":
    main()

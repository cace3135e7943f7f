"""Operations: each one's forward and its gradients side by side.

To add an operation, write one function that ends in ``record(result, (input, vjp), …)`` and name it here; a test
fails until it has a gradient check.
"""

from minipipe.functional import operators as operators  # attaches arithmetic to Tensor
from minipipe.functional.attention import attention, rotary, self_attention
from minipipe.functional.contraction import einsum, matmul
from minipipe.functional.elementwise import (
    add,
    divide,
    dropout,
    exp,
    log,
    multiply,
    negative,
    power,
    relu,
    sigmoid,
    silu,
    sqrt,
    subtract,
    tanh,
)
from minipipe.functional.embedding import embedding
from minipipe.functional.gelu import erf, gelu
from minipipe.functional.linear import linear
from minipipe.functional.loss import cross_entropy, log_softmax, logsumexp, mean_squared_error, softmax
from minipipe.functional.normalisation import group_norm, layer_norm, rms_norm
from minipipe.functional.operands import astype, in_float32
from minipipe.functional.recurrent import lstm
from minipipe.functional.reduction import amax, amin, mean, total, variance
from minipipe.functional.shape import (
    clip,
    concatenate,
    contiguous,
    identity,
    index,
    masked_fill,
    reshape,
    split,
    stack,
    transpose,
    where,
)
from minipipe.functional.windows import avg_pool1d, avg_pool2d, conv1d, conv2d, global_avg_pool, max_pool1d, max_pool2d
from minipipe.hints import missing

__all__ = [
    "add",
    "amax",
    "amin",
    "astype",
    "attention",
    "avg_pool1d",
    "avg_pool2d",
    "clip",
    "concatenate",
    "contiguous",
    "conv1d",
    "conv2d",
    "cross_entropy",
    "divide",
    "dropout",
    "einsum",
    "embedding",
    "erf",
    "exp",
    "gelu",
    "global_avg_pool",
    "group_norm",
    "identity",
    "in_float32",
    "index",
    "layer_norm",
    "linear",
    "log",
    "log_softmax",
    "logsumexp",
    "lstm",
    "masked_fill",
    "matmul",
    "max_pool1d",
    "max_pool2d",
    "mean",
    "mean_squared_error",
    "multiply",
    "negative",
    "power",
    "relu",
    "reshape",
    "rms_norm",
    "rotary",
    "self_attention",
    "sigmoid",
    "silu",
    "softmax",
    "split",
    "sqrt",
    "stack",
    "subtract",
    "tanh",
    "total",
    "transpose",
    "variance",
    "where",
]


def __getattr__(name: str) -> None:
    raise missing("minipipe.functional", name, __all__)

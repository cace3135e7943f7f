"""Operations: each one's forward and its gradients side by side.

To add an operation, write one function that ends in ``record(result, (input, vjp), …)`` and name it here; a test
fails until it has a gradient check.
"""

from minipipe.functional import of_numpy as of_numpy  # attaches NumPy's protocols to Tensor
from minipipe.functional import operators as operators  # attaches the arithmetic
from minipipe.functional.activation import relu, sigmoid, silu, tanh
from minipipe.functional.attention import attention, self_attention
from minipipe.functional.contraction import einsum
from minipipe.functional.convolution import conv1d, conv2d
from minipipe.functional.cross_entropy import cross_entropy
from minipipe.functional.dropout import dropout
from minipipe.functional.elementwise import (
    add,
    divide,
    exp,
    log,
    multiply,
    negative,
    power,
    sqrt,
    subtract,
)
from minipipe.functional.embedding import embedding
from minipipe.functional.error_function import erf
from minipipe.functional.gelu import gelu
from minipipe.functional.joining import concatenate, split, stack
from minipipe.functional.linear import linear, matmul
from minipipe.functional.loss import mean_squared_error
from minipipe.functional.normalisation import group_norm, layer_norm, rms_norm
from minipipe.functional.pooling import avg_pool1d, avg_pool2d, global_avg_pool, max_pool1d, max_pool2d
from minipipe.functional.precision import astype, in_float32
from minipipe.functional.recurrent import lstm
from minipipe.functional.reduction import amax, amin, mean, total, variance
from minipipe.functional.rotary import rotary
from minipipe.functional.selection import clip, masked_fill, where
from minipipe.functional.shape import contiguous, identity, index, reshape, transpose
from minipipe.functional.softmax import log_softmax, logsumexp, softmax
from minipipe.habits import FUNCTIONS, missing

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
    raise missing("minipipe.functional", name, FUNCTIONS, __all__)

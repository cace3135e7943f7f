"""Operations: each one's forward and its gradients side by side.

To add an operation, write one function that ends in ``record(result, (input, vjp), …)`` and name it here; a test
fails until it has a gradient check.
"""

from minipipe.functional import operators as operators  # attaches the arithmetic to Tensor
from minipipe.functional.elementwise import (
    add,
    divide,
    exp,
    log,
    multiply,
    negative,
    power,
    relu,
    sigmoid,
    sqrt,
    subtract,
    tanh,
)
from minipipe.functional.linear import linear, matmul
from minipipe.functional.loss import cross_entropy, log_softmax, mean_squared_error, softmax
from minipipe.functional.reduction import amax, mean, total
from minipipe.functional.shape import concatenate, contiguous, index, reshape, transpose

__all__ = [
    "add",
    "amax",
    "concatenate",
    "contiguous",
    "cross_entropy",
    "divide",
    "exp",
    "index",
    "linear",
    "log",
    "log_softmax",
    "matmul",
    "mean",
    "mean_squared_error",
    "multiply",
    "negative",
    "power",
    "relu",
    "reshape",
    "sigmoid",
    "softmax",
    "sqrt",
    "subtract",
    "tanh",
    "total",
    "transpose",
]

"""The norm of all gradients together, and how to limit it.

The norm has the same bits however the parameters are ordered, grouped or divided among ranks: each gradient's sum of
squares is computed alone, in float64, and ``math.fsum`` adds them without rounding before the end.
"""

from __future__ import annotations

from collections.abc import Iterable
from math import fsum, isfinite, sqrt

from minipipe.autograd import backend
from minipipe.autograd.backend import Array
from minipipe.errors import ArgumentError, ParameterError, RankError
from minipipe.nn.parameter import Parameter


def clip_grad_norm(parameters: Iterable[Parameter], max_norm: float) -> float:
    """Scale all gradients by the same factor, in place, so that their norm is at most ``max_norm``, up to rounding.

    Local; no messages. The parameters of one rank of a pipeline are not all of them: there, call
    :meth:`minipipe.Pipeline.clip_grad_norm`. A limit for each element needs no norm, and is local on any rank:
    ``p.grad = p.grad.clip(-1, 1)``.

    Parameters
    ----------
    parameters : iterable of Parameter
        Those without a gradient do not count.
    max_norm : float
        Above 0. ``inf`` only measures.

    Returns
    -------
    float
        The norm before clipping.

    Raises
    ------
    ArgumentError
        Code ``value``: when max_norm is not above 0.
    ParameterError
        Code ``not-finite``, when the norm is infinite or not a number. The gradients are as they were.
    RankError
        Code ``not-all-ranks``, for parameters of a pipeline over several ranks.

    References
    ----------
    Pascanu et al. 2013, "On the difficulty of training recurrent neural networks", algorithm 1.

    Examples
    --------
    >>> import numpy as np
    >>> from minipipe import nn, optim
    >>> p, q = nn.Parameter([0.0]), nn.Parameter([0.0])
    >>> p.grad, q.grad = np.array([3.0]), np.array([4.0])
    >>> optim.clip_grad_norm([p, q], max_norm=2.5)
    5.0
    >>> p.grad, q.grad
    (array([1.5]), array([2.]))
    """
    parameters = list(parameters)
    norm = gradient_norm(parameters)
    clip_gradients(parameters, norm, max_norm)
    return norm


def gradient_norm(parameters: Iterable[Parameter]) -> float:
    """Return the Euclidean norm of all gradients, as if they were one vector. Local.

    Raises
    ------
    RankError
        Code ``not-all-ranks``, for parameters of a pipeline over several ranks: each has the norm of its own only.

    Examples
    --------
    >>> import numpy as np
    >>> from minipipe import nn, optim
    >>> p, q = nn.Parameter([0.0]), nn.Parameter([0.0])
    >>> p.grad, q.grad = np.array([3.0]), np.array([4.0])
    >>> optim.gradient_norm([p, q])
    5.0
    """
    parameters = list(parameters)
    check_all_ranks(
        parameters,
        "the norm of all gradients",
        "pipeline.clip_grad_norm(max_norm), on every rank; with max_norm=inf it only measures. "
        "The norm of these alone is total_norm(squared_norms(parameters))",
    )
    return total_norm(squared_norms(parameters))


def check_all_ranks(parameters: Iterable[Parameter], wanted: str, advice: str) -> None:
    """Refuse parameters of a pipeline over several ranks where a decision is to be made from all gradients. Local.

    Raises
    ------
    RankError
        Code ``not-all-ranks``.
    """
    if any(parameter.updates is not None for parameter in parameters):
        raise RankError(
            "not-all-ranks",
            f"These parameters are one rank's part of a pipeline, and {wanted} depends on all ranks. Call {advice}.",
        )


def squared_norms(parameters: Iterable[Parameter]) -> list[float]:
    """Return the sum of the squares of each gradient, in float64. Local.

    Parameters without a gradient are left out. On a GPU all sums are under way before the first one is waited for.

    Examples
    --------
    >>> import numpy as np
    >>> from minipipe import nn, optim
    >>> p, q = nn.Parameter([0.0, 0.0]), nn.Parameter([0.0, 0.0])
    >>> p.grad = np.array([3.0, 4.0])
    >>> optim.squared_norms([p, q])
    [25.0]
    """
    sums = [_sum_of_squares(parameter.grad) for parameter in parameters if parameter.grad is not None]
    return [float(one) for one in sums]


def _sum_of_squares(gradient: Array) -> Array:
    # Not a BLAS dot product: its order of summation depends on the number of threads.
    exact = backend.as_array(backend.contiguous(gradient), backend.array_module(gradient).float64)
    return backend.reduce_sum(exact * exact)


def total_norm(squares: Iterable[float]) -> float:
    """Return the norm of all gradients from the :func:`squared_norms` of every part, in any order. Local.

    Examples
    --------
    >>> total_norm([9.0, 16.0])
    5.0
    """
    return sqrt(fsum(squares))


def clip_gradients(parameters: Iterable[Parameter], norm: float, max_norm: float) -> None:
    """Multiply the gradients by ``max_norm / norm``, in place, if ``norm`` is larger than ``max_norm``. Local.

    PyTorch divides by ``norm + 1e-6``. That is not needed here, since a norm above ``max_norm`` is not 0.

    Parameters
    ----------
    parameters : iterable of Parameter
    norm : float
        The norm of all gradients, also of those on other ranks.
    max_norm : float
        Above 0.

    Raises
    ------
    ArgumentError
        Code ``value``: when max_norm is not above 0.
    ParameterError
        Code ``not-finite``, when the norm is infinite or not a number: no factor would make such gradients useful.
        In PyTorch this is ``error_if_nonfinite=True``. The gradients are as they were.

    Examples
    --------
    Of two ranks this one has a gradient of norm 3; together they have 5.

    >>> import numpy as np
    >>> from minipipe import nn, optim
    >>> p = nn.Parameter([0.0])
    >>> p.grad = np.array([3.0])
    >>> optim.clip_gradients([p], norm=5.0, max_norm=2.5)
    >>> p.grad
    array([1.5])
    """
    if not max_norm > 0:
        raise ArgumentError("value", f"max_norm is {max_norm}; expected more than 0.")
    if not isfinite(norm):
        raise ParameterError(
            "not-finite",
            f"The norm of the gradients is {norm}, so they cannot be clipped. Use a smaller learning rate, or catch "
            "this error and leave the step out.",
        )
    if norm > max_norm:
        scale = float(max_norm) / norm
        for parameter in parameters:
            gradient = parameter.grad
            if gradient is not None:
                gradient *= scale
                parameter.grad = gradient  # where layers share it, `grad` was a new sum

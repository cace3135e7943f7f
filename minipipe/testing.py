"""Checks for tests and for coursework: are the gradients right, and is a pipelined step the same as one process?"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from minipipe.tensor import Tensor

__all__ = ["check_gradients"]


def check_gradients(
    function: Callable[..., Tensor], *arrays: np.ndarray, epsilon: float = 1e-5, tolerance: float = 1e-8
) -> None:
    """Compare the gradients of a function with central differences, in float64.

    Parameters
    ----------
    function : function
        Takes one tensor for each array and returns a tensor. Keep its inputs away from kinks (0, for ReLU).
    *arrays : array
        Where to check, of any shapes; each is converted to float64.
    epsilon : float
        How far each element is moved, up and down.
    tolerance : float
        The largest error allowed, relative to the largest gradient (or to 1, if that is larger).

    Raises
    ------
    AssertionError
        When a gradient is wrong; names the input, the element and both values.

    Examples
    --------
    >>> check_gradients(lambda x: x * x, np.array([1.0, -2.0]))
    """
    points = [np.array(array, dtype=np.float64) for array in arrays]
    tensors = [Tensor(point, requires_grad=True) for point in points]
    result = function(*tensors)
    weights = np.random.default_rng(0).standard_normal(result.shape)
    result.backward(weights)
    for number, (point, tensor) in enumerate(zip(points, tensors)):
        expected = _differences(lambda: float((function(*map(Tensor, points)).numpy() * weights).sum()), point, epsilon)
        given = np.zeros_like(point) if tensor.grad is None else tensor.grad
        scale = max(1.0, float(np.abs(expected).max(initial=0.0)))
        error = np.abs(given - expected) / scale
        if not error.max(initial=0.0) <= tolerance:
            worst = np.unravel_index(np.argmax(error), error.shape)
            place = tuple(map(int, worst))
            raise AssertionError(
                f"input {number}, element {place}: the gradient is {given[worst]!r}, "
                f"differences give {expected[worst]!r} (error {error.max():.1e}, allowed {tolerance:.1e})"
            )


def _differences(evaluate: Callable[[], float], point: np.ndarray, epsilon: float) -> np.ndarray:
    """Move each element of ``point`` up and down in place, and take the slope."""
    slope = np.zeros_like(point)
    for place in np.ndindex(point.shape):
        value = point[place]
        point[place] = value + epsilon
        up = evaluate()
        point[place] = value - epsilon
        down = evaluate()
        point[place] = value
        slope[place] = (up - down) / (2 * epsilon)
    return slope

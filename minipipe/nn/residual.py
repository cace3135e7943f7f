"""The residual connection, which deep networks of every kind are built from."""

from __future__ import annotations

from minipipe.errors import TensorError
from minipipe.nn.module import Module
from minipipe.nn.sequential import Sequential
from minipipe.tensor import Tensor, as_tensor


class Residual(Module):
    """x + layers(x): the result of the layers is added to their input.

    A pipeline cuts before and after it, not inside; a deep network is a sequence of many.

    Parameters
    ----------
    *layers : Module
        Applied one after another; the last must return the shape that the first was given.

    Raises
    ------
    TensorError
        Code ``shape``, on a call, when the layers change the shape.

    References
    ----------
    He et al. 2015, "Deep residual learning for image recognition", figure 2.

    Examples
    --------
    >>> from minipipe import nn
    >>> Residual(nn.Linear(8, 8), nn.Tanh())
    Residual(
      layers: Sequential(
        0: Linear(8, 8)
        1: Tanh()
      )
    )
    >>> import numpy as np
    >>> from minipipe import Tensor
    >>> Residual(nn.Linear(8, 8), nn.Tanh())(Tensor(np.ones((4, 8), np.float32))).shape
    (4, 8)
    """

    def __init__(self, *layers: Module) -> None:
        self.layers = Sequential(*layers)

    def forward(self, x: Tensor) -> Tensor:
        """Keep the shape."""
        x = as_tensor(x)
        change = self.layers(x)
        if change.shape != x.shape:  # adding would broadcast some of them unseen
            raise TensorError(
                "shape",
                f"Residual: the layers turn shape {x.shape} into {change.shape}, which cannot be added to the input. "
                "Make them keep the shape (as many channels or features out as in; padding = kernel_size // 2), and "
                "change it in a layer between the residual ones.",
            )
        return x + change

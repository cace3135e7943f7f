"""What a vjp returns must be a gradient of its input; NumPy would broadcast or promote anything else, in silence."""

from __future__ import annotations

from minipipe.autograd import backend
from minipipe.autograd.backend import Array
from minipipe.autograd.graph import Node, Vjp
from minipipe.errors import TensorError


def check_contribution(contribution: Array | None, parent: Node, vjp: Vjp) -> None:
    """Refuse what is no gradient of the parent's value.

    The walk asks only where shape or dtype is not the very one of the parent.

    Raises
    ------
    TensorError
        Codes ``no-gradient``, ``shape`` and ``dtype``, naming the vjp.

    Examples
    --------
    >>> import numpy as np
    >>> from minipipe import Tensor
    >>> x = Tensor([1.0, 2.0], requires_grad=True)
    >>> check_contribution(np.ones(2, np.float32), x.node, lambda g: g)
    """
    name = getattr(getattr(vjp, "func", vjp), "__qualname__", "a vjp")
    if contribution is None:
        message = f"{name} returned None; expected the gradient, an array. Is a `return` missing in that vjp?"
        raise TensorError("no-gradient", message)
    returned = f"{name} returned a gradient of"
    if parent.shape is not None and contribution.shape != parent.shape:
        message = f"{returned} shape {contribution.shape} for an input of shape {parent.shape}: a vjp must return the"
        raise TensorError("shape", f"{message} shape of its input (where that was broadcast, sum over those axes).")
    if parent.dtype is not None and backend.numpy_dtype(contribution.dtype) != backend.numpy_dtype(parent.dtype):
        message = f"{returned} {contribution.dtype} for an input of {parent.dtype}: a vjp must return the dtype of its"
        raise TensorError("dtype", f"{message} input. Convert the result, or the constant that has changed the dtype.")

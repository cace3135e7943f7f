"""Long short-term memory, as one fused operation with its own backward through time.

At time s, with the input x_s, and the hidden state h and the cell c of the previous time, both 0 at first:

    z = x_s W + h U + b                     i, f, o = sigmoid of their parts of z, and u = tanh of its part
    c_s = f * c + i * u                     h_s = o * tanh(c_s), the result

Only h U has to wait for the previous time: x W of all times is one product. Backward, dz of all times comes from a walk
back through time that needs U alone, and then each gradient is one product over all times:

    dx = dz W^T        dW = x^T dz        dU = h^T dz, with h of the previous time      db = sum of dz
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from minipipe.autograd import backend
from minipipe.autograd.backend import Array, array_module
from minipipe.errors import TensorError, shape_error
from minipipe.functional.operands import as_real, in_float32, operands
from minipipe.tensor import Tensor, record


def once(compute: Callable[[Array], Array]) -> Callable[[Array], Array]:
    """Return a function that computes an array from the gradient of a result at its first call, and keeps it.

    Most vjps are independent. The vjps of an LSTM share the walk back through time: in a split backward, the vjp of the
    input computes it in I, and the vjps of the weights only multiply in W. The captured arrays of ``compute`` are freed
    after the first call. A different gradient is refused: a graph is walked once.

    Examples
    --------
    >>> import numpy as np
    >>> shared = once(lambda g: print("computing") or 2 * g)
    >>> g = np.array([1.0, 2.0])
    >>> shared(g), shared(g)
    computing
    (array([2., 4.]), array([2., 4.]))
    """
    state: list[Any] = [compute]  # then [gradient, array]; a list, so that autograd/memory.py can search it

    def computed(g: Array) -> Array:
        if len(state) == 1:
            state[:] = [g, state[0](g)]
        if state[0] is not g:
            message = "The vjps of an operation were called with two gradients; the arrays of the first are released."
            raise TensorError("backward-twice", f"{message} Compute the result again.")
        return state[1]

    return computed


def lstm(x: Tensor, input_weight: Tensor, hidden_weight: Tensor, bias: Tensor | None = None) -> Tensor:
    """Return the hidden states of a long short-term memory at all times.

    Parameters
    ----------
    x : Tensor of shape (n, t, k)
        Sequences of t vectors.
    input_weight : Tensor of shape (k, 4 * h)
        h columns each for the input gate, the forget gate, the candidate and the output gate. This is PyTorch's order
        (i, f, g, o).
    hidden_weight : Tensor of shape (h, 4 * h)
        The same, for the hidden state of the previous time.
    bias : Tensor of shape (4 * h,), optional
        PyTorch's two biases are one here, their sum.

    Returns
    -------
    Tensor of shape (n, t, h)
        Hidden state and cell are 0 before the first time.

    Raises
    ------
    TensorError
        Codes ``shape`` and ``dtype``.

    Notes
    -----
    The graph keeps the gates and the cells, five numbers for each hidden unit and time, besides input and result. The
    vjps share the walk back through time: the first vjp that is called computes it, and from then on dz takes the place
    of gates and cells.

    References
    ----------
    Hochreiter, Schmidhuber 1997, "Long short-term memory". The forget gate: Gers, Schmidhuber, Cummins 2000, "Learning
    to forget".

    Examples
    --------
    With all weights 0 the gates are half open and there is nothing to remember.

    >>> import numpy as np
    >>> from minipipe import Tensor, functional
    >>> x, zeros = Tensor(np.ones((1, 3, 2))), np.zeros((2, 8))
    >>> functional.lstm(x, zeros, zeros).numpy().tolist()
    [[[0.0, 0.0], [0.0, 0.0], [0.0, 0.0]]]
    """
    x, input_weight = operands(x, input_weight)
    x, hidden_weight = operands(x, hidden_weight)
    x, input_weight, hidden_weight = as_real(x), as_real(input_weight), as_real(hidden_weight)
    bias = None if bias is None else operands(x, bias)[1]
    if backend.is_half(x.dtype):  # the cell adds up over time
        return in_float32(lstm, x, input_weight, hidden_weight, *(() if bias is None else (bias,)))
    _check(x, input_weight, hidden_weight, bias)
    shape, rows = x.shape, backend.reshape(x.data, (backend.prod(x.shape[:2]), x.shape[2]))
    w, u = input_weight.data, hidden_weight.data
    gates = backend.product(rows, w)
    if bias is not None:
        gates += bias.data
    gates = backend.reshape(gates, (*shape[:2], 4, u.shape[0]))
    hidden, cells, gates = _through_time(gates, u)
    gradient = once(lambda g: _back_through_time(g, gates, cells, u))

    def of_input(g: Array) -> Array:
        return backend.reshape(backend.product(gradient(g), w.T), shape)

    def of_hidden_weight(g: Array) -> Array:
        """Each hidden state but the last one met the gates of the time behind it."""
        dz = backend.reshape(gradient(g), (*shape[:2], u.shape[1]))
        num_rows = shape[0] * max(0, shape[1] - 1)
        before = backend.reshape(hidden[:, :-1, :], (num_rows, u.shape[0]))
        return backend.product(before.T, backend.reshape(dz[:, 1:, :], (num_rows, u.shape[1])))

    inputs = [
        (x, of_input),
        (input_weight, lambda g: backend.product(rows.T, gradient(g))),
        (hidden_weight, of_hidden_weight),
    ]
    if bias is not None:
        inputs.append((bias, lambda g: backend.sum_of_rows(gradient(g))))
    return record(hidden, *inputs)


@backend.one_line
def _through_time(inputs: Array, u: Array) -> tuple[Array, Array, Array]:
    """Return hidden states and cells, (n, t, h), and the open gates, (n, t, 4, h), from x W + b of that shape.

    A sigmoid is a tanh of half the size: sigmoid(z) = tanh(z / 2) / 2 + 1 / 2, so one tanh gives all four parts. A gate
    is exact to the rounding of 1; functional.sigmoid is exact to the rounding of its result.
    """
    xp, (n, t, _, h) = array_module(inputs), inputs.shape
    gates = xp.empty(inputs.shape, dtype=inputs.dtype)
    size, middle = (xp.asarray([[a], [a], [b], [a]], dtype=gates.dtype) for a, b in ((0.5, 1.0), (0.5, 0.0)))
    hidden, cells = (xp.empty((n, t, h), dtype=gates.dtype) for _ in range(2))
    last = cell = xp.zeros((n, h), dtype=gates.dtype)
    for s in range(t):
        z = inputs[:, s, :, :]
        if s:
            z = z + backend.reshape(backend.product(last, u), (n, 4, h))
        z = xp.tanh(z * size)
        z *= size
        z += middle
        gates[:, s, :, :] = z
        cell = z[:, 1, :] * cell + z[:, 0, :] * z[:, 2, :]
        last = z[:, 3, :] * xp.tanh(cell)
        hidden[:, s, :], cells[:, s, :] = last, cell
    return hidden, cells, gates


@backend.one_line
def _back_through_time(g: Array, gates: Array, cells: Array, u: Array) -> Array:
    """Return the gradient of z at all times, (n * t, 4 * h), from the gradient of the hidden states, (n, t, h)."""
    xp, (n, t, _, h) = array_module(g), gates.shape
    i, f, candidate, o = (gates[:, :, part, :] for part in range(4))
    squashed = xp.tanh(cells)
    to_cell = o * (1 - squashed * squashed)
    dz = xp.empty(gates.shape, dtype=gates.dtype)  # at first without the gradients of cell and hidden state
    dz[:, :, 0, :] = candidate * i * (1 - i)
    dz[:, :1, 1, :] = 0
    dz[:, 1:, 1, :] = cells[:, :-1, :] * f[:, 1:, :] * (1 - f[:, 1:, :])
    dz[:, :, 2, :] = i * (1 - candidate * candidate)
    dz[:, :, 3, :] = squashed * o * (1 - o)
    of_cell, of_hidden = xp.zeros((n, h), dtype=g.dtype), xp.zeros((n, h), dtype=g.dtype)  # from the time behind
    for s in reversed(range(t)):
        of_hidden = of_hidden + g[:, s, :]
        of_cell = of_cell + of_hidden * to_cell[:, s, :]
        dz[:, s, :3, :] *= of_cell[:, None, :]
        dz[:, s, 3, :] *= of_hidden
        of_cell = of_cell * f[:, s, :]
        of_hidden = backend.product(backend.reshape(dz[:, s, :, :], (n, 4 * h)), u.T)
    return backend.reshape(dz, (n * t, 4 * h))


def _check(x: Tensor, input_weight: Tensor, hidden_weight: Tensor, bias: Tensor | None) -> None:
    k, h = x.shape[-1:], hidden_weight.shape[:1]
    wide = tuple(4 * length for length in h)
    if x.ndim != 3 or hidden_weight.ndim != 2 or input_weight.shape != k + wide or hidden_weight.shape != h + wide:
        shapes = {"input": x.shape, "input_weight": input_weight.shape, "hidden_weight": hidden_weight.shape}
        raise shape_error("lstm", "(n, t, k), (k, 4 * h) and (h, 4 * h)", **shapes)
    if bias is not None and bias.shape != wide:
        raise shape_error("lstm", str(wide), bias=bias.shape)

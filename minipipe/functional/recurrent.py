"""Long short-term memory, as one fused operation with its own backward through time.

At time s, with the input x_s, and the hidden state h and the cell c of the previous
time, both 0 at first:

    z = x_s W + h U + b                     i, f, o = sigmoid of their parts of z, and u
    = tanh of its part c_s = f * c + i * u                     h_s = o * tanh(c_s), the
    result

Only h U has to wait for the previous time: x W of all times is one product. Backward,
dz of all times comes from a walk back through time that needs U alone, and then each
gradient is one product over all times:

    dx = dz W^T        dW = x^T dz        dU = h^T dz, with h of the previous time
    db = sum of dz
"""

from __future__ import annotations

from minipipe.core.autograd import backend
from minipipe.core.autograd.backend import Array, Arrays, array_module
from minipipe.core.functional.operands import as_real, operands
from minipipe.core.tensor import Operand, Tensor, op
from minipipe.errors import shape_error


def _fitting(
    x: Operand, input_weight: Operand, hidden_weight: Operand, bias: Operand | None
) -> tuple[Tensor, Tensor, Tensor, Tensor | None]:
    """Return the operands as tensors of one real dtype, whose shapes fit."""
    x, input_weight = operands(x, input_weight)
    x, hidden_weight = operands(x, hidden_weight)
    x = as_real(x)
    input_weight = as_real(input_weight)
    hidden_weight = as_real(hidden_weight)
    k = x.shape[-1:]
    h = hidden_weight.shape[:1]
    wide = tuple(4 * length for length in h)
    fits = x.ndim == 3 and hidden_weight.ndim == 2
    fits = fits and input_weight.shape == k + wide
    if not fits or hidden_weight.shape != h + wide:
        shapes = {
            "input": x.shape,
            "input_weight": input_weight.shape,
            "hidden_weight": hidden_weight.shape,
        }
        raise shape_error("lstm", "(n, t, k), (k, 4 * h) and (h, 4 * h)", **shapes)
    if bias is not None:
        _, bias = operands(x, bias)
        if bias.shape != wide:
            raise shape_error("lstm", str(wide), bias=bias.shape)
    return x, input_weight, hidden_weight, bias


@op(takes=_fitting, saves="cells gates", in_float32=True)  # the cell adds up over time
def lstm(
    x: Array, input_weight: Array, hidden_weight: Array, bias: Array | None = None
) -> Arrays:
    """Return the hidden states of a long short-term memory at all times.

    Parameters
    ----------
    x : Tensor of shape (n, t, k)
        Sequences of t vectors.
    input_weight : Tensor of shape (k, 4 * h)
        h columns each for the input gate, the forget gate, the candidate and the output
        gate. This is PyTorch's order (i, f, g, o).
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
    The graph keeps the gates and the cells, five numbers for each hidden unit and time,
    besides input and result. All gradients share dz, from one walk back through time:
    after the first half of a split backward, dz has taken the place of gates and cells.

    References
    ----------
    Hochreiter, Schmidhuber 1997, "Long short-term memory". The forget gate: Gers,
    Schmidhuber, Cummins 2000, "Learning to forget".

    Examples
    --------
    With all weights 0 the gates are half open and there is nothing to remember.

    >>> import numpy as np
    >>> from minipipe import Tensor, functional
    >>> x, zeros = Tensor(np.ones((1, 3, 2))), np.zeros((2, 8))
    >>> functional.lstm(x, zeros, zeros).numpy().tolist()
    [[[0.0, 0.0], [0.0, 0.0], [0.0, 0.0]]]
    """
    gates = backend.product(backend.rows_of(x), input_weight)
    if bias is not None:
        gates += bias
    by_gate = (*x.shape[:2], 4, hidden_weight.shape[0])
    return _through_time(backend.reshape(gates, by_gate), hidden_weight)


def _of_hidden_weight(g: Array, dz: Array, result: Array) -> Array:
    """Return its gradient: each hidden state but the last one met the gates of the time
    behind it.
    """
    dz = backend.reshape(dz, (*result.shape[:2], dz.shape[1]))
    before = backend.rows_of(result[:, :-1, :])
    return backend.product(before.T, backend.rows_of(dz[:, 1:, :]))


lstm.shared(
    dz=lambda g, gates, cells, hidden_weight: _back_through_time(
        g, gates, cells, hidden_weight
    )
)
lstm.gradients(
    x=lambda g, dz, input_weight, shape: backend.reshape(
        backend.product(dz, input_weight.T), shape
    ),
    input_weight=lambda g, dz, x: backend.product(backend.rows_of(x).T, dz),
    hidden_weight=_of_hidden_weight,
    bias=lambda g, dz: backend.sum_of_rows(dz),
)


@backend.one_line
def _through_time(inputs: Array, u: Array) -> Arrays:
    """Return hidden states and cells, (n, t, h), and the open gates, (n, t, 4, h), from
    x W + b of that shape.

    A sigmoid is a tanh of half the size: sigmoid(z) = tanh(z / 2) / 2 + 1 / 2, so one
    tanh gives all four parts. A gate is exact to the rounding of 1; functional.sigmoid
    is exact to the rounding of its result.
    """
    xp = array_module(inputs)
    (n, t, _, h) = inputs.shape
    gates = xp.empty(inputs.shape, dtype=inputs.dtype)
    size = xp.asarray([[0.5], [0.5], [1.0], [0.5]], dtype=gates.dtype)
    middle = xp.asarray([[0.5], [0.5], [0.0], [0.5]], dtype=gates.dtype)
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
        hidden[:, s, :] = last
        cells[:, s, :] = cell
    return hidden, cells, gates


@backend.one_line
def _back_through_time(g: Array, gates: Array, cells: Array, u: Array) -> Array:
    """Return the gradient of z at all times, (n * t, 4 * h), from the gradient of the
    hidden states, (n, t, h).
    """
    xp = array_module(g)
    (n, t, _, h) = gates.shape
    i, f, candidate, o = (gates[:, :, part, :] for part in range(4))
    squashed = xp.tanh(cells)
    to_cell = o * (1 - squashed * squashed)
    # at first without the gradients of cell and hidden state
    dz = xp.empty(gates.shape, dtype=gates.dtype)
    dz[:, :, 0, :] = candidate * i * (1 - i)
    dz[:, :1, 1, :] = 0
    dz[:, 1:, 1, :] = cells[:, :-1, :] * f[:, 1:, :] * (1 - f[:, 1:, :])
    dz[:, :, 2, :] = i * (1 - candidate * candidate)
    dz[:, :, 3, :] = squashed * o * (1 - o)
    # from the time behind
    of_cell = xp.zeros((n, h), dtype=g.dtype)
    of_hidden = xp.zeros((n, h), dtype=g.dtype)
    for s in reversed(range(t)):
        of_hidden = of_hidden + g[:, s, :]
        of_cell = of_cell + of_hidden * to_cell[:, s, :]
        dz[:, s, :3, :] *= of_cell[:, None, :]
        dz[:, s, 3, :] *= of_hidden
        of_cell = of_cell * f[:, s, :]
        of_hidden = backend.product(backend.reshape(dz[:, s, :, :], (n, 4 * h)), u.T)
    return backend.reshape(dz, (n * t, 4 * h))

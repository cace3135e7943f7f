"""Muon: on matrices, momentum that is made orthogonal; AdamW on all other parameters.

The momentum of a matrix has a few directions with large singular values, and many with
small ones. Muon gives all of its directions about the same length::

    gradients --> velocity V = U S W --> Newton-Schulz: about U W --> step

A matrix is read as a whole. If ranks keep parts of it, by tensor parallelism or by
full sharding, each joins the parts in the order of the ranks and takes its own part of
the step. With ``pipeline.sharded`` one of the replicas owns each matrix, computes its
step and sends the values to the others.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from functools import partial
from math import inf, sqrt
from typing import Any, ClassVar

import numpy as np

from minipipe.core.autograd import backend
from minipipe.core.autograd.backend import Array, array_module
from minipipe.core.nn.module import Module
from minipipe.core.nn.parameter import Parameter
from minipipe.core.specs import Spec
from minipipe.hints import with_hints
from minipipe.nn.layers import Embedding, PositionalEmbedding, Unembedding
from minipipe.nn.parallel import ParallelEmbedding, ParallelUnembedding
from minipipe.optim.launches import Launch
from minipipe.optim.optimiser import Optimiser, ParameterGroup
from minipipe.optim.rules import AdamW
from minipipe.optim.scaling import sum_of_squares

# of Jordan et al. 2024: steep at 0, and within about 0.3 of 1 after five iterations
_COEFFICIENTS = (3.4445, -4.7750, 2.0315)
_SMALLEST_NORM = 1e-7  # a matrix of zeros stays one
_TABLES = (
    *(Embedding, PositionalEmbedding, Unembedding),
    *(ParallelEmbedding, ParallelUnembedding),
)
_TRAINED = Spec(
    object, expected="a model or a pipeline", advice="Both have named_parameters()."
)


def _of_jordan(inputs: int, outputs: int) -> float:
    return sqrt(max(1.0, outputs / inputs))


def _of_moonlight(inputs: int, outputs: int) -> float:
    return 0.2 * sqrt(max(inputs, outputs))


_FACTORS: dict[str, Callable[[int, int], float]] = {
    "jordan": _of_jordan,
    "moonlight": _of_moonlight,
}


class Muon(AdamW):
    """Momentum with orthogonal steps on matrices, and :class:`AdamW` on the rest.

    Roughly, for a matrix: ``v = momentum * v + gradient; p -= learning_rate *
    weight_decay * p; p -= learning_rate * factor * orthogonalised(gradient + momentum *
    v)``. Local; no messages, unless ranks keep parts of a matrix: then ``step`` is
    collective among them.

    A matrix is a parameter of two axes in a group with ``orthogonal=True``. Tables of
    vectors and output layers have two axes as well, and AdamW trains them better: give
    the groups of :func:`muon_groups`. Parameters of one axis, and of three or more,
    such as the kernels of convolutions, are left to AdamW in any group.

    Parameters
    ----------
    parameters : iterable of Parameter, or of dict
        A dict is a group with its own hyper-parameters.
    learning_rate : float
        At least 0; may be changed between steps.
    momentum : float
        How much of the velocity of a matrix is kept; at least 0, below 1.
    nesterov : bool
        Whether the velocity looks ahead, as :class:`SGD` does. AdamW here never does.
    weight_decay : float
        At least 0; decoupled, for matrices and others.
    rate_by_shape : {"moonlight", "jordan"}
        The factor of a matrix from m inputs to n outputs, the shape (m, n).
        ``"moonlight"``: 0.2 sqrt(max(m, n)), after which a step is about as large as
        a step of AdamW, so that one learning rate does for both. ``"jordan"``:
        sqrt(max(1, n / m)), with learning rates near 0.02; the others then need a group
        with a rate of their own.
    num_iterations : int
        Of Newton and Schulz; at least 1.
    betas, epsilon
        As for :class:`AdamW`, of the parameters that it trains.
    orthogonal : bool
        Whether parameters of two axes are matrices. It cannot be changed afterwards.

    Raises
    ------
    ArgumentError
        Code ``value``: when a number is out of its range, or the groups are not well
        formed (see :class:`Optimiser`). Code ``type``: when an object is not a
        parameter.

    Notes
    -----
    The iterations compute in the dtype of the parameter, and in float32 for halves; the
    programs of the references take bfloat16. An attention's projections to queries,
    keys and values are one matrix here.

    References
    ----------
    Jordan et al. 2024, "Muon: an optimizer for hidden layers in neural networks", with
    the coefficients. Liu et al. 2025, "Muon is scalable for LLM training", arXiv
    2502.16982 (Moonlight), for weight decay and the factor of section 2.2.

    Examples
    --------
    Both directions of the gradient get steps of about the same length.

    >>> import numpy as np
    >>> from minipipe import nn, optim
    >>> weight = nn.Parameter(np.zeros((2, 2)))
    >>> weight.grad = np.array([[100.0, 0.0], [0.0, -1.0]])
    >>> optim.Muon([weight], 1.0, rate_by_shape="jordan").step()
    >>> weight.data.round(1)
    array([[-0.7,  0. ],
           [ 0. ,  0.7]])
    """

    __slots__ = ()
    joins_parts: ClassVar[bool] = True
    launches: ClassVar[dict[str, Launch]] = {}
    _kept_of_matrix: ClassVar[Mapping[str, float]] = {"velocity": -inf}

    def __init__(
        self,
        parameters: Iterable[Parameter] | Iterable[Mapping[str, Any]],
        learning_rate: float = 1e-3,
        momentum: float = 0.95,
        nesterov: bool = True,
        weight_decay: float = 0.1,
        rate_by_shape: str = "moonlight",
        num_iterations: int = 5,
        betas: tuple[float, float] = (0.9, 0.999),
        epsilon: float = 1e-8,
        orthogonal: bool = True,
    ) -> None:
        numbers = {
            "momentum": momentum,
            "nesterov": nesterov,
            "weight_decay": weight_decay,
            "rate_by_shape": rate_by_shape,
            "num_iterations": num_iterations,
            "betas": betas,
            "epsilon": epsilon,
            "orthogonal": orthogonal,
        }
        numbers = {"learning_rate": learning_rate, **numbers}
        Optimiser.__init__(self, parameters, **numbers)

    def takes_whole(self, parameter: Any, group: ParameterGroup) -> bool:
        """Return whether a parameter is a matrix. Local."""
        return bool(group.orthogonal) and len(parameter.whole_shape) == 2

    def kept_of(
        self, parameter: Any, group: ParameterGroup
    ) -> Mapping[str, float] | None:
        """Return ``kept`` for a parameter; a matrix keeps something else. Local."""
        if self.takes_whole(parameter, group):
            return self._kept_of_matrix
        return self.kept

    def _rule_of(self, one: Any, group: ParameterGroup) -> Callable[..., None]:
        if self.takes_whole(one, group):
            return partial(self._update_matrix, one)
        return self._update

    def _looks_ahead(self, group: ParameterGroup) -> bool:
        return False

    def _update_matrix(
        self,
        one: Parameter,
        data: Array,
        gradient: Array,
        state: dict[str, Any],
        group: ParameterGroup,
    ) -> None:
        """Change this rank's part of a matrix. Collective if ranks keep parts of it."""
        self._decay(data, gradient, group)
        if not state:
            state["velocity"] = array_module(data).zeros_like(data)
        velocity = state["velocity"]
        velocity *= group.momentum
        velocity += gradient
        direction = velocity
        if group.nesterov:
            direction = gradient + group.momentum * velocity
        whole = one.joined(direction)
        if 0 in whole.shape:
            return  # of another replica, or without elements
        step = orthogonalised(whole, group.num_iterations)
        factor = _FACTORS[group.rate_by_shape](*whole.shape)
        data -= (group.learning_rate * factor) * one.cut(step)


def orthogonalised(matrix: Array, num_iterations: int = 5) -> Array:
    """Return a matrix with the singular vectors of another, and singular values near 1.

    Local. Newton-Schulz iterations of degree five, x := a x + (b x x^T + c (x x^T)^2) x,
    apply a polynomial to the singular values and need products alone. After five of
    them values from 0.01 on, of a matrix of norm 1, are between 0.68 and 1.14; smaller
    ones are below that.

    Parameters
    ----------
    matrix : array of shape (rows, columns)
    num_iterations : int

    References
    ----------
    Jordan et al. 2024, "Muon: an optimizer for hidden layers in neural networks".

    Examples
    --------
    >>> import numpy as np
    >>> orthogonalised(np.array([[3.0, 0.0, 0.0], [0.0, 0.0, 2.0]])).round(1)
    array([[1.1, 0. , 0. ],
           [0. , 0. , 0.7]])
    """
    is_tall = matrix.shape[0] > matrix.shape[1]
    if is_tall:  # the smaller of the two products with the transpose
        matrix = backend.permuted(matrix, (1, 0))
    x = backend.contiguous(matrix)
    x = x / _norm(x)
    a, b, c = _COEFFICIENTS
    for _ in range(num_iterations):
        square = backend.product(x, backend.permuted(x, (1, 0)))
        mixed = b * square + c * backend.product(square, square)
        x = a * x + backend.product(mixed, x)
    if is_tall:
        return backend.permuted(x, (1, 0))
    return x


def _norm(matrix: Array) -> Any:
    """Return the norm of a matrix, above 0: a number; or, of a device, an array for
    which the host does not wait.
    """
    square = sum_of_squares(matrix)
    if isinstance(matrix, np.ndarray):
        return max(sqrt(float(square)), _SMALLEST_NORM)
    xp = array_module(matrix)
    return backend.as_array(
        xp.clip(xp.sqrt(square), _SMALLEST_NORM, None), matrix.dtype
    )


@with_hints
def muon_groups(
    trained: Any,
    kinds: tuple[type[Module], ...] | None = None,
    with_output: bool = False,
) -> list[dict[str, Any]]:
    """Return two groups of parameters for :class:`Muon`: matrices, and those for AdamW.

    Local. Matrices are the parameters of two axes, except in layers of some kinds,
    which are tables of vectors, and in the output layer: the last layer of the model
    with a parameter of two axes.

    Parameters
    ----------
    trained : Module or Pipeline
    kinds : tuple of type, optional
        Layers whose parameters are left to AdamW; by default embeddings, also of
        positions. A subclass counts as well.
    with_output : bool
        Whether the output layer is among the matrices.

    Returns
    -------
    list of dict
        Of a pipeline, with the parameters of this rank. Each may be given further
        hyper-parameters, such as a learning rate.

    Raises
    ------
    ArgumentError
        Code ``type``, for anything but a model and a pipeline.

    References
    ----------
    Jordan et al. 2024, "Muon: an optimizer for hidden layers in neural networks".

    Examples
    --------
    >>> from minipipe import nn, optim
    >>> model = nn.Sequential(nn.Embedding(9, 4), nn.Linear(4, 4), nn.Linear(4, 9))
    >>> model = model.initialise(0)
    >>> matrices, others = optim.muon_groups(model)
    >>> [one.shape for one in matrices["parameters"]], others["orthogonal"]
    ([(4, 4)], False)
    >>> [one.shape for one in others["parameters"]]
    [(9, 4), (4,), (4, 9), (9,)]
    >>> optimiser = optim.Muon([matrices, {**others, "learning_rate": 3e-4}])
    """
    model = trained
    if not isinstance(trained, Module):
        model = getattr(trained, "model", None)
    if not isinstance(model, Module):
        raise _TRAINED.refusal("muon_groups: trained", type(trained).__name__)
    if kinds is None:
        kinds = _TABLES
    apart = [
        one
        for each in model.modules()
        if isinstance(each, kinds)
        for one in each.parameters()
    ]
    if not with_output:
        apart += _of_output(model)
    owners = {id(one.owner) for one in apart}
    pairs = model.named_parameters()
    names = {name for name, one in pairs if id(one.owner) in owners}
    matrices: list[Parameter] = []
    others: list[Parameter] = []
    for name, one in trained.named_parameters():
        is_matrix = len(one.whole_shape) == 2 and name not in names
        (matrices if is_matrix else others).append(one)
    return [
        {"parameters": matrices},
        {"parameters": others, "orthogonal": False},
    ]


def _of_output(model: Module) -> list[Parameter]:
    """Return the matrices of the last layer that has any."""
    found: list[Parameter] = []
    for module in model.modules():
        own = [one for one in vars(module).values() if isinstance(one, Parameter)]
        found = [one for one in own if len(one.whole_shape) == 2] or found
    return found

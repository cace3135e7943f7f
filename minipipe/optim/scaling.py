"""Gradients scaled as a whole: clipped to a norm, or multiplied by a loss scale in half
precision.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from math import fsum, inf, isfinite, sqrt
from operator import imul

from minipipe.core.autograd import backend
from minipipe.core.autograd.backend import Array
from minipipe.core.autograd.host import numbers
from minipipe.core.nn.parameter import Parameter
from minipipe.core.specs import COUNT, INDEX, Spec
from minipipe.core.tensor import Tensor
from minipipe.errors import ParameterError, RankError
from minipipe.hints import Familiar, with_hints
from minipipe.nn.shards import over_parts
from minipipe.optim.state import state_of

# The norm has the same bits however the parameters are ordered, grouped or divided
# among ranks: each gradient's sum of squares is computed alone, in float64, and
# ``math.fsum`` adds them without rounding before the end.


@with_hints
def clip_grad_norm(parameters: Iterable[Parameter], max_norm: float) -> float:
    """Scale all gradients by the same factor, in place, so that their norm is at most
    ``max_norm``, up to rounding.

    Local; no messages. The parameters of one rank of a pipeline are not all of them:
    there, call :meth:`minipipe.Pipeline.clip_grad_norm`. A limit for each element needs
    no norm, and is local on any rank: ``p.grad = p.grad.clip(-1, 1)``.

    Parameters
    ----------
    parameters : iterable of Parameter
        Parameters without a gradient do not count.
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
        Code ``not-finite``, when the norm is infinite or not a number. The gradients
        are as they were.
    RankError
        Code ``disagreement``, for parameters of a pipeline over several ranks.

    References
    ----------
    Pascanu et al. 2013, "On the difficulty of training recurrent neural networks",
    algorithm 1.

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
        Code ``disagreement``, for parameters of a pipeline over several ranks: each
        rank knows only its own norm.

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
        "pipeline.clip_grad_norm(max_norm), on every rank; with max_norm=inf it only "
        "measures. The norm of these alone is total_norm(squared_norms(parameters))",
    )
    return total_norm(squared_norms(parameters))


def check_all_ranks(parameters: Iterable[Parameter], wanted: str, advice: str) -> None:
    """Refuse parameters of a pipeline over several ranks if a decision depends on all
    gradients. Local.

    Raises
    ------
    RankError
        Code ``disagreement``.
    """
    if any(parameter.updates is not None for parameter in parameters):
        raise RankError(
            "disagreement",
            f"These parameters are one rank's part of a pipeline, and {wanted} "
            f"depends on all ranks. Call {advice}.",
        )


def squared_norms(parameters: Iterable[Parameter]) -> list[float]:
    """Return the sum of the squares of each gradient, in float64. Local, unless tensor
    parallelism divides parameters.

    Parameters without a gradient are left out. A GPU is waited for once.

    Examples
    --------
    >>> import numpy as np
    >>> from minipipe import nn, optim
    >>> p, q = nn.Parameter([0.0, 0.0]), nn.Parameter([0.0, 0.0])
    >>> p.grad = np.array([3.0, 4.0])
    >>> optim.squared_norms([p, q])
    [25.0]
    """
    gradients = _gradients(parameters)
    squares: list[float] = []
    if gradients:
        squares = sums_of_squares(*gradients.values())
    return over_parts(gradients, squares)


def sums_of_squares(*arrays: Array) -> list[float]:
    """Return the sum of the squares of each array, in float64, at least one. Local; a
    device is waited for once.
    """
    return numbers(list(map(sum_of_squares, arrays)))


def sum_of_squares(gradient: Array) -> Array:
    """Return the sum of the squares of an array, in float64."""
    # Not a BLAS dot product: its order of summation depends on the number of threads.
    float64 = backend.array_module(gradient).float64
    exact = backend.as_array(backend.contiguous(gradient), float64)
    return backend.reduce_sum(exact * exact)


def total_norm(squares: Iterable[float]) -> float:
    """Return the norm of all gradients from the :func:`squared_norms` of every part, in
    any order. Local.

    Examples
    --------
    >>> total_norm([9.0, 16.0])
    5.0
    """
    return sqrt(fsum(squares))


def clip_gradients(
    parameters: Iterable[Parameter], norm: float, max_norm: float
) -> None:
    """Multiply the gradients by ``max_norm / norm``, in place, if ``norm`` is larger
    than ``max_norm``. Local.

    PyTorch divides by ``norm + 1e-6``. That is not needed here, since a norm above
    ``max_norm`` is not 0.

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
        Code ``not-finite``, when the norm is infinite or not a number: no factor would
        make such gradients useful. In PyTorch this is ``error_if_nonfinite=True``. The
        gradients are as they were.

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
    max_norm = Spec(float, above=0, maximum=inf).check("max_norm", max_norm)
    if not isfinite(norm):
        raise ParameterError(
            "not-finite",
            f"The norm of the gradients is {norm}, so they cannot be clipped. Use a "
            "smaller learning rate, or catch this error and leave the step out.",
        )
    if norm > max_norm:
        _scale(_gradients(parameters), max_norm / norm)


class LossScale(Familiar):
    """A factor of the gradients, as large as the range of float16 allows; backward
    starts with it instead of 1.

    A float16 below 6e-8 is 0, and many gradients are smaller. So they are computed
    ``value`` times as large, and divided by it in float32 before the update. After an
    overflow the update is skipped and ``value`` divided by ``factor``; after
    ``growth_interval`` updates without one it is multiplied, if it stays finite.
    Roughly::

        loss = pipeline.step(x, y, scale=scale.value)         scale.backward(loss_function(model(x), y))
        if pipeline.unscale_gradients(scale):                 if scale.unscale(model.parameters()):
            optimiser.step()                                      optimiser.step()

    bfloat16 has the range of float32, and needs none of this.

    Parameters
    ----------
    initial : float
        The first value. With a factor of 2 and a power of 2 no scale changes a bit of
        gradients in range.
    factor : float
        Above 1.
    growth_interval : int
        The number of updates without an overflow before it grows; at least 1.
    minimum : float
        Above 0. A value below it is an error.

    Attributes
    ----------
    value : float
        The scale of the next backward.
    num_good_steps : int
        How many updates there were since the value changed, or an overflow.

    Raises
    ------
    ArgumentError
        Code ``value``.

    References
    ----------
    Micikevicius et al. 2018, "Mixed precision training", section 3.2.

    Examples
    --------
    >>> import numpy as np
    >>> from minipipe import Tensor, nn, optim
    >>> model = nn.Linear(2, 1, dtype=np.float16).initialise(0)
    >>> optimiser, scale = (
    ...     optim.SGD(model.parameters(), 0.1),
    ...     optim.LossScale(1024.0, growth_interval=2),
    ... )
    >>> x, y = Tensor(np.ones((4, 2), np.float16)), Tensor(np.ones((4, 1), np.float16))
    >>> for _ in range(3):
    ...     scale.backward(nn.MSELoss()(model(x), y))
    ...     if scale.unscale(model.parameters()):
    ...         optimiser.step()
    ...     optimiser.zero_grad()
    ...     print(scale)
    LossScale(1024.0)
    LossScale(2048.0)
    LossScale(2048.0)
    """

    __slots__ = ("_factor", "_growth_interval", "_minimum", "num_good_steps", "value")

    @with_hints
    def __init__(
        self,
        initial: float = 2.0**15,
        factor: float = 2.0,
        growth_interval: int = 2000,
        minimum: float = 1.0,
    ) -> None:
        self._minimum = Spec(float, above=0).check("LossScale: minimum", minimum)
        self.value = Spec(float, minimum=minimum).check("LossScale: initial", initial)
        self.num_good_steps = 0
        self._factor = Spec(float, above=1).check("LossScale: factor", factor)
        interval = COUNT.check("LossScale: growth_interval", growth_interval)
        self._growth_interval = interval

    def backward(self, loss: Tensor) -> None:
        """Call ``loss.backward(self.value)``, without NumPy's warning if a gradient
        overflows. Local.

        Examples
        --------
        >>> from minipipe import Tensor, optim
        >>> x = Tensor(2.0, requires_grad=True)
        >>> optim.LossScale(initial=8.0).backward(x * x)
        >>> float(x.grad)
        32.0
        """
        backend.quietly(loss.backward)(self.value)

    def unscale(
        self, parameters: Iterable[Parameter], are_finite: bool | None = None
    ) -> bool:
        """Divide all gradients by the value, in place, and return whether to update;
        then adapt the value.

        Local; no messages. On several ranks all must leave out the same updates: there,
        call :meth:`minipipe.Pipeline.unscale_gradients`.

        Parameters
        ----------
        parameters : iterable of Parameter
        are_finite : bool, optional
            Whether all gradients are finite, also on other ranks; by default, whether
            these parameters' gradients are.

        Returns
        -------
        bool
            False after an overflow: then the gradients are as they were, and not to be
            used.

        Raises
        ------
        ParameterError
            Code ``not-finite``, when the value would fall below the minimum.
        RankError
            Code ``disagreement``, for parameters of a pipeline over several ranks,
            without ``are_finite``.

        Examples
        --------
        >>> import numpy as np
        >>> from minipipe import nn, optim
        >>> weight, scale = (
        ...     nn.Parameter(np.ones(1, np.float16)),
        ...     optim.LossScale(initial=8.0),
        ... )
        >>> weight.grad = np.array([2.0], np.float32)
        >>> scale.unscale([weight]), weight.grad
        (True, array([0.25], dtype=float32))
        >>> weight.grad = np.array([np.inf], np.float32)
        >>> scale.unscale([weight]), scale.value
        (False, 4.0)
        """
        gradients = _gradients(parameters)
        if are_finite is None:
            advice = "pipeline.unscale_gradients(scale), on every rank"
            check_all_ranks(gradients, "whether to update", advice)
            are_finite = parts_are_finite(gradients)
        if not are_finite:
            self._shrink()
            return False
        _scale(gradients, 1 / self.value)
        self._grow()
        return True

    def state_dict(self) -> dict[str, float]:
        """Return the value and the numbers on which its next changes depend. Local.

        Examples
        --------
        >>> from minipipe import optim
        >>> optim.LossScale(1024.0).state_dict()
        {'value': 1024.0, 'num_good_steps': 0}
        """
        return {"value": self.value, "num_good_steps": self.num_good_steps}

    def load_state_dict(self, state: Mapping[str, float]) -> None:
        """Load the result of :meth:`state_dict`. Local.

        Raises
        ------
        ArgumentError
            Code ``value``: when it is not such a state; then nothing has changed.
        """
        specs = {"value": Spec(float, minimum=self._minimum), "num_good_steps": INDEX}
        own = state_of("LossScale", state, specs)
        self.value = own["value"]
        self.num_good_steps = own["num_good_steps"]

    def _shrink(self) -> None:
        if self.value / self._factor < self._minimum:
            raise ParameterError(
                "not-finite",
                "The gradients are not finite, even at a loss scale of "
                f"{self.value:g}. The model's own values overflow, or the loss is not "
                "a number: check it, use a smaller learning rate, or float32.",
            )
        self.value = self.value / self._factor
        self.num_good_steps = 0

    def _grow(self) -> None:
        self.num_good_steps += 1
        larger = self.value * self._factor
        if self.num_good_steps >= self._growth_interval and isfinite(larger):
            self.value = larger
            self.num_good_steps = 0

    def __repr__(self) -> str:
        return f"LossScale({self.value})"


def gradients_are_finite(parameters: Iterable[Parameter]) -> bool:
    """Return whether all gradients are finite. Local.

    Examples
    --------
    >>> import numpy as np
    >>> from minipipe import nn, optim
    >>> weight = nn.Parameter(np.ones(2))
    >>> weight.grad = np.array([1.0, np.nan])
    >>> optim.gradients_are_finite([weight])
    False
    """
    gradients = _gradients(parameters)
    return not gradients or are_finite(*gradients.values())


def parts_are_finite(parameters: Iterable[Parameter]) -> bool:
    """Return the same of all parts of these parameters. Collective where tensor
    parallelism divides some of them.
    """
    parameters = list(parameters)
    is_wrong = not gradients_are_finite(parameters)
    return not any(over_parts(parameters, [float(is_wrong)] * len(parameters)))


def _gradients(parameters: Iterable[Parameter]) -> dict[Parameter, Array]:
    """Return the existing gradients, each read once: reading a shared parameter's
    gradient computes a new sum.
    """
    found = ((parameter, parameter.grad) for parameter in parameters)
    return {each: gradient for each, gradient in found if gradient is not None}


def _scale(gradients: Mapping[Parameter, Array], factor: float) -> None:
    if gradients:
        arrays = scaled(*gradients.values(), factor=factor)
        for parameter, gradient in zip(gradients, arrays):
            parameter.grad = gradient  # if layers share it, `grad` was a new sum


def scaled(*arrays: Array, factor: float) -> Sequence[Array]:
    """Multiply arrays by a number, in place; return them, at least one."""
    return [imul(array, factor) for array in arrays]


def are_finite(*arrays: Array) -> bool:
    """Return whether all elements of some arrays are finite, at least one. Local."""
    modules = ((array, backend.array_module(array)) for array in arrays)
    return all(numbers([xp.all(xp.isfinite(array)) for array, xp in modules]))

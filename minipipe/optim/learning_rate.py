"""Learning rates that change: functions of the step, and the schedule that applies
them.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from math import cos, pi
from typing import Any

from minipipe.core.specs import COUNT, INDEX, Spec
from minipipe.hints import Familiar, with_hints
from minipipe.optim.optimiser import HYPER_PARAMETERS, Optimiser
from minipipe.optim.state import state_of

Factor = Callable[[int], float]
"""From the step, counted from 0, to the factor of the learning rate."""
_FACTOR = Spec(Callable, expected="a function of the step, such as optim.cosine(1000)")
_WARMUP = INDEX._replace(advice="The warm-up is a part of num_steps.")
_FINAL = Spec(
    float, minimum=0, maximum=1, advice="It is a fraction of the learning rate."
)


class LearningRateSchedule(Familiar):
    """Sets the learning rate of every group to the group's first rate times
    ``factor(step)``.

    Local; no messages: every rank counts the same steps and computes the same rates.
    The rates of step 0 are set at once, so call ``step()`` after each
    ``optimiser.step()``. Rates that are set by hand last until the next ``step()``.

    Parameters
    ----------
    optimiser : Optimiser
        The factors multiply the learning rates of its groups.
    factor : function
        From the step, counted from 0, to a number that is at least 0:
        ``optim.cosine(1000)``, or a custom function.

    Raises
    ------
    ArgumentError
        Code ``type``: when the factor is not a function.

    Examples
    --------
    >>> from minipipe import optim
    >>> optimiser = optim.SGD([], learning_rate=0.5)
    >>> schedule = optim.LearningRateSchedule(optimiser, lambda step: 1 / (step + 1))
    >>> for _ in range(3):
    ...     print(schedule.last_step, optimiser.learning_rate)
    ...     optimiser.step()
    ...     schedule.step()
    0 0.5
    1 0.25
    2 0.16666666666666666
    """

    __slots__ = ("_factor", "_first_rates", "_last_step", "_optimiser")

    @with_hints
    def __init__(self, optimiser: Optimiser, factor: Factor) -> None:
        _FACTOR.of_class("LearningRateSchedule", factor)
        self._optimiser = optimiser
        self._factor = factor
        self._first_rates = [group.learning_rate for group in optimiser.groups]
        self._set(step=0)

    @property
    def last_step(self) -> int:
        """The step, from 0, whose learning rates were set last."""
        return self._last_step

    def step(self) -> None:
        """Set the learning rates of the next step."""
        self._set(self._last_step + 1)

    def state_dict(self) -> dict[str, Any]:
        """Return the position in the schedule, in numbers. Local.

        Examples
        --------
        >>> from minipipe import optim
        >>> schedule = optim.LearningRateSchedule(
        ...     optim.SGD([], learning_rate=0.5), optim.linear(10)
        ... )
        >>> schedule.step()
        >>> schedule.state_dict()
        {'last_step': 1, 'first_rates': [0.5]}
        """
        return {"last_step": self._last_step, "first_rates": list(self._first_rates)}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Take the result of :meth:`state_dict`, and set the learning rates of its last
        step. Local.

        Raises
        ------
        ArgumentError
            Code ``value``: when it is of another number of groups, or no such state;
            then nothing has changed.
        """
        rates = HYPER_PARAMETERS["learning_rate"]
        rates = rates._replace(length=len(self._first_rates))
        specs = {"last_step": INDEX, "first_rates": rates}
        own = state_of("LearningRateSchedule", state, specs)
        self._first_rates = list(own["first_rates"])
        self._set(own["last_step"])

    def _set(self, step: int) -> None:
        self._last_step, self._optimiser.rate_factor = step, self._factor(step)
        for group, first_rate in zip(self._optimiser.groups, self._first_rates):
            group.learning_rate = first_rate * self._optimiser.rate_factor


def constant() -> Factor:
    """Return the factor that is always 1.

    Examples
    --------
    >>> [constant()(step) for step in range(3)]
    [1.0, 1.0, 1.0]
    """
    return _one


@with_hints
def step_decay(every: int, factor: float) -> Factor:
    """Return a factor that is multiplied by ``factor`` after every ``every`` steps.

    Parameters
    ----------
    every : int
        Steps, at least 1.
    factor : float
        Above 0, at most 1.

    Raises
    ------
    ArgumentError
        Code ``value``: when a number is out of its range.

    Examples
    --------
    >>> [step_decay(every=2, factor=0.5)(step) for step in range(5)]
    [1.0, 1.0, 0.5, 0.5, 0.25]
    """
    COUNT.check("every", every)
    factor = Spec(float, above=0, maximum=1).check("factor", factor)
    return partial(_decayed, every, factor)


@with_hints
def linear(num_steps: int, warmup_steps: int = 0, final: float = 0.0) -> Factor:
    """Return a factor that falls from 1 to ``final`` along a straight line, after a
    warm-up.

    Its parameters are as in :func:`cosine`.

    Examples
    --------
    >>> [linear(4)(step) for step in range(6)]
    [1.0, 0.75, 0.5, 0.25, 0.0, 0.0]
    """
    return _annealed(_line, num_steps, warmup_steps, final)


@with_hints
def cosine(num_steps: int, warmup_steps: int = 0, final: float = 0.0) -> Factor:
    """Return a factor that falls from 1 to ``final`` along half a cosine, after a
    warm-up.

    Parameters
    ----------
    num_steps : int
        In all, the warm-up among them; at least 1. From step ``num_steps`` on the
        factor is ``final``.
    warmup_steps : int
        Through these the factor rises along a straight line: 1 / warmup_steps at step
        0, and 1 at the last of them. The next step is the first of the fall, and has 1
        too. At least 0, at most num_steps.
    final : float
        At least 0, at most 1.

    Raises
    ------
    ArgumentError
        Code ``value``: when a number is out of its range.

    References
    ----------
    Loshchilov & Hutter 2017, "SGDR: stochastic gradient descent with warm restarts",
    equation 5, without restarts. The warm-up: Goyal et al. 2017, "Accurate, large
    minibatch SGD", section 2.2.

    Examples
    --------
    >>> [cosine(6, warmup_steps=2)(step) for step in (0, 1, 2, 4, 6, 7)]
    [0.5, 1.0, 1.0, 0.5, 0.0, 0.0]
    """
    return _annealed(_half_cosine, num_steps, warmup_steps, final)


def _annealed(
    fall: Callable[[float], float], num_steps: int, warmup_steps: int, final: float
) -> Factor:
    """Return the factor that warms up, follows ``fall`` from progress 0 to progress 1,
    and stays at ``final``.
    """
    COUNT.check("num_steps", num_steps)
    _WARMUP._replace(maximum=num_steps).check("warmup_steps", warmup_steps)
    final = _FINAL.check("final", final)
    return partial(_factor_at, fall, num_steps, warmup_steps, final)


# Functions of this module rather than closures, so that a schedule can be pickled.


def _one(step: int) -> float:
    return 1.0


def _decayed(every: int, factor: float, step: int) -> float:
    return factor ** (step // every)


def _line(progress: float) -> float:
    return 1 - progress


def _half_cosine(progress: float) -> float:
    return (1 + cos(pi * progress)) / 2


def _factor_at(
    fall: Callable[[float], float],
    num_steps: int,
    warmup_steps: int,
    final: float,
    step: int,
) -> float:
    if step < warmup_steps:
        return (step + 1) / warmup_steps
    if step >= num_steps:
        return final
    progress = (step - warmup_steps) / (num_steps - warmup_steps)
    return final + (1 - final) * fall(progress)

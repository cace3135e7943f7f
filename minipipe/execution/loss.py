"""The loss of a batch: a number, with what else was asked for; and one that need not be there on every rank."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any, NoReturn

from minipipe.errors import ArgumentError
from minipipe.habits import Familiar


class BatchLoss(float, Familiar):
    """The loss of a batch: a float, with what else was asked for. The numbers are the same on every rank.

    Attributes
    ----------
    losses : tuple of float
        Of each microbatch.
    metrics : dict of str to float
        Over the microbatches, the means by the weights that the losses have; sums, where the loss is a sum.
    outputs : array of shape (samples, ...), bundle, or None
        As :meth:`minipipe.Pipeline.predict` returns them, on the ranks that were to have them.

    Examples
    --------
    >>> import numpy as np
    >>> from minipipe import Pipeline, nn, spawn
    >>> def train(group):
    ...     model = nn.Sequential(nn.Identity(), nn.Linear(2, 1, initialiser=nn.initialisers.constant(1.0)))
    ...     pipeline = Pipeline(model, group, loss=nn.MSELoss(), num_microbatches=2)
    ...     error = {"largest error": lambda outputs, targets: np.abs(outputs - targets).max()}
    ...     loss = pipeline.step(np.array([[1.0, 1.0], [2.0, 2.0]]), np.zeros((2, 1)), outputs=True, metrics=error)
    ...     return loss, loss.losses, loss.metrics, None if loss.outputs is None else loss.outputs.tolist()
    >>> for result in spawn(train, num_ranks=2):
    ...     print(result)
    (10.0, (4.0, 16.0), {'largest error': 3.0}, None)
    (10.0, (4.0, 16.0), {'largest error': 3.0}, [[2.0], [4.0]])
    """

    losses: tuple[float, ...]
    metrics: dict[str, float]
    outputs: Any

    def __new__(
        cls, loss: float, losses: Iterable[float] = (), metrics: Mapping[str, float] | None = None, outputs: Any = None
    ) -> BatchLoss:
        found = super().__new__(cls, loss)
        found.losses, found.metrics, found.outputs = tuple(losses), dict(metrics or {}), outputs
        return found

    def item(self) -> float:
        """Return the number alone, as a scalar of NumPy or PyTorch does."""
        return float(self)

    @classmethod
    def read(cls, numbers: list[float], num_microbatches: int, metrics: Iterable[str], outputs: Any) -> BatchLoss:
        """Return the loss of what :meth:`Objective.numbers` wrote, for the metrics that all ranks ask for."""
        (loss, *losses), values = numbers[: 1 + num_microbatches], numbers[1 + num_microbatches :]
        return cls(loss, losses, dict(zip(metrics, values)), outputs)


class PendingLoss(Familiar):
    """The mean loss of a step, on its way from the rank that computed it.

    ``wait()`` and ``float()`` wait for it; to print it does not. It cannot be compared or added before it is a number.

    Examples
    --------
    >>> import numpy as np
    >>> from minipipe import Pipeline, nn, spawn
    >>> def train(group):
    ...     pipeline = Pipeline(nn.Sequential(nn.Linear(2, 1)), group, loss=nn.MSELoss(), num_microbatches=2)
    ...     loss = pipeline.step(np.ones((4, 2)), np.ones((4, 1)), wait=False)
    ...     print(loss)
    ...     return float(loss) == loss.wait() > 0
    >>> spawn(train, num_ranks=1)
    <loss of step 1, pending: float() waits>
    [True]
    """

    def __init__(self, receive: Callable[[], BatchLoss], step: int) -> None:
        self._receive: Callable[[], BatchLoss] | None = receive
        self._step = step
        self._value: BatchLoss | None = None

    def wait(self) -> BatchLoss:
        """Return the loss, the same on every rank. Those of earlier steps have come by then."""
        if self._value is None and self._receive is not None:
            self._value = self._receive()
            self._receive = None  # which has the batch
        assert self._value is not None
        return self._value

    def __float__(self) -> float:
        return float(self.wait())

    item = BatchLoss.item

    def _refuse(self, *_: object) -> NoReturn:
        raise ArgumentError(
            "type",
            f"The loss of step {self._step} may still be on its way: float(loss) waits for it and is a number. "
            "To sum several: sum(map(float, losses)).",
        )

    __eq__ = __ne__ = __lt__ = __le__ = __gt__ = __ge__ = __bool__ = _refuse
    __add__ = __radd__ = __sub__ = __rsub__ = __mul__ = __rmul__ = __truediv__ = __rtruediv__ = __round__ = _refuse
    __hash__ = object.__hash__

    def __reduce__(self) -> tuple[type[float], tuple[float]]:
        return float, (float(self),)

    def __format__(self, spec: str) -> str:
        return format(float(self), spec) if spec else str(self)

    def __repr__(self) -> str:
        return f"<loss of step {self._step}, pending: float() waits>" if self._value is None else repr(self._value)

"""The loss of a step that need not be over on every rank."""

from __future__ import annotations

from typing import NoReturn

from minipipe.comm.request import Receive
from minipipe.errors import ArgumentError


class PendingLoss:
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

    def __init__(self, request: Receive, step: int) -> None:
        self._request, self._step = request, step
        self._value: float | None = None

    def wait(self) -> float:
        """Return the loss, the same on every rank. Those of earlier steps have come by then."""
        if self._value is None:
            self._value = float(self._request.wait())
        return self._value

    def __float__(self) -> float:
        return self.wait()

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
        return float, (self.wait(),)

    def __format__(self, spec: str) -> str:
        return format(self.wait(), spec) if spec else str(self)

    def __repr__(self) -> str:
        return f"<loss of step {self._step}, pending: float() waits>" if self._value is None else repr(self._value)

"""The loss of a step that need not be over on every rank."""

from __future__ import annotations

from minipipe.comm.request import Receive


class PendingLoss:
    """The mean loss of a step, on its way from the rank that computed it.

    ``wait()`` and ``float()`` wait for it; to print it does not.

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
    <loss of step 1, pending>
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

    def __format__(self, spec: str) -> str:
        return format(self.wait(), spec) if spec else str(self)

    def __repr__(self) -> str:
        return f"<loss of step {self._step}, pending>" if self._value is None else repr(self._value)

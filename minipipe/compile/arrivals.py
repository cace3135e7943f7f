"""Messages of another form than the program of a rank was recorded with.

A program is chosen before the first message of a step has come. If another rank has
frozen its parameters, say, activations come that require no gradient, and this rank has
no way to know. It has computed and sent nothing yet, since that is its first message
from the stage before, so it can begin the schedule again, without the program::

    program     RECV_F  wait: another form
    recording   RECV_F  F  SEND_F  …        the RECV_F takes the message that has come
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from minipipe.core.autograd.backend import Array
from minipipe.errors import MessageError

if TYPE_CHECKING:
    from minipipe.core.execution.executor import Executor


class Arrived:
    """A request that is over: its message has come.

    Parameters
    ----------
    message : array
    """

    def __init__(self, message: Array) -> None:
        self._message = message

    def wait(self) -> Array:
        """Return the message."""
        return self._message


class OtherForm(MessageError):
    """A value came in another form than before.

    Attributes
    ----------
    value : Value
        That the message carries.
    arrived : Arrived
    """

    def __init__(self, text: str, value: Any, message: Array) -> None:
        super().__init__("shape", text)
        self.value = value
        self.arrived = Arrived(message)


def has_run(executor: Executor) -> bool:
    """Return whether something of the schedule has run: it cannot begin once more."""
    return bool(executor.record.ran or executor.record.sent)

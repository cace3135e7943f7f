"""Messages of another form than the program of a rank was recorded with.

A rank chooses a program before the first message of a step has arrived. If another rank
has frozen its parameters, for example, the activations require no gradient, which this
rank cannot know. It has computed and sent nothing yet, because that is its first message
from the stage before, so it can begin the schedule again, without the program::

    program     RECV_F  wait: another form
    recording   RECV_F  F  SEND_F  …        the RECV_F takes the message that has arrived
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from minipipe.core.autograd.backend import Array
from minipipe.errors import MessageError

if TYPE_CHECKING:
    from minipipe.core.execution.executor import Executor


class Arrived:
    """A completed request, whose message has arrived.

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
    """Raised for a message of another form than before.

    Attributes
    ----------
    value : Value
        The value of the message.
    arrived : Arrived
    """

    def __init__(self, text: str, value: Any, message: Array) -> None:
        super().__init__("shape", text)
        self.value = value
        self.arrived = Arrived(message)


def has_run(executor: Executor) -> bool:
    """Return whether actions of the schedule have run: then it cannot begin again."""
    return bool(executor.record.ran or executor.record.sent)

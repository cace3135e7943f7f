"""Messages of another form than the program of a rank was recorded with.

A program is chosen before the first message of a step has arrived. If another rank has
frozen its parameters, say, activations come that require no gradient, and this rank has
no way to know. It has computed and sent nothing yet, since that is its first message
from the stage before, so it can begin the schedule again, without the program::

    program     RECV_F  wait: another form
    recording   RECV_F  F  SEND_F  …        the RECV_F takes the message that has come
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from minipipe.autograd.backend import Array
from minipipe.errors import MessageError

if TYPE_CHECKING:
    from minipipe.compile.recording import Form
    from minipipe.execution.executor import Executor
    from minipipe.execution.payload import Payload


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
        self.value, self.arrived = value, Arrived(message)


def arrays_of(payload: Payload, form: Form, value: Any = None) -> list[Array | None]:
    """Return the arrays of a value that another rank or an eager stage has given.

    Raises
    ------
    MessageError
        Code ``shape``: it has another form than before.
    """
    forms = [None if a is None else (a.shape, a.dtype) for a in payload.arrays]
    shapes_and_dtypes = zip(form.shapes, form.dtypes)
    expected = [None if shape is None else (shape, d) for shape, d in shapes_and_dtypes]
    requires_grad = tuple(payload.requires_grad)
    if forms == expected and (value is None or requires_grad == form.requires_grad):
        return payload.arrays
    given = [getattr(array, "shape", None) for array in payload.arrays]
    message = f"Arrays of shapes {given} came, where {list(form.shapes)} came before"
    message = f"{message}, for a batch of the same form."
    if value is None:
        raise MessageError("shape", message)
    raise OtherForm(message, value, payload.to_message())


def check_nothing_has_run(executor: Executor, error: OtherForm) -> None:
    """Raise an error again, unless the schedule can begin once more."""
    if executor.record.ran or executor.record.sent:
        raise error
    executor.group.activity.position = 0

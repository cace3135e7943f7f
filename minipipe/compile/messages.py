"""Messages of a compiled row, over channels."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from minipipe.comm import ProcessGroup
from minipipe.compile.value_form import Form
from minipipe.core.execution.executor import Route


class Message:
    """A message that is sent in every step.

    Parameters
    ----------
    value : str
        The name of the value that it carries.
    is_send : bool
    form : Form
        Its ``is_plain`` is true.
    route : Route
    group : ProcessGroup

    Attributes
    ----------
    value : str
    name : str
        The name of the channel.
    channel : SendChannel or ReceiveChannel
    names : dict of str to object
        The globals of the lines.
    """

    def __init__(
        self, value: str, is_send: bool, form: Form, route: Route, group: ProcessGroup
    ) -> None:
        (shape,), (dtype,) = form.shapes, form.dtypes
        assert shape is not None  # of a plain form
        make: Any = group.receive_channel
        verb = "receive"
        if is_send:
            make = group.send_channel
            verb = "send"
        self.value = value
        self.is_send = is_send
        self.route = route
        self.name = f"{verb}_{value}"
        self.channel = make(shape, dtype, route.peer, route.tag, route.words)
        self.names = {self.name: self.channel, f"{value}_0": self.channel.array}

    def start(self) -> str:
        """Return the line that starts to send or to receive it."""
        return f"{self.name}.start(call)"

    def wait(self) -> str:
        """Return the line that waits until it has arrived."""
        return f"{self.name}.wait()"


def sent(channel: str) -> Iterator[str]:
    """Yield the lines that wait until a channel has sent its last message."""
    yield f"if not {channel}.is_over:"
    yield f"    {channel}.wait()"

"""Messages of a compiled row, over channels.

The lines for a channel with persistent requests of MPI::

    SEND_F    head_out0_2[:] = head
              start_out0_2()
              if not test_out0_2():
                  send_out0_2.linger()

    RECV_F    own_x1_2.is_over = False
              posted[key_x1_2] = own_x1_2
              start_x1_2()

    F         own_x1_2.is_over = own_x1_2.is_over or test_x1_2(status_x1_2)
              if own_x1_2.is_over and begins_x1_2(head + form_x1_2, start_of_x1_2):
                  del posted[key_x1_2]
              else:
                  receive_x1_2.wait_in(call)

``head`` is the beginning of every header of a step.
"""

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
        self._parts: dict[str, Any] = self.channel.parts()
        self.names = {self.name: self.channel, f"{value}_0": self.channel.array}
        for part, each in self._parts.items():
            # All messages share `posted`; other parts belong to one message.
            name = part if part == "posted" else f"{part}_{value}"
            self.names[name] = each

    def start(self) -> Iterator[str]:
        """Yield the lines that start to send or to receive it."""
        value = self.value
        if not self._parts:
            yield f"{self.name}.start(call)"
        elif self.is_send:
            yield f"head_{value}[:] = head"
            yield f"start_{value}()"
            yield f"if not test_{value}():"
            yield f"    {self.name}.linger()"
        else:
            yield f"own_{value}.is_over = False"
            yield f"posted[key_{value}] = own_{value}"
            yield f"start_{value}()"

    def wait(self) -> Iterator[str]:
        """Yield the lines that wait until it has arrived."""
        value = self.value
        if not self._parts:
            yield f"{self.name}.wait()"
        else:
            is_over = f"own_{value}.is_over"
            expected = f"head + form_{value}, {self._parts['offset']}"
            yield f"{is_over} = {is_over} or test_{value}(status_{value})"
            yield f"if {is_over} and begins_{value}({expected}):"
            yield f"    del posted[key_{value}]"
            yield "else:"
            yield f"    {self.name}.wait_in(call)"


def until_sent(channel: str) -> Iterator[str]:
    """Yield the lines that wait until a channel has sent its last message."""
    yield f"if not {channel}.is_over:"
    yield f"    {channel}.wait()"

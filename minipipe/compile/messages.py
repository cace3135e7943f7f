"""Messages of a compiled row, over channels.

What is printed if a channel has parts for it, such as persistent requests of MPI::

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
    """A message of every step.

    Parameters
    ----------
    value : str
        The name of the value that it carries.
    is_send : bool
    form : Form
        A plain one.
    route : Route
    group : ProcessGroup

    Attributes
    ----------
    value : str
    name : str
        That of the channel.
    channel : SendChannel or ReceiveChannel
    names : dict of str to object
        To which the lines refer.
    """

    def __init__(
        self, value: str, is_send: bool, form: Form, route: Route, group: ProcessGroup
    ) -> None:
        (shape,), (dtype,) = form.shapes, form.dtypes
        assert shape is not None  # it is plain
        make: Any = group.send_channel if is_send else group.receive_channel
        self.value = value
        self.is_send = is_send
        self.route = route
        self.name = f"{'send' if is_send else 'receive'}_{value}"
        self.channel = make(shape, dtype, route.peer, route.tag, route.words)
        self._parts: dict[str, Any] = self.channel.parts()
        self.names = {self.name: self.channel, f"{value}_0": self.channel.array}
        for part, each in self._parts.items():
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
            own = f"own_{value}.is_over"
            expected = f"head + form_{value}, {self._parts['offset']}"
            yield f"{own} = {own} or test_{value}(status_{value})"
            yield f"if {own} and begins_{value}({expected}):"
            yield f"    del posted[key_{value}]"
            yield "else:"
            yield f"    {self.name}.wait_in(call)"


def sent(channel: str) -> Iterator[str]:
    """Yield the lines that wait until a channel has sent its last message."""
    yield f"if not {channel}.is_over:"
    yield f"    {channel}.wait()"

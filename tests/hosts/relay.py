"""A switch with slow cables: hands each Ethernet frame on after a while. ``python -m
tests.hosts.relay SECONDS PORT…``

In place of the kernel's netem, which many kernels lack. A port is a network device
whose other end is this program; network.py moves each into its host. The frames are as
they would be on a wire, and so TCP sees the delay.
"""

import fcntl
import os
import select
import struct
import sys
import time
from collections import deque
from contextlib import suppress

_TUNSETIFF = 0x400454CA  # of Linux' if_tun.h, as the two below
_TAP, _NO_INFORMATION = 0x0002, 0x1000
_LARGEST_FRAME = 1 << 16
_BATCH = 64  # frames from one port before the next has its turn
_EVERYBODY = 1  # the lowest bit of the first byte of an address


def open_port(name):
    """Make a network device; return the file that reads and writes its frames."""
    port = os.open("/dev/net/tun", os.O_RDWR | os.O_NONBLOCK)
    fcntl.ioctl(
        port, _TUNSETIFF, struct.pack("16sH22x", name.encode(), _TAP | _NO_INFORMATION)
    )
    return port


def frames_of(port):
    """Return the frames that have come in at a port."""
    found = []
    while len(found) < _BATCH:
        try:
            found.append(os.read(port, _LARGEST_FRAME))
        except BlockingIOError:
            break
    return found


def relay(ports, delay):
    """Hand frames on for ever, each to the port where its address was seen, or to all
    others.
    """
    seen, waiting = {}, deque()  # port by address; (when due, frame, from)
    while True:
        left = max(0.0, waiting[0][0] - time.perf_counter()) if waiting else None
        for port in select.select(ports, [], [], left)[0]:
            due = time.perf_counter() + delay
            for frame in frames_of(port):
                seen[frame[6:12]] = port
                waiting.append((due, frame, port))
        while waiting and waiting[0][0] <= time.perf_counter():
            _, frame, source = waiting.popleft()
            known = None if frame[0] & _EVERYBODY else seen.get(frame[:6])
            for port in ports if known is None else [known]:
                if port != source:
                    write(port, frame)


def write(port, frame):
    """Send a frame into a port. A device that is not up yet refuses it, as a cable that
    ends nowhere would lose it.
    """
    with suppress(OSError):
        os.write(port, frame)


if __name__ == "__main__":
    opened = [open_port(name) for name in sys.argv[2:]]
    print("ready", flush=True)
    with suppress(OSError):  # a port vanishes with its host
        relay(opened, float(sys.argv[1]))

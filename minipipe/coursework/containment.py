"""What kept the code of students from the grader's files, processes and network, and what it could still reach."""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

NAMESPACES = "namespaces"
LANDLOCK = "Landlock"
USER = "a user of its own"
LIMITS = "limits"
LAYERS = (NAMESPACES, LANDLOCK, USER, LIMITS)
"""Every layer that a system may have, the strongest first."""

FILES = "the grader's files"
PROCESSES = "the grader's processes"
NETWORK = "the network"
DATAGRAMS = "the network beyond TCP"
DISK = "any amount of disk space"
NUMBER = "any number of processes"
ESCAPE = "processes that outlive it"
MEMORY = "any amount of memory"
EVERYTHING = (FILES, PROCESSES, NETWORK, DISK, NUMBER, ESCAPE)


class Containment(NamedTuple):
    """How student code was contained.

    Attributes
    ----------
    layers : tuple of str
        Of ``LAYERS``, those in force.
    exposed : tuple of str
        What student code could reach or use all the same; empty where the layers close everything.

    Examples
    --------
    >>> print(Containment(("namespaces", "limits"), ()))
    contained by namespaces, limits
    >>> print(Containment(("limits",), ("the grader's files", "the network")))
    contained by limits
    warning: student code could reach the grader's files, the network; grade in a container or a virtual machine
    """

    layers: tuple[str, ...]
    exposed: tuple[str, ...]

    def __str__(self) -> str:
        said = f"contained by {', '.join(self.layers) or 'a process of its own alone'}"
        if self.exposed:
            reach = ", ".join(self.exposed)
            said += f"\nwarning: student code could reach {reach}; grade in a container or a virtual machine"
        return said


def weakest(each: Iterable[Containment]) -> Containment | None:
    """Return the layers that all have, and what any exposes; None for none at all.

    Examples
    --------
    >>> weakest([Containment(("Landlock", "limits"), ()), Containment(("limits",), ("the network",))])
    Containment(layers=('limits',), exposed=('the network',))
    """
    every = list(each)
    if not every:
        return None
    layers = [layer for layer in every[0].layers if all(layer in one.layers for one in every)]
    exposed = dict.fromkeys(what for one in every for what in one.exposed)
    return Containment(tuple(layers), tuple(exposed))

"""Schedules as data: builders, text, verifier, lowering, simulator. Standard library only.

To add a schedule, write a function ``(num_ranks, num_microbatches, …) -> Schedule`` and enter it in ``REGISTRY``.
"""

from collections.abc import Callable, Mapping
from types import MappingProxyType

from minipipe.schedules.action import Action, ActionKind
from minipipe.schedules.gpipe import gpipe
from minipipe.schedules.lowering import lower
from minipipe.schedules.one_f_one_b import interleaved_1f1b, one_f_one_b
from minipipe.schedules.schedule import Schedule
from minipipe.schedules.sequential import forward_only, sequential
from minipipe.schedules.simulator import Costs, peak_activations, simulate
from minipipe.schedules.timeline import Span, Timeline
from minipipe.schedules.verifier import verify

__all__ = [
    "REGISTRY",
    "Action",
    "ActionKind",
    "Costs",
    "Schedule",
    "Span",
    "Timeline",
    "forward_only",
    "gpipe",
    "interleaved_1f1b",
    "lower",
    "one_f_one_b",
    "peak_activations",
    "sequential",
    "simulate",
    "verify",
]

REGISTRY: Mapping[str, Callable[..., Schedule]] = MappingProxyType(
    {
        "sequential": sequential,
        "gpipe": gpipe,
        "1f1b": one_f_one_b,
        "interleaved-1f1b": interleaved_1f1b,
    }
)

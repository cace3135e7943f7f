"""Schedules as data: actions, schedules, programs, their text format, and the builders of the named schedules.

This package needs no NumPy. To add a schedule, write a function ``(num_ranks, num_microbatches, …) -> Schedule`` and
enter it in ``registry.py``. The names of ``analysis`` and ``simulation`` are available here, too; they load on demand.
"""

from typing import TYPE_CHECKING

from minipipe.lazy import names_on_demand
from minipipe.schedules.action import Action, ActionKind
from minipipe.schedules.controllable_memory import v_half, v_min
from minipipe.schedules.gpipe import gpipe
from minipipe.schedules.interleaved import interleaved_1f1b, looped_bfs
from minipipe.schedules.one_f_one_b import eager_1f1b, one_f_one_b
from minipipe.schedules.program import Program, read_schedule, schedule_of_text
from minipipe.schedules.registry import REGISTRY, TRADES, build
from minipipe.schedules.schedule import Schedule
from minipipe.schedules.sequential import forward_only, forward_only_over, one_microbatch, sequential
from minipipe.schedules.split_backward import split_backward
from minipipe.schedules.v_shaped import dualpipe_v, zb_v
from minipipe.schedules.zero_bubble import interleaved_zb, zb_h1, zb_h2

if TYPE_CHECKING:  # the names below, for editors and type checkers
    from minipipe.analysis import lower, peak_activations, theory, tick_grid, verify
    from minipipe.simulation import (
        Costs,
        Idle,
        IdleCause,
        Message,
        Span,
        Timeline,
        explain,
        greedy,
        peak_memory,
        simulate,
    )

__getattr__, __dir__, _ABOVE = names_on_demand(
    __name__,
    {
        "minipipe.analysis.theory": ["theory"],
        "minipipe.analysis": ["lower", "peak_activations", "tick_grid", "verify"],
        "minipipe.simulation": [
            *("Costs", "Idle", "IdleCause", "Message", "Span", "Timeline"),
            *("explain", "greedy", "peak_memory", "simulate"),
        ],
    },
)

__all__ = [
    "REGISTRY",
    "TRADES",
    "Action",
    "ActionKind",
    "Costs",
    "Idle",
    "IdleCause",
    "Message",
    "Program",
    "Schedule",
    "Span",
    "Timeline",
    "build",
    "dualpipe_v",
    "eager_1f1b",
    "explain",
    "forward_only",
    "forward_only_over",
    "gpipe",
    "greedy",
    "interleaved_1f1b",
    "interleaved_zb",
    "looped_bfs",
    "lower",
    "one_f_one_b",
    "one_microbatch",
    "peak_activations",
    "peak_memory",
    "read_schedule",
    "schedule_of_text",
    "sequential",
    "simulate",
    "split_backward",
    "theory",
    "tick_grid",
    "v_half",
    "v_min",
    "verify",
    "zb_h1",
    "zb_h2",
    "zb_v",
]

"""Schedules as data: builders, text, verifier, lowering, simulator. Standard library only.

To add a schedule, write a function ``(num_ranks, num_microbatches, …) -> Schedule`` and enter it in ``registry.py``.
"""

from minipipe.schedules import theory
from minipipe.schedules.action import Action, ActionKind
from minipipe.schedules.controllable_memory import v_half, v_min
from minipipe.schedules.costs import Costs
from minipipe.schedules.gpipe import gpipe
from minipipe.schedules.greedy import greedy
from minipipe.schedules.interleaved import interleaved_1f1b, looped_bfs
from minipipe.schedules.lowering import lower
from minipipe.schedules.memory import peak_activations, peak_memory
from minipipe.schedules.message import Message
from minipipe.schedules.one_f_one_b import eager_1f1b, one_f_one_b
from minipipe.schedules.order import tick_grid
from minipipe.schedules.registry import REGISTRY, TRADES, build
from minipipe.schedules.schedule import Schedule
from minipipe.schedules.sequential import forward_only, forward_only_over, one_microbatch, sequential
from minipipe.schedules.simulator import simulate
from minipipe.schedules.span import Idle, IdleCause, Span
from minipipe.schedules.split_backward import split_backward
from minipipe.schedules.timeline import Timeline
from minipipe.schedules.v_shaped import dualpipe_v, zb_v
from minipipe.schedules.verifier import verify
from minipipe.schedules.zero_bubble import interleaved_zb, zb_h1, zb_h2

__all__ = [
    "REGISTRY",
    "TRADES",
    "Action",
    "ActionKind",
    "Costs",
    "Idle",
    "IdleCause",
    "Message",
    "Schedule",
    "Span",
    "Timeline",
    "build",
    "dualpipe_v",
    "eager_1f1b",
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

"""Schedules as data: actions, schedules, programs, their text format, and the builders of the named schedules.

This package needs no NumPy. To add a schedule, write a function ``(num_ranks, num_microbatches, …) -> Schedule`` and
enter it in ``registry.py``. The names of ``analysis`` and ``simulation`` are available here, too; they load on demand.
"""

from typing import TYPE_CHECKING

from minipipe.lazy import names_on_demand
from minipipe.schedules.action import Action, ActionKind
from minipipe.schedules.controllable_memory import v_half, v_min
from minipipe.schedules.frozen import freeze_stages
from minipipe.schedules.gpipe import gpipe
from minipipe.schedules.interleaved import interleaved_1f1b, interleaved_zb, looped_bfs
from minipipe.schedules.one_f_one_b import eager_1f1b, one_f_one_b
from minipipe.schedules.program import Program, read_schedule, schedule_of_text
from minipipe.schedules.registry import REGISTRY, TRADES, build
from minipipe.schedules.repeated import repeat
from minipipe.schedules.schedule import Schedule
from minipipe.schedules.sequential import forward_only, forward_only_over, one_microbatch, sequential
from minipipe.schedules.split_backward import split_backward
from minipipe.schedules.v_shaped import dualpipe_v, zb_v
from minipipe.schedules.zero_bubble import zb_h1, zb_h2

if TYPE_CHECKING:  # the same names as below, for editors and type checkers
    from minipipe.analysis import theory
    from minipipe.analysis.activations import peak_activations
    from minipipe.analysis.lowering import lower
    from minipipe.analysis.tick_grid import tick_grid
    from minipipe.analysis.verifier import verify
    from minipipe.simulation.comparison import sweep, table
    from minipipe.simulation.costs import Costs
    from minipipe.simulation.explanation import explain
    from minipipe.simulation.greedy import greedy
    from minipipe.simulation.message import Message
    from minipipe.simulation.simulator import peak_memory, simulate
    from minipipe.simulation.span import Idle, IdleCause, Span, StepChange
    from minipipe.simulation.timeline import Timeline

__getattr__ = names_on_demand(
    __name__,
    {
        "minipipe.analysis.activations": ["peak_activations"],
        "minipipe.analysis.lowering": ["lower"],
        "minipipe.analysis.tick_grid": ["tick_grid"],
        "minipipe.analysis.verifier": ["verify"],
        "minipipe.simulation.comparison": ["sweep", "table"],
        "minipipe.simulation.costs": ["Costs"],
        "minipipe.simulation.explanation": ["explain"],
        "minipipe.simulation.greedy": ["greedy"],
        "minipipe.simulation.message": ["Message"],
        "minipipe.simulation.simulator": ["peak_memory", "simulate"],
        "minipipe.simulation.span": ["Idle", "IdleCause", "Span", "StepChange"],
        "minipipe.simulation.timeline": ["Timeline"],
    },
    modules=["minipipe.analysis.theory"],
)[0]

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
    "StepChange",
    "Timeline",
    "build",
    "dualpipe_v",
    "eager_1f1b",
    "explain",
    "forward_only",
    "forward_only_over",
    "freeze_stages",
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
    "repeat",
    "schedule_of_text",
    "sequential",
    "simulate",
    "split_backward",
    "sweep",
    "table",
    "theory",
    "tick_grid",
    "v_half",
    "v_min",
    "verify",
    "zb_h1",
    "zb_h2",
    "zb_v",
]


def __dir__() -> list[str]:
    return __all__

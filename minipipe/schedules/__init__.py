"""Schedules as data: actions, schedules, programs, their text format, and the builders of the named schedules.

This package needs no NumPy. To add a schedule, write a function ``(num_ranks, num_microbatches, …) -> Schedule`` and
enter it in ``registry.py``. The names of ``analysis``, ``simulation`` and ``search`` are available here, too. Names
load on demand.
"""

from typing import TYPE_CHECKING

from minipipe.lazy import names_on_demand

# Once a file is imported it would hide the function that is called like it; so these load first.
from minipipe.schedules.gpipe import gpipe
from minipipe.schedules.one_f_one_b import one_f_one_b
from minipipe.schedules.sequential import sequential

if TYPE_CHECKING:  # the same names as below, for editors and type checkers
    from minipipe.schedules.action import Action, ActionKind
    from minipipe.schedules.action_table import Program, Schedule, read_schedule, schedule_of_text
    from minipipe.schedules.analysis import theory
    from minipipe.schedules.analysis.activations import peak_activations
    from minipipe.schedules.analysis.bounds import lower_bound, lower_bounds
    from minipipe.schedules.analysis.lowering import lower
    from minipipe.schedules.analysis.theory import tick_grid
    from minipipe.schedules.analysis.verifier import verify
    from minipipe.schedules.analysis.workload import Objective
    from minipipe.schedules.interleaved import interleaved_1f1b, interleaved_zb, looped_bfs
    from minipipe.schedules.one_f_one_b import eager_1f1b
    from minipipe.schedules.registry import REGISTRY, TRADES, build
    from minipipe.schedules.search.certificate import Certificate
    from minipipe.schedules.search.finding import find_schedule
    from minipipe.schedules.sequential import forward_only, forward_only_over, one_microbatch
    from minipipe.schedules.simulation.comparison import sweep, table
    from minipipe.schedules.simulation.costs import Costs
    from minipipe.schedules.simulation.explanation import explain
    from minipipe.schedules.simulation.greedy import greedy
    from minipipe.schedules.simulation.simulator import peak_memory, simulate
    from minipipe.schedules.simulation.timeline import Idle, IdleCause, Message, Span, StepChange, Timeline
    from minipipe.schedules.transforms import freeze_stages, repeat, split_backward
    from minipipe.schedules.v_shaped import dualpipe_v, v_half, v_min, zb_v
    from minipipe.schedules.zero_bubble import zb_h1, zb_h2

__getattr__, __dir__, __all__ = names_on_demand(
    __name__,
    {
        "minipipe.schedules.analysis.activations": ["peak_activations"],
        "minipipe.schedules.analysis.bounds": ["lower_bound", "lower_bounds"],
        "minipipe.schedules.analysis.lowering": ["lower"],
        "minipipe.schedules.analysis.theory": ["tick_grid"],
        "minipipe.schedules.analysis.verifier": ["verify"],
        "minipipe.schedules.analysis.workload": ["Objective"],
        "minipipe.schedules.action": ["Action", "ActionKind"],
        "minipipe.schedules.v_shaped": ["dualpipe_v", "v_half", "v_min", "zb_v"],
        "minipipe.schedules.transforms": ["freeze_stages", "repeat", "split_backward"],
        "minipipe.schedules.interleaved": ["interleaved_1f1b", "interleaved_zb", "looped_bfs"],
        "minipipe.schedules.one_f_one_b": ["eager_1f1b"],
        "minipipe.schedules.action_table": ["Program", "Schedule", "read_schedule", "schedule_of_text"],
        "minipipe.schedules.registry": ["REGISTRY", "TRADES", "build"],
        "minipipe.schedules.sequential": ["forward_only", "forward_only_over", "one_microbatch"],
        "minipipe.schedules.zero_bubble": ["zb_h1", "zb_h2"],
        "minipipe.schedules.search.certificate": ["Certificate"],
        "minipipe.schedules.search.finding": ["find_schedule"],
        "minipipe.schedules.simulation.comparison": ["sweep", "table"],
        "minipipe.schedules.simulation.costs": ["Costs"],
        "minipipe.schedules.simulation.explanation": ["explain"],
        "minipipe.schedules.simulation.greedy": ["greedy"],
        "minipipe.schedules.simulation.timeline": ["Idle", "IdleCause", "Message", "Span", "StepChange", "Timeline"],
        "minipipe.schedules.simulation.simulator": ["peak_memory", "simulate"],
    },
    modules=["minipipe.schedules.analysis.theory"],
    at_once=["gpipe", "one_f_one_b", "sequential"],
)

"""When the actions of a schedule run: costs, the simulator, timelines and their explanation. No NumPy."""

from minipipe.simulation.costs import Costs
from minipipe.simulation.explanation import Explanation, explain
from minipipe.simulation.greedy import greedy
from minipipe.simulation.message import Message
from minipipe.simulation.simulator import peak_memory, simulate
from minipipe.simulation.span import Idle, IdleCause, Span
from minipipe.simulation.timeline import Timeline

__all__ = [
    "Costs",
    "Explanation",
    "Idle",
    "IdleCause",
    "Message",
    "Span",
    "Timeline",
    "explain",
    "greedy",
    "peak_memory",
    "simulate",
]

"""A rank's row as Python: one function in straight lines, which does what the
executor's loop does.

Values are variables. A value that is taken is deleted, so that memory is freed as in
the loop.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

from minipipe.core.execution.executor import Binding, Executor
from minipipe.core.values import NOUNS


def source_of(executor: Executor, calls_schedule: bool = False) -> str:
    """Return the row of a rank as the source of a function ``step(rank)``.

    Parameters
    ----------
    executor : Executor
    calls_schedule : bool
        Whether a function ``schedule(rank)`` has the lines between the frame of a step.

    Examples
    --------
    >>> from minipipe import Pipeline, init_process_group, nn
    >>> with init_process_group() as group:
    ...     pipeline = Pipeline(
    ...         nn.Sequential(nn.Linear(2, 1)),
    ...         group,
    ...         loss=nn.MSELoss(),
    ...         num_microbatches=1,
    ...     )
    >>> print(pipeline.source())
    def step(rank):  # rank 0 of 1f1b
        handshake(rank, 'HANDSHAKE')
        with rank.schedule():
            _, graph0_0 = forward(rank, '0F0')
            backward(rank, '0B0', graph0_0)
            del graph0_0
            rank.finish_sends()
            finite0 = check(rank, 'FINITE')
            deliver_loss(rank, 'LOSS', finite0)
            del finite0
    """
    lines = _lines(executor)
    if calls_schedule:
        lines = _with_schedule(lines)
    return "\n".join(lines)


def name_of(binding: Binding) -> str:
    """Return the name of a handler in the source."""
    handler: Any = binding.handler
    return getattr(handler, "__name__", binding.action.kind.lower()).lstrip("_")


def _with_schedule(lines: Iterable[str]) -> Iterator[str]:
    """Yield lines with a call instead of the schedule."""
    is_schedule = False
    for line in lines:
        if line.endswith("rank.finish_sends()"):
            is_schedule = False
        if not is_schedule:
            yield line
        if line.endswith("with rank.schedule():"):
            is_schedule = True
            yield "        schedule(rank)"


def _lines(executor: Executor) -> Iterator[str]:
    program = executor.program
    rank = executor.group.rank
    pending: set[Any] = set()
    yield f"def step(rank):  # rank {rank} of {program.name}"
    indent = "    "
    part = "before"
    for action, binding in zip(program.actions[rank], executor.bindings):
        of_rank = binding.action.kind.declaration.of_rank
        if part == "before" and not of_rank:
            yield "    with rank.schedule():"
            indent = "        "
            part = "schedule"
        elif part == "schedule" and of_rank:
            yield "        rank.finish_sends()"
            part = "after"
        arguments = ["rank", repr(str(action))]
        arguments += [
            f"wait({variable_of(v)})" if v in pending else variable_of(v)
            for v in binding.takes
        ]
        call = f"{name_of(binding)}({', '.join(arguments)})"
        yield f"{indent}{targets_of(binding)}{call}"
        if binding.takes:
            yield f"{indent}del {', '.join(map(variable_of, binding.takes))}"
        if binding.handler.__annotations__.get("return") == "Pending":
            pending.update(value for _, value in binding.gives)


def targets_of(binding: Binding) -> str:
    """Return the left side that takes a result; empty if nothing is kept."""
    if not binding.gives:
        return ""
    if binding.is_only:
        return f"{variable_of(binding.gives[0][1])} = "
    kept = {place: variable_of(value) for place, value in binding.gives}
    count = len(binding.handler.gives)  # type: ignore[attr-defined]
    return f"{', '.join(kept.get(place, '_') for place in range(count))} = "


def variable_of(value: Any) -> str:
    """Return the name of the variable of a value."""
    stage = f"{value.name.replace(' ', '_')}{value.stage}"
    return stage if NOUNS[value.name].of_rank else f"{stage}_{value.microbatch}"

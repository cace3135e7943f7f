"""The arguments of a pipeline on all ranks: they are compared before any of them
decides about a message.
"""

from __future__ import annotations

from collections.abc import Mapping
from inspect import signature
from pathlib import Path
from typing import Any

import numpy as np

from minipipe.comm import Grid, ProcessGroup
from minipipe.comm.agreement import check_agreement
from minipipe.core.specs import FLAG, Spec
from minipipe.execution.checks.comparison import check_program
from minipipe.execution.checks.description import description
from minipipe.execution.plan import Plan
from minipipe.pipeline.options import KEYWORDS, PipelineOptions, apart, checked
from minipipe.pipeline.planning import Planned, Stages, planned
from minipipe.schedules import REGISTRY, Program, Schedule
from minipipe.schedules.registry import NUM_MICROBATCHES, spelled

_TOGETHER = {
    "schedule": ("num_microbatches", "chunks_per_rank"),
    "partition": ("layer_costs",),
}
_GROUP = Spec(
    ProcessGroup | Grid,
    expected="the group that init_process_group() returns, or a Grid of it",
)
_OPTIONS = [*apart(dict.fromkeys(PipelineOptions.__annotations__))[1]]
_DEFAULTS = {name: one.default for name, one in signature(Plan).parameters.items()}


def agreed(
    model: Any, group: ProcessGroup | Grid, options: Mapping[str, Any], pipeline: type
) -> Planned:
    """Return the result of :func:`planned`, the same on all ranks.

    Collective. Arguments are compared before any is checked, so that no rank waits for
    one whose argument was refused; and then their results: the actions of a file, the
    layers of each stage.

    Parameters
    ----------
    model : Sequential, Plan or Stages
    group : ProcessGroup or Grid
    options : mapping
        All keywords of the pipeline itself; options of the plan, and of the functions
        that measure one.
    pipeline : type
        Makes the pipelines that are measured.

    Raises
    ------
    RankError
        Code ``disagreement``, on every rank.
    ArgumentError
        Codes ``value`` and ``type``; and the errors of :func:`planned`.
    """
    own, others = apart(options)
    compares = _compare(model, group, own, others)
    found = planned(model, group, checked(own), others, pipeline)
    everyone = _everyone_on(group)
    if everyone.size > 1:
        results = found.plan.description.items()
        texts = {name: description(value, name) for name, value in results}
        check_agreement(everyone, texts)
    return found._replace(compares=compares)


def _everyone_on(group: ProcessGroup | Grid) -> ProcessGroup:
    _GROUP.of_class("Pipeline", group)
    return group.group if isinstance(group, Grid) else group


def _compare(
    model: Any,
    group: ProcessGroup | Grid,
    own: Mapping[str, Any],
    options: Mapping[str, Any],
) -> bool:
    """Compare the arguments of a pipeline on all ranks; return whether first values and
    calls are compared from now on.

    Arguments that determine messages are compared in any case, the others if
    ``check_agreement`` is true.
    """
    everyone = _everyone_on(group)
    # Like any wrong keyword, a wrong value is refused after the comparison.
    is_asked = FLAG.allows(own["check_agreement"]) and bool(own["check_agreement"])
    if everyone.size == 1:
        return check_program(everyone, is_asked, {})
    described = model.modules if isinstance(model, Stages) else model
    values = {"model": model.model if isinstance(model, Plan) else described}
    always = {
        "group": f"group: a {'Grid' if isinstance(group, Grid) else 'ProcessGroup'}",
        "plan": f"plan: {'given' if isinstance(model, Plan) else 'made of the options'}",
        **_options(options),
    }
    for name, keyword in KEYWORDS.items():
        if keyword.determines_messages:
            always[name] = description(_plain(own[name]), name)
        elif name != "check_agreement":  # compared as what it decides about
            values[name] = _plain(own[name])
    return check_program(everyone, is_asked, values, always)


def _options(given: Mapping[str, Any]) -> dict[str, str]:
    """Return descriptions of options, by what they affect: the same names on all ranks,
    whatever the arguments.
    """
    found = {name: given.get(name, _DEFAULTS.get(name)) for name in _OPTIONS}
    found["schedule"] = schedule = _described(found["schedule"])
    if (
        found["num_microbatches"] is None
        and isinstance(schedule, str)
        and schedule in REGISTRY
    ):
        found["num_microbatches"] = NUM_MICROBATCHES
    found.pop("sample")  # only one rank needs it
    # rank 0 prints; others may differ
    found["progress"] = "default" if found["progress"] is None else "given"
    texts = {name: description(_plain(value), name) for name, value in found.items()}
    # first: other numbers may follow from it
    texts = {"replicas": texts.pop("replicas"), **texts}
    for name, others in _TOGETHER.items():
        texts[name] = "\n".join([texts[name], *map(texts.pop, others)])
    unknown = [
        description(value, name)
        for name, value in sorted(given.items())
        if name not in _OPTIONS
    ]
    return {**texts, "options": "\n".join(["other options", *unknown])}


def _plain(value: Any) -> Any:
    """Return an argument as it is compared: numbers as Python's, sequences as lists,
    since both mean the same here.
    """
    if isinstance(value, np.generic | np.ndarray):
        return value.tolist()
    return (
        [_plain(item) for item in value] if isinstance(value, tuple | list) else value
    )


def _described(schedule: Any) -> Any:
    """Return the compared properties of a schedule: its name, or the rows of a table. A
    file is compared once read.
    """
    schedule = spelled(schedule)
    if isinstance(schedule, Schedule | Program):
        return str(schedule).splitlines()
    is_file = isinstance(schedule, Path) or (
        isinstance(schedule, str) and schedule.endswith((".csv", ".txt"))
    )
    return "a file" if is_file else schedule

"""The arguments of a pipeline on all ranks: they are compared before any of them
decides about a message.
"""

from __future__ import annotations

from collections.abc import Mapping
from inspect import Parameter, signature
from pathlib import Path
from typing import Any

import numpy as np

from minipipe.comm import Grid, ProcessGroup
from minipipe.comm.agreement import check_agreement
from minipipe.execution.checks.comparison import check_program
from minipipe.execution.checks.description import description
from minipipe.execution.plan import Plan
from minipipe.pipeline.options import PlanOptions
from minipipe.pipeline.planning import Planned, planned
from minipipe.schedules import REGISTRY, Program, Schedule
from minipipe.schedules.registry import NUM_MICROBATCHES, spelled
from minipipe.specs import Spec

_TOGETHER = {
    "schedule": ("num_microbatches", "chunks_per_rank"),
    "partition": ("layer_costs",),
}
_GROUP = Spec(
    ProcessGroup | Grid,
    expected="the group that init_process_group() returns, or a Grid of it",
)
_DEFAULTS = {name: one.default for name, one in signature(Plan).parameters.items()}


def agreed(
    model: Any,
    group: ProcessGroup | Grid,
    options: Mapping[str, Any],
    pipeline: type,
    run: Mapping[str, Any],
    **more: Any,
) -> Planned:
    """Return the result of :func:`planned`, the same on all ranks.

    Collective. Arguments are compared first, and then their results: the actions of a
    file, the layers of each stage.

    Parameters
    ----------
    model, group, options, pipeline, run
        As for :func:`planned`; ``run`` has the keywords of the pipeline itself.
    **more
        Keywords that have no effect on a plan, such as ``check_agreement``.

    Raises
    ------
    RankError
        Code ``disagreement``, on every rank; and the errors of :func:`planned`.
    """
    compares = compare_options(model, group, options, {**run, **more})
    found = planned(model, group, options, pipeline, **run)
    everyone = _everyone_on(group)
    if everyone.size > 1:
        check_agreement(
            everyone,
            {
                name: description(value, name)
                for name, value in found.plan.description.items()
            },
        )
    return found._replace(compares=compares)


def _everyone_on(group: ProcessGroup | Grid) -> ProcessGroup:
    _GROUP.of_class("Pipeline", group)
    return group.group if isinstance(group, Grid) else group


def compare_options(
    model: Any,
    group: ProcessGroup | Grid,
    options: Mapping[str, Any],
    keywords: Mapping[str, Any],
) -> bool:
    """Compare the arguments of a pipeline on all ranks; return whether first values and
    calls are compared from now on.

    Collective. Arguments are compared before any is checked, so that no rank waits for
    one whose argument was refused. Arguments that determine messages are compared in
    any case, the others if ``check_agreement`` is true.

    Parameters
    ----------
    model : Sequential, Plan, or list of Module
    group : ProcessGroup or Grid
    options : mapping
        Options of the plan, and of the functions that measure one.
    keywords : mapping
        All keywords of the pipeline itself, by name.

    Raises
    ------
    RankError
        Code ``disagreement``, on every rank.
    """
    everyone, is_asked = _everyone_on(group), keywords["check_agreement"]
    if everyone.size == 1:
        return check_program(everyone, is_asked, {})
    values = {"model": model.model if isinstance(model, Plan) else model}
    values |= {name: keywords[name] for name in ("loss", "loss_weight")}
    values |= {name: _plain(keywords[name]) for name in ("seed", "dropout_seed")}
    others = {
        name: value
        for name, value in keywords.items()
        if name not in (*values, "check_agreement")
    }
    is_grid, is_planned = isinstance(group, Grid), isinstance(model, Plan)
    always = {"group": "group: a Grid" if is_grid else "group: a ProcessGroup"}
    always |= {
        "plan": "plan: given" if is_planned else "plan: made of the options",
        **_options(options),
    }
    always |= {name: description(_plain(value), name) for name, value in others.items()}
    return check_program(everyone, is_asked, values, always)


def of_modules(
    pipeline: type, given: Mapping[str, Any]
) -> tuple[dict[str, Any], dict[str, Any]]:
    """Return the keywords of the pipeline itself, with defaults for those that were
    left out; and the other options.
    """
    parameters = signature(pipeline).parameters.values()
    own = [one for one in parameters if one.kind is Parameter.KEYWORD_ONLY]
    keywords = {
        one.name: given.get(one.name, one.default)
        for one in own
        if one.name not in PlanOptions.__annotations__
    }
    return keywords, {
        name: value for name, value in given.items() if name not in keywords
    }


def _options(given: Mapping[str, Any]) -> dict[str, str]:
    """Return descriptions of options, by what they affect: the same names on all ranks,
    whatever the arguments.
    """
    found = {
        name: given.get(name, _DEFAULTS.get(name))
        for name in PlanOptions.__annotations__
    }
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
        if name not in PlanOptions.__annotations__
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

"""The options of a pipeline by name and type, for type checkers, editors and
``help``.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from inspect import Parameter, signature
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Any, Literal, TypedDict, TypeVar

from minipipe.execution.objective import Loss, Metric, Weight, Where
from minipipe.schedules.action_table import Program, Schedule

if TYPE_CHECKING:
    from minipipe.tuning.memory import MakeOptimiser

Taking = TypeVar("Taking", bound=Callable[..., Any])


class PlanOptions(TypedDict, total=False):
    """Keywords of :class:`minipipe.Pipeline` other than its own: for a plan, and for
    the functions that measure one.
    """

    schedule: str | Path | Schedule | Program
    num_microbatches: int | None
    chunks_per_rank: int | None
    partition: Sequence[range] | Literal["measured"] | None
    layer_costs: Sequence[float] | None
    inputs_require_grad: bool
    replicas: int
    gradient_blocks: int | None
    sample: tuple[Any, Any] | None
    memory_limit: float | str | None
    optimiser: MakeOptimiser | None
    progress: bool | None


class ModulesOptions(TypedDict, total=False):
    """Keywords of :meth:`minipipe.Pipeline.from_modules`: keywords of the pipeline
    itself, and two of its plan.
    """

    loss: Loss | None
    seed: int
    dropout_seed: int | None
    recompute: bool
    stack_weight_gradients: bool
    loss_weight: Weight | None
    device: str | ModuleType
    check_finite: Literal["stop", "warn", "off"]
    check_agreement: bool
    compile: bool | Literal["where-possible"]
    num_microbatches: int | None
    inputs_require_grad: bool
    replicas: int


class Asked(TypedDict, total=False):
    """Further keywords of :meth:`Pipeline.step`; for type checkers."""

    outputs: Where
    metrics: Mapping[str, Metric] | None
    accumulate: bool
    scale: float


def showing(options: type, *like: Callable[..., Any]) -> Callable[[Taking], Taking]:
    """Return a decorator: a function with ``**options`` shows each of them in its
    signature.

    ``help`` and notebooks read the signature; type checkers and editors read the
    TypedDict. Keywords with defaults would not show which of them the caller passed,
    and a plan excludes them all.

    Parameters
    ----------
    options : type
        A TypedDict.
    *like : function
        Functions whose defaults are shown; None for an option that none of them has.
    """
    defaults = {
        name: one.default
        for function in like
        for name, one in signature(function).parameters.items()
    }

    def decorated(function: Taking) -> Taking:
        shown = signature(function)
        own = [
            one
            for one in shown.parameters.values()
            if one.kind is not Parameter.VAR_KEYWORD
        ]
        more = [
            Parameter(
                name,
                Parameter.KEYWORD_ONLY,
                default=defaults.get(name),
                annotation=kind.__forward_arg__,
            )
            for name, kind in options.__annotations__.items()
        ]
        vars(function)["__signature__"] = shown.replace(parameters=[*own, *more])
        return function

    return decorated

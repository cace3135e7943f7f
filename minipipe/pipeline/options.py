"""The keywords of a pipeline: one table, with defaults and legal values; and their
types, for type checkers, editors and ``help``.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from inspect import Parameter, signature
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, TypedDict, TypeVar

from minipipe.core.schedules.action_table import Program, Schedule
from minipipe.core.specs import FLAG, INDEX, Spec
from minipipe.errors import warn_caller
from minipipe.execution.objective import Loss, Metric, Weight, Where

if TYPE_CHECKING:
    from minipipe.tuning.memory import MakeOptimiser

_Partitions = Literal["measured", "vocabulary", "vocabulary-one-barrier"]
Taking = TypeVar("Taking", bound=Callable[..., Any])


class ModulesOptions(TypedDict, total=False):
    """Keywords of :meth:`minipipe.Pipeline.from_modules`: the pipeline's own, see
    :data:`KEYWORDS`, and three of its plan.
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


class MeasuringOptions(TypedDict, total=False):
    """Keywords of :class:`minipipe.Pipeline` for the functions that measure a model."""

    sample: tuple[Any, Any] | None
    memory_limit: float | str | None
    optimiser: MakeOptimiser | None
    progress: bool | None


class PipelineOptions(ModulesOptions, MeasuringOptions, total=False):
    """All keywords of :class:`minipipe.Pipeline`; these partition a model."""

    schedule: str | Path | Schedule | Program
    chunks_per_rank: int | None
    partition: Sequence[range] | _Partitions | None
    layer_costs: Sequence[float] | None
    gradient_blocks: int | None


class Asked(TypedDict, total=False):
    """Further keywords of :meth:`Pipeline.step`; for type checkers."""

    outputs: Where
    metrics: Mapping[str, Metric] | None
    accumulate: bool
    scale: float


class Keyword(NamedTuple):
    """A keyword of a pipeline itself.

    Attributes
    ----------
    default : Any
    spec : Spec, optional
        The legal values; None if a function that uses the value says more about it.
    determines_messages : bool
        Whether ranks compare it even with ``check_agreement=False``.
    """

    default: Any
    spec: Spec | None = None
    determines_messages: bool = True


KEYWORDS = {
    "loss": Keyword(None, determines_messages=False),
    "loss_weight": Keyword(
        None,
        Spec(Callable | None, expected="a function of the targets, or None"),
        determines_messages=False,
    ),
    "seed": Keyword(0, INDEX, determines_messages=False),
    "dropout_seed": Keyword(None, INDEX, determines_messages=False),
    "recompute": Keyword(False, FLAG),
    "stack_weight_gradients": Keyword(False, FLAG),
    "device": Keyword("cpu"),
    "check_finite": Keyword("stop", Spec(choices=("stop", "warn", "off"))),
    "check_agreement": Keyword(True, FLAG, determines_messages=False),
    "compile": Keyword(
        False,
        Spec(
            choices=(True, False, "where-possible"),
            advice="True refuses what cannot be compiled, 'where-possible' runs it "
            "eagerly, False runs everything eagerly.",
        ),
    ),
}
"""The keywords of a pipeline itself; :class:`minipipe.Plan` has and checks the others."""


def in_full(given: Mapping[str, Any]) -> dict[str, Any]:
    """Return the options of a pipeline, with the defaults of its own keywords.

    ``replay``, the name of ``compile`` until this release, is replaced:
    ``replay=True`` means ``compile="where-possible"``, unless ``compile`` was given as
    well; ``replay=False`` has no effect.

    Raises
    ------
    ArgumentError
        Code ``type``, for a ``replay`` that is no truth value.
    """
    options = {name: keyword.default for name, keyword in KEYWORDS.items()}
    options.update(given)
    if options["dropout_seed"] is None:
        options["dropout_seed"] = options["seed"]
    if "replay" in options and FLAG._replace(code="type").check(
        "replay", options.pop("replay")
    ):
        warn_caller(
            'replay=True is now compile="where-possible"; the next release takes no '
            "replay=.",
            DeprecationWarning,
        )
        options["compile"] = options["compile"] or "where-possible"
    return options


def apart(options: Mapping[str, Any]) -> tuple[dict[str, Any], dict[str, Any]]:
    """Return the keywords of the pipeline itself, and the other options."""
    own = {name: options[name] for name in KEYWORDS}
    others = {name: one for name, one in options.items() if name not in KEYWORDS}
    return own, others


def checked(own: Mapping[str, Any]) -> dict[str, Any]:
    """Return the keywords of a pipeline; refuse values that :data:`KEYWORDS` lacks.

    Raises
    ------
    ArgumentError
        Code ``value``.

    Examples
    --------
    >>> checked({**in_full({}), "compile": "where_possible"})
    Traceback (most recent call last):
    minipipe.errors.ArgumentError: compile is 'where_possible'; expected True, False...
    """
    specs = {name: keyword.spec for name, keyword in KEYWORDS.items()}
    return {
        name: own[name] if spec is None else spec.check(name, own[name])
        for name, spec in specs.items()
    }


def showing(options: type, plan: type) -> Callable[[Taking], Taking]:
    """Return a decorator: a function with ``**options`` shows each of them in its
    signature.

    ``help`` and notebooks read the signature; type checkers and editors read the
    TypedDict. Keywords with defaults would not show which of them the caller passed,
    and a plan excludes those that make another one.

    Parameters
    ----------
    options : type
        A TypedDict.
    plan : type
        Takes some of the options, and has their defaults; the default is None for an
        option that neither it nor :data:`KEYWORDS` has.
    """
    defaults = {name: one.default for name, one in signature(plan).parameters.items()}
    defaults |= {name: keyword.default for name, keyword in KEYWORDS.items()}

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

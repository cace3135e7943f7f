"""Hints in errors: the equivalents here of names of other libraries, PyTorch's above all, or the closest name.

The names are data, in ``hints.toml``. It is read when the first error needs it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from functools import cache
from inspect import Parameter, signature
from typing import TYPE_CHECKING, Any, NoReturn

from minipipe.errors import ArgumentError, quoted


@cache
def _tables() -> dict[str, Any]:
    import tomllib  # what only errors need is imported with the first
    from importlib.resources import files

    return tomllib.loads((files("minipipe") / "hints.toml").read_text(encoding="utf-8"))


def _by_name(table: Mapping[str, str]) -> dict[str, str]:
    return {name: text.replace("{name}", name) for names, text in table.items() for name in names.split()}


def equivalents(table: str) -> dict[str, str]:
    """Return a table of ``hints.toml``, with one name as each key.

    Examples
    --------
    >>> equivalents("keywords")["lr"]
    'learning_rate'
    """
    return _by_name(_tables()[table])


@cache
def instead_of(owner: str) -> Mapping[str, str]:
    """Return the equivalents of attributes that a class or a package does not have; none for an unknown owner.

    Examples
    --------
    >>> instead_of("Tensor")["numel"]
    'x.size'
    """
    return next((_by_name(table) for owners, table in _tables()["instead"].items() if owner in owners.split()), {})


class Familiar:
    """A class whose missing attributes raise an error with a hint."""

    __slots__ = ()

    if not TYPE_CHECKING:  # a type checker is to report a missing attribute

        def __getattr__(self, name: str) -> NoReturn:
            # Reached only when the normal look-up found nothing.
            if hasattr(type(self), name):  # a property that failed: again, for its own error
                return object.__getattribute__(self, name)
            # NumPy, copy and pickle ask every object for private names: no tables and no directory for them.
            known = [] if name.startswith("_") else dir(self)
            raise missing(type(self).__name__, name, known, *(kind.__name__ for kind in type(self).__mro__))


class FamiliarPipeline(Familiar):
    """A pipeline that is called raises an error with a hint."""

    __slots__ = ()

    def __call__(self, *arrays: Any, **options: Any) -> NoReturn:
        """Refuse to be called."""
        raise ArgumentError("name", f"A pipeline is not called; instead: {instead_of('Pipeline')['__call__']}.")


def missing(owner: str, name: str, known: Iterable[str], *kinds: str) -> AttributeError:
    """Return the error for a missing attribute, with its equivalent here or the closest known name.

    Parameters
    ----------
    owner, name : str
        A class or a package, and the attribute that it lacks.
    known : iterable of str
        The attributes that it has.
    *kinds : str
        The owner and its bases; by default the owner alone.

    Examples
    --------
    >>> missing("minipipe.nn", "Liner", ["Linear", "ReLU"])
    AttributeError("minipipe.nn has no attribute 'Liner'; did you mean Linear?")
    >>> missing("minipipe", "get_rank", [])
    AttributeError("minipipe has no attribute 'get_rank'; instead: group.rank and group.size.")
    """
    instead = near = None
    if not name.startswith("_"):  # such names are asked of everything: by copy, pickle, inspect and pytest
        instead = next((found[name] for kind in kinds or (owner,) if name in (found := instead_of(kind))), None)
        near = _closest(name, (one for one in known if not one.startswith("_")))
    if name.startswith("Schedule") and (schedule := schedule_like(name, ())):
        instead = f'Pipeline(…, schedule="{schedule}"); minipipe.schedules.REGISTRY lists all names'
    hint = f"; instead: {instead}." if instead else f"; did you mean {near}?" if near else "."
    return AttributeError(f"{owner} has no attribute {name!r}{hint}")


def not_an_action(cell: str, is_action: Callable[[str], object]) -> str:
    """Return what to say of a cell that is not an action.

    Examples
    --------
    >>> not_an_action("0f0", {"0F0"}.__contains__)
    "'0f0' is not an action. Did you mean upper case?"
    """
    shown = quoted(cell if len(cell) <= 40 else f"{cell[:40]}…")  # it may be a whole line of another format
    return f"{shown} is not an action.{_hint_for_cell(cell, is_action)}"


def _hint_for_cell(cell: str, is_action: Callable[[str], object]) -> str:
    if cell[:1] in tuple("FBIWUROL") and is_action(f"0{cell}"):
        return " The stage may be left out only if no cell of the text has one and each rank has one stage."
    if is_action(cell.upper()):
        return " Did you mean upper case?"
    if "(" in cell:
        return " Joined actions are one cell without blanks, such as (0F3;3B1)OVERLAP_F_B."
    if len(cell.split()) > 1 and is_action(cell.split()[-1]):
        return " In CSV, only commas separate cells: put one between any two."
    return ""


def schedule_like(given: str, names: Iterable[str]) -> str | None:
    """Return the name here of a schedule of another library, or the closest of some names, if any.

    Examples
    --------
    >>> schedule_like("ScheduleInterleavedZeroBubble", []), schedule_like("1F1B ", ["gpipe", "1f1b"])
    ('interleaved-zb', '1f1b')
    """
    plain = given[:60].lower().replace("_", "-")
    bare = "".join(filter(str.isalnum, plain)).replace("schedule", "")
    own = {"".join(filter(str.isalnum, name)): name for name in names}
    turned = {"".join(reversed(name.split("-"))): name for name in own.values()}  # 1f1b-interleaved
    found = own.get(bare) or equivalents("schedules").get(bare) or turned.get(bare)
    return found or _closest(plain, own.values(), 0.7)


def check_keywords(kind: type, positional: tuple[Any, ...], given: Mapping[str, Any]) -> None:
    """Refuse keywords that the constructor of a class does not take, and name the equivalent.

    Raises
    ------
    ArgumentError
        Code ``name``.

    Examples
    --------
    >>> class Dropout:
    ...     def __init__(self, probability):
    ...         pass
    >>> check_keywords(Dropout, (), {"p": 0.5})
    Traceback (most recent call last):
        ...
    minipipe.errors.ArgumentError: Dropout takes no p=; here it is probability=.
    """
    constructor: Any = kind.__init__  # type: ignore[misc]
    if constructor is object.__init__:
        if positional or given:
            raise ArgumentError("name", f"{kind.__name__} takes no argument; this is {(*positional, *given)!r:.60}.")
        return
    _check_taken(kind.__name__, list(signature(constructor).parameters.values())[1:], given)


def check_options(layer: str, forward: Callable[..., Any], given: Mapping[str, Any]) -> None:
    """Refuse keywords that the forward of a layer does not take, and name the equivalent.

    Raises
    ------
    ArgumentError
        Code ``name``.

    Examples
    --------
    >>> check_options("MultiHeadAttention", lambda x, mask=None: x, {"key_padding_mask": [[True, False]]})
    Traceback (most recent call last):
        ...
    minipipe.errors.ArgumentError: MultiHeadAttention takes no key_padding_mask=; here True means seen, ...
    """
    _check_taken(layer, list(signature(forward).parameters.values()), given)


def check_pipeline_options(kind: type, plan: type, chosen: Callable[..., Any], given: Mapping[str, Any]) -> None:
    """Refuse options that a pipeline does not take, and those that only ``chosen`` takes without ``schedule="auto"``.

    The error lists both. An option of the plan is no such one, although ``chosen`` takes some of these, too.

    Raises
    ------
    ArgumentError
        Code ``name``.
    """
    taken, only = (
        [one.name for one in signature(each).parameters.values() if one.default is not one.empty]
        for each in (kind, chosen)
    )
    only = [name for name in only if name not in signature(plan).parameters]
    taken = [name for name in taken if name not in only]
    used = only if given.get("schedule") == "auto" else ["sample"] * (str(given.get("partition")) == "measured")
    for name in given:
        if name not in (*taken, *used):
            near = _near(name, [*taken, *used])
            hint = f"did you mean {near}=?" if near else ""
            if near != equivalents("keywords").get(name, ""):
                hint = equivalents("pipeline-options").get(name, hint)
            listed = f'{", ".join(taken)}; with schedule="auto" also {", ".join(only)}'
            raise ArgumentError("name", f"Pipeline takes no {name}=; {hint} Expected one of {listed}.")


def _near(name: str, taken: list[str]) -> str | None:
    near = equivalents("keywords").get(name)
    return near if near in taken else _closest(name, taken)


def _closest(name: str, known: Iterable[str], least: float = 0.6) -> str | None:
    """Return the known name that is most like another one, unless they are less alike than ``least``."""
    from difflib import get_close_matches

    return next(iter(get_close_matches(name, list(known), 1, least)), None)


def _check_taken(owner: str, parameters: list[Parameter], given: Mapping[str, Any]) -> None:
    if any(parameter.kind is Parameter.VAR_KEYWORD for parameter in parameters):
        return
    taken = [parameter.name for parameter in parameters]
    for name in given:
        if name not in taken:
            near = _near(name, taken)
            hint = f"here it is {near}=." if near else f"expected {', '.join(taken) or 'no argument'}."
            raise ArgumentError("name", f"{owner} takes no {name}=; {equivalents('advice').get(name, hint)}") from None

"""Hints in errors: the equivalents here of names of other libraries, PyTorch's above
all, or the closest name.

The names are data, in ``hints.toml``. It is read when the first error needs it.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Mapping
from functools import cache
from inspect import Parameter, Signature, signature
from pathlib import Path
from traceback import extract_tb
from types import FunctionType, ModuleType
from typing import Any, NoReturn
from weakref import WeakKeyDictionary

from minipipe.core.familiar import Familiar as Familiar
from minipipe.core.familiar import with_hints as with_hints
from minipipe.errors import ArgumentError

# weak references, so that unused classes are freed
_SIGNATURES: WeakKeyDictionary[Callable[..., Any], Signature] = WeakKeyDictionary()


@cache
def _tables() -> dict[str, Any]:
    import tomllib  # modules that only errors need are imported with the first error
    from importlib.resources import files

    return tomllib.loads((files("minipipe") / "hints.toml").read_text(encoding="utf-8"))


def _by_name(table: Mapping[str, str]) -> dict[str, str]:
    return {
        name: text.replace("{name}", name)
        for names, text in table.items()
        for name in names.split()
    }


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
    """Return the equivalents of attributes that a class or a package does not have;
    none for an unknown owner.

    Examples
    --------
    >>> instead_of("Tensor")["numel"]
    'x.size'
    """
    for owners, table in _tables()["instead"].items():
        if owner in owners.split():
            return _by_name(table)
    return {}


class FamiliarPipeline(Familiar):
    """A pipeline that is called raises an error with a hint."""

    __slots__ = ()

    def __call__(self, *arrays: Any, **options: Any) -> NoReturn:
        """Refuse to be called."""
        instead = instead_of("Pipeline")["__call__"]
        message = f"A Pipeline is not callable; instead: {instead}."
        raise ArgumentError("name", message)


def missing(owner: str, name: str, known: Iterable[str], *kinds: str) -> AttributeError:
    """Return the error for a missing attribute, with its equivalent here or the closest
    known name.

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
    # copy, pickle, inspect and pytest look such names up on every object
    if not name.startswith("_"):
        tables = map(instead_of, kinds or (owner,))
        instead = next((table[name] for table in tables if name in table), None)
        near = _closest(name, (one for one in known if not one.startswith("_")))
        if instead is None and owner.startswith("minipipe"):
            instead = _in_another_package(owner, name)
    if name.startswith("Schedule") and (schedule := schedule_like(name, ())):
        instead = f'Pipeline(…, schedule="{schedule}")'
        instead += "; minipipe.schedules.REGISTRY lists all names"
    hint = "."
    if instead:
        hint = f"; instead: {instead}."
    elif near:
        hint = f"; did you mean {near}?"
    return AttributeError(f"{owner} has no attribute {name!r}{hint}")


def _in_another_package(owner: str, name: str) -> str | None:
    """Return a name with the package that has it, if one does: ``minipipe.exp`` is
    ``functional.exp``.
    """
    from importlib.resources import files

    # the stubs are read, because their packages need NumPy
    for package in ("nn", "functional", "optim"):
        stub = files("minipipe") / package / "__init__.pyi"
        if owner == f"minipipe.{package}" or not stub.is_file():
            continue  # the playground has only files that need no NumPy
        if f" as {name}\n" in stub.read_text(encoding="utf-8"):
            return f"minipipe.{package}.{name}"
    return None


def check_import(name: str) -> None:
    """Refuse the import of a module, or from a package, whose name has an equivalent
    here.

    Raises
    ------
    ModuleNotFoundError

    Examples
    --------
    >>> check_import("minipipe.nn.functional")
    Traceback (most recent call last):
        ...
    ModuleNotFoundError: minipipe.nn has no 'functional'; instead: import minipipe.functional.
    >>> check_import("minipipe.unknown")
    """
    package, _, last = name.rpartition(".")
    if package == "minipipe" and Path(__file__).with_name(last).is_dir():
        return  # pytest asks each finder whether it finds a package
    instead = instead_of(package).get(last) or _in_another_package(package, last)
    if instead:
        # Without its `name`: Python replaces an error that names the module by "cannot
        # import name …".
        raise ModuleNotFoundError(f"{package} has no {last!r}; instead: {instead}.")


Question = Callable[[str], object]
"""A predicate of the cells of a schedule."""


def hint_for_cell(cell: str, is_action: Question, may_omit_stage: Question) -> str:
    """Return the likely reason why a cell is not an action, or nothing.

    Examples
    --------
    >>> hint_for_cell("0f0", {"0F0"}.__contains__, {"F0"}.__contains__)
    ' Did you mean upper case?'
    """
    if may_omit_stage(cell):
        condition = "no cell of the text has one and each rank has one stage"
        return f" The stage may be left out only if {condition}."
    if is_action(cell.upper()):
        return " Did you mean upper case?"
    if "(" in cell:
        example = "(0F3;3B1)OVERLAP_F_B"
        return f" Overlapped actions are one cell without blanks, such as {example}."
    if len(cell.split()) > 1 and is_action(cell.split()[-1]):
        return " In CSV, only commas separate cells: put one between any two."
    return ""


def schedule_like(name: str, names: Iterable[str]) -> str | None:
    """Return minipipe's name of a schedule of another library, or the closest of some
    names, if any.

    Examples
    --------
    >>> (
    ...     schedule_like("ScheduleInterleavedZeroBubble", []),
    ...     schedule_like("1F1B ", ["gpipe", "1f1b"]),
    ... )
    ('interleaved-zb', '1f1b')
    """
    plain = name[:60].lower().replace("_", "-")
    bare = "".join(filter(str.isalnum, plain)).replace("schedule", "")
    bare_names = {"".join(filter(str.isalnum, known)): known for known in names}
    known_names = bare_names.values()
    # 1f1b-interleaved
    reordered = {"".join(reversed(known.split("-"))): known for known in known_names}
    for table in (bare_names, equivalents("schedules"), reordered):
        if bare in table:
            return table[bare]
    return _closest(plain, known_names, 0.7)


def check_keywords(
    kind: type, positional: tuple[Any, ...], given: Mapping[str, Any]
) -> None:
    """Refuse keywords that the constructor of a class does not take, and name the
    equivalent.

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
        advised = [name for name in given if name in equivalents("advice")]
        _check_taken(kind.__name__, [], advised)
        if positional or given:
            names = (*positional, *given)
            message = f"{kind.__name__} takes no arguments; it got {names!r:.60}."
            raise ArgumentError("name", message)
        return
    if positional or given:  # copy and pickle call __new__ alone
        check_arguments(kind.__name__, constructor, (None, *positional), given)


def _signature_of(function: Callable[..., Any]) -> Signature:
    """Return the signature of a function, cached, because a partition creates a
    Sequential for each of its stages.
    """
    if not isinstance(function, FunctionType):
        return signature(function)
    if function not in _SIGNATURES:
        _SIGNATURES[function] = signature(function)
    return _SIGNATURES[function]


def check_arguments(
    owner: str,
    function: Callable[..., Any],
    positional: tuple[Any, ...],
    given: Mapping[str, Any],
) -> None:
    """Refuse arguments, ``self`` among them, that a function does not take. A
    constructor has the name of its class.

    Python's own message would name the class that has the constructor, which may be a
    private base.

    Raises
    ------
    ArgumentError
        Code ``name``.

    Examples
    --------
    >>> class Dropout:
    ...     def __init__(self, probability, seed=0):
    ...         pass
    >>> check_arguments("Dropout", Dropout.__init__, (None,), {"probability": 0.5})
    >>> check_arguments("Dropout", Dropout.__init__, (None,), {})
    Traceback (most recent call last):
        ...
    minipipe.errors.ArgumentError: Dropout: missing a required argument: 'probability'. Expected Dropout(prob...
    """
    expected = _signature_of(function)
    parameters = [one for one in expected.parameters.values() if one.name != "self"]
    _check_taken(owner, parameters, given)
    try:
        expected.bind(*positional, **given)
    except TypeError as error:
        message = f"{owner}: {error}. Expected {_call(owner, parameters)}."
        raise ArgumentError("name", message) from None


def _call(owner: str, parameters: list[Parameter]) -> str:
    """Return how a function is called, with its defaults."""
    parts = []
    for parameter in parameters:
        if parameter.kind is Parameter.KEYWORD_ONLY and "*" not in parts:
            parts.append("*")
        text = parameter.name
        if parameter.default is not parameter.empty:
            text += f"={parameter.default!r}"
        parts.append(text)
    return f"{owner}({', '.join(parts)})"


def check_options(
    layer: str, forward: Callable[..., Any], given: Mapping[str, Any]
) -> None:
    """Refuse keywords that the forward of a layer does not take, and name the
    equivalent.

    Raises
    ------
    ArgumentError
        Code ``name``.

    Examples
    --------
    >>> check_options(
    ...     "MultiHeadAttention",
    ...     lambda x, mask=None: x,
    ...     {"key_padding_mask": [[True, False]]},
    ... )
    Traceback (most recent call last):
        ...
    minipipe.errors.ArgumentError: MultiHeadAttention takes no key_padding_mask=; here True means seen, ...
    """
    _check_taken(layer, list(signature(forward).parameters.values()), given)


def refuse(
    error: TypeError,
    function: Callable[..., Any],
    positional: tuple[Any, ...],
    given: Mapping[str, Any],
) -> None:
    """Refuse arguments that a function did not take, and name the equivalents."""
    if not isinstance(error, ArgumentError):  # which already names the mistake
        owner = function.__qualname__
        if function.__name__ == "__init__":
            owner = type(positional[0]).__name__
        check_arguments(owner, function, positional, given)


def explain(error: BaseException) -> None:
    """Add a note to an AttributeError or TypeError of Python about an array or a
    number, if the expression has an equivalent here.

    The classes are not minipipe's: a gradient is an array of NumPy, and the size of a
    tensor is an int.

    Examples
    --------
    >>> import numpy
    >>> try:
    ...     numpy.array([1.0]).zero_()
    ... except AttributeError as error:
    ...     explain(error)
    ...     print(error.__notes__[0])
    Instead: parameter.zero_grad(), optimiser.zero_grad(), or parameter.grad = None; a pipeline's step() overwrites it.
    """
    instead = None
    kind = type(getattr(error, "obj", None)).__name__
    if isinstance(error, AttributeError) and kind in ("ndarray", "float", "NoneType"):
        instead = instead_of(kind).get(str(error.name))
    elif isinstance(error, TypeError) and str(error) == "'int' object is not callable":
        line = extract_tb(error.__traceback__)[-1].line or ""
        calls = equivalents("called-numbers").items()
        instead = next((text for call, text in calls if f".{call}(" in line), None)
    note = f"Instead: {instead}."
    if instead and note not in getattr(error, "__notes__", ()):
        error.add_note(note)


def check_pipeline_options(
    given: Mapping[str, Any], taken: list[str], only: list[str]
) -> None:
    """Refuse options that a pipeline does not take; the error lists all.

    It takes some ``only`` with ``schedule="auto"``; ``sample``, one of them, also with
    ``partition="measured"``.

    Raises
    ------
    ArgumentError
        Code ``name``.
    """
    allowed = list(taken)
    if given.get("schedule") == "auto":
        allowed += only
    elif str(given.get("partition")) == "measured":
        allowed.append("sample")
    for name in given:
        if name not in allowed:
            near = _near(name, allowed)
            hint = ""
            if near:
                hint = f"did you mean {near}=?"
            if near not in equivalents("keywords").get(name, "").split():
                hint = equivalents("pipeline-options").get(name, hint)
            with_auto = f'with schedule="auto" also {", ".join(only)}'
            expected = f"Expected one of {', '.join(taken)}; {with_auto}."
            message = f"Pipeline takes no {name}=; {hint} {expected}"
            raise ArgumentError("name", message)


def _near(name: str, taken: list[str]) -> str | None:
    # one name may have another equivalent in each function
    same = equivalents("keywords").get(name, "").split()
    return next((each for each in same if each in taken), None) or _closest(name, taken)


def _closest(name: str, known: Iterable[str], least: float = 0.6) -> str | None:
    """Return the most similar known name, unless the similarity is below ``least``."""
    from difflib import get_close_matches

    return next(iter(get_close_matches(name, list(known), 1, least)), None)


def _check_taken(owner: str, parameters: list[Parameter], given: Iterable[str]) -> None:
    if any(parameter.kind is Parameter.VAR_KEYWORD for parameter in parameters):
        return
    taken = [parameter.name for parameter in parameters]
    for name in given:
        if name not in taken:
            near = _near(name, taken)
            hint = f"expected {', '.join(taken) or 'no argument'}."
            if near:
                hint = f"here it is {near}=."
            hint = equivalents("advice").get(name, hint)
            message = f"{owner} takes no {name}=; {hint}"
            raise ArgumentError("name", message) from None


def names_of(module: str, names: Iterable[str]) -> Callable[[str], NoReturn]:
    """Return the ``__getattr__`` of a module without a stub: an error with a hint.

    Examples
    --------
    >>> names_of("minipipe.data", ["batches"])("DataLoader")
    Traceback (most recent call last):
        ...
    AttributeError: minipipe.data has no attribute 'DataLoader'; instead: data.batches(inputs, targets, batch_size, ...
    """
    known = list(names)

    def refuse(name: str) -> NoReturn:
        raise missing(module, name, known)

    return refuse


def refuse_calls(module: str, instead: str) -> None:
    """Let a call of a module, which has the name of another library's function, raise
    an error with the equivalent.

    Examples
    --------
    >>> import minipipe
    >>> minipipe.compile(None)
    Traceback (most recent call last):
        ...
    minipipe.errors.ArgumentError: minipipe.compile is a module; instead: Pipeline(model, group, …, compile=True).
    """

    def refuse(self: ModuleType, *positional: Any, **given: Any) -> NoReturn:
        raise ArgumentError("name", f"{module} is a module; instead: {instead}.")

    sys.modules[module].__class__ = type("Module", (ModuleType,), {"__call__": refuse})

"""Kinds of instruction that a program declares; every analysis then supports them.

A declaration is checked once, when it is made.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

from minipipe.core.flow import Flow
from minipipe.core.schedules.action_table import Program
from minipipe.core.schedules.cells import is_kind
from minipipe.core.specs import Spec
from minipipe.core.values import KINDS, NOUNS, Kind, Meeting, Noun, Site, Uses, Value
from minipipe.errors import ArgumentError, quoted


def declare(kind: Kind, nouns: Mapping[str, Noun] | None = None) -> None:
    """Add a kind of instruction, for this process.

    A schedule that contains it can then be read, verified, timed and drawn. Another
    process that unpickles such a schedule must declare the kind before.

    Parameters
    ----------
    kind : Kind
        Its name has capital letters and underscores, because numbers stand around it
        in a cell: ``1KEEP3``. Its ``uses`` returns None for each stage on which no
        legal table can have it. A kind with ``of_rank=True`` is an instruction of a
        rank, and its cell is the name alone: ``KEEP``. The ``stage`` of its action is
        the rank.
    nouns : mapping of str to Noun, optional
        The values that the kind adds, by name.

    Raises
    ------
    ArgumentError
        Code ``name``, if the name or one of the nouns exists already or cannot stand in
        a cell; code ``value``, if the declaration cannot be used: it names values that
        no noun declares, or a stage that does not exist; code ``type``, if a part of it
        has another type than :class:`Kind` and :class:`Noun` say.

    Examples
    --------
    >>> def keep(site):
    ...     return Uses(reads=(site.value("weights"),))
    >>> declare(Kind("F", keep, "copy of the weights"))
    Traceback (most recent call last):
        ...
    minipipe.errors.ArgumentError: F is declared already; choose another name.
    """
    new_nouns = _checked_nouns(kind, nouns)
    letters = kind.name.replace("_", "")
    if not (letters.isascii() and letters.isalpha() and letters.isupper()):
        problem = "expected capital letters and underscores, such as KEEP"
        message = f"{quoted(kind.name)} cannot name a kind; {problem}."
        raise ArgumentError("name", message)
    is_kind(kind.name)  # loads the kinds of passes: another one of that name is refused
    if kind.name in KINDS:
        message = f"{kind.name} is declared already; choose another name."
        raise ArgumentError("name", message)
    for name in new_nouns:
        if name in NOUNS:
            message = f"The value {quoted(name)} is declared already; leave it out."
            raise ArgumentError("name", message)
    _check_uses(kind, {**NOUNS, **new_nouns})
    NOUNS.update(new_nouns)
    KINDS[kind.name] = kind


@contextmanager
def declared(kind: Kind, nouns: Mapping[str, Noun] | None = None) -> Iterator[None]:
    """Add a kind of instruction as :func:`declare` does, inside of a block: for tests.

    Parameters
    ----------
    kind : Kind
    nouns : mapping of str to Noun, optional

    Examples
    --------
    >>> from minipipe import Schedule
    >>> def keep(site):
    ...     return Uses(reads=(site.value("weights"),))
    >>> with declared(Kind("KEEP", keep, "copy of the weights")):
    ...     print(Schedule.from_text("F0 B0 U0 KEEP0").actions[0][-1])
    0KEEP0
    """
    declare(kind, nouns)
    try:
        yield
    finally:
        del KINDS[kind.name]
        for name in nouns or {}:
            del NOUNS[name]


class _Trial(Flow):
    """The flow of a table in which a declaration is tried: each stage on two ranks."""

    def __init__(self, num_stages: int) -> None:
        stages = tuple(range(num_stages))
        rows = ((),) * num_stages
        super().__init__(Program("trial", stages, 1, rows, tied=(stages,)))
        self.is_forward_only = False

    def num_replicas(self, stage: int) -> int:
        """Return 2."""
        return 2

    def ranks_of(self, stage: int) -> Sequence[int]:
        """Return all ranks."""
        return range(self.num_ranks)

    def taken(
        self, rank: int, kind: str, stage: int, given_by: tuple[str, ...]
    ) -> Mapping[int, Sequence[int]]:
        """Return microbatch 0, which any instruction could take."""
        return {-1: [0]}


_FORMS: tuple[Any, ...] = (str, bool, Callable)
_FORM = Spec(code="type")
_KIND = _FORM._replace(
    kind=Kind, expected="a Kind, such as Kind('KEEP', uses, 'copy of the weights')"
)
_NOUNS = _FORM._replace(
    kind=Mapping, expected="nouns by name, such as {'copy': Noun('copied weights')}"
)
_MEETS = _FORM._replace(kind=Callable | None, expected="a function, or None")
_MEETING = _FORM._replace(
    kind=Meeting, expected="a Meeting(key, size) of minipipe.schedules"
)
_VALUES = _FORM._replace(
    kind=tuple, expected="a tuple of values, such as (site.value('weights'),)"
)
_TEMPORARY = _FORM._replace(kind=str, expected="the name of a value, or ''")
_EXAMPLE = Kind("KEEP", lambda site: None, "copy of the weights")


def _checked_nouns(kind: object, nouns: object) -> dict[str, Noun]:
    """Refuse arguments that are not a kind and nouns; return the nouns."""
    if not isinstance(kind, Kind):
        raise _KIND.refusal("The kind", kind)
    subject = f"of the kind {quoted(kind.name)}"
    _check_form(kind, _EXAMPLE, subject)
    _MEETS.check(f"The meets {subject}", kind.meets)
    if nouns is None:
        return {}
    checked: dict[str, Noun] = _NOUNS.check("The argument nouns", nouns)
    for name, noun in checked.items():
        _NOUNS._replace(kind=str).check("The name of a value", name)
        _NOUNS._replace(kind=Noun).check(f"The value {quoted(name)}", noun)
        _check_form(noun, Noun(""), f"of the value {quoted(name)}")
    return dict(checked)


def _check_form(declared: Kind | Noun, example: Kind | Noun, subject: str) -> None:
    """Refuse strings, bools and functions whose types differ from an example's."""
    for name, value, like in zip(declared._fields, declared, example):
        for kind in _FORMS:
            if isinstance(like, kind):
                _FORM._replace(kind=kind).check(f"The {name} {subject}", value)


def _check_uses(kind: Kind, nouns: Mapping[str, Noun]) -> None:
    """Refuse a declaration with values that are undeclared or exist in no table."""
    for num_stages in (3, 2, 1):
        trial = _Trial(num_stages)
        varies = _tried(kind, "varies", trial, f"{num_stages} stages")
        for stage in range(num_stages):
            site = Site(trial, 0, 0, stage, 0)
            _check_meeting(kind, site)
            uses = _tried(kind, "uses", site, f"stage {stage} of {num_stages}")
            if uses is None:
                continue
            if not isinstance(uses, Uses):
                result = f"The declaration of {kind.name} returns {quoted(uses)}"
                message = f"{result} for stage {stage}; expected Uses(…), or None."
                raise ArgumentError(message)
            _check_values(kind, site, uses)
            _check_ranges(kind, site, uses, nouns, bool(varies))
            _check_owners(kind, uses, nouns)


def _tried(kind: Kind, name: str, argument: object, where: str) -> Any:
    """Return the result of a function of a declaration; refuse one that fails."""
    try:
        return getattr(kind, name)(argument)
    except Exception as error:
        failure = f"The {name} of {kind.name} fails for {where}"
        expected = "Site" if isinstance(argument, Site) else "Flow"
        cause = f"{type(error).__name__}: {error}"
        hint = f"expected a function of a {expected} that fits tables of any size"
        message = f"{failure}: {cause}; {hint}."
        raise ArgumentError(message) from error


def _check_meeting(kind: Kind, site: Site) -> None:
    """Refuse messages, which a Schedule does not have, and meetings on other lanes."""
    if kind.message:
        hint = "a value whose Noun has travels=True can be taken on another rank"
        how = f"is declared as a message, {quoted(kind.message)}"
        raise ArgumentError(f"{kind.name} {how}; {hint}.")
    if kind.meets is None:
        return
    if kind.lane != "compute":
        message = f"{kind.name} meets others on the lane {quoted(kind.lane)}; expected "
        message += "the lane 'compute', on which all of them start and end together."
        raise ArgumentError(message)
    where = f"stage {site.stage} of {site.setting.num_stages}"
    _MEETING.check(f"The meeting of {kind.name}", _tried(kind, "meets", site, where))


def _check_owners(kind: Kind, uses: Uses, nouns: Mapping[str, Noun]) -> None:
    """Refuse an instruction of a rank that gives a value of a stage, and the other way
    round.
    """
    for value in uses.gives:
        if nouns[value.name].of_rank != kind.of_rank:
            owner = "rank" if kind.of_rank else "stage"
            gives = f"gives the value {value.name!r} of a {nouns[value.name].owner}"
            where = f"{kind.name} is an instruction of a {owner} and {gives}"
            hint = f"expected a Noun with of_rank={kind.of_rank}"
            raise ArgumentError(f"{where}; {hint}.")


def _check_ranges(
    kind: Kind, site: Site, uses: Uses, nouns: Mapping[str, Noun], varies: bool
) -> None:
    """Refuse values that no noun declares, or that exist in no table."""
    num_stages = site.setting.num_stages
    if uses.temporary and uses.temporary not in nouns:
        where = f"{kind.name} has the temporary value {quoted(uses.temporary)}"
        raise ArgumentError(f"{where}, which is not declared.")
    for value in (*uses.takes, *uses.gives, *uses.reads):
        where = f"{kind.name} of stage {site.stage} uses the value {value.name!r}"
        if value.name not in nouns:
            hint = f"declare(kind, {{{value.name!r}: Noun(…)}}) adds it"
            raise ArgumentError(f"{where}, which is not declared; {hint}.")
        if value.stage not in range(num_stages):
            hint = "a stage without such a neighbour uses no such value"
            where = f"{where} of stage {value.stage} of {num_stages}"
            raise ArgumentError(f"{where}; {hint}.")
        if value.microbatch < 0 or (value.microbatch and not varies):
            where = f"{where} of microbatch {value.microbatch} for microbatch 0"
            hint = "site.value(name) is of the microbatch of the instruction"
            raise ArgumentError(f"{where}; {hint}.")


def _check_values(kind: Kind, site: Site, uses: Uses) -> None:
    """Refuse uses that are not tuples of values, or that name a value twice."""
    for part in ("takes", "gives", "reads"):
        values = getattr(uses, part)
        where = f"The {part} of {kind.name} for stage {site.stage}"
        # A value is a tuple itself: the comma behind it is easily forgotten.
        is_tuple = _VALUES.allows(values) and not isinstance(values, Value)
        if not is_tuple or not all(isinstance(value, Value) for value in values):
            raise _VALUES.refusal(where, values)
        subject = f"The temporary of {kind.name} for stage {site.stage}"
        _TEMPORARY.check(subject, uses.temporary)
        for value in values:
            _FORM._replace(kind=str).check(f"{where}: a name", value.name)
            for number in (value.stage, value.microbatch):
                _FORM._replace(kind=int).check(f"{where}: a number in {value}", number)
        if len(set(values)) < len(values):
            raise ArgumentError(f"{where} name a value twice; once is enough.")

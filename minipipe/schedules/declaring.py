"""Kinds of instruction of other programs: one declaration, and every analysis knows it.

The declaration is checked when it is made, so that no analysis has to.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager

from minipipe.core.values import KINDS, NOUNS, Kind, Noun, Site, Uses
from minipipe.errors import ArgumentError, quoted


def declare(kind: Kind, nouns: Mapping[str, Noun] | None = None) -> None:
    """Add a kind of instruction, for this process.

    A schedule that contains it can then be read, verified, timed and drawn. Another
    process that unpickles such a schedule must declare the kind before.

    Parameters
    ----------
    kind : Kind
        Its name has capital letters and underscores, because numbers stand around it
        in a cell: ``1KEEP3``. It is declared for every stage on which a legal table
        can have it, and for no other.
    nouns : mapping of str to Noun, optional
        The names of values that no other kind gives or takes.

    Raises
    ------
    ArgumentError
        Code ``name``, if the name or one of the nouns exists already or cannot stand in
        a cell; code ``value``, if the declaration cannot be used: it names values that
        no noun declares, or a stage that does not exist.

    Examples
    --------
    >>> def keep(site):
    ...     return Uses(reads=(site.value("weights"),))
    >>> declare(Kind("F", keep, "copy of the weights"))
    Traceback (most recent call last):
        ...
    minipipe.errors.ArgumentError: F is declared already; choose another name.
    """
    own = dict(nouns or {})
    letters = kind.name.replace("_", "")
    if not (letters.isascii() and letters.isalpha() and letters.isupper()):
        problem = "expected capital letters and underscores, such as KEEP"
        message = f"{quoted(kind.name)} cannot name a kind; {problem}."
        raise ArgumentError("name", message)
    if kind.name in KINDS:
        message = f"{kind.name} is declared already; choose another name."
        raise ArgumentError("name", message)
    for name in own:
        if name in NOUNS:
            message = f"The value {quoted(name)} is declared already; leave it out."
            raise ArgumentError("name", message)
    _check_uses(kind, {*NOUNS, *own})
    NOUNS.update(own)
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


class _Trial:
    """A setting in which a declaration is tried."""

    def __init__(self) -> None:
        self.num_stages = 3
        self.num_slices = 1
        self.frozen: frozenset[int] = frozenset()
        self.is_forward_only = False
        self.first_backward_stage = 0
        self.message_cuts: Sequence[bool] = (True, True, False)
        self.kinds: frozenset[str] = frozenset()
        self.positions: dict[tuple[str, int, int], int] = {}

    def num_replicas(self, stage: int) -> int:
        return 2

    def taken(self, site: Site, kind: str, given_by: tuple[str, ...]) -> Sequence[int]:
        return [site.microbatch]

    def index(self, site: Site, kind: str) -> int:
        return 0


def _check_uses(kind: Kind, names: set[str]) -> None:
    """Refuse a declaration that names what no table has."""
    trial = _Trial()
    for stage in range(trial.num_stages):
        uses = kind.uses(Site(trial, 0, 0, stage, 0))
        if uses is None:
            continue
        if not isinstance(uses, Uses):
            given = f"The declaration of {kind.name} returns {quoted(uses)}"
            message = f"{given} for stage {stage}; expected Uses(…), or None."
            raise ArgumentError("value", message)
        for value in (*uses.takes, *uses.gives, *uses.reads):
            where = f"{kind.name} of stage {stage} uses the value {value.name!r}"
            if value.name not in names:
                hint = f"declare(kind, {{{value.name!r}: Noun(…)}}) adds it"
                message = f"{where}, which is not declared; {hint}."
                raise ArgumentError("value", message)
            if value.stage not in range(trial.num_stages):
                hint = "a stage without such a neighbour uses no such value"
                where = f"{where} of stage {value.stage} of {trial.num_stages}"
                raise ArgumentError("value", f"{where}; {hint}.")

"""The answer: a verdict for each difference, and one for both runs."""

from __future__ import annotations

import re
from collections.abc import Sequence
from enum import StrEnum
from typing import Any, NamedTuple

from minipipe.errors import counted
from minipipe.io import text_table
from minipipe.referee.bounds import DOUBT
from minipipe.referee.files import place_of

_SHOWN = 12  # rows of the table


class Verdict(StrEnum):
    """The class of a difference, in the order in which one outweighs the others.

    Examples
    --------
    >>> from minipipe.testing import Verdict
    >>> print(Verdict.ORDER)
    order of summation
    """

    EQUAL = "no difference"
    ORDER = "order of summation"
    ROUNDING = "rounding of a precision"
    CANNOT_TELL = "cannot tell"
    BUG = "bug"

    @property
    def rank(self) -> int:
        """How much it weighs: a bug outweighs all others."""
        return list(Verdict).index(self)


# Whether it holds, and then: the verdict, its reason, and the evidence that is missing.
Case = tuple[Any, Verdict, str] | tuple[Any, Verdict, str, str]


class Difference(NamedTuple):
    """One array in both runs, and the class of its difference.

    Attributes
    ----------
    name : str
        Such as ``"gradients/0.weight"``, or ``"loss"``.
    step, microbatch : int
        -1 if unknown, or if the array is about all of them.
    size : float
        The norm of the difference, relative to the norm of the array; for weights, to
        their update.
    bound : float
        The largest size that the rounding errors of a reordered sum explain.
    verdict : Verdict
    evidence : str
        The reason for the verdict.
    missing : str
        The evidence that would decide, if the verdict is ``cannot tell``.

    Examples
    --------
    >>> from minipipe.testing import Difference, Verdict
    >>> Difference("gradients/3.weight", 1, -1, 0.5, 1e-5, Verdict.BUG).layer
    '3'
    """

    name: str
    step: int
    microbatch: int
    size: float
    bound: float
    verdict: Verdict = Verdict.EQUAL
    evidence: str = "the same bits"
    missing: str = ""

    def judged(self, *cases: Case) -> Difference:
        """Return the difference with the verdict of the first case that holds."""
        for holds, verdict, evidence, *missing in cases:
            if holds:
                return Difference(*self[:5], verdict, evidence, "".join(missing))
        return self

    def by_size(
        self, where: str, missing: str, doubt: float = DOUBT, is_blind: bool = False
    ) -> tuple[Case, ...]:
        """Return the cases of a difference that the size decides.

        Parameters
        ----------
        where : str
            The evidence.
        missing : str
            The evidence that would decide.
        doubt : float
            So many times the bound are a bug.
        is_blind : bool
            Whether a bug could hide below the bound.
        """
        return (
            (self.size > doubt * self.bound, Verdict.BUG, where),
            (self.size > self.bound, Verdict.CANNOT_TELL, where, missing),
            (is_blind, Verdict.CANNOT_TELL, where, missing),
            (True, Verdict.ORDER, where),
        )

    def in_doubt(self, missing: str) -> Difference:
        """Return the difference as undecided if it would be a bug."""
        is_bug = self.verdict is Verdict.BUG
        return self.judged((is_bug, Verdict.CANNOT_TELL, self.evidence, missing))

    @property
    def decides(self) -> bool:
        """Whether it is neither a bug nor in doubt."""
        return self.verdict.rank < Verdict.CANNOT_TELL.rank

    @property
    def layer(self) -> str:
        """The name of the layer: the array's name without kind and last part."""
        tensor = self.name.partition("/")[2]
        return tensor.rpartition(".")[0] or tensor

    @property
    def place(self) -> str:
        """Name, layer, step and microbatch, as far as they are known."""
        layer = self.layer and f"layer {self.layer}"
        return place_of(self.step, self.microbatch, self.name, layer)


class Report(NamedTuple):
    """The differences of two runs, and the verdict on both.

    Attributes
    ----------
    verdict : Verdict
    evidence : str
        The reason for the verdict.
    missing : str
        The evidence that would decide, if the verdict is ``cannot tell``.
    differences : tuple of Difference
    assumed : str
        The assumptions of the bounds.

    Examples
    --------
    >>> import numpy as np
    >>> from minipipe.testing import referee
    >>> a = {"gradients/0.weight": np.linspace(1, 2, 100, dtype=np.float32)}
    >>> b = {"gradients/0.weight": 2 * a["gradients/0.weight"]}
    >>> report = referee(a, b)
    >>> print(f"{report.verdict}: {report.evidence}")
    bug: B is 2 times A: its loss or gradient is scaled
    >>> report.first.place
    'gradients/0.weight, layer 0, step 1'
    """

    verdict: Verdict
    evidence: str
    missing: str
    differences: tuple[Difference, ...]
    assumed: str

    @property
    def compared(self) -> str:
        """The kinds of arrays that were compared, with their steps."""
        steps: dict[str, set[int]] = {}
        for each in self.differences:
            numbers = steps.setdefault(each.name.partition("/")[0], set())
            numbers |= {each.step} - {-1}
        parts = []
        for kind, numbers in steps.items():
            if len(numbers) > 1:
                kind += f" of {len(numbers)} steps, {min(numbers)} to {max(numbers)}"
            elif kind != "loss" and numbers:
                kind += f" of step {min(numbers)}"
            parts.append(kind)
        return " and ".join(parts)

    @property
    def unseen(self) -> str:
        """The bugs that the comparison cannot see."""
        if any(each.name != "loss" for each in self.differences):
            return "a bug elsewhere is not seen"
        bound = max(each.bound for each in self.differences)
        missed = f"a bug that changes it by less than {bound:.1e} of it, or elsewhere,"
        return f"{missed} is not seen; gradients of step 1 (gradients/NAME) show more"

    @property
    def first(self) -> Difference | None:
        """The first array that decides the verdict; None if all are within their bound.

        The first of its step in the order of the backward, from the last layer to the
        first, because a wrong gradient spoils the gradients of earlier layers.
        """
        worst = [each for each in self.differences if each.verdict is self.verdict]
        if not worst or worst[0].decides:
            return None
        return min(worst, key=_in_time)

    def as_data(self) -> dict[str, object]:
        """Return the report as data for JSON."""
        data = self._asdict()
        data["first"] = self.first and self.first.place
        data["unseen"] = self.unseen
        data["differences"] = [each._asdict() for each in self.differences]
        return data

    def __str__(self) -> str:
        lines = [f"verdict: {self.verdict}", f"evidence: {self.evidence}"]
        if self.missing:
            lines.append(f"missing: {self.missing}")
        if self.first:
            leaves = "first to leave its bound"
            if self.first.size <= self.first.bound:
                leaves = "first that does not decide"
            lines.append(f"{leaves}: {self.first.place}: {self.first.evidence}")
        lines += ["", _table(self.differences), "", f"assumed: {self.assumed}"]
        lines.append(f"compared: {self.compared}; {self.unseen}")
        return "\n".join(lines)


def _in_time(difference: Difference) -> tuple[object, ...]:
    """Sort by step, then by microbatch, then from the last layer to the first."""
    parts = re.split(r"(\d+)", difference.name)
    # digits have the odd places
    places = [-int(part) for part in parts[1::2]]
    return difference.step, difference.microbatch, places, difference.name


def _table(differences: Sequence[Difference]) -> str:
    worst = sorted(differences, key=lambda each: (-each.verdict.rank, -each.size))
    rows: list[tuple[str, ...]] = [
        ("array", "step", "microbatch", "difference", "bound", "verdict")
    ]
    for each in sorted(worst[:_SHOWN], key=_in_time):
        numbers = [str(n) if n >= 0 else "-" for n in (each.step, each.microbatch)]
        sizes = [f"{each.size:.1e}", f"{each.bound:.1e}"]
        rows.append((each.name, *numbers, *sizes, str(each.verdict)))
    table = text_table(rows, right=range(1, 5))
    if len(worst) > _SHOWN:
        table += f"\nand {counted(len(worst) - _SHOWN, 'array')} with smaller ones"
    return table

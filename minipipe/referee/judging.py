"""The class of the difference of each gradient and weight."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping
from math import sqrt
from typing import NamedTuple

import numpy as np

from minipipe.referee.bounds import DOUBT, GROWTH, Assumed, norm
from minipipe.referee.causes import described_weights, repeated_rounding, weights_of
from minipipe.referee.files import Name, Run
from minipipe.referee.formats import FLOAT32, Format, format_of
from minipipe.referee.report import Difference, Verdict

# A gradient that is 0 in exact arithmetic, such as the bias of keys in attention,
# consists of rounding errors. It is compared with this part of all gradients.
_LEAST = 0.01
_SURELY_STRUCTURED = 32  # unit roundoffs
_VISIBLE = 0.01  # the largest bound from repetitions: a bug could hide below
_VISIBLE_UPDATE = 1e-3  # the same of an update
_SHORTEST = 0.1  # of the usual row: shorter ones may cancel
_ALONE = 32.0  # times the whole difference, relative to one row
_SPREAD = 8.0  # times the spread of repeated runs
_SMALL = 0.05  # of an update by an optimiser that magnifies small gradients
_ACCUMULATED = 16  # microbatches, if a run records none
_DOUBT_OF_PRODUCTS = (
    8.0  # times the bound of a coarse format, which no sum makes larger
)
_DIGITS_OF_PRODUCTS = 0.03  # what products in bfloat16 can reach

Spread = Mapping[Name, float]


class Pair(NamedTuple):
    """An array in both runs, with the formats of its values."""

    name: Name
    a: np.ndarray
    b: np.ndarray

    @property
    def formats(self) -> tuple[Format, Format]:
        """The coarsest formats that hold the values of A and of B."""
        return format_of(self.a), format_of(self.b)

    @property
    def grid(self) -> Format:
        """The coarser of both formats."""
        return min(self.formats, key=lambda each: each.digits)

    @property
    def by_digits(self) -> tuple[np.ndarray, np.ndarray]:
        """Both arrays, the finer one first."""
        of_a, of_b = self.formats
        if of_a.digits < of_b.digits:
            return self.b, self.a
        return self.a, self.b

    def difference(self, length: float, bound: float) -> Difference:
        """Return the difference, relative to a length, without a verdict."""
        size = 0.0
        if length:
            size = norm(self.b - self.a) / length
        return Difference(
            str(self.name), self.name.step, self.name.microbatch, size, bound
        )

    @property
    def length(self) -> float:
        """The larger norm of both arrays."""
        return max(norm(self.a), norm(self.b))


class Judge:
    """Compares the gradients and weights of two runs, step by step.

    Parameters
    ----------
    a, b : mapping of Name to array
    assumed : Assumed
    spread : mapping of Name to float
        Differences between repetitions of a run, as norms relative to the array's;
        empty if the runs cannot be repeated.
    """

    def __init__(self, a: Run, b: Run, assumed: Assumed, spread: Spread) -> None:
        self.a = a
        self.b = b
        self.assumed = assumed
        self.spread = spread
        self.parts_of_a = _microbatches(a)
        self.parts_of_b = _microbatches(b)

    def _pairs(self, kind: str) -> list[Pair]:
        common = sorted(self.a.keys() & self.b.keys())
        names = [name for name in common if name.kind == kind]
        return [Pair(name, self.a[name], self.b[name]) for name in names]

    def _terms(self, name: Name) -> list[np.ndarray]:
        """Return the parts of a gradient that microbatches added in A, or in B."""
        for run, parts in ((self.a, self.parts_of_a), (self.b, self.parts_of_b)):
            if parts[name]:
                numbers = parts[name]
                return [run[name._replace(microbatch=number)] for number in numbers]
        return []

    # -- gradients ---------------------------------------------------------------------

    def gradients(self) -> Iterator[Difference]:
        """Yield the differences of gradients. In later steps they may be larger, as
        rounding errors grow.
        """
        pairs = self._pairs("gradients")
        before = 0
        allowed = 0.0
        for step in sorted({pair.name.step for pair in pairs}):
            of_step = [pair for pair in pairs if pair.name.step == step]
            results = list(self._of_step(of_step, allowed))
            if step != before + 1:
                missing = f"the gradients of each step from 1 to {step}"
                results = [_unless_bug(each, missing) for each in results]
            yield from results
            if any(each.verdict is Verdict.BUG for each in results):
                return  # later steps differ because this one does
            before = step
            allowed = max(allowed, *(GROWTH * each.size for each in results))

    def _of_step(self, pairs: list[Pair], allowed: float) -> Iterator[Difference]:
        cause = self._cause([pair for pair in pairs if pair.name.microbatch < 0])
        groups = defaultdict(list)
        for pair in pairs:
            groups[pair.name.microbatch].append(pair)
        harmless: set[Name] = set()
        for microbatch, group in sorted(groups.items()):
            whole = norm(*(pair.a for pair in group))
            count = max(1, sum(pair.a.size for pair in group))
            for pair in group:
                sum_of_parts = pair.name._replace(microbatch=-1)
                # parts find what is wrong with their sum, if they are the same parts
                if microbatch >= 0 and (
                    sum_of_parts in harmless
                    or self.parts_of_a[sum_of_parts] != self.parts_of_b[sum_of_parts]
                ):
                    continue
                least = _LEAST * whole * sqrt(pair.a.size / count)
                difference = self._gradient(pair, max(pair.length, least), allowed)
                if cause and microbatch < 0 and not allowed:
                    difference = self._with_cause(difference, pair, cause)
                if difference.verdict.rank < Verdict.CANNOT_TELL.rank:
                    harmless.add(pair.name)
                yield difference

    def _gradient(self, pair: Pair, length: float, allowed: float) -> Difference:
        arithmetic = self.assumed.format_of(pair.grid)
        terms = self._terms(pair.name)
        bound = self.assumed.bound(arithmetic)
        if terms and length:
            bound *= max(1.0, sum(map(norm, terms)) / length)
        if self.spread:
            bound = max(_SPREAD * self.spread.get(pair.name, 0.0), 4 * arithmetic.unit)
        difference = pair.difference(length, max(bound, allowed))
        if np.array_equal(pair.a, pair.b):
            return difference
        if pair.grid.digits < FLOAT32.digits:
            return self._coarse(pair, difference, terms)
        return self._fine(pair, difference, arithmetic, length)

    def _fine(
        self, pair: Pair, found: Difference, arithmetic: Format, length: float
    ) -> Difference:
        """Judge the difference of arrays with the digits of float32, or more."""
        where = f"{found.size:.1e} of its norm, the bound is {found.bound:.1e}"
        if self.spread and found.bound > _VISIBLE:
            where = f"the bound, from repetitions, is {found.bound:.1e}"
            missing = "functions whose repetitions differ only by rounding: fix seeds"
            return found.judged(Verdict.CANNOT_TELL, where, missing)
        size, place = _worst_row(pair, length)
        if size > max(DOUBT * found.bound, _ALONE * found.size):
            where = f"{size:.1e} of the norm of {place}, and {where}"
            return found.judged(Verdict.BUG, where)
        if found.size > found.bound:
            return self._beyond(found, where, arithmetic)
        if arithmetic.digits < FLOAT32.digits:
            missing = "both runs in float32: within this bound a bug could hide"
            return found.judged(Verdict.CANNOT_TELL, where, missing)
        of_a, of_b = pair.formats
        if of_a != of_b and found.size > max(of_a.unit, of_b.unit) / 64:
            words = f"arithmetic in {pair.grid.name}: {where}"
            return found.judged(Verdict.ROUNDING, words)
        return found.judged(Verdict.ORDER, where)

    def _beyond(self, found: Difference, where: str, arithmetic: Format) -> Difference:
        """Judge a difference that is beyond its bound."""
        is_stated = self.assumed.precision is not None
        is_finer = arithmetic.digits > FLOAT32.digits
        if is_finer and not is_stated and found.size <= self.assumed.bound(FLOAT32):
            missing = "whether a run computed in float32 (precision)"
            return found.judged(Verdict.CANNOT_TELL, where, missing)
        is_coarse = arithmetic.digits < FLOAT32.digits
        doubt = _DOUBT_OF_PRODUCTS if is_coarse else DOUBT
        if found.size > doubt * found.bound:
            if not is_stated and found.size <= _DIGITS_OF_PRODUCTS:
                where += "; if products in bfloat16 or TF32 were used, state it"
                where += " (precision)"
            return found.judged(Verdict.BUG, where)
        missing = "the number of terms of a sum, such as tokens of a batch (terms)"
        if is_coarse:
            missing = "both runs in float32: a bug stays as large"
        elif self.assumed.is_stated or self.spread:
            missing = "both runs in float64: a bug stays as large"
        return found.judged(Verdict.CANNOT_TELL, where, missing)

    def _coarse(
        self, pair: Pair, found: Difference, terms: list[np.ndarray]
    ) -> Difference:
        """Judge the difference of arrays of which one has few digits."""
        grid = pair.grid
        bound = 8 * sqrt(len(terms) or _ACCUMULATED) * grid.unit
        found = found._replace(bound=bound)
        fine, coarse = pair.by_digits
        of_a, of_b = pair.formats
        if of_a == of_b:
            words = _neighbours(fine, coarse, grid)
        else:
            words = repeated_rounding(fine, coarse, terms, grid)
        if words:
            return found.judged(Verdict.ROUNDING, words)
        where = f"{found.size:.1e} of its norm; rounding to {grid.name} does not "
        where += "repeat it"
        if found.size > bound:
            return found.judged(Verdict.BUG, where)
        missing = f"both runs with sums and products in float32 instead of {grid.name}"
        if not terms:
            missing = "the gradient of each microbatch before it is added to the sum "
            missing += "(microbatch/K/gradients/NAME)"
        return found.judged(Verdict.CANNOT_TELL, where, missing)

    # -- causes ------------------------------------------------------------------------

    def _cause(self, pairs: list[Pair]) -> str:
        """Return a sentence if the microbatches have other weights in B."""
        if not pairs:
            return ""
        total = np.concatenate([pair.a.ravel() for pair in pairs])
        difference = np.concatenate([(pair.b - pair.a).ravel() for pair in pairs])
        names = [pair.name for pair in pairs]
        numbers = self.parts_of_a[names[0]]
        if any(self.parts_of_a[name] != numbers for name in names):
            numbers = []
        terms = []
        for number in numbers:
            parts = [self.a[name._replace(microbatch=number)] for name in names]
            terms.append(np.concatenate([part.ravel() for part in parts]))
        weights = weights_of(total, difference, terms)
        if not weights:
            return ""
        return described_weights(weights, numbers)

    def _with_cause(self, found: Difference, pair: Pair, cause: str) -> Difference:
        """Judge a difference with a cause as a bug, even if it is small: rounding
        errors have none.
        """
        unit = self.assumed.format_of(pair.grid).unit
        is_large = found.size > _SURELY_STRUCTURED * unit
        is_repeated = found.verdict is Verdict.ROUNDING
        if found.verdict is Verdict.BUG or (is_large and not is_repeated):
            return found.judged(Verdict.BUG, cause)
        return found

    # -- weights -----------------------------------------------------------------------

    def weights(self) -> Iterator[Difference]:
        """Yield the differences of weights, relative to their change since step 0."""
        sizes: dict[Name, float] = {}
        results = []
        for pair in self._pairs("weights"):
            before = sizes.get(pair.name._replace(step=pair.name.step - 1))
            results.append(self._weight(pair, before))
            sizes[pair.name] = results[-1].size
        bad = [each for each in results if each.verdict is Verdict.BUG]
        for each in results:
            # One gradient may consist of rounding errors, which some optimisers make
            # as large as any other.
            is_alone = 2 * len(bad) < len(results) and each.step != 0
            if is_alone and self.assumed.optimiser != "sgd":
                each = _unless_bug(each, "the gradients of step 1 (gradients/NAME)")
            yield each

    def _weight(self, pair: Pair, before: float | None) -> Difference:
        found = pair.difference(pair.length, pair.grid.unit)
        if np.array_equal(pair.a, pair.b):
            return found
        of_a, of_b = pair.formats
        if pair.grid.digits < FLOAT32.digits and of_a != of_b:
            fine, coarse = pair.by_digits
            words = repeated_rounding(fine, coarse, [], pair.grid)
            if words:
                return found.judged(Verdict.ROUNDING, words)
        if pair.name.step == 0:
            return found.judged(Verdict.BUG, "the runs start from different weights")
        start = self.a.get(pair.name._replace(step=0))
        if start is None or pair.name.step < 0:
            missing = "the weights of both runs before the first step, and their step "
            missing += "(step/0/weights/NAME, step/1/weights/NAME)"
            where = "an error of an update is relative to the update, which is unknown"
            return found.judged(Verdict.CANNOT_TELL, where, missing)
        update = max(norm(pair.a - start), norm(pair.b - start))
        return self._update(pair, update, before)

    def _update(self, pair: Pair, update: float, before: float | None) -> Difference:
        """Judge the difference of weights, relative to their update; ``before`` is the
        difference one step before, if it is known.
        """
        arithmetic = self.assumed.format_of(pair.grid)
        step = pair.name.step
        floor = 2 * arithmetic.unit * sqrt(step) * pair.length / update
        least = self.assumed.bound(arithmetic)
        bound = floor + least * GROWTH ** (step - 1)
        if before is not None:
            bound = floor + max(least, GROWTH * before)
        if self.spread:
            bound = (
                floor + _SPREAD * self.spread.get(pair.name, 0.0) * pair.length / update
            )
        found = pair.difference(update, bound)
        where = f"{found.size:.1e} of the update, the bound is {bound:.1e}"
        is_small = self.assumed.optimiser != "sgd" and found.size < _SMALL
        if found.size > DOUBT * bound and not is_small:
            return found.judged(Verdict.BUG, where)
        if found.size > bound or bound > _VISIBLE_UPDATE:
            missing = "the gradients of step 1 (gradients/NAME): their errors are not "
            missing += "hidden by the digits of weights"
            if pair.name._replace(kind="gradients") in self.a:
                missing = "weights in float64, after each step: their digits hide an "
                missing += "error of an update"
            return found.judged(Verdict.CANNOT_TELL, where, missing)
        return found.judged(Verdict.ORDER, where)


def _microbatches(run: Run) -> dict[Name, list[int]]:
    """Return by gradient the microbatches whose parts a run records."""
    numbers: dict[Name, list[int]] = defaultdict(list)
    for name in sorted(run):
        if name.microbatch >= 0:
            numbers[name._replace(microbatch=-1)].append(name.microbatch)
    return numbers


def _unless_bug(difference: Difference, missing: str) -> Difference:
    """Return a difference as undecided if it would be a bug."""
    if difference.verdict is not Verdict.BUG:
        return difference
    return difference.judged(Verdict.CANNOT_TELL, difference.evidence, missing)


def _worst_row(pair: Pair, length: float) -> tuple[float, str]:
    """Return the largest relative difference of a row, of any axis, and its place: a
    bug in one row of a large array changes the whole little.
    """
    worst = (0.0, "")
    a, b = pair.a / length, pair.b / length
    for axis in range(a.ndim):
        others = tuple(each for each in range(a.ndim) if each != axis)
        off, *both = (np.square(each).sum(axis=others) for each in (b - a, a, b))
        squares = np.maximum(*both)
        squares = np.maximum(squares, _SHORTEST**2 / squares.size)
        sizes = np.sqrt(off / squares)
        index = int(np.argmax(sizes))
        worst = max(worst, (float(sizes[index]), f"row {index} of axis {axis}"))
    return worst


def _neighbours(a: np.ndarray, b: np.ndarray, grid: Format) -> str:
    """Return a sentence if few values of a coarse format differ, by one spacing."""
    off = np.abs(b - a) / grid.spacing(np.maximum(np.abs(a), np.abs(b)))
    moved = int(np.count_nonzero(off))
    if off.max() > 1 or moved > 0.01 * off.size:
        return ""
    return f"{moved} of {off.size} values have the next number of {grid.name}"
